"""What is read of graphs: Transposes that an engine may drop, and the learnt tensors."""

import math

import colour_model
import numpy as np
import onnx
import pytest
from graph_builder import Graph
from graph_edits import add_constants, first_outputs, names_of

from detcli.model.graph import GraphIndex, bare_transposes, is_all_half, parameters

ENDS = """
    <ir_version: 8, opset_import: ["": 17]>
    ends (float[1, 2, 3] images) => (%s)
    {
        swapped = Transpose<perm = [0, 2, 1]>(images)
        reversed = Transpose(images)
        unmoved = Transpose<perm = [0, 1, 2]>(images)
        behind = Identity(swapped)
        dropped = Dropout(behind)
        joined = Concat<axis = 2>(swapped)
        converted = Cast<to = 10>(swapped)
        used = Relu(swapped)
    }
"""


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (["swapped"], ["swapped"]),
        (["reversed"], ["reversed"]),
        # Simplifiers remove what stands between.
        (["behind"], ["swapped"]),
        (["dropped"], ["swapped"]),
        (["unmoved", "joined", "converted", "used", "images", "nowhere"], []),
        (["used", "reversed", "behind", "swapped", "dropped"], ["reversed", "swapped"]),
    ],
)
def test_transposes_that_make_an_output_are_found_once_in_order(outputs, expected):
    declarations = [f"float[1, 3, 2] {name}" for name in outputs]
    model = onnx.parser.parse_model(ENDS % ", ".join(declarations))
    assert first_outputs(bare_transposes(model.graph)) == expected


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_only_one_detector_tail_has_a_bare_transpose(tail):
    assert len(bare_transposes(colour_model.build(tail).graph)) == (tail == "transposed")


CASES = {
    "weight and bias": ("y = Conv(x, w, b)", ["w", "b"]),
    "no bias": ("y = Conv(x, w)", ["w"]),
    "of a computed weight": ("c = Sigmoid(w) y = Conv(x, c)", []),
    "either factor": ("y = MatMul(w, x)", ["w"]),
    "bias of a product": ("p = MatMul(x, w) y = Add(b, p)", ["w", "b"]),
    "any other sum": ("p = Mul(x, w) y = Add(p, b)", []),
    "scale and shift, no statistics": ("y = BatchNormalization(x, w, b, m, v)", ["w", "b"]),
    "shared": ("c = Conv(x, w) y = Conv(c, w)", ["w"]),
    "quantised": ("i = QuantizeLinear(w, s) q = DequantizeLinear(i, s) y = Conv(x, q)", ["w"]),
    "half": ("h = Cast<to = 1>(w) y = Conv(x, h)", ["w"]),
    "rearranged": ("t = Transpose(w) y = MatMul(x, t)", ["w"]),
    "anchors and strides": ("a = Sub(x, w) y = Mul(a, b)", []),
    "constant in a node": ("k = Constant<value = float[1] {0}>() y = Conv(x, k)", [""]),
}


@pytest.mark.parametrize(("nodes", "expected"), CASES.values(), ids=CASES)
def test_parameters_are_the_learnt_tensors(nodes, expected):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, 4, 4] x) => (float y) '
        f"{{ {nodes} }}"
    )
    add_constants(model.graph, {name: np.zeros(3, np.float32) for name in "wbmvs"})
    assert names_of(parameters(GraphIndex(model.graph))) == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("c = Conv(x, h) y = Conv(c, h)", True),
        ("c = Conv(x, h) y = Conv(c, w)", False),  # which TF32 would round
        ("t = Transpose(h) c = MatMul(t, x) y = Add(c, b)", True),  # a bias is no matrix
        ("f = Cast<to = 1>(h) y = Conv(x, f)", False),
        ("f = Cast<to = 10>(w) y = Conv(x, f)", True),
        ("y = Relu(x)", False),
    ],
)
def test_networks_in_float16_alone_are_told_apart(nodes, expected):
    graph = onnx.parser.parse_graph(f"g (float16[1, 3, 4, 4] x) => (float16 y) {{ {nodes} }}")
    constants = {
        "w": np.zeros((3, 3), np.float32),
        "h": np.zeros((3, 3), np.float16),
        "b": np.zeros(3, np.float32),
    }
    add_constants(graph, constants)
    assert is_all_half(graph) is expected


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("yolov10n-thu", 2_299_264),
        ("yolov10n-raw-fp16", 2_299_264),
        ("yolov10n-ultralytics", 2_299_264),
        ("yolov8n-320-int8", 3_151_904),  # Ultralytics' figure for the fused model
    ],
)
def test_real_models_have_the_published_number_of_parameters(shared, name, count):
    model = onnx.load(shared(f"models/{name}.onnx"))
    parameter_count = 0
    for tensor in parameters(GraphIndex(model.graph)):
        parameter_count += math.prod(tensor.dims)
    assert parameter_count == count


def test_outputs_that_a_joined_output_is_computed_from_are_left_out():
    graph = Graph()
    boxes = graph.convolution(4, 8)
    logits = graph.convolution(3, 8)
    joined = graph("Concat", boxes, graph("Sigmoid", logits), axis=1)
    for outputs in ([boxes, logits, joined], [joined, logits, boxes]):
        assert GraphIndex(graph.model(outputs).graph).outputs == [joined]


def test_outputs_that_rearrange_another_output_are_left_out():
    graph = Graph()
    boxes = graph.convolution(4, 8)
    flat = graph("Reshape", boxes, [1, -1])
    transposed = graph("Transpose", boxes, perm=[3, 2, 1, 0])
    for outputs in ([flat, transposed, boxes], [boxes, transposed, flat]):
        assert GraphIndex(graph.model(outputs).graph).outputs == [boxes]
