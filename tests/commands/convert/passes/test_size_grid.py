"""The anchor grid of one size, made anew for another."""

import grid_model
import numpy as np
import pytest

from detcli.commands.convert.passes.size import Grid, regenerated


@pytest.mark.parametrize(
    ("size", "anchors", "strides"),
    [
        ((640, 640), 8400, (8, 16, 32)),
        ((320, 320), 2100, (8, 16, 32)),
        ((384, 640), 5040, (8, 16, 32)),
        ((640, 640), 34000, (4, 8, 16, 32)),
        ((64, 64), 64, (8,)),
        ((1280, 1280), 34000, (8, 16, 32, 64)),
    ],
)
def test_strides_are_found_by_the_number_of_anchors(size, anchors, strides):
    grid = Grid.of(size, anchors)
    assert (grid.strides, grid.anchors) == (strides, anchors)


@pytest.mark.parametrize(("size", "anchors"), [((640, 640), 8401), ((100, 100), 99), ((64, 64), 0)])
def test_another_number_is_no_grid(size, anchors):
    assert Grid.of(size, anchors) is None


OLD, NEW = Grid((64, 64), (8, 16)), Grid((96, 96), (8, 16))


def fields(size):
    """Constants that exporters write, by name."""
    points, strides = grid_model.anchors(size), grid_model.strides(size)
    return {
        "centres": points,
        "centres, last": np.ascontiguousarray(points[0].T),
        "corners": points - 0.5,
        "pixels": points * strides,
        "corner pixels": (points - 0.5) * strides,
        "strides": strides,
        "strides, flat": strides[0],
        "strides, four": np.repeat(strides[:, None], 4, axis=1),
        "half": (points * strides).astype(np.float16),
    }


@pytest.mark.parametrize("name", fields(64))
def test_what_exporters_write_is_made_anew(name):
    made = regenerated(fields(64)[name], OLD, NEW)
    np.testing.assert_array_equal(made, fields(96)[name], strict=True)
    assert made.flags.c_contiguous


def test_anything_else_is_not():
    points = grid_model.anchors(64)
    points[0, 1, 7] += 0.25
    assert regenerated(points, OLD, NEW) is None
