"""Which track of a video file is read, where it has several.

OpenCV reads the first track of images and cannot be told to read a different one. So bytes of a
header are replaced on their way to it, so that FFmpeg takes the earlier tracks for something else.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from detcli.core import frozen
from detcli.data.geometry import Size
from detcli.source.containers import ASF_HEADER, MAX_HEADER
from detcli.source.matroska import (
    CLUSTER,
    DEFAULT_FLAG,
    EBML,
    PIXEL_HEIGHT,
    PIXEL_WIDTH,
    SEGMENT,
    SUBTITLES,
    TRACK_ENTRY,
    TRACK_TYPE,
    TRACKS,
    VIDEO,
    VIDEO_TYPE,
    Element,
    elements,
    elements_by_id,
    unsigned,
)
from detcli.source.mp4 import Movie, ReadRange, read_movie

ASF_STREAM = bytes.fromhex("9107dcb7b7a9cf118ee600c00c205365")
ASF_VIDEO = bytes.fromhex("c0ef19bc4d5bcf11a8fd00805f5c442b")
ASF_EXTENDED = bytes.fromhex("40a4d0d207e3d21197f000a0c95ea850")
ASF_PADDING = bytes.fromhex("74d40618dfca0945a4ba9aabcb96aae8")
ASF_COMMAND = bytes.fromhex("c0cfda59e659d011a3ac00a0c90348f6")
ASF_COVER = "WM/Picture".encode("utf-16-le")

ASF_OBJECT_HEADER = struct.Struct("<16sQ")  # the kind of an object and its size
ASF_HEADER_BYTES = 30  # bytes of the header before its first object
ASF_STREAM_TYPE = 24  # where an object that describes a stream has its type, in 16 bytes
ASF_FRAME_SIZE = struct.Struct("<78xII")  # width and height, at offset 78 of such an object

AVI_STREAM_TYPE = 8  # bytes from the name of a stream's header, "strh", to its type
AVI_FRAME_SIZE = struct.Struct("<12xii")  # width and height, after the name "strf"

UNKNOWN_SIZE = (0, 0)
"""The size of a cover image, which is never chosen for its size, see `VideoTrack.score`."""

DEFAULT_SCORE = 5_000_000
"""What FFmpeg adds for a track that is shown by default, to the pixels of its frames."""


@frozen
class Patch:
    """Bytes of a file that are replaced on their way to FFmpeg."""

    start: int
    data: bytes


@frozen
class VideoTrack:
    """A track of images, in the order in which FFmpeg finds them."""

    size: Size  # height and width
    hiding_patches: tuple[Patch, ...]  # with them FFmpeg no longer takes it for a track of images
    is_default: bool = False  # whether players show it if nobody asks for a different one
    is_cover: bool = False  # whether it is a single image beside the video, or thumbnails

    @property
    def score(self) -> int:
        """FFmpeg's own programs choose the track with the highest score."""
        if self.is_cover:
            return 1
        height, width = self.size
        pixels = height * width
        if self.is_default:
            return pixels + DEFAULT_SCORE
        return pixels


@frozen
class TrackChoice:
    """Which track of a file is read."""

    patches: tuple[Patch, ...]  # patches that hide the tracks before it
    video_tracks: int  # how many tracks are not cover images
    size: Size  # height and width of the frames


def choose_track(read_range: ReadRange) -> TrackChoice | None:
    """Choose the video track that FFmpeg's own programs would, which is usually the largest.

    OpenCV reads the first track. So the result has patches for all tracks before the chosen one,
    with which FFmpeg no longer takes them for tracks of images.

    Args:
        read_range: Reads bytes of the file, from an offset and of a size.

    Returns:
        The choice; None if the file is damaged, or has fewer than two tracks to choose from.
    """
    try:
        tracks = _video_tracks(read_range)
    except (struct.error, ValueError, IndexError):  # damage
        return None
    if len(tracks) < 2:
        return None
    best_track = max(tracks, key=lambda track: track.score)  # the first of equal ones
    tracks_before = tracks[: tracks.index(best_track)]
    patches: list[Patch] = []
    for track in tracks_before:
        patches += track.hiding_patches
    tracks_without_covers = [track for track in tracks if not track.is_cover]
    return TrackChoice(
        patches=tuple(patches), video_tracks=len(tracks_without_covers), size=best_track.size
    )


def _video_tracks(read_range: ReadRange) -> list[VideoTrack]:
    """List the video tracks and cover images of a file, in the order in which FFmpeg counts them.

    The first bytes of the file identify its container; one that is unknown here has no tracks. A
    damaged file may raise a struct.error, ValueError or IndexError.
    """
    head = read_range(0, 16)
    if head.startswith(EBML.to_bytes(4)):
        return list(_matroska_tracks(read_range(0, MAX_HEADER)))
    if head.startswith(b"RIFF"):
        return list(_avi_tracks(read_range(0, MAX_HEADER)))
    if head.startswith(ASF_HEADER):
        return list(_asf_tracks(read_range(0, MAX_HEADER)))
    movie = read_movie(read_range)
    if movie is None:
        return []
    return _movie_tracks(movie)


def _movie_tracks(movie: Movie) -> list[VideoTrack]:
    """List the video tracks and cover images of an MP4 or MOV, in the order of their boxes.

    A track with the thumbnails of another track's chapters counts as a cover image.

    Each track has patches, so that OpenCV can be made to read a later one. They change the kind of
    its box, and that of its handler, to "free". FFmpeg then no longer sees a track of images there.
    """
    thumbnail_track_numbers: set[int] = set()
    for track in movie.tracks:
        thumbnail_track_numbers.update(track.chapters)

    track_by_offset: dict[int, VideoTrack] = {}  # by the offset of its box, to sort them by it
    for track in movie.tracks:
        has_frames = track.sample_count > 0 or movie.is_fragmented
        if track.is_video and has_frames:
            handler_patch = Patch(track.handler_offset, b"free")
            track_by_offset[track.start] = VideoTrack(
                track.size,
                hiding_patches=(_box_patch(track.start), handler_patch),
                is_default=track.is_enabled,
                is_cover=track.number in thumbnail_track_numbers,
            )
    for cover_offset in movie.covers:
        track_by_offset[cover_offset] = VideoTrack(
            UNKNOWN_SIZE, hiding_patches=(_box_patch(cover_offset),), is_cover=True
        )
    return [track_by_offset[offset] for offset in sorted(track_by_offset)]


def _box_patch(start: int) -> Patch:
    """Return the patch that turns the box at an offset into "free", unused space.

    The kind of a box is after the four bytes of its size.
    """
    return Patch(start + 4, b"free")


def _matroska_tracks(head: bytes) -> Iterator[VideoTrack]:
    """Yield the video tracks of a Matroska file, from its first bytes.

    They are described in the element Tracks of the segment, which comes before the first cluster
    of frames. There are none if the element is not complete in `head`.
    """
    for segment in elements(head, 0, len(head)):
        if segment.element_id != SEGMENT:
            continue
        for child in elements(head, segment.start, len(head)):
            if child.element_id == CLUSTER:
                return
            if child.element_id == TRACKS and child.end is not None and child.end <= len(head):
                yield from _matroska_entries(head, child.start, child.end)
                return


def _matroska_entries(head: bytes, start: int, end: int) -> Iterator[VideoTrack]:
    """Yield the video tracks among the entries of Matroska's element Tracks.

    Args:
        head: The first bytes of the file.
        start: Where the entries begin in them.
        end: Where they end.
    """
    for entry in elements(head, start, end):
        if entry.end is None or entry.end > end:  # it is cut
            return
        if entry.element_id != TRACK_ENTRY:
            continue
        children = elements_by_id(head, entry.start, entry.end)
        track_type = children.get(TRACK_TYPE)
        if track_type is None or track_type.end is None:
            continue
        is_video = unsigned(head, track_type, default=0) == VIDEO_TYPE
        if not is_video:
            continue
        # To hide the track, the last byte of its type becomes that of subtitles. So OpenCV can be
        # made to read a later track.
        type_patch = Patch(track_type.end - 1, SUBTITLES)
        default_flag = unsigned(head, children.get(DEFAULT_FLAG), default=1)
        yield VideoTrack(
            _matroska_size(head, children.get(VIDEO)),
            hiding_patches=(type_patch,),
            is_default=default_flag != 0,
        )


def _matroska_size(head: bytes, video: Element | None) -> Size:
    """Return the height and width of a Matroska track's frames; zeros if they are not given.

    `video` is the track's element Video.
    """
    if video is None or video.end is None:
        return 0, 0
    children = elements_by_id(head, video.start, video.end)
    height = unsigned(head, children.get(PIXEL_HEIGHT), default=0)
    width = unsigned(head, children.get(PIXEL_WIDTH), default=0)
    return height, width


def _avi_tracks(head: bytes) -> Iterator[VideoTrack]:
    """Yield the video tracks in the header of an AVI file.

    Each stream has a header, "strh", which says its type ("vids" for video), and then a format,
    "strf", with the width and height. A negative height says that rows are stored from the top. The
    patch of a track hides it from FFmpeg: it sets the type of the stream to a different one.

    Args:
        head: The first bytes of the file.
    """
    start_of_frames = head.find(b"movi")
    if start_of_frames < 0:
        return
    descriptions = head[:start_of_frames]
    for stream_header in re.finditer(b"strh", descriptions):
        type_start = stream_header.start() + AVI_STREAM_TYPE
        is_video = descriptions.startswith(b"vids", type_start)
        format_start = descriptions.find(b"strf", stream_header.start())
        if is_video and format_start >= 0:
            width, height = AVI_FRAME_SIZE.unpack_from(head, format_start)
            type_patch = Patch(type_start, b"dats")
            yield VideoTrack((abs(height), width), hiding_patches=(type_patch,))


def _asf_tracks(head: bytes) -> Iterator[VideoTrack]:
    """Yield the video tracks and cover images in the header of an ASF or WMV file.

    Each has a patch that hides it from FFmpeg. For a video, this sets the type of the stream to a
    different one; for a cover image, it turns the object that holds the image into padding.

    Args:
        head: The first bytes of the file.
    """
    for start, data in _asf_objects(head):
        kind = data[: len(ASF_STREAM)]
        is_cover = kind == ASF_EXTENDED and ASF_COVER in data
        is_video = kind == ASF_STREAM and data.startswith(ASF_VIDEO, ASF_STREAM_TYPE)
        if is_cover:
            kind_patch = Patch(start, ASF_PADDING)
            yield VideoTrack(UNKNOWN_SIZE, hiding_patches=(kind_patch,), is_cover=True)
        elif is_video and len(data) >= ASF_FRAME_SIZE.size:
            width, height = ASF_FRAME_SIZE.unpack_from(data)
            type_patch = Patch(start + ASF_STREAM_TYPE, ASF_COMMAND)
            yield VideoTrack((height, width), hiding_patches=(type_patch,))


class _AsfObject(NamedTuple):
    """A part of the header of an ASF file, such as the description of a stream."""

    start: int  # its offset in the file
    data: bytes  # 16 bytes that say its kind, 8 of its size, and the content


def _asf_objects(head: bytes) -> Iterator[_AsfObject]:
    """Yield the objects in the header of an ASF file; the last may be cut off, as `head` is.

    The header is an object itself, so its own kind and size come first.
    """
    header_end = int.from_bytes(head[16:24], "little")
    objects_end = min(header_end, len(head))
    start = ASF_HEADER_BYTES
    while start + ASF_OBJECT_HEADER.size <= objects_end:
        _, size = ASF_OBJECT_HEADER.unpack_from(head, start)
        if size < ASF_OBJECT_HEADER.size:  # damaged
            return
        yield _AsfObject(start, head[start : start + size])
        start += size


def patched(read_range: ReadRange, patches: tuple[Patch, ...]) -> ReadRange:
    """Return a function that reads a file like `read_range`, with some of its bytes replaced."""

    def read(start: int, size: int) -> bytes:
        data = bytearray(read_range(start, size))
        for patch in patches:
            for index, new_byte in enumerate(patch.data):
                position = patch.start + index - start  # in what was read; it may be elsewhere
                if 0 <= position < len(data):
                    data[position] = new_byte
        return bytes(data)

    return read
