"""Tracks of objects whose identities are known, judged by motmetrics."""

import sys
from dataclasses import replace

import numpy as np
import optional
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_lines import column_of
from sample_records import Film, detected, failed_frame, frame, image

from detcli.analytics import Watcher, tracks
from detcli.config.shapes import Line
from detcli.config.values import Tracker, Tracking
from detcli.config.watched import Watched
from detcli.core.errors import DependencyError, UsageError

# Not imported here: that takes a second, and every worker of the suite reads this file.
pytestmark = [
    pytest.mark.slow,
    optional.needs("motmetrics"),
    optional.needs("supervision"),
    optional.needs("trackers"),
]

SIZE = (480, 640)
FILM = Film("in/film.avi", 10.0)
COUNT = 6  # of objects
FRAMES = 80

# Objects that walk past each other in rows, half of them to the left.
NUMBERS = np.arange(COUNT)
BEGIN = np.stack([np.where(NUMBERS % 2, 20.0, 560.0), 20 + 70 * NUMBERS], axis=1)
SPEED = np.stack([np.where(NUMBERS % 2, 6.5, -6.5), 0.3 * (NUMBERS - 3)], axis=1)


def boxes(number):
    """`(COUNT, 4)`: where all objects are in a frame."""
    corner = BEGIN + SPEED * number
    return np.hstack([corner, corner + np.array([45, 60])]).astype(np.float32)


def seen(number, rng, *, film=FILM, missed=0.05, count=COUNT):
    """A frame with most objects, in a random order, a little off."""
    rows = rng.permutation(np.flatnonzero(rng.random(count) >= missed))
    noise = rng.normal(0, 1, (len(rows), 4)).astype(np.float32)
    noisy_boxes = boxes(number)[:count][rows] + noise
    record = frame(number, film, count=len(rows))
    scores = np.sort(rng.uniform(0.3, 0.95, len(rows)).astype(np.float32))[::-1]
    detections = replace(record.detections, xyxy=noisy_boxes, score=scores)
    return replace(record, detections=detections, picture=replace(record.picture, size=SIZE))


def watch(tracker=Tracker.BYTETRACK, conf=0.25):
    return Watcher(Watched(track=Tracking(tracker, conf=conf)))


def judge(records):
    """Figures of motmetrics for records of which the identities are known."""
    import motmetrics
    import supervision

    accumulator = motmetrics.MOTAccumulator(auto_id=True)
    for record in records:
        truth = boxes(record.origin.frame)
        numbered = record.detections[record.detections.track_id > 0]
        overlap = supervision.box_iou_batch(truth, numbered.xyxy)
        distances = np.where(overlap >= 0.5, 1 - overlap, np.nan)
        accumulator.update(range(len(truth)), numbered.track_id, distances)
    names = ["num_switches", "idf1", "mota"]
    return motmetrics.metrics.create().compute(accumulator, metrics=names).iloc[0]


@pytest.mark.parametrize(
    ("tracker", "stride"),
    [
        (Tracker.BYTETRACK, 1),
        (Tracker.BYTETRACK, 2),
        (Tracker.BYTETRACK, 3),  # by nearly half of a box's width
        (Tracker.BOTSORT, 1),
        (Tracker.BOTSORT, 2),
        (Tracker.OCSORT, 1),
        (Tracker.OCSORT, 2),
        (Tracker.OCSORT, 3),
    ],
)
def test_objects_keep_their_numbers(tracker, stride):
    rng = np.random.default_rng(stride)
    follow = watch(tracker)
    film = Film(FILM.source, FILM.frames_per_second / stride)
    missed = 0.03 if stride == 1 else 0.0
    records = []
    for number in range(0, FRAMES, stride):
        records.append(follow(seen(number, rng, film=film, missed=missed)))
    figures = judge(records)
    assert figures.num_switches == 0
    assert figures.idf1 > 0.9
    numbers = set()
    for record in records:
        numbers.update(record.detections.track_id.tolist())
    assert numbers - {-1} == set(range(1, COUNT + 1))


@pytest.mark.parametrize("tracker", Tracker)
@pytest.mark.parametrize("gaps", [(0.016, 0.016), (0.3, 0.3), (6.0, 6.0), (0.05, 2.0)])
def test_objects_in_streams_keep_their_numbers(tracker, gaps):
    """However many streams share a detector, and so however far apart the frames of each are."""
    rng = np.random.default_rng(0)
    follow = watch(tracker)
    film = Film("rtsp://a", 0.0, live=True)
    first_gap, last_gap = gaps
    records = []
    time_s = 100.0
    for number, gap in enumerate(np.geomspace(first_gap, last_gap, FRAMES)):
        time_s += gap * rng.uniform(0.4, 1.6)
        if number == 10:  # lost for a minute, after which everybody is somebody else
            time_s += 60
        record = seen(number, rng, film=film, missed=0)
        records.append(follow(replace(record, origin=replace(record.origin, time_s=time_s))))
    figures = judge(records[10:])
    assert figures.num_switches == 0
    assert figures.idf1 > 0.9


def test_rows_stay_in_their_order():
    rng = np.random.default_rng(0)
    follow = watch()
    for number in range(10):
        record = seen(number, rng)
        detections = follow(record).detections
        np.testing.assert_array_equal(detections.xyxy, record.detections.xyxy)
        np.testing.assert_array_equal(detections.score, record.detections.score)


def test_a_frame_that_failed_does_no_harm():
    rng = np.random.default_rng(0)
    follow = watch()
    records = []
    for number in range(40):
        if number % 7 == 3:
            torn = failed_frame(number, FILM)
            assert follow(torn) is torn
        else:
            records.append(follow(seen(number, rng, missed=0)))
    assert judge(records).num_switches == 0


def test_each_source_has_numbers_of_its_own():
    """Files come one after the other, streams at the same time."""
    rng = np.random.default_rng(0)
    follow = watch()
    first_stream = Film("rtsp://a", 0.0, live=True)
    second_stream = Film("rtsp://b", 0.0, live=True)
    for number in range(6):
        follow(seen(number, rng, film=first_stream, missed=0, count=2))
        record = follow(seen(number, rng, film=second_stream, missed=0, count=3))
    assert sorted(record.detections.track_id.tolist()) == [1, 2, 3]
    for film in (FILM, Film("in/second.avi", 10.0), FILM):
        first = follow(seen(0, rng, film=film, missed=0))
        assert set(first.detections.track_id.tolist()) == {-1}
        again = follow(seen(1, rng, film=film, missed=0))
        assert sorted(again.detections.track_id.tolist()) == [1, 2, 3, 4, 5, 6]


def test_a_stream_that_changes_its_size_has_new_objects():
    rng = np.random.default_rng(0)
    follow = watch()
    for number in range(3):
        follow(seen(number, rng, missed=0))
    for number in range(3, 6):
        record = seen(number, rng, missed=0)
        record = follow(replace(record, picture=replace(record.picture, size=(960, 1280))))
    assert sorted(record.detections.track_id.tolist()) == [7, 8, 9, 10, 11, 12]


def test_trails_end_where_objects_stand():
    rng = np.random.default_rng(0)
    follow = watch()
    for number in range(50):
        record = follow(seen(number, rng, missed=0))
    traces = record.overlay.traces
    assert sorted(traces) == sorted(record.detections.track_id.tolist())
    for number, box in zip(
        record.detections.track_id.tolist(), record.detections.xyxy, strict=True
    ):
        assert traces[number].shape == (tracks.TRACE_FRAMES, 2)
        np.testing.assert_allclose(traces[number][-1], ((box[0] + box[2]) / 2, box[3]), rtol=1e-4)


def test_json_has_the_number_once_it_is_sure():
    rng = np.random.default_rng(0)
    follow = watch()
    photo = image()
    assert follow(photo) is photo
    first = follow(seen(0, rng, missed=0))
    second = follow(seen(1, rng, missed=0))
    for detection in first.to_json()["detections"]:
        assert "track_id" not in detection
    numbers = set(column_of(second.to_json()["detections"], "track_id"))
    assert numbers == {1, 2, 3, 4, 5, 6}


def numbers_of(tracker, frames):
    """The numbers of the rows of x1, y1, x2, y2, score and class of each frame."""
    follow = watch(tracker)
    for number, rows in enumerate(frames):
        record = frame(number, FILM, size=SIZE)
        watched = follow(replace(record, detections=detected(rows)))
        yield watched.detections.track_id.tolist()


@pytest.mark.parametrize("tracker", Tracker)
def test_a_box_that_is_there_twice_has_one_track(tracker):
    """Whatever its classes, and the other is a detection all the same."""
    twice = [
        (100, 100, 200, 300, 0.9, 0),
        (101, 100, 200, 300, 0.8, 0),
        (100, 100, 200, 300, 0.7, 1),
    ]
    numbers = list(numbers_of(tracker, [twice] * 6))
    assert numbers[-1] == [1, -1, -1]


def test_a_track_has_the_class_that_it_had_most_often():
    """And what crosses a line counts for that class."""
    gate = (Line.parse("gate=0,0.6,1,0.6"),)
    follow = Watcher(Watched(track=Tracking(Tracker.BYTETRACK, conf=0.25), line=gate))
    track_classes = []
    zones_and_lines = []
    for number, class_id in enumerate([1, 1, 0, 0, 1, 1, 1, 0]):
        box = (100, 100, 200, 268 + 3 * number, 0.9, class_id)
        record = frame(number, FILM, size=SIZE)
        faint = (400, 9, 450, 99, 0.2, 0)  # begins no track
        record = follow(replace(record, detections=detected([box, faint])))
        with_track, without_track = record.to_json()["detections"]
        assert "track_class" not in without_track
        track_classes.append(with_track.get("track_class"))
        zones_and_lines += record.detections.zones_and_lines()
    assert track_classes == [None, "car", "car", "person", "car", "car", "car", "car"]
    assert zones_and_lines == [("gate right", "car")]


@pytest.mark.parametrize("tracker", Tracker)
def test_the_older_of_two_tracks_of_an_object_stays(tracker):
    first = (100, 100, 200, 300, 0.9, 0)
    second = (100, 115, 200, 315, 0.8, 0)
    frames = [[first]] * 6 + [[first, second]] * 6 + [[second]] * 6
    numbers = list(numbers_of(tracker, frames))
    assert numbers[9:12] == [[1, 2]] * 3
    assert numbers[12:] == [[1]] * 6


@pytest.mark.parametrize("tracker", Tracker)
def test_an_object_has_its_number_in_the_second_frame_and_at_once_when_it_is_back(tracker):
    first = (100, 100, 200, 300, 0.9, 0)
    second = (400, 100, 500, 300, 0.8, 0)
    frames = [[first]] * 6 + [[first, second]] * 2 + [[first]] * 2 + [[second, first]]
    numbers = list(numbers_of(tracker, frames))
    assert numbers[6:] == [[1, -1], [1, 2], [1], [1], [2, 1]]


@pytest.mark.parametrize("tracker", Tracker)
def test_who_passes_in_front_of_another_keeps_the_number(tracker):
    frames = []
    for number in range(80):
        left_in_front = 400.0 - 5 * number
        left_behind = 5.0 * number
        boxes_in_frame = []
        if number > 2:
            boxes_in_frame.append((left_in_front, 105, left_in_front + 100, 305, 0.9, 0))
        is_hidden = abs(left_behind - left_in_front) < 60
        if not is_hidden:
            boxes_in_frame.append((left_behind, 100, left_behind + 100, 300, 0.8, 0))
        frames.append(boxes_in_frame)
    numbers = list(numbers_of(tracker, frames))
    assert numbers[20] == [2, 1]
    assert numbers[-1][0] == 2


@pytest.mark.parametrize(("tracker", "end"), [("bytetrack", 8), ("botsort", 8), ("ocsort", 4)])
def test_a_low_score_begins_no_track_and_goes_on_with_one_but_in_ocsort(tracker, end):
    rng = np.random.default_rng(0)
    follow = watch(tracker, conf=0.9)
    for number in range(8):
        record = seen(number, rng, missed=0, count=1)
        score = 0.95 if number in {2, 3} else 0.4
        detections = replace(record.detections, score=np.array([score], np.float32))
        record = follow(replace(record, detections=detections))
        track_id = 1 if 3 <= number < end else -1
        assert record.detections.track_id.tolist() == [track_id], number


edges = st.one_of(st.floats(-1e4, 1e4, width=32), st.sampled_from([0.0, 3e38, -3e38, 1e-30]))
odd_boxes = st.tuples(edges, edges, edges, edges)
odd_frames = st.lists(st.lists(odd_boxes, max_size=4), max_size=6)


@pytest.mark.parametrize("tracker", Tracker)
@pytest.mark.filterwarnings("ignore:overflow")
@settings(max_examples=40)
@given(frames=odd_frames)
def test_no_box_ends_the_run(tracker, frames):
    follow = watch(tracker)
    for number, rows in enumerate(frames):
        time_s = [0.0, None, 5.0][number % 3]
        record = frame(number, FILM, count=len(rows), time_s=time_s)
        xyxy = np.array(rows, np.float32).reshape(-1, 4)
        detections = replace(record.detections, xyxy=xyxy)
        track_id = follow(replace(record, detections=detections)).detections.track_id
        numbers = track_id[track_id > 0].tolist()
        assert len(set(numbers)) == len(numbers)


def test_the_library_may_be_old_or_missing(monkeypatch):
    assert set(tracks.CLASSES) == set(Tracker)
    monkeypatch.delattr("trackers.BoTSORTTracker")
    with pytest.raises(DependencyError, match="no botsort") as error:
        watch(Tracker.BOTSORT)
    assert "detcli[track]" in error.value.hint
    monkeypatch.setitem(sys.modules, "trackers", None)
    with pytest.raises(DependencyError, match="trackers does not load") as error:
        watch()
    assert "detcli[track]" in error.value.hint


@pytest.mark.parametrize(
    ("text", "tracking"),
    [
        ("bytetrack", Tracking(Tracker.BYTETRACK)),
        ("ocsort, conf=0.5", Tracking(Tracker.OCSORT, conf=0.5)),
        ("botsort,conf=1", Tracking(Tracker.BOTSORT, conf=1)),
    ],
)
def test_options_are_read_and_written(text, tracking):
    assert Tracking.parse(text) == tracking
    assert Tracking.parse(str(tracking)) == tracking


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sort",
        "ByteTrack",
        "bytetrack,",
        "bytetrack,0.5",
        "bytetrack,conf=2",
        "ocsort,conf=nan",
        "bytetrack,conf=x",
        "bytetrack,conf=0.5,lost=2",
    ],
)
def test_a_malformed_option_is_a_usage_error(text):
    with pytest.raises(UsageError, match="--track"):
        Tracking.parse(text)


def test_a_detection_without_a_track_has_no_class_and_no_trail_of_one():
    video_tracks = tracks.VideoTracks(Tracking(Tracker.BYTETRACK, conf=0.25), frame(0))
    detections = detected(
        [(0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.8, 1), (80, 0, 90, 9, 0.7, 1)]
    )
    classes, traces = video_tracks.follow(np.array([-1, 3, -1]), detections, SIZE)
    assert classes.tolist() == [None, "car", None]
    assert list(traces) == [3]
    assert traces[3].tolist() == [[55, 60]]
