"""`detcli models list`: the models with names, and which of them are on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.errors import ModelError, UsageError
from detcli.model.zoo import MODELS, ZooModel, local_path


class FileState(StrEnum):
    """Where a model's file is."""

    BUNDLED = "bundled"
    FETCHED = "fetched"
    TO_FETCH = "to fetch"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a model.

    Attributes:
        half: Whether this is the float16 file.
        state: Where the file is.
        bytes: Size; None for a file that is not on this machine.
        path: The file; None for a file that is not on this machine.
        revision: Commit of the file, or the revision that would be fetched; None for a model that
            comes with detcli.
    """

    half: bool
    state: FileState
    bytes: int | None
    path: Path | None
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


def render(listing: Listing) -> Iterator[Table]:
    """A table with a row per model, and one for each float16 file that was fetched."""
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
    if file.bytes is not None:
        return decimal(file.bytes)
    return "" if model.parameters is None else f"~{decimal(4 * model.parameters)}"
