"""Boxes on images."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from sink.drawing import GREY, boxes_of, drawn, grey, luminance

from detcli.data.detections import Detections
from detcli.data.record import Overlay
from detcli.sink import colours, draw
from detcli.sink.colours import colour_of
from detcli.sink.draw import Style, annotate

SMOOTHED = 30  # what smoothing takes from a colour, even within a line


def test_the_output_is_a_copy():
    image = grey(100, 120)
    out = drawn(image, (20, 30, 80, 90))
    assert (image == GREY).all()
    assert out.shape == image.shape
    assert out.dtype == np.uint8
    assert (out != image).any()
    empty = annotate(image, Detections.empty(("cat",)))
    assert empty is not image
    np.testing.assert_array_equal(empty, image)


@pytest.mark.parametrize("box", [(-30, 5, -2, 20), (200, 5, 300, 20), (5, -90, 9, -1)])
def test_a_box_outside_the_image_is_not_drawn(box):
    np.testing.assert_array_equal(drawn(grey(200, 200), box), grey(200, 200))


@pytest.mark.parametrize(
    ("box", "within"),
    [
        ((-50, 50, 90, 150), (0, 50, 90, 150)),
        ((50, -70, 150, 90), (50, 0, 150, 90)),
        ((120, 120, 900, 900), (120, 120, 200, 200)),
        ((-3e38, -3e38, 3e38, 3e38), (0, 0, 200, 200)),
    ],
)
def test_a_box_that_reaches_beyond_the_image_ends_at_its_edges(box, within):
    np.testing.assert_array_equal(drawn(grey(200, 200), box), drawn(grey(200, 200), within))


def test_the_box_is_at_the_detection():
    out = drawn(grey(200, 200), (60, 80, 160, 180))
    colour = colour_of(0)
    for x, y in ((60, 130), (160, 130), (110, 180), (160, 80)):
        np.testing.assert_allclose(out[y, x], colour, atol=SMOOTHED)
    assert (out[90:170, 70:150] == GREY).all()
    assert (out[190:] == GREY).all()


@pytest.mark.parametrize(
    ("side", "line_width", "expected"),
    [
        (100, None, 1),
        (320, None, 1),
        (1280, None, 5),
        (3200, None, 11),
        (400, 1, 1),
        (400, 2, 2),
        (400, 7, 7),
        (400, 40, 40),
    ],
)
def test_the_line_grows_with_the_image_or_is_as_asked(side, line_width, expected):
    style = Style(line_width, frozenset())
    out = annotate(grey(side, side), boxes_of([(side // 4, 0, side * 3 // 4, side)]), style)
    row = (out[side // 2] == colour_of(0)).all(axis=-1)
    assert row[: side // 2].sum() == expected


def test_any_size_of_image_and_box_can_be_drawn():
    for size, relative in (
        ((1, 1), (0, 0, 1, 1)),
        ((1, 5000), (-1, -2, 3, 2)),
        ((5000, 1), (0.2, 0.2, 0.2, 0.2)),
        ((3, 7), (-1, -2, 3, 2)),
    ):
        height, width = size
        out = drawn(grey(height, width), np.array(relative) * (width, height, width, height))
        assert out.shape == (height, width, 3)
        assert (out == colour_of(0)).all(axis=-1).any()  # the box, where no label fits


def test_the_best_is_drawn_on_top():
    detections = Detections(
        np.array([[50, 100, 150, 200]] * 2, np.float32),
        np.array([0.9, 0.8], np.float32),
        np.array([0, 1]),
        ("cat", "dog"),
    )
    out = annotate(grey(300, 400), detections)
    np.testing.assert_allclose(out[200, 100], colour_of(0), atol=SMOOTHED)
    label = (slice(85, 99), slice(50, 80))  # that of the dog is wider
    np.testing.assert_array_equal(out[label], annotate(grey(300, 400), detections[:1])[label])


@pytest.mark.slow
def test_odd_names_do_not_stop_drawing():
    """Nor do they end the process, as OpenCV does for half of a surrogate pair."""
    code = """if True:
        import numpy as np
        from detcli.data.detections import Detections
        from detcli.sink.draw import annotate
        half = np.full(1, 0.5, np.float32)
        for name in ("", "\\n", "\\t", "\\0", "\\x1b[1m", "\\U0001f600", "x" * 1000, "\\udcff"):
            detections = Detections(np.ones((1, 4), np.float32), half, np.array([0]), (name,))
            annotate(np.zeros((60, 80, 3), np.uint8), detections)"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_box_is_seen_on_its_own_colour_and_on_white():
    """By a casing on both sides, that is darker than the line by 2:1 (WCAG 2) or more."""
    for number in range(80):
        colour = colour_of(number)
        for ground in (colour, (255, 255, 255)):
            image = np.full((300, 300, 3), ground, np.uint8)
            out = annotate(
                image, boxes_of([(50, 50, 250, 250)], class_id=number), Style(3, frozenset())
            )
            casing_and_line = out[150, 48:53]
            assert (casing_and_line[1:-1] == colour).all()
            for casing in (casing_and_line[0], casing_and_line[-1]):
                assert luminance(colour) / luminance(casing) > 2, number


def test_tracks_have_colours_of_their_own():
    """Two objects of a class are told apart, and from one that has no track yet."""
    detections = boxes_of([(10, 60, 60, 110), (110, 60, 160, 110), (210, 60, 260, 110)])
    detections = replace(detections, track_id=np.array([1, 2, -1]))
    overlay = Overlay(traces={2: np.float32([(135, 150), (135, 110)])})  # type: ignore[arg-type, dict-item]
    out = annotate(grey(200, 300), detections, Style(2, frozenset()), overlay)
    assert tuple(out[85, 10].tolist()) == colour_of(0)
    assert tuple(out[85, 110].tolist()) == colour_of(1)
    assert tuple(out[85, 210].tolist()) == colours.GREY
    assert tuple(out[140, 135].tolist()) == colour_of(1)


def test_the_whole_outline_of_a_box_at_the_border_is_visible():
    for side, line in ((60, 1), (64, 6), (700, None)):
        out = annotate(grey(side, side), boxes_of([(0, 0, side, side)]), Style(line, frozenset()))
        wide = line or 2
        coloured = (out == colour_of(0)).all(axis=-1)
        for edge in (coloured, coloured.T, coloured[::-1], coloured.T[::-1]):
            assert edge[:wide].all()
            assert edge[side // 2].sum() == 2 * wide


def test_a_line_of_one_pixel_has_a_casing_only_on_similar_colours():
    line_colour = colour_of(0)
    image = np.full((100, 100, 3), GREY, np.uint8)
    image[:, :50] = line_colour
    out = annotate(image, boxes_of([(20, 20, 80, 80)]), Style(1, frozenset()))
    on_grey = out[50, 79:82].tolist()
    assert on_grey == [[GREY] * 3, list(line_colour), [GREY] * 3]
    before, line, after = out[50, 19:22].tolist()
    assert tuple(line) == line_colour
    assert luminance(line_colour) / luminance(before) > 2
    assert luminance(line_colour) / luminance(after) > 2


def test_touching_boxes_of_one_class_have_different_shades():
    sides = ((20, 50, 60, 90), (60, 50, 100, 90), (100, 50, 140, 90), (150, 50, 190, 90))
    shades = draw.detection_colours(boxes_of(sides))
    assert shades[0] == colour_of(0)
    assert shades[1] != shades[0]
    assert shades[2] != shades[1]
    assert shades[3] == colour_of(0)  # touches no other
    all_touch = draw.detection_colours(boxes_of([(20, 50, 60, 90)] * 3))
    assert len(set(all_touch)) == 3


def test_touching_boxes_of_two_classes_keep_the_colours_of_their_classes():
    corners = np.array([(20, 50, 60, 90), (40, 50, 80, 90)], np.float32)
    detections = Detections(corners, np.float32([0.9, 0.8]), np.array([0, 1]), ("cat", "dog"))  # type: ignore[arg-type]
    assert draw.detection_colours(detections) == [colour_of(0), colour_of(1)]
