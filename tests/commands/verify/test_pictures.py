from dataclasses import replace

import numpy as np
import pytest
from made_detections import RULES, report_on

from detcli.commands.shared.comparison import Order, Tolerance, summarise
from detcli.commands.verify.pictures import failures, is_evidence
from detcli.commands.verify.report import BisectReport, NodeReport
from detcli.commands.verify.tensors import compare_tensors

TOLERANCE = Tolerance(score=0.02, corner=1.0, boxes=0.5, tensor=0.1)
HALF_OFF = summarise([report_on([(0, 0.9), (1, 0.8)], [(0, 0.9)])], RULES)


def tensor(right):
    return compare_tensors("t", np.array([1.0, 2.0]), np.array(right), 0.1, "a.jpg")


def test_nothing_was_compared_or_all_agrees():
    assert failures(None, None, None, TOLERANCE) == ()
    assert failures(None, [tensor([1.0, 2.0])], None, TOLERANCE) == ()


def test_a_share_of_boxes_may_disagree():
    assert failures(HALF_OFF, None, None, TOLERANCE) == ()
    (sentence,) = failures(HALF_OFF, None, None, replace(TOLERANCE, boxes=0.4))
    assert sentence.startswith("50.00% of 2 boxes disagree (40.00% allowed): 1 missing, 0 extra, ")


def test_no_tolerance_allows_a_wrong_order():
    wrong = replace(HALF_OFF.pictures[0], order=Order.WRONG)
    (sentence,) = failures(replace(HALF_OFF, pictures=(wrong,)), None, None, TOLERANCE)
    assert sentence == "detections are not sorted by descending score on 1 picture"


@pytest.mark.parametrize(
    ("right", "sentence"),
    [
        ([1.0, 4.0], "t: differs by 1 of its largest magnitude (0.1 allowed)"),
        (
            [1.0, np.inf],
            "t: 0 NaN and 0 infinities on the left, 0 NaN and 1 infinities on the right",
        ),
        ([1.0], "t: [2] and [1]"),
    ],
)
def test_tensors(right, sentence):
    assert failures(None, [tensor(right)], None, TOLERANCE) == (sentence,)


def test_tensors_without_finite_values_do_not_agree():
    broken = compare_tensors("t", *[np.array([np.nan, np.inf])] * 2, 0.1, "a.jpg")
    assert broken.agrees
    expected = "t: no value is finite on either side"
    assert failures(None, [broken], None, TOLERANCE) == (expected,)


def test_two_sides_that_find_nothing_are_no_evidence():
    nothing = summarise([report_on([], [])], RULES)
    empty = compare_tensors("t", *[np.empty((0, 6))] * 2, 0.1, "a.jpg")
    assert failures(nothing, [empty], None, TOLERANCE) == ()
    assert not is_evidence(nothing, [empty])
    assert not is_evidence(None, None)
    assert is_evidence(HALF_OFF, None)
    assert is_evidence(nothing, [tensor([1.0, 2.0])])


def test_a_node():
    found = BisectReport("a", NodeReport("n", "Sub"), "swapped", None, (), (), (), 1, 1)
    expected = "Sub n is the first node that differs: swapped"
    assert failures(None, None, found, TOLERANCE) == (expected,)
    assert failures(None, None, replace(found, node=None), TOLERANCE) == ()
