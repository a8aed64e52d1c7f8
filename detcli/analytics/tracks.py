"""Tracks: an object keeps its id from frame to frame; the trackers are Roboflow's."""

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
    Image,
    Points,
    Size,
    bottom_centres,
    clipped,
    overlap,
)
from detcli.data.per_video import PerVideo
from detcli.data.record import Record
from detcli.data.suppression import non_maximum_suppression
from detcli.data.tiling import DUPLICATE_IOU

INSTALL = 'pip install "detcli[track]"'

# The names of the classes in the library trackers; a test compares the keys with `Tracker`.
CLASSES = {"bytetrack": "ByteTrackTracker", "botsort": "BoTSORTTracker", "ocsort": "OCSORTTracker"}

LOST_S = 1.0  # how long an object may be out of sight and still get its id back

LOST_FRAMES = 5  # it may be out of sight for at least this many frames, even if they are far apart

# Frames per second of the clock that trackers are given. The motion models of trackers are tuned
# for this rate, so frames that come at a different rate are made to look as if they came at this
# one.
RATE = 30.0

GAPS = 5  # the usual interval between frames is the median of this many

# Minimum values, for sources whose times stand still.
MIN_GAP_S = 0.001  # of the usual interval
MIN_FRAMES_OF_GAP = 0.1  # of a step of the tracker's clock, in frames

MIN_SIDE = 0.1  # pixels of a box's width and height; what is smaller has no track

DUPLICATE_OVERLAP = 0.7  # intersection over union of two tracks of the same object

YOUNG = 30  # frames within which a track may turn out to follow an object that has one

TRACE_FRAMES = 30  # frames that a trace goes back


def load_trackers() -> Any:  # noqa: ANN401 - the module
    """Import the library, which takes a second."""
    with loading("trackers", INSTALL):
        import supervision  # noqa: F401 - fails here, not at the first frame
        import trackers
    return trackers


class Tracks:
    """Adds track ids to the detections in frames; other images are unchanged."""

    def __init__(self, options: Tracking) -> None:
        if not hasattr(load_trackers(), CLASSES[options.tracker]):
            raise DependencyError(f"this version of trackers has no {options.tracker}", INSTALL)
        self._videos = PerVideo(lambda record: VideoTracks(options, record))

    def add(self, record: Record, image: Image, detections: Detections) -> Record:
        """Return a copy of a record whose detections have the ids and classes of their tracks.

        The traces of the tracks are added to its overlay, which is drawn. A record that is not a
        frame of a video is returned unchanged.
        """
        if record.origin.frame is None:
            return record
        video_tracks = self._videos.state_of(record)
        track_id = video_tracks.numbers_of_tracks(image, detections, record.origin.time_s)
        track_class, traces = video_tracks.follow(track_id, detections, image.size)
        return replace(
            record,
            detections=replace(detections, track_id=track_id, track_class=track_class),
            overlay=replace(record.overlay, traces=traces),
        )


@dataclass(eq=False, slots=True)
class TrackState:
    """Where an object was in the last frames, and which classes its detections had."""

    # the middle of the lower side of its box in each of the last frames, the newest last
    points: deque[Points] = field(default_factory=lambda: deque(maxlen=TRACE_FRAMES))
    # in how many frames it was detected as each class
    classes: Counter[str] = field(default_factory=Counter)


class VideoTracks:
    """The tracks of one video or stream; their ids begin at 1."""

    def __init__(self, options: Tracking, first: Record) -> None:
        """Prepare to track the objects of a video; the tracker itself is made with a frame's size.

        Args:
            options: Which tracker is used, and its threshold.
            first: The record of the first frame.
        """
        self._options = options
        self._size: Size | None = None  # of the frames

        # The time of the last frame, in the source and on the tracker's clock. `_advance_clock`
        # turns one into the other, as trackers expect a certain rate of frames.
        self._last_time_s = first.origin.time_s or 0.0
        self._clock_s = 0.0
        self._intervals_s: deque[float] = deque(maxlen=GAPS)  # between the last frames
        video = first.origin.video
        if video is not None and video.frames_per_second:
            self._intervals_s.append(1 / video.frames_per_second)

        # A tracker numbers its tracks from 0; the ids in records begin at 1. A frame of a different
        # size needs a new tracker, which begins at 0 again. The ids in records continue: after 12
        # tracks, the first of the new tracker gets id 13.
        self._first_number = 1  # the id in records of the track that the tracker numbers 0
        self._highest_number = 0  # of all tracks so far

        # The state of each track by its id; the tracks seen last come last.
        self._states: dict[int, TrackState] = {}
        # The state of each track that has no id yet, by the tracker's object for the track.
        self._tentative_states: dict[Any, TrackState] = {}

    def numbers_of_tracks(
        self, image: Image, detections: Detections, time_s: float | None
    ) -> npt.NDArray[np.int64]:
        """Track the detections of the next frame, and return the id of each one's track.

        The trace of a track that is new in this frame begins, see `_begin_traces`.

        Args:
            image: The frame.
            detections: Its N detections.
            time_s: Its time in the source, in seconds; None if that is unknown.

        Returns:
            `(N,)`; -1 for a detection without a track, or whose track has no id yet.

        Raises:
            InferenceError: The tracker failed.
        """
        if image.size != self._size:  # another camera behind the same address, so other objects
            self._size = image.size
            self._first_number = self._highest_number + 1
            self._tracker = self._make_tracker()
        tracked = self._update_tracker(image, detections, time_s)
        older_ids = self._merge_duplicates()

        numbers = np.full(len(detections), -1, np.int64)
        # `_trackable` put the index of each detection in the place of its class.
        detection_indices = tracked.class_id.tolist()
        tracker_ids = tracked.tracker_id.tolist()
        for index, tracker_id in zip(detection_indices, tracker_ids, strict=True):
            has_id = tracker_id >= 0
            if has_id:
                id_after_merging = older_ids.get(tracker_id, tracker_id)
                numbers[index] = self._track_number(id_after_merging)
        self._highest_number = max(self._highest_number, numbers.max(initial=0))
        self._begin_traces(image.size)
        return numbers

    def _update_tracker(self, image: Image, detections: Detections, time_s: float | None) -> Any:  # noqa: ANN401
        """Give the next frame to the tracker.

        Returns:
            `supervision.Detections` of those that can be tracked. Its `tracker_id` has the ids of
            their tracks. Its `class_id` has their indices in `detections`, and not classes: the
            tracker leaves it as it is, so that each one can be found again.

        Raises:
            InferenceError: The tracker failed.
        """
        trackable = self._trackable(detections, image.size)
        frame = None
        if self._options.tracker == "botsort":  # the only tracker that looks at the pixels
            frame = image.pixels
        try:
            timestamp_s = self._advance_clock(time_s)
            with np.errstate(all="ignore"):
                return self._tracker.update(trackable, frame=frame, timestamp=timestamp_s)
        except Exception as error:
            raise InferenceError(
                f"{self._options.tracker} failed: {error}", "try another tracker, or report it"
            ) from error

    def _track_number(self, tracker_id: int) -> int:
        """Return the id of a track in records for the one that the tracker gave it, from 0."""
        return self._first_number + tracker_id

    def _trackable(self, detections: Detections, size: Size) -> Any:  # noqa: ANN401 - supervision's
        """Select the detections that a tracker can follow, as an object of the supervision library.

        Trackers fail on infinite or empty boxes, and make two tracks from two boxes of the same
        object. So boxes end at the edges of the frame, empty ones are left out, and of those that
        overlap strongly only the best is tracked.

        Returns:
            `supervision.Detections`. In place of its class, each has its index in `detections`.
        """
        import supervision

        boxes = clipped(detections.xyxy, size)
        is_large_enough = (boxes[:, 2:] - boxes[:, :2] >= MIN_SIDE).all(axis=1)
        large_enough = np.flatnonzero(is_large_enough)  # indices
        any_class = np.zeros(len(large_enough), np.int64)
        remaining = non_maximum_suppression(
            boxes[large_enough], any_class, DUPLICATE_IOU, len(large_enough)
        )
        trackable = large_enough[remaining]
        return supervision.Detections(
            xyxy=boxes[trackable], confidence=detections.score[trackable], class_id=trackable
        )

    def _merge_duplicates(self) -> dict[int, int]:
        """Merge each new track into an older one of the same object, which the tracker has lost.

        That happens where an object has two boxes: the second one begins another track, and
        takes the object's detections from the first. The new track gets the id of the older one,
        which is removed from the tracker.

        Returns:
            The older id by the id that the new track had, such as `{7: 3}`.
        """
        tracks = self._tracker.tracks
        by_id = sorted(tracks, key=lambda track: track.tracker_id)
        lost_tracks = []
        young_tracks = []
        for track in by_id:
            is_tentative = track.tracker_id < 0
            if is_tentative:
                continue
            is_lost = track.time_since_update > 0
            if is_lost:
                lost_tracks.append(track)
            elif track.age <= YOUNG:
                young_tracks.append(track)

        older_ids = {}
        for young_track, lost_track in itertools.product(young_tracks, lost_tracks):
            is_merged_already = lost_track not in tracks
            if is_merged_already or not _are_of_same_object(young_track, lost_track):
                continue
            tracks.remove(lost_track)
            older_ids[young_track.tracker_id] = lost_track.tracker_id
            young_track.tracker_id = lost_track.tracker_id
        return older_ids

    def _begin_traces(self, size: Size) -> None:
        """Let the trace of a new track begin where its object was first seen.

        A trace is the list of points where an object was. A tracker gives an object an id only when
        it sees it for the second time; until then its track is tentative and has the id -1. So the
        first point of a tentative track is remembered in `_tentative_states` for one frame. If the
        track has an id in the next frame, its state moves to `_states`. So a line that the object
        crossed between the two frames is counted.

        Args:
            size: Height and width of the frame.
        """
        self._remove_lost_tentative_tracks()
        states_of_frame_before = self._tentative_states
        self._tentative_states = {}
        for track in self._tracker.tracks:
            is_tentative = track.tracker_id < 0
            if is_tentative:
                box = np.array([track.get_state_bbox()], np.float32)  # (1, 4)
                first_points = deque(bottom_centres(box, size), TRACE_FRAMES)
                self._tentative_states[track] = TrackState(first_points)
            elif track in states_of_frame_before:  # it has just got its id
                number = self._track_number(track.tracker_id)
                self._states.setdefault(number, states_of_frame_before[track])

    def _remove_lost_tentative_tracks(self) -> None:
        """Remove tentative tracks without a detection in this frame; OC-SORT would keep them."""
        remaining_tracks = []
        for track in self._tracker.tracks:
            has_id = track.tracker_id >= 0
            is_in_this_frame = not track.time_since_update
            if has_id or is_in_this_frame:
                remaining_tracks.append(track)
        self._tracker.tracks[:] = remaining_tracks

    def follow(
        self, numbers: npt.NDArray[np.int64], detections: Detections, size: Size
    ) -> tuple[npt.NDArray[np.object_], dict[int, Points]]:
        """Add the detections of a frame to the traces and classes of their tracks.

        Args:
            numbers: `(N,)`, the id of each detection's track, from `numbers_of_tracks`; -1 if it
                has none.
            detections: The N detections.
            size: Height and width of the frame.

        Returns:
            The name of the class that the track of each detection had in most frames, `(N,)`, None
            if it has no track; and the trace `(K, 2)` of each track in this frame, by its id.
        """
        states_in_frame = self._add_to_states(numbers, detections, size)
        self._forget_oldest_states(len(states_in_frame))

        track_classes = np.full(len(detections), None, np.object_)
        for index, number in enumerate(numbers.tolist()):
            has_track = number > 0
            if has_track:
                frames_by_class = states_in_frame[number].classes
                [(most_frequent_class, _)] = frames_by_class.most_common(1)
                track_classes[index] = most_frequent_class

        traces = {}
        for number, state in states_in_frame.items():
            traces[number] = np.stack(state.points)
        return track_classes, traces

    def _add_to_states(
        self, numbers: npt.NDArray[np.int64], detections: Detections, size: Size
    ) -> dict[int, TrackState]:
        """Add the position and the class of each detection to the state of its track.

        Returns:
            The states of the tracks in this frame, by track id. They are moved to the end of
            `_states`, whose first states are then those of the tracks not seen for longest.
        """
        states_in_frame: dict[int, TrackState] = {}
        points = bottom_centres(detections.xyxy, size)
        class_names = [class_name for _, _, _, class_name in detections]
        for number, point, class_name in zip(numbers.tolist(), points, class_names, strict=True):
            has_track = number > 0
            if not has_track:
                continue
            state = self._states.pop(number, TrackState())
            state.points.append(point)
            state.classes[class_name] += 1
            states_in_frame[number] = state

        # A dictionary keeps the order of insertion, so the popped states come last.
        self._states.update(states_in_frame)
        return states_in_frame

    def _forget_oldest_states(self, count_in_frame: int) -> None:
        """Forget the tracks that have not been seen for longest, as a stream may never end.

        Args:
            count_in_frame: The number of tracks in this frame; TRACE_FRAMES times as many are kept.
        """
        max_states = TRACE_FRAMES * max(1, count_in_frame)
        while len(self._states) > max_states:
            oldest_number = next(iter(self._states))
            del self._states[oldest_number]

    def _advance_clock(self, time_s: float | None) -> float | None:
        """Advance the tracker's clock to a frame, and return its time there.

        Trackers expect RATE frames a second, but a source may have any rate, or change it: streams
        share a detector, so each gets fewer frames with every stream that joins. So a clock is kept
        for the tracker, on which the usual interval between frames takes 1 / RATE seconds. If
        frames usually come every 0.1 seconds, a pause of 0.3 seconds is three frames, and the clock
        advances by 3 / RATE seconds.

        Also sets how long, on this clock, the tracker lets an object be out of sight.

        Args:
            time_s: The time of the frame in the source, in seconds; None if it is unknown.

        Returns:
            The time on the tracker's clock, in seconds; None if `time_s` is None.
        """
        if time_s is None:
            return None
        interval_s = time_s - self._last_time_s
        self._last_time_s = time_s
        if interval_s > 0:
            self._intervals_s.append(interval_s)
        usual_interval_s = self._usual_interval_s()

        # The clock advances a little even if the time of the source stands still or goes back.
        elapsed_frames = max(interval_s / usual_interval_s, MIN_FRAMES_OF_GAP)
        self._clock_s += elapsed_frames / RATE

        max_lost_frames = max(LOST_S / usual_interval_s, LOST_FRAMES)
        self._tracker.maximum_time_without_update = max_lost_frames / RATE
        return self._clock_s

    def _usual_interval_s(self) -> float:
        """Return the median of the last intervals between frames, in seconds of the source."""
        if not self._intervals_s:
            return MIN_GAP_S
        return max(statistics.median_low(self._intervals_s), MIN_GAP_S)

    def _make_tracker(self) -> Any:  # noqa: ANN401 - they have no common base that is public
        """Make the tracker that the options name, with their threshold if they have one.

        The keys of its settings are arguments of the classes in the trackers library.
        """
        options = self._options
        is_ocsort = options.tracker == "ocsort"
        settings = {"frame_rate": RATE, "lost_track_buffer": round(LOST_S * RATE)}
        if is_ocsort:
            # An object gets its id in its second frame, as it does from the other trackers.
            settings["minimum_consecutive_frames"] = 1
        if options.conf is not None:
            settings["high_conf_det_threshold"] = options.conf
            if not is_ocsort:  # the others also have a threshold for beginning a track
                settings["track_activation_threshold"] = options.conf
        tracker_class = getattr(load_trackers(), CLASSES[options.tracker])
        return tracker_class(**settings)


def _are_of_same_object(young_track: Any, lost_track: Any) -> bool:  # noqa: ANN401 - the library's
    """Return whether a lost track is older than a young one and has nearly the same box."""
    similarity = overlap(young_track.get_state_bbox(), lost_track.get_state_bbox())
    is_older = lost_track.tracker_id < young_track.tracker_id
    return bool(similarity > DUPLICATE_OVERLAP) and is_older
