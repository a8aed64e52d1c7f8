"""MP4 and MOV: what their boxes say about tracks, edits and frames (ISO/IEC 14496-12)."""

import struct
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.data.geometry import Size

# Reads from an offset of a file, at most the given number of bytes; none if it cannot be read.
ReadRange = Callable[[int, int], bytes]

MAX_MOOV = 16 << 20  # bytes: tracks of sound, with their tables, may precede that of the video
MAX_BOXES = 1000  # boxes that are looked at in a file; one in fragments has two for each
MAX_SAMPLES = 1 << 24  # samples of a track; more is damage
HEADER_BYTES = 8  # of a box: its size and its kind
LONG_HEADER_BYTES = 16  # the same with a size of 8 bytes after them
SIZE_FOLLOWS = 1  # in place of a box's size, which then follows its kind
UP_TO_END = 0  # in place of the size of a box that ends where its parent does
VERSION_AND_FLAGS_BYTES = 4  # the content of many boxes begins with these
TABLE_ROW_BYTES = 8  # of a table of samples: a count and a value
MAX_FILE_OFFSET = 1 << 63  # beyond any offset at which a file can be read

FIRST_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot", b"styp"})
VIDEO_HANDLERS = frozenset({b"vide", b"pict"})
ENABLED = 1  # flag of a track that players show


@frozen
class Box:
    """A box; its offsets are relative to the beginning of the file, or of the parsed bytes."""

    kind: bytes
    start: int  # of its header
    body: int  # after its header
    end: int


@frozen
class Edit:
    """A part of a track that is shown: its start and duration, both in the track's units."""

    start: int  # -1 for a pause before it
    duration: int


@frozen
class Track:
    """A track of a movie."""

    number: int  # track id, by which other tracks refer to it
    start: int  # of its box in the file
    handler: bytes  # vide, soun or another
    handler_offset: int  # of these four bytes in the file
    size: Size  # height and width of its frames as stored
    is_enabled: bool
    chapters: tuple[int, ...]  # ids of tracks with its chapters' titles and thumbnails
    sample_count: int
    times: npt.NDArray[np.int64] | None  # when each sample is shown; None if they are in fragments
    edits: tuple[Edit, ...]  # none if all is shown

    @property
    def is_video(self) -> bool:
        """Whether FFmpeg takes it for a track of images."""
        return self.handler in VIDEO_HANDLERS

    def shown_frames(self) -> int | None:
        """Return how many frames of the track players show, according to its edit list.

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
    """What a file says about all its tracks."""

    tracks: tuple[Track, ...]
    covers: tuple[int, ...]  # where boxes with cover images start in the file
    is_fragmented: bool


def read_movie(read_range: ReadRange) -> Movie | None:
    """Read what an MP4 or MOV file says about its tracks, from its box "moov".

    It is None if the file is in a different format, has no such box, or is damaged.

    Args:
        read_range: Reads bytes of the file, from an offset and of a size.
    """
    moov = _first_of_kind(top_boxes(read_range), b"moov")
    if moov is None or moov.end - moov.start > MAX_MOOV:
        return None
    data = read_range(moov.start, moov.end - moov.start)
    try:
        return _parse_movie(data, moov)
    except (struct.error, ValueError, IndexError, OverflowError):
        return None


def top_boxes(read_range: ReadRange) -> Iterator[Box]:
    """Yield the outermost boxes of an MP4 or MOV file; the last may end beyond the file.

    A box has 4 bytes of size and 4 of its kind. A size of 1 says that the real one is in the 8
    bytes after these. A file of a different format has no boxes.

    Args:
        read_range: Reads bytes of the file, from an offset and of a size.
    """
    start = 0
    for _ in range(MAX_BOXES):
        header = read_range(start, LONG_HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        size = int.from_bytes(header[:4])
        kind = header[4:8]
        is_other_format = start == 0 and kind not in FIRST_BOXES
        if is_other_format:
            return
        body = start + HEADER_BYTES
        if size == SIZE_FOLLOWS:
            size = int.from_bytes(header[8:16])
            body = start + LONG_HEADER_BYTES
        end = start + size
        is_damaged = end < body or end >= MAX_FILE_OFFSET or not kind.isascii()
        if is_damaged:
            return
        yield Box(kind, start, body, end)
        start = end


def fragment_samples(read_range: ReadRange, track: Track) -> int | None:
    """Count the frames of a track in an MP4 file that is written in fragments.

    Each fragment is a box "moof" that says how many frames it has. The file ends with an index of
    them, "mfra". The count is None if it is missing, as the file may then have been cut between two
    fragments.

    Args:
        read_range: Reads bytes of the file, from an offset and of a size.
        track: The track whose frames are counted.
    """
    count = 0
    last_kind = b""
    for box in top_boxes(read_range):
        last_kind = box.kind
        if box.kind == b"moof" and box.end - box.start <= MAX_MOOV:
            data = read_range(box.start, box.end - box.start)
            count += _count_samples_in_fragment(data, track.number)
    if last_kind != b"mfra":
        return None
    return count


def _count_samples_in_fragment(data: bytes, track_number: int) -> int:
    """Count the frames of a track in a fragment of an MP4 file.

    A fragment has a box "traf" for each track. In this, "tfhd" holds the id of the track, and each
    "trun" says how many frames it has.

    Args:
        data: The bytes of the fragment's box "moof".
        track_number: The id by which the file refers to the track.
    """
    count = 0
    moof = Box(b"moof", start=0, body=HEADER_BYTES, end=len(data))
    for track in _child_boxes(data, moof):
        if track.kind != b"traf":
            continue
        header = _find_box(data, track, b"tfhd")
        if header is None or _number_after_flags(data, header) != track_number:
            continue
        for run in _child_boxes(data, track):
            if run.kind == b"trun":
                count += _number_after_flags(data, run)
    return count


def _number_after_flags(data: bytes, box: Box) -> int:
    """Read the four-byte number with which a box begins, after its version and flags."""
    return _uint32(data, box.body + VERSION_AND_FLAGS_BYTES)


def _child_boxes(data: bytes, parent: Box) -> Iterator[Box]:
    """Yield the boxes directly in a box of an MP4 file.

    A box has 4 bytes of size, 4 of its kind, and the content. A size of 1 says that the real one is
    in the 8 bytes after these, and 0 that the box ends with the one that it is in.

    Args:
        data: The bytes that hold the boxes.
        parent: The box, by its offsets in the data.
    """
    start = parent.body
    while start + HEADER_BYTES <= parent.end:
        size = _uint32(data, start)
        kind = data[start + 4 : start + 8]
        body = start + HEADER_BYTES
        if size == SIZE_FOLLOWS:
            size = int.from_bytes(data[start + 8 : start + 16])
            body = start + LONG_HEADER_BYTES
        if size == UP_TO_END:
            end = parent.end
        else:
            end = start + size
        if end < body:  # damaged
            return
        yield Box(kind, start, body, min(end, parent.end))
        start = end


def _find_box(data: bytes, parent: Box, *path: bytes) -> Box | None:
    """Find the first box at a path of kinds below a box, as in "mdia", "minf", "stbl".

    Only the first box of each kind is searched. It is None if one is missing.
    """
    box: Box | None = parent
    for kind in path:
        if box is None:
            return None
        box = _first_of_kind(_child_boxes(data, box), kind)
    return box


def _first_of_kind(boxes: Iterator[Box], kind: bytes) -> Box | None:
    """Return the first box of a kind; None if there is none."""
    for box in boxes:
        if box.kind == kind:
            return box
    return None


def _uint32(data: bytes, offset: int) -> int:
    """Read an unsigned number of four bytes, the most significant first."""
    value: int = struct.unpack_from(">I", data, offset)[0]
    return value


def _parse_movie(data: bytes, moov: Box) -> Movie:
    """Parse the box "moov" of an MP4 or MOV file, which describes all of its tracks.

    Offsets in the movie are relative to the beginning of the file, but those of boxes here to the
    beginning of `data`.

    Args:
        data: The bytes of the box, with its header.
        moov: Where the box is in the file.

    Raises:
        struct.error, ValueError, IndexError, OverflowError: The box is damaged.
    """
    header_bytes = moov.body - moov.start
    moov_in_data = Box(b"moov", start=0, body=header_bytes, end=len(data))
    movie_header = _find_box(data, moov_in_data, b"mvhd")
    movie_scale = 0  # units of time in a second
    if movie_header is not None:
        movie_scale = _time_scale(data, movie_header)
    is_fragmented = _find_box(data, moov_in_data, b"mvex") is not None

    tracks: list[Track] = []
    for box in _child_boxes(data, moov_in_data):
        if box.kind == b"trak":
            track = _parse_track(
                data,
                box,
                data_offset=moov.start,
                movie_scale=movie_scale,
                is_fragmented=is_fragmented,
            )
            tracks.append(track)
    covers = tuple(moov.start + offset for offset in _cover_offsets(data, moov_in_data))
    return Movie(tuple(tracks), covers, is_fragmented)


def _time_scale(data: bytes, header: Box) -> int:
    """Read how many units of time a second has, from the header of a movie or a track's media."""
    return _uint32(data, header.body + _offset_after_times(data, header))


def _offset_after_times(data: bytes, header: Box) -> int:
    """Return the offset, in a header's content, of the number after two times.

    The content begins with a version and flags, in 4 bytes together. Then come the times of
    creation and modification, which have 8 bytes each in version 1, and 4 otherwise.
    """
    version = data[header.body]
    if version == 1:
        return 20
    return 12


def _parse_track(
    data: bytes, box: Box, *, data_offset: int, movie_scale: int, is_fragmented: bool
) -> Track:
    """Parse the box "trak" of an MP4 or MOV file, which describes a track.

    Args:
        data: The bytes of the box "moov", in which that of the track is.
        box: The box of the track; its offsets are relative to the beginning of `data`.
        data_offset: Where `data` begins in the file.
        movie_scale: How many units of time the movie has in a second; edits are given in these.
        is_fragmented: Whether the frames are described in fragments, outside of this box.

    Raises:
        ValueError: A box that every track has is missing.
    """
    header = _find_box(data, box, b"tkhd")
    media_header = _find_box(data, box, b"mdia", b"mdhd")
    handler = _find_box(data, box, b"mdia", b"hdlr")
    table = _find_box(data, box, b"mdia", b"minf", b"stbl")
    if header is None or media_header is None or handler is None or table is None:
        raise ValueError("a track without its boxes")

    sizes = _find_box(data, table, b"stsz")
    sample_count = 0
    if sizes is not None:
        sample_count = _uint32(data, sizes.body + 8)  # after version, flags and a common size
    number = _uint32(data, header.body + _offset_after_times(data, header))
    media_scale = _time_scale(data, media_header)
    times = None
    if not is_fragmented:
        times = _compute_sample_times(data, table, sample_count)

    handler_kind = handler.body + 8  # after version, flags and four unused bytes
    return Track(
        number=number,
        start=data_offset + box.start,
        handler=data[handler_kind : handler_kind + 4],
        handler_offset=data_offset + handler_kind,
        size=_frame_size(data, table),
        is_enabled=bool(data[header.body + 3] & ENABLED),
        chapters=_chapter_tracks(data, box),
        sample_count=sample_count,
        times=times,
        edits=_read_edits(data, box, movie_scale, media_scale),
    )


def _frame_size(data: bytes, table: Box) -> Size:
    """Read the height and width of a track's frames; zeros if they are not described.

    They are in the box "stsd" of the track's tables: after 4 bytes of a version and 4 of a count,
    the first description begins, in which the width is 32 bytes further.
    """
    description = _find_box(data, table, b"stsd")
    if description is None or description.end - description.body < 44:
        return 0, 0
    width, height = struct.unpack_from(">HH", data, description.body + 40)
    return height, width


def _chapter_tracks(data: bytes, track: Box) -> tuple[int, ...]:
    """Read the ids of the tracks that hold the chapters of this one; none if it has no chapters."""
    references = _find_box(data, track, b"tref", b"chap")
    if references is None:
        return ()
    count = (references.end - references.body) // 4
    return struct.unpack_from(f">{count}I", data, references.body)


def _read_edits(data: bytes, track: Box, movie_scale: int, media_scale: int) -> tuple[Edit, ...]:
    """Read the edit list of a track, which says what parts of it are shown.

    The box "elst" has a version and flags in 4 bytes, a count in 4, and the entries: a duration, a
    start, and a speed, which is ignored. In version 1 the first two have 8 bytes instead of 4.

    Args:
        data: The bytes of the box "moov".
        track: The box of the track.
        movie_scale: Units of time in a second of the movie, in which durations are stored.
        media_scale: Units in a second of the track, in which starts are stored.

    Returns:
        The edits; none if all of the track is shown. Their durations are turned into units of the
        track, rounded as FFmpeg does.
    """
    listing = _find_box(data, track, b"edts", b"elst")
    if listing is None or not movie_scale:
        return ()
    entry_format = ">Iii"
    if data[listing.body] == 1:  # the version
        entry_format = ">Qqi"
    entry_bytes = struct.calcsize(entry_format)

    edits: list[Edit] = []
    for index in range(_uint32(data, listing.body + 4)):
        offset = listing.body + 8 + index * entry_bytes
        if offset + entry_bytes > listing.end:
            break
        duration, start, _ = struct.unpack_from(entry_format, data, offset)
        half_unit = movie_scale // 2  # so that the division rounds instead of cutting off
        track_duration = (duration * media_scale + half_unit) // movie_scale
        edits.append(Edit(start, track_duration))
    return tuple(edits)


def _compute_sample_times(
    data: bytes, table: Box, sample_count: int
) -> npt.NDArray[np.int64] | None:
    """Compute when each sample (frame) of a track is shown, in the order in which they are decoded.

    The table "stts" holds the time from each sample to the next. The table "ctts", which may be
    missing, says by how much each sample is shown later than it is decoded.

    Args:
        data: The bytes of the box "moov".
        table: The box "stbl" with the tables of the track.
        sample_count: How many samples the track has.

    Returns:
        `(N,)` times in units of the track; None if the samples are too many to be real, or have
        no times.
    """
    if sample_count > MAX_SAMPLES:
        return None
    durations = _expand_table(data, _find_box(data, table, b"stts"), sample_count)
    if len(durations) < sample_count:
        return None
    times = np.cumsum(durations) - durations  # the first sample is decoded at 0
    shifts = _expand_table(data, _find_box(data, table, b"ctts"), sample_count)
    times[: len(shifts)] += shifts
    return times


def _expand_table(data: bytes, box: Box | None, limit: int) -> npt.NDArray[np.int64]:
    """Expand a table of counts and values to an array with the value of each sample.

    The rows (2, 40) and (1, 50) become 40, 40, 50. Values may be negative in any version of the
    box, as FFmpeg reads them.

    Args:
        data: The bytes of the box "moov".
        box: The box with the table; None if the track has none.
        limit: How many values are returned at most, however large the counts are.
    """
    if box is None:
        return np.zeros(0, np.int64)
    # After version and flags are the number of rows in 4 bytes, and the rows.
    declared_rows = _number_after_flags(data, box)
    rows_start = box.body + VERSION_AND_FLAGS_BYTES + 4
    stored_rows = (box.end - rows_start) // TABLE_ROW_BYTES  # fewer if the file is damaged
    row_count = min(declared_rows, stored_rows)
    numbers = np.frombuffer(data, ">i4", 2 * row_count, rows_start)
    rows = numbers.reshape(-1, 2).astype(np.int64)  # (R, 2)
    counts = rows[:, 0].clip(0, limit)
    values = rows[:, 1]

    # The rows are cut to `limit` samples in all: with a limit of 4, counts of 3 and 2 become 3 and
    # 1, as one sample is left for the second row.
    samples_before = np.cumsum(counts) - counts  # (R,), of all rows above each row
    samples_left = (limit - samples_before).clip(0)
    return np.repeat(values, np.minimum(counts, samples_left))


def _cover_offsets(data: bytes, parent: Box) -> Iterator[int]:
    """Yield the offsets in `data` of the boxes "covr", with cover images, anywhere below a box.

    Only the boxes that may contain them are searched: those with users' data and metadata, and
    tracks. In MOV, the content of "meta" begins with a box "hdlr". In MP4, 4 bytes with a version
    and flags come before its boxes.
    """
    for box in _child_boxes(data, parent):
        if box.kind == b"covr":
            yield box.start
        elif box.kind in {b"udta", b"ilst", b"trak"}:
            yield from _cover_offsets(data, box)
        elif box.kind == b"meta":
            # The kind of a box is after its size in 4 bytes.
            begins_with_box = data[box.body + 4 : box.body + 8] == b"hdlr"
            children_start = box.body
            if not begins_with_box:
                children_start += VERSION_AND_FLAGS_BYTES
            meta = Box(kind=box.kind, start=box.start, body=children_start, end=box.end)
            yield from _cover_offsets(data, meta)
