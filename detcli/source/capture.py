"""OpenCV's captures of video files and streams: opening them, their properties and frames."""

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from detcli.core.errors import DecodeError, InputError, PlaceError, SourceError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels, Size
from detcli.source.fetch import http_part
from detcli.source.mp4 import ReadRange
from detcli.source.names import is_address
from detcli.source.part_file import PartFile, file_length
from detcli.source.reading import require_unchanged, stamp_of, unreadable
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer

OPEN_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000

MAX_FRAMES_PER_SECOND = 1000  # a higher rate in a file is a time base, or damage

MAX_FRAMES = 10**9

MAX_ASPECT = 100  # highest aspect ratio of a pixel; more is damage

REPAIR_HINT = "fetch or copy the file again; ffmpeg -i FILE -c copy NEW.mkv may repair it"

# Opens a video; again to seek, or to look for missing frames. Raises InputError.
Reopen = Callable[[], cv2.VideoCapture]


def open_video(name: str) -> cv2.VideoCapture:
    """Open a video file or an address, or raise an InputError."""
    if is_address(name):
        return open_address(name)
    return open_file(name)


def read_part(name: str, start: int, size: int) -> bytes:
    """Read up to `size` bytes of a video file or address, starting at the offset `start`.

    Nothing is returned if it cannot be read, or for a pipe, whose bytes could be read only once.
    """
    with contextlib.suppress(OSError, InputError):
        if is_address(name):
            return http_part(name, start, size)
        if Path(name).is_file():
            with Path(name).open("rb") as file:
                file.seek(start)
                return file.read(size)
    return b""


def open_file(path: str) -> cv2.VideoCapture:
    """Open a video file on the disk with OpenCV.

    Raises:
        AlteredError: `path` is a VersionedPath, and the file has changed since it was listed.
        SourceError: The file is missing, or may not be read.
        DecodeError: It is not a video that FFmpeg can read.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    require_unchanged(path, stamp_of(status))
    # Absolute, so that FFmpeg does not read the start of a name as a protocol.
    capture = _open_with_ffmpeg(str(Path(path).absolute()), [])
    if capture is not None:
        return capture
    if not os.access(path, os.R_OK):
        raise PlaceError("cannot be read: Permission denied", "check its permissions")
    if is_lfs_pointer(read_part(path, 0, 64)):
        raise DecodeError(LFS_REASON, LFS_HINT)
    reason = "not a video that FFmpeg can read, or a damaged one"
    if status.st_size == 0:
        reason = "empty"
    raise DecodeError(reason, "fetch or copy the file again")


def open_address(url: str, threads: int = 0) -> cv2.VideoCapture:
    """Open a network stream within a few seconds, or raise a SourceError.

    Args:
        url: Its address, with a user name and password or without.
        threads: How many threads decode it; 0 for OpenCV's default.
    """
    parameters = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_TIMEOUT_MS]
    parameters += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_TIMEOUT_MS]
    if threads:
        parameters += [cv2.CAP_PROP_N_THREADS, threads]
    capture = _open_with_ffmpeg(url, parameters)
    if capture is None:
        raise SourceError(
            "cannot be opened",
            "check the address, user name and password, and that the host answers",
        )
    return capture


def _open_with_ffmpeg(name: str, parameters: list[int]) -> cv2.VideoCapture | None:
    """Open a video with OpenCV's FFmpeg backend; None if that cannot read it.

    Frames come upright: OpenCV turns them as the file says (CAP_PROP_ORIENTATION_AUTO, which is its
    default). Other backends are not tried, because they read a name with digits as a sequence of
    images. `parameters` are OpenCV's properties, each followed by its value.
    """
    # As bytes: OpenCV 5.0 aborts the process when a string has surrogates, as odd file names do.
    path = os.fsencode(name)
    capture: cv2.VideoCapture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, parameters)  # type: ignore[call-overload]
    if not capture.isOpened():
        return None
    return capture


class PartCapture:
    """A `cv2.VideoCapture` of a video that is read by a function.

    It keeps the reader: OpenCV 5.0 releases it without Python's lock, which ends the process if
    nobody else holds it. A class that inherits from OpenCV's would damage memory.
    """

    def __init__(self, reader: PartFile) -> None:
        self._reader = reader
        self._capture = cv2.VideoCapture(reader, cv2.CAP_FFMPEG, [])  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever OpenCV's has
        return getattr(self._capture, name)


def open_part(part: ReadRange) -> cv2.VideoCapture:
    """Open a video that is read by a function, or raise a DecodeError."""
    capture = PartCapture(PartFile(part, file_length(part)))
    if not capture.isOpened():
        raise DecodeError("its largest video track cannot be read", REPAIR_HINT)
    return cast("cv2.VideoCapture", capture)


def retrieve(capture: cv2.VideoCapture, flip: int | None = None) -> Pixels | None:
    """Decode the frame that was grabbed last.

    Args:
        capture: The open video or stream.
        flip: The code with which `cv2.flip` mirrors the frame; None to leave it as it is.

    Returns:
        The image, `(H, W, 3)` uint8 BGR; None if it is damaged.
    """
    frame: Any  # may be None, which OpenCV's types do not say
    try:
        is_retrieved, frame = capture.retrieve()
        if is_retrieved and flip is not None:
            frame = cv2.flip(frame, flip)
    except cv2.error:
        return None
    if not is_retrieved or frame is None or len(frame.shape) != 3:
        return None
    image: Pixels = frame
    return image


def frames_per_second(capture: cv2.VideoCapture) -> float:
    """The declared frame rate; 0 if it is implausible."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    if 0 < rate <= MAX_FRAMES_PER_SECOND:
        return rate
    return 0.0


def frame_count(capture: cv2.VideoCapture) -> int | None:
    """The declared or estimated number of frames; None if it is implausible."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    if 0 < count < MAX_FRAMES:
        return int(count)
    return None


def frame_size(capture: cv2.VideoCapture) -> Size:
    """The declared height and width of frames."""
    height = capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    width = capture.get(cv2.CAP_PROP_FRAME_WIDTH)
    return int(height), int(width)


def pixel_aspect(capture: cv2.VideoCapture) -> tuple[int, int]:
    """Return the width and height of a pixel in upright frames, as a ratio of two integers.

    It is 1 and 1 if the file does not say, or something implausible.
    """
    width = round(capture.get(cv2.CAP_PROP_SAR_NUM))
    height = round(capture.get(cv2.CAP_PROP_SAR_DEN))
    is_width_plausible = 0 < width <= MAX_ASPECT * height
    is_height_plausible = 0 < height <= MAX_ASPECT * width
    if not is_width_plausible or not is_height_plausible:
        return 1, 1
    is_turned_to_side = capture.get(cv2.CAP_PROP_ORIENTATION_META) % 180 == 90  # degrees
    if is_turned_to_side:  # by OpenCV, which leaves the ratio as it is stored
        return height, width
    return width, height


def position_s(capture: cv2.VideoCapture) -> float:
    """Time of the frame grabbed last; NaN if unknown."""
    position = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
    if 0 <= position < math.inf:
        return position
    return math.nan
