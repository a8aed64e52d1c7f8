"""Operations of small graphs counted by hand, and of real ones as published."""

import math

import onnx
import pytest
from onnx import TensorProto, helper

from detcli.commands.inspect.examine import count_operations
from detcli.model.loading import load

HEADER = '<ir_version: 8, opset_import: ["": %d, "com.microsoft": 1]>'


def parsed(nodes, inputs, weights="", opset=17, outputs="float y"):
    return onnx.parser.parse_model(
        f"{HEADER % opset} g ({inputs}) => ({outputs}) <{weights}> {{ {nodes} }}"
    )


def counted(model, *sizes, **constants):
    for name, dims in constants.items():
        value = [0.0] * math.prod(dims)
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, dims, value))
    return count_operations(model, sizes)


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
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", ["float[1, 3, 4, 4] x", "float[b, c, h, w] x"])
def test_counts(nodes, dims, flops, batch, shape):
    found = counted(parsed(nodes, shape), batch, 3, 4, 4, w=dims)
    assert found.flops == batch * flops
    assert sum(found.by_operator.values()) == batch * flops
    assert found.uncounted == {}
    assert found.input_shape == (batch, 3, 4, 4)


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
    found = counted(parsed(nodes, "float[1, 6, 4, 4] x"), 1, 6, 4, 4, w=(8, 3, 1, 1))
    assert (found.flops, found.uncounted) == (2 * 8 * 16 * 3, {})


def test_nodes_of_unknown_size_are_reported():
    nodes = "a = Conv(x, w) n = NonZero(a) f = Cast<to = 1>(n) y = MatMul(v, f)"
    found = counted(parsed(nodes, "float[1, 3, 4, 4] x"), 1, 3, 4, 4, w=(8, 3, 1, 1), v=(5, 4))
    assert found.by_operator == {"Conv": 2 * 128 * 3}
    assert found.uncounted == {"MatMul": 1}


def test_operators_that_are_not_counted_are_reported():
    nodes = 'e = Einsum<equation = "bchw->bwhc">(x) a = Conv(x, w) y = Identity(e)'
    found = counted(parsed(nodes, "float[1, 3, 4, 4] x"), 1, 3, 4, 4, w=(8, 3, 1, 1))
    assert found.uncounted == {"Einsum": 1}
    assert found.flops == 2 * 128 * 3


def test_operators_of_other_domains_are_reported():
    model = parsed("a = Relu(x) y = com.acme.Magic(a)", "float[1, 3, 4, 4] x")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert counted(model, 1, 3, 4, 4).uncounted == {"Magic": 1}


def test_branches_of_an_if_are_reported():
    nodes = """
        s = ReduceSum<keepdims = 0>(x)
        b = Cast<to = 9>(s)
        y = If (b) <
            then_branch = t () => (float[1, 8, 4, 4] p) { p = Conv(x, w) },
            else_branch = e () => (float[1, 8, 4, 4] q) { q = Conv(x, w) }
        >
    """
    found = counted(parsed(nodes, "float[1, 3, 4, 4] x"), 1, 3, 4, 4, w=(8, 3, 1, 1))
    assert (found.flops, found.uncounted) == (0, {"Conv": 2})


def test_functions_are_inlined():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[1, 3, 4, 4] x, float[8, 3, 1, 1] w) => (float y) { y = own.Twice(x, w) }
        <opset_import: ["": 17], domain: "own">
        Twice (x, w) => (y) { a = Conv(x, w) y = Add(a, a) }
    """)
    constant = helper.make_tensor("w", TensorProto.FLOAT, (8, 3, 1, 1), [0.0] * 24)
    model.graph.initializer.append(constant)
    assert count_operations(model, (1, 3, 4, 4)).flops == 2 * 128 * 3


def test_counting_leaves_the_model_unchanged():
    model = parsed("y = Conv(x, w)", "float[b, 3, h, w0] x")
    counted(model, 1, 3, 4, 4, w=(8, 3, 1, 1))
    before = model.SerializeToString(deterministic=True)
    count_operations(model, (1, 3, 4, 4))
    assert model.SerializeToString(deterministic=True) == before


REAL = [
    *(f"yolov10n-{name}.onnx" for name in ("thu", "ultralytics", "ultralytics-dynamic")),
    *(f"yolov10n-{name}.onnx" for name in ("raw", "raw-dynamic", "raw-fp16")),
]


@pytest.mark.parametrize("name", REAL)
def test_yolov10n_has_the_published_6_7_gflops(shared, name):
    path = shared(f"models/{name}")
    model, _ = load(path, path.read_bytes())
    found = count_operations(model, (1, 3, 640, 640))
    assert found.flops / 1e9 == pytest.approx(6.7, rel=0.02)
    assert found.uncounted == {}


def test_yolov8n_has_a_quarter_of_the_published_8_7_gflops_at_half_the_size(shared):
    path = shared("models/yolov8n-320-int8.onnx")
    model, _ = load(path, path.read_bytes())
    assert count_operations(model, (1, 3, 320, 320)).flops / 1e9 == pytest.approx(8.7 / 4, rel=0.02)
