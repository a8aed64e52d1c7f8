"""JPEG by simplejpeg: the pixels of cv2.imdecode without its copy, and at reduced scale if asked.

Only regular files are decoded here. Damage, unusual EXIF segments, and colour spaces other than
grey, YCbCr and RGB are left to OpenCV.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from detcli.errors import DecodeError
from detcli.geometry import Allocate, Image, Letterbox, Picture, new_image
from detcli.opencv import cv2

START = b"\xff\xd8\xff"

_MARKER = re.compile(rb"\xff([^\x00\xff])")
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # TEM, RST0-7 and SOI have no length
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0-15 without DHT, JPG and DAC
_SCAN, _END, _APP1 = 0xDA, 0xD9, 0xE1
_SCAN_MARKER = b"\xff\xda"
_EXIF = b"Exif\0\0"

# EXIF orientation -> code of cv2.flip; from 5 on, the picture is transposed first.
_FLIPS = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}
_SCALES = (8, 4, 2)  # those with vector code in libjpeg-turbo

MAX_SCANS = 500
"""Of a progressive JPEG; encoders make ten or so."""


class JpegHeader(NamedTuple):
    """The header of a JPEG; height and width are stored, before the orientation is applied."""

    height: int
    width: int
    components: int
    orientation: int | None  # of EXIF, 1 to 8; None if the picture is left to OpenCV

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright picture."""
        turned = self.orientation is not None and self.orientation >= 5
        return (self.width, self.height) if turned else (self.height, self.width)


def read_header(data: bytes) -> JpegHeader | None:
    """Read a JPEG's header; None if it has no frame."""
    frame, exif = None, []
    try:
        for marker, payload in _segments(data):
            if marker == _SCAN:
                break
            if marker in _FRAMES:
                frame = frame or struct.unpack_from(">xHHB", payload)
            elif marker == _APP1 and payload.startswith(_EXIF[:4]):
                exif.append(payload)
    except struct.error:
        return None
    if frame is None:
        return None
    height, width, components = frame
    orientation = _orientation(exif[0]) if exif else 1
    if components not in {1, 3} or len(exif) > 1:
        orientation = None
    return JpegHeader(height, width, components, orientation)


def check_scans(data: bytes) -> None:
    """Require that a JPEG can be decoded in reasonable time; each scan refines the whole picture.

    Raises:
        DecodeError: It has hundreds of scans.
    """
    if not data.startswith(START) or data.count(_SCAN_MARKER) <= MAX_SCANS:
        return
    try:
        scans = sum(marker == _SCAN for marker, _ in _segments(data))
    except struct.error:  # cut short, which the decoder reports
        return
    if scans > MAX_SCANS:  # else there is more behind the picture
        raise DecodeError(
            f"a JPEG with {scans} scans, more than the {MAX_SCANS} allowed",
            "open it in an image viewer and save it again",
        )


def decode(
    data: bytes,
    header: JpegHeader,
    fast_for: tuple[int, int] | None,
    allocate: Allocate = new_image,
) -> Picture | None:
    """Decode a JPEG.

    Args:
        data: The whole file.
        header: Its header.
        fast_for: Height and width of a network's input. The picture is decoded at a half, a
            quarter or an eighth of its size as long as it is not smaller than on that input.
        allocate: Makes the array of the picture, unless the last step is to transpose it.

    Returns:
        The picture; None if it is left to OpenCV.

    Raises:
        ValueError: It is damaged; with what libjpeg says about it.
    """
    try:
        from simplejpeg import decode_jpeg  # not on every platform, see pyproject.toml
    except ImportError:
        return None
    if header.orientation is None:  # decoded for what libjpeg says, at an eighth of its size
        decode_jpeg(data, "CMYK" if header.components == 4 else "BGR", min_height=1, min_width=1)
        return None
    scale = 1
    if fast_for is not None:
        gain = max(Letterbox.fit(header.size, fast_for).gains)
        scale = next((scale for scale in _SCALES if scale * gain <= 1), 1)
    height, width = header.height, header.width
    is_upright = header.orientation == 1
    buffer = allocate((-(-height // scale), -(-width // scale))) if is_upright else None
    image: Image = decode_jpeg(
        data, "BGR", min_height=height // scale, min_width=width // scale, buffer=buffer
    )
    if header.orientation >= 5:
        image = np.asarray(cv2.transpose(image), np.uint8)
    if header.orientation in _FLIPS:
        target = allocate((image.shape[0], image.shape[1]))
        image = np.asarray(cv2.flip(image, _FLIPS[header.orientation], target), np.uint8)
    return Picture(image, header.size)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Marker and payload of each segment up to the end of the picture."""
    position = 2
    while found := _MARKER.search(data, position):
        marker, position = found[1][0], found.end()
        if marker == _END:
            return
        if marker in _ALONE:
            yield marker, b""
        else:
            (length,) = struct.unpack_from(">H", data, position)
            yield marker, data[position + 2 : position + length]
            position += max(length, 2)


def _orientation(exif: bytes) -> int | None:
    """Orientation in an EXIF segment, 1 if it has none; None if the segment is irregular.

    OpenCV stops at the first field that it cannot read, so the decision is left to OpenCV if a
    field before the orientation is irregular.
    """
    if not exif.startswith(_EXIF) or exif[6:8] not in {b"II", b"MM"}:
        return None
    tiff = exif[6:]
    order = "<" if tiff.startswith(b"I") else ">"
    before = 0
    try:
        magic, start = struct.unpack_from(f"{order}HI", tiff, 2)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for index in range(count):
            field = start + 2 + 12 * index
            tag, _, length, offset = struct.unpack_from(f"{order}HHII", tiff, field)
            if tag == 0x112:
                (value,) = struct.unpack_from(f"{order}H", tiff, field + 8)
                known = value if 1 <= value <= 8 else 1
                return None if magic != 42 or before > tag else known
            if length > 4 and tag in {0x10E, 0x10F, 0x110} and offset + length > len(tiff):
                return None
            before = max(before, tag)
    except struct.error:
        return None
    return 1
