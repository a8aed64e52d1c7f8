import numpy as np
import pytest

from detcli.commands.verify.tensors import compare_tensors, rank

LIMIT = 0.01
nan, inf = np.nan, np.inf


def compare(left, right, dtype=np.float32, limit=LIMIT, source="a.jpg"):
    return compare_tensors("t", np.array(left, dtype), np.array(right, dtype), limit, source)


@pytest.mark.parametrize(
    ("left", "right", "agrees", "figures"),
    [
        ([4, 1, 0], [4, 2, 0], False, (1, 0.5, 0.25, 18 / np.sqrt(17 * 20))),
        ([1, -2], [1, -2], True, (0, 0, 0, 1)),
        ([100, 1], [100, 2], True, (1, 0.5, 0.01, 10002 / np.sqrt(10001 * 10004))),  # the limit
        ([100, 1], [100, 2.01], False, None),
        ([[1, 2]], [[1], [2]], False, (None,) * 4),
        ([nan, inf, 3], [nan, inf, 3], True, (0, 0, 0, 1)),
        ([nan, 3], [3, 3], False, (0, 0, 0, 1)),
        ([inf, 3], [-inf, 3], False, (0, 0, 0, 1)),
        ([65504, 3], [inf, 3], False, None),
        ([nan], [nan], True, (None,) * 4),
        ([nan], [inf], False, (None,) * 4),
        ([], [], True, (None,) * 4),
        ([0, 0], [0, 0], True, (0, 0, 0, 1)),
        ([0, 0], [0, 0.5], False, (0.5, 1, 1, 0)),
    ],
)
def test_the_figures(left, right, agrees, figures):
    report = compare(left, right)
    assert report.agrees == agrees
    found = report.max_absolute, report.max_relative, report.max_scaled, report.cosine
    assert figures is None or found == pytest.approx(figures)
    assert (report.left.shape, report.right.shape) == (np.shape(left), np.shape(right))


def test_the_sides():
    side = compare([nan, inf, -inf, 3, 0], [1, 1, 1, 1, 1]).left
    assert (side.nan, side.infinite, side.least, side.greatest) == (1, 2, 0, 3)


def test_squares_of_large_numbers_would_overflow():
    assert compare([1e300, 1e300], [1e300, 1e300], np.float64).cosine == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8, np.float16])
def test_other_types(dtype):
    report = compare([1, 0], [0, 0], dtype)
    assert (report.max_absolute, report.left.dtype) == (1, np.dtype(dtype).name)


def test_worse_is_disagreement_then_the_larger_difference():
    near, nearer = compare([1, 1], [1, 1.005]), compare([1, 1], [1, 1.001])
    off, shapes = compare([1, 1], [1, 3]), compare([1], [1, 1])
    worst_last = [compare([], []), nearer, near, off, shapes]
    for reports in (worst_last, worst_last[::-1]):
        assert sorted(reports, key=rank) == worst_last
