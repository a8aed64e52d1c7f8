"""What a JPEG says about itself before its pixels: size, colour components, orientation, scans."""

import struct
from typing import NamedTuple

import numpy as np

from detcli.core.errors import DecodeError
from detcli.data.geometry import Size
from detcli.source.limits import RESAVE
from detcli.source.segments import APP1, FRAMES, SCAN, SCAN_MARKER, segments
from detcli.source.tiff_directory import CLASSIC, TiffField, tiff_fields

MAX_SCANS = 500  # scans of a progressive JPEG; encoders make ten or so

_FRAME_HEADER = struct.Struct(">xHHB")  # after the bits of a sample: height, width, components

EXIF_START = b"Exif\0\0"
"""How the payload of a segment with EXIF begins; metadata laid out as a TIFF file follow."""

# Tags of fields in EXIF. Those with a string may be cut, at which OpenCV stops.
_DESCRIPTION, _MAKER, _MODEL, _ORIENTATION = 0x10E, 0x10F, 0x110, 0x112
_TEXT_TAGS = frozenset({_DESCRIPTION, _MAKER, _MODEL})

_LONG = 4  # the type of a number of four bytes
LONG_ORIENTATION_FIELD = struct.pack(">HHI", _ORIENTATION, _LONG, 1)
"""How the field of an orientation that is a LONG begins, in big endian: tag, type and length."""


class JpegHeader(NamedTuple):
    """The header of a JPEG; height and width are stored, before the orientation is applied."""

    height: int
    width: int
    components: int  # 1 is grey, 3 is colours, 4 is inks
    orientation: int | None  # of EXIF, 1 to 8; None if the image is left to OpenCV
    exif: bytes | None = None  # metadata laid out as a TIFF: those of its first regular segment

    @property
    def size(self) -> Size:
        """Height and width of the upright image."""
        is_transposed = self.orientation is not None and self.orientation >= 5
        if is_transposed:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes) -> JpegHeader | None:
    """Read size, colour components, orientation and EXIF from the segments of a JPEG.

    Returns:
        The header; None if the file has no complete frame header before its pixels. Its
        orientation is None where only OpenCV is trusted with the image: the colours are neither
        grey nor three components, or the EXIF is irregular.
    """
    frame = None
    exif_payloads = []
    try:
        for marker, payload in segments(data):
            if marker == SCAN:  # the pixels begin
                break
            if marker in FRAMES and frame is None:
                frame = _FRAME_HEADER.unpack_from(payload)
            elif marker == APP1 and payload.startswith(b"Exif"):
                exif_payloads.append(payload)
    except struct.error:
        return None
    if frame is None:
        return None

    height, width, components = frame
    orientation: int | None = 1  # upright
    if exif_payloads:
        orientation = exif_orientation(exif_payloads[0])
    if components not in {1, 3} or len(exif_payloads) > 1:
        orientation = None
    return JpegHeader(height, width, components, orientation, _first_regular(exif_payloads))


def _first_regular(exif_payloads: list[bytes]) -> bytes | None:
    """Return the metadata in the first segment with a valid EXIF start; None if there is none."""
    for payload in exif_payloads:
        if payload.startswith(EXIF_START):
            return payload.removeprefix(EXIF_START)
    return None


def exif_orientation(exif: bytes) -> int | None:
    """Read from EXIF how the stored image has to be turned and mirrored to be upright.

    Args:
        exif: The payload of a segment with EXIF: `Exif`, two zeros, and metadata as in a TIFF.

    Returns:
        The orientation, 1 to 8, as EXIF numbers them; 1 (upright) if the metadata have none. None
        if the metadata are irregular, so that only OpenCV knows what OpenCV makes of them.
    """
    if not exif.startswith(EXIF_START):
        return None
    tiff = exif.removeprefix(EXIF_START)
    if not tiff.startswith((b"II", b"MM")):  # the two orders of bytes
        return None
    try:
        return _orientation_in_tiff(tiff)
    except struct.error:  # the fields are cut
        return None


def _orientation_in_tiff(tiff: bytes) -> int | None:
    """Find the field of the orientation in the metadata of EXIF, which are laid out as a TIFF.

    The answer is the orientation that OpenCV would follow. OpenCV reads one field after the other,
    and stops at the first that it cannot read. It certainly gets as far as the orientation if no
    field before it has a higher tag, and if every string before it is complete.

    Returns:
        The orientation, 1 to 8; 1 if there is none, None if OpenCV may stop before it.

    Raises:
        struct.error: The metadata end within a field.
    """
    is_classic = tiff[:4] in CLASSIC  # with TIFF's number 42 after the order of bytes
    highest_tag = 0  # highest tag of the earlier fields
    for field in tiff_fields(tiff):
        if field.tag == _ORIENTATION:
            is_in_order = field.tag > highest_tag
            if not is_classic or not is_in_order:
                return None
            return _orientation_of_field(field, is_little_endian=tiff.startswith(b"I"))
        if field.tag in _TEXT_TAGS and _ends_beyond(tiff, field):
            return None
        highest_tag = max(highest_tag, field.tag)
    return 1


def _ends_beyond(tiff: bytes, text: TiffField) -> bool:
    """Return whether a string ends beyond the metadata; one of up to four bytes is in its field."""
    is_stored_elsewhere = text.value_count > 4
    return is_stored_elsewhere and text.value + text.value_count > len(tiff)


def _orientation_of_field(field: TiffField, *, is_little_endian: bool) -> int:
    """Read the orientation from its field in EXIF, whose value takes four bytes.

    A number of two bytes (a SHORT), as the standard requires, is in the first two. OpenCV reads the
    first two bytes whatever the type is, and so does this function, with one exception: viewers
    also follow a number of four bytes (a LONG). In a big-endian file, OpenCV would take the wrong
    half of it. In a little-endian file, the first two bytes are the whole orientation anyway.

    Args:
        field: The field, whose value is the four bytes as a number.
        is_little_endian: Whether the first byte of a number in the file is the least significant.

    Returns:
        1 to 8; 1 for a number that is not an orientation.
    """
    is_long_orientation = field.value_type == _LONG and field.value <= 8
    if is_long_orientation:
        orientation = field.value
    elif is_little_endian:
        orientation = field.value & 0xFFFF  # the first two bytes
    else:
        orientation = field.value >> 16  # the first two bytes
    if 1 <= orientation <= 8:
        return orientation
    return 1


def check_scans(data: bytes) -> None:
    """Refuse a JPEG with hundreds of scans, each of which refines the whole image.

    Each takes about as long as decoding a whole image, so a small file with 20,000 scans would keep
    a processor busy for a long time.

    Raises:
        DecodeError: It has more than `MAX_SCANS` scans.
    """
    # Each scan has its marker, but the two bytes of the marker may also be in a thumbnail or after
    # the image. So this count is an upper bound, and the exact one, which takes longer, is needed
    # only if the bound exceeds the limit.
    max_scan_count = count_marker(data, SCAN_MARKER)
    if max_scan_count <= MAX_SCANS:
        return
    scans = _count_scans(data)
    if scans > MAX_SCANS:
        raise DecodeError(f"a JPEG with {scans} scans, more than the {MAX_SCANS} allowed", RESAVE)


def count_marker(data: bytes, marker: bytes) -> int:
    """Count how often a marker of two different bytes occurs in data, at any offset.

    NumPy compares all pairs of bytes that begin at even offsets, and then at odd ones. That takes a
    fifteenth of the time of `bytes.count`, which takes a fifth as long for a large file as decoding
    it.
    """
    [marker_number] = np.frombuffer(marker, np.uint16)
    count = 0
    for first_offset in (0, 1):
        pair_count = (len(data) - first_offset) // 2
        pairs = np.frombuffer(data, np.uint16, count=pair_count, offset=first_offset)
        count += int(np.count_nonzero(pairs == marker_number))
    return count


def _count_scans(data: bytes) -> int:
    """Count the scans of a JPEG; 0 if it is cut in a segment, which the decoder reports."""
    count = 0
    try:
        for marker, _ in segments(data):
            if marker == SCAN:
                count += 1
    except struct.error:
        return 0
    return count
