from dataclasses import replace

import numpy as np
import pytest
from made_detections import RULES, TOLERANCE, found, report_on, summarise

from detcli.compare.detections import Order, Rules, compare
from detcli.data.record import box_of

FULL = Rules(conf=0.25, least_iou=0.5, max_det=2, tolerance=TOLERANCE)


def compared(left, right, rules=RULES):
    both = compare(found(*left), found(*right), rules)
    return len(both.pairs), len(both.over), both.borderline, both.missing, both.extra


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([(0, 0.9)], [(0, 0.9)], (1, 0, 0, (), ())),
        ([], [], (0, 0, 0, (), ())),
        # over the tolerance in score or corner
        ([(0, 0.9), (1, 0.5)], [(0, 0.85), (1, 0.49)], (1, 1, 0, (), ())),
        ([(0, 0.9), (1, 0.5)], [(0, 0.9, 2), (1, 0.5, 1)], (1, 1, 0, (), ())),
        # a pair across the limit is borderline and not missing; far across it is over
        ([(0, 0.255)], [(0, 0.245)], (1, 0, 1, (), ())),
        ([(0, 0.245)], [(0, 0.255)], (1, 0, 1, (), ())),
        ([(0, 0.3)], [(0, 0.24)], (0, 1, 1, (), ())),
        # below the limit nothing is looked at
        ([(0, 0.249)], [(0, 0.231)], (0, 0, 0, (), ())),
        ([(0, 0.249)], [], (0, 0, 0, (), ())),
        # the counterpart, within the tolerance, would have been seen: the sides run lower
        ([(0, 0.255)], [], (0, 0, 0, (0,), ())),
        ([], [(0, 0.9), (1, 0.255)], (0, 0, 0, (), (0, 1))),
    ],
)
def test_what_becomes_of_boxes(left, right, expected):
    assert compared(left, right) == expected


def test_the_last_row_of_a_full_result_is_a_limit_too():
    right = [(0, 0.9), (1, 0.6)]
    for score, rules, expected in (
        (0.61, FULL, (2, 0, 1, (), ())),
        (0.63, FULL, (2, 0, 0, (1,), ())),
        (0.61, RULES, (2, 0, 0, (1,), ())),
    ):
        assert compared([(0, 0.9), (2, score), (1, 0.6)], right, rules) == expected


@pytest.mark.parametrize("kept", [slice(1), slice(0)])
def test_what_was_dropped_after_the_selection_counts_for_its_limit(kept):
    """And for nothing else: boxes above the limit are missing, whatever was dropped."""
    selected = np.array([0.9, 0.6], np.float32)
    right = replace(found((0, 0.9), (1, 0.6)), selected=selected)[kept]
    for score, rules, missing in ((0.61, FULL, 0), (0.63, FULL, 1), (0.61, RULES, 1)):
        both = compare(found((2, score)), right, rules)
        assert len(both.missing) == missing
        assert both.borderline == 1 - missing


def test_both_sides_run_with_a_lower_confidence():
    assert RULES.lowered_conf == pytest.approx(0.23)
    assert Rules(0.01, 0.5, 300, TOLERANCE).lowered_conf == 0


@pytest.mark.parametrize(
    ("right", "order"),
    [
        ([(0, 0.9), (1, 0.89)], Order.SAME),
        ([(1, 0.895), (0, 0.89)], Order.CHANGED),
        ([(0, 0.89), (1, 0.9)], Order.WRONG),
    ],
)
def test_order(right, order):
    report = report_on([(0, 0.9), (1, 0.89)], right)
    assert report.order == order
    assert report.agrees == (order is not Order.WRONG)


def test_a_pictures_report():
    report = report_on([(0, 0.9), (1, 0.5), (2, 0.24)], [(0, 0.89, 0.5), (3, 0.4)])
    assert report.source == "a.jpg"
    assert report.left == 2
    assert report.right == 2
    assert report.pairs == 1
    assert report.largest_score_difference == pytest.approx(0.01, abs=1e-6)
    assert report.largest_corner_difference == 0.5
    (missing,), (extra,) = report.missing, report.extra
    assert missing["class_name"] == "person"
    assert missing["score"] == 0.5
    assert box_of(missing) == (100, 0, 140, 40)  # type: ignore[arg-type]
    assert extra["class_id"] == 0
    assert extra["score"] == 0.4
    assert not report.agrees


def test_severity_is_boxes_first_then_distance():
    pairs = [
        ([(0, 0.9)], [(0, 0.9)]),
        ([(0, 0.9)], [(0, 0.89)]),
        ([(0, 0.9)], [(0, 0.9, 0.9)]),
        ([(0, 0.9)], []),
        ([(0, 0.9), (1, 0.8)], []),
    ]
    found = [report_on(*pair).severity(TOLERANCE) for pair in pairs]  # type: ignore[arg-type]
    assert found == sorted(found)
    assert found[0] == (0, 0)


def test_sums():
    pictures = [
        report_on([(0, 0.9), (1, 0.5)], [(0, 0.8)]),
        report_on([(0, 0.255)], [(0, 0.245)], "b.jpg"),
    ]
    sums = summarise(pictures)
    assert sums.left == 3
    assert sums.right == 1
    assert sums.pairs == 2
    assert sums.over == 1
    assert sums.missing == 1
    assert sums.extra == 0
    assert sums.borderline == 1
    assert sums.disagreeing == pytest.approx(2 / 3)
    assert sums.largest_score_difference == pytest.approx(0.1)
    assert summarise([]).disagreeing == 0
