"""Parameters are the learnt tensors, not computed ones, scales or counters."""

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from detcli.model.graph import GraphIndex, parameters

INPUT = "float[1, 3, 4, 4] x"


def names(nodes, **constants):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({INPUT}) => (float y) {{ {nodes} }}'
    )
    arrays = {name: np.zeros(dims, np.float32) for name, dims in constants.items()}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    return [tensor.name for tensor in parameters(GraphIndex(model.graph))]


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
}


@pytest.mark.parametrize(("nodes", "expected"), CASES.values(), ids=CASES)
def test_parameters(nodes, expected):
    constants = dict.fromkeys("wbmvs", (3,))
    assert names(nodes, **constants) == expected


def test_constants_in_nodes_count_too():
    nodes = "w = Constant<value = float[3, 3, 1, 1] {0,0,0,0,0,0,0,0,0}>() y = Conv(x, w)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({INPUT}) => (float y) {{ {nodes} }}'
    )
    assert [list(tensor.dims) for tensor in parameters(GraphIndex(model.graph))] == [[3, 3, 1, 1]]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((f"yolov10n-{kind}", 2_299_264) for kind in ("thu", "raw", "raw-fp16", "ultralytics")),
        ("yolov8n-320-int8", 3_151_904),  # Ultralytics' figure for the fused model
    ],
)
def test_real_models_have_the_published_number_of_parameters(shared, name, count):
    model = onnx.load(shared(f"models/{name}.onnx"))
    assert sum(math.prod(t.dims) for t in parameters(GraphIndex(model.graph))) == count
