"""Annotated videos in a folder: one for each video, of the same size and rate."""

import shutil
from pathlib import Path

import numpy as np

from detcli.errors import OutputError
from detcli.files import AtomicFile
from detcli.geometry import Image
from detcli.opencv import cv2
from detcli.record import Record
from detcli.sink.clips import PerClip
from detcli.sink.draw import annotate
from detcli.sink.folder import OutputFolder

SUFFIX = ".mp4"
# What every build of OpenCV can write without a library that has to be paid for; the second takes
# sides beyond 8191 pixels.
CODECS = ("mp4v", "MJPG")

RATES = (0.01, 1000.0)
"""Frames a second that MP4 can tell. Outside of these, nobody measured."""

LIVE_RATE = 30.0
"""Frames a second of a live source, which has no rate of its own."""

LONGEST_PAUSE_S = 10.0
"""A live source that was away for longer is shown as if it had been away for so long."""

SPARE = 1 << 20
"""Bytes of the disk that others may take while a video is finished."""

INDEX_ENTRY = 32
"""Bytes that a frame takes in the index, which is written in the end."""


class VideoSink:
    """Writes the frames of each video, with their detections drawn, to a video of its name.

    Each frame of a file is one frame of the video; one that failed shows the frame before it, or
    black, so that time goes on. A live source's frames are placed by their time, at a constant
    rate: the video is as fast as the world was.

    Pictures are left to ImageSink.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._films = PerClip(lambda record: Film(folder, record), Film.close)

    def write(self, record: Record) -> None:
        """Write a frame.

        Raises:
            OutputError: No video of that size can be written, or the disk is full.
        """
        if record.origin.clip is not None and record.origin.frame is not None:
            self._films.of(record).write(record)

    def close(self) -> None:
        """Finish what is not finished, so that it can be played.

        Raises:
            OutputError: A video is not complete.
        """
        self._films.close()


class Film:
    """The annotated video of one source; several files if the size of its frames changes."""

    def __init__(self, folder: OutputFolder, first: Record) -> None:
        self._folder = folder
        self._source = first.origin.source
        clip = first.origin.clip
        rate = clip.frames_per_second if clip else 0.0
        self._rate = rate if RATES[0] <= rate <= RATES[1] else LIVE_RATE
        self._live = clip is not None and clip.live
        self._start_s = first.origin.time_s or 0.0
        self._due = 0  # frames that the video should have by now, in all its files
        self._owed = 0  # those of them that are not written yet
        self._file: VideoFile | None = None

    def write(self, record: Record) -> None:
        """Write a frame, after those that are missing before it."""
        steps = self._steps(record)
        self._due += steps
        self._owed += steps
        if record.picture is None or record.detections is None or self._owed == 0:
            return
        picture = annotate(record.picture.pixels, record.detections)
        if self._file is not None and self._file.shape != picture.shape:
            self._owed -= 1
            self.close()
            self._owed = 1
        if self._file is None:
            path = self._folder.file_for(self._source, SUFFIX)
            self._file = VideoFile(path, picture.shape, self._rate)
        missing, self._owed = self._owed - 1, 0
        self._file.repeat(missing)
        self._file.append(picture)

    def close(self) -> None:
        """Finish the file, after as many frames as are missing at its end."""
        if self._file is not None:
            file, self._file = self._file, None
            missing, self._owed = self._owed, 0
            try:
                file.repeat(missing)
            finally:
                file.close()

    def _steps(self, record: Record) -> int:
        """How many frames the video grows by: one, but for live sources."""
        if not self._live or record.origin.time_s is None:
            return 1
        steps = round((record.origin.time_s - self._start_s) * self._rate) + 1 - self._due
        too_many = steps - round(LONGEST_PAUSE_S * self._rate)
        if too_many > 0:
            self._start_s += too_many / self._rate
            steps -= too_many
        return max(0, steps)


class VideoFile:
    """One video, which appears under its name when it is closed.

    Raises:
        OutputError: It cannot be written there, or not of that size.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        """Open a video.

        Args:
            path: Where it will be.
            shape: Of its frames, `(height, width, 3)`; an odd last row or column is not written,
                since colours are stored for squares of 2x2 pixels.
            rate: Frames a second.
        """
        self.shape = shape
        self._path = path
        self._part = AtomicFile(path, binary=True, suffix=path.suffix)
        try:
            self._writer = _open_writer(self._part.written, shape, rate)
        except OutputError:
            self._part.discard()
            raise
        self._last = np.zeros(shape, np.uint8)
        self._count = 0

    def append(self, picture: Image) -> None:
        """Write a frame.

        Raises:
            OutputError: The disk is nearly full. OpenCV would not tell, nor could it finish.
        """
        needed = SPARE + INDEX_ENTRY * self._count + picture.nbytes
        if shutil.disk_usage(self._part.written.parent).free < needed:
            raise OutputError(
                f"cannot write {self._path}: no space left on the disk",
                "make room; the video ends here, and can be played",
            )
        self._writer.write(picture)
        self._last = picture
        self._count += 1

    def repeat(self, count: int) -> None:
        """Write the last frame so many times more; black, if there is none."""
        for _ in range(count):
            self.append(self._last)

    def close(self) -> None:
        """Finish the video and move it into place.

        Raises:
            OutputError: It does not hold all frames that were written.
        """
        self._writer.release()
        readable = _count_frames(self._part.written)
        if readable == 0:
            self._part.discard()
        else:
            self._part.commit()
        if readable < self._count:
            raise OutputError(
                f"{self._path} is not complete: {readable} of {self._count} frames were written",
                "check the space left on the disk, and how large a file may be there",
            )


def _open_writer(path: Path, shape: tuple[int, ...], rate: float) -> cv2.VideoWriter:
    """A writer, with the first codec that takes frames of that shape.

    Raises:
        OutputError: There is none.
    """
    height, width = shape[:2]
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # it would end the process
        raise OutputError(
            f"cannot write a video in {path.parent}: the folder's name is no Unicode",
            "name another folder",
        ) from error
    for codec in CODECS:
        fourcc = cv2.VideoWriter.fourcc(*codec)
        writer = cv2.VideoWriter(str(path), fourcc, rate, (width, height))
        if writer.isOpened():
            return writer
    raise OutputError(
        f"cannot write a video of {width}x{height} pixels in {path.parent}", "leave out --save"
    )


def _count_frames(path: Path) -> int:
    """How many frames the index of a video lists; 0 if it cannot be read."""
    video = cv2.VideoCapture(str(path))
    try:
        return max(0, int(video.get(cv2.CAP_PROP_FRAME_COUNT))) if video.isOpened() else 0
    finally:
        video.release()
