"""The table of a report: it is complete, and no file can garble it."""

import io
from dataclasses import replace

import colour_model
import onnx
import pytest
from onnx import helper
from rich.console import Console

from detcli.backend.runtime.survey import LeftNode, Placement
from detcli.commands.inspect.examine import examine
from detcli.commands.inspect.render import render
from detcli.commands.inspect.report import ModelProblem, NetworkPrecision, Operations, Quantisation

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def shown(inspection, width=200):
    console = Console(file=io.StringIO(), width=width)
    for part in render(inspection):
        console.print(part)
    return console.file.getvalue()


def lines(inspection):
    """The printed values by their titles."""
    rows = [line.rstrip().partition("  ") for line in shown(inspection).splitlines()]
    return {title: value.strip() for title, _, value in rows}


@pytest.fixture
def inspection(make_model):
    return examine(make_model(tail="authors", metadata={"stride": "8", "note": "x" * 300}))


def test_a_detector(inspection):
    table = lines(inspection)
    assert table["layout"].startswith("end-to-end: ")
    assert table["cut"].startswith("at head: the ")
    assert table["input"] == "images float32 [1, 3, 64, 64]"
    assert table["output"] == "detections float32 [1, 16, 6]"
    assert table["boxes"].startswith("xyxy: ")
    assert table["anchors"] == "64"
    assert table["stride"] == "8, the model's metadata"
    assert table["classes"].startswith("3 (numbers, since the model names none): class_0, class_1")
    assert table["sha256"] == inspection.sha256
    assert table["operator sets"] == "ai.onnx 17"
    assert table["metadata note"] == "x" * 117 + "..."


def test_a_long_key_is_truncated(make_model):
    inspection = examine(make_model(metadata={"k" * 300: "value"}))
    table = shown(inspection, width=80).splitlines()
    assert f"metadata {'k' * 21}...  value" in [line.rstrip() for line in table]
    assert any("images float32 [1, 3, 64, 64]" in line for line in table)


def test_only_so_many_rows_and_characters_are_shown(make_model):
    metadata = {f"key{number}": "x" * 9999 for number in range(500)}
    inspection = examine(make_model(metadata=metadata))
    inspection = replace(inspection, inputs=inspection.inputs * 500)
    text = shown(inspection)
    assert text.count("metadata key") == text.count("images float32") == 20
    assert text.count("480 more") == 2
    assert len(text) < 30_000


def test_dynamic_sizes(make_model):
    table = lines(examine(make_model(size=None, batch=None)))
    assert table["dynamic axis"].startswith("axis")
    assert table["input size"] == "any; 640x640 unless --imgsz says otherwise"
    assert table["anchors"] == "unknown; depends on the input size"


def test_placements(inspection):
    left = (LeftNode("/odd", "Odd", CPU), LeftNode("/odd2", "Odd", CPU))
    placements = (
        Placement(CUDA, usable=True, taken={"Conv": 3}, left=left),
        Placement("OtherExecutionProvider", usable=False, reason="it is broken", hint="mend it"),
        Placement("OldExecutionProvider", usable=True),
        Placement(CPU, usable=True, taken={"Conv": 4}, left=()),
    )
    table = lines(replace(inspection, placements=placements))
    assert table["on cuda"] == "takes 3 of 5 nodes, leaves 2 Odd (cpu), such as /odd"
    assert table["on other"] == "no: it is broken (mend it)"
    assert table["on old"] == "takes it; this ONNX Runtime does not report which nodes"
    assert table["on cpu"] == "takes 4 of 4 nodes"


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        (None, "not counted: the input size is unknown"),
        (
            Operations(6_700_000_000, {}, (1, 3, 640, 640), {}),
            "6.70 GFLOPs for an input of 1x3x640x640",
        ),
        (
            Operations(5, {}, (1, 3, 8, 8), {"Einsum": 2}),
            "at least 0.00 GFLOPs for an input of 1x3x8x8; not counted: 2 Einsum",
        ),
    ],
)
def test_operations(inspection, operations, text):
    assert lines(replace(inspection, operations=operations))["operations"] == text


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        (NetworkPrecision({}, {}, None), "nothing is multiplied"),
        (
            NetworkPrecision({"float16": 3, "float32": 1}, {"float16": 9}, None),
            "computes in float16 and float32, weights in float16",
        ),
        (
            NetworkPrecision({"float32": 3}, {"int8": 9}, Quantisation("QDQ", 2, 3)),
            "computes in float32, weights in int8, quantised (QDQ): 2 of 3 multiplying nodes",
        ),
    ],
)
def test_precision(inspection, precision, text):
    assert lines(replace(inspection, precision=precision))["precision"] == text


def test_warnings_come_with_their_fix_and_problems_with_their_hint(inspection):
    text = shown(replace(inspection, problem=ModelProblem("it is odd", "make it even")))
    assert "cannot be used: it is odd\n  fix: make it even\n" in text
    for advice in inspection.warnings:
        assert f"warning: {advice.message}\n  fix: {advice.fix}\n" in text


def test_another_kind_of_model(tmp_path):
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, ["n"])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, None)],
        ),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    (tmp_path / "other.onnx").write_bytes(model.SerializeToString())
    table = lines(examine(tmp_path / "other.onnx"))
    assert table["input"] == "x int8 [n]"
    assert "layout" not in table
    assert table["nodes"] == "1: 1 Identity"


def test_control_codes_and_markup_in_a_file_are_escaped(tmp_path):
    path = tmp_path / "model.onnx"
    evil = "[bold]\x1b[31m\r"
    metadata = {"names": str({0: evil, 1: "b", 2: "c"}), evil: evil}
    model = colour_model.build(metadata=metadata)
    model.producer_name = evil
    path.write_bytes(model.SerializeToString())
    text = shown(examine(path))
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.count("[bold]\\x1b[31m") == 4


def test_a_narrow_terminal_loses_nothing(inspection):
    text = shown(inspection, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert inspection.sha256 in "".join(line[15:].strip() for line in text.splitlines())
