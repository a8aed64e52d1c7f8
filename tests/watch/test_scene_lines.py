"""Crossings of lines, against supervision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import frame, picture

from detcli.core.config import Config, Watched
from detcli.core.errors import UsageError
from detcli.core.values import Shape, Tracking
from detcli.watch import Watcher, scene
from detcli.watch.scene import Crossings

LINE = np.float32([(10, 50), (90, 50)])  # from left to right, so left is above


def walk(*points, ends=LINE):
    """The sides to which one track crosses a line."""
    crossings = Crossings()
    return [crossings.side(ends, 1, np.float32(point)) for point in points]


def test_crossings():
    for points, *sides in (
        ([(50, 90), (50, 10)], "left"),
        ([(50, 10), (50, 90)], "right"),
        ([(50, 90), (50, 50), (50, 10)], None, "left"),  # a stop on the line
        ([(50, 90), (50, 50), (50, 90)], None, None),  # and back
        ([(50, 90), (50, 10), (50, 90)], "left", "right"),
        ([(95, 90), (95, 10)], None),  # past its end
        ([(5, 60), (5, 40), (50, 40), (50, 60)], None, None, "right"),
        ([(50, 90), (np.nan, np.nan), (50, 10)], None, "left"),
        ([(50, 50), (50, 10)], None),  # it began on the line
    ):
        assert walk(*points) == [None, *sides], points


def test_tracks_are_told_apart():
    crossings = Crossings()
    for track, y in ((1, 90), (2, 10), (1, 10), (2, 90), (3, 90)):
        crossings.side(LINE, track, np.float32((50, y)))
    assert crossings.count == {"left": 1, "right": 1}


step = st.tuples(st.integers(20, 80), st.integers(0, 200).filter(lambda y: y % 100 > 3))


@settings(max_examples=60)
@given(st.lists(step, min_size=2, max_size=20))
def test_random_walks_cross_as_supervision_counts_them(points):
    supervision = pytest.importorskip("supervision")
    ends = np.float32([(0, 100), (100, 100)])
    line = supervision.LineZone(
        start=supervision.Point(0, 100),
        end=supervision.Point(100, 100),
        triggering_anchors=[supervision.Position.BOTTOM_CENTER],
    )
    theirs = []
    for x, y in points:
        box = np.array([[x - 5, y - 9, x + 5, y]], np.float32)
        found = supervision.Detections(xyxy=box, tracker_id=np.array([1]), class_id=np.array([0]))
        came_in, went_out = line.trigger(found)
        theirs.append("left" if came_in[0] else "right" if went_out[0] else None)
    assert walk(*points, ends=ends) == theirs


def test_a_frame_without_detections_still_shows_its_lines():
    gate = tuple(Shape.lines("gate=0,0.5,1,0.5"))
    watch = Watcher(Watched(line=gate, track=Tracking.parse("ocsort,conf=0.25")))
    for number in range(3):
        record = watch(frame(number))
        assert [caption for caption, _ in record.scene.lines] == ["gate 0 left, 0 right"]
    assert watch(picture()).scene.lines == ()  # a photo has no tracks


def test_memory_does_not_grow_with_the_tracks_of_a_stream(monkeypatch):
    monkeypatch.setattr(scene, "REMEMBERED", 3)
    crossings = Crossings()
    for number in range(1, 20):
        crossings.side(LINE, number, np.float32((50, 90)))
        assert crossings.side(LINE, number, np.float32((50, 10))) == "left"
    assert len(crossings._seen) == 3  # noqa: SLF001


def test_a_line_needs_tracks():
    gate = tuple(Shape.lines("gate=0,0,1,1"))
    with pytest.raises(UsageError, match="--line needs --track"):
        Config(watched=Watched(line=gate))
    with pytest.raises(UsageError, match="gate is given twice"):
        Watched(zone=tuple(Shape.zones("gate=0,0,1,0,1,1")), line=gate)
