"""Captures: OpenCV's readers of video files, cameras and network streams, opened safely."""

import math
import os
from pathlib import Path
from typing import Any, Protocol

from detcli.errors import DecodeError, SourceError, system_reason
from detcli.geometry import Image
from detcli.opencv import cv2

OPEN_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000

MAX_FRAMES_PER_SECOND = 1000
"""A higher rate in a file is a time base, or damage."""

MAX_FRAMES = 10**9


class Capture(Protocol):
    """The part of `cv2.VideoCapture` that detcli uses."""

    def grab(self) -> bool:
        """Go to the next frame; False at the end, or if the frame is damaged."""

    def retrieve(self) -> tuple[bool, Any]:
        """Whether the frame could be decoded, and its `(H, W, 3)` uint8 BGR pixels."""

    def get(self, propId: int) -> float:  # noqa: N803 - OpenCV's name
        """The value of a property, by its number in OpenCV."""

    def set(self, propId: int, value: float) -> bool:  # noqa: N803
        """Set a property; False if the video does not support it."""

    def release(self) -> None:
        """Close the video."""


def open_file(path: str) -> Capture:
    """Open a video file.

    Raises:
        SourceError: The file does not exist, or reading it is not permitted.
        DecodeError: FFmpeg cannot read the file.
    """
    try:
        empty = Path(path).stat().st_size == 0
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {system_reason(error)}", "check the path") from error
    # Absolute, so that FFmpeg does not read the start of a name as a protocol.
    capture = _open(str(Path(path).absolute()), [])
    if capture is not None:
        return capture
    if not os.access(path, os.R_OK):
        raise SourceError("cannot be read: Permission denied", "check its permissions")
    raise DecodeError(
        "empty" if empty else "not a video that FFmpeg can read, or a damaged one",
        "fetch or copy the file again",
    )


def open_address(url: str, threads: int = 0) -> Capture:
    """Open a network stream, with timeouts of a few seconds.

    Args:
        url: Its address.
        threads: How many decode it; 0 for OpenCV's default.

    Raises:
        SourceError: The stream cannot be opened.
    """
    parameters = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_TIMEOUT_MS]
    parameters += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_TIMEOUT_MS]
    if threads:
        parameters += [cv2.CAP_PROP_N_THREADS, threads]
    if capture := _open(url, parameters):
        return capture
    raise SourceError(
        "cannot be opened", "check the address, user name and password, and that the host answers"
    )


def open_camera(number: int) -> Capture:
    """Open a camera.

    Raises:
        SourceError: The camera cannot be opened.
    """
    capture = cv2.VideoCapture(number)
    if capture.isOpened():
        return capture
    raise SourceError(
        "no such camera, or another program is using it",
        "list the cameras (Linux: ls /dev/video*); the first is camera:0",
    )


def _open(name: str, parameters: list[int]) -> Capture | None:
    # FFmpeg alone: other backends read a name with digits as a sequence of pictures. And as bytes:
    # OpenCV 5.0 aborts the process when a string has surrogates, as odd file names do. Frames come
    # upright: OpenCV turns them as the file says (CAP_PROP_ORIENTATION_AUTO, which is its default).
    capture = cv2.VideoCapture(os.fsencode(name), cv2.CAP_FFMPEG, parameters)  # type: ignore[call-overload]
    return capture if capture.isOpened() else None


def retrieve(capture: Capture) -> Image | None:
    """The frame grabbed last, `(H, W, 3)` uint8 BGR; None if it is damaged."""
    try:
        retrieved, found = capture.retrieve()
    except cv2.error:
        return None
    frame: Any = found  # may be None, which OpenCV's types do not say
    return frame if retrieved and frame is not None and len(frame.shape) == 3 else None


def frames_per_second(capture: Capture) -> float:
    """The declared frame rate; 0 if it is implausible."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return rate if 0 < rate <= MAX_FRAMES_PER_SECOND else 0.0


def frame_count(capture: Capture) -> int | None:
    """The declared or estimated number of frames; None if it is implausible."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < MAX_FRAMES else None


def frame_size(capture: Capture) -> tuple[int, int]:
    """The declared height and width of frames."""
    height, width = cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH
    return int(capture.get(height)), int(capture.get(width))


def position_s(capture: Capture) -> float:
    """Time of the frame grabbed last; NaN if unknown."""
    position = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
    return position if 0 <= position < math.inf else math.nan
