from dataclasses import replace

import numpy as np
import pytest
from made_detections import RULES, TOLERANCE, boxes_in_row, report_on, summarise

from detcli.compare.detections import Order, Rules, compare
from detcli.data.detections import with_rows
from detcli.data.record import box_of

FULL = Rules(conf=0.25, least_iou=0.5, max_det=2, tolerance=TOLERANCE)


def assert_comparison(
    left, right, *, pairs=0, over=0, borderline=0, missing=(), extra=(), rules=RULES
):
    """Compare rows of two sides, and hold what becomes of all of them."""
    comparison = compare(boxes_in_row(left), boxes_in_row(right), rules)
    assert len(comparison.agreeing_pairs) == pairs
    assert len(comparison.disagreeing_pairs) == over
    assert comparison.borderline == borderline
    assert comparison.missing == missing
    assert comparison.extra == extra


def test_equal_rows_are_pairs_and_no_rows_are_nothing():
    assert_comparison([(0, 0.9)], [(0, 0.9)], pairs=1)
    assert_comparison([], [])


def test_a_pair_may_be_over_the_tolerance_in_score_or_corner():
    left = [(0, 0.9), (1, 0.5)]
    assert_comparison(left, [(0, 0.85), (1, 0.49)], pairs=1, over=1)
    assert_comparison(left, [(0, 0.9, 2), (1, 0.5, 1)], pairs=1, over=1)


def test_a_pair_across_the_limit_is_borderline_and_not_missing():
    """Far across it, it is over the tolerance as well."""
    assert_comparison([(0, 0.255)], [(0, 0.245)], pairs=1, borderline=1)
    assert_comparison([(0, 0.245)], [(0, 0.255)], pairs=1, borderline=1)
    assert_comparison([(0, 0.3)], [(0, 0.24)], over=1, borderline=1)


def test_below_the_limit_nothing_is_looked_at():
    assert_comparison([(0, 0.249)], [(0, 0.231)])
    assert_comparison([(0, 0.249)], [])


def test_a_box_just_above_the_limit_may_be_missing():
    """The counterpart, within the tolerance, would have been seen: the sides run lower."""
    assert_comparison([(0, 0.255)], [], missing=(0,))
    assert_comparison([], [(0, 0.9), (1, 0.255)], extra=(0, 1))


def test_the_last_row_of_a_full_result_is_a_limit_too():
    right = [(0, 0.9), (1, 0.6)]
    near_the_last = [(0, 0.9), (2, 0.61), (1, 0.6)]
    above_the_last = [(0, 0.9), (2, 0.63), (1, 0.6)]
    assert_comparison(near_the_last, right, rules=FULL, pairs=2, borderline=1)
    assert_comparison(above_the_last, right, rules=FULL, pairs=2, missing=(1,))
    assert_comparison(near_the_last, right, rules=RULES, pairs=2, missing=(1,))


@pytest.mark.parametrize("remaining", [slice(1), slice(0)])
def test_what_was_dropped_after_the_selection_counts_for_its_limit(remaining):
    """And for nothing else: boxes above the limit are missing, whatever was dropped."""
    selected = np.array([0.9, 0.6], np.float32)
    all_selected = replace(boxes_in_row([(0, 0.9), (1, 0.6)]), selected=selected)
    right = with_rows(all_selected, remaining)
    for score, rules, missing in ((0.61, FULL, 0), (0.63, FULL, 1), (0.61, RULES, 1)):
        comparison = compare(boxes_in_row([(2, score)]), right, rules)
        assert len(comparison.missing) == missing
        assert comparison.borderline == 1 - missing


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


def test_an_images_report():
    report = report_on([(0, 0.9), (1, 0.5), (2, 0.24)], [(0, 0.89, 0.5), (3, 0.4)])
    assert report.source == "a.jpg"
    assert report.left == 2
    assert report.right == 2
    assert report.pairs == 1
    assert report.largest_score_difference == pytest.approx(0.01, abs=1e-6)
    assert report.largest_corner_difference == 0.5
    (missing,) = report.missing
    (extra,) = report.extra
    assert missing["class_name"] == "person"
    assert missing["score"] == 0.5
    assert box_of(missing) == (100, 0, 140, 40)  # type: ignore[arg-type]
    assert extra["class_id"] == 0
    assert extra["score"] == 0.4
    assert not report.agrees


def test_severity_is_boxes_first_then_distance():
    reports = [
        report_on([(0, 0.9)], [(0, 0.9)]),
        report_on([(0, 0.9)], [(0, 0.89)]),
        report_on([(0, 0.9)], [(0, 0.9, 0.9)]),
        report_on([(0, 0.9)], []),
        report_on([(0, 0.9), (1, 0.8)], []),
    ]
    severities = [report.severity(TOLERANCE) for report in reports]
    assert severities == sorted(severities)
    assert severities[0] == (0, 0)


def test_sums():
    images = [
        report_on([(0, 0.9), (1, 0.5)], [(0, 0.8)]),
        report_on([(0, 0.255)], [(0, 0.245)], "b.jpg"),
    ]
    sums = summarise(images)
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
