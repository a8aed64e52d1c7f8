"""Detections in polygons of --ignore, against shapely."""

from dataclasses import replace

import numpy as np
import pytest
import shapely
from hypothesis import assume, given
from hypothesis import strategies as st
from sample_records import captions_of, failure, image

from detcli.analytics import Watcher
from detcli.analytics.ignored import shares_inside
from detcli.config.watched import Watched
from detcli.core.errors import DetcliWarning
from detcli.data.record import Origin

SIZE = 100
LEFT = "0,0,0.5,0,0.5,1,0,1"

coordinate = st.integers(0, SIZE * 4).map(lambda number: number / 4)
corners = st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=9, unique=True)


def watched(watcher, boxes, source="a.jpg"):
    """The record of an image of 100x100 pixels with these boxes, after a watcher."""
    record = image(count=len(boxes))
    detections = replace(record.detections, xyxy=np.array(boxes, np.float32).reshape(-1, 4))
    square = replace(record.picture, size=(SIZE, SIZE))
    sample = replace(record, picture=square, detections=detections, origin=Origin(source))
    return watcher(sample)


def remaining(boxes, *texts, share=None, source="a.jpg"):
    """Which of some boxes are left where polygons are ignored."""
    watcher = Watcher(Watched(ignore=texts, ignore_share=share))
    record = watched(watcher, boxes, source)
    return [tuple(box) for box in record.detections.xyxy.tolist()]


def test_a_box_is_ignored_by_its_foot():
    foot_inside = (10, 10, 80, 60)  # the middle of its lower side is at x = 45
    foot_on_edge = (20, 10, 80, 60)
    foot_outside = (30, 10, 80, 60)
    boxes = [foot_inside, foot_on_edge, foot_outside]
    assert remaining(boxes, LEFT) == [foot_outside]


def test_a_box_is_ignored_by_its_share():
    half_inside = (20, 0, 80, 60)
    less_inside = (21, 0, 80, 60)
    assert remaining([half_inside, less_inside], LEFT, share=0.5) == [less_inside]
    assert remaining([half_inside, less_inside], LEFT, share=0.51) == [half_inside, less_inside]


def test_only_the_part_of_a_box_in_the_image_has_a_share():
    """Of the whole box, a third would be in the polygon."""
    beyond_the_image = (40, 0, 60, 300)
    lower_half = "0,0,1,0,1,1,0,1"
    assert remaining([beyond_the_image], lower_half, share=1) == []


def test_a_box_without_an_area_has_no_share():
    flat = (10, 10, 20, 10)
    assert remaining([flat], LEFT, share=0.5) == [flat]
    assert remaining([flat], LEFT) == []


def test_each_polygon_counts_for_the_sources_that_fit_its_pattern():
    box = (10, 10, 20, 20)
    pattern = f"site7/**={LEFT}"
    assert remaining([box], pattern, source="photos/site7/a.jpg") == []
    assert remaining([box], pattern, source="photos/site8/a.jpg") == [box]
    away = f"site8/**={LEFT}"
    assert remaining([box], away, pattern, source="photos/site7/a.jpg") == []


def test_what_is_ignored_is_in_no_zone_and_drawn():
    watcher = Watcher(Watched(ignore=LEFT, zone="all=0,0,1,0,1,1,0,1"))
    record = watched(watcher, [(10, 10, 20, 20), (60, 10, 70, 20)])
    assert captions_of(record.overlay.zones) == ["all 1"]
    assert len(record.to_json()["detections"]) == 1
    (polygon,) = record.overlay.ignored
    np.testing.assert_array_equal(polygon, [(0, 0), (50, 0), (50, 100), (0, 100)])


def test_what_is_ignored_has_no_track():
    pytest.importorskip("scipy")
    watcher = Watcher(Watched(ignore=LEFT, track="bytetrack,conf=0.1"))
    record = watched(watcher, [(10, 10, 20, 20), (60, 10, 70, 20)])
    assert len(record.detections) == 1


def test_records_that_no_polygon_is_for_pass_as_they_are():
    watcher = Watcher(Watched(ignore=f"site7/**={LEFT}"))
    record = image()
    assert watcher(record) is record
    torn = failure()
    assert watcher(torn) is torn


def test_patterns_that_fit_no_source_are_told():
    watcher = Watcher(Watched(ignore=[f"site7/**={LEFT}", f"site8/**={LEFT}", LEFT]))
    assert watcher.unmatched_patterns == ["site7/**", "site8/**"]
    watched(watcher, [], "site8/a.jpg")
    assert watcher.unmatched_patterns == ["site7/**"]
    assert Watcher(Watched()).unmatched_patterns == []


def test_a_polygon_outside_of_the_image_is_warned_of_once():
    watcher = Watcher(Watched(ignore="100,0,200,0,200,50"))
    with pytest.warns(DetcliWarning, match="is outside of a.jpg, which has 100x100 pixels"):
        watched(watcher, [], "a.jpg")
    watched(watcher, [], "b.jpg")  # a warning would be an error


def test_a_name_that_is_a_folder_is_warned_of():
    watcher = Watcher(Watched(ignore=f"site7={LEFT}"))
    with pytest.warns(DetcliWarning, match=r"site7/\*\*= before the numbers"):
        watched(watcher, [], "photos/site7/a.jpg")


def test_a_polygon_without_a_name_is_no_folder():
    """An absolute path begins with an empty name; a warning would be an error."""
    watcher = Watcher(Watched(ignore=LEFT))
    assert len(watched(watcher, [], "/photos/a.jpg").overlay.ignored) == 1


@given(corners, st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate), max_size=8))
def test_shares_of_random_boxes_are_as_shapely_has_them(points, box_points):
    """Also where edges cross: shapely mends such a polygon by the even-odd rule."""
    polygon = shapely.Polygon(points)
    if not polygon.is_valid:
        polygon = shapely.make_valid(polygon)
    assume(polygon.area > 0)
    boxes = []
    for x1, y1, x2, y2 in box_points:
        boxes.append((min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)))
    box_array = np.array(boxes, np.float32).reshape(-1, 4)
    shares = shares_inside(box_array, np.array(points, np.float32))
    for box, share in zip(boxes, shares.tolist(), strict=True):
        left, top, right, bottom = box
        rectangle = shapely.box(left, top, right, bottom)
        expected = 0.0
        if rectangle.area > 0:
            expected = polygon.intersection(rectangle).area / rectangle.area
        assert share == pytest.approx(expected, abs=1e-6)
