"""When a photograph was taken: the time as stored in a record, and how it is read back."""

from datetime import datetime
from typing import NamedTuple


class CaptureTime(NamedTuple):
    """When a photograph was taken, as its camera's clock showed it."""

    local: str  # as `to_text` writes it
    offset: str | None  # of that clock from UTC, as in +01:00; None where the camera does not say


def to_text(time: datetime) -> str:
    """Format a local time in ISO 8601, so that the same moment always gives the same string.

    Examples:
        >>> to_text(datetime(2026, 1, 31, 12, 0, 0, 250_000))
        '2026-01-31T12:00:00.25'
        >>> to_text(datetime(2026, 1, 31, 12, 0, 0))
        '2026-01-31T12:00:00'
    """
    text = time.isoformat()
    if time.microsecond:
        return text.rstrip("0")
    return text


def from_text(text: str) -> datetime | None:
    """Read the local time of a record; None if what others wrote there is not such a time."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.replace(tzinfo=None)
