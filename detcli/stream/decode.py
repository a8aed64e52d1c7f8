"""Decoding: from an item to a picture, upright and in colour."""

import sys
from pathlib import Path

import numpy as np

from detcli.errors import DecodeError, SourceError
from detcli.geometry import Image
from detcli.opencv import cv2
from detcli.stream.source import Item


def decode(item: Item) -> Image:
    """Read an input and decode it.

    The EXIF orientation is applied; grey becomes colour, transparency is dropped, 16 bits become
    8.

    Returns:
        `(H, W, 3)` uint8, BGR.

    Raises:
        SourceError: It cannot be read.
        DecodeError: It is no picture that OpenCV knows, or an incomplete one.
    """
    if item.error is not None:
        raise item.error
    return decode_bytes(_read(item.path))


def decode_bytes(data: bytes) -> Image:
    """Decode the bytes of a picture file, see `decode`.

    Raises:
        DecodeError: They are no picture that OpenCV knows, or an incomplete one.
    """
    if not data:
        raise DecodeError("empty", "fetch or copy the file again")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise DecodeError(
            f"cannot be decoded: {' '.join(str(error.err).split())}",
            "open it in an image viewer and save it again",
        ) from error
    if image is None:
        raise DecodeError(
            f"no picture, or a damaged one ({len(data)} bytes, {_signature(data)})",
            "OpenCV reads JPEG, PNG, WebP, BMP, TIFF, AVIF, GIF and more; fetch damaged ones again",
        )
    return np.asarray(image, np.uint8)


def _read(path: Path | None) -> bytes:
    if path is None:
        return _read_stdin()
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"cannot be read: {reason}", "check its permissions") from error


def _read_stdin() -> bytes:
    hint = "pipe a picture in, as in: detcli predict - ... < bus.jpg"
    if sys.stdin is None:
        raise SourceError("standard input is closed", hint)
    if sys.stdin.isatty():
        raise SourceError("standard input is a terminal", hint)
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}", hint) from error


def _signature(data: bytes) -> str:
    """What the first bytes say the file is, for an error text."""
    signatures = {
        b"\xff\xd8\xff": "starts as JPEG",
        b"\x89PNG": "starts as PNG",
        b"RIFF": "starts as WebP",
        b"BM": "starts as BMP",
        b"II*\0": "starts as TIFF",
        b"MM\0*": "starts as TIFF",
        b"GIF8": "starts as GIF",
        b"%PDF": "a PDF",
    }
    known = next((text for start, text in signatures.items() if data.startswith(start)), None)
    return known or "of no known picture format"
