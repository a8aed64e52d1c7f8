"""`detcli models`: the models with names, and which of them are on this machine."""

import sys
from collections.abc import Iterator
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
    from rich.table import Table

app = typer.Typer(
    cls=Group,
    help="List, fetch and locate the models with names.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _names(incomplete: str) -> list[str]:
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
    models = zoo.MODELS.values()
    start = (licence or "").casefold()
    listed = tuple(
        ListedModel(one.name, one.licence, one.repository, one.parameters, tuple(_files(one)))
        for one in models
        if one.licence.casefold().startswith(start)
    )
    if not listed:
        known = ", ".join(sorted({one.licence for one in models}))
        raise UsageError(f"--licence '{licence}': no model has it", f"the licences are: {known}")
    write_report(Listing(listed), report_format, render)


@app.command(cls=Command)
@command(Verbosity)
def pull(config: Config, names: tuple[str, ...] = NAMES, half: bool = HALF) -> None:  # noqa: FBT001
    """Fetch models, and print the paths of their files.

    Files that exist already are checked, and fetched again if they are damaged. Models come from
    Hugging Face, or the hub in HF_ENDPOINT, and are kept in its cache, which HF_HOME moves.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    for name in dict.fromkeys(names):
        with download_progress() as show:
            path = zoo.pull(name, half=half, show=show)
        if sys.stdout is not None:  # closed where only the file is wanted
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
    models: tuple[ListedModel, ...]


def _files(model: zoo.ZooModel) -> Iterator[ListedFile]:
    for half in (False, True) if model.repository else (False,):
        try:
            path = zoo.local_path(model, half=half)
        except ModelError:
            yield ListedFile(half, "missing")
            continue
        file = model.file(half=half)
        if path is None:
            yield ListedFile(half, "to fetch", revision=model.revision)
        else:
            state = "fetched" if file else "bundled"
            commit = file.commit_of(path) if file else None
            yield ListedFile(half, state, path.stat().st_size, path, commit)


def render(listing: Listing) -> "Iterator[Table]":
    """A table with a row per model, and one for each float16 file that was fetched."""
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "", "size", "licence", "from", "revision", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for model in listing.models:
        # Before it is fetched, four bytes for each parameter.
        estimate = (
            "" if model.parameters is None else f"~{decimal(4 * model.parameters, precision=0)}"
        )
        for file in model.files:
            if not file.half or file.state == "fetched":
                pinned = zoo.MODELS[model.name].pinned or not file.revision
                table.add_row(
                    "  --half" if file.half else model.name,
                    Text(file.state, STYLES[file.state]),
                    estimate if file.bytes is None else decimal(file.bytes),
                    model.licence,
                    (model.repository or "detcli").rpartition("/")[2],  # all have one owner
                    (file.revision or "")[:7] if pinned else "not pinned",
                )
    yield table
