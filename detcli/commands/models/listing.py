"""What models there are by name, and which of them are on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from detcli.errors import ModelError
from detcli.model.hub_cache import commit_of
from detcli.model.zoo import MODELS, ZooModel, there


class State(StrEnum):
    """Where a model is."""

    BUNDLED = "bundled"
    FETCHED = "fetched"
    TO_FETCH = "to fetch"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a model.

    Attributes:
        half: It is the float16 file.
        state: Whether it is there.
        bytes: Its size; None where it is not there.
        path: Where it is; None where it is not.
        revision: The commit of the file that is there, or what would be fetched; None for a model
            that comes with detcli.
    """

    half: bool
    state: State
    bytes: int | None
    path: Path | None
    revision: str | None


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model and its files; see `Model`."""

    name: str
    licence: str
    repository: str | None
    parameters: int | None
    files: tuple[ListedFile, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All models that go by name."""

    models: tuple[ListedModel, ...]


def listing() -> Listing:
    """What there is, without asking a hub."""
    return Listing(
        tuple(
            ListedModel(
                model.name, model.licence, model.repository, model.parameters, tuple(_files(model))
            )
            for model in MODELS.values()
        )
    )


def _files(model: ZooModel) -> Iterator[ListedFile]:
    """The float32 file, and the float16 file where there is one."""
    for half in (False, True):
        file = model.file(half=half)
        if file is None and half:
            return
        try:
            path = there(model, half=half)
        except ModelError:
            yield ListedFile(half, State.MISSING, None, None, None)
            continue
        if file is None:
            state, revision = State.BUNDLED, None
        elif path is None:
            state, revision = State.TO_FETCH, file.revision
        else:
            state, revision = State.FETCHED, commit_of(file, path)
        size = path.stat().st_size if path else None
        yield ListedFile(half, state, size, path, revision)
