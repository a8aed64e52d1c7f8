"""Intake: what all sources of a run share."""

from dataclasses import dataclass, field
from threading import Event


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
