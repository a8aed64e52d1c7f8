"""What a container says that OpenCV does not tell: whether it is mirrored, and how long it is."""

import re
import struct
from collections.abc import Callable

# Reads a file from a place on, at most so many bytes; none if it cannot be read.
Part = Callable[[int, int], bytes]

HEAD = 1 << 16  # bytes with what a file says of itself and its tracks, but for MOV and MP4
TAIL = 4096  # bytes of which some are set, unless a file was made room for and not filled
MAX_MOOV = 16 << 20  # tracks of sound, with their tables, may precede that of the video
MAX_BOXES = 1000  # that are skipped to find it

_VIDEO_TRACK = re.compile(rb"hdlr.{8}vide", re.DOTALL)
# The element ProjectionPoseYaw with 180 or -180 degrees, which is how Matroska says mirrored.
_YAW = re.compile(rb"vs(?:\x84[\x43\xc3]\x34\0\0|\x88[\x40\xc0]\x66\x80\0{5})")
# Bytes behind the beginning of Matroska's segment, and in the whole of an ASF or FLV file.
_LENGTH = re.compile(
    rb"\x18S\x80g\x01(?P<segment>.{7})"
    rb"|\xa1\xdc\xab\x8cG\xa9\xcf\x11\x8e\xe4\0\xc0\x0c Se.{24}(?P<asf>.{8})"
    rb"|filesize\0(?P<flv>.{8})",
    re.DOTALL,
)
# Where the matrix is behind a box's type, in its versions 0 and 1.
_MATRIX = {b"mvhd": (40, 52), b"tkhd": (44, 56)}


def is_whole(part: Part) -> bool:
    """Whether a file is as long as it says itself; False if it does not."""
    found = _LENGTH.search(part(0, HEAD))
    if found is None:
        return False
    if found["segment"]:
        end = found.end() + int.from_bytes(found["segment"])
    elif found["asf"]:
        end = int.from_bytes(found["asf"], "little")
    else:
        length: float = struct.unpack(">d", found["flv"])[0]
        end = int(length) if 0 < length < 1 << 62 else 0
    start = max(0, end - TAIL)
    tail = part(start, end - start) if end < 1 << 63 else b""
    return any(tail) and len(tail) == end - start


def is_mirrored(part: Part) -> bool:
    """Whether frames are to be shown mirrored, by the display matrix of the first video track."""
    head = part(0, HEAD)
    if head.startswith(b"\x1aE\xdf\xa3"):
        return _YAW.search(head) is not None
    moov = _find_moov(
        lambda at, size: head[at : at + size] if at + size <= len(head) else part(at, size)
    )
    track = _VIDEO_TRACK.search(moov)
    if track is None:
        return False
    return _mirrors(moov, b"mvhd", track.start()) != _mirrors(moov, b"tkhd", track.start())


def _find_moov(part: Part) -> bytes:
    """The box of a MOV or MP4 file that says what its tracks are; empty if there is none."""
    at = 0
    for _ in range(MAX_BOXES):
        header = part(at, 16)
        size, kind = int.from_bytes(header[:4]), header[4:8]
        if size == 1:
            size = int.from_bytes(header[8:16])
        if kind == b"moov":
            return part(at, min(size or MAX_MOOV, MAX_MOOV))
        if size < 8 or at + size >= 1 << 63:
            break
        at += size
    return b""


def _mirrors(moov: bytes, box: bytes, end: int) -> bool:
    """Whether the matrix in the last box of a type before a place mirrors."""
    at = moov.rfind(box, 0, end)
    if not 0 <= at <= end - 76 or moov[at + 4] > 1:
        return False
    a, b, _, c, d = struct.unpack_from(">5i", moov, at + _MATRIX[box][moov[at + 4]])
    return int(a * d) < int(b * c)
