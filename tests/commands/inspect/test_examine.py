# mypy: disable-error-code=arg-type
"""Any readable ONNX file is reported; everything else is a ModelError."""

import hashlib
import math

import colour_model
import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import pytest
import query_model
from cell_graphs import yolox
from convolution_model import behind_a_convolution
from graph_builder import STRIDES, Graph
from head_graphs import in_one, model_of
from onnx import TensorProto, helper, numpy_helper
from thinning import thin

from detcli.commands.inspect.advice import CutPoint
from detcli.commands.inspect.examine import (
    DynamicAxis,
    FedInput,
    ModelProblem,
    TensorInfo,
    decoded,
    describe,
    describe_tensor,
    dynamic_axes,
    examine,
)
from detcli.commands.inspect.network import Quantisation, count_operations, describe_precision
from detcli.config.config import Settings
from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError, UsageError
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import infer_shapes
from detcli.model.external_data import ExternalFile
from detcli.model.graph import GraphIndex, parameters
from detcli.model.inputs import Role
from detcli.model.recognise import read_graph


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
    assert [entry.code for entry in report.warnings] == ["names-missing", "top-k-cap"]
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
    with pytest.raises(UsageError, match="has 1 names"):
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
    assert [tensor.name for tensor in report.inputs] == ["images", "more"]
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
    assert "opset-too-new" in {entry.code for entry in report.warnings}
    assert "cannot load new.onnx" in report.problem.message
    assert not any(placement.usable for placement in report.placements)


def test_external_data_is_hashed_and_counted(tmp_path):
    path = with_convolution(tmp_path / "model.onnx")
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    data = (tmp_path / "w.bin").read_bytes()
    report = examine(path)
    assert report.external == (ExternalFile("w.bin", len(data), hashlib.sha256(data).hexdigest()),)
    assert report.parameters == 81
    assert "external-data" in {entry.code for entry in report.warnings}
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
        assert all(isinstance(tensor.name, str) for tensor in report.inputs)


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
    assert {entry.code for entry in report.warnings} == codes
    quantised = Quantisation("QDQ", 64, 64) if "int8" in name else None
    assert report.precision.quantisation == quantised


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
    damaged = CutPoint(b"r\xe9d", 3, {b"Conv": 3, "k": b"\0v"}, None)  # type: ignore[dict-item]
    cut_point = CutPoint("r\\xe9d", 3, {"Conv": 3, "k": "\0v"}, None)  # type: ignore[dict-item]
    assert decoded((damaged, ModelProblem(b"\xff", ""))) == (cut_point, ModelProblem("\\xff", ""))
    assert decoded(cut_point) == cut_point


def described(model, box_format=None, *, boxes_only=False):
    model = infer_shapes(model)
    reading = read_graph(model, "colours", box_format, boxes_only=boxes_only)
    return describe(model, reading, box_format)


@pytest.mark.parametrize(("tail", "keep"), [("ultralytics", 16), ("authors", 5)])
def test_an_end_to_end_graph_is_cut_at_the_head(tail, keep):
    model = colour_model.build(tail, keep=keep)
    detector = described(model)
    assert detector.layout is Layout.END_TO_END
    assert detector.head == TensorInfo("head", "float32", (1, 7, 64))
    assert detector.cut.tensor == "head"
    assert detector.cut.kept == len(colour_model.build("body").graph.node)
    assert detector.cut.kept + sum(detector.cut.dropped.values()) == len(model.graph.node)
    assert detector.cut.dropped["TopK"] == 2
    assert detector.cut.most_detections == keep
    assert "first_value and second_value (TopK)" in detector.layout_reason


def test_top_k_nodes_have_their_names():
    model = colour_model.build("authors")
    for node in model.graph.node:
        node.name = f"/{node.output[0]}"
    assert "/first_value and /second_value" in described(model).layout_reason


def test_the_limit_of_a_graph_whose_output_is_dynamic_comes_from_its_nodes():
    model = colour_model.build("authors", keep=5)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    assert described(model).cut.most_detections == 5
    keep = next(tensor for tensor in model.graph.initializer if tensor.name == "keep")
    keep.name = "asked"
    model.graph.node.insert(0, helper.make_node("Abs", ["asked"], ["keep"]))
    assert described(model).cut.most_detections is None  # it is computed


@pytest.mark.parametrize(
    ("tail", "layout", "shape", "says"),
    [
        ("body", Layout.BODY, (1, 7, 64), "joins four box rows"),
        ("transposed", Layout.TRANSPOSED_BODY, (1, 64, 7), "anchors first"),
        ("one-to-many", Layout.ONE_TO_MANY, (1, 7, 64), "several boxes for each object"),
    ],
)
def test_other_layouts_are_not_cut(tail, layout, shape, says):
    detector = described(colour_model.build(tail))
    assert detector.layout == layout
    assert detector.cut is None
    assert detector.head.shape == shape
    assert says in detector.layout_reason


def test_metadata_can_be_the_reason_for_one_to_many():
    detector = described(colour_model.build(metadata={"end2end": "False"}))
    assert detector.layout is Layout.ONE_TO_MANY
    assert "its metadata says it is not end-to-end" in detector.layout_reason
    assert detector.needs_nms
    assert detector.one_class  # its suppression takes the best of each anchor


def test_the_box_format_has_its_reason():
    for model, settings, says in (
        (colour_model.build("body"), None, "(Sub, Add): two corners"),
        (colour_model.build("one-to-many"), None, "centre and size"),
        (colour_model.build("body"), BoxFormat.CXCYWH, "--box-format"),
        (model_of("NMS, [1, K, 6]", 3)[0], None, "corners of what"),
        (model_of("NMS, centres", 3)[0], None, "centre and size of what"),
    ):
        assert says in described(model, settings).box_format_reason


@pytest.mark.parametrize("landmarks", [False, True])
def test_landmarks_that_are_left_out_are_mentioned_and_not_warned_of(landmarks):
    """Of SCRFD: scores, distances and landmarks of two anchors a cell, in rows."""
    graph = Graph()
    rows = [
        graph("Reshape", graph("Transpose", maps, perm=[0, 2, 3, 1]), [1, -1, width])
        for width in ((1, 4, 10) if landmarks else (1, 4))
        for maps in (graph.convolution(2 * width, stride) for stride in STRIDES)
    ]
    model = graph.model(rows)
    assert ("; its landmarks are left out" in described(model).layout_reason) is landmarks
    assert read_graph(model, "scrfd").contract.warnings == ()


def test_an_objectness_apart_from_boxes_and_classes_is_mentioned():
    graph = Graph()
    detector = described(graph.model(list(yolox(graph, 3).values())))
    assert detector.layout is Layout.SCALES
    assert detector.score_reason == "objectness times the class's score"


def test_masks_or_keypoints_that_are_left_out_are_mentioned():
    graph = Graph()
    model = graph.model(list(in_one(graph, 3, extra_columns=32).values()))
    reason = described(model, boxes_only=True).layout_reason
    assert reason.endswith("; its masks or keypoints are left out")


def test_a_dynamic_graph_has_unknown_sizes():
    detector = described(
        colour_model.build("body", size=None, batch=None, metadata={"stride": "16"})
    )
    assert detector.stride == 16
    assert detector.stride_origin == "the model's metadata"
    assert detector.head.shape[1] == 7
    assert detector.batch is None
    assert detector.input_size is None
    assert detector.default_size == (640, 640)
    assert detector.anchor_count is None


def test_queries_without_a_selection_are_not_cut():
    detector = described(query_model.build())
    assert detector.family == "RT-DETR"
    assert detector.layout == Layout.PAIR
    assert detector.cut is None
    assert detector.head.shape == (1, 64, 7)
    boxes, scores = detector.heads
    assert boxes == TensorInfo("cxcywh", "float32", (1, 64, 4))
    assert scores == TensorInfo("logits", "float32", (1, 64, 3))
    assert detector.box_format_reason == "a sigmoid of shifted references: centre and size"
    assert detector.box_unit == "fractions"
    assert detector.score_form == ScoreForm.LOGITS
    assert detector.one_class is False
    assert detector.needs_nms is False
    assert detector.other_inputs == ()


def test_a_softmax_leaves_out_no_object():
    detector = described(query_model.build(no_object=True))
    assert detector.family == "DETR"
    assert detector.score_form == ScoreForm.FINAL
    assert detector.one_class is True
    assert "no object, which is left out" in detector.score_reason


def test_a_deploy_graph_is_cut_before_its_selection_and_fed():
    detector = described(query_model.build("deploy", keep=5))
    assert [tensor.name for tensor in detector.heads] == ["corners", "logits"]
    assert detector.cut.tensor == "corners"
    assert detector.cut.dropped["TopK"] == 1
    assert detector.cut.most_detections == 5
    assert detector.other_inputs == (FedInput("orig_target_sizes", Role.WIDTH_HEIGHT),)


HEADER = '<ir_version: 8, opset_import: ["": %d, "com.microsoft": 1]>'


def parsed(nodes, inputs, weights="", opset=17, outputs="float y"):
    return onnx.parser.parse_model(
        f"{HEADER % opset} g ({inputs}) => ({outputs}) <{weights}> {{ {nodes} }}"
    )


def counted(model, *sizes, **constants):
    for name, dims in constants.items():
        value = [0.0] * math.prod(dims)
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, dims, value))
    before = model.SerializeToString(deterministic=True)
    operations = count_operations(model, sizes)
    assert model.SerializeToString(deterministic=True) == before
    return operations


COUNTS = {
    # 2 operations x outputs 1*8*4*4 x weights of one output 3*3*3
    "convolution": ("y = Conv<pads = [1, 1, 1, 1]>(x, w)", (8, 3, 3, 3), 2 * 128 * 27),
    "strided": ("y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)", (8, 3, 3, 3), 2 * 32 * 27),
    "grouped": ("y = Conv<group = 3>(x, w)", (3, 1, 1, 1), 2 * 48),
    # each of the 3*4*4 entries is multiplied with 5*2*2 weights
    "transposed": ("y = ConvTranspose<strides = [2, 2]>(x, w)", (3, 5, 2, 2), 2 * 48 * 20),
    "product": ("y = MatMul(x, w)", (4, 7), 2 * 3 * 4 * 7 * 4),
    "vector": ("y = MatMul(x, w)", (4,), 2 * 3 * 4 * 4),
    "gemm": ("f = Flatten(x) y = Gemm(f, w)", (48, 5), 2 * 5 * 48),
    "gemm, transposed": ("f = Flatten(x) y = Gemm<transB = 1>(f, w)", (5, 48), 2 * 5 * 48),
    "others": ("a = Mul(x, w) b = Sigmoid(a) y = Add(b, w)", (4,), 0),
}


@pytest.mark.parametrize(("nodes", "dims", "flops"), COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize(
    ("batch", "shape"), [(1, "float[1, 3, 4, 4] x"), (3, "float[b, c, h, w] x")]
)
def test_counts(nodes, dims, flops, batch, shape):
    operations = counted(parsed(nodes, shape), batch, 3, 4, 4, w=dims)
    assert operations.flops == batch * flops
    assert sum(operations.by_operator.values()) == batch * flops
    assert operations.uncounted == {}
    assert operations.input_shape == (batch, 3, 4, 4)


@pytest.mark.parametrize("sizes", [(), (None, 3, 4, 4), (1, 3, 0, 4)])
def test_nothing_is_counted_without_a_size(sizes):
    model = parsed("y = Conv(x, w)", "float[b, 3, h, w0] x")
    assert counted(model, *sizes, w=(8, 3, 1, 1)) is None


def test_sizes_computed_by_arithmetic_are_followed():
    """Half of the channels as the authors' exporter writes it; onnx does not follow the Div."""
    nodes = """
        s = Shape(x)
        one = Constant<value_ints = [1]>()
        two = Constant<value_ints = [2]>()
        zero = Constant<value_ints = [0]>()
        c = Gather(s, one)
        half = Div(c, two)
        part = Slice(x, zero, half, one)
        y = Conv(part, w)
    """
    operations = counted(parsed(nodes, "float[1, 6, 4, 4] x"), 1, 6, 4, 4, w=(8, 3, 1, 1))
    assert operations.flops == 2 * 8 * 16 * 3
    assert operations.uncounted == {}


MULTIPLIED = 2 * 128 * 3
UNCOUNTED = {
    "of unknown size": (
        "a = Conv(x, w) n = NonZero(a) f = Cast<to = 1>(n) y = MatMul(v, f)",
        {"MatMul": 1},
        MULTIPLIED,
    ),
    "operators": (
        'e = Einsum<equation = "bchw->bwhc">(x) a = Conv(x, w) y = Identity(e)',
        {"Einsum": 1},
        MULTIPLIED,
    ),
    "domains": ("a = Conv(x, w) y = com.acme.Magic(a)", {"Magic": 1}, MULTIPLIED),
}


@pytest.mark.parametrize(("nodes", "uncounted", "flops"), UNCOUNTED.values(), ids=UNCOUNTED)
def test_what_is_not_counted_is_reported(nodes, uncounted, flops):
    model = parsed(nodes, "float[1, 3, 4, 4] x")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    operations = counted(model, 1, 3, 4, 4, w=(8, 3, 1, 1), v=(5, 4))
    assert operations.uncounted == uncounted
    assert operations.flops == flops
    assert operations.by_operator == {"Conv": MULTIPLIED}


def test_branches_of_an_if_are_reported():
    nodes = """
        s = ReduceSum<keepdims = 0>(x)
        b = Cast<to = 9>(s)
        y = If (b) <
            then_branch = t () => (float[1, 8, 4, 4] p) { p = Conv(x, w) },
            else_branch = e () => (float[1, 8, 4, 4] q) { q = Conv(x, w) }
        >
    """
    operations = counted(parsed(nodes, "float[1, 3, 4, 4] x"), 1, 3, 4, 4, w=(8, 3, 1, 1))
    assert operations.flops == 0
    assert operations.uncounted == {"Conv": 2}


def test_functions_are_inlined():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[1, 3, 4, 4] x, float[8, 3, 1, 1] w) => (float y) { y = own.Twice(x, w) }
        <opset_import: ["": 17], domain: "own">
        Twice (x, w) => (y) { a = Conv(x, w) y = Add(a, a) }
    """)
    assert counted(model, 1, 3, 4, 4, w=(8, 3, 1, 1)).flops == 2 * 128 * 3


CONSTANTS = {
    "w": np.ones((8, 3, 1, 1), np.float32),
    "v": np.ones((8, 8, 1, 1), np.float32),
    "h": np.ones((8, 3, 1, 1), np.float16),
    "i": np.ones((8, 3, 1, 1), np.int8),
    "u": np.ones((8, 3, 1, 1), np.uint8),
    "s": np.array(0.1, np.float32),
    "z": np.array(0, np.uint8),
    "zi": np.array(0, np.int8),
}
QX = "qx = QuantizeLinear(x, s, z) dx = DequantizeLinear(qx, s, z)"


def precision_of(nodes, dtype="float"):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({dtype}[1, 3, 4, 4] x) => ({dtype} y) '
        f"{{ {nodes} }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in CONSTANTS.items() if name in read
    )
    index = GraphIndex(infer_shapes(model).graph)
    return describe_precision(index, parameters(index))


PRECISIONS = {
    "float32": ("y = Conv(x, w)", {"float32": 1}, {"float32": 24}, None),
    "half inside": (
        "c = Cast<to = 10>(x) m = Conv(c, h) y = Cast<to = 1>(m)",
        {"float16": 1},
        {"float16": 24},
        None,
    ),
    "mixed": (
        (
            "a = Conv(x, w) c = Cast<to = 10>(x) m = Conv(c, h) f = Cast<to = 1>(m) "
            "s = Add(a, f) y = Conv(s, v)"
        ),
        {"float32": 2, "float16": 1},
        {"float32": 24 + 64, "float16": 24},
        None,
    ),
    "QDQ": (
        f"{QX} dw = DequantizeLinear(i, s, zi) a = Conv(dx, dw) y = Conv(a, v)",
        {"float32": 2},
        {"int8": 24, "float32": 64},
        Quantisation("QDQ", 1, 2),
    ),
    "weights only": (
        "dw = DequantizeLinear(i, s, zi) a = Conv(x, dw) y = Conv(a, v)",
        {"float32": 2},
        {"int8": 24, "float32": 64},
        Quantisation("weights", 1, 2),
    ),
    "integer operators": (
        (
            "q = QuantizeLinear(x, s, z) c = QLinearConv(q, s, z, u, s, z, s, z) "
            "y = DequantizeLinear(c, s, z)"
        ),
        {"uint8": 1},
        {"uint8": 24},
        Quantisation("QOperator", 1, 1),
    ),
    "dynamic": (
        (
            "q, qs, qz = DynamicQuantizeLinear(x) c = ConvInteger(q, u, qz, z) "
            "f = Cast<to = 1>(c) a = Mul(f, qs) y = Conv(a, v)"
        ),
        {"int32": 1, "float32": 1},
        {"float32": 64, "uint8": 24},
        Quantisation("dynamic", 1, 2),
    ),
    "nothing is multiplied": ("y = Sigmoid(x)", {}, {}, None),
}


@pytest.mark.parametrize(
    ("nodes", "computes", "weights", "quantisation"), PRECISIONS.values(), ids=PRECISIONS
)
def test_types_and_quantisation(nodes, computes, weights, quantisation):
    precision = precision_of(nodes)
    assert precision.computes == computes
    assert precision.weights == weights
    assert precision.quantisation == quantisation
