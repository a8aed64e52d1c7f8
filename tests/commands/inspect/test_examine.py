# mypy: disable-error-code=arg-type
"""Any readable ONNX file is reported; everything else is a ModelError."""

import hashlib

import colour_model
import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
from convolution_model import behind_a_convolution
from graph_edits import names_of
from onnx import helper
from thinning import thin

from detcli.commands.inspect.advice import CutPoint
from detcli.commands.inspect.detector import TensorInfo, describe_tensor
from detcli.commands.inspect.examine import (
    DynamicAxis,
    ModelProblem,
    dynamic_axes,
    examine,
    with_readable_texts,
)
from detcli.commands.inspect.network import Quantisation
from detcli.config.config import Settings
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError, UsageError
from detcli.model.external_data import ExternalFile


def codes_of(findings):
    return [finding.code for finding in findings]


def test_the_report_of_a_detector(make_model):
    path = make_model(tail="authors", metadata={"stride": "8", "author": "somebody"}, opset=13)
    content = path.read_bytes()
    report = examine(path)
    assert report.model == str(path)
    assert report.bytes == len(content)
    assert report.sha256 == hashlib.sha256(content).hexdigest()
    assert report.inputs == (TensorInfo("images", "float32", (1, 3, 64, 64)),)
    assert report.outputs == (TensorInfo("detections", "float32", (1, 16, 6)),)
    assert report.dynamic_axes == ()
    assert report.opsets == {"ai.onnx": 13}
    assert report.metadata == {"stride": "8", "author": "somebody"}
    assert sum(report.nodes.values()) == len(onnx.load(path).graph.node)
    assert report.problem is None
    assert report.detector.class_count == 3
    assert report.detector.names == ("class_0", "class_1", "class_2")
    assert codes_of(report.warnings) == ["names-missing", "top-k-cap"]
    assert report.placements[-1].usable
    assert "TopK" not in (report.placements[-1].taken or {})  # only the part that runs is placed


def test_dynamic_axes_are_named(make_model):
    report = examine(make_model(size=None, batch=None))
    assert DynamicAxis("axis0", ("images[0]", "head[0]")) in report.dynamic_axes


def with_convolution(path, **options):
    """A detector after a padded convolution of 3x3x3x3, which can be counted."""
    weight = np.ones((3, 3, 3, 3), np.float32)
    onnx.save_model(behind_a_convolution(weight, pads=1, **options), path)
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
    operations = examine(path, Settings(imgsz=imgsz)).operations
    assert operations.input_shape == shape
    assert operations.flops == 2 * shape[0] * 3 * shape[2] * shape[3] * 27
    assert examine(path).parameters == 81


def test_what_the_user_says(make_model, tmp_path):
    (tmp_path / "names").write_text("a\nb\nc\n")
    settings = Settings(box_format=BoxFormat.CXCYWH, names=tmp_path / "names")
    detector = examine(make_model(), settings).detector
    assert detector.box_format is BoxFormat.CXCYWH
    assert detector.names == ("a", "b", "c")
    assert detector.names_origin == str(tmp_path / "names")
    (tmp_path / "names").write_text("a\n")
    with pytest.raises(UsageError, match="has 1 name, "):
        examine(make_model(), Settings(names=tmp_path / "names"))
    with pytest.raises(UsageError, match="takes 64x64 images only"):
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
    report = examine(classifier, Settings(imgsz=96))
    assert report.detector is None
    assert "what its input more is for" in report.problem.message
    assert "expected images [B, 3, H, W]" in report.problem.hint
    assert names_of(report.inputs) == ["images", "more"]
    assert report.nodes == {"ReduceSum": 1, "Add": 1}
    assert report.operations is None
    assert report.placements[-1].usable


def test_a_model_that_no_provider_loads_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)  # it reads any version
    model = colour_model.build()
    model.opset_import[0].version = 999
    path = tmp_path / "new.onnx"
    path.write_bytes(model.SerializeToString())
    report = examine(path)
    assert report.detector is not None
    assert "opset-too-new" in codes_of(report.warnings)
    assert "cannot load new.onnx" in report.problem.message
    for placement in report.placements:
        assert not placement.usable


def test_external_data_is_hashed_and_counted(tmp_path):
    path = with_convolution(tmp_path / "model.onnx")
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    data = (tmp_path / "w.bin").read_bytes()
    report = examine(path)
    assert report.external == (ExternalFile("w.bin", len(data), hashlib.sha256(data).hexdigest()),)
    assert report.parameters == 81
    assert "external-data" in codes_of(report.warnings)
    (tmp_path / "w.bin").write_bytes(data[:-1])
    with pytest.raises(ModelError, match="truncated"):
        examine(path)


WHOLE = colour_model.build("authors", metadata={"names": "['a', 'b', 'c']"}).SerializeToString()


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    offset=st.integers(0, len(WHOLE) - 1),
    data=st.binary(min_size=1, max_size=8),
    removed=st.integers(0, 12),
)
def test_a_damaged_file_is_reported_or_a_model_error(tmp_path_factory, offset, data, removed):
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(WHOLE[:offset] + data + WHOLE[offset + removed :])
    try:
        report = examine(path)
    except ModelError as error:
        assert error.hint  # noqa: PT017 - either is right
    else:
        for tensor in report.inputs:
            assert isinstance(tensor.name, str)


REAL = {
    "yolov10n-thu": ("end-to-end", "float32", 6.7, 2.3, {"names-missing", "top-k-cap"}),
    "yolov10n-ultralytics": ("end-to-end", "float32", 6.7, 2.3, {"top-k-cap"}),
    "yolov10n-ultralytics-dynamic": ("end-to-end", "float32", 6.7, 2.3, {"top-k-cap"}),
    "yolov10n-raw": ("body", "float32", 6.7, 2.3, set()),
    "yolov10n-raw-dynamic": ("body", "float32", 6.7, 2.3, set()),
    "yolov10n-raw-fp16": ("body", "float16", 6.7, 2.3, set()),
    "yolov8n-320-int8": ("one-to-many", "float32", 8.7 / 4, 3.15, {"coarse-scores"}),
}
"""Layout, type, published billions of operations, millions of parameters, and all advice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", thin("real models that inspect describes", REAL, count=2))
def test_real_models(shared, name):
    layout, dtype, flops, parameters, codes = REAL[name]
    report = examine(shared(f"models/{name}.onnx"))
    assert report.problem is None
    assert report.operations.uncounted == {}
    assert report.detector.layout == layout
    assert report.detector.names[5] == "bus"
    assert report.inputs[0].dtype == dtype
    assert list(report.precision.computes) == [dtype]
    assert report.operations.flops / 1e9 == pytest.approx(flops, rel=0.02)
    assert report.parameters / 1e6 == pytest.approx(parameters, rel=0.02)
    assert set(codes_of(report.warnings)) == codes
    quantised = Quantisation("QDQ", 64, 64) if "int8" in name else None
    assert report.precision.quantisation == quantised


FORMULA = "(((height - 1)//2)) + 1*(((width - 1)//2)) + 1"


def test_tensors_and_their_axes():
    """Formulas are no symbols, and axes of one symbol are one axis."""
    for expected, dtype, dims in (
        (
            TensorInfo("a", "float16", ("b", 3, 640, None)),
            onnx.TensorProto.FLOAT16,
            ["b", 3, 640, None],
        ),
        (TensorInfo("b", "float32", (1, None)), onnx.TensorProto.FLOAT, [1, FORMULA]),
        (TensorInfo("c", "type 99", (1,)), 99, [1]),
    ):
        value = helper.make_tensor_value_info(expected.name, dtype, dims)
        assert describe_tensor(value) == expected
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
    damaged = CutPoint(b"r\xe9d", 3, {b"Conv": 3, "k": b"\0v"}, None)  # type: ignore[dict-item]
    cut_point = CutPoint("r\\xe9d", 3, {"Conv": 3, "k": "\0v"}, None)  # type: ignore[dict-item]
    assert with_readable_texts((damaged, ModelProblem(b"\xff", ""))) == (
        cut_point,
        ModelProblem("\\xff", ""),
    )
    assert with_readable_texts(cut_point) == cut_point
