# mypy: disable-error-code=arg-type
"""How operations are counted, and number types and quantisation described."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detcli.commands.inspect.network import Quantisation, count_operations, describe_precision
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, parameters

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
    names_of_inputs = set()
    for node in model.graph.node:
        names_of_inputs.update(node.input)
    for name, array in CONSTANTS.items():
        if name in names_of_inputs:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
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
