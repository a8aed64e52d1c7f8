"""Video files: numbered and timed frames, as far as a file can be read."""

import logging
import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import lru_cache

from detcli.config.config import EPSILON_S, Inputs
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
from detcli.source.containers import (
    TrackChoice,
    choose_track,
    declared_length,
    is_whole,
    patched,
)
from detcli.source.limits import check_size
from detcli.source.loading import Item, SourceProgress, decoded, failed
from detcli.source.mp4 import fragment_samples
from detcli.source.video_frames import VideoFrames, VideoSource

# For an earlier start, the frames before it are read and discarded, which is always exact.
SEEK_FROM_S = 5.0
CACHED_PARTS = 32  # of a file that are remembered: headers, of which several functions ask

# Containers that store the number of frames; for others it is estimated from the duration, which
# some do not store either, so that it is measured, as far as they go.
_COUNTED = (".m4v", ".mov", ".mp4")
_MEASURED = (".m2ts", ".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob")
_UNKNOWN_HINT = "OpenCV may lack its codec, as it does AV1: ffmpeg -i FILE NEW.mp4 makes it H.264"

log = logging.getLogger(__name__)


def read_video(video: VideoSource, inputs: Inputs, progress: SourceProgress) -> Generator[Item]:
    """Yield the frames of a video, and an error if some of them cannot be read.

    `progress` learns how many frames there are; before that, the video counts as one input.
    """
    name = video.name
    expected: int | None = 1
    item_count = 0
    problem: InputError | None = None
    frames: VideoFrames | None = None
    try:
        video = _with_largest_track(video)
        frames = VideoFrames(video, progress)
        check_size(frame_size(frames.capture), inputs.max_pixels)
        _warn_of_odd_rotation(name, frames.capture)
        progress.steps += 1
        if inputs.start >= SEEK_FROM_S and not frames.seek(inputs.start):
            frames.capture.release()
            frames = VideoFrames(video, progress)
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
    """Log which of its tracks is read of a video file: a warning if others are videos as well."""
    height, width = choice.size
    if choice.video_tracks > 1:
        text = "%s: has %d video tracks; the one of %dx%d pixels is read, as by FFmpeg"
        log.warning(text, name, choice.video_tracks, width, height)
    else:
        log.info("%s: its cover image or thumbnails are left out", name)


def _expected_items(frames: VideoFrames, inputs: Inputs) -> int | None:
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


def _select(video: VideoSource, frames: VideoFrames, inputs: Inputs) -> Iterator[Item]:
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


def _find_problem(source: str, frames: VideoFrames, item_count: int) -> InputError | None:
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
        is_short = _lacks_declared_frames(frames, source.lower())
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
    source: str, frames: VideoFrames, damaged: str, *, is_short: bool
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


def _lacks_declared_frames(frames: VideoFrames, name: str) -> bool:
    """Return whether a video file holds fewer frames than its header declares.

    That fewer frames were decoded does not mean so: a file that was cut without encoding it again
    may hold a second or more of frames that are not decoded. So the packets in the file are
    counted, each of which holds one frame.

    Args:
        frames: The reader of the video, after its last frame.
        name: The name of the video in lower case; its suffix tells the container.
    """
    tolerance = _tolerated_frames(frames, name)
    frames_read = frames.number + 1
    if frames.declared is None or frames.declared - frames_read <= tolerance:
        return False

    # Packets cannot be compared with the count of shown frames.
    if frames.has_hidden_frames:
        return True
    if frames.track is not None and frames.track.times is None:
        frames_in_fragments = fragment_samples(frames.video.part, frames.track)
        if frames_in_fragments is not None:
            return frames_in_fragments - frames_read > tolerance

    try:
        packet_count, last_packet_s = _measure_packets(frames)
    except InputError:
        return True

    unread_frames = (last_packet_s - frames.time_s) * frames.rate
    if unread_frames > tolerance:
        return True
    if name.endswith(_COUNTED):
        return frames.declared - packet_count > tolerance
    return _ends_before_estimate(frames, name, packet_count, last_packet_s)


def _ends_before_estimate(
    frames: VideoFrames, name: str, packet_count: int, last_packet_s: float
) -> bool:
    """Return whether a file breaks off whose declared number of frames is only an estimate.

    OpenCV estimates the number from the duration and the rate. A file with a variable rate has
    fewer packets than that, so that the time of its last packet has to be too early as well. And a
    video that begins later or ends earlier than its sound has fewer frames, but is not broken off
    if the file is as long as its header says.

    Args:
        frames: The reader of the video, whose declared number of frames is not None.
        name: The name of the video in lower case; its suffix tells the container.
        packet_count: How many packets with frames are in the file.
        last_packet_s: The time of the last packet in seconds.
    """
    if frames.declared is None or name.endswith(_MEASURED):
        return False
    estimated_frames = max(packet_count, last_packet_s * frames.rate)
    if frames.declared - estimated_frames <= _tolerated_frames(frames, name):
        return False
    return not is_whole(frames.video.part)


def _tolerated_frames(frames: VideoFrames, name: str) -> float:
    """Return by how many frames a video that is not broken may fall short of its declared number.

    A cut without encoding again leaves some frames at the ends that are not shown: half a second is
    tolerated. Where the number is an estimate from the duration, the sound may also go on after the
    last frame: one second is tolerated.

    Args:
        frames: The reader of the video.
        name: The name of the video in lower case; its suffix tells the container.
    """
    if name.endswith(_COUNTED):
        return max(2, frames.rate / 2)
    return max(2, frames.rate)


def _measure_packets(frames: VideoFrames) -> tuple[int, float]:
    """Count the packets in a video file, each of which holds one frame, without decoding them.

    Returns:
        The number of packets, and the latest time in seconds of any of them.
    """
    count = 0
    last_s = 0.0
    for packet in frames.packets():
        count += 1
        last_s = max(last_s, position_s(packet))
    return count, last_s
