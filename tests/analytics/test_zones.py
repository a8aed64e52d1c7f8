"""Zones, against shapely and supervision."""

from dataclasses import replace

import numpy as np
import optional
import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from json_lines import column_of
from sample_records import captions_of, failure, image

from detcli.analytics import Watcher
from detcli.analytics.zones import inside
from detcli.config.shapes import Zone
from detcli.config.watched import Watched
from detcli.core.errors import DetcliWarning, UsageError

SIZE = 100

coordinate = st.integers(0, SIZE * 4).map(lambda number: number / 4)
# No corner twice: of an outline drawn twice, which encloses nothing by our rule, shapely keeps one.
corners = st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=9, unique=True)


def polygon(points):
    return np.array(points, np.float32)


SQUARE = polygon([(10, 10), (30, 10), (30, 30), (10, 30)])


def test_edges_belong_to_a_zone():
    inner = [(20, 20), (10, 20), (30, 30)]
    outer = [(9.99, 20), (20, 30.01), (np.nan, np.nan)]
    assert inside(polygon(inner), SQUARE).tolist() == [True, True, True]
    assert inside(polygon(outer), SQUARE).tolist() == [False, False, False]
    assert inside(np.empty((0, 2), np.float32), SQUARE).shape == (0,)


@given(corners, st.lists(st.tuples(coordinate, coordinate), min_size=1, max_size=20))
def test_points_in_random_polygons_are_where_shapely_has_them(corners_of_zone, points):
    """Also where edges cross: shapely mends such a polygon by the even-odd rule."""
    area = shapely.Polygon(corners_of_zone)
    edge = shapely.LinearRing(corners_of_zone)
    if not area.is_valid:
        area = shapely.make_valid(area)
    assume(area.area > 0)
    are_inside = inside(polygon(points), polygon(corners_of_zone))
    for point, is_inside in zip(points, are_inside, strict=True):
        shapely_point = shapely.Point(point)
        if edge.distance(shapely_point) > 1e-3:
            assert is_inside == area.covers(shapely_point), point


@pytest.mark.slow
@settings(max_examples=50)
@given(st.randoms(use_true_random=False))
def test_random_boxes_are_in_the_zones_that_supervision_finds(random):
    """supervision looks a whole pixel up in a mask, so boxes end amid pixels, far from edges."""
    supervision = optional.require("supervision")
    points = []
    for _ in range(random.randint(3, 7)):
        points.append((random.randrange(SIZE), random.randrange(SIZE)))
    edge = shapely.LinearRing(points)
    assume(edge.is_simple and shapely.Polygon(points).area > 0)
    boxes = []
    while len(boxes) < 20:
        x1, x2 = sorted(random.sample(range(SIZE), 2))
        y1, y2 = sorted(random.sample(range(SIZE), 2))
        if edge.distance(shapely.Point((x1 + x2) / 2, y2)) > 1.5:
            boxes.append((x1, y1, x2, y2))
    box_array = np.array(boxes, np.float32)
    zone = supervision.PolygonZone(np.array(points))
    by_supervision = zone.trigger(supervision.Detections(xyxy=box_array))
    corner_texts = [f"{x},{y}" for x, y in points]
    record = watched(box_array, ["zone=" + ",".join(corner_texts)])
    are_inside = [zones == ("zone",) for zones in record.detections.zones]
    assert are_inside == by_supervision.tolist()


def zoned(texts):
    """The option for zones that are given as texts."""
    return Watched(zone=tuple(Zone.parse(text) for text in texts))


def watched(boxes, zones):
    """The record of an image whose boxes were looked for in zones."""
    record = image(count=len(boxes))
    detections = replace(record.detections, xyxy=np.array(boxes, np.float32).reshape(-1, 4))
    square = replace(record.picture, size=(SIZE, SIZE))
    watch = Watcher(zoned(zones))
    return watch(replace(record, picture=square, detections=detections))


ZONES = ("left=0,0,0.5,0,0.5,1,0,1", "low=0,50,100,50,100,100,0,100")


def test_each_detection_has_its_zones():
    record = watched([(0, 0, 20, 30), (0, 0, 20, 90), (80, 0, 90, 100), (80, 0, 90, 9)], ZONES)
    zones = column_of(record.to_json()["detections"], "zones")
    assert zones == [["left"], ["left", "low"], ["low"], []]
    assert captions_of(record.overlay.zones) == ["left 2", "low 2"]
    in_zones = [("left", "cat"), ("low", "cat"), ("low", "cat")]
    assert list(record.detections[1:].zones_and_lines()) == in_zones
    zones_within = record.detections.within((SIZE, SIZE)).zones.tolist()
    assert zones_within == [("left",), ("left", "low"), ("low",), ()]


@pytest.mark.parametrize("points", ["100,0,200,0,200,50", "0,100,50,100,50,180"])
def test_a_zone_outside_of_the_image_is_warned_of_once(points):
    watch = Watcher(zoned([f"away={points}", "edge=50,50,180,50,180,180"]))
    square = replace(image().picture, size=(SIZE, SIZE))
    records = [replace(image("a.jpg"), picture=square), replace(image("b.jpg"), picture=square)]
    with pytest.warns(DetcliWarning) as warnings:
        watch(records[0])
    watch(records[1])  # a second warning would be an error
    (warning,) = warnings
    message = "the zone away is outside of a.jpg, which has 100x100 pixels"
    assert str(warning.message) == message


def test_an_image_without_detections_still_shows_its_zones():
    record = watched([], ZONES)
    assert record.to_json()["detections"] == []
    assert captions_of(record.overlay.zones) == ["left 0", "low 0"]


def test_without_zones_records_pass_as_they_are():
    record = image()
    assert Watcher(Watched())(record) is record
    assert "zones" not in record.to_json()["detections"][0]
    torn = failure()
    assert Watcher(zoned(ZONES))(torn) is torn


def test_two_zones_of_a_name_are_a_usage_error():
    with pytest.raises(UsageError, match="left is given twice"):
        zoned([ZONES[0], ZONES[0]])
    assert Zone.parse(ZONES[1]).name == "low"
