# mypy: disable-error-code=arg-type
from dataclasses import replace

import numpy as np
import pytest
from made_detections import TOLERANCE, report_on, summarise
from terminals import printed

from detcli.commands.verify.report import (
    BisectReport,
    FailedInput,
    NodeReport,
    SelectedBy,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.tables import render
from detcli.commands.verify.tensors import compare_tensors
from detcli.compare.detections import Order, Tolerance
from detcli.model.precision import Precision

HALF_OFF = summarise([report_on([(0, 0.9), (1, 0.8)], [(0, 0.9)])])
LEFT = SideReport("[red]a.onnx", "ab" * 32, "cpu", SelectedBy.DETCLI, Precision.FLOAT32)
RIGHT = SideReport("b\x1b[31m.onnx", "ab" * 32, "cpu", SelectedBy.GRAPH, Precision.FLOAT32)


def tensor(right, left=(1.0, 2.0)):
    return compare_tensors("t", np.array(left), np.array(right), 0.1, "x/a.jpg")


def verified(**parts):
    return VerifyReport(**{
        "left": LEFT,
        "right": RIGHT,
        "tolerance": Tolerance(score=0.02, corner=1.0, boxes=0.5, tensor=0.1),
        "compared": 2,
        "failed": (FailedInput("torn.jpg", "torn"),),
    } | parts)  # fmt: skip


def judged(**parts):
    report = verified(**parts)
    report.judge()
    return report


def wrong(**parts):
    return judged(**parts).failures


def test_nothing_was_compared_or_all_agrees():
    nothing = summarise([report_on([], [])])
    empty = compare_tensors("t", np.empty((0, 6)), np.empty((0, 6)), 0.1, "a.jpg")
    for parts, is_evidence in (
        ({}, False),
        ({"detections": nothing, "tensors": (empty,)}, False),
        ({"detections": nothing, "tensors": (tensor((1.0, 2.0)),)}, True),
        ({"detections": HALF_OFF}, True),
        ({"detections": summarise([report_on([], [(0, 0.9)])])}, True),
    ):
        report = judged(**parts, tolerance=replace(TOLERANCE, boxes=1.0))
        assert report.agree == is_evidence
        assert report.failures == []


def test_a_share_of_boxes_may_disagree():
    assert wrong(detections=HALF_OFF) == []
    (sentence,) = wrong(detections=HALF_OFF, tolerance=replace(TOLERANCE, boxes=0.4))
    assert "50.00% of 2 boxes disagree" in sentence
    assert "40.00% allowed" in sentence
    assert "1 missing, 0 extra" in sentence


def test_no_tolerance_allows_a_wrong_order():
    images = (replace(HALF_OFF.pictures[0], order=Order.WRONG),)
    (sentence,) = wrong(detections=replace(HALF_OFF, pictures=images))
    assert sentence == "detections are not sorted by descending score on 1 image"


@pytest.mark.parametrize(
    ("left", "right", "sentence"),
    [
        ((1.0, 2.0), (1.0, 4.0), "t: differs by 1 of its largest magnitude (0.1 allowed)"),
        (
            (1.0, 2.0),
            (1.0, np.inf),
            "t: 0 NaN and 0 infinities on the left, 0 NaN and 1 infinities on the right",
        ),
        ((1.0, 2.0), (1.0,), "t: [2] and [1]"),
        ((np.nan, np.inf), (np.nan, np.inf), "t: no value is finite on either side"),
    ],
)
def test_tensors(left, right, sentence):
    assert wrong(tensors=(tensor(right, left),)) == [sentence]


def test_a_node_that_differs():
    bisect_report = BisectReport("a", NodeReport("n", "Sub"), "swapped")
    assert wrong(bisect=bisect_report) == ["Sub n is the first node that differs: swapped"]
    assert wrong(bisect=replace(bisect_report, node=None)) == []


def text(**parts):
    return printed(render(verified(**parts)), width=120)


def test_the_table():
    five_boxes = [(0, 0.9), (1, 0.9), (2, 0.9), (3, 0.9), (4, 0.9)]
    images = [
        report_on([(0, 0.9)], [(0, 0.9)], "same.jpg"),
        report_on([(0, 0.9)], [(0, 0.89)], "near.jpg"),
        report_on(five_boxes, [(9, 0.4)], "folder/worst.jpg"),
    ]
    table = text(
        detections=summarise(images),
        tensors=(tensor((4.0, np.inf), left=(4.0, 1.0)),),
        failures=("it differs",),
    )
    assert "[red]a.onnx on cpu, float32, selection by detcli (abababababab)" in table
    assert "\x1b" not in table
    assert "7 on the left, 3 on the right, above 0.25" in table
    assert "5 on the left only" in table
    rows = [line for line in table.splitlines() if ".jpg" in line]
    assert len(rows) == 3
    assert "worst.jpg" in rows[0]
    assert "near.jpg" in rows[1]
    assert "person 0.90, person 0.90" in table
    assert "2 more" in table
    assert "folder" not in table
    assert "t on a.jpg: differs" in table
    assert "right: float64[2] from 4 to 4, 0 NaN, 1 infinite" in table
    assert table.splitlines()[-1] == "differs: it differs"
    assert text(agree=True).splitlines()[-1] == "the two sides agree"
    assert text().splitlines()[-1] == "nothing was compared"
    assert "detections were not compared: \\x1b" in text(no_detections="\x1b")


def test_the_text_of_a_node():
    nodes = tuple(NodeReport(f"n{number}", "Add") for number in range(5))
    differs = tensor((4.0, 9.0))
    bisect_report = BisectReport(
        "x/a.jpg", nodes[0], "it differs", differs, (differs,) * 4, nodes, nodes[:1], 9, 3
    )
    table = text(bisect=bisect_report)
    assert "first node that differs: Add n0" in table
    assert "found in 3 rounds, 9 tensors compared, on x/a.jpg" in table
    assert "and 1 more inputs, all of which agree" in table
    assert "left:  Add n0, Add n1, Add n2, 2 more" in table
    assert "right: Add n0" in table
    nothing = BisectReport("a.jpg", None, "the outputs agree")
    assert "no node found on a.jpg: the outputs agree" in text(bisect=nothing)
