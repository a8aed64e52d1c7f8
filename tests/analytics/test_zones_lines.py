# mypy: disable-error-code=arg-type
"""Crossings of lines, against supervision."""

from dataclasses import replace

import numpy as np
import optional
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import FILM, Film, captions_of, detected, frame, image

from detcli.analytics import Watcher, zones
from detcli.analytics.zones import Crossings
from detcli.config.config import Config
from detcli.config.shapes import Line, Zone
from detcli.config.values import Tracker, Tracking
from detcli.config.watched import Watched
from detcli.core.errors import UsageError

LINE = np.float32([(10, 50), (90, 50)])  # from left to right, so left is above


def walk(points, ends=LINE):
    """The sides to which one track crosses a line."""
    crossings = Crossings()
    return [crossings.add(ends, 1, np.float32([point])) for point in points]


@pytest.mark.parametrize(
    ("points", "sides"),
    [
        ([(50, 90), (50, 10)], [None, "left"]),
        ([(50, 10), (50, 90)], [None, "right"]),
        ([(50, 90), (50, 50), (50, 10)], [None, None, "left"]),  # a stop on the line
        ([(50, 90), (50, 50), (50, 90)], [None, None, None]),  # and back
        ([(50, 90), (50, 10), (50, 90)], [None, "left", "right"]),
        ([(95, 90), (95, 10)], [None, None]),  # past its end
        ([(5, 60), (5, 40), (50, 40), (50, 60)], [None, None, None, "right"]),
        ([(50, 90), (np.nan, np.nan), (50, 10)], [None, None, "left"]),
        ([(50, 50), (50, 10)], [None, None]),  # it began on the line
    ],
)
def test_crossings(points, sides):
    assert walk(points) == sides


def test_tracks_are_told_apart():
    crossings = Crossings()
    for track, y in ((1, 90), (2, 10), (1, 10), (2, 90), (3, 90)):
        crossings.add(LINE, track, np.float32([(50, y)]))
    assert crossings.count == {"left": 1, "right": 1}


def test_a_new_track_comes_from_where_it_stood_first():
    for trace, side in (
        ([(50, 90), (50, 60), (50, 10)], "left"),
        ([(50, 50), (50, 10)], None),  # it began on the line
        ([(np.nan, np.nan), (50, 10)], None),
        ([(95, 90), (95, 10)], None),  # past its end
    ):
        assert Crossings().add(LINE, 1, np.float32(trace)) == side, trace


@pytest.mark.parametrize("tracker", Tracker)
def test_a_stride_loses_no_crossing(tracker):
    """Who crosses before the tracker is sure of him is counted in the frame where it is."""
    optional.require("trackers")
    gate = (Line.parse("gate=0,0.5,1,0.5"),)
    watch = Watcher(Watched(line=gate, track=Tracking(tracker, conf=0.25)))
    film = Film(FILM.source, FILM.frames_per_second / 3)
    crossings = []
    for number in range(0, 30, 3):
        # One is there from the first frame on, one comes later; each crosses in its second frame.
        bottom = 190 + 5 * number
        boxes = [(20, bottom - 90, 60, bottom, 0.9, 0)]
        if number >= 18:
            bottom = 100 + 5 * number
            boxes.append((200, bottom - 90, 240, bottom, 0.9, 0))
        record = frame(number, film, size=(400, 400))
        watched = watch(replace(record, detections=detected(boxes)))
        for crossed in watched.detections.crossed:
            crossings += crossed
    assert crossings == [("gate", "right"), ("gate", "right")]


step = st.tuples(st.integers(20, 80), st.integers(0, 200).filter(lambda y: y % 100 > 3))


@settings(max_examples=60)
@given(st.lists(step, min_size=2, max_size=20))
def test_random_walks_cross_as_supervision_counts_them(points):
    supervision = optional.require("supervision")
    ends = np.float32([(0, 100), (100, 100)])
    line = supervision.LineZone(
        start=supervision.Point(0, 100),
        end=supervision.Point(100, 100),
        triggering_anchors=[supervision.Position.BOTTOM_CENTER],
    )
    sides = []
    for x, y in points:
        box = np.array([[x - 5, y - 9, x + 5, y]], np.float32)
        detection = supervision.Detections(
            xyxy=box, tracker_id=np.array([1]), class_id=np.array([0])
        )
        (came_in,), (went_out,) = line.trigger(detection)
        side = None
        if came_in:
            side = "left"
        elif went_out:
            side = "right"
        sides.append(side)
    assert walk(points, ends=ends) == sides


@optional.needs("trackers")
def test_a_frame_without_detections_still_shows_its_lines():
    gate = (Line.parse("gate=0,0.5,1,0.5"),)
    watch = Watcher(Watched(line=gate, track=Tracking.parse("ocsort,conf=0.25")))
    for number in range(3):
        record = watch(frame(number))
        assert captions_of(record.overlay.lines) == ["gate 0 left, 0 right"]
    assert watch(image()).overlay.lines == ()  # a photo has no tracks


def test_memory_does_not_grow_with_the_tracks_of_a_stream(monkeypatch):
    monkeypatch.setattr(zones, "REMEMBERED", 3)
    crossings = Crossings()
    for number in range(1, 20):
        crossings.add(LINE, number, np.float32([(50, 90)]))
        assert crossings.add(LINE, number, np.float32([(50, 10)])) == "left"
    assert len(crossings._last_points) == 3  # noqa: SLF001


def test_a_line_needs_tracks():
    gate = (Line.parse("gate=0,0,1,1"),)
    with pytest.raises(UsageError, match="--line needs --track"):
        Config(watched=Watched(line=gate))
    with pytest.raises(UsageError, match="gate is given twice"):
        Watched(zone=(Zone.parse("gate=0,0,1,0,1,1"),), line=gate)
