"""EXIF: the metadata in which cameras say when a photograph was taken.

EXIF is laid out as a TIFF file, see `tiff.tiff_fields`, and each format has a place for it: a
segment of a JPEG, a chunk of a PNG or WebP, an item of an AVIF; a TIFF file is its own. Cameras
write it, and so do hundreds of programs, not all of them well. So what cannot be read counts as
absent, and never as a fault of the image.
"""

import re
import struct
from collections.abc import Iterator
from datetime import datetime

from detcli.data.capture_time import CaptureTime, to_text
from detcli.source.avif import exif_of_avif
from detcli.source.jpeg_header import EXIF_START, read_header
from detcli.source.segments import JPEG
from detcli.source.tiff_directory import CLASSIC, MAX_FIELDS, TiffField, tiff_fields

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# Tags of fields. The first has the position of the directory with all the others.
_EXIF_DIRECTORY = 0x8769
_DATE_TIME_ORIGINAL, _OFFSET_TIME_ORIGINAL, _SUB_SEC_TIME_ORIGINAL = 0x9003, 0x9011, 0x9291

_ASCII = 2  # the type of a string with one byte per character, which ends with a zero
_MAX_CHARACTERS = 64  # maximum length of a string; a date takes 20, including the zero
_INLINE_BYTES = 4  # a value of up to four bytes is in its field, a longer one elsewhere

# As in 2026:01:31 12:00:00. The standard has colons in the date, but some programs write - or /.
_DATE_TIME = re.compile(r"(\d{4})[:/-](\d\d)[:/-](\d\d)[ T](\d\d):(\d\d):(\d\d)", re.ASCII)
_OFFSET = re.compile(r"[+-](?:0\d|1[0-4]):[0-5]\d", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)
_FIRST_PHOTOGRAPH = 1826  # the year; an older date is not that of a photograph
_MICROSECOND_DIGITS = 6


def capture_time(data: bytes) -> CaptureTime | None:
    """Read when a photograph was taken from the EXIF in the bytes of its file.

    Returns:
        The time as `time_in_exif` reads it; None if the file has no EXIF or its place is damaged.
    """
    try:
        tiff = exif_of(data)
    except (struct.error, LookupError, ValueError):
        return None
    return time_in_exif(tiff)


def time_in_exif(tiff: bytes | None) -> CaptureTime | None:
    """Read when a photograph was taken from EXIF.

    Only what the camera recorded at that moment is used (DateTimeOriginal), not when the file was
    changed or scanned.

    Args:
        tiff: The metadata, which are laid out as a TIFF; None for an image without metadata.

    Returns:
        The time; None if there is none, or it is not a date, such as 0000:00:00 00:00:00.
    """
    if tiff is None or tiff[:4] not in CLASSIC:
        return None
    try:
        fields = _fields_with_dates(tiff)
        time = _date_time(
            text=_text(tiff, fields, _DATE_TIME_ORIGINAL),
            fraction=_text(tiff, fields, _SUB_SEC_TIME_ORIGINAL),
        )
        offset = _text(tiff, fields, _OFFSET_TIME_ORIGINAL)
    except (struct.error, LookupError, ValueError, OverflowError):  # damaged, or no date
        return None
    if _OFFSET.fullmatch(offset):
        return CaptureTime(to_text(time), offset)
    return CaptureTime(to_text(time), None)


def exif_of(data: bytes) -> bytes | None:
    """Find the EXIF in the bytes of an image file: metadata that are laid out as a TIFF.

    It is None if there is none, or if the format has no place for it.

    Raises:
        struct.error, IndexError, KeyError: The file is damaged.
    """
    if data.startswith(JPEG):
        header = read_header(data)
        if header is None:
            return None
        return header.exif
    if data.startswith(_PNG_SIGNATURE):
        return _exif_in_chunks(_png_chunks(data), b"eXIf")
    if data.startswith(b"RIFF"):
        return _exif_in_chunks(_webp_chunks(data), b"EXIF")
    is_tiff = data[:4] in CLASSIC
    if is_tiff:
        return data
    is_avif = data[4:8] == b"ftyp"
    if is_avif:
        return exif_of_avif(data)
    return None


def _exif_in_chunks(chunks: Iterator[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the EXIF in the first chunk with the given name; None if there is no such chunk.

    Some programs put before it the prefix that EXIF has in a JPEG; it is removed.

    Args:
        chunks: The name and the content of each chunk.
        name: The name of the chunk with EXIF.
    """
    for chunk_name, content in chunks:
        if chunk_name == name:
            return content.removeprefix(EXIF_START)
    return None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each chunk of a PNG; the content of those with pixels is empty.

    A chunk has its length and name in four bytes each, its content, and a checksum of four bytes.
    """
    read_beginning = struct.Struct(">I4s").unpack_from
    position = len(_PNG_SIGNATURE)
    while position + 8 <= len(data):
        length, name = read_beginning(data, position)
        start = position + 8
        if name == b"IEND":
            return
        if name == b"IDAT":  # there may be thousands
            yield name, b""
        else:
            yield name, data[start : start + length]
        position = start + length + 4


def _webp_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each chunk of a WebP.

    A chunk has its name and length in four bytes each, and its content. A byte is added to an odd
    length.
    """
    position = 12  # after RIFF, the length of the file, and WEBP
    while position + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, position)
        start = position + 8
        yield name, data[start : start + length]
        position = start + length + length % 2


def _fields_with_dates(tiff: bytes) -> dict[int, TiffField]:
    """Collect the fields of EXIF by tag, of the first directory and of the one for photographs.

    Raises:
        struct.error: A directory is cut.
        ValueError: It has more fields than any writer makes.
    """
    fields = _fields_of_directory(tiff)
    if _EXIF_DIRECTORY in fields:
        position_of_directory = fields[_EXIF_DIRECTORY].value
        fields.update(_fields_of_directory(tiff, position_of_directory))
    return fields


def _fields_of_directory(tiff: bytes, position: int | None = None) -> dict[int, TiffField]:
    """Collect the fields of the directory at a position by tag; the first one for None."""
    fields: dict[int, TiffField] = {}
    for field in tiff_fields(tiff, position):
        fields.setdefault(field.tag, field)
        if len(fields) > MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS} fields")
    return fields


def _text(tiff: bytes, fields: dict[int, TiffField], tag: int) -> str:
    """Read the string in a field, without the zeros and spaces that pad it; empty if there is none.

    A string of up to four bytes takes the place of the field's value. A longer one is elsewhere,
    and the value is its position.

    Args:
        tiff: The metadata.
        fields: Their fields by tag.
        tag: The tag of the field to read.
    """
    field = fields.get(tag)
    if field is None or field.value_type != _ASCII or field.value_count > _MAX_CHARACTERS:
        return ""
    byte_count = field.value_count
    if byte_count > _INLINE_BYTES:
        content = tiff[field.value : field.value + byte_count]
    elif tiff.startswith(b"I"):
        content = field.value.to_bytes(_INLINE_BYTES, "little")[:byte_count]
    else:
        content = field.value.to_bytes(_INLINE_BYTES, "big")[:byte_count]
    text_bytes, _, _ = content.partition(b"\0")
    return text_bytes.decode("ascii", "replace").strip()


def _date_time(text: str, fraction: str) -> datetime:
    """Read a time in the form of EXIF.

    Args:
        text: Date and time to the second, as in 2026:01:31 12:00:00.
        fraction: The digits of the second after the point; anything but digits counts as none.

    Raises:
        ValueError: It is not a date and time.
    """
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError("not a date and time")
    year, month, day, hour, minute, second = (int(number) for number in match.groups())
    if year < _FIRST_PHOTOGRAPH:
        raise ValueError("before the first photograph")
    microsecond = 0
    if _DIGITS.fullmatch(fraction):
        microsecond = int(fraction[:_MICROSECOND_DIGITS].ljust(_MICROSECOND_DIGITS, "0"))
    return datetime(year, month, day, hour, minute, second, microsecond)  # noqa: DTZ001 - local
