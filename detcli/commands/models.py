"""`detcli models`: the models with names, and which of them are on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from detcli.cli.command import Command, command
from detcli.cli.console import download_progress, set_verbosity
from detcli.cli.help import Group
from detcli.cli.report import REPORT_FORMAT, ReportFormat, write_report
from detcli.config.config import Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.core import frozen
from detcli.core.errors import ModelError, UsageError
from detcli.model import zoo
from detcli.storage.files import StandardOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text

app = typer.Typer(
    cls=Group,
    help="List, fetch and locate the models with names.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _names(incomplete: str) -> list[str]:
    """Complete the name of a model."""
    return [name for name in zoo.MODELS if name.startswith(incomplete)]


NAMES: tuple[str, ...] = option(
    REQUIRED, "NAME...", "Names from `detcli models list`.", complete=_names
)
HALF: bool = option(False, "--half", "Take the float16 file instead of the float32 one.")


@app.command("list", cls=Command)
@command()
def list_models(
    licence: str | None = option(
        None,
        "--licence TEXT",
        "Only those whose licence begins with this, as in apache; case does not matter.",
    ),
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """List the models with their state, size and licence.

    This needs no network: the size of a model that has not been fetched is estimated from its
    number of parameters.
    """
    licence_start = (licence or "").casefold()
    listed_models = []
    for model in zoo.MODELS.values():
        if model.licence.casefold().startswith(licence_start):
            listed_models.append(_listed(model))
    if not listed_models:
        licences = sorted({model.licence for model in zoo.MODELS.values()})
        raise UsageError(
            f"--licence '{licence}': no model has it", f"the licences are: {', '.join(licences)}"
        )
    write_report(Listing(tuple(listed_models)), report_format, render)


@app.command(cls=Command)
@command(Verbosity)
def pull(config: Config, names: tuple[str, ...] = NAMES, half: bool = HALF) -> None:  # noqa: FBT001
    """Fetch models, and print the paths of their files.

    Files that exist already are checked, and fetched again if they are damaged. Models come from
    Hugging Face, or the hub in HF_ENDPOINT, and are kept in its cache, which HF_HOME moves.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    unique_names = dict.fromkeys(names)
    for name in unique_names:
        with download_progress() as show_progress:
            path = zoo.pull(name, half=half, show=show_progress)
        # Python has no `sys.stdout` if standard output is closed, as with `>&-`. A user who does
        # that wants no path, only the file.
        if sys.stdout is not None:
            StandardOutput().write(f"{path}\n")


@app.command("path", cls=Command)
@command()
def print_path(
    name: str = option(REQUIRED, "NAME", "A name from `detcli models list`.", complete=_names),
    *,
    half: bool = HALF,
) -> None:
    """Print the path of a model's file."""
    StandardOutput().write(f"{zoo.model_path(name, half=half)}\n")


STYLES = {"bundled": "green", "fetched": "green", "to fetch": "", "missing": "red"}
"""The states of files."""


@frozen
class ListedFile:
    """A file of a model, and where it is."""

    half: bool  # the float16 file
    state: str  # a key of STYLES
    bytes: int | None = None  # of a file on this machine
    path: Path | None = None
    revision: str | None = None  # its commit, or the revision that would be fetched


@frozen
class ListedModel:
    """A `zoo.ZooModel` and its files."""

    name: str
    licence: str
    repository: str | None
    parameters: int | None
    files: tuple[ListedFile, ...]


@frozen
class Listing:
    """The models that can be named, as JSON."""

    models: tuple[ListedModel, ...]


def _listed(model: zoo.ZooModel) -> ListedModel:
    """Describe a model for the list, with the state of each of its files.

    A model that is fetched has a float32 and a float16 file, a bundled one only the former.
    """
    files = [_listed_file(model, half=False)]
    if model.repository:
        files.append(_listed_file(model, half=True))
    return ListedModel(
        name=model.name,
        licence=model.licence,
        repository=model.repository,
        parameters=model.parameters,
        files=tuple(files),
    )


def _listed_file(model: zoo.ZooModel, *, half: bool) -> ListedFile:
    """Describe a file of a model: whether it is on this machine, where, and which revision it is.

    Args:
        model: The model.
        half: Whether to describe its float16 file instead of the float32 one.
    """
    try:
        path = zoo.local_path(model, half=half)
    except ModelError:  # a bundled model whose file was removed from the installation
        return ListedFile(half, "missing")
    if path is None:
        return ListedFile(half, "to fetch", revision=model.revision)

    size = path.stat().st_size
    hub_file = model.file(half=half)
    if hub_file is None:  # detcli bundles the model
        return ListedFile(half, "bundled", bytes=size, path=path)
    commit = hub_file.commit_of(path)
    return ListedFile(half, "fetched", bytes=size, path=path, revision=commit)


def render(listing: Listing) -> "Iterator[Table]":
    """Lay out the list of models as a table, with a row for each model.

    If the float16 file of a model was fetched, it has another row below.
    """
    from rich.table import Column, Table

    # On a narrow terminal, other columns are truncated. The names are what one types, so they stay
    # whole.
    longest_name = max(len(model.name) for model in listing.models)
    name = Column("model", no_wrap=True, min_width=longest_name)
    state = Column("", no_wrap=True, min_width=len("to fetch"))
    size = Column("size", justify="right", no_wrap=True, min_width=len("~100 MB"))
    table = Table(name, state, size, "licence", "from", "revision", box=None, pad_edge=False)
    for model in listing.models:
        for file in model.files:
            is_listed = not file.half or file.state == "fetched"
            if is_listed:
                table.add_row(*_row(model, file))
    yield table


def _row(model: ListedModel, file: ListedFile) -> "Iterator[str | Text]":
    """Yield the cells of the table for a file of a model."""
    from rich.text import Text

    if file.half:
        yield "  --half"
    else:
        yield model.name
    yield Text(file.state, STYLES[file.state])
    yield _size_text(model, file)
    yield model.licence
    repository = model.repository or "detcli"
    yield repository.rpartition("/")[2]  # without its owner, which is that of all
    yield _revision_text(model, file)


def _size_text(model: ListedModel, file: ListedFile) -> str:
    """Format the size of a file, as in "9.4 MB".

    Before it is fetched, the size is estimated by four bytes for each parameter, as in "~9 MB".
    If the number of parameters is unknown, the string is empty.
    """
    from rich.filesize import decimal

    if file.bytes is not None:
        return decimal(file.bytes)
    if model.parameters is None:
        return ""
    return f"~{decimal(4 * model.parameters, precision=0)}"


def _revision_text(model: ListedModel, file: ListedFile) -> str:
    """Format the beginning of a file's revision, or that the model has no fixed one."""
    if not file.revision:
        return ""
    if not zoo.MODELS[model.name].pinned:
        return "not pinned"
    return file.revision[:7]
