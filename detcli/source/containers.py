"""What video files say about themselves: their length, and whether frames are shown mirrored."""

import re
import struct

from detcli.core import frozen
from detcli.source.matroska import EBML, SEGMENT, elements
from detcli.source.mp4 import MAX_BOXES, MAX_MOOV, ReadRange, top_boxes

MAX_HEADER = 1 << 20  # bytes with the descriptions of all tracks, except in MP4
MAX_CHUNKS = 1000  # chunks that are looked at
HEAD_BYTES = 1 << 16
"""The beginning of a file, in which it describes itself and its tracks, except in MOV and MP4."""

TAIL_BYTES = 4096
"""How many bytes at the end of a file are read to see whether it was written.

Some programs reserve room for a file before they fill it: then these bytes are all zeros.
"""

MAX_OFFSET = 1 << 63  # beyond any offset at which a file can be read

RIFF_HEADER_BYTES = 8  # header of a list or chunk: four bytes of a name, four of a size
RIFF_NAME_END = 12  # after the header and the four bytes that say what a list holds
RIFF_SLACK = 8  # bytes: some programs include the header of a list in its size
UNFINISHED = frozenset({0, 0xFFFFFFFF})  # lengths in a file that was not closed

BOX_SIZE_FOLLOWS = 1  # in place of a box's size in MOV and MP4, which then follows the kind
MIN_BOX_BYTES = 8  # of a box: its size and kind

ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
ASF_FILE_PROPERTIES = struct.Struct("<40xQ40xI")
"""Of ASF's object with the properties of the file: at 40 the file's size, at 88 its flags."""

ASF_BROADCAST = 1  # the flag of a file that is written while it is sent, so without its size

MXF_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
"""The first bytes of the keys of 16 bytes with which an MXF file, and its footer, begin."""

MXF_KEY_BYTES = 16
MXF_FOOTER_FIELD = 24  # where the header's fields have the offset of the footer, in eight bytes
MXF_HEADER_BYTES = 64  # enough of the header to read that offset

_VIDEO_TRACK = re.compile(rb"hdlr.{8}vide", re.DOTALL)
# The element ProjectionPoseYaw with 180 or -180 degrees, which is how Matroska says mirrored.
_YAW = re.compile(rb"vs(?:\x84[\x43\xc3]\x34\0\0|\x88[\x40\xc0]\x66\x80\0{5})")
# Bytes after the beginning of Matroska's segment, and in the whole of an ASF or FLV file.
_LENGTH = re.compile(
    rb"\x18S\x80g\x01(?P<segment>.{7})"
    rb"|\xa1\xdc\xab\x8cG\xa9\xcf\x11\x8e\xe4\0\xc0\x0c Se.{24}(?P<asf>.{8})"
    rb"|filesize\0(?P<flv>.{8})",
    re.DOTALL,
)
# Bytes from a box's type to its display matrix, for versions 0 and 1 of the box. In version 1, the
# times before it have eight bytes instead of four.
_MATRIX_OFFSETS = {b"mvhd": (40, 52), b"tkhd": (44, 56)}
_MAX_MATRIX_OFFSET = 56
_MATRIX_NUMBERS = struct.Struct(">5i")  # the first five of nine: a, b, u, c, d

_FLV_LENGTH = re.compile(rb"filesize\0(.{8})", re.DOTALL)


@frozen
class Length:
    """How many bytes a file has at least, according to its own content."""

    frames: int  # up to the end of what holds frames
    file: int  # with an index and other things that may follow

    def lacks_frames(self, read_range: ReadRange) -> bool:
        """Whether some of the frames are missing."""
        return _is_missing(read_range, self.frames)

    def lacks_rest(self, read_range: ReadRange) -> bool:
        """Whether something at the end is missing, even if only an index."""
        return _is_missing(read_range, self.file)


def declared_length(read_range: ReadRange) -> Length | None:
    """Return the length that a video file declares; None if it declares none, or is damaged.

    `read_range` reads bytes of the file, from an offset and of a size.
    """
    try:
        return _declared_length(read_range)
    except (struct.error, ValueError, IndexError):  # damage
        return None


def _declared_length(read_range: ReadRange) -> Length | None:
    """Return the length that a video file of any container declares; None if it declares none.

    The first bytes of the file identify the container. A damaged file may raise a struct.error,
    ValueError or IndexError.
    """
    head = read_range(0, 16)
    if head.startswith(b"RIFF"):
        return _riff_length(read_range)
    if head.startswith(EBML.to_bytes(4)):
        length = _matroska_length(read_range)
    elif head.startswith(ASF_HEADER):
        length = _asf_length(read_range)
    elif head.startswith(b"FLV"):
        length = _flv_length(read_range)
    elif head.startswith(MXF_PARTITION):
        length = _min_mxf_length(read_range)
    else:
        return _movie_length(read_range)
    if length is None:
        return None
    return Length(frames=length, file=length)


def _is_missing(read_range: ReadRange, length: int) -> bool:
    """Return whether a file has fewer bytes than `length`, by trying to read the last of these.

    It is False if the length is implausible, and if the file can only be read from its beginning,
    as for a pipe or on some servers: what cannot be read there is not missing.
    """
    if not 0 < length < 1 << 62:
        return False
    can_seek = bool(read_range(1, 1))
    return can_seek and not read_range(length - 1, 1)


def _movie_length(read_range: ReadRange) -> Length | None:
    """Return the length of an MP4 or MOV file, or None if it has no boxes.

    Such a file is a sequence of boxes. Each box begins with its size. The frames are in the
    boxes called mdat, so they end with the last of these.
    """
    end_of_frames = 0
    end = 0
    for box in top_boxes(read_range):
        end = box.end
        if box.kind == b"mdat":
            end_of_frames = box.end
    if end == 0:
        return None
    return Length(end_of_frames, end)


def _riff_length(read_range: ReadRange) -> Length | None:
    """Return the length of an AVI file; None if its writer has not filled in the sizes.

    A file is a sequence of RIFF lists, several of them if it is long. A list is "RIFF", its size
    in four bytes, and as many bytes of content, padded to an even number. The frames end where
    those of the last list end.
    """
    end_of_frames = 0
    list_start = 0
    for _ in range(MAX_CHUNKS):
        header = read_range(list_start, RIFF_NAME_END)
        if len(header) < RIFF_NAME_END or not header.startswith(b"RIFF"):
            break
        size = int.from_bytes(header[4:8], "little")
        if size in UNFINISHED:  # a writer fills in the size when it closes the file
            return None
        list_end = list_start + RIFF_HEADER_BYTES + size
        end_of_frames = _frame_list_end(read_range, list_start + RIFF_NAME_END, list_end)
        padding = size % 2
        list_start = list_end + padding
    end_of_lists = list_start
    # Some programs include the 8 bytes of a list's header in its size. Their file is complete
    # although it ends 8 bytes before `end_of_lists`.
    return Length(frames=end_of_frames, file=max(1, end_of_lists - RIFF_SLACK))


def _frame_list_end(read_range: ReadRange, start: int, end: int) -> int:
    """Return the offset where the frames end in one RIFF list of an AVI; 0 if it has none.

    The range from `start` to `end` is a sequence of chunks: four bytes of a name, four of a size,
    and the content, padded to an even number. The chunk with the frames is called LIST, and its
    content begins with "movi".
    """
    chunk_start = start
    while chunk_start < end:
        header = read_range(chunk_start, RIFF_NAME_END)
        if len(header) < RIFF_NAME_END:
            return 0
        size = int.from_bytes(header[4:8], "little")
        chunk_end = chunk_start + RIFF_HEADER_BYTES + size
        has_frames = header.startswith(b"LIST") and header[RIFF_HEADER_BYTES:] == b"movi"
        if has_frames and size not in UNFINISHED:
            return chunk_end
        padding = size % 2
        chunk_start = chunk_end + padding
    return 0


def _matroska_length(read_range: ReadRange) -> int | None:
    """Return where the segment of a Matroska or WebM file ends; None if it was not closed."""
    head = read_range(0, 4096)
    for element in elements(head, 0, len(head)):
        if element.element_id == SEGMENT:
            return element.end
    return None


def _asf_length(read_range: ReadRange) -> int | None:
    """Return the length that the header of an ASF or WMV file declares.

    It is None if the object that declares it is missing or cut, and for a broadcast, whose length
    was unknown.
    """
    head = read_range(0, MAX_HEADER)
    start = head.find(ASF_FILE)
    is_complete = 0 <= start <= len(head) - ASF_FILE_PROPERTIES.size
    if not is_complete:
        return None
    file_size: int
    file_size, flags = ASF_FILE_PROPERTIES.unpack_from(head, start)
    is_broadcast = bool(flags & ASF_BROADCAST)
    if is_broadcast:
        return None
    return file_size


def _flv_length(read_range: ReadRange) -> int | None:
    """Return the length of an FLV file, "filesize" in its metadata; None if that is missing."""
    match = _FLV_LENGTH.search(read_range(0, 1 << 16))
    if match is None:
        return None
    return _flv_bytes(match[1])


def _flv_bytes(number: bytes) -> int | None:
    """The length of an FLV file, which is stored as a double; None if it is implausible."""
    length: float = struct.unpack(">d", number)[0]
    if 0 < length < 1 << 62:
        return int(length)
    return None


def _min_mxf_length(read_range: ReadRange) -> int | None:
    """Return how many bytes an MXF file has at least; None if it was not closed.

    An MXF file begins with a header, which is a key of 16 bytes, the length of its fields, and the
    fields. One of these is the offset of the footer, in eight bytes; it is 0 until the file is
    closed. The footer begins with a key as well, and a whole file has at least the first bytes of
    this key, which are `MXF_PARTITION`.
    """
    header = read_range(0, MXF_HEADER_BYTES)
    fields_start = MXF_KEY_BYTES + _mxf_length_bytes(header[MXF_KEY_BYTES])
    footer_field = fields_start + MXF_FOOTER_FIELD
    footer_start = int.from_bytes(header[footer_field : footer_field + 8])
    if footer_start == 0:
        return None
    return footer_start + len(MXF_PARTITION)


def _mxf_length_bytes(first_byte: int) -> int:
    """Return how many bytes a length takes in MXF, as its first byte says.

    Below 128, this byte is the length itself. Otherwise its lower seven bits say how many bytes
    follow.
    """
    if first_byte < 0x80:
        return 1
    return 1 + (first_byte & 0x7F)


def is_whole(read_range: ReadRange) -> bool:
    """Return whether a video file is as long as its own header says.

    It is False if the header does not say a length (only Matroska, ASF and FLV do), if bytes are
    missing, or if the end is all zeros: room was made for it, but it was never written.
    """
    file_end = _end_by_header(read_range(0, HEAD_BYTES))
    if file_end is None or file_end >= MAX_OFFSET:
        return False
    tail_start = max(0, file_end - TAIL_BYTES)
    tail_length = file_end - tail_start
    tail = read_range(tail_start, tail_length)
    is_complete = len(tail) == tail_length
    is_written = any(tail)
    return is_complete and is_written


def _end_by_header(head: bytes) -> int | None:
    """Return where a Matroska, ASF or FLV file ends, from its first bytes; None if they do not say.

    Each of the three formats has one group of `_LENGTH`, which holds the bytes of the number.
    """
    length_field = _LENGTH.search(head)
    if length_field is None:
        return None
    if length_field["segment"]:  # Matroska counts the bytes after this number
        return length_field.end() + int.from_bytes(length_field["segment"])
    if length_field["asf"]:
        return int.from_bytes(length_field["asf"], "little")
    return _flv_bytes(length_field["flv"])


def is_mirrored(read_range: ReadRange) -> bool:
    """Return whether the frames of a video are to be shown mirrored.

    Matroska says so by an angle of projection. MOV and MP4 have one matrix for the movie and one
    for each track; that of the first video track is used, and two mirrored matrices cancel each
    other out.

    Args:
        read_range: Reads bytes of the file, from an offset and of a size.
    """
    head = read_range(0, HEAD_BYTES)
    is_matroska = head.startswith(EBML.to_bytes(4))
    if is_matroska:
        return _YAW.search(head) is not None
    moov = _find_moov(_reusing(head, read_range))
    video_handler = _VIDEO_TRACK.search(moov)
    if video_handler is None:
        return False
    # The matrices of the movie and of its first video track are before that track's handler.
    movie_mirrors = _mirrors(moov, b"mvhd", video_handler.start())
    track_mirrors = _mirrors(moov, b"tkhd", video_handler.start())
    return movie_mirrors != track_mirrors


def _reusing(head: bytes, read_range: ReadRange) -> ReadRange:
    """Return a function that reads a file like `read_range`, but not the bytes of `head` again.

    `head` are the first bytes of the file.
    """

    def read(start: int, size: int) -> bytes:
        if start + size <= len(head):
            return head[start : start + size]
        return read_range(start, size)

    return read


def _find_moov(read_range: ReadRange) -> bytes:
    """Return the bytes of the box "moov" of a MOV or MP4 file, which describes its tracks.

    A file is a sequence of boxes: 4 bytes of size, 4 of kind, and content. A size of 1 says that
    the real one is in the 8 bytes after the kind, and 0 that the box goes up to the end of the
    file. The bytes are empty if there is no such box, and at most `MAX_MOOV`.
    """
    box_start = 0
    for _ in range(MAX_BOXES):
        header = read_range(box_start, 16)
        size = int.from_bytes(header[:4])
        kind = header[4:8]
        if size == BOX_SIZE_FOLLOWS:
            size = int.from_bytes(header[8:16])
        if kind == b"moov":
            if size == 0:
                return read_range(box_start, MAX_MOOV)
            return read_range(box_start, min(size, MAX_MOOV))
        next_box = box_start + size
        if size < MIN_BOX_BYTES or next_box >= MAX_OFFSET:  # the last box, or damage
            break
        box_start = next_box
    return b""


def _mirrors(moov: bytes, box_type: bytes, handler_start: int) -> bool:
    """Return whether the display matrix of a MOV or MP4 file, or of a track, mirrors the frames.

    It is False if the matrix is missing or cut.

    Args:
        moov: The box of the file that describes its tracks.
        box_type: The type of the box with the matrix: mvhd for the file, or tkhd for a track.
        handler_start: The offset in `moov` of the video track's handler. Both boxes are before it.
            Tracks before the video track have a box tkhd, too, so the last one is taken.
    """
    type_start = moov.rfind(box_type, 0, handler_start)
    max_type_start = handler_start - _MAX_MATRIX_OFFSET - _MATRIX_NUMBERS.size
    is_complete = 0 <= type_start <= max_type_start  # `type_start` is -1 if there is no such box
    if not is_complete:
        return False

    version = moov[type_start + len(box_type)]  # the byte after the type
    offset_by_version = _MATRIX_OFFSETS[box_type]  # from the box's type to its matrix
    if version >= len(offset_by_version):
        return False
    matrix_start = type_start + offset_by_version[version]

    a, b, _, c, d = _MATRIX_NUMBERS.unpack_from(moov, matrix_start)
    # x and y become ax + cy and bx + dy, which mirrors if the determinant ad - bc is negative.
    return int(a * d) < int(b * c)
