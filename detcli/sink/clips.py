"""PerClip: what a sink keeps for each video while its frames come."""

import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from detcli.record import Record

State = TypeVar("State")


class PerClip(Generic[State]):
    """Keeps something for each video whose frames are coming.

    Videos in files come one after the other, so one of them is kept; live ones come together.
    """

    def __init__(
        self,
        begin: Callable[[Record], State],
        end: Callable[[State], None] = lambda _state: None,
    ) -> None:
        """Begin with none.

        Args:
            begin: Makes what is kept, from the first record of a video.
            end: Takes leave of it.
        """
        self._begin = begin
        self._end = end
        self._kept: dict[object, State] = {}
        self._file: object = None  # key of the one video that is no live one
        self._frame = -1

    def of(self, record: Record) -> State:
        """What belongs to the video of a frame; to be asked once for each frame."""
        origin = record.origin
        key = origin.source, origin.clip
        if origin.clip is None or not origin.clip.live:
            frame = origin.frame or 0
            if key != self._file or frame <= self._frame:  # or the same once more
                self._leave()
            self._file, self._frame = key, frame
        if key not in self._kept:
            self._kept[key] = self._begin(record)
        return self._kept[key]

    def close(self) -> None:
        """Take leave of what is left, of each even if one fails."""
        with contextlib.ExitStack() as stack:
            for state in self._kept.values():
                stack.callback(self._end, state)
            self._kept = {}

    def _leave(self) -> None:
        if self._file in self._kept:
            self._end(self._kept.pop(self._file))
