import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from detcli.cli.report import (
    ReportFormat,
    choose_report_format,
    encode,
    report_field,
    report_rows,
    table,
    to_json,
    write_report,
)


@dataclass(frozen=True)
class Inner:
    values: tuple[float, ...]


@dataclass(frozen=True)
class Outer:
    path: Path
    parts: dict[int, Inner]


REPORT = Outer(Path("a.onnx"), {3: Inner((1.5, float("nan"), float("inf")))})


def test_json_has_the_fields_and_null_for_nan():
    assert json.loads(encode(REPORT)) == {
        "schema_version": 1,
        "path": "a.onnx",
        "parts": {"3": {"values": [1.5, None, None]}},
    }


def test_a_class_is_not_a_report():
    assert to_json(Inner) is Inner


def test_a_pipe_gets_json_unless_a_table_is_requested(capsys):
    write_report(REPORT, None, lambda _: ["never"])
    assert json.loads(capsys.readouterr().out)["path"] == "a.onnx"
    write_report(REPORT, ReportFormat.TABLE, lambda report: [f"at {report.path}", "end"])
    assert capsys.readouterr().out == "at a.onnx\nend\n"


@pytest.mark.parametrize(("terminal", "form"), [(True, "table"), (False, "json")])
def test_the_default_format(monkeypatch, terminal, form):
    output = io.StringIO()
    output.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", output)
    assert choose_report_format(None) == form


@dataclass(frozen=True)
class Times:
    p50_s: float = report_field("p50", "s")
    p90_s: float | None = report_field("p90", "s")


@dataclass(frozen=True)
class Timed:
    name: str = report_field("stage")
    size: tuple[int, int] = report_field("size", form=lambda size: f"{size[1]}x{size[0]}")
    times: Times | None = report_field()
    before: Times | None = report_field("before", default=None)
    parts: tuple[Times, ...] = ()


def test_fields_that_are_shown_become_rows_and_nested_ones_follow_in_place():
    timed = Timed("infer", (2, 3), Times(0.0123, None), None, (Times(1, 2),))
    assert list(report_rows(timed)) == [
        ("stage", "infer"),
        ("size", "3x2"),
        ("p50", "12.30 ms"),
        ("p90", "-"),
        ("before p50", "-"),
        ("before p90", "-"),
    ]


def test_reports_of_a_type_become_a_table_with_the_same_columns(capsys):
    Console(width=80).print(
        table([Timed("infer", (2, 3), Times(2, 3)), Timed("\x1b[31m", (1, 1), None)], "stages")
    )
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed[:3] == [
        "stages",
        "stage     size     p50     p90  before p50  before p90",
        "infer      3x2  2.00 s  3.00 s           -           -",
    ]
    assert "\x1b" not in "".join(printed)
