"""Which inputs a resume file has records of, kept in little memory: there may be millions."""

from collections import Counter

from detcli.sink.recorded_images import RecordedImages


class RecordedInputs:
    """The images and frames that have records, and what their files were when they were read.

    All records are added, then `sort` is called, and then questions are asked.
    """

    def __init__(self) -> None:
        self._images = RecordedImages()
        # How many records there are of each frame of a video, by the name of the video. A video
        # that was named twice has two of each.
        self._frame_counts: dict[str, Counter[int]] = {}
        self._video_stamps: dict[str, str] = {}  # of the last record of a video that has one

    def add(self, source: str, frame: int | None, file_stamp: str | None) -> None:
        """Count one more record of an image or frame, and store the stamp of its file.

        Args:
            source: The name of the record's input.
            frame: The number of the frame, if the input is a video; None for an image.
            file_stamp: The size and time of the input's file when it was read. None if the record
                has none; then the stamp of an earlier record of the input stays.
        """
        if frame is None:
            self._images.add(source, file_stamp)
            return
        self._frame_counts.setdefault(source, Counter())[frame] += 1
        if file_stamp is not None:
            self._video_stamps[source] = file_stamp

    def sort(self) -> None:
        """Sort the records, after which questions about inputs can be asked."""
        self._images.sort()

    def has(self, source: str, frame: int | None) -> bool:
        """Return whether an image, or a frame of a video, has a record left."""
        if frame is None:
            return self._images.has(source)
        return source in self._frame_counts and self._frame_counts[source][frame] > 0

    def remove(self, source: str, frame: int | None) -> None:
        """Remove one record of an image, or of a frame of a video, that has one."""
        if frame is None:
            self._images.remove(source)
        else:
            self._frame_counts[source][frame] -= 1

    def file_stamp(self, source: str) -> str | None:
        """Return what the file of an input was when its last record was made, if that is known."""
        if source in self._video_stamps:
            return self._video_stamps[source]
        return self._images.file_stamp(source)

    def clear(self) -> None:
        """Forget all records."""
        self._images = RecordedImages()
        self._frame_counts.clear()
        self._video_stamps.clear()
