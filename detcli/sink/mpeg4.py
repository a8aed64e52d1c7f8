"""MPEG-4 part 2 in MP4, by OpenCV: where PyAV is not installed, or for sides beyond H.264's."""

from pathlib import Path

import numpy as np

from detcli.errors import OutputError
from detcli.geometry import Image
from detcli.opencv import cv2

CODECS = ("mp4v", "MJPG")  # in every build of OpenCV; only the second takes sides over 8191 pixels


class Mpeg4Encoder:
    """Encodes the frames of one video at a constant rate, at which each has the place of its time.

    A place without a frame repeats the one before, and of several for one place the first is taken.

    Args:
        path: Absolute, as no library takes that for an address.
        shape: Of the frames, `(height, width, 3)`.
        rate: Frames per second.

    Raises:
        OutputError: The video cannot be written there, or not in this size.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], rate: float) -> None:
        self._writer = _open_writer(path, shape, rate)
        self._rate = rate
        self._last: Image = np.zeros(shape, np.uint8)
        self.count = 0  # frames
        self.unwritten = 0  # bytes in the encoder

    def write(self, picture: Image, time_s: float) -> None:
        """Write a frame, `(H, W, 3)` uint8 BGR, at a time from the start of this video."""
        place = round(time_s * self._rate)
        while self.count < place:
            self._writer.write(self._last)
            self.count += 1
        if self.count == place:
            self._writer.write(picture)
            self.count += 1
        self._last = picture

    def finish(self) -> None:
        """Write the index."""
        self._writer.release()


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
