import pytest
from made_detections import RULES, TOLERANCE, found, report_on

from detcli.commands.shared.comparison import Order, Rules, compare, summarise

FULL = Rules(conf=0.25, least_iou=0.5, max_det=2, tolerance=TOLERANCE)


def compared(left, right, rules=RULES):
    both = compare(found(*left), found(*right), rules)
    return len(both.pairs), len(both.over), both.borderline, both.missing, both.extra


def test_both_sides_run_with_a_lower_confidence():
    assert RULES.lowered_conf == pytest.approx(0.23)
    assert Rules(0.01, 0.5, 300, TOLERANCE).lowered_conf == 0


def test_alike():
    assert compared([(0, 0.9)], [(0, 0.9)]) == (1, 0, 0, (), ())
    assert compared([], []) == (0, 0, 0, (), ())


def test_over_the_tolerance_in_score_or_corner():
    assert compared([(0, 0.9), (1, 0.5)], [(0, 0.85), (1, 0.49)]) == (1, 1, 0, (), ())
    assert compared([(0, 0.9), (1, 0.5)], [(0, 0.9, 2), (1, 0.5, 1)]) == (1, 1, 0, (), ())


def test_a_pair_across_the_limit_is_borderline_and_not_missing():
    assert compared([(0, 0.255)], [(0, 0.245)]) == (1, 0, 1, (), ())
    assert compared([(0, 0.245)], [(0, 0.255)]) == (1, 0, 1, (), ())


def test_a_pair_below_the_limit_is_not_looked_at():
    assert compared([(0, 0.249)], [(0, 0.231)]) == (0, 0, 0, (), ())
    assert compared([(0, 0.249)], []) == (0, 0, 0, (), ())


def test_above_the_limit_without_counterpart_is_missing_or_extra():
    """Its counterpart, within the tolerance, would have been seen: the sides run lower."""
    assert compared([(0, 0.255)], []) == (0, 0, 0, (0,), ())
    assert compared([], [(0, 0.9), (1, 0.255)]) == (0, 0, 0, (), (0, 1))


def test_a_pair_far_across_the_limit_is_over():
    assert compared([(0, 0.3)], [(0, 0.24)]) == (0, 1, 1, (), ())


def test_the_last_row_of_a_full_result_is_a_limit_too():
    right = [(0, 0.9), (1, 0.6)]
    assert compared([(0, 0.9), (2, 0.61), (1, 0.6)], right, FULL)[2:] == (1, (), ())
    assert compared([(0, 0.9), (2, 0.63), (1, 0.6)], right, FULL)[2:] == (0, (1,), ())
    assert compared([(0, 0.9), (2, 0.61), (1, 0.6)], right)[2:] == (0, (1,), ())


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
    assert (report.order, report.agrees) == (order, order is not Order.WRONG)


def test_a_pictures_report():
    report = report_on([(0, 0.9), (1, 0.5), (2, 0.24)], [(0, 0.89, 0.5), (3, 0.4)])
    assert (report.source, report.left, report.right, report.pairs) == ("a.jpg", 2, 2, 1)
    assert report.largest_score_difference == pytest.approx(0.01, abs=1e-6)
    assert report.largest_corner_difference == 0.5
    (missing,), (extra,) = report.missing, report.extra
    assert (missing.class_name, missing.score, missing.box) == ("person", 0.5, (100, 0, 140, 40))
    assert (extra.class_id, extra.score) == (0, 0.4)
    assert not report.agrees


def test_severity_is_boxes_first_then_distance():
    reports = [
        report_on([(0, 0.9)], [(0, 0.9)]),
        report_on([(0, 0.9)], [(0, 0.89)]),
        report_on([(0, 0.9)], [(0, 0.9, 0.9)]),
        report_on([(0, 0.9)], []),
        report_on([(0, 0.9), (1, 0.8)], []),
    ]
    assert sorted(reports, key=lambda report: report.severity(TOLERANCE)) == reports
    assert reports[0].severity(TOLERANCE) == (0, 0)


def test_sums():
    pictures = [
        report_on([(0, 0.9), (1, 0.5)], [(0, 0.8)]),
        report_on([(0, 0.255)], [(0, 0.245)], "b.jpg"),
    ]
    sums = summarise(pictures, RULES)
    assert (sums.left, sums.right, sums.pairs, sums.over) == (3, 1, 2, 1)
    assert (sums.missing, sums.extra, sums.borderline) == (1, 0, 1)
    assert sums.disagreeing == pytest.approx(2 / 3)
    assert sums.largest_score_difference == pytest.approx(0.1)
    assert summarise([], RULES).disagreeing == 0
