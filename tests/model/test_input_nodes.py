"""What graphs do with their input, computed with ONNX Runtime and read from the nodes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from detcli.model.graph import GraphIndex
from detcli.model.input_nodes import read_input_nodes
from detcli.model.inputs import find_inputs

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
SHAPES = {"NCHW": [1, 3, 8, 8], "NHWC": [1, 8, 8, 3], "CHW": [3, 8, 8], "any": [1, 3, "H", "W"]}
CONSTANTS = f"""<
    float[1] by0 = {{0}}, float[1] by1 = {{1}}, float[1] by2 = {{2}}, float[1] by255 = {{255}},
    float[1] by127_5 = {{127.5}}, float[1] share = {{0.003921569}}, float[1] bynan = {{nan}},
    float[1] red = {{0.485}}, float[1] green = {{0.456}}, float[1] blue = {{0.406}},
    float[1] red_std = {{0.229}}, float[1] green_std = {{0.224}}, float[1] blue_std = {{0.225}},
    float[3] gain = {{1, 2, 3}}, float[3] shift = {{0, 1, 2}}, float[3] variance = {{4, 5, 6}},
    float[3] mean_last = {{0.485, 0.456, 0.406}}, float[4] twice = {{1, 1, 2, 2}},
    float[3, 1, 1] mean = {{0.485, 0.456, 0.406}}, float[3, 1, 1] std = {{0.229, 0.224, 0.225}},
    float[3, 1, 1] mean_bgr = {{0.406, 0.456, 0.485}},
    float[3, 1, 1] std_bgr = {{0.225, 0.224, 0.229}},
    float[1, 3, 1, 1] std_of_four = {{0.229, 0.224, 0.225}},
    float[3, 1, 1] levels = {{123.675, 116.28, 103.53}},
    float[3, 1, 1] levels_bgr = {{103.53, 116.28, 123.675}},
    float[3, 1, 1] level_std = {{58, 57, 57}}, float[3, 1, 1] less = {{-1, -2, -3}},
    float[3, 1, 1] one_two_none = {{1, 2, 0}},
    float[1, 1, 8, 8] many = {{{", ".join(map(str, range(64)))}}},
    int64[3] bgr = {{2, 1, 0}}, int64[3] same = {{0, 0, 0}}, int64[3] beyond = {{7, 1, 0}},
    int64[1] at0 = {{0}}, int64[1] at1 = {{1}}, int64[1] at2 = {{2}}, int64[1] at3 = {{3}},
    int64[1] at8 = {{8}}, int64[1] last = {{-1}}, int64[1] before_all = {{-4}},
    int64[1] end = {{-9223372036854775808}}, int64 first = {{0}}, int64 second = {{1}},
    int64 third = {{2}}, int64[4] sides = {{1, 3, 64, 64}}, int64[4] weight = {{4, 3, 3, 3}}
>"""


def graph(nodes="", layout="NCHW", dtype="float"):
    """A convolution of `t`, which nodes in the text form of ONNX make of `x`, if there are any."""
    dims = ", ".join(map(str, SHAPES[layout]))  # type: ignore[call-overload]
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17]> g ({dtype}[{dims}] x) => (float y) {CONSTANTS}
        {{ w = ConstantOfShape(weight) {nodes} y = Conv({"t" if nodes else "x"}, w) }}
    """)


def nodes_of(nodes, layout="NCHW"):
    index = GraphIndex(graph(nodes, layout).graph)
    return read_input_nodes(index, find_inputs(index)[0])


SPLIT = "r, g, b = Split<axis = 1>(x)"
CASES = {
    "nothing": "",
    "division": "t = Div(x, by255)",
    "product": "t = Mul(x, share)",
    "mean and std": "a = Sub(x, mean) t = Div(a, std_of_four)",
    "through casts": "a = Cast<to = 11>(x) b = Cast<to = 1>(a) c = Identity(b) t = Add(c, less)",
    "gather": "a = Gather<axis = 1>(x, bgr) t = Sub(a, mean)",
    "slice": "a = Mul(x, std) t = Slice(a, last, end, at1, last)",
    "split and concat": f"{SPLIT} t = Concat<axis = 1>(b, g, r)",
    "each channel apart": f"""{SPLIT} r1 = Sub(r, red) r2 = Div(r1, red_std)
        g1 = Sub(g, green) g2 = Div(g1, green_std) b1 = Sub(b, blue) b2 = Div(b1, blue_std)
        t = Concat<axis = 1>(r2, g2, b2)""",
    "gathered one by one": """b = Gather<axis = 1>(x, third) b1 = Unsqueeze(b, at1)
        g = Gather<axis = 1>(x, second) g1 = Unsqueeze(g, at1)
        r = Gather<axis = 1>(x, first) r1 = Unsqueeze(r, at1)
        t = Concat<axis = 1>(b1, g1, r1)""",
    "batch normalisation": "t = BatchNormalization(x, gain, shift, mean_last, variance)",
    "constant first": "t = Mul(by2, x)",
}
ALL = [("NCHW", name, nodes) for name, nodes in CASES.items()]
ALL += [
    ("NHWC", "transposed", "a = Div(x, by255) t = Transpose<perm = [0, 3, 1, 2]>(a)"),
    (
        "NHWC",
        "after the mean",
        "a = Sub(x, mean_last) b = Transpose<perm = [0, 3, 1, 2]>(a) t = Div(b, std)",
    ),
    (
        "NHWC",
        "reversed",
        "a = Slice(x, at2, before_all, at3, last) t = Transpose<perm = [0, 3, 1, 2]>(a)",
    ),
    ("CHW", "unsqueezed", "a = Sub(x, mean) b = Unsqueeze(a, at0) t = Div(b, std)"),
]
MOVES = {"nothing", "reversed", "split and concat", "gathered one by one"}


@pytest.mark.parametrize(
    ("layout", "name", "nodes"), ALL, ids=[f"{layout} {name}" for layout, name, _ in ALL]
)
def test_what_is_read_is_what_is_computed(layout, name, nodes, random):
    entry = nodes_of(nodes, layout)
    fed = random.random(SHAPES[layout], np.float32)
    expected = fed.reshape(8, 8, 3).transpose(2, 0, 1) if layout == "NHWC" else fed.reshape(3, 8, 8)
    gains = np.array(entry.gains).reshape(3, 1, 1)
    offsets = np.array(entry.offsets).reshape(3, 1, 1)
    expected = expected * gains + offsets
    expected = expected[::-1] if entry.reverses_channels else expected
    if nodes:
        model = graph(nodes, layout)
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info("t"))
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (computed,) = session.run(["t"], {"x": fed})
        np.testing.assert_allclose(computed.reshape(3, 8, 8), expected, rtol=1e-4, atol=1e-5)
    assert entry.changes_values == (name not in MOVES)


@pytest.mark.parametrize(
    "nodes",
    [
        "t = Relu(x)",
        "t = Mul(x, many)",
        "t = Mul(x, one_two_none)",
        "t = Div(x, by0)",
        "t = Sub(by1, x)",
        "t = Add(x, x)",
        "t = Gather<axis = 1>(x, same)",
        "t = Gather<axis = 1>(x, beyond)",
        "t = Slice(x, at0, at2, at1)",
        "t = Slice(x, at0, at8, at2, at2)",  # every other row
        "t = Mul(x, bynan)",
    ],
)
def test_what_is_more_than_that_is_the_network(nodes):
    entry = nodes_of(nodes)
    assert not entry.changes_values
    assert not entry.reverses_channels


@pytest.mark.parametrize(
    ("nodes", "white_value", "bgr"),
    [
        ("t = Div(x, by255)", 255, None),
        ("a = Div(x, by127_5) t = Sub(a, by1)", 255, None),
        ("a = Mul(x, by2) t = Sub(a, by1)", 1, None),
        ("t = Mul(x, by255)", 1, None),
        ("a = Sub(x, mean) t = Div(a, std)", 1, False),
        ("a = Sub(x, mean_bgr) t = Div(a, std_bgr)", 1, True),
        ("a = Sub(x, levels) t = Div(a, level_std)", 255, False),
        ("t = Sub(x, levels_bgr)", 255, True),
        ("t = Sub(x, mean)", 1, False),
        ("t = Div(x, by2)", None, None),
    ],
)
def test_what_white_is_and_which_channel_comes_first(nodes, white_value, bgr):
    entry = nodes_of(nodes)
    assert entry.white_value == white_value
    assert entry.takes_bgr == bgr


def test_a_graph_that_resizes_its_input():
    assert nodes_of("t = Resize(x, , , sides)", "any").resizes
    assert not nodes_of("t = Resize(x, , twice)", "any").resizes
