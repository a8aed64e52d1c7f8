"""The frames of a video file, one after the other, with their numbers and times."""

import math
import time
from collections.abc import Generator
from contextlib import closing
from typing import NamedTuple

from detcli.config.inputs import EPSILON_S
from detcli.core import frozen
from detcli.core.opencv import cv2
from detcli.data.geometry import Pixels
from detcli.source.capture import Reopen, frame_count, frames_per_second, position_s, retrieve
from detcli.source.containers import is_mirrored
from detcli.source.conversion import filled_memory, require_converted
from detcli.source.loading import SourceProgress
from detcli.source.mp4 import ReadRange, Track, read_movie

DAMAGE_TIMEOUT_S = 10.0  # damaged frames are skipped for this long before giving up

MIN_ATTEMPTS, MAX_ATTEMPTS = 100, 1000
"""How often the next frame is asked for: not forever, as the end of a file looks like damage."""

SEEK_MARGIN_S = 1
"""FFmpeg is asked for an earlier time, as it may come out later: it seeks by key frames."""

CATCH_UP_STEP = 1 / 8
"""The least number of steps from a frame to the next one while times in the file go back."""

FLIP_UP_DOWN = 0
FLIP_LEFT_RIGHT = 1
"""Codes of `cv2.flip`."""

PROGRAM_STREAM = b"\0\0\1\xba"  # MPEG program streams begin with this
REORDERED_FRAMES = 32  # more frames than any codec stores before one that is shown earlier


def _read_nothing(_start: int, _size: int) -> bytes:
    """Read a video whose file itself cannot be read, see `ReadRange`."""
    return b""


@frozen
class VideoSource:
    """A video file, here or at an address."""

    name: str  # in records, without credentials
    open: Reopen
    address: str | None = None  # address of its sound, see `Video`
    read_range: ReadRange = _read_nothing  # reads the file itself
    stamp: str | None = None  # size and time of the file, see `Origin`


def _flip_of(capture: cv2.VideoCapture, read_range: ReadRange) -> int | None:
    """Return the code with which `cv2.flip` mirrors the frames of a video; None for no mirroring.

    OpenCV turns frames as the file says, but does not mirror them. Frames that it turned to a side,
    by 90 or 270 degrees, are mirrored left and right; others up and down.
    """
    degrees = capture.get(cv2.CAP_PROP_ORIENTATION_META)
    is_right_angle = degrees % 90 == 0
    if not is_right_angle or not is_mirrored(read_range):
        return None
    is_turned_to_side = degrees % 180 != 0
    if is_turned_to_side:
        return FLIP_LEFT_RIGHT
    return FLIP_UP_DOWN


def _movie_track(read_range: ReadRange) -> Track | None:
    """Return what an MP4 or MOV file says about its first video track, the one that OpenCV reads.

    It is None for other containers, and for a file without a video track. `read_range` reads bytes
    of the file, from an offset and of a size.
    """
    movie = read_movie(read_range)
    if movie is None:
        return None
    for track in movie.tracks:
        if track.is_video:
            return track
    return None


class _FrameCount(NamedTuple):
    """How many frames the header of a video file declares."""

    shown: int | None  # frames that players show; None if that is unknown
    has_hidden_frames: bool  # whether the file holds others, which are not to be shown


def _declared_frames(capture: cv2.VideoCapture, track: Track | None) -> _FrameCount:
    """Return the count of frames in the tables of a track, or else what OpenCV says."""
    if track is not None:
        shown_frames = track.shown_frames()
        if shown_frames is not None:
            return _FrameCount(shown_frames, shown_frames != track.sample_count)
    return _FrameCount(frame_count(capture), has_hidden_frames=False)


class VideoFrames:
    """Reads the frames of a video in order, and knows the number and time of the current one."""

    def __init__(self, video: VideoSource, progress: SourceProgress) -> None:
        """Open a video, and read from its headers what its times and numbers depend on.

        No frame is read yet: the first call of `advance` goes to the first one.

        Args:
            video: The video, which is opened here, and closed by the caller.
            progress: Counts the steps, by which a reader that hangs is noticed.
        """
        self.capture = video.open()
        self.video = video
        self._progress = progress
        self._flip = _flip_of(self.capture, video.read_range)
        self._is_conversion_checked = False
        self.rate = frames_per_second(self.capture)
        self.track = _movie_track(video.read_range)
        # How many frames are to be shown, as the file says; None if it does not. And whether it
        # holds others, which are not to be shown.
        self.declared_frames, self.has_hidden_frames = _declared_frames(self.capture, self.track)
        self._is_program_stream = video.read_range(0, 4) == PROGRAM_STREAM

        # The current frame, which was grabbed last. Damaged frames have a number as well. At first
        # both values are those of a frame before the first one, which is number 0 at 0 seconds.
        self.number = -1
        self.time_s = -EPSILON_S  # never decreases
        if self.rate:
            self.time_s = -1 / self.rate

        self.damaged_frames = 0  # how many frames could not be decoded
        self.at_end = True  # whether no more frames could be grabbed

        # After `_look_ahead`, the capture is one frame further than the current one. Then these say
        # whether there was a next frame, and keep the image of the current one.
        self._has_looked_ahead = False
        self._has_next = False
        self._current_image: Pixels | None = None

        # Frames of an MPEG program stream may have wrong times in the file: `_credible_time`
        # decides whether to believe that a frame comes later or earlier than the frame rate says.
        self._credible_time_s = self.time_s  # the believed time of the current frame; may decrease
        self._rejected_jump_s = 0.0  # the last jump forward that was not believed
        self._accepted_jump_s = 0.0  # the last jump forward that was believed, until it is undone

    def advance(self) -> bool:
        """Grab the next frame that is not damaged; False when there are no more.

        OpenCV fails on a damaged frame and continues with the next; at the end it always fails. So
        it is asked as often as frames remain, within limits of attempts and of time.
        """
        remaining_frames = 0
        if self.declared_frames is not None:
            remaining_frames = self.declared_frames - self.number
        attempts = min(max(remaining_frames, MIN_ATTEMPTS), MAX_ATTEMPTS)
        deadline_s = time.monotonic() + DAMAGE_TIMEOUT_S
        for skipped in range(attempts):
            is_too_late = skipped > 0 and time.monotonic() > deadline_s
            if is_too_late or self._progress.stop.is_set():
                return False
            if self._grab_next():
                self.damaged_frames += skipped
                self.number += skipped + 1
                self.time_s = self._time_of_frame(skipped)
                return True
        return False

    def _time_of_frame(self, skipped: int) -> float:
        """Compute the time of the frame that was grabbed last, from the start of the video.

        It is the time in the file, if that is later than the time of the previous frame. Otherwise
        it follows from the frame rate.

        Args:
            skipped: How many damaged frames there were since the previous frame.

        Returns:
            The time in seconds, later than `self.time_s`, which is that of the previous frame,
            unless the frame rate is unknown.
        """
        time_in_file_s = position_s(self.capture)
        step_s = 0.0  # from the previous frame to this one, by the frame rate
        if self.rate:
            step_s = (skipped + 1) / self.rate
        if self._is_program_stream and step_s:
            return self._next_time_in_program_stream(time_in_file_s, step_s)
        if time_in_file_s > self.time_s:
            return time_in_file_s
        return self.time_s + step_s

    def _next_time_in_program_stream(self, file_time_s: float, step_s: float) -> float:
        """Compute the time of the current frame of an MPEG program stream, as on DVDs.

        `_credible_time_s` is set to the time that is believed for the frame. It may jump back,
        which the times of frames must not do. So after a jump back each frame comes only
        `CATCH_UP_STEP` of a step after the previous frame, while the credible times go on by a
        whole step. After 8 frames at 1/8 of a step, they have caught up with a jump of 7 steps.

        Args:
            file_time_s: The time that FFmpeg gives the frame; NaN if it gives none.
            step_s: The time since the previous frame, by the frame rate.

        Returns:
            The time in seconds. It is later than `self.time_s`, which is still the time of the
            previous frame.
        """
        self._credible_time_s = self._credible_time(
            file_time_s=file_time_s,
            expected_s=self._credible_time_s + step_s,
            step_s=step_s,
        )
        earliest_s = self.time_s + CATCH_UP_STEP * step_s
        return max(self._credible_time_s, earliest_s)

    def _credible_time(self, *, file_time_s: float, expected_s: float, step_s: float) -> float:
        """Decide which time to believe for the current frame of an MPEG program stream.

        Only some of its frames have a stored time. FFmpeg gives others the time of a nearby frame,
        and if that were believed, all frames after it would be late. So by default a frame comes
        one step after the previous one. There are three exceptions:

        - The time in the file is at most half a step away from that.
        - It is later, and there is evidence of a gap, see `_is_gap`.
        - It is earlier, by as much as the last gap that was believed. So that gap is undone.

        A jump forward is recorded as accepted or rejected, for the decisions about later frames.

        Args:
            file_time_s: The time that FFmpeg gives the frame; NaN if it gives none.
            expected_s: The time of the frame if it follows the previous one at the frame rate.
            step_s: The time between two frames; with damaged frames skipped, a multiple of it.

        Returns:
            Either `file_time_s` or `expected_s`.
        """
        is_known = file_time_s > 0  # false for NaN
        if not is_known:
            return expected_s
        jump_s = file_time_s - expected_s
        tolerance_s = step_s / 2
        if abs(jump_s) <= tolerance_s:
            return file_time_s

        is_later = jump_s > 0
        if is_later:
            if self._is_gap(jump_s, file_time_s=file_time_s, step_s=step_s):
                self._accepted_jump_s = jump_s
                self._rejected_jump_s = 0.0
                return file_time_s
            self._rejected_jump_s = jump_s
            return expected_s

        jump_back_s = -jump_s
        undoes_gap = abs(jump_back_s - self._accepted_jump_s) <= tolerance_s
        if undoes_gap:
            self._accepted_jump_s = 0.0
            return file_time_s
        return expected_s

    def _is_gap(self, jump_s: float, *, file_time_s: float, step_s: float) -> bool:
        """Return whether a frame of a program stream really comes later than the frame rate says.

        Any of three kinds of evidence is enough:

        - The jump is longer than frames can be out of order.
        - An earlier frame claimed to be as much too late, and was not believed.
        - The next frame comes one step after this one. To find out, it is grabbed, see
          `_look_ahead`.

        Args:
            jump_s: How many seconds the frame is later than expected.
            file_time_s: The time that FFmpeg gives the frame.
            step_s: The time between two frames.
        """
        tolerance_s = step_s / 2
        is_longer_than_reordering = jump_s > REORDERED_FRAMES * step_s
        repeats_rejected_jump = abs(jump_s - self._rejected_jump_s) <= tolerance_s
        if is_longer_than_reordering or repeats_rejected_jump:
            return True

        next_step_s = self._look_ahead() - file_time_s  # NaN if the next time is unknown
        return abs(next_step_s - step_s) <= tolerance_s  # false for NaN

    def _look_ahead(self) -> float:
        """Grab the frame after the current one, and return its time in seconds.

        The current frame is decoded and stored first, because OpenCV can only decode the frame that
        was grabbed last. The time is NaN if there is no next frame, or if its time is unknown.
        """
        self._current_image = self._retrieve_from_capture()
        self._has_looked_ahead = True
        self._has_next = self._grab(self.capture)
        if not self._has_next:
            return math.nan
        return position_s(self.capture)

    def _grab_next(self) -> bool:
        """Grab the next frame, unless that has already been done."""
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
            self.damaged_frames += 1
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
        """Seek to a frame before `start_s` seconds, and find out the number of this frame.

        This fails if no frame can be grabbed there, if FFmpeg goes to a frame that is not before
        the start, or if the frames before that one cannot be counted. The capture has moved even
        then, so the file has to be opened again.

        Returns:
            Whether `number` and `time_s` are now those of the frame to which the capture has moved.
        """
        requested_ms = 1000 * (start_s - SEEK_MARGIN_S)
        self.capture.set(cv2.CAP_PROP_POS_MSEC, requested_ms)
        if not self.capture.grab():
            return False
        time_in_file_s = position_s(self.capture)
        is_before_start = 0 < time_in_file_s < start_s - EPSILON_S
        if not is_before_start:
            return False
        # The number is counted from the packets, which do not say which frames are hidden.
        if self.has_hidden_frames:
            return False
        number = self._count_before(time_in_file_s)
        if number is None:
            return False

        self.number = number
        self.time_s = time_in_file_s
        self._credible_time_s = time_in_file_s
        return True

    def _count_before(self, time_s: float) -> int | None:
        """Count the frames that are shown before the one at `time_s`; None if that is unknown.

        The frame rate does not give it, because it may vary. So the file's packets are counted; a
        packet holds one frame. Those before the first key frame are never shown. Nothing is
        known if packets have no time, if some have the same time, or if none has `time_s`.
        """
        times = self._packet_times_until(time_s)
        are_times_unique = len(set(times)) == len(times)
        if not are_times_unique or any(math.isnan(time) for time in times):
            return None
        if time_s not in times:
            return None
        first_s = times[0]
        return sum(1 for time in times if first_s <= time < time_s)

    def _packet_times_until(self, time_s: float) -> list[float]:
        """Return the times of the file's packets in seconds, starting at its first key frame.

        Packets are stored in the order in which they are decoded, so a later time may come before
        earlier ones. Reading ends once `REORDERED_FRAMES` packets were later than `time_s`: by then
        all up to `time_s` have come.
        """
        times: list[float] = []
        later_packets = 0
        with closing(self.packets()) as packets:
            for packet in packets:
                is_before_key_frame = not (times or packet.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME))
                if is_before_key_frame:
                    continue
                packet_s = position_s(packet)
                times.append(packet_s)
                if packet_s > time_s:
                    later_packets += 1
                if later_packets == REORDERED_FRAMES:
                    break
        return times
