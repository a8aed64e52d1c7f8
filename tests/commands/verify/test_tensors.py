import numpy as np
import pytest

from detcli.commands.verify.tensors import compare_tensors, difference_rank

LIMIT = 0.01
nan, inf = np.nan, np.inf


def compare(left, right, dtype=np.float32, limit=LIMIT, source="a.jpg"):
    return compare_tensors("t", np.array(left, dtype), np.array(right, dtype), limit, source)


def test_the_figures():
    report = compare([4, 1, 0], [4, 2, 0])
    assert not report.agrees
    assert (report.max_absolute, report.max_relative, report.max_scaled) == (1, 0.5, 0.25)
    assert report.cosine == pytest.approx(18 / np.sqrt(17 * 20))
    assert (report.left.least, report.left.greatest) == (0, 4)
    report = compare([1, -2], [1, -2])
    assert report.agrees
    figures = report.max_absolute, report.max_relative, report.max_scaled, report.cosine
    assert figures == (0, 0, 0, pytest.approx(1))
    report = compare([[1, 2]], [[1], [2]])
    assert report.max_absolute is report.cosine is None
    assert (report.left.shape, report.right.shape) == ((1, 2), (2, 1))
    assert compare([], []).max_absolute is None
    report = compare([nan, inf, 3], [nan, inf, 3])
    assert (report.left.nan, report.left.infinite, report.max_absolute) == (1, 1, 0)


@pytest.mark.parametrize(
    ("left", "right", "agree"),
    [
        ([100, 1], [100, 2], True),  # exactly the limit
        ([100, 1], [100, 2.01], False),
        ([[1, 2]], [[1], [2]], False),
        ([nan, inf, 3], [nan, inf, 3], True),
        ([nan, 3], [3, 3], False),
        ([inf, 3], [-inf, 3], False),
        ([65504, 3], [inf, 3], False),
        ([nan], [nan], True),
        ([nan], [inf], False),
        ([], [], True),
    ],
)
def test_what_agrees(left, right, agree):
    assert compare(left, right).agrees == agree


def test_cosines():
    assert compare([0, 0], [0, 0]).cosine == 1
    report = compare([0, 0], [0, 1e-9])
    assert (report.max_scaled, report.cosine, report.agrees) == (1, 0, False)
    # Squares of large numbers would overflow.
    assert compare([1e300, 1e300], [1e300, 1e300], np.float64).cosine == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8, np.float16])
def test_other_types(dtype):
    report = compare([1, 0], [0, 0], dtype)
    assert (report.max_absolute, report.left.dtype) == (1, np.dtype(dtype).name)


def worse(*reports):
    return max(reports, key=difference_rank)


def test_worse_is_disagreement_then_the_larger_difference():
    near, nearer = compare([1, 1], [1, 1.005]), compare([1, 1], [1, 1.001])
    off, shapes = compare([1, 1], [1, 3]), compare([1], [1, 1])
    assert worse(near, nearer) is worse(nearer, near) is near
    assert worse(near, off) is worse(off, near) is off
    assert worse(off, shapes) is shapes
    assert worse(near, compare([], [])) is near
    again = compare([1, 1], [1, 1.005], source="b.jpg")
    assert worse(near, again) is near  # the first of equals
