"""Video files: numbered and timed frames, as far as a file can be read."""

import logging
import math
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import lru_cache

from detcli.config.config import EPSILON_S, Inputs
from detcli.core import frozen
from detcli.core.errors import DecodeError, InputError, SourceError
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.data.record import Origin, Video
from detcli.source.capture import (
    REPAIR_HINT,
    Reopen,
    frame_count,
    frame_size,
    frames_per_second,
    open_part,
    pixel_aspect,
    position_s,
    retrieve,
)
from detcli.source.containers import (
    TrackChoice,
    choose_track,
    declared_length,
    is_mirrored,
    is_whole,
    patched,
)
from detcli.source.conversion import filled_memory, require_converted
from detcli.source.limits import check_size
from detcli.source.loading import Item, SourceProgress, decoded, failed
from detcli.source.mp4 import Part, Track, fragment_samples, read_movie

# For an earlier start, the frames before it are read and discarded, which is always exact.
SEEK_FROM_S = 5.0
DAMAGE_TIMEOUT_S = 10.0  # damaged frames are skipped for this long before giving up

PROGRAM_STREAM = b"\0\0\1\xba"  # with which MPEG program streams begin
REORDERED = 32  # more frames than any codec stores before one that is shown earlier

CACHED_PARTS = 32  # of a file that are remembered: headers, of which several functions ask

# Containers that store the number of frames; for others it is estimated from the duration, which
# some do not store either, so that it is measured, as far as they go.
_COUNTED = (".m4v", ".mov", ".mp4")
_MEASURED = (".m2ts", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob")
_UNKNOWN_HINT = "OpenCV may lack its codec, as it does AV1: ffmpeg -i FILE NEW.mp4 makes it H.264"

log = logging.getLogger(__name__)


def _read_nothing(_start: int, _size: int) -> bytes:
    """Read a video whose file itself cannot be read, see `Part`."""
    return b""


@frozen
class VideoSource:
    """A video file, here or at an address."""

    name: str  # in records, without credentials
    open: Reopen
    address: str | None = None  # of its sound, see `Video`
    part: Part = _read_nothing  # reads the file itself
    stamp: str | None = None  # size and time of the file, see `Origin`


def read_video(video: VideoSource, inputs: Inputs, progress: SourceProgress) -> Generator[Item]:
    """Yield the frames of a video, and an error if some of them cannot be read.

    `progress` learns how many frames there are; before that, the video counts as one input.
    """
    name = video.name
    expected: int | None = 1
    item_count = 0
    problem: InputError | None = None
    frames: _Frames | None = None
    try:
        video = _with_largest_track(video)
        frames = _Frames(video, progress)
        check_size(frame_size(frames.capture), inputs.max_pixels)
        _warn_of_odd_rotation(name, frames.capture)
        progress.steps += 1
        if inputs.start >= SEEK_FROM_S and not frames.seek(inputs.start):
            frames.capture.release()
            frames = _Frames(video, progress)
        expected = _expected_items(frames, inputs)
        progress.correct(counted=1, count=expected)
        for item in _select(video, frames, inputs):
            item_count += 1
            yield item
        if not progress.stop.is_set():
            problem = _find_problem(name, frames, item_count)
    except InputError as error:
        problem = error
    finally:
        if frames is not None:
            frames.capture.release()
    if problem is not None:
        item_count += 1
        yield failed(name, problem)
    progress.correct(counted=expected, count=item_count)


def _warn_of_odd_rotation(name: str, capture: cv2.VideoCapture) -> None:
    """Warn of a rotation that OpenCV does not follow; beyond a turn it is that of a damaged matrix.

    FFmpeg ignores such a matrix.
    """
    degrees = capture.get(cv2.CAP_PROP_ORIENTATION_META)
    if 0 < degrees < 360 and degrees % 90:
        log.warning("%s: should be turned by %.0f degrees, but is read as stored", name, degrees)


def _with_largest_track(video: VideoSource) -> VideoSource:
    """Return the video so that OpenCV reads the track that FFmpeg's own programs would choose.

    OpenCV always reads the first video track, which may be a cover image. So the tracks before the
    best one are hidden from it, by exchanging bytes of the header while the file is read. A video
    with one track is returned with the same way to open it.
    """
    read_once = lru_cache(CACHED_PARTS)(video.part)  # several functions look at the same headers
    choice = choose_track(read_once)
    if choice is None:
        return replace(video, part=read_once)
    _report_choice(video.name, choice)
    if not choice.patches:
        return replace(video, part=read_once)
    # Opened once as it is, because this raises a better error if the file itself is broken.
    video.open().release()
    with_one_track = patched(video.part, choice.patches)

    def reopen() -> cv2.VideoCapture:
        return open_part(with_one_track)

    return replace(video, open=reopen, part=patched(read_once, choice.patches))


def _report_choice(name: str, choice: TrackChoice) -> None:
    height, width = choice.size
    if choice.video_tracks > 1:
        text = "%s: has %d video tracks; the one of %dx%d pixels is read, as by FFmpeg"
        log.warning(text, name, choice.video_tracks, width, height)
    else:
        log.info("%s: its cover image or thumbnails are left out", name)


def _expected_items(frames: "_Frames", inputs: Inputs) -> int | None:
    """Return how many frames of a video will be yielded; None if that is unknown.

    It is counted from the number of frames that the file declares, the requested start and end,
    and the step between frames.
    """
    if frames.declared is None:
        return None
    if not frames.rate and inputs.every is not None:
        return None
    first = 0
    end = frames.declared
    if frames.rate:
        first = math.ceil(min(end, inputs.start * frames.rate - EPSILON_S))
        end = math.ceil(min(end, inputs.end_s * frames.rate - EPSILON_S))
    if first >= end:
        return 0
    rate = frames.rate or 1
    first_step = inputs.step(0, first / rate)
    last_step = inputs.step(end - 1 - first, (end - 1) / rate)
    return min(last_step - first_step + 1, end - first)


def _select(video: VideoSource, frames: "_Frames", inputs: Inputs) -> Iterator[Item]:
    """Yield the frames between the requested start and end, one for each step.

    A step is a number of frames (--vid-stride) or of seconds (--every). If the first frame of a
    step is damaged, the next one that can be decoded is taken.
    """
    rate = frames.rate / inputs.vid_stride
    if inputs.every:
        rate = min(rate, 1 / inputs.every)
    video_info = Video(rate, address=video.address, pixel_aspect=pixel_aspect(frames.capture))

    first_number = None
    last_step = -1
    while frames.advance():
        if frames.time_s < inputs.start - EPSILON_S:
            continue
        if frames.time_s >= inputs.end_s - EPSILON_S:
            frames.at_end = False
            return
        if first_number is None:
            first_number = frames.number
        step = inputs.step(frames.number - first_number, frames.time_s)
        if step <= last_step:
            continue
        image = frames.retrieve()
        if image is not None:
            last_step = step
            origin = Origin(
                video.name,
                frame=frames.number,
                time_s=frames.time_s,
                video=video_info,
                file_stamp=video.stamp,
            )
            yield decoded(origin, image)


def _flip_of(capture: cv2.VideoCapture, part: Part) -> int | None:
    """Return the code with which `cv2.flip` mirrors the frames of a video; None for no mirroring.

    OpenCV turns frames as the file says, but does not mirror them. The code is 1, left and right,
    for frames that are turned by 90 or 270 degrees, and 0, up and down, for others.
    """
    degrees = capture.get(cv2.CAP_PROP_ORIENTATION_META)
    if degrees % 90 or not is_mirrored(part):
        return None
    if degrees % 180:  # turned to a side
        return 1
    return 0


def _movie_track(part: Part) -> Track | None:
    """What an MP4 or MOV says of its first track of images, which is read."""
    movie = read_movie(part)
    if movie is None:
        return None
    for track in movie.tracks:
        if track.is_video:
            return track
    return None


class _Frames:
    """The frames of a video, one after the other."""

    def __init__(self, video: VideoSource, progress: SourceProgress) -> None:
        self.capture = video.open()
        self.video = video
        self._progress = progress
        self._flip = _flip_of(self.capture, video.part)
        self._is_conversion_checked = False
        self.rate = frames_per_second(self.capture)
        self.track = _movie_track(video.part)
        self.declared = frame_count(self.capture)
        self.has_hidden_frames = False  # frames that are not to be shown
        if self.track is not None:
            shown_frames = self.track.shown_frames()
            if shown_frames is not None:
                self.declared = shown_frames
                self.has_hidden_frames = shown_frames != self.track.sample_count

        self.number = -1  # of the frame grabbed last; damaged frames count
        self.time_s = -EPSILON_S  # its time; never decreases
        if self.rate:
            self.time_s = -1 / self.rate
        self._has_looked_ahead = False  # whether the next frame was grabbed already
        self._has_next = False  # whether there was one, then
        self._current_image: Pixels | None = None  # the frame before it, then

        self._is_program_stream = video.part(0, 4) == PROGRAM_STREAM
        self._even_s = self.time_s  # of the last frame of a program stream, were it not late
        self._doubtful_jump_s = 0.0  # by which a frame of it seemed to come later
        self._accepted_jump_s = 0.0  # by which one did, for all that is known
        self.damaged = 0  # frames that could not be decoded
        self.at_end = True  # whether no more frames could be grabbed

    def advance(self) -> bool:
        """Grab the next frame; False when there are no more.

        OpenCV fails on a damaged frame and continues with the next; at the end it always fails.
        """
        remaining = 0
        if self.declared is not None:
            remaining = self.declared - self.number
        attempts = min(max(remaining, 100), 1000)
        give_up = time.monotonic() + DAMAGE_TIMEOUT_S
        for skipped in range(attempts):
            if self._progress.stop.is_set():
                return False
            if skipped and time.monotonic() > give_up:
                return False
            if self._grab_next():
                self.damaged += skipped
                self.number += skipped + 1
                self.time_s = self._time_of_frame(skipped)
                return True
        return False

    def _time_of_frame(self, skipped: int) -> float:
        """Return the time in seconds of the frame grabbed last, later than the one before.

        The time comes from the file if it says one that is later, and else from the frame rate.
        `skipped` is how many damaged frames there were since the frame before.
        """
        position = position_s(self.capture)
        step_s = 0.0
        if self.rate:
            step_s = (skipped + 1) / self.rate
        if self._is_program_stream and step_s:
            self._even_s = self._time_in_program_stream(position, self._even_s + step_s, step_s)
            return max(self._even_s, self.time_s + step_s / 8)
        if position > self.time_s:
            return position
        return self.time_s + step_s

    def _time_in_program_stream(self, position: float, expected_s: float, step_s: float) -> float:
        """The time of a frame that is expected at a time, by what FFmpeg says of it.

        Only some frames have times of their own there. FFmpeg gives others the time of a frame
        near by, after which all would be late. So frames come at an even rate unless the next
        time agrees with another one, and go back to it when a later time does.
        """
        if not position > 0:  # unknown
            return expected_s
        jump_s = position - expected_s
        tolerance_s = step_s / 2
        if abs(jump_s) <= tolerance_s:
            return position
        if jump_s < 0:
            if abs(jump_s + self._accepted_jump_s) > tolerance_s:
                return expected_s
            self._accepted_jump_s = 0.0
            return position
        is_another_jump = abs(jump_s - self._doubtful_jump_s) > tolerance_s
        if jump_s <= REORDERED * step_s and is_another_jump:
            self._doubtful_jump_s = jump_s
            next_s = self._look_ahead()
            if not abs(next_s - position - step_s) <= tolerance_s:  # also if it is unknown
                return expected_s
        self._accepted_jump_s = jump_s
        self._doubtful_jump_s = 0.0
        return position

    def _look_ahead(self) -> float:
        """Grab the next frame already, and hold the current one; the time of the next, or NaN."""
        self._current_image = self._retrieve_from_capture()
        self._has_looked_ahead = True
        self._has_next = self._grab(self.capture)
        if not self._has_next:
            return math.nan
        return position_s(self.capture)

    def _grab_next(self) -> bool:
        """Grab the next frame, unless that was done already."""
        if not self._has_looked_ahead:
            return self._grab(self.capture)
        self._has_looked_ahead = False
        self._current_image = None
        return self._has_next

    def _grab(self, capture: cv2.VideoCapture) -> bool:
        """Grab from a capture, as one step of the reader."""
        grabbed = capture.grab()
        self._progress.steps += 1
        return grabbed and not self._progress.stop.is_set()

    def retrieve(self) -> Pixels | None:
        """The frame grabbed last; None, and counted, if it is damaged."""
        if self._has_looked_ahead:
            image = self._current_image
        else:
            image = self._retrieve_from_capture()
        if image is None:
            self.damaged += 1
        return image

    def _retrieve_from_capture(self) -> Pixels | None:
        """The frame grabbed last; the first one is checked to hold what the file does."""
        if self._is_conversion_checked:
            return retrieve(self.capture, self._flip)
        with filled_memory():
            image = retrieve(self.capture, self._flip)
        if image is not None:
            self._is_conversion_checked = True
            require_converted(image)
        return image

    def packets(self) -> Generator[cv2.VideoCapture]:
        """Go through the packets of the file, without decoding them."""
        capture = self.video.open()
        try:
            capture.set(cv2.CAP_PROP_FORMAT, -1)
            while self._grab(capture):
                yield capture
        finally:
            capture.release()

    def seek(self, start_s: float) -> bool:
        """Seek to a frame before a time, and find out the number of this frame.

        FFmpeg seeks by key frames and may come out behind the time; then, or if the frame's number
        cannot be counted, the answer is False and the file has to be opened again. The second
        before leaves room for this.
        """
        self.capture.set(cv2.CAP_PROP_POS_MSEC, 1000 * (start_s - 1))
        if not self.capture.grab():
            return False
        self.time_s = position_s(self.capture)
        if not 0 < self.time_s < start_s - EPSILON_S:
            return False
        number = None
        # Frames are numbered by counting packets, which do not tell what frames are hidden.
        if not self.has_hidden_frames:
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
        times = self._packet_times_until(time_s)
        has_times_of_their_own = len(set(times)) == len(times)
        if not has_times_of_their_own or any(math.isnan(time) for time in times):
            return None
        if time_s not in times:  # but other ones than the decoder says
            return None
        first_s = times[0]
        return sum(1 for time in times if first_s <= time < time_s)

    def _packet_times_until(self, time_s: float) -> list[float]:
        """Return the times in seconds of the file's packets, from its first key frame on.

        Packets are stored in the order in which they are decoded, so that some of an earlier time
        follow later ones. So it goes on until `REORDERED` packets were later than `time_s`.
        """
        times: list[float] = []
        later = 0
        with closing(self.packets()) as packets:
            for packet in packets:
                if times or packet.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME):
                    position = position_s(packet)
                    times.append(position)
                    if position > time_s:
                        later += 1
                if later == REORDERED:
                    break
        return times


def _find_problem(source: str, frames: _Frames, item_count: int) -> InputError | None:
    """Return the error that says why not all frames of a video could be read; None if they were.

    Args:
        source: The name of the video.
        frames: The reader of the video, after its last frame.
        item_count: How many frames were yielded.
    """
    frames_read = frames.number + 1
    if not frames_read:
        return DecodeError("none of its frames can be decoded", _UNKNOWN_HINT)
    damaged = ""
    if frames.damaged:
        damaged = f", {frames.damaged} of them damaged"
    if frames.at_end:
        is_short = _breaks_off(frames, source.lower())
        problem = _missing_end(source, frames, damaged, is_short=is_short)
        if problem is not None:
            return problem
    if damaged:
        return DecodeError(f"{frames_read} frames{damaged} and left out", REPAIR_HINT)
    if not item_count:
        end = f"it ends at {frames.time_s:.2f} s"
        return SourceError(f"has no frames in the requested time: {end}", "see --start")
    return None


def _missing_end(
    source: str, frames: _Frames, damaged: str, *, is_short: bool
) -> DecodeError | None:
    """Return the error of a video file whose end is missing; None if all frames are there.

    A file that lacks only what follows its frames, such as an index, gets a warning in the log.

    Args:
        source: The name of the video.
        frames: The reader of the video, after its last frame.
        damaged: What the message says of damaged frames, as in ", 3 of them damaged".
        is_short: Whether the file has fewer frames than it declares.
    """
    part = frames.video.part
    length = declared_length(part)
    lacks_frames = length is not None and length.lacks_frames(part)
    if not is_short and not lacks_frames:
        if length is not None and length.lacks_rest(part):
            log.warning("%s: its end is missing, but all of its frames seem to be there", source)
        return None
    frames_read = frames.number + 1
    text = f"breaks off: {frames_read} frames are there, and the end of the file is missing"
    if frames.declared is not None and frames.declared > frames_read:
        text = f"breaks off: {frames_read} of {frames.declared} frames are there"
    return DecodeError(text + damaged, REPAIR_HINT)


def _breaks_off(frames: _Frames, name: str) -> bool:
    """True if the file holds fewer frames than it declares.

    Fewer decoded frames alone do not mean that: a cut without re-encoding may leave a second or
    more of undecoded frames in the file. So the packets are counted. Where the number of frames is
    an estimate, a file of a variable rate has fewer; then the last one has to come early as well,
    and the file must not be whole: what begins later or ends earlier than its sound has fewer, too.
    """
    tolerance = _tolerated_frames(frames, name)
    frames_read = frames.number + 1
    if frames.declared is None or frames.declared - frames_read <= tolerance:
        return False

    if frames.has_hidden_frames:
        return True
    if frames.track is not None and frames.track.times is None:
        in_fragments = fragment_samples(frames.video.part, frames.track)
        if in_fragments is not None:
            return in_fragments - frames_read > tolerance

    try:
        packet_count, last_s = _measure_packets(frames)
    except InputError:
        return True

    if (last_s - frames.time_s) * frames.rate > tolerance:
        return True
    if name.endswith(_COUNTED):
        return frames.declared - packet_count > tolerance
    frames_in_file = max(packet_count, last_s * frames.rate)
    if frames.declared - frames_in_file <= tolerance:
        return False
    return not name.endswith(_MEASURED) and not is_whole(frames.video.part)


def _tolerated_frames(frames: _Frames, name: str) -> float:
    """How many frames may be missing at the end of a sound file.

    A cut without re-encoding leaves some frames at its ends that are not shown. And sound may go on
    after the last frame, which an estimate from the duration counts as frames.
    """
    if name.endswith(_COUNTED):
        return max(2, frames.rate / 2)
    return max(2, frames.rate)


def _measure_packets(frames: _Frames) -> tuple[int, float]:
    """The number of packets in the file, and the time of the last one in seconds."""
    count = 0
    last_s = 0.0
    for packet in frames.packets():
        count += 1
        last_s = max(last_s, position_s(packet))
    return count, last_s
