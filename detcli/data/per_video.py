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
        self._file_key: object = None  # of the video in a file that is being read
        self._last_frame = -1  # the number of its last frame

    def state_of(self, record: Record) -> State:
        """Return the state of the video that a record is a frame of; begin it for a new video.

        To be called once for each frame. At the first frame of a new file, it also finishes the
        state of the previous file.
        """
        origin = record.origin
        video_key = (origin.source, origin.video)
        is_live = origin.video is not None and origin.video.live
        if not is_live:
            self._end_earlier_file(video_key, origin.frame or 0)
        if video_key not in self._states:
            self._states[video_key] = self._begin(record)
        return self._states[video_key]

    def _end_earlier_file(self, video_key: object, frame_number: int) -> None:
        """Finish the state of the previous file, if a frame is the first of a new one.

        Frames whose numbers start over belong to a new file, too: it is the same one, named twice.
        """
        is_new_video = video_key != self._file_key or frame_number <= self._last_frame
        if is_new_video and self._file_key in self._states:
            self._end(self._states.pop(self._file_key))
        self._file_key = video_key
        self._last_frame = frame_number

    def close(self) -> None:
        """Finish all states, even if finishing one of them fails."""
        with contextlib.ExitStack() as on_exit:
            for state in self._states.values():
                on_exit.callback(self._end, state)
            self._states = {}
