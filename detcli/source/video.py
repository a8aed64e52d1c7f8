"""Video files: numbered and timed frames, as far as a file can be read; OpenCV's captures."""

import contextlib
import logging
import math
import os
import re
import struct
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from detcli.config.config import EPSILON_S, Inputs
from detcli.core import frozen
from detcli.core.errors import DecodeError, InputError, PlaceError, SourceError
from detcli.core.opencv import cv2
from detcli.data.geometry import Image, Picture, Size
from detcli.data.record import Origin, Video
from detcli.source.containers import (
    PartFile,
    TrackChoice,
    choose_track,
    declared_length,
    file_length,
    patched,
)
from detcli.source.conversion import filled_memory, require_converted
from detcli.source.fetch import http_part, require_unchanged, stamp_of, unreadable
from detcli.source.limits import check_size
from detcli.source.loading import Item, SourceProgress, failed
from detcli.source.mp4 import Part, Track, fragment_samples, read_movie
from detcli.source.names import is_address
from detcli.storage.files import LFS_HINT, LFS_REASON, is_lfs_pointer

OPEN_TIMEOUT_MS = 10_000
READ_TIMEOUT_MS = 5_000

MAX_FRAMES_PER_SECOND = 1000  # a higher rate in a file is a time base, or damage

MAX_FRAMES = 10**9

MAX_ASPECT = 100  # of a pixel; more is damage

# For an earlier start, the frames before it are read and discarded, which is always exact.
SEEK_FROM_S = 5.0
DAMAGE_TIMEOUT_S = 10.0  # damaged frames are skipped for this long before giving up

PROGRAM_STREAM = b"\0\0\1\xba"  # with which MPEG program streams begin
REORDERED = 32  # more frames than any codec stores before one that is shown earlier

# Containers that store the number of frames; for others it is estimated from the duration, which
# some do not store either, so that it is measured, as far as they go.
_COUNTED = (".m4v", ".mov", ".mp4")
_MEASURED = (".m2ts", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob")
_HINT = "fetch or copy the file again; ffmpeg -i FILE -c copy NEW.mkv may repair it"
_UNKNOWN_HINT = "OpenCV may lack its codec, as it does AV1: ffmpeg -i FILE NEW.mp4 makes it H.264"

# Opens a video; again to seek, or to look for missing frames. Raises InputError.
Reopen = Callable[[], cv2.VideoCapture]

log = logging.getLogger(__name__)

CACHED_PARTS = 32  # of a file that are remembered: headers, of which several functions ask
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


def open_video(name: str) -> cv2.VideoCapture:
    """Open a video file or an address, or raise an InputError."""
    return (open_address if is_address(name) else open_file)(name)


def read_part(name: str, start: int, size: int) -> bytes:
    """Read a part of a video, see `Part`; nothing of a pipe, as that would be lost."""
    with contextlib.suppress(OSError, InputError):
        if is_address(name):
            return http_part(name, start, size)
        if Path(name).is_file():
            with Path(name).open("rb") as file:
                file.seek(start)
                return file.read(size)
    return b""


def open_file(path: str) -> cv2.VideoCapture:
    """Open a video file, or raise an InputError."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    require_unchanged(path, stamp_of(status))
    # Absolute, so that FFmpeg does not read the start of a name as a protocol.
    capture = _open(str(Path(path).absolute()), [])
    if capture is not None:
        return capture
    if not os.access(path, os.R_OK):
        raise PlaceError("cannot be read: Permission denied", "check its permissions")
    if is_lfs_pointer(read_part(path, 0, 64)):
        raise DecodeError(LFS_REASON, LFS_HINT)
    raise DecodeError(
        "empty" if status.st_size == 0 else "not a video that FFmpeg can read, or a damaged one",
        "fetch or copy the file again",
    )


def open_address(url: str, threads: int = 0) -> cv2.VideoCapture:
    """Open a network stream within a few seconds, or raise a SourceError.

    So many threads decode it; 0 for OpenCV's default.
    """
    parameters = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, OPEN_TIMEOUT_MS]
    parameters += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, READ_TIMEOUT_MS]
    if threads:
        parameters += [cv2.CAP_PROP_N_THREADS, threads]
    if capture := _open(url, parameters):
        return capture
    raise SourceError(
        "cannot be opened", "check the address, user name and password, and that the host answers"
    )


def _open(name: str, parameters: list[int]) -> cv2.VideoCapture | None:
    # FFmpeg alone: other backends read a name with digits as a sequence of pictures. And as bytes:
    # OpenCV 5.0 aborts the process when a string has surrogates, as odd file names do. Frames come
    # upright: OpenCV turns them as the file says (CAP_PROP_ORIENTATION_AUTO, which is its default).
    capture = cv2.VideoCapture(os.fsencode(name), cv2.CAP_FFMPEG, parameters)  # type: ignore[call-overload]
    return capture if capture.isOpened() else None


class PartCapture:
    """A `cv2.VideoCapture` of a video that is read by a function.

    It keeps the reader: OpenCV 5.0 lets go of it without Python's lock, which ends the process if
    nobody else holds it. A class that inherits from OpenCV's would damage memory.
    """

    def __init__(self, reader: PartFile) -> None:
        self._reader = reader
        self._capture = cv2.VideoCapture(reader, cv2.CAP_FFMPEG, [])  # type: ignore[call-overload]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever OpenCV's has
        return getattr(self._capture, name)


def open_part(part: Part) -> cv2.VideoCapture:
    """Open a video that is read by a function, or raise a DecodeError."""
    capture = PartCapture(PartFile(part, file_length(part)))
    if capture.isOpened():
        return cast("cv2.VideoCapture", capture)
    raise DecodeError("its largest video track cannot be read", _HINT)


def retrieve(capture: cv2.VideoCapture, flip: int | None = None) -> Image | None:
    """The frame grabbed last, `(H, W, 3)` uint8 BGR; None if it is damaged.

    It is flipped as `cv2.flip` numbers it.
    """
    try:
        retrieved, found = capture.retrieve()
        if retrieved and flip is not None:
            found = cv2.flip(found, flip)
    except cv2.error:
        return None
    frame: Any = found  # may be None, which OpenCV's types do not say
    return frame if retrieved and frame is not None and len(frame.shape) == 3 else None


def frames_per_second(capture: cv2.VideoCapture) -> float:
    """The declared frame rate; 0 if it is implausible."""
    rate = capture.get(cv2.CAP_PROP_FPS)
    return rate if 0 < rate <= MAX_FRAMES_PER_SECOND else 0.0


def frame_count(capture: cv2.VideoCapture) -> int | None:
    """The declared or estimated number of frames; None if it is implausible."""
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    return int(count) if 0 < count < MAX_FRAMES else None


def frame_size(capture: cv2.VideoCapture) -> Size:
    """The declared height and width of frames."""
    height, width = cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH
    return int(capture.get(height)), int(capture.get(width))


def pixel_aspect(capture: cv2.VideoCapture) -> tuple[int, int]:
    """The ratio of width and height of a pixel in upright frames; 1 and 1 if nothing is said."""
    width = round(capture.get(cv2.CAP_PROP_SAR_NUM))
    height = round(capture.get(cv2.CAP_PROP_SAR_DEN))
    if not (0 < width <= MAX_ASPECT * height and 0 < height <= MAX_ASPECT * width):
        return 1, 1
    if capture.get(cv2.CAP_PROP_ORIENTATION_META) % 180 == 90:  # degrees
        return height, width
    return width, height


def position_s(capture: cv2.VideoCapture) -> float:
    """Time of the frame grabbed last; NaN if unknown."""
    position = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
    return position if 0 <= position < math.inf else math.nan


@frozen
class VideoSource:
    """A video file, here or at an address."""

    name: str  # in records, without credentials
    open: Reopen
    address: str | None = None  # of its sound, see `Video`
    part: Part = lambda *_: b""  # reads the file itself
    stamp: str | None = None  # size and time of the file, see `Origin`


def read_video(video: VideoSource, inputs: Inputs, progress: SourceProgress) -> Generator[Item]:
    """Yield the frames of a video, and an error if some of them cannot be read.

    `progress` learns how many frames there are; before that, the video counts as one input.
    """
    name = video.name
    expected: int | None = 1
    given = 0
    problem: InputError | None = None
    frames: _Frames | None = None
    try:
        video = _with_largest_track(video)
        frames = _Frames(video, progress)
        check_size(frame_size(frames.capture), inputs.max_pixels)
        turned = frames.capture.get(cv2.CAP_PROP_ORIENTATION_META)
        if 0 < turned < 360 and turned % 90:  # others are of a damaged matrix, which FFmpeg ignores
            log.warning("%s: should be turned by %.0f degrees, but is read as stored", name, turned)
        progress.steps += 1
        if inputs.start >= SEEK_FROM_S and not frames.seek(inputs.start):
            frames.capture.release()
            frames = _Frames(video, progress)
        expected = _expected(frames, inputs)
        progress.expect(None if expected is None else expected - 1)
        for item in _select(video, frames, inputs):
            given += 1
            yield item
        if not progress.stop.is_set():
            problem = _find_problem(name, frames, given)
    except InputError as error:
        problem = error
    finally:
        if frames is not None:
            frames.capture.release()
    if problem is not None:
        given += 1
        yield failed(name, problem)
    progress.expect(None if expected is None else given - expected)


def _with_largest_track(video: VideoSource) -> VideoSource:
    """The same video, of whose tracks the one is read that FFmpeg's programs take."""
    read_once = lru_cache(CACHED_PARTS)(video.part)  # several functions look at the same headers
    choice = choose_track(read_once)
    if choice is None:
        return replace(video, part=read_once)
    _report_choice(video.name, choice)
    if not choice.patches:
        return replace(video, part=read_once)
    video.open().release()  # which says what is wrong with the file itself, if anything
    opening = partial(open_part, patched(video.part, choice.patches))
    return replace(video, open=opening, part=patched(read_once, choice.patches))


def _report_choice(name: str, choice: TrackChoice) -> None:
    height, width = choice.size
    if choice.video_tracks > 1:
        text = "%s: has %d video tracks; the one of %dx%d pixels is read, as by FFmpeg"
        log.warning(text, name, choice.video_tracks, width, height)
    else:
        log.info("%s: its cover image or thumbnails are left out", name)


def _expected(frames: "_Frames", inputs: Inputs) -> int | None:
    """The number of frames that are used; None if it is unknown."""
    if frames.declared is None or not (frames.rate or inputs.every is None):
        return None
    first, end = 0, frames.declared
    if frames.rate:
        first = math.ceil(min(end, inputs.start * frames.rate - EPSILON_S))
        end = math.ceil(min(end, inputs.end_s * frames.rate - EPSILON_S))
    if first >= end:
        return 0
    rate = frames.rate or 1
    steps = inputs.step(end - 1 - first, (end - 1) / rate) - inputs.step(0, first / rate) + 1
    return min(steps, end - first)


def _select(video: VideoSource, frames: "_Frames", inputs: Inputs) -> Iterator[Item]:
    rate = min(frames.rate / inputs.vid_stride, 1 / inputs.every if inputs.every else math.inf)
    video_info = Video(rate, address=video.address, pixel_aspect=pixel_aspect(frames.capture))
    first, last = None, -1
    while frames.advance():
        if frames.time_s < inputs.start - EPSILON_S:
            continue
        if frames.time_s >= inputs.end_s - EPSILON_S:
            frames.at_end = False
            return
        first = frames.number if first is None else first
        step = inputs.step(frames.number - first, frames.time_s)
        if step <= last:
            continue
        image = frames.retrieve()
        if image is not None:
            last = step
            origin = Origin(
                video.name,
                frame=frames.number,
                time_s=frames.time_s,
                video=video_info,
                file_stamp=video.stamp,
            )
            yield Item(origin, partial(Picture.whole, image))


def _flip_of(capture: cv2.VideoCapture, part: Part) -> int | None:
    """How frames are to be flipped, as `cv2.flip` says it: OpenCV turns, but never mirrors them."""
    turned = capture.get(cv2.CAP_PROP_ORIENTATION_META)
    if turned % 90 or not is_mirrored(part):
        return None
    return 1 if turned % 180 else 0


def _movie_track(part: Part) -> Track | None:
    """What an MP4 or MOV says of its first track of images, which is read."""
    movie = read_movie(part)
    if movie is None:
        return None
    return next((track for track in movie.tracks if track.is_video), None)


class _Frames:
    """The frames of a video, one after the other."""

    def __init__(self, video: VideoSource, progress: SourceProgress) -> None:
        self.capture = video.open()
        self.video, self._progress = video, progress
        self._flip = _flip_of(self.capture, video.part)
        self._is_conversion_checked = False
        self.rate = frames_per_second(self.capture)
        self.track = _movie_track(video.part)
        self.declared = frame_count(self.capture)
        self.hides_some = False  # whether the file has frames that are not to be shown
        shown = None if self.track is None else self.track.shown_frames()
        if self.track is not None and shown is not None:
            self.declared = shown
            self.hides_some = shown != self.track.sample_count
        self.number = -1  # of the frame grabbed last; damaged frames count
        self.time_s = -1 / self.rate if self.rate else -EPSILON_S  # its time; never decreases
        self._held: tuple[Image | None] | None = None  # the current frame, if the next was grabbed
        self._has_grabbed_next = False
        self._is_program_stream = video.part(0, 4) == PROGRAM_STREAM
        self._even_s = self.time_s  # of the last frame of a program stream, were it not late
        self._doubtful_jump = 0.0  # seconds by which a frame of it seemed to come later
        self._accepted_jump = 0.0  # seconds by which one did, for all that is known
        self.damaged = 0  # frames that could not be decoded
        self.at_end = True  # whether no more frames could be grabbed

    def advance(self) -> bool:
        """Grab the next frame; False when there are no more.

        OpenCV fails on a damaged frame and continues with the next; at the end it always fails.
        """
        remaining = 0 if self.declared is None else self.declared - self.number
        give_up = time.monotonic() + DAMAGE_TIMEOUT_S
        for missed in range(min(max(remaining, 100), 1000)):
            if self._progress.stop.is_set() or (missed and time.monotonic() > give_up):
                return False
            if self._grab_next():
                self.damaged += missed
                self.number += missed + 1
                self.time_s = self._time_of_frame(skipped=missed)
                return True
        return False

    def _time_of_frame(self, skipped: int) -> float:
        """The time of the frame grabbed last, behind that of the one before."""
        position = position_s(self.capture)
        step = (skipped + 1) / self.rate if self.rate else 0.0
        if self._is_program_stream and step:
            self._even_s = self._time_in_program_stream(position, self._even_s + step, step)
            return max(self._even_s, self.time_s + step / 8)
        return position if position > self.time_s else self.time_s + step

    def _time_in_program_stream(self, position: float, expected: float, step: float) -> float:
        """The time of a frame that is expected at a time, by what FFmpeg says of it.

        Only some frames have times of their own there. FFmpeg gives others the time of a frame
        near by, after which all would be late. So frames come at an even rate unless the next
        time agrees with another one, and go back to it when a later time does.
        """
        if not position > 0:  # unknown
            return expected
        jump = position - expected
        if abs(jump) <= step / 2:
            return position
        if jump < 0:
            if abs(jump + self._accepted_jump) > step / 2:
                return expected
            self._accepted_jump = 0.0
            return position
        if jump <= REORDERED * step and abs(jump - self._doubtful_jump) > step / 2:
            self._doubtful_jump = jump
            if not abs(self._look_ahead() - position - step) <= step / 2:
                return expected
        self._accepted_jump, self._doubtful_jump = jump, 0.0
        return position

    def _look_ahead(self) -> float:
        """Grab the next frame already, and hold the current one; the time of the next, or NaN."""
        self._held = (self._retrieve_from_capture(),)
        self._has_grabbed_next = self._grab(self.capture)
        return position_s(self.capture) if self._has_grabbed_next else math.nan

    def _grab_next(self) -> bool:
        """Grab the next frame, unless that was done already."""
        if self._held is None:
            return self._grab(self.capture)
        self._held = None
        return self._has_grabbed_next

    def _grab(self, capture: cv2.VideoCapture) -> bool:
        """Grab from a capture, as one step of the reader."""
        grabbed = capture.grab()
        self._progress.steps += 1
        return grabbed and not self._progress.stop.is_set()

    def retrieve(self) -> Image | None:
        """The frame grabbed last; None, and counted, if it is damaged."""
        image = self._retrieve_from_capture() if self._held is None else self._held[0]
        self.damaged += image is None
        return image

    def _retrieve_from_capture(self) -> Image | None:
        """The frame grabbed last; of the first one, it is checked that it is one."""
        if self._is_conversion_checked:
            return retrieve(self.capture, self._flip)
        with filled_memory():
            image = retrieve(self.capture, self._flip)
        if image is not None:
            self._is_conversion_checked = True
            require_converted(image)
        return image

    def packets(self) -> Generator[cv2.VideoCapture]:
        """Go through the packets of the file, which takes no decoding."""
        capture = self.video.open()
        try:
            capture.set(cv2.CAP_PROP_FORMAT, -1)
            while self._grab(capture):
                yield capture
        finally:
            capture.release()

    def seek(self, start_s: float) -> bool:
        """Seek to shortly before a time; False if the frame number there is unknown."""
        self.capture.set(cv2.CAP_PROP_POS_MSEC, 1000 * (start_s - 1))
        if not self.capture.grab():
            return False
        self.time_s = position_s(self.capture)
        if not 0 < self.time_s < start_s - EPSILON_S:
            return False
        number = None
        if not self.hides_some:  # of packets, nothing tells which ones are hidden
            number = self._count_before(self.time_s)
        if number is None:
            return False
        self.number = number
        self._even_s = self.time_s
        return True

    def _count_before(self, time_s: float) -> int | None:
        """The number of frames that are shown before the one of a time; None if that is unknown.

        A rate does not tell it, as frames may come at any time, so the packets are counted. Those
        that precede the first key frame are never shown.
        """
        times: list[float] = []
        later = 0
        with closing(self.packets()) as packets:
            for packet in packets:
                if times or packet.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME):
                    times.append(position_s(packet))
                    later += times[-1] > time_s
                if later == REORDERED:
                    break
        if len({*times}) < len(times) or any(map(math.isnan, times)) or time_s not in times:
            return None  # they have no times of their own, or other ones
        return sum(times[0] <= time < time_s for time in times)


def _find_problem(source: str, frames: _Frames, given: int) -> InputError | None:
    """Why not all frames could be read; None if they could."""
    present = frames.number + 1
    if not present:
        return DecodeError("none of its frames can be decoded", _UNKNOWN_HINT)
    damaged = f", {frames.damaged} of them damaged" if frames.damaged else ""
    # A cut without re-encoding leaves some frames at its ends that are not shown. And sound may
    # go on after the last frame, which an estimate from the duration counts as frames.
    name = source.lower()
    tolerance = max(2, frames.rate / 2 if name.endswith(_COUNTED) else frames.rate)
    if frames.at_end:
        is_short = _breaks_off(frames, tolerance, name)
        problem = _missing_end(source, frames, damaged, is_short=is_short)
        if problem is not None:
            return problem
    if damaged:
        return DecodeError(f"{present} frames{damaged} and left out", _HINT)
    if not given:
        ends = f"it ends at {frames.time_s:.2f} s"
        return SourceError(f"has no frames in the requested time: {ends}", "see --start")
    return None


def _missing_end(
    source: str, frames: _Frames, damaged: str, *, is_short: bool
) -> DecodeError | None:
    """The error of a file without its end; a warning is enough where only an index is missing."""
    present = frames.number + 1
    part = frames.video.part
    length = declared_length(part)
    lacks_frames = length is not None and length.lacks_frames(part)
    if not (is_short or lacks_frames):
        if length is not None and length.lacks_rest(part):
            log.warning("%s: its end is missing, but all of its frames seem to be there", source)
        return None
    text = f"breaks off: {present} frames are there, and the end of the file is missing"
    if frames.declared is not None and frames.declared > present:
        text = f"breaks off: {present} of {frames.declared} frames are there"
    return DecodeError(text + damaged, _HINT)


def _breaks_off(frames: _Frames, tolerance: float, name: str) -> bool:
    """True if the file holds fewer frames than it declares.

    Fewer decoded frames alone do not mean that: a cut without re-encoding may leave a second or
    more of undecoded frames in the file. So the packets are counted. Where the number of frames is
    an estimate, a file of a variable rate has fewer; then the last one has to come early as well,
    and the file must not be whole: what begins later or ends earlier than its sound has fewer, too.
    """
    if frames.declared is None or frames.declared - frames.number - 1 <= tolerance:
        return False
    if frames.hides_some:
        return True
    if frames.track is not None and frames.track.times is None:
        in_fragments = fragment_samples(frames.video.part, frames.track)
        if in_fragments is not None:
            return in_fragments - frames.number - 1 > tolerance
    count, last_s = 0, 0.0
    try:
        for packet in frames.packets():
            count += 1
            last_s = max(last_s, position_s(packet))
    except InputError:
        return True
    if (last_s - frames.time_s) * frames.rate > tolerance:
        return True
    if name.endswith(_COUNTED):
        return frames.declared - count > tolerance
    there = max(count, last_s * frames.rate)
    is_known = name.endswith(_MEASURED) or is_whole(frames.video.part)
    return frames.declared - there > tolerance and not is_known
