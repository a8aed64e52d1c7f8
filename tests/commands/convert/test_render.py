"""The tables and text of a conversion."""

from dataclasses import replace

import pytest
from rich.console import Console

from detcli.commands.convert.render import render
from detcli.commands.convert.report import Conversion, Difference, File, Step

FILE = File("in.onnx", "ab" * 32, 9_500_000, (384, 640), 1)
DIFFERENCE = Difference(
    source="bus.jpg",
    conf=0.25,
    old=5,
    new=4,
    pairs=4,
    over=1,
    borderline=0,
    missing=1,
    extra=0,
    largest_score=0.01234,
    largest_corner=1.5,
    score_tolerance=0.02,
    corner_tolerance=2,
    boxes_tolerance=0.01,
    batch=None,
)
REPORT = Conversion(
    model=FILE,
    output=File("out.onnx", "cd" * 32, 4_700_000, None, None),
    written=True,
    steps=(
        Step("cut", changed=False, finding="0 nodes dropped", nodes=289),
        Step("half", changed=True, finding="some", nodes=300),
    ),
    difference=DIFFERENCE,
    failures=(),
)


def text_of(report, width=100):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for part in render(report):
            console.print(part)
    return captured.get()


def test_both_files_the_steps_and_the_difference():
    text = text_of(REPORT)
    for line in (
        "model  in.onnx, 9.5 MB, 640x384, batch 1 (abababababab)",
        "cut    0 nodes dropped (nothing to do); 289 nodes",
        "half   some; 300 nodes",
        "compared on  bus.jpg",
        "above 0.25   5 boxes before, 4 after, 4 pairs",
        "disagree     1 missing, 0 extra, 1 beyond the tolerance",
        "score        differs by 0.0123 (allowed 0.02)",
        "corners      differ by 1.5 pixels (allowed 2)",
        "written: out.onnx, 4.7 MB, any size, any batch (cdcdcdcdcdcd)",
    ):
        assert line in [found.rstrip() for found in text.splitlines()]
    assert "batch with" not in text


def test_reasons_for_not_writing():
    report = replace(REPORT, written=False, failures=("too far", "much too far"))
    assert text_of(report).endswith("not written: out.onnx\n  too far\n  much too far\n")


def test_borderline_boxes_and_batches():
    difference = replace(DIFFERENCE, borderline=2, batch=0.00123)
    text = text_of(replace(REPORT, difference=difference))
    assert "; 2 at the confidence threshold" in text
    assert "differs by 0.00123 of its largest value" in text


@pytest.mark.parametrize("bad", ["\x1b[31m", "\r"])
def test_control_codes_in_names_are_made_harmless(bad):
    report = replace(REPORT, output=replace(REPORT.output, path=f"a{bad}b"))
    assert bad not in text_of(report)
    assert bad not in text_of(replace(report, written=False))
