"""What video files say of themselves: their length, and whether frames are shown mirrored."""

import re
import struct

from detcli.core import frozen
from detcli.source.matroska import EBML, SEGMENT, elements
from detcli.source.mp4 import MAX_BOXES, MAX_MOOV, Part, top_boxes

MAX_HEADER = 1 << 20  # bytes with the descriptions of all tracks, but for MP4
MAX_CHUNKS = 1000  # that are looked at
HEAD_BYTES = 1 << 16
"""The beginning of a file, in which it describes itself and its tracks, but for MOV and MP4."""

TAIL_BYTES = 4096
"""The end of a file that is read to tell whether it was written.

Some programs reserve the room of a file before they fill it: then these bytes are all zeros.
"""

MAX_OFFSET = 1 << 63  # beyond what a file can be read at

RIFF_SLACK = 8  # bytes: some programs count the header of the file, too
UNFINISHED = frozenset({0, 0xFFFFFFFF})  # lengths in a file that was not closed

ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")

MXF_PARTITION = bytes.fromhex("060e2b34020501010d01020101")

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
# Bytes from a box's type to its display matrix, in versions 0 and 1 of the box.
_MATRIX_OFFSETS = {b"mvhd": (40, 52), b"tkhd": (44, 56)}
_MAX_MATRIX_OFFSET = 56
_MATRIX_NUMBERS = struct.Struct(">5i")  # the first five of nine: a, b, u, c, d

_FLV_LENGTH = re.compile(rb"filesize\0(.{8})", re.DOTALL)


@frozen
class Length:
    """How many bytes a file has at least, by what it says itself."""

    frames: int  # up to the end of what holds frames
    file: int  # with an index and other things that may follow

    def lacks_frames(self, part: Part) -> bool:
        """Whether the frames are not all there."""
        return _is_missing(part, self.frames)

    def lacks_rest(self, part: Part) -> bool:
        """Whether something at the end is missing, be it only an index."""
        return _is_missing(part, self.file)


def declared_length(part: Part) -> Length | None:
    """Return the length that a video file says that it has; None if it says nothing, or is damaged.

    `part` reads bytes of the file, from an offset and of a size.
    """
    try:
        return _declared_length(part)
    except (struct.error, ValueError, IndexError):  # damage
        return None


def _declared_length(part: Part) -> Length | None:
    """Return the length that a video file of any container says that it has, or None.

    The container is told by the first bytes of the file. A damaged file may raise a struct.error,
    ValueError or IndexError. `part` reads bytes of the file, from an offset and of a size.
    """
    head = part(0, 16)
    if head.startswith(b"RIFF"):
        return _riff_length(part)
    if head.startswith(EBML.to_bytes(4)):
        length = _matroska_length(part)
    elif head.startswith(ASF_HEADER):
        length = _asf_length(part)
    elif head.startswith(b"FLV"):
        length = _flv_length(part)
    elif head.startswith(MXF_PARTITION):
        length = _mxf_length(part)
    else:
        return _movie_length(part)
    if length is None:
        return None
    return Length(length, length)


def _is_missing(part: Part, length: int) -> bool:
    """Return whether a file has fewer bytes than `length`, by trying to read the last of these.

    It is False if the length is implausible, and if the file can only be read from its beginning,
    as a pipe or on some servers: what cannot be read there is not missing.
    """
    if not 0 < length < 1 << 62:
        return False
    can_seek = bool(part(1, 1))
    return can_seek and not part(length - 1, 1)


def _movie_length(part: Part) -> Length | None:
    """Return the length of an MP4 or MOV file, or None if it has no boxes.

    Such a file is a sequence of boxes, each of which begins with its size. The frames are in the
    boxes called mdat, so they end with the last of these.
    """
    end_of_frames = 0
    end = 0
    for box in top_boxes(part):
        end = box.end
        if box.kind == b"mdat":
            end_of_frames = box.end
    if end == 0:
        return None
    return Length(end_of_frames, end)


def _riff_length(part: Part) -> Length | None:
    """Return the length of an AVI file, or None if it was not closed by its writer.

    A file is a sequence of RIFF lists, several of them if it is long. A list is "RIFF", its size
    in four bytes, and as many bytes of content, padded to an even number.
    """
    end_of_frames = 0
    list_start = 0
    for _ in range(MAX_CHUNKS):
        header = part(list_start, 12)
        if len(header) < 12 or not header.startswith(b"RIFF"):
            break
        size = int.from_bytes(header[4:8], "little")
        if size in UNFINISHED:
            return None
        list_end = list_start + 8 + size
        end_of_frames = _frame_list_end(part, list_start + 12, list_end)
        list_start = list_end + size % 2
    return Length(end_of_frames, max(1, list_start - RIFF_SLACK))


def _frame_list_end(part: Part, start: int, end: int) -> int:
    """Return the offset where the frames end in one RIFF list of an AVI; 0 if it has none.

    The range from `start` to `end` is a sequence of chunks: four bytes of a name, four of a size,
    and the content. The chunk with the frames is called LIST, and its content begins with "movi".
    """
    position = start
    while position < end:
        header = part(position, 12)
        if len(header) < 12:
            return 0
        size = int.from_bytes(header[4:8], "little")
        has_frames = header.startswith(b"LIST") and header[8:] == b"movi"
        if has_frames and size not in UNFINISHED:
            return position + 8 + size
        position += 8 + size + size % 2
    return 0


def _matroska_length(part: Part) -> int | None:
    """Return where the segment of a Matroska or WebM file ends; None if it was not closed."""
    head = part(0, 4096)
    for element in elements(head, 0, len(head)):
        if element.number == SEGMENT:
            return element.end
    return None


def _asf_length(part: Part) -> int | None:
    """Return the length of an ASF or WMV file; None for a broadcast, whose length was not known.

    Behind the 16 bytes that identify the file properties, its size in bytes is at offset 40, and
    its flags are at offset 88.
    """
    head = part(0, MAX_HEADER)
    start = head.find(ASF_FILE)
    if start < 0 or len(head) < start + 92:
        return None
    flags = int.from_bytes(head[start + 88 : start + 92], "little")
    is_broadcast = bool(flags & 1)  # whose length was not known
    if is_broadcast:
        return None
    return int.from_bytes(head[start + 40 : start + 48], "little")


def _flv_length(part: Part) -> int | None:
    """Return the length of an FLV file, which its metadata call "filesize"; None without it."""
    match = _FLV_LENGTH.search(part(0, 1 << 16))
    if match is None:
        return None
    return _flv_bytes(match[1])


def _flv_bytes(number: bytes) -> int | None:
    """The length of an FLV file, which is stored as a double; None if it is implausible."""
    length: float = struct.unpack(">d", number)[0]
    if 0 < length < 1 << 62:
        return int(length)
    return None


def _mxf_length(part: Part) -> int | None:
    """Return how long an MXF file is at least: up to the key with which its footer begins.

    It is None if the file was not closed, as then the footer's offset is 0. The file begins with a
    key of 16 bytes, a length, and fields. The length takes one byte if that is below 128; else the
    lower 7 bits of the byte say how many bytes of length follow. The offset of the footer is the 8
    bytes from the 24th byte of the fields on.
    """
    head = part(0, 64)
    first_length_byte = head[16]
    fields_start = 17
    if first_length_byte >= 128:
        fields_start += first_length_byte & 0x7F
    footer_field = fields_start + 24
    footer = int.from_bytes(head[footer_field : footer_field + 8])
    if footer == 0:
        return None
    return footer + len(MXF_PARTITION)


def is_whole(part: Part) -> bool:
    """Return whether a video file is as long as its own header says.

    It is False if the header does not say a length (only Matroska, ASF and FLV do), if bytes are
    missing, or if the end is all zeros: room was made for it, but it was never written.
    """
    file_end = _end_by_header(part(0, HEAD_BYTES))
    if file_end is None or file_end >= MAX_OFFSET:
        return False
    tail_start = max(0, file_end - TAIL_BYTES)
    tail_length = file_end - tail_start
    tail = part(tail_start, tail_length)
    is_complete = len(tail) == tail_length
    is_written = any(tail)
    return is_complete and is_written


def _end_by_header(head: bytes) -> int | None:
    """Return where a Matroska, ASF or FLV file ends, by its first bytes; None if they do not say.

    Each of the three formats has one group of `_LENGTH`, which holds the bytes of the number.
    """
    length_field = _LENGTH.search(head)
    if length_field is None:
        return None
    if length_field["segment"]:  # Matroska counts the bytes behind this number
        return length_field.end() + int.from_bytes(length_field["segment"])
    if length_field["asf"]:
        return int.from_bytes(length_field["asf"], "little")
    return _flv_bytes(length_field["flv"])


def is_mirrored(part: Part) -> bool:
    """Return whether the frames of a video are to be shown mirrored.

    Matroska says so by an angle of projection. MOV and MP4 have one matrix for the movie and one
    for each track; the first video track counts, and two mirrored matrices cancel each other.
    """
    head = part(0, HEAD_BYTES)
    if head.startswith(EBML.to_bytes(4)):
        return _YAW.search(head) is not None

    def read_once(start: int, size: int) -> bytes:  # what is in `head` is not read again
        if start + size <= len(head):
            return head[start : start + size]
        return part(start, size)

    moov = _find_moov(read_once)
    video_handler = _VIDEO_TRACK.search(moov)  # behind the matrix of the first video track
    if video_handler is None:
        return False
    movie_mirrors = _mirrors(moov, b"mvhd", video_handler.start())
    track_mirrors = _mirrors(moov, b"tkhd", video_handler.start())
    return movie_mirrors != track_mirrors


def _find_moov(part: Part) -> bytes:
    """Return the bytes of the box "moov" of a MOV or MP4 file, which describes its tracks.

    A file is a sequence of boxes: 4 bytes of size, 4 of kind, and content. A size of 1 says that
    the real one is in the 8 bytes behind the kind, and 0 that the box goes up to the end of the
    file. The bytes are empty without such a box, and at most `MAX_MOOV`.
    """
    position = 0
    for _ in range(MAX_BOXES):
        header = part(position, 16)
        size = int.from_bytes(header[:4])
        if size == 1:
            size = int.from_bytes(header[8:16])
        if header[4:8] == b"moov":
            return part(position, min(size or MAX_MOOV, MAX_MOOV))
        if size < 8 or position + size >= MAX_OFFSET:
            break
        position += size
    return b""


def _mirrors(moov: bytes, box_type: bytes, end: int) -> bool:
    """Return whether the display matrix of a MOV or MP4 file, or of a track, mirrors the frames.

    Args:
        moov: The box of the file that describes its tracks.
        box_type: Of the box that has the matrix: mvhd for the file, or tkhd for a track.
        end: The offset in `moov` before which to look. As a box of each track is in `moov`, the
            last one before it counts.
    """
    box_start = moov.rfind(box_type, 0, end)
    is_complete = 0 <= box_start <= end - _MAX_MATRIX_OFFSET - _MATRIX_NUMBERS.size
    if not is_complete:
        return False
    version = moov[box_start + len(box_type)]
    if version > 1:
        return False
    matrix_start = box_start + _MATRIX_OFFSETS[box_type][version]
    a, b, _, c, d = _MATRIX_NUMBERS.unpack_from(moov, matrix_start)
    # x and y become ax + cy and bx + dy, which mirrors if the determinant ad - bc is negative.
    return int(a * d) < int(b * c)
