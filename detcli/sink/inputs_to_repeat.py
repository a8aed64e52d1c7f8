"""Which inputs of earlier runs are detected again, although a journal has records of them."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from detcli.core import Fields
from detcli.core.text import escape_surrogates
from detcli.data.record import name_of


class InputsToRepeat:
    """Determines whether the input of a record is detected again.

    These are inputs that failed, frames whose annotated video is missing, and all inputs of the
    sources that are added.
    """

    def __init__(self, videos: Path | None) -> None:
        """Read which annotated videos there are.

        Args:
            videos: The folder of the annotated videos; None if the run writes none.

        Raises:
            OSError: The folder cannot be read.
        """
        self._video_folder = videos
        self._sources: set[str] = set()  # all their records are made again
        self._exists = cache(os.path.lexists)
        self._present_videos: set[str] = set()  # annotated videos, by their names in records
        if videos is not None and videos.is_dir():
            for video in videos.iterdir():
                self._present_videos.add(escape_surrogates(video.as_posix()))

    def add_source(self, source: str) -> None:
        """Let all inputs of a source be detected again, as far as they can be."""
        self._sources.add(source)

    def add_incomplete_videos(self, records: Iterable[Fields]) -> None:
        """Find the videos that have to be tracked again, and add them to the sources to repeat.

        Tracks cannot be continued in the middle of a video. So a video is tracked again if it was
        the last input of a run, which may have been killed before its end, or if one of its frames
        has to be detected again.

        Args:
            records: The fields of all records, in the order of the journal; empty for a damaged
                line.
        """
        last_video: str | None = None  # None if the last record does not belong to a video file
        for record in records:
            is_start_of_run = "settings" in record
            if is_start_of_run and last_video is not None:
                self._sources.add(last_video)
            is_damaged_line = not record
            if is_damaged_line:
                continue
            last_video = _video_file_of(record)
            if last_video is not None and not self.is_done(record):
                self._sources.add(last_video)
        if last_video is not None:
            self._sources.add(last_video)

    def is_done(self, record: Fields) -> bool:
        """Return whether the input of a record need not be detected again.

        It has to be detected again in three cases:

        - It has failed.
        - Its whole source is repeated, as far as it can be.
        - It is a frame whose annotated video is missing, and it can be detected again.

        Args:
            record: The fields of the record; empty for a damaged line, which is not done.
        """
        if not record:
            return False
        source = name_of(record)
        if source in self._sources and self._can_be_repeated(record):
            return False
        has_failed = "detections" not in record
        if has_failed:
            return False
        is_frame = "frame" in record
        if is_frame and not self._has_annotated_videos(record):
            return not self._can_be_repeated(record)
        return True

    def _can_be_repeated(self, record: Fields) -> bool:
        """Return whether the input of a record can be detected again.

        A file that is gone cannot, nor a frame of a camera or stream. Whether an address still has
        anything is not known, so it counts as present.

        Args:
            record: The fields of the record.
        """
        is_live = "time" in record
        if is_live:
            return False
        source = name_of(record)
        return "://" in source or self._exists(source)

    def _has_annotated_videos(self, record: Fields) -> bool:
        """Return whether the annotated videos that a frame was saved in are in their folder."""
        video_folder = escape_surrogates(str(self._video_folder))
        annotated_videos = []
        for saved_name in record.get("saved", ()):
            if str(Path(saved_name).parent) == video_folder:
                annotated_videos.append(saved_name)
        return self._present_videos.issuperset(annotated_videos)


def _video_file_of(record: Fields) -> str | None:
    """Return the name of the video file that a record is a frame of; None for other inputs.

    A frame of a camera or stream has the time of day, and does not come from a file.
    """
    is_frame = "frame" in record
    is_live = "time" in record
    if is_frame and not is_live:
        return name_of(record)
    return None
