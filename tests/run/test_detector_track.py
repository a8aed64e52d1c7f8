"""Frames of a program's own, tracked by `Detector.track` as those of a video are."""

import itertools
import re

import number_video
import numpy as np
import optional
import pytest
from colour_model import image
from origins import frames_of, sources_of

from detcli import Detector, Settings, Watched, Zone, predict
from detcli.core.errors import InferenceError, UsageError

FPS = 12.5
FRAMES = 12
WATCHED = Watched(track="bytetrack", zones=["left=0,0,0.5,0,0.5,1,0,1"], lines=["gate=0.5,0,0.5,1"])


@pytest.fixture
def tracking_detector(make_model):
    with Detector(make_model(), "cpu", settings=Settings(conf=0.5, max_det=20)) as detector:
        yield detector


@pytest.fixture
def video_records(tracking_detector, tmp_path):
    """The records of the frames of a video."""
    film = number_video.write(tmp_path / "film.avi", FRAMES, rate=FPS, code="MJPG")
    return list(predict(film, tracking_detector, watched=WATCHED))


def images_of(records):
    """The pixels of the image of each record."""
    return [record.picture.pixels for record in records]


def track_ids_of(records):
    """The track ids of the detections of each record."""
    return [record.detections.track_id.tolist() for record in records]


def without_source(record):
    """The JSON of a record without the name of its source."""
    fields = dict(record.to_json())
    del fields["source"]
    return fields


@optional.needs("trackers")
def test_frames_have_the_tracks_of_a_video_of_these_frames(tracking_detector, video_records):
    frames = images_of(video_records)
    records = list(tracking_detector.track(frames, WATCHED, fps=FPS))
    assert len(records) == FRAMES
    track_ids = []
    for track_ids_of_frame in track_ids_of(records):
        track_ids += track_ids_of_frame
    assert max(track_ids) > 1
    for record, video_record in zip(records, video_records, strict=True):
        assert without_source(record) == without_source(video_record)
        assert record.overlay.traces.keys() == video_record.overlay.traces.keys()


@optional.needs("trackers")
def test_frames_without_a_rate_have_the_same_tracks_but_no_times(tracking_detector, video_records):
    frames = images_of(video_records)
    records = list(tracking_detector.track(frames))
    for record, video_record in zip(records, video_records, strict=True):
        track_id = record.detections.track_id
        np.testing.assert_array_equal(track_id, video_record.detections.track_id)
        assert record.origin.time_s is None


@optional.needs("trackers")
def test_two_videos_have_tracks_of_their_own(tracking_detector):
    frames = [image(("red", 1, 1)) for _ in range(4)]
    first_ids = track_ids_of(tracking_detector.track(frames))
    second_ids = track_ids_of(tracking_detector.track(frames))
    assert first_ids == second_ids


def test_frames_without_a_tracker_have_zones(tracking_detector, make_image):
    zone = Zone("left", [(0, 0), (0.5, 0), (0.5, 1), (0, 1)])
    path = make_image("a.png", ("red", 1, 1), ("blue", 6, 6))
    records = list(
        tracking_detector.track([path, image()], Watched(zones=[zone]), name="camera of ours")
    )
    zones = dict(zip(records[0].detections.class_name, records[0].detections.zones, strict=True))
    assert zones == {"red": ("left",), "blue": ()}
    assert sources_of(records) == ["camera of ours"] * 2
    assert frames_of(records) == [0, 1]
    assert len(records[1].detections) == 0


def test_a_frame_is_taken_only_when_its_record_is_asked_for(tracking_detector):
    taken = []

    def frames():
        for number in itertools.count():
            taken.append(number)
            yield image()

    records = tracking_detector.track(frames(), Watched())
    assert taken == []
    next(records)
    next(records)
    assert taken == [0, 1]


@pytest.mark.parametrize("fps", [0, -1, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(tracking_detector, fps):
    with pytest.raises(UsageError, match=f"fps is {re.escape(str(fps))}"):
        tracking_detector.track([], Watched(), fps=fps)


def test_arguments_of_another_type_are_refused(tracking_detector):
    with pytest.raises(UsageError, match="watched is the string 'bytetrack'"):
        tracking_detector.track([], "bytetrack")
    with pytest.raises(TypeError, match="got int"):
        next(tracking_detector.track([7], Watched()))


def test_a_closed_detector_tracks_nothing(make_model):
    detector = Detector(make_model(), "cpu")
    detector.close()
    with pytest.raises(InferenceError, match="the detector has been closed"):
        detector.track([image()], Watched())


def test_a_detector_sums_the_times_of_its_stages(tracking_detector):
    assert tracking_detector.times == {}
    tracking_detector(image())
    times = tracking_detector.times
    assert times.keys() == {"preprocess", "network", "selection", "waiting"}
    assert min(times.values()) >= 0
    tracking_detector(image())
    assert tracking_detector.times["network"] > times["network"]
    with tracking_detector.clone() as clone:
        assert clone.times == {}
