"""Video files: numbered and timed frames, as far as a file can be read."""

import logging
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from detcli.config.inputs import EPSILON_S, InputOptions
from detcli.core.errors import DecodeError, InputError, SourceError
from detcli.core.opencv import cv2
from detcli.data.record import Origin, Video
from detcli.source.capture import (
    REPAIR_HINT,
    frame_size,
    open_part,
    pixel_aspect,
    position_s,
)
from detcli.source.containers import declared_length, is_whole
from detcli.source.limits import check_size
from detcli.source.loading import Item, SourceProgress, decoded, failed_item
from detcli.source.mp4 import fragment_samples
from detcli.source.video_frames import VideoFrames, VideoSource
from detcli.source.video_tracks import TrackChoice, choose_track, patched

# For an earlier start, the frames before it are read and discarded, which is always exact.
SEEK_FROM_S = 5.0
CACHED_PARTS = 32  # ranges of a file that are remembered: several functions ask for its header

# Containers that store the number of frames; for others it is estimated from the duration, which
# some do not store either, so it is measured, as far as the files can be read.
_COUNTING_SUFFIXES = (".m4v", ".mov", ".mp4")
_MEASURED_SUFFIXES = (".m2ts", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob")
_UNKNOWN_HINT = "OpenCV may lack its codec, as it does AV1: ffmpeg -i FILE NEW.mp4 makes it H.264"

log = logging.getLogger(__name__)


def read_video(
    video: VideoSource, inputs: InputOptions, progress: SourceProgress
) -> Generator[Item]:
    """Yield the frames of a video, and an error if some of them cannot be read.

    The total of `progress` is corrected twice. Until it is opened, the video counts as one input,
    then as the frames that are expected from it, and in the end as what was yielded.
    """
    counted_items: int | None = 1  # as many as the video counts for in the total; None: unknown
    item_count = 0
    problem: InputError | None = None
    try:
        with _open_before_start(video, inputs, progress) as frames:
            expected_items = _expected_items(frames, inputs)
            progress.correct(counted=counted_items, count=expected_items)
            counted_items = expected_items
            for item in _select_frames(frames, inputs):
                item_count += 1
                yield item
            if not progress.stop.is_set():
                problem = _find_problem(video.name, frames, item_count)
    except InputError as error:
        problem = error
    if problem is not None:
        item_count += 1
        yield failed_item(video.name, problem)
    progress.correct(counted=counted_items, count=item_count)


@contextmanager
def _open_before_start(
    video: VideoSource, inputs: InputOptions, progress: SourceProgress
) -> Iterator[VideoFrames]:
    """Open a video at a frame before the requested start, and close it at the end of the block.

    All frames from the start are still to come: `advance` goes to the next one.

    Args:
        video: The video; only its best track is read.
        inputs: The options with the start, and with the maximum number of pixels of a frame.
        progress: Counts the steps, by which a reader that hangs is noticed.

    Raises:
        InputError: It cannot be opened, or its frames are too large.
    """
    video_of_best_track = _with_best_track(video)
    frames = VideoFrames(video_of_best_track, progress)
    try:
        check_size(frame_size(frames.capture), inputs.max_pixels)
        _warn_of_odd_rotation(video.name, frames.capture)
        progress.steps += 1
        if inputs.start >= SEEK_FROM_S:
            has_position = frames.seek(inputs.start)
            if not has_position:
                # It may be at any frame now, so it is opened again and read from the first frame.
                frames.capture.release()
                frames = VideoFrames(video_of_best_track, progress)
        yield frames
    finally:
        frames.capture.release()


def _warn_of_odd_rotation(name: str, capture: cv2.VideoCapture) -> None:
    """Warn about a rotation that OpenCV does not follow; one beyond a full turn is only damage.

    The rotation comes from a matrix in the file, and FFmpeg ignores a damaged one.
    """
    degrees = capture.get(cv2.CAP_PROP_ORIENTATION_META)
    if 0 < degrees < 360 and degrees % 90:
        log.warning("%s: should be turned by %.0f degrees, but is read as stored", name, degrees)


def _with_best_track(video: VideoSource) -> VideoSource:
    """Return a video so that OpenCV reads the track that FFmpeg's own programs would choose.

    By itself OpenCV reads the first video track, which may be a cover image. So the tracks before
    the best one are hidden from it: the video is opened through a function that replaces bytes of
    the header on their way to OpenCV. If no track has to be hidden, it is opened as before.

    Returns:
        The video. Its `read_range` remembers the last ranges, as several functions read the header.
    """
    read_once = lru_cache(CACHED_PARTS)(video.read_range)
    choice = choose_track(read_once)
    if choice is None:
        return replace(video, read_range=read_once)
    _report_choice(video.name, choice)
    no_track_is_before = not choice.patches
    if no_track_is_before:
        return replace(video, read_range=read_once)

    # If the file itself is broken, opening it as it is raises a better error.
    video.open().release()
    # OpenCV reads the whole file once, so nothing of that is remembered.
    read_with_hidden_tracks = patched(video.read_range, choice.patches)

    def reopen() -> cv2.VideoCapture:
        return open_part(read_with_hidden_tracks)

    return replace(video, open=reopen, read_range=patched(read_once, choice.patches))


def _report_choice(name: str, choice: TrackChoice) -> None:
    """Log which track of a video file is read, as a warning if others are videos, too."""
    height, width = choice.size
    if choice.video_tracks > 1:
        text = "%s: has %d video tracks; the one of %dx%d pixels is read, as by FFmpeg"
        log.warning(text, name, choice.video_tracks, width, height)
    else:
        log.info("%s: its cover image or thumbnails are left out", name)


def _expected_items(frames: VideoFrames, inputs: InputOptions) -> int | None:
    """Return how many frames of a video will be yielded; None if that is unknown.

    The first frame of each step is yielded, from the requested start to the requested end; a step
    is a number of frames or of seconds. The steps of the first and the last frame show how many
    there are.
    """
    if frames.declared_frames is None:
        return None
    if not frames.rate and inputs.every is not None:
        return None
    requested = _requested_frames(frames.declared_frames, frames.rate, inputs)
    if not requested:
        return 0
    rate = frames.rate or 1  # without a rate, steps are counted in frames and need no times
    first_step = inputs.step(0, time_s=requested[0] / rate)
    last_step = inputs.step(len(requested) - 1, time_s=requested[-1] / rate)
    step_count = last_step - first_step + 1
    return min(step_count, len(requested))  # a step may be shorter than a frame


def _requested_frames(frame_count: int, rate: float, inputs: InputOptions) -> range:
    """Return the numbers of the frames from the requested start up to the requested end.

    Args:
        frame_count: How many frames the video has.
        rate: Frames in a second; 0 if that is unknown, and all frames are taken.
        inputs: The options with start and end.
    """
    if not rate:
        return range(frame_count)
    first = _first_frame_from(inputs.start, rate, frame_count)
    end = _first_frame_from(inputs.end_s, rate, frame_count)
    return range(first, end)


def _first_frame_from(time_s: float, rate: float, frame_count: int) -> int:
    """Return the number of the first frame at a time or later, at most `frame_count`.

    `time_s` may be infinite, for the end of the video.
    """
    # 8.3 * 30 is 249.00000000000003, and means frame 249, not frame 250.
    frame_at_time = time_s * rate - EPSILON_S
    return math.ceil(min(frame_count, frame_at_time))


def _select_frames(frames: VideoFrames, inputs: InputOptions) -> Iterator[Item]:
    """Yield the frames of a video that the options select, as items with their images.

    One frame of each step, which is N frames (--vid-stride) or N seconds (--every), is taken: the
    first that can be decoded.
    """
    video = frames.video
    rate = frames.rate / inputs.vid_stride
    if inputs.every:
        rate = min(rate, 1 / inputs.every)
    video_info = Video(rate, address=video.address, pixel_aspect=pixel_aspect(frames.capture))

    last_step = -1
    for step in _steps_of_requested_frames(frames, inputs):
        if step <= last_step:  # a frame of this step was taken
            continue
        image = frames.retrieve()
        if image is None:  # damaged: the next frame may stand for this step
            continue
        last_step = step
        origin = Origin(
            video.name,
            frame=frames.number,
            time_s=frames.time_s,
            video=video_info,
            file_stamp=video.stamp,
        )
        yield decoded(origin, image)


def _steps_of_requested_frames(frames: VideoFrames, inputs: InputOptions) -> Iterator[int]:
    """Advance to each frame from the requested start to the requested end, and yield its step.

    One frame of each step is used; a step is named by its index. With --vid-stride 3, the frames
    from the start have the steps 0, 0, 0, 1, 1, 1 and so on. With --every 2, each step is two
    seconds long.

    Args:
        frames: The reader of the video. While a step is yielded, its current frame is the one with
            that step. `at_end` is set to False if the requested end comes before that of the video.
        inputs: The options with the start, the end, and how long a step is.
    """
    first_number = None  # number of the first frame after the start
    while frames.advance():
        is_before_start = frames.time_s < inputs.start - EPSILON_S
        if is_before_start:
            continue
        is_after_end = frames.time_s >= inputs.end_s - EPSILON_S
        if is_after_end:
            frames.at_end = False
            return
        if first_number is None:
            first_number = frames.number
        yield inputs.step(frames.number - first_number, frames.time_s)


def _find_problem(source: str, frames: VideoFrames, item_count: int) -> InputError | None:
    """Return the error that says why not all frames of a video could be read; None if they were.

    If several things are wrong, the first of these is reported: no frame can be decoded, the end of
    the file is missing, some frames are damaged, none is in the requested time.

    Args:
        source: The name of the video.
        frames: The reader of the video, after its last frame.
        item_count: How many frames were yielded.
    """
    frames_read = frames.number + 1  # including damaged ones
    if frames_read == 0:
        return DecodeError("none of its frames can be decoded", _UNKNOWN_HINT)
    if frames.at_end:  # and not only at the requested end
        problem = _missing_end(source, frames)
        if problem is not None:
            return problem
    if frames.damaged_frames:
        damage = _describe_damage(frames)
        return DecodeError(f"{frames_read} frames{damage} and left out", REPAIR_HINT)
    if item_count == 0:
        return SourceError(
            f"has no frames in the requested time: it ends at {frames.time_s:.2f} s", "see --start"
        )
    return None


def _describe_damage(frames: VideoFrames) -> str:
    """Describe how many frames are damaged, as in ", 3 of them damaged"; empty if none are."""
    if not frames.damaged_frames:
        return ""
    return f", {frames.damaged_frames} of them damaged"


def _missing_end(source: str, frames: VideoFrames) -> DecodeError | None:
    """Return the error for a video file whose end is missing; None if all frames are present.

    A file that lacks only what follows its frames, such as an index, gets a warning in the log.

    Args:
        source: The name of the video.
        frames: The reader of the video, after its last frame.
    """
    read_range = frames.video.read_range
    lacks_frames = _lacks_declared_frames(frames, source.lower())
    length = declared_length(read_range)  # in bytes
    if length is not None and length.lacks_frames(read_range):
        lacks_frames = True
    if not lacks_frames:
        if length is not None and length.lacks_rest(read_range):
            log.warning("%s: its end is missing, but all of its frames seem to be there", source)
        return None

    frames_read = frames.number + 1
    text = f"breaks off: {frames_read} frames are there, and the end of the file is missing"
    if frames.declared_frames is not None and frames.declared_frames > frames_read:
        text = f"breaks off: {frames_read} of {frames.declared_frames} frames are there"
    return DecodeError(text + _describe_damage(frames), REPAIR_HINT)


def _lacks_declared_frames(frames: VideoFrames, name: str) -> bool:
    """Return whether a video file seems to hold fewer frames than its header declares.

    If fewer frames were decoded, the file may still be whole: if it was cut out of a longer video
    without re-encoding, it holds a second or more of frames that are not decoded. So all frames in
    the file are counted, decoded or not.

    Args:
        frames: The reader of the video, after its last frame.
        name: The name of the video in lower case; its suffix gives the container.
    """
    if frames.declared_frames is None:
        return False
    tolerance = _tolerated_frames(frames, name)
    frames_read = frames.number + 1
    if frames.declared_frames - frames_read <= tolerance:
        return False
    if frames.has_hidden_frames:
        # A count of the frames in the file has the hidden ones, too, so it does not show whether
        # others are missing.
        return True
    frames_in_fragments = _count_in_fragments(frames)
    if frames_in_fragments is not None:
        return frames_in_fragments - frames_read > tolerance
    return _lacks_packets(frames, name, frames.declared_frames)


def _count_in_fragments(frames: VideoFrames) -> int | None:
    """Count the frames of an MP4 file that is written in fragments; None for other files."""
    if frames.track is None or frames.track.times is not None:
        return None
    return fragment_samples(frames.video.read_range, frames.track)


def _lacks_packets(frames: VideoFrames, name: str, declared: int) -> bool:
    """Return whether a video file lacks packets; a packet holds one frame.

    In any container, it does if it cannot be read, or if its packets go on after the last frame
    that could be decoded. Otherwise it depends on the container, which the suffix gives:

        MP4, MOV    the header counts the frames, so the packets must be as many
        MPEG, OGV   the header says nothing, so that nothing can be missing
        others      see `_lacks_estimated_packets`

    Args:
        frames: The reader of the video, after its last frame.
        name: The name of the video in lower case.
        declared: How many frames the header counts, or OpenCV has estimated.
    """
    try:
        packets = _measure_packets(frames)
    except InputError:
        return True
    tolerance = _tolerated_frames(frames, name)
    frames_after_last = (packets.last_s - frames.time_s) * frames.rate
    if frames_after_last > tolerance:
        return True
    if name.endswith(_COUNTING_SUFFIXES):
        return declared - packets.number > tolerance
    if name.endswith(_MEASURED_SUFFIXES):
        return False
    return _lacks_estimated_packets(frames, packets, estimate=declared, tolerance=tolerance)


def _lacks_estimated_packets(
    frames: VideoFrames, packets: "_Packets", *, estimate: int, tolerance: float
) -> bool:
    """Return whether a video file lacks packets, if OpenCV estimated how many there should be.

    The estimate is the duration times the frame rate. A whole file may have fewer packets: the
    frame rate may vary, or the duration may be that of the sound, which goes on for longer. So
    packets are missing only if three things hold: there are too few of them, the last one is too
    early, and the file is shorter than its header says.

    Args:
        frames: The reader of the video, after its last frame.
        packets: The packets of the file.
        estimate: The estimated number of frames.
        tolerance: By how many frames a whole file may fall short of it.
    """
    are_enough = estimate - packets.number <= tolerance
    frames_up_to_last = packets.last_s * frames.rate  # at the usual rate
    is_last_late_enough = estimate - frames_up_to_last <= tolerance
    if are_enough or is_last_late_enough:
        return False
    return not is_whole(frames.video.read_range)


def _tolerated_frames(frames: VideoFrames, name: str) -> float:
    """Return by how many frames a whole video may fall short of the number that it declares.

    A cut without re-encoding leaves some frames at the ends that are not shown: half a second is
    tolerated. If the number is an estimate from the duration, the sound may also go on after the
    last frame: one second is tolerated. At least two frames are tolerated, however low the rate is.

    Args:
        frames: The reader of the video.
        name: The name of the video in lower case; its suffix gives the container.
    """
    tolerated_s = 1.0
    if name.endswith(_COUNTING_SUFFIXES):  # containers that store the number of frames
        tolerated_s = 0.5
    return max(2, frames.rate * tolerated_s)


class _Packets(NamedTuple):
    """The packets of a video file."""

    number: int
    last_s: float  # the latest time in seconds of any of them


def _measure_packets(frames: VideoFrames) -> _Packets:
    """Count the packets in a video file without decoding them; a packet holds one frame."""
    count = 0
    last_s = 0.0
    for packet in frames.packets():
        count += 1
        last_s = max(last_s, position_s(packet))
    return _Packets(count, last_s)
