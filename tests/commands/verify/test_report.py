import io

import numpy as np
import pytest
from made_detections import RULES, TOLERANCE, report_on
from rich.console import Console

from detcli.commands.shared.comparison import Precision, summarise
from detcli.commands.verify.report import (
    BisectReport,
    FailedInput,
    NodeReport,
    SelectedBy,
    SideReport,
    VerifyReport,
    render,
)
from detcli.commands.verify.tensors import compare_tensors

TENSOR = compare_tensors("scores", np.array([4.0, 1.0]), np.array([4.0, np.inf]), 0.1, "x/a.jpg")
SIDES = [
    SideReport(name, "ab" * 32, "cpu", selection, Precision.FLOAT32)
    for name, selection in (
        ("[red]a.onnx", SelectedBy.DETCLI),
        ("b\x1b[31m.onnx", SelectedBy.GRAPH),
    )
]


def text(report, width=100):
    output = io.StringIO()
    console = Console(file=output, width=width)
    for part in render(report):
        console.print(part)
    return output.getvalue()


def verified(**parts):
    parts = {
        "agree": False,
        "failures": ("it differs",),
        "left": SIDES[0],
        "right": SIDES[1],
        "tolerance": TOLERANCE,
        "compared": 2,
        "failed": (FailedInput("torn.jpg", "torn"),),
    } | parts
    return VerifyReport(**parts)


def test_names_are_no_markup_and_no_control_codes():
    shown = text(verified())
    assert "[red]a.onnx on cpu, float32, selection by detcli (abababababab)" in shown
    assert "\x1b" not in shown


def test_sums_and_the_worst_pictures_first():
    pictures = [
        report_on([(0, 0.9)], [(0, 0.9)], "same.jpg"),
        report_on([(0, 0.9)], [(0, 0.89)], "near.jpg"),
        report_on([(n, 0.9) for n in range(5)], [(9, 0.4)], "folder/worst.jpg"),
    ]
    shown = text(verified(detections=summarise(pictures, RULES)))
    assert "7 on the left, 3 on the right, above 0.25" in shown
    assert "5 on the left only" in shown
    rows = [line for line in shown.splitlines() if ".jpg" in line]
    assert ["worst.jpg" in rows[0], "near.jpg" in rows[1], len(rows)] == [True, True, 2]
    assert "person 0.90, person 0.90" in shown
    assert "2 more" in shown
    assert "folder" not in shown


def test_tensors_that_are_not_finite():
    shown = text(verified(tensors=(TENSOR,)))
    assert "scores on a.jpg: differs" in shown
    assert "right: float64[2] from 4 to 4, 0 NaN, 1 infinite" in shown


def test_a_node():
    nodes = tuple(NodeReport(f"n{number}", "Add") for number in range(5))
    found = BisectReport(
        "x/a.jpg", nodes[0], "it differs", TENSOR, (TENSOR,) * 4, nodes, nodes[:1], 9, 3
    )
    shown = text(verified(bisect=found))
    assert "first node that differs: Add n0" in shown
    assert "found in 3 rounds, 9 tensors compared, on x/a.jpg" in shown
    assert "and 1 more inputs, all of which agree" in shown
    assert "left:  Add n0, Add n1, Add n2, 2 more" in shown
    assert "right: Add n0" in shown
    nothing = BisectReport("a.jpg", None, "the outputs agree", None, (), (), (), 0, 0)
    assert "no node found on a.jpg: the outputs agree" in text(verified(bisect=nothing))


@pytest.mark.parametrize(
    ("parts", "last"),
    [
        ({"agree": True, "failures": ()}, "the two sides agree"),
        ({"failures": ()}, "nothing was compared"),
        ({}, "differs: it differs"),
    ],
)
def test_whether_the_sides_agree_comes_last(parts, last):
    assert text(verified(**parts)).splitlines()[-1] == last


def test_why_there_are_no_detections():
    shown = text(verified(no_detections="random pictures"))
    assert "detections were not compared: random pictures" in shown
