"""Letterbox arithmetic, on the way in and on the way out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli import Letterbox

SIDES = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("picture", "canvas", "resized", "top", "left"),
    [
        ((640, 640), (640, 640), (640, 640), 0, 0),
        ((1080, 810), (640, 640), (640, 480), 0, 80),
        ((720, 1280), (640, 640), (360, 640), 140, 0),
        ((720, 1280), (384, 640), (360, 640), 12, 0),
        ((427, 640), (640, 640), (427, 640), 106, 0),  # 213 rows of padding: 106 above, 107 below
        ((1, 5000), (640, 640), (1, 640), 319, 0),
        ((1, 1), (640, 640), (640, 640), 0, 0),
    ],
)
def test_placement(picture, canvas, resized, top, left):
    letterbox = Letterbox.fit(picture, canvas)
    assert (letterbox.resized, letterbox.top, letterbox.left) == (resized, top, left)


@given(SIDES, SIDES, st.sampled_from([(640, 640), (384, 640), (32, 32)]))
def test_the_picture_fits_on_the_canvas(height, width, canvas):
    letterbox = Letterbox.fit((height, width), canvas)
    for axis, offset in enumerate((letterbox.top, letterbox.left)):
        assert letterbox.resized[axis] >= 1
        assert offset >= 0
        assert offset + letterbox.resized[axis] <= canvas[axis]


@given(st.integers(50, 5000), st.integers(50, 5000))
def test_the_placed_picture_maps_back_to_the_whole_picture(height, width):
    letterbox = Letterbox.fit((height, width), (640, 640))
    box = [
        *(letterbox.left, letterbox.top),
        *(letterbox.left + letterbox.resized[1], letterbox.top + letterbox.resized[0]),
    ]
    mapped = letterbox.to_picture(np.array([box], np.float32))
    # rounding to whole canvas pixels is worth up to half of one
    np.testing.assert_allclose(mapped, [[0, 0, width, height]], atol=0.51 / letterbox.gain)


def test_boxes_are_clipped_to_the_picture():
    letterbox = Letterbox.fit((100, 200), (64, 64))
    outside = np.array([[-50, -50, 900, 900], [0, 0, 1, 1]], np.float32)
    np.testing.assert_array_equal(
        letterbox.to_picture(outside), [[0, 0, 200, 100], [0, 0, np.float32(1 / 0.32), 0]]
    )


def test_no_boxes():
    mapped = Letterbox.fit((10, 10), (64, 64)).to_picture(np.empty((0, 4), np.float32))
    assert mapped.shape == (0, 4)
    assert mapped.dtype == np.float32
