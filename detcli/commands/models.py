"""`detcli models`: the models with names."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detcli.commands.shared import options
from detcli.commands.shared.layout import Command, Group
from detcli.commands.shared.messages import say, set_verbosity
from detcli.commands.shared.progress import fetching
from detcli.errors import ModelError, UsageError
from detcli.files import StandardOutput
from detcli.model.zoo import MODELS, ZooModel, local_path

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    cls=Group,
    help="List, fetch, locate and remove the models with names.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def _names(incomplete: str) -> list[str]:
    """Complete a name in the shell."""
    from detcli.model import zoo

    return [name for name in zoo.MODELS if name.startswith(incomplete)]


NameOption = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A name from `detcli models list`.", autocompletion=_names),
]
ModelNamesOption = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Names from `detcli models list`.", autocompletion=_names
    ),
]
HalfFileOption = Annotated[
    bool, typer.Option("--half", help="Take the float16 file instead of the float32 one.")
]


@app.command("list", cls=Command)
def list_models(
    *,
    licence: Annotated[
        str | None,
        typer.Option(
            "--licence",
            metavar="TEXT",
            help="Only those whose licence begins with this, as in apache; case does not matter.",
        ),
    ] = None,
    report_format: options.ReportFormatOption = None,
) -> None:
    """List the models with their state, size and licence.

    This needs no network: the size of a model that has not been fetched is estimated from its
    number of parameters.
    """
    from detcli.commands.shared.reports import write_report

    write_report(listing(licence), report_format, render)


@app.command(cls=Command)
def pull(
    names: ModelNamesOption,
    *,
    half: HalfFileOption = False,
    quiet: options.QuietOption = False,
    verbose: options.VerboseOption = 0,
) -> None:
    """Fetch models, and print the paths of their files.

    Files that exist already are checked, and fetched again if they are damaged. Models come from
    Hugging Face, or the hub in HF_ENDPOINT, and are kept in its cache, which HF_HOME moves.
    """
    set_verbosity(quiet=quiet, verbose=verbose)
    from detcli.model import zoo

    for name in dict.fromkeys(names):
        with fetching() as show:
            path = zoo.pull(name, half=half, show=show)
        StandardOutput().write(f"{path}\n")


@app.command(cls=Command)
def path(name: NameOption, *, half: HalfFileOption = False) -> None:
    """Print the path of a model's file."""
    from detcli.model import zoo

    StandardOutput().write(f"{zoo.model_path(name, half=half)}\n")


@app.command(cls=Command)
def remove(names: ModelNamesOption, *, quiet: options.QuietOption = False) -> None:
    """Remove fetched models, including their float16 files.

    Files of other programs in the Hugging Face cache are kept.
    """
    set_verbosity(quiet=quiet, verbose=0)
    from detcli.model import zoo

    for name in dict.fromkeys(names):
        freed = zoo.remove(name)
        if not quiet:
            say(f"removed {name}, freed {freed / 1e6:.1f} MB")


class FileState(StrEnum):
    """Where a model's file is."""

    BUNDLED = "bundled"
    FETCHED = "fetched"
    TO_FETCH = "to fetch"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a model."""

    half: bool  # whether this is the float16 file
    state: FileState  # where the file is
    bytes: int | None  # size; None for a file that is not on this machine
    path: Path | None  # the file; None for a file that is not on this machine
    # commit of the file, or the revision that would be fetched; None for a model that comes with
    # detcli
    revision: str | None


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model and its files; see `ZooModel`."""

    name: str
    licence: str
    repository: str | None
    parameters: int | None
    files: tuple[ListedFile, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All models with names."""

    models: tuple[ListedModel, ...]


def listing(licence: str | None = None) -> Listing:
    """List the models without asking a hub.

    Args:
        licence: What the licences of those to list begin with, in any case; None for all models.

    Raises:
        UsageError: No model has such a licence.
    """
    wanted = [
        one
        for one in MODELS.values()
        if one.licence.casefold().startswith((licence or "").casefold())
    ]
    if not wanted:
        known = ", ".join(sorted({one.licence for one in MODELS.values()}))
        raise UsageError(f"--licence '{licence}': no model has it", f"the licences are: {known}")
    return Listing(
        tuple(
            ListedModel(one.name, one.licence, one.repository, one.parameters, tuple(_files(one)))
            for one in wanted
        )
    )


def _files(model: ZooModel) -> Iterator[ListedFile]:
    """The float32 file, and the float16 file unless the model is bundled."""
    for half in (False, True) if model.repository else (False,):
        file = model.file(half=half)
        try:
            path = local_path(model, half=half)
        except ModelError:
            yield ListedFile(half, FileState.MISSING, None, None, None)
            continue
        if file is None:
            state, revision = FileState.BUNDLED, None
        elif path is None:
            state, revision = FileState.TO_FETCH, file.revision
        else:
            state, revision = FileState.FETCHED, file.commit_of(path)
        size = path.stat().st_size if path else None
        yield ListedFile(half, state, size, path, revision)


STYLES = {FileState.MISSING: "red", FileState.TO_FETCH: ""}


def render(listing: Listing) -> "Iterator[Table]":
    """A table with a row per model, and one for each float16 file that was fetched."""
    from rich.table import Table
    from rich.text import Text

    table = Table("model", "", "size", "licence", "from", "revision", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for model in listing.models:
        for file in model.files:
            if not file.half or file.state is FileState.FETCHED:
                table.add_row(
                    "  --half" if file.half else model.name,
                    Text(file.state, STYLES.get(file.state, "green")),
                    _size(model, file),
                    model.licence,
                    model.repository or "detcli",
                    _revision(model.name, file.revision or ""),
                )
    yield table


def _revision(name: str, revision: str) -> str:
    """A commit in short, and whether the model may be another tomorrow."""
    return revision[:7] if not revision or MODELS[name].pinned else "not pinned"


def _size(model: ListedModel, file: ListedFile) -> str:
    """Size of a file; before it is fetched, an estimate of four bytes per parameter."""
    from rich.filesize import decimal

    if file.bytes is not None:
        return decimal(file.bytes)
    return "" if model.parameters is None else f"~{decimal(4 * model.parameters)}"
