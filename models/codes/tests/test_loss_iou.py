import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra `train`")

from codes.loss import complete_iou, overlap


def test_a_box_overlaps_itself():
    box = torch.tensor([3.0, 4, 10, 9])
    assert overlap(box, box) == 1
    assert complete_iou(box, box) == 1


def test_half_of_a_box():
    whole, half = torch.tensor([0.0, 0, 4, 4]), torch.tensor([0.0, 0, 2, 4])
    assert overlap(whole, half) == 0.5
    turn = 4 / math.pi**2 * (math.atan(1) - math.atan(0.5)) ** 2
    expected = 0.5 - 1 / 32 - turn * turn / (0.5 + turn)
    assert complete_iou(whole, half) == pytest.approx(expected, abs=1e-6)


def test_ciou_decreases_with_the_distance_of_disjoint_boxes():
    box = torch.tensor([0.0, 0, 2, 2])
    near, far = torch.tensor([3.0, 0, 5, 2]), torch.tensor([9.0, 0, 11, 2])
    assert overlap(box, near) == overlap(box, far) == 0
    assert complete_iou(box, far) < complete_iou(box, near) < 0


def test_empty_boxes_do_not_divide_by_zero():
    empty = torch.zeros(4)
    assert overlap(empty, empty) == 0
    assert complete_iou(empty, empty).isfinite()
