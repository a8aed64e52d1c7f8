"""Item: one input on its way to becoming a record, a picture or a frame of a video."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Origin

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
