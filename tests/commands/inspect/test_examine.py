"""Any readable ONNX file is reported; everything else is a ModelError."""

import hashlib

import colour_model
import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from detcli.commands.inspect.advice import CutPoint
from detcli.commands.inspect.examine import (
    DynamicAxis,
    ModelProblem,
    Quantisation,
    TensorInfo,
    decoded,
    describe_tensor,
    dynamic_axes,
    examine,
)
from detcli.core.config import Settings
from detcli.core.errors import ModelError, UsageError
from detcli.core.values import BoxFormat
from detcli.model.file import ExternalFile


def test_the_report_of_a_detector(make_model):
    path = make_model(tail="authors", metadata={"stride": "8", "author": "somebody"}, opset=13)
    content = path.read_bytes()
    found = examine(path)
    assert found.model == str(path)
    assert (found.bytes, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert found.inputs == (TensorInfo("images", "float32", (1, 3, 64, 64)),)
    assert found.outputs == (TensorInfo("detections", "float32", (1, 16, 6)),)
    assert found.dynamic_axes == ()
    assert found.opsets == {"ai.onnx": 13}
    assert found.metadata == {"stride": "8", "author": "somebody"}
    assert sum(found.nodes.values()) == len(onnx.load(path).graph.node)
    assert found.problem is None
    assert found.detector.class_count == 3
    assert found.detector.names == ("class_0", "class_1", "class_2")
    assert [entry.code for entry in found.warnings] == ["names-missing", "top-k-cap"]
    assert found.placements[-1].usable
    assert "TopK" not in (found.placements[-1].taken or {})  # only the part that runs is placed


def test_dynamic_axes_are_named(make_model):
    found = examine(make_model(size=None, batch=None))
    assert DynamicAxis("axis0", ("images[0]", "head[0]")) in found.dynamic_axes


def with_convolution(path, **options):
    """A detector after a padded convolution of 3x3x3x3, which can be counted."""
    model = colour_model.build(**options)
    for node in model.graph.node:
        node.input[:] = ["mixed" if name == "images" else name for name in node.input]
    node = helper.make_node("Conv", ["images", "weight"], ["mixed"], pads=[1, 1, 1, 1])
    model.graph.node.insert(0, node)
    weight = numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "weight")
    model.graph.initializer.append(weight)
    onnx.save_model(model, path)
    return path


@pytest.mark.parametrize(
    ("options", "imgsz", "shape"),
    [
        ({}, None, (1, 3, 64, 64)),
        ({"size": None, "batch": None}, None, (1, 3, 640, 640)),
        ({"size": None, "batch": None}, 96, (1, 3, 96, 96)),
        ({"batch": 4}, None, (4, 3, 64, 64)),
    ],
)
def test_operations_are_counted_for_the_actual_input(tmp_path, options, imgsz, shape):
    path = with_convolution(tmp_path / "model.onnx", **options)
    found = examine(path, Settings(imgsz=imgsz)).operations
    assert found.input_shape == shape
    assert found.flops == 2 * shape[0] * 3 * shape[2] * shape[3] * 27
    assert examine(path).parameters == 81


def test_what_the_user_says(make_model, tmp_path):
    (tmp_path / "names").write_text("a\nb\nc\n")
    asked = Settings(box_format=BoxFormat.CXCYWH, names=tmp_path / "names")
    found = examine(make_model(), asked).detector
    assert found.box_format is BoxFormat.CXCYWH
    assert found.names == ("a", "b", "c")
    assert found.names_origin == str(tmp_path / "names")
    (tmp_path / "names").write_text("a\n")
    with pytest.raises(UsageError, match="has 1 names"):
        examine(make_model(), Settings(names=tmp_path / "names"))
    with pytest.raises(UsageError, match="takes 64x64 pictures only"):
        examine(make_model(), Settings(imgsz=96))


@pytest.fixture
def classifier(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        classifier (float[n, 3, 8, 8] images, float[1] more) => (float[n, k] scores) {
            sums = ReduceSum<keepdims = 0>(images)
            scores = Add(sums, more)
        }
    """)
    path = tmp_path / "classifier.onnx"
    onnx.save_model(model, path)
    return path


def test_another_kind_of_model_is_reported(classifier):
    found = examine(classifier, Settings(imgsz=96))
    assert found.detector is None
    assert "what its input more is for" in found.problem.message
    assert "expected pictures [B, 3, H, W]" in found.problem.hint
    assert [tensor.name for tensor in found.inputs] == ["images", "more"]
    assert found.nodes == {"ReduceSum": 1, "Add": 1}
    assert found.operations is None
    assert found.placements[-1].usable


def test_a_model_that_no_provider_loads_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)  # it reads any version
    model = colour_model.build()
    model.opset_import[0].version = 999
    path = tmp_path / "new.onnx"
    path.write_bytes(model.SerializeToString())
    found = examine(path)
    assert found.detector is not None
    assert "opset-too-new" in {entry.code for entry in found.warnings}
    assert "cannot load new.onnx" in found.problem.message
    assert not any(placement.usable for placement in found.placements)


def test_external_data_is_hashed_and_counted(tmp_path):
    path = with_convolution(tmp_path / "model.onnx")
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    data = (tmp_path / "w.bin").read_bytes()
    found = examine(path)
    assert found.external == (ExternalFile("w.bin", len(data), hashlib.sha256(data).hexdigest()),)
    assert found.parameters == 81
    assert "external-data" in {entry.code for entry in found.warnings}
    (tmp_path / "w.bin").write_bytes(data[:-1])
    with pytest.raises(ModelError, match="truncated"):
        examine(path)


WHOLE = colour_model.build("authors", metadata={"names": "['a', 'b', 'c']"}).SerializeToString()


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    place=st.integers(0, len(WHOLE) - 1),
    data=st.binary(min_size=1, max_size=8),
    removed=st.integers(0, 12),
)
def test_a_damaged_file_is_reported_or_a_model_error(tmp_path_factory, place, data, removed):
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(WHOLE[:place] + data + WHOLE[place + removed :])
    try:
        found = examine(path)
    except ModelError as error:
        assert error.hint  # noqa: PT017 - either is right
    else:
        assert all(isinstance(tensor.name, str) for tensor in found.inputs)


def test_a_truncated_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "torn.onnx"
    with pytest.raises(ModelError, match="cannot read the model"):
        examine(path)
    for size in range(0, len(WHOLE), 97):
        path.write_bytes(WHOLE[:size])
        with pytest.raises(ModelError):
            examine(path)


REAL = {
    "yolov10n-thu": ("end-to-end", "float32", 6.7, 2.3, {"names-missing", "top-k-cap"}),
    "yolov10n-ultralytics": ("end-to-end", "float32", 6.7, 2.3, {"top-k-cap"}),
    "yolov10n-ultralytics-dynamic": ("end-to-end", "float32", 6.7, 2.3, {"top-k-cap"}),
    "yolov10n-raw": ("body", "float32", 6.7, 2.3, set()),
    "yolov10n-raw-dynamic": ("body", "float32", 6.7, 2.3, set()),
    "yolov10n-raw-fp16": ("body", "float16", 6.7, 2.3, set()),
    "yolov8n-320-int8": ("one-to-many", "float32", 8.7 / 4, 3.15, {"one-to-many"}),
}
"""Layout, type, published billions of operations, millions of parameters, and all advice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_models(shared, name):
    layout, dtype, flops, parameters, codes = REAL[name]
    found = examine(shared(f"models/{name}.onnx"))
    assert (found.problem, found.operations.uncounted) == (None, {})
    assert (found.detector.layout, found.detector.names[5]) == (layout, "bus")
    assert (found.inputs[0].dtype, [*found.precision.computes]) == (dtype, [dtype])
    assert found.operations.flops / 1e9 == pytest.approx(flops, rel=0.02)
    assert found.parameters / 1e6 == pytest.approx(parameters, rel=0.02)
    assert {entry.code for entry in found.warnings} == codes
    quantised = Quantisation("QDQ", 64, 64) if "int8" in name else None
    assert found.precision.quantisation == quantised


FORMULA = "(((height - 1)//2)) + 1*(((width - 1)//2)) + 1"


def test_tensors_and_their_axes():
    """Formulas are no symbols, and axes of one symbol are one axis."""
    for name, dtype, dims, expected in (
        ("a", onnx.TensorProto.FLOAT16, ["b", 3, 640, None], ("float16", ("b", 3, 640, None))),
        ("b", onnx.TensorProto.FLOAT, [1, FORMULA], ("float32", (1, None))),
        ("c", 99, [1], ("type 99", (1,))),
    ):
        value = helper.make_tensor_value_info(name, dtype, dims)
        assert describe_tensor(value) == TensorInfo(name, *expected)
    tensors = [
        TensorInfo("x", "float32", ("b", 3, "h")),
        TensorInfo("y", "float32", ("b", None, 0)),
        TensorInfo("z", "float32", (1, 3)),
    ]
    assert dynamic_axes(tensors) == (
        DynamicAxis("b", ("x[0]", "y[0]")),
        DynamicAxis("h", ("x[2]",)),
        DynamicAxis("?", ("y[1]", "y[2]")),
    )


def test_bytes_in_a_report_become_text_at_any_depth():
    damaged = CutPoint(b"r\xe9d", 3, {b"Conv": 3, "k": b"\0v"}, None)
    whole = CutPoint("r\\xe9d", 3, {"Conv": 3, "k": "\0v"}, None)
    assert decoded((damaged, ModelProblem(b"\xff", ""))) == (whole, ModelProblem("\\xff", ""))
    assert decoded(whole) == whole
