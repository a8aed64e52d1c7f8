"""Item: one input on its way to becoming a record, a picture or a frame of a video."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Clip


@dataclass(frozen=True, slots=True)
class Item:
    """One input.

    Attributes:
        source: The name that records give it.
        load: Reads and decodes it; called once, on another thread. Raises InputError.
        path: The file, for a picture in a file.
        frame: Number of the frame in its video, from 0.
        time_s: Seconds from the start of the video.
        clip: The video that the frame belongs to.
    """

    source: str
    load: Callable[[], Picture]
    path: Path | None = None
    frame: int | None = None
    time_s: float | None = None
    clip: Clip | None = None


def failed(source: str, error: InputError) -> Item:
    """An input of which there is nothing but the reason why it cannot be read."""

    def load() -> Picture:
        raise error

    return Item(source, load)


@dataclass(slots=True)
class Intake:
    """What all sources of a run share.

    Attributes:
        total: Inputs that are known so far; None once there is one without a known end.
        dropped: Frames of live sources that were overtaken by newer ones.
        stop: Set when nothing more is wanted.
    """

    total: int | None = 0
    dropped: int = 0
    stop: Event = field(default_factory=Event)

    def expect(self, more: int | None) -> None:
        """Know of more inputs, or of fewer; None if nobody knows how many."""
        if more is None:
            self.total = None
        elif self.total is not None:
            self.total += more
