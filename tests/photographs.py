"""Photographs to order: EXIF with times, as cameras and programs write it."""

import io
import struct
import zlib

from PIL import Image

EXIF_DIRECTORY = 0x8769
MAKER, CHANGED = 0x010F, 0x0132
DATE_TIME_ORIGINAL, OFFSET_TIME_ORIGINAL, SUB_SEC_TIME_ORIGINAL = 0x9003, 0x9011, 0x9291

ASCII, LONG = 2, 4


def tiff_with_times(date, *, fraction=None, offset=None, order="<"):
    """EXIF with one field in the first directory, and the times in the one for photographs.

    Args:
        date: DateTimeOriginal, as bytes with their final zero.
        fraction: SubSecTimeOriginal, likewise; None for no such field.
        offset: OffsetTimeOriginal, likewise.
        order: < for little endian, > for big endian.
    """
    texts = {
        DATE_TIME_ORIGINAL: date,
        OFFSET_TIME_ORIGINAL: offset,
        SUB_SEC_TIME_ORIGINAL: fraction,
    }
    texts = {tag: text for tag, text in texts.items() if text is not None}
    first_directory = 8
    exif_directory = first_directory + 2 + 12 + 4
    behind_directories = exif_directory + 2 + 12 * len(texts) + 4

    mark = {"<": b"II", ">": b"MM"}[order]
    tiff = struct.pack(f"{order}2sHI", mark, 42, first_directory)
    tiff += struct.pack(f"{order}HHHIII", 1, EXIF_DIRECTORY, LONG, 1, exif_directory, 0)
    tiff += struct.pack(f"{order}H", len(texts))
    values_elsewhere = b""
    for tag, text in texts.items():
        tiff += struct.pack(f"{order}HHI", tag, ASCII, len(text))
        if len(text) <= 4:
            tiff += text.ljust(4, b"\0")
        else:
            tiff += struct.pack(f"{order}I", behind_directories + len(values_elsewhere))
            values_elsewhere += text
    return tiff + bytes(4) + values_elsewhere


def jpeg_with_times(date, **texts):
    """A small JPEG with EXIF of `tiff_with_times`."""
    return encoded("JPEG", exif=b"Exif\0\0" + tiff_with_times(date, **texts))


def png_with_times(png, date, **texts):
    """A PNG with a chunk for EXIF of `tiff_with_times` behind its header."""
    content = b"eXIf" + tiff_with_times(date, **texts)
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    end_of_header = 33
    return png[:end_of_header] + chunk + png[end_of_header:]


def encoded(file_format, *, exif=b"", size=(64, 48)):
    """A red image in a format of Pillow, with EXIF as bytes or as an `Image.Exif`."""
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(file, file_format, exif=exif)
    return file.getvalue()


def exif_of_camera(**texts):
    """EXIF as Pillow writes it: the time of a later change, and the tags of `texts` by name."""
    tags = {
        "date": DATE_TIME_ORIGINAL,
        "fraction": SUB_SEC_TIME_ORIGINAL,
        "offset": OFFSET_TIME_ORIGINAL,
    }
    exif = Image.Exif()
    exif[MAKER] = "Maker of cameras"
    exif[CHANGED] = "2022:01:01 00:00:00"
    directory = exif.get_ifd(EXIF_DIRECTORY)
    for name, text in texts.items():
        directory[tags[name]] = text
    return exif
