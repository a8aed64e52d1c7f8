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
    bottom_centres,
    clipped,
    non_maximum_suppression,
    overlap,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.data.tiling import TWICE

INSTALL = 'pip install "detcli[track]"'

# What trackers calls its classes; a test holds the keys beside `Tracker`.
CLASSES = {"bytetrack": "ByteTrackTracker", "botsort": "BoTSORTTracker", "ocsort": "OCSORTTracker"}

LOST_S = 1.0  # how long an object may be out of sight and still get its number back

LOST_FRAMES = 5  # the least number of frames for that, where they are far apart

RATE = 30.0  # frames in a second of the clock that trackers are told, whose filters suit that rate

GAPS = 5  # how many times between frames tell how long that usually takes

# Bounds of that, and of the frames by which the clock goes on, for times that stand still.
LEAST_GAP_S, LEAST_STEP = 0.001, 0.1

LEAST_SIDE = 0.1  # pixels of a side; what is smaller has no track

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

    def add(self, record: Record, picture: Picture, found: Detections) -> Record:
        if record.origin.frame is None:
            return record
        video_tracks = self._videos.of(record)
        track_id = video_tracks.number(picture, found, record.origin.time_s)
        track_class, traces = video_tracks.follow(track_id, found, picture.size)
        return replace(
            record,
            detections=replace(found, track_id=track_id, track_class=track_class),
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
        self._size: tuple[int, int] | None = None  # of the frames, height and width
        self._last_s = first.origin.time_s or 0.0
        self._clock_s = 0.0  # of the tracker
        rate = 0.0 if video is None else video.frames_per_second
        self._gaps = deque([1 / rate] if rate else [], GAPS)  # in seconds
        self._before = self._highest = 0  # numbers that earlier trackers gave; the highest so far
        self._states: dict[int, TrackState] = {}  # by number
        # of the library's tracks that have no number yet, by these
        self._tentative: dict[Any, TrackState] = {}

    def number(
        self, picture: Picture, found: Detections, time_s: float | None
    ) -> npt.NDArray[np.int64]:
        """The number of each detection; -1 where it has none yet."""
        if picture.size != self._size:  # another camera behind the same address, so other objects
            self._size, self._before = picture.size, self._highest
            self._tracker = self._open()
        boxes = clipped(found.xyxy, picture.size)  # trackers fail on endless or empty ones
        import supervision

        usable = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] >= LEAST_SIDE).all(axis=1))
        any_class = np.zeros(len(usable), np.int64)
        usable = usable[non_maximum_suppression(boxes[usable], any_class, TWICE, len(usable))]
        given = supervision.Detections(
            xyxy=boxes[usable], confidence=found.score[usable], class_id=usable
        )
        frame = picture.pixels if self._options.tracker == "botsort" else None
        try:
            with np.errstate(all="ignore"):
                out = self._tracker.update(given, frame=frame, timestamp=self._tick(time_s))
        except Exception as error:
            raise InferenceError(
                f"{self._options.tracker} failed: {error}", "try another tracker, or report it"
            ) from error
        older = self._merge_duplicates()
        numbers = np.full(len(found), -1, np.int64)
        for row, number in zip(out.class_id.tolist(), out.tracker_id.tolist(), strict=True):
            if number >= 0:
                numbers[row] = older.get(number, number) + 1 + self._before
        self._highest = max(self._highest, numbers.max(initial=0))
        self._follow_tentative(picture.size)
        return numbers

    def _merge_duplicates(self) -> dict[int, int]:
        """Of two tracks that claim one object keep the older number; gives it by the new one.

        The new track began with a second box of the object, so it is young.
        """
        tracks, older = self._tracker.tracks, {}
        sure = sorted(
            (one for one in tracks if one.tracker_id >= 0), key=lambda one: one.tracker_id
        )
        lost = [one for one in sure if one.time_since_update]
        young = [one for one in sure if not one.time_since_update and one.age <= YOUNG]
        for new, old in itertools.product(young, lost):
            alike = overlap(new.get_state_bbox(), old.get_state_bbox()) > DUPLICATE_OVERLAP
            if alike and old in tracks and old.tracker_id < new.tracker_id:
                tracks.remove(old)
                older[new.tracker_id] = old.tracker_id
                new.tracker_id = old.tracker_id
        return older

    def _follow_tentative(self, size: tuple[int, int]) -> None:
        """Let the trace of a track begin where it stood before the tracker was sure of it.

        Only OC-SORT keeps tracks that were seen once and then lost.
        """
        tracks = self._tracker.tracks
        tracks[:] = [one for one in tracks if one.tracker_id >= 0 or not one.time_since_update]
        tentative = {}
        for track in tracks:
            if track.tracker_id < 0:
                box = np.array([track.get_state_bbox()], np.float32)
                tentative[track] = TrackState(deque(bottom_centres(box, size), TRACE_FRAMES))
            elif track in self._tentative:
                number = track.tracker_id + 1 + self._before
                self._states.setdefault(number, self._tentative[track])
        self._tentative = tentative

    def follow(
        self, numbers: npt.NDArray[np.int64], found: Detections, size: tuple[int, int]
    ) -> tuple[npt.NDArray[np.object_], dict[int, npt.NDArray[np.float32]]]:
        """The class of the track of each detection, and the trace of each track in this frame."""
        seen: dict[int, TrackState] = {}
        points = bottom_centres(found.xyxy, size)
        for number, point, (*_, name) in zip(numbers.tolist(), points, found, strict=True):
            if number > 0:
                state = seen[number] = self._states.pop(number, TrackState())
                state.points.append(point)
                state.classes[name] += 1
        self._states |= seen
        # Those that were not seen for long come first.
        while len(self._states) > TRACE_FRAMES * max(1, len(seen)):
            del self._states[next(iter(self._states))]
        classes = (
            seen[one].classes.most_common(1)[0][0] if one > 0 else None for one in numbers.tolist()
        )
        traces = {number: np.stack(state.points) for number, state in seen.items()}
        return np.fromiter(classes, np.object_), traces

    def _tick(self, time_s: float | None) -> float | None:
        """The time of a frame on the tracker's clock, on which frames usually come at one rate.

        Their own rate may be unknown, and changes: streams that share a detector have less of it
        with each that joins them.
        """
        if time_s is None:
            return None
        gap, self._last_s = time_s - self._last_s, time_s
        if gap > 0:
            self._gaps.append(gap)
        usual_s = max(statistics.median_low(self._gaps or [0.0]), LEAST_GAP_S)
        self._clock_s += max(gap / usual_s, LEAST_STEP) / RATE
        self._tracker.maximum_time_without_update = max(LOST_S / usual_s, LOST_FRAMES) / RATE
        return self._clock_s

    def _open(self) -> Any:  # noqa: ANN401 - they have no common base that is public
        options = self._options
        settings = {"frame_rate": RATE, "lost_track_buffer": round(LOST_S * RATE)}
        if options.tracker == "ocsort":
            settings["minimum_consecutive_frames"] = 1  # after its first, as the others do
        if options.conf is not None:
            settings["high_conf_det_threshold"] = options.conf
            if options.tracker != "ocsort":  # which has one threshold
                settings["track_activation_threshold"] = options.conf
        return getattr(load_trackers(), CLASSES[options.tracker])(**settings)
