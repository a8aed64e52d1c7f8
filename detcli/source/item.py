"""Item: one input, a picture or a frame of a video; and how inputs are read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Origin
from detcli.source.decode import DecodeOptions

STDIN = "-"
"""The name that stands for standard input."""


@dataclass(frozen=True, slots=True)
class Item:
    """One input.

    Attributes:
        origin: Where it comes from.
        load: Reads and decodes it; called once, on another thread. Raises InputError.
    """

    origin: Origin
    load: Callable[[], Picture]


def failed(source: str, error: InputError, frame: int | None = None) -> Item:
    """An input that failed before it could be opened; loading it raises the error."""

    def load() -> Picture:
        raise error

    return Item(Origin(source, frame=frame), load)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How sources are read.

    Attributes:
        recursive: Whether the folders in a folder are searched, too.
        stride: Every stride-th frame of a video is used, from the first one on.
        start_s: Frames of a video before this time are left out.
        end_s: Frames of a video from this time on are left out.
        files_from: A file with names of pictures and videos, `-` for standard input.
        null_separated: Whether the names in it end with NUL instead of a newline.
        decode: How pictures are decoded.
        written: Folders that this run writes into, which a search leaves out.
        reconnect_s: For how long a lost live source is opened again.
    """

    recursive: bool = False
    stride: int = 1
    start_s: float = 0.0
    end_s: float | None = None
    files_from: str | None = None
    null_separated: bool = False
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    written: tuple[Path, ...] = ()
    reconnect_s: float = 300.0


@dataclass(slots=True)
class SourceProgress:
    """How far the sources of a run are; they share it.

    Attributes:
        total: Inputs known so far; None once one of the sources has no known end.
        dropped: Frames of live sources that were overtaken by newer ones.
        stop: Set when no more items are wanted.
    """

    total: int | None = 0
    dropped: int = 0
    stop: Event = field(default_factory=Event)

    def expect(self, more: int | None) -> None:
        """Add to the total, or subtract from it; None if the number is unknown."""
        if more is None:
            self.total = None
        elif self.total is not None:
            self.total += more
