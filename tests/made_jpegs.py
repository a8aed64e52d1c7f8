"""JPEG files to order: segments, orientations, images."""

import struct

import cv2
import numpy as np


def image(height=48, width=64):
    """Smooth, with an edge in every direction and a corner that tells how it is turned."""
    y, x = np.mgrid[:height, :width]
    image = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)
    image[: height // 3, : width // 4] = (0, 0, 255)
    return image


def encode(image, **options):
    """A JPEG; options are those of `cv2.imencode` without IMWRITE_JPEG_."""
    flags = []
    for name, value in options.items():
        flags += [getattr(cv2, f"IMWRITE_JPEG_{name}"), value]
    encoded, data = cv2.imencode(".jpg", image, flags)
    assert encoded
    return data.tobytes()


def segment(marker, payload):
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def insert(jpeg, *segments):
    """Put segments behind the start of a JPEG."""
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def without(jpeg, marker):
    """Leave out all segments of one kind."""
    start = b"\xff" + bytes([marker])
    while (at := jpeg.find(start)) >= 0:
        jpeg = jpeg[:at] + jpeg[at + 2 + struct.unpack_from(">H", jpeg, at + 2)[0] :]
    return jpeg


def orientation(value, kind=3, count=1):
    return (0x112, kind, count, value)


def exif(*fields, order="<", magic=42, prefix=b"Exif\0\0", gap=0):
    """An APP1 segment; the fields are (tag, type, count, value)."""
    tiff = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", magic, 8 + gap) + bytes(gap)
    tiff += struct.pack(f"{order}H", len(fields))
    for tag, kind, count, value in fields:
        form = "HHIHxx" if kind == 3 and count == 1 else "HHII"
        tiff += struct.pack(f"{order}{form}", tag, kind, count, value)
    return segment(0xE1, prefix + tiff + bytes(4))


def exif_with_thumbnail(thumbnail):
    """An APP1 segment with EXIF, whose second directory leads to a small JPEG."""
    thumbnail_position = 44  # behind the header (8 bytes) and directories of 6 and 30 bytes
    tiff = struct.pack(">2sHI", b"MM", 42, 8)
    tiff += struct.pack(">HI", 0, 14)  # no fields, and where the next directory is
    tiff += struct.pack(">H", 2)
    tiff += struct.pack(">HHII", 0x201, 4, 1, thumbnail_position)
    tiff += struct.pack(">HHII", 0x202, 4, 1, len(thumbnail))
    tiff += struct.pack(">I", 0)  # no further directory
    return segment(0xE1, b"Exif\0\0" + tiff + thumbnail)
