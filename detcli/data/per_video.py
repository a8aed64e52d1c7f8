"""A state for each video, kept while its frames come."""

import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from detcli.data.record import Record

State = TypeVar("State")


class PerVideo(Generic[State]):
    """Keeps a state for each video while its frames come.

    `begin` makes a state from the first record of a video, and `end` finishes it after the last.
    Videos in files come one after the other, so only one of them has a state at a time; live
    sources come interleaved.
    """

    def __init__(
        self, begin: Callable[[Record], State], end: Callable[[State], None] = lambda _: None
    ) -> None:
        self._begin = begin
        self._end = end
        self._states: dict[object, State] = {}
        self._file: object = None  # key of the video in a file that is being read
        self._frame = -1

    def of(self, record: Record) -> State:
        """The state of a frame's video; to be called once per frame."""
        origin = record.origin
        key = origin.source, origin.video
        if origin.video is None or not origin.video.live:
            frame = origin.frame or 0
            # Frames that start over are those of the same video, named twice.
            if (key != self._file or frame <= self._frame) and self._file in self._states:
                self._end(self._states.pop(self._file))
            self._file, self._frame = key, frame
        if key not in self._states:
            self._states[key] = self._begin(record)
        return self._states[key]

    def close(self) -> None:
        """Finish all states, even if one fails."""
        with contextlib.ExitStack() as stack:
            for state in self._states.values():
                stack.callback(self._end, state)
            self._states = {}
