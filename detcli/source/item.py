"""Item: one input, a picture or a frame of a video; and how inputs are read."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

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
        begin: Starts what takes waiting instead of work, where there is such a thing; may be called
            before `load`, which then takes less time.
    """

    origin: Origin
    load: Callable[[], Picture]
    begin: Callable[[], None] | None = None


def failed(
    source: str, error: InputError, frame: int | None = None, time: datetime | None = None
) -> Item:
    """An input that failed before it could be opened; loading it raises the error."""

    def load() -> Picture:
        raise error

    return Item(Origin(source, frame=frame, time=time), load)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How sources are read."""

    recursive: bool = False  # search the folders in a folder, too
    stride: int = 1  # use every stride-th frame of a video, from the first one on
    start_s: float = 0.0  # leave out frames before this time
    end_s: float | None = None  # leave out frames from this time on
    files_from: str | None = None  # a file with names of pictures and videos; - is standard input
    null_separated: bool = False  # names in it end with NUL instead of a newline
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    written: tuple[Path, ...] = ()  # folders that this run writes into, which a search leaves out
    reconnect_s: float = 300.0  # for how long a lost live source is opened again


@dataclass(slots=True)
class SourceProgress:
    """Progress of a run, shared by its sources."""

    total: int | None = 0  # inputs known so far; None if a source has no known end
    dropped: Counter[str] = field(default_factory=Counter)  # replaced frames, of each live source
    steps: int = 0  # calls of a video's reader that have returned
    hanging: list[Thread] = field(default_factory=list)  # readers that were abandoned
    stop: Event = field(default_factory=Event)  # set when no more items are wanted

    def expect(self, more: int | None) -> None:
        """Add to the total, or subtract from it; None if the number is unknown."""
        if more is None:
            self.total = None
        elif self.total is not None:
            self.total += more
