"""Places of labels: the promises, on any boxes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcli.sink.label_layout import LabelLayout

IMAGE = (100, 80)  # width, height
SIZE = (20, 10)  # of a label


def rectangle(*sides):
    return np.array(sides, np.float32)


def layout(visible=(), gap=0):
    """A layout of labels in an image with boxes that are to stay visible."""
    return LabelLayout(IMAGE, np.array(visible, np.float32).reshape(-1, 4), gap)


def test_the_first_place_that_is_free_is_taken():
    labels = layout()
    box = rectangle(30, 30, 60, 60)
    above, inside, below = (30, 20), (30, 30), (30, 60)
    to_the_left, to_the_right = (10, 30), (60, 30)
    for corner in (above, inside, below, to_the_left, to_the_right):
        assert labels.place(box, SIZE, 0.15) == corner


def test_a_point_may_be_covered():
    point = rectangle(30, 40, 30, 40)  # without an area
    assert layout([point]).place(point, SIZE, 0.15) == (30, 30)


@pytest.mark.parametrize(("gap", "corner"), [(0, (30, 30)), (1, (30, 60))])
def test_labels_touch_only_without_a_gap(gap, corner):
    labels = layout(gap=gap)
    assert labels.place(rectangle(10, 40, 30, 60), SIZE, 0.15) == (10, 30)
    assert labels.place(rectangle(50, 40, 70, 60), SIZE, 0.15) == (50, 30)
    assert labels.place(rectangle(30, 40, 50, 60), SIZE, 0.15) == corner


def test_small_boxes_stay_visible_and_large_ones_need_not():
    box = rectangle(30, 40, 70, 60)
    small = (32, 31, 42, 39)
    large = (0, 0, 100, 80)
    assert layout([large]).place(box, SIZE, 0.15) == (30, 30)
    assert layout([small]).place(box, SIZE, 0.15) != (30, 30)
    assert layout([small]).place(box, SIZE, 1) == (30, 30)


def test_all_labels_together_leave_a_box_visible():
    """Each alone would cover an eighth."""
    labels = layout([(0, 0, 40, 40)])
    covered = 0
    for x in (0, 20, 0, 20):
        left, top = labels.place(rectangle(x, 20, x + 10, 40), SIZE, 0.3)
        covered += max(0, min(40, left + 20) - left) * max(0, min(40, top + 10) - top)
    assert 0 < covered <= 0.3 * 40 * 40


def test_no_place():
    box = rectangle(0, 0, 100, 80)
    assert layout().place(box, (101, 10), 1) is None
    labels = layout()
    assert labels.place(box, (100, 80), 1) == (0, 0)
    assert labels.place(box, SIZE, 1) is None


def draw_box(draw):
    left, right = sorted(draw(st.tuples(st.integers(0, 100), st.integers(0, 100))))
    top, bottom = sorted(draw(st.tuples(st.integers(0, 80), st.integers(0, 80))))
    return left, top, right, bottom


@given(st.data())
def test_the_promises_hold_for_any_boxes(data):
    """Counted on a raster: labels lie apart, within the image, and boxes stay visible."""
    visible = [draw_box(data.draw) for _ in range(data.draw(st.integers(0, 6)))]
    cover = data.draw(st.sampled_from([0, 0.15, 0.5, 1]))
    labels = layout(visible)
    raster = np.zeros((80, 100), int)
    for _ in range(data.draw(st.integers(1, 8))):
        width, height = data.draw(st.tuples(st.integers(1, 110), st.integers(1, 90)))
        box = np.array(draw_box(data.draw), np.float32)
        corner = labels.place(box, (width, height), cover)
        if corner is not None:
            left, top = corner
            before = raster.sum()
            raster[top : top + height, left : left + width] += 1
            assert raster.sum() - before == width * height
    assert raster.max() <= 1
    for left, top, right, bottom in visible:
        hidden = raster[top:bottom, left:right]
        assert hidden.sum() <= cover * hidden.size + 1e-3
