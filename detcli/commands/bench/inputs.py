"""The pictures to measure with: the sources, repeated."""

import contextlib
import glob
import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from detcli.commands.bench.time_limit import TimeLimit
from detcli.errors import DetcliWarning, InputError, UsageError
from detcli.geometry import Picture
from detcli.source.address import is_live
from detcli.source.decode import BUILT_IN, TIMEOUT_S, too_slow
from detcli.source.item import STDIN, Item
from detcli.source.sources import Sources

HASHED = 16 << 20
"""Bytes hashed at the start of each file, besides its size."""


class RepeatedInputs(AbstractContextManager["RepeatedInputs"]):
    """The pictures and frames of repeatable sources, starting over at the end of each pass.

    Each picture has a time limit where `time_limit` runs what takes them.
    """

    def __init__(self, names: tuple[str, ...], time_limit: TimeLimit | None = None) -> None:
        self._names = names or (str(BUILT_IN),)
        self._time_limit = time_limit or TimeLimit()
        self._sources = Sources(self._names)
        self._told: set[str] = set()  # warnings

    def __exit__(self, *_: object) -> None:
        self._sources.close()

    def next_item(self) -> Item:
        """The next item; never runs out."""
        item = next(iter(self._sources), None)
        if item is None:
            self._sources = Sources(self._names)
            item = next(iter(self._sources))  # an empty source yields an item with the error
        return item

    def take(self, count: int) -> list[Picture]:
        """Read and decode the next pictures.

        Raises:
            InputError: A picture cannot be read; the message begins with its name.
        """
        pictures = []
        for _ in range(count):
            item = self.next_item()
            source = item.origin.source
            self._time_limit.step(TIMEOUT_S, partial(_too_slow, source))
            try:
                picture = item.load()
            except InputError as error:
                raise error.about(source) from error
            for warning in {f"{source}: {one}" for one in picture.warnings}:
                if warning not in self._told:  # each pass would repeat it
                    self._told.add(warning)
                    warnings.warn(warning, DetcliWarning, stacklevel=2)
            pictures.append(picture)
        return pictures


def _too_slow(source: str) -> InputError:
    return too_slow(TIMEOUT_S).about(source)


def check_repeatable(names: tuple[str, ...]) -> None:
    """Refuse sources that can be read only once.

    Raises:
        UsageError: A source is live, or standard input.
    """
    for name in names:
        if name == STDIN or is_live(name):
            what = "standard input" if name == STDIN else f"{name} is live: it"
            raise UsageError(
                f"{what} cannot be read again and again, which measuring needs",
                "give files or folders; a short recording will do",
            )


def digest(names: tuple[str, ...]) -> str:
    """SHA-256 that identifies a set of inputs, wherever the files are.

    Files count by size and content, folders by names and sizes, anything else by its name.
    """
    whole = hashlib.sha256()
    for name in names or (str(BUILT_IN),):
        for path in sorted(glob.glob(name)) if glob.has_magic(name) else [name]:  # noqa: PTH207 - as named
            for part in _identity(Path(path)):
                whole.update(part + b"\0")
    return whole.hexdigest()


def _identity(path: Path) -> Iterator[bytes]:
    """What cannot be read has its own error when it is loaded."""
    if path.is_dir():
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            yield os.fsencode(entry.name)
            with contextlib.suppress(OSError):  # a link to nothing
                yield str(entry.stat().st_size).encode()
    elif path.is_file():
        with contextlib.suppress(OSError), path.open("rb") as file:
            yield str(path.stat().st_size).encode()
            yield hashlib.sha256(file.read(HASHED)).digest()
    else:
        yield os.fsencode(path)
