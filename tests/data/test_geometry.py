"""Letterbox arithmetic, on the way in and on the way out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.data.geometry import (
    Image,
    Letterbox,
    are_visible,
    area,
    bottom_centres,
    clipped,
    intersection_boxes,
    new_image,
    overlap,
    touching,
)

SIDES = st.integers(1, 5000)


def test_an_image_has_three_channels():
    image = Image.whole(new_image((2, 5)))
    assert image.size == (2, 5)
    assert image.pixels.shape == (2, 5, 3)


def test_an_image_is_plain_by_default():
    assert Image.whole(new_image((2, 5))).is_plain


@pytest.mark.parametrize(
    ("image", "canvas", "longest", "resized", "top", "left"),
    [
        ((640, 640), (640, 640), None, (640, 640), 0, 0),
        ((1080, 810), (640, 640), None, (640, 480), 0, 80),
        ((720, 1280), (640, 640), None, (360, 640), 140, 0),
        ((720, 1280), (384, 640), None, (360, 640), 12, 0),
        ((427, 640), (640, 640), None, (427, 640), 106, 0),  # 106 rows above, 107 below
        ((1, 5000), (640, 640), None, (1, 640), 319, 0),
        ((5000, 1), (640, 640), None, (640, 1), 0, 319),
        ((1, 1), (640, 640), None, (640, 640), 0, 0),
        ((480, 640), (640, 640), 636, (477, 636), 81, 2),  # as YOLO-NAS's processing places it
        ((640, 480), (640, 640), 636, (636, 477), 2, 81),
        ((100, 100), (640, 640), 636, (636, 636), 2, 2),
        ((100, 100), (640, 640), 700, (640, 640), 0, 0),
    ],
)
def test_placement(image, canvas, longest, resized, top, left):
    letterbox = Letterbox.fit(image, canvas, longest)
    assert letterbox.resized == resized
    assert letterbox.top == top
    assert letterbox.left == left


@given(SIDES, SIDES, st.sampled_from([(640, 640), (384, 640), (32, 32)]))
def test_the_image_fits_on_the_canvas(height, width, canvas):
    letterbox = Letterbox.fit((height, width), canvas)
    for axis, offset in enumerate((letterbox.top, letterbox.left)):
        assert letterbox.resized[axis] >= 1
        assert offset >= 0
        assert offset + letterbox.resized[axis] <= canvas[axis]


@given(st.integers(50, 5000), st.integers(50, 5000))
def test_the_placed_image_maps_back_to_the_whole_image(height, width):
    letterbox = Letterbox.fit((height, width), (640, 640))
    box = [letterbox.left, letterbox.top] + [
        letterbox.left + letterbox.resized[1],
        letterbox.top + letterbox.resized[0],
    ]
    mapped = letterbox.to_image(np.array([box], np.float32))
    # rounding to whole canvas pixels is worth up to half of one
    np.testing.assert_allclose(mapped, [[0, 0, width, height]], atol=0.51 / letterbox.scale[0])


def test_boxes_are_clipped_to_the_image():
    letterbox = Letterbox.fit((100, 200), (64, 64))
    outside = np.array([[-50, -50, 900, 900], [0, 0, 1, 1]], np.float32)
    np.testing.assert_array_equal(
        clipped(letterbox.to_image(outside), (100, 200)),
        [[0, 0, 200, 100], [0, 0, np.float32(1 / 0.32), 0]],
    )
    none = letterbox.to_image(np.empty((0, 4), np.float32))
    assert none.shape == (0, 4)
    assert none.dtype == np.float32


@pytest.mark.parametrize(
    ("shows", "boxes"),
    [
        (True, [(-50, -50, 900, 900), (-5, 10, 0.01, 20), (0, 10, 0, 20), (200, 10, 200, 20)]),
        (True, [(30, 10, 30, 10), (-np.inf, 0, np.inf, 1)]),
        (False, [(-0.5, 10, 0, 20), (10, -0.5, 20, 0)]),
        (False, [(-5, 10, 0, 20), (-5, 10, -1, 20), (200, 10, 210, 20), (10, -9, 20, -1)]),
        (False, [(10, 100, 20, 101), (30, 10, 20, 20)]),
    ],
)
def test_what_shows_of_a_box(shows, boxes):
    assert are_visible(np.array(boxes, np.float32), (100, 200)).tolist() == [shows] * len(boxes)


def test_in_the_corner_sides_are_rounded_down():
    letterbox = Letterbox.fit((427, 640), (416, 416), corner=True)
    assert letterbox.resized == (277, 416)  # of 277.55
    assert letterbox.top == 0
    assert letterbox.left == 0
    assert letterbox.scale == (0.65, 0.65)
    assert Letterbox.fit((1, 5000), (640, 640), corner=True).resized == (1, 640)


def test_a_stretched_image_maps_back_along_each_axis():
    letterbox = Letterbox.stretched((480, 640), (320, 320))
    mapped = letterbox.to_image(np.array([[0, 0, 320, 320], [160, 80, 240, 160]], np.float32))
    np.testing.assert_allclose(mapped, [[0, 0, 640, 480], [320, 120, 480, 240]], rtol=1e-6)


@pytest.mark.parametrize(
    ("image", "canvas", "bordered_size", "border", "scale"),
    [
        ((720, 1280), (128, 128), (1280, 1280), (280, 0), (0.1, 0.1)),
        ((1280, 720), (128, 128), (1280, 1280), (0, 280), (0.1, 0.1)),
        ((100, 400), (128, 256), (200, 400), (50, 0), (0.64, 0.64)),
        ((400, 100), (128, 256), (400, 800), (0, 350), (0.32, 0.32)),
        ((200, 400), (128, 256), (200, 400), (0, 0), (0.64, 0.64)),
        ((5, 10), (20, 20), (10, 10), (2, 0), (2, 2)),  # two rows above, three below
    ],
)
def test_an_image_is_padded_to_the_proportions_of_the_canvas(
    image, canvas, bordered_size, border, scale
):
    letterbox = Letterbox.padded_first(image, canvas)
    assert letterbox.bordered_size == bordered_size
    assert letterbox.border == border
    assert letterbox.scale == scale
    assert letterbox.resized == canvas


def test_the_border_of_an_image_that_is_padded_first_is_not_of_the_image():
    boxes = np.array([[0, 32, 256, 96], [64, 48, 128, 64]], np.float32)
    wide = Letterbox.padded_first((100, 400), (128, 256)).to_image(boxes)
    np.testing.assert_allclose(wide, [[0, 0, 400, 100], [100, 25, 200, 50]], rtol=1e-6)
    high = Letterbox.padded_first((400, 100), (256, 128)).to_image(boxes[:, [1, 0, 3, 2]])
    np.testing.assert_allclose(high, [[0, 0, 100, 400], [25, 100, 50, 200]], rtol=1e-6)


def plain_shortest_edge(height, width, size, max_size):
    """What `get_size_with_aspect_ratio` of Hugging Face's Transformers is documented to do."""
    raw = None
    if max(height, width) / min(height, width) * size > max_size:
        raw = max_size * min(height, width) / max(height, width)
        size = round(raw)
    if min(height, width) == size:
        return height, width
    if width < height:
        return int((raw or size) * height / width), size
    return size, int((raw or size) * width / height)


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([(800, 1333), (256, 427)]))
def test_by_shortest_edge(height, width, edges):
    shortest, longest = edges
    new_height, new_width = plain_shortest_edge(height, width, shortest, longest)
    letterbox = Letterbox.by_shortest_edge((height, width), shortest, longest)
    assert letterbox.canvas == (max(1, new_height), max(1, new_width))
    assert letterbox.resized == letterbox.canvas
    rounded = Letterbox.by_shortest_edge((height, width), shortest, longest, multiple=16)
    rounded_height = new_height - new_height % 16
    rounded_width = new_width - new_width % 16
    assert rounded.canvas == (max(16, rounded_height), max(16, rounded_width))


def test_by_shortest_edge_as_published():
    """Transformers' documentation of DETR shows this image as `[1, 3, 800, 1066]`."""
    assert Letterbox.by_shortest_edge((480, 640), 800, 1333).canvas == (800, 1066)


@pytest.mark.parametrize(
    ("one", "other", "shared", "iou"),
    [
        ((10, 10, 50, 50), (12, 9, 50, 50), (12, 10, 50, 50), 38 * 40 / (1600 + 38 * 41 - 38 * 40)),
        ((0, 0, 50, 30), (10, 20, 40, 60), (10, 20, 40, 30), 1 / 8),
        ((0, 0, 4, 4), (4, 0, 8, 4), (4, 0, 4, 4), 0),  # they touch
        ((0, 0, 4, 4), (6, 7, 8, 9), (6, 7, 6, 7), 0),
        ((0, 5, 0, 9), (0, 5, 0, 9), (0, 5, 0, 9), 0),  # without an area
        ((4, 4, 0, 0), (0, 0, 4, 4), (4, 4, 4, 4), 0),  # swapped corners
    ],
)
def test_what_two_boxes_share(one, other, shared, iou):
    left = np.array(one, np.float32)
    right = np.array(other, np.float32)
    assert intersection_boxes(left, right).tolist() == list(shared)
    assert overlap(left, right) == overlap(right, left) == pytest.approx(iou)
    rows = overlap(np.stack([left, right])[:, None], right)
    assert rows.shape == (2, 1)
    assert rows.dtype == np.float32
    assert area(intersection_boxes(left, right)) <= area(left)
    assert area(np.array([[4, 4, 0, 0], [0, 0, 4, 4]])).tolist() == [0, 16]


def test_boxes_smaller_than_a_pixel_overlap_as_others_do():
    box = np.array([0, 0, 0.5, 0.5], np.float32)
    beside = np.array([0.25, 0, 0.75, 0.5], np.float32)
    assert overlap(box, box) == 1
    assert overlap(box, beside) == pytest.approx(1 / 3)
    assert area(box) == 0.25


@pytest.mark.parametrize(
    ("rectangle", "touches"),
    [
        ((10, 50, 20, 60), True),
        ((0, 0, 100, 100), True),
        ((0, 40, 10, 50), True),  # at a corner
        ((20, 60, 30, 70), True),
        ((0, 52, 9.5, 58), False),
        ((20.5, 52, 30, 58), False),
        ((12, 40, 18, 49.5), False),
        ((12, 60.5, 18, 70), False),
    ],
)
def test_which_rectangles_touch_a_box(rectangle, touches):
    rectangles = np.array([(500, 500, 501, 501), rectangle], np.float32)
    indices = touching(rectangles, np.array([10, 50, 20, 60], np.float32))
    assert indices.tolist() == ([1] if touches else [])


@pytest.mark.parametrize(("multiple", "canvas"), [(1, (1, 427)), (16, (16, 416))])
def test_the_shorter_side_of_a_strip_has_a_multiple_of_pixels_at_least(multiple, canvas):
    assert Letterbox.by_shortest_edge((1, 3000), 256, 427, multiple).canvas == canvas


def test_an_object_stands_in_the_middle_of_the_lower_side_of_its_box():
    boxes = np.array([[10, 20, 30, 50], [0, 0, 4, 8], [1, 2, 2, 3]], np.float32)
    points = bottom_centres(boxes, (100, 200))
    assert points.tolist() == [[20, 50], [2, 8], [1.5, 3]]


def test_an_object_stands_within_the_image():
    beyond_the_end = np.array([[150, 50, 250, 120]], np.float32)
    assert bottom_centres(beyond_the_end, (100, 200)).tolist() == [[175, 100]]


def test_an_object_outside_of_the_image_stands_nowhere():
    boxes = np.array([[210, 10, 220, 20], [10, 10, 20, 20]], np.float32)
    points = bottom_centres(boxes, (100, 200))
    assert np.isnan(points[0]).all()
    assert points[1].tolist() == [15, 20]


def test_no_objects_stand_nowhere():
    assert bottom_centres(np.empty((0, 4), np.float32), (100, 200)).shape == (0, 2)
