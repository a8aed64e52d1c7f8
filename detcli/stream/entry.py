"""What the threads of a pipeline hand to each other."""

import logging
import threading
from dataclasses import dataclass, field

from detcli.errors import DetcliError, InferenceError
from detcli.geometry import Picture
from detcli.record import Record
from detcli.stream.item import Item

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Entry:
    """An item on its way.

    Attributes:
        index: Its place among the items.
        item: What is to be loaded.
        picture: What was loaded; None if that failed.
        error: Why it failed.
        loading_s: Seconds that it took.
        loaded: Set when one of the two is there.
        record: What it came to.
    """

    index: int
    item: Item
    picture: Picture | None = None
    error: DetcliError | None = None
    loading_s: float = 0.0
    loaded: threading.Event = field(default_factory=threading.Event)
    record: Record | None = None


Batch = list[Entry]


@dataclass(frozen=True, slots=True)
class Done:
    """Some entries have their records."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """What ends the run at once."""

    error: DetcliError


@dataclass(frozen=True, slots=True)
class End:
    """Nothing more to read; with the error that ended it, if there was one."""

    error: BaseException | None = None


def as_error(error: BaseException) -> DetcliError:
    """What a thread caught, as an error that a record can carry."""
    if isinstance(error, DetcliError):
        return error
    log.debug("%s", error, exc_info=error)
    if isinstance(error, MemoryError):
        return InferenceError(f"out of memory: {error}", "use a smaller --imgsz or --batch")
    return InferenceError(
        f"this is a bug in detcli: {type(error).__name__}: {error}",
        "run it again with -vv and report what it prints",
    )
