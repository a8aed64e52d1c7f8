"""Item: one input on its way to becoming a record, a picture or a frame of a video."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
