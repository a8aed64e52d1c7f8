import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from detcli.commands.shared.reports import (
    ReportFormat,
    choose_report_format,
    encode,
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
