"""The types a network computes in, for each form of quantisation."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from detcli.commands.inspect.examine import Quantisation, describe_precision
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, parameters

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


def described(nodes, dtype="float"):
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


CASES = {
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
    ("nodes", "computes", "weights", "quantisation"), CASES.values(), ids=CASES
)
def test_precision(nodes, computes, weights, quantisation):
    found = described(nodes)
    assert found.computes == computes
    assert found.weights == weights
    assert found.quantisation == quantisation
