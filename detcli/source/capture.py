"""Captures: OpenCV's readers of videos, cameras and network streams, opened with care."""

import math
import os
from pathlib import Path
from typing import Any, Protocol

from detcli.errors import DecodeError, SourceError
from detcli.geometry import Image
from detcli.opencv import cv2

OPEN_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000

MOST_FRAMES_PER_SECOND = 1000
"""What a file declares beyond it is no rate, but a time base or damage."""

MOST_FRAMES = 10**9


class Capture(Protocol):
    """What is used of `cv2.VideoCapture`, under its names."""

    def grab(self) -> bool:
        """Go to the next frame."""

    def retrieve(self) -> tuple[bool, Any]:
        """Decode it."""

    def get(self, propId: int, /) -> float:  # noqa: N803 - OpenCV's name
        """Read a property."""

    def set(self, propId: int, value: float, /) -> bool:  # noqa: N803
        """Write one."""

    def release(self) -> None:
        """Close it."""


def open_file(path: str) -> Capture:
    """Open a video file.

    Raises:
        SourceError: It is not there, or must not be read.
        DecodeError: FFmpeg cannot read it.
    """
    try:
        empty = Path(path).stat().st_size == 0
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"cannot be read: {reason}", "check the path") from error
    # Absolute, lest FFmpeg takes the beginning of a name for a protocol.
    capture = _open(str(Path(path).absolute()), [])
    if capture is not None:
        return capture
    if not os.access(path, os.R_OK):
        raise SourceError("cannot be read: Permission denied", "check its permissions")
    raise DecodeError(
        "empty" if empty else "no video that FFmpeg knows, or a damaged one",
        "fetch or copy the file again",
    )


def open_address(url: str) -> Capture:
    """Open a network stream; no wait for it is longer than seconds.

    Raises:
        SourceError: It cannot be opened.
    """
    timeouts = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_TIMEOUT_MS]
    timeouts += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_TIMEOUT_MS]
    if capture := _open(url, timeouts):
        return capture
    raise SourceError(
        "cannot be opened", "see whether the address, name and password are right, and it answers"
    )


def open_camera(number: int) -> Capture:
    """Open a camera.

    Raises:
        SourceError: It cannot be opened.
    """
    capture = cv2.VideoCapture(number)
    if capture.isOpened():
        return capture
    raise SourceError(
        "there is no such camera, or another program uses it",
        "look which there are (Linux: ls /dev/video*); the first is camera:0",
    )


def _open(name: str, parameters: list[int]) -> Capture | None:
    # By FFmpeg alone: OpenCV would take a name with digits for one of many pictures. And as bytes:
    # OpenCV 5.0 ends the process when a text has surrogates, as odd file names do.
    capture = cv2.VideoCapture(os.fsencode(name), cv2.CAP_FFMPEG, parameters)  # type: ignore[call-overload]
    return capture if capture.isOpened() else None


def retrieve(capture: Capture) -> Image | None:
    """The frame that was grabbed last, `(H, W, 3)` uint8 BGR; None if it is damaged."""
    try:
        retrieved, frame = capture.retrieve()
    except cv2.error:
        return None
    return frame if retrieved and frame is not None and frame.ndim == 3 else None


def frames_per_second(capture: Capture) -> float:
    """What the video declares; 0 if that makes no sense."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return rate if 0 < rate <= MOST_FRAMES_PER_SECOND else 0.0


def frame_count(capture: Capture) -> int | None:
    """How many frames the video declares, or may have; None if that makes no sense."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < MOST_FRAMES else None


def check_size(capture: Capture, max_pixels: int) -> None:
    """Look whether frames are small enough.

    Raises:
        DecodeError: They are not.
    """
    height, width = (
        int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH)
    )
    if height * width > max_pixels:
        raise DecodeError(
            f"too large: {width}x{height} are {height * width} pixels, "
            f"more than the {max_pixels} that are allowed",
            "raise --max-pixels if it is meant to be that large",
        )


def position_s(capture: Capture) -> float:
    """Time of the frame that was grabbed last; NaN if nobody knows."""
    position = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
    return position if 0 <= position < math.inf else math.nan
