"""Tracks: an object keeps its number from frame to frame; the trackers are Roboflow's."""

import itertools
import statistics
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.config.values import Tracking
from detcli.core.errors import DependencyError, InferenceError, loading
from detcli.data.detections import Detections
from detcli.data.geometry import (
    Picture,
    Points,
    Size,
    bottom_centres,
    clipped,
    overlap,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.data.suppression import non_maximum_suppression
from detcli.data.tiling import TWICE

INSTALL = 'pip install "detcli[track]"'

# What trackers calls its classes; a test holds the keys beside `Tracker`.
CLASSES = {"bytetrack": "ByteTrackTracker", "botsort": "BoTSORTTracker", "ocsort": "OCSORTTracker"}

LOST_S = 1.0  # how long an object may be out of sight and still get its number back

LOST_FRAMES = 5  # the smallest number of frames for that, where they are far apart

RATE = 30.0  # frames in a second of the clock that trackers are told, whose filters suit that rate

GAPS = 5  # how many times between frames tell how long that usually takes

# Bounds of that, and of the frames by which the clock goes on, for times that stand still.
MIN_GAP_S, MIN_STEP = 0.001, 0.1

MIN_SIDE = 0.1  # pixels of a box's width and height; what is smaller has no track

DUPLICATE_OVERLAP = 0.7  # intersection over union of two tracks of one object

YOUNG = 30  # frames for which a track may turn out to be of an object that has one

TRACE_FRAMES = 30  # frames that a trace goes back


def load_trackers() -> Any:  # noqa: ANN401 - the module
    """Import the library, which takes a second."""
    with loading("trackers", INSTALL):
        import supervision  # noqa: F401 - fails here, not at the first frame
        import trackers
    return trackers


class Tracks:
    """Numbers the detections in frames; pictures that are in no video pass as they are."""

    def __init__(self, options: Tracking) -> None:
        if not hasattr(load_trackers(), CLASSES[options.tracker]):
            raise DependencyError(f"this version of trackers has no {options.tracker}", INSTALL)
        self._videos = PerVideo(lambda record: VideoTracks(options, record))

    def add(self, record: Record, picture: Picture, detections: Detections) -> Record:
        """The record whose detections have numbers, with the traces of their tracks."""
        if record.origin.frame is None:
            return record
        video_tracks = self._videos.of(record)
        track_id = video_tracks.number(picture, detections, record.origin.time_s)
        track_class, traces = video_tracks.follow(track_id, detections, picture.size)
        return replace(
            record,
            detections=replace(detections, track_id=track_id, track_class=track_class),
            overlay=replace(record.overlay, traces=traces),
        )


@dataclass(eq=False, slots=True)
class TrackState:
    """What is known of a track."""

    # the middle of its lower side in each of the last frames, the newest last
    points: deque[Points] = field(default_factory=lambda: deque(maxlen=TRACE_FRAMES))
    classes: Counter[str] = field(default_factory=Counter)  # in how many frames it had each


class VideoTracks:
    """The tracks of one video or stream; their numbers begin at 1."""

    def __init__(self, options: Tracking, first: Record) -> None:
        video = first.origin.video
        self._options = options
        self._size: Size | None = None  # of the frames
        self._last_s = first.origin.time_s or 0.0
        self._clock_s = 0.0  # of the tracker
        self._gaps_s: deque[float] = deque(maxlen=GAPS)  # between frames
        if video is not None and video.frames_per_second:
            self._gaps_s.append(1 / video.frames_per_second)
        self._first_number = 1  # of the tracker, above those of earlier trackers
        self._highest_number = 0  # so far
        self._states: dict[int, TrackState] = {}  # by number
        # of the library's tracks that have no number yet, by these
        self._tentative: dict[Any, TrackState] = {}

    def number(
        self, picture: Picture, detections: Detections, time_s: float | None
    ) -> npt.NDArray[np.int64]:
        """The number of the track of each detection; -1 where it has none yet."""
        if picture.size != self._size:  # another camera behind the same address, so other objects
            self._size = picture.size
            self._first_number = self._highest_number + 1
            self._tracker = self._open()
        usable = self._usable(detections, picture.size)
        frame = picture.pixels if self._options.tracker == "botsort" else None
        try:
            with np.errstate(all="ignore"):
                tracked = self._tracker.update(usable, frame=frame, timestamp=self._tick(time_s))
        except Exception as error:
            raise InferenceError(
                f"{self._options.tracker} failed: {error}", "try another tracker, or report it"
            ) from error
        older_ids = self._merge_duplicates()
        numbers = np.full(len(detections), -1, np.int64)
        indices = tracked.class_id.tolist()  # in place of classes, see `_usable`
        for index, tracker_id in zip(indices, tracked.tracker_id.tolist(), strict=True):
            if tracker_id >= 0:
                numbers[index] = self._number_of(older_ids.get(tracker_id, tracker_id))
        self._highest_number = max(self._highest_number, numbers.max(initial=0))
        self._follow_tentative(picture.size)
        return numbers

    def _number_of(self, tracker_id: int) -> int:
        """The number of a track, by the tracker's own, which begins at 0."""
        return self._first_number + tracker_id

    def _usable(self, detections: Detections, size: Size) -> Any:  # noqa: ANN401 - supervision's
        """The detections that a tracker takes, in its own form, with indices in place of classes.

        Trackers fail on endless or empty boxes, and make
        two tracks of two boxes of one object.
        """
        import supervision

        boxes = clipped(detections.xyxy, size)
        usable = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(axis=1))
        any_class = np.zeros(len(usable), np.int64)
        usable = usable[non_maximum_suppression(boxes[usable], any_class, TWICE, len(usable))]
        return supervision.Detections(
            xyxy=boxes[usable], confidence=detections.score[usable], class_id=usable
        )

    def _merge_duplicates(self) -> dict[int, int]:
        """Keep the older number where two tracks claim one object; returns it by the newer number.

        The new track began with a second box of the object, so it is young.
        """
        tracks = self._tracker.tracks
        numbered = [track for track in tracks if track.tracker_id >= 0]
        numbered.sort(key=lambda track: track.tracker_id)
        lost = [track for track in numbered if track.time_since_update]
        young = []
        for track in numbered:
            if not track.time_since_update and track.age <= YOUNG:
                young.append(track)
        older_ids = {}
        for new, old in itertools.product(young, lost):
            similarity = overlap(new.get_state_bbox(), old.get_state_bbox())
            is_older = old in tracks and old.tracker_id < new.tracker_id
            if similarity > DUPLICATE_OVERLAP and is_older:
                tracks.remove(old)
                older_ids[new.tracker_id] = old.tracker_id
                new.tracker_id = old.tracker_id
        return older_ids

    def _follow_tentative(self, size: Size) -> None:
        """Let the trace of a track begin where it stood before the tracker was sure of it.

        Only OC-SORT keeps tracks that were seen once and then lost.
        """
        tracks = self._tracker.tracks
        tracks[:] = [
            track for track in tracks if track.tracker_id >= 0 or not track.time_since_update
        ]
        tentative = {}
        for track in tracks:
            if track.tracker_id < 0:
                box = np.array([track.get_state_bbox()], np.float32)
                tentative[track] = TrackState(deque(bottom_centres(box, size), TRACE_FRAMES))
            elif track in self._tentative:
                number = self._number_of(track.tracker_id)
                self._states.setdefault(number, self._tentative[track])
        self._tentative = tentative

    def follow(
        self, numbers: npt.NDArray[np.int64], detections: Detections, size: Size
    ) -> tuple[npt.NDArray[np.object_], dict[int, Points]]:
        """The class of the track of each detection, and the trace of each track in this frame."""
        states: dict[int, TrackState] = {}  # of the tracks in this frame
        points = bottom_centres(detections.xyxy, size)
        for number, point, (_, _, _, name) in zip(
            numbers.tolist(), points, detections, strict=True
        ):
            if number > 0:
                state = self._states.pop(number, TrackState())
                state.points.append(point)
                state.classes[name] += 1
                states[number] = state
        self._states |= states
        # Those that were not seen for long come first.
        while len(self._states) > TRACE_FRAMES * max(1, len(states)):
            del self._states[next(iter(self._states))]
        classes = np.full(len(detections), None, np.object_)
        for index, number in enumerate(numbers.tolist()):
            if number > 0:
                [(classes[index], _)] = states[number].classes.most_common(1)
        traces = {number: np.stack(state.points) for number, state in states.items()}
        return classes, traces

    def _tick(self, time_s: float | None) -> float | None:
        """The time of a frame on the tracker's clock, on which frames usually come at one rate.

        Their own rate may be unknown, and changes: streams that share a detector have less of it
        with each that joins them.
        """
        if time_s is None:
            return None
        gap_s = time_s - self._last_s
        self._last_s = time_s
        if gap_s > 0:
            self._gaps_s.append(gap_s)
        usual_s = MIN_GAP_S
        if self._gaps_s:
            usual_s = max(statistics.median_low(self._gaps_s), MIN_GAP_S)
        self._clock_s += max(gap_s / usual_s, MIN_STEP) / RATE
        self._tracker.maximum_time_without_update = max(LOST_S / usual_s, LOST_FRAMES) / RATE
        return self._clock_s

    def _open(self) -> Any:  # noqa: ANN401 - they have no common base that is public
        """Open the tracker of the options, with their threshold if they have one."""
        options = self._options
        settings = {"frame_rate": RATE, "lost_track_buffer": round(LOST_S * RATE)}
        if options.tracker == "ocsort":
            settings["minimum_consecutive_frames"] = 1  # after its first, as the others do
        if options.conf is not None:
            settings["high_conf_det_threshold"] = options.conf
            if options.tracker != "ocsort":  # which has one threshold
                settings["track_activation_threshold"] = options.conf
        return getattr(load_trackers(), CLASSES[options.tracker])(**settings)
