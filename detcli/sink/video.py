"""Annotated videos in a folder: one per input video, of the same size and frame rate."""

import shutil
from pathlib import Path

import numpy as np

from detcli.errors import OutputError
from detcli.files import AtomicFile
from detcli.geometry import Image
from detcli.opencv import cv2
from detcli.record import Record
from detcli.sink.draw import DEFAULT_STYLE, Style, annotate
from detcli.sink.folder import OutputFolder, PerClip

SUFFIX = ".mp4"
CODECS = ("mp4v", "MJPG")  # in every build of OpenCV; only the second takes sides over 8191 pixels
MIN_RATE, MAX_RATE = 0.01, 1000.0  # frames per second; other rates are measurement errors
LIVE_RATE = 30.0  # frames per second of a live source, which has no rate of its own
MAX_GAP_S = 10.0  # a live source that was away for longer is shown as if for this long
DISK_RESERVE = 1 << 20  # bytes that other programs may take while a video is finished
INDEX_ENTRY = 32  # bytes per frame of the index, which is written at the end


class VideoSink:
    """Writes the frames of each video, with their detections drawn, to a video of its name.

    A frame that failed repeats the one before, or is black, to keep the timing. Frames of a live
    source are placed by their time at a constant rate, so the video plays at the original speed.

    Pictures are left to ImageSink.
    """

    def __init__(self, folder: OutputFolder, style: Style = DEFAULT_STYLE) -> None:
        self._writers = PerClip(lambda record: ClipWriter(folder, record, style), ClipWriter.close)

    def write(self, record: Record) -> None:
        """Write a frame.

        Raises:
            OutputError: No video of this size can be written, or the disk is full.
        """
        if record.origin.clip is not None and record.origin.frame is not None:
            self._writers.of(record).write(record)

    def close(self) -> None:
        """Finish all videos, so that they can be played.

        Raises:
            OutputError: A video is not complete.
        """
        self._writers.close()


class ClipWriter:
    """Writes the annotated frames of one source: a file, or several if their size changes."""

    def __init__(self, folder: OutputFolder, first: Record, style: Style) -> None:
        self._folder = folder
        self._style = style
        clip = first.origin.clip
        rate = clip.frames_per_second if clip else 0.0
        self._rate = rate if MIN_RATE <= rate <= MAX_RATE else LIVE_RATE
        self._live = clip is not None and clip.live
        self._start_s = first.origin.time_s or 0.0
        self._due = 0  # frames that all files together should have by now
        self._missing = 0  # frames of these that are not written yet
        self._file: VideoFile | None = None
        self._path = Path()  # of this file

    def write(self, record: Record) -> None:
        """Write a frame, after those that are missing before it."""
        steps = self._steps(record.origin.time_s)
        self._due += steps
        self._missing += steps
        if record.picture is None or record.detections is None or self._missing == 0:
            return
        picture = annotate(record.picture.pixels, record.detections, self._style, record.scene)
        if self._file is not None and self._file.shape != picture.shape:
            self._missing -= 1
            self.close()
            self._missing = 1
        if self._file is None:
            self._path = self._folder.video_of(record, SUFFIX)
            self._file = VideoFile(self._folder.real(self._path), picture.shape, self._rate)
        before, self._missing = self._missing - 1, 0
        self._file.repeat(before)
        self._file.append(picture)
        record.saved.append(self._path)

    def close(self) -> None:
        """Finish the file, after the frames that are missing at its end."""
        if self._file is not None:
            file, self._file = self._file, None
            missing, self._missing = self._missing, 0
            try:
                file.repeat(missing)
            finally:
                file.close()

    def _steps(self, time_s: float | None) -> int:
        """Frames by which the video grows: one, but by the time that passed for live sources."""
        if not self._live or time_s is None:
            return 1
        steps = round((time_s - self._start_s) * self._rate) + 1 - self._due
        excess = steps - round(MAX_GAP_S * self._rate)
        if excess > 0:
            self._start_s += excess / self._rate
            steps -= excess
        return max(0, steps)


class VideoFile:
    """One video, which appears under its name when it is closed.

    The path is absolute: no library takes that for an address.

    Frames have the shape `(height, width, 3)`; an odd last row or column is cut off, as colours
    are stored for squares of 2x2 pixels. The rate is in frames per second.

    Raises:
        OutputError: The video cannot be written there, or not in this size.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        self.shape = shape
        self._path = path
        self._part = AtomicFile(path, suffix=path.suffix)
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
            OutputError: The disk is nearly full; OpenCV would neither report that nor finish.
        """
        needed = DISK_RESERVE + INDEX_ENTRY * self._count + picture.nbytes
        if shutil.disk_usage(self._part.written.parent).free < needed:
            raise OutputError(
                f"cannot write {self._path}: no space left on the disk",
                "make room; the video ends here, and can be played",
            )
        self._writer.write(picture)
        self._last = picture
        self._count += 1

    def repeat(self, count: int) -> None:
        """Write the last frame again, or a black one if there is none."""
        for _ in range(count):
            self.append(self._last)

    def close(self) -> None:
        """Finish the video and move it into place.

        Raises:
            OutputError: The video does not hold all frames that were written.
        """
        self._writer.release()
        # Of the index; 0 if the video cannot be read.
        count = cv2.VideoCapture(str(self._part.written)).get(cv2.CAP_PROP_FRAME_COUNT)
        readable = max(0, int(count))
        if readable == 0:
            self._part.discard()
        else:
            self._part.commit()
        if readable < self._count:
            raise OutputError(
                f"{self._path} is not complete: {readable} of {self._count} frames were written",
                "check the free disk space, and the limit on the size of files",
            )


def _open_writer(path: Path, shape: tuple[int, ...], rate: float) -> cv2.VideoWriter:
    """A writer with the first codec that takes frames of this shape."""
    height, width = shape[:2]
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # OpenCV would end the process
        raise OutputError(
            f"cannot write a video in {path.parent}: the folder's name is not Unicode",
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
