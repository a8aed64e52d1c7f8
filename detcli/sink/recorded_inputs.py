"""Which inputs a resume file has records of, kept in little memory: there may be millions."""

from collections import Counter


class RecordedInputs:
    """The images and frames that have records, and what their files were when they were read.

    A million images take about 210 MB, most of it for their names.
    """

    def __init__(self) -> None:
        # The stamp of each image's file, its size and time, by name; None if it is not known.
        self._image_stamps: dict[str, str | None] = {}
        # How many further records there are of the images that have several.
        self._image_repeats: Counter[str] = Counter()
        # How many records there are of each frame of a video, by the name of the video.
        self._frames: dict[str, Counter[int]] = {}
        self._video_stamps: dict[str, str] = {}  # of the last record of a video that has one

    def add(self, source: str, frame: int | None, file_stamp: str | None) -> None:
        """Add a record.

        Args:
            source: The name of its input.
            frame: The number of the frame, if the input is a video.
            file_stamp: The size and time that the input's file had; None if the record does not
                say it. Then the stamp of an earlier record stays.
        """
        if frame is None:
            self._add_image(source, file_stamp)
            return
        self._frames.setdefault(source, Counter())[frame] += 1
        if file_stamp is not None:
            self._video_stamps[source] = file_stamp

    def _add_image(self, source: str, file_stamp: str | None) -> None:
        """Add the record of an image; the arguments are those of `add`."""
        is_repeated = source in self._image_stamps
        if is_repeated:
            self._image_repeats[source] += 1
        if file_stamp is not None or not is_repeated:
            self._image_stamps[source] = file_stamp

    def has(self, source: str, frame: int | None) -> bool:
        """Tell whether a record is left of an image, or of a frame of a video."""
        if frame is None:
            return source in self._image_stamps
        return source in self._frames and self._frames[source][frame] > 0

    def remove(self, source: str, frame: int | None) -> None:
        """Remove one record of an image, or of a frame of a video, that has one."""
        if frame is not None:
            self._frames[source][frame] -= 1
        elif self._image_repeats.get(source, 0) > 0:
            self._image_repeats[source] -= 1
        else:
            del self._image_stamps[source]

    def file_stamp(self, source: str) -> str | None:
        """Return what the file of an input was when its last record was made, if that is known."""
        if source in self._video_stamps:
            return self._video_stamps[source]
        return self._image_stamps.get(source)

    def clear(self) -> None:
        """Forget all records."""
        self._image_stamps.clear()
        self._image_repeats.clear()
        self._frames.clear()
        self._video_stamps.clear()
