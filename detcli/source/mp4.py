"""MP4 and MOV: what their boxes say of tracks, edits and frames (ISO/IEC 14496-12)."""

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.data.geometry import Size

# Reads up to a number of bytes of a file from an offset; none if it cannot be read.
Part = Callable[[int, int], bytes]

MAX_MOOV = 16 << 20  # bytes: tracks of sound, with their tables, may precede that of the video
MAX_BOXES = 1000  # that are looked at in a file; one in fragments has two for each
MAX_SAMPLES = 1 << 24  # of a track; more is damage

FIRST_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp"})
VIDEO_HANDLERS = frozenset({b"vide", b"pict"})
ENABLED = 1  # flag of a track that players show


@frozen
class Box:
    """A box; its offsets count from the beginning of the file, or of the bytes that were parsed."""

    kind: bytes
    start: int  # of its header
    body: int  # behind its header
    end: int


@frozen
class Edit:
    """A part of a track that is shown: from a time on, for a time; both in the track's units."""

    start: int  # -1 for a pause before it
    duration: int


@frozen
class Track:
    """A track of a movie."""

    number: int  # by which other tracks refer to it
    start: int  # of its box in the file
    handler: bytes  # vide, soun or another
    handler_offset: int  # of these four bytes in the file
    size: Size  # height and width of its frames as stored
    is_enabled: bool
    chapters: tuple[int, ...]  # numbers of tracks with its chapters' titles and thumbnails
    sample_count: int
    times: npt.NDArray[np.int64] | None  # when each sample is shown; None if they are in fragments
    edits: tuple[Edit, ...]  # none if all is shown

    @property
    def is_video(self) -> bool:
        """Whether FFmpeg takes it for a track of images."""
        return self.handler in VIDEO_HANDLERS

    def shown_frames(self) -> int | None:
        """Return how many frames of the track players show, as its edit list selects them.

        It is None if the times of frames are in fragments instead of the movie's tables.
        """
        if self.times is None:
            return None
        if not self.edits:
            return len(self.times)
        count = 0
        for edit in self.edits:
            if edit.start >= 0:
                after_start = self.times >= edit.start
                before_end = self.times < edit.start + edit.duration
                count += int(np.count_nonzero(after_start & before_end))
        return count


@frozen
class Movie:
    """What a file says of all its tracks."""

    tracks: tuple[Track, ...]
    covers: tuple[int, ...]  # where boxes with cover images start in the file
    is_fragmented: bool


def read_movie(part: Part) -> Movie | None:
    """Read the tables of a file; None if it is no MP4 or MOV, or is damaged."""
    moov = _first_of_kind(top_boxes(part), b"moov")
    if moov is None or moov.end - moov.start > MAX_MOOV:
        return None
    data = part(moov.start, moov.end - moov.start)
    try:
        return _parse_movie(data, moov)
    except (struct.error, ValueError, IndexError, OverflowError):
        return None


def top_boxes(part: Part) -> Iterator[Box]:
    """Yield the outermost boxes of an MP4 or MOV file; the last may end beyond the file.

    A box has 4 bytes of size and 4 of its kind. A size of 1 says that the real one is in the 8
    bytes behind these. A file of another format has no boxes. `part` reads bytes of the file, from
    an offset and of a size.
    """
    start = 0
    for _ in range(MAX_BOXES):
        header = part(start, 16)
        if len(header) < 8:
            return
        size = int.from_bytes(header[:4])
        kind = header[4:8]
        if start == 0 and kind not in FIRST_BOXES:
            return
        body = start + 8
        if size == 1:
            size = int.from_bytes(header[8:16])
            body = start + 16
        end = start + size
        if end < body or end >= 1 << 63 or not kind.isascii():
            return
        yield Box(kind, start, body, end)
        start = end


def fragment_samples(part: Part, track: Track) -> int | None:
    """How many frames all fragments of a track hold; None if the file does not end with an index.

    Without the index at its end, a file may have been cut between two fragments.
    """
    count = 0
    last_kind = b""
    for box in top_boxes(part):
        last_kind = box.kind
        if box.kind == b"moof" and box.end - box.start <= MAX_MOOV:
            data = part(box.start, box.end - box.start)
            count += _samples_in_fragment(data, track.number)
    if last_kind != b"mfra":
        return None
    return count


def _samples_in_fragment(data: bytes, track_number: int) -> int:
    """How many frames of a track a fragment holds, by the bytes of its box."""
    count = 0
    for fragment in _children(data, Box(b"moof", 0, 8, len(data))):
        if fragment.kind != b"traf":
            continue
        header = _find(data, fragment, b"tfhd")
        if header is None or _number(data, header.body + 4) != track_number:
            continue
        for run in _children(data, fragment):
            if run.kind == b"trun":
                count += _number(data, run.body + 4)
    return count


def _children(data: bytes, parent: Box) -> Iterator[Box]:
    """The boxes in a box."""
    start = parent.body
    while start + 8 <= parent.end:
        size = _number(data, start)
        kind = data[start + 4 : start + 8]
        body = start + 8
        if size == 1:
            size = int.from_bytes(data[start + 8 : start + 16])
            body = start + 16
        end = start + size
        if size == 0:  # up to the end of the box that it is in
            end = parent.end
        if end < body:
            return
        yield Box(kind, start, body, min(end, parent.end))
        start = end


def _find(data: bytes, parent: Box, *path: bytes) -> Box | None:
    """The first box at a path of kinds below a box."""
    box: Box | None = parent
    for kind in path:
        if box is None:
            return None
        box = _first_of_kind(_children(data, box), kind)
    return box


def _first_of_kind(boxes: Iterator[Box], kind: bytes) -> Box | None:
    for box in boxes:
        if box.kind == kind:
            return box
    return None


def _number(data: bytes, offset: int) -> int:
    """An unsigned number of four bytes."""
    value: int = struct.unpack_from(">I", data, offset)[0]
    return value


def _parse_movie(data: bytes, moov: Box) -> Movie:
    """Parse the bytes of the box of a movie, which tells where they are in the file."""
    root = Box(b"moov", 0, moov.body - moov.start, len(data))
    header = _find(data, root, b"mvhd")
    movie_scale = 0
    if header is not None:
        movie_scale = _time_scale(data, header)
    is_fragmented = _find(data, root, b"mvex") is not None
    tracks: list[Track] = []
    for box in _children(data, root):
        if box.kind == b"trak":
            track = _parse_track(
                data,
                box,
                data_offset=moov.start,
                movie_scale=movie_scale,
                is_fragmented=is_fragmented,
            )
            tracks.append(track)

    covers = tuple(moov.start + offset for offset in _cover_offsets(data, root))
    return Movie(tuple(tracks), covers, is_fragmented)


def _time_scale(data: bytes, header: Box) -> int:
    """Units in a second, by the header of a movie or of a track's media."""
    return _number(data, header.body + _offset_behind_times(data, header))


def _offset_behind_times(data: bytes, header: Box) -> int:
    """Where the number behind the times of creation and modification is in a header's body.

    In version 1 these have 8 bytes each, otherwise 4.
    """
    version = data[header.body]
    if version == 1:
        return 20
    return 12


def _parse_track(
    data: bytes, box: Box, *, data_offset: int, movie_scale: int, is_fragmented: bool
) -> Track:
    """Parse the box of a track in the bytes of a movie, which are at an offset in the file."""
    header = _find(data, box, b"tkhd")
    media_header = _find(data, box, b"mdia", b"mdhd")
    handler = _find(data, box, b"mdia", b"hdlr")
    table = _find(data, box, b"mdia", b"minf", b"stbl")
    if header is None or media_header is None or handler is None or table is None:
        raise ValueError("a track without its boxes")

    sizes = _find(data, table, b"stsz")
    sample_count = 0
    if sizes is not None:
        sample_count = _number(data, sizes.body + 8)
    number = _number(data, header.body + _offset_behind_times(data, header))
    media_scale = _time_scale(data, media_header)
    times = None
    if not is_fragmented:
        times = _sample_times(data, table, sample_count)

    return Track(
        number=number,
        start=data_offset + box.start,
        handler=data[handler.body + 8 : handler.body + 12],
        handler_offset=data_offset + handler.body + 8,
        size=_frame_size(data, table),
        is_enabled=bool(data[header.body + 3] & ENABLED),
        chapters=_chapter_tracks(data, box),
        sample_count=sample_count,
        times=times,
        edits=_edits(data, box, movie_scale, media_scale),
    )


def _frame_size(data: bytes, table: Box) -> Size:
    """Height and width in the first description of a track's samples; zeros without one."""
    description = _find(data, table, b"stsd")
    if description is None or description.end - description.body < 44:
        return 0, 0
    width, height = struct.unpack_from(">HH", data, description.body + 40)
    return height, width


def _chapter_tracks(data: bytes, track: Box) -> tuple[int, ...]:
    """The numbers of the tracks that a track refers to for its chapters."""
    references = _find(data, track, b"tref", b"chap")
    if references is None:
        return ()
    count = (references.end - references.body) // 4
    return struct.unpack_from(f">{count}I", data, references.body)


def _edits(data: bytes, track: Box, movie_scale: int, media_scale: int) -> tuple[Edit, ...]:
    """The edits of a track; their durations become the track's units, rounded as FFmpeg does."""
    listing = _find(data, track, b"edts", b"elst")
    if listing is None or not movie_scale:
        return ()
    entry_format = ">Iii"
    if data[listing.body] == 1:  # the version
        entry_format = ">Qqi"
    entry_bytes = struct.calcsize(entry_format)

    edits: list[Edit] = []
    for index in range(_number(data, listing.body + 4)):
        offset = listing.body + 8 + index * entry_bytes
        if offset + entry_bytes > listing.end:
            break
        duration, start, _ = struct.unpack_from(entry_format, data, offset)
        scaled = (duration * media_scale + movie_scale // 2) // movie_scale
        edits.append(Edit(start, scaled))
    return tuple(edits)


def _sample_times(data: bytes, table: Box, sample_count: int) -> npt.NDArray[np.int64] | None:
    """When each sample is shown, in the order of decoding; None for tables that contradict it."""
    if sample_count > MAX_SAMPLES:
        return None
    steps = _repeated(data, _find(data, table, b"stts"), sample_count)
    if len(steps) < sample_count:
        return None
    times = np.cumsum(steps) - steps
    shifts = _repeated(data, _find(data, table, b"ctts"), sample_count)
    times[: len(shifts)] += shifts
    return times


def _repeated(data: bytes, box: Box | None, limit: int) -> npt.NDArray[np.int64]:
    """A table of counts and values as one value for each sample, for a number of samples at most.

    Shifts may be negative, also in version 0 of their box, as FFmpeg reads it.
    """
    if box is None:
        return np.zeros(0, np.int64)
    declared_rows = _number(data, box.body + 4)
    stored_rows = (box.end - box.body - 8) // 8
    row_count = min(declared_rows, stored_rows)
    numbers = np.frombuffer(data, ">i4", 2 * row_count, box.body + 8)
    rows = numbers.reshape(-1, 2).astype(np.int64)
    counts = rows[:, 0].clip(0, limit)
    counts_before = np.cumsum(counts) - counts
    counts = np.minimum(counts, (limit - counts_before).clip(0))
    return np.repeat(rows[:, 1], counts)


def _cover_offsets(data: bytes, parent: Box) -> Iterator[int]:
    """Where boxes with cover images start, below a box."""
    for box in _children(data, parent):
        if box.kind == b"covr":
            yield box.start
        elif box.kind in {b"udta", b"ilst", b"trak"}:
            yield from _cover_offsets(data, box)
        elif box.kind == b"meta":
            has_version = data[box.body + 4 : box.body + 8] != b"hdlr"
            body = box.body
            if has_version:
                body += 4
            yield from _cover_offsets(data, Box(box.kind, box.start, body, box.end))
