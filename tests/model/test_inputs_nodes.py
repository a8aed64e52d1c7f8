"""What graphs do with their input, computed with ONNX Runtime and read from the nodes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from detcli.model.graph import GraphIndex
from detcli.model.inputs import find_inputs, read_input_nodes

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SHAPES = {"NCHW": [1, 3, 8, 8], "NHWC": [1, 8, 8, 3], "CHW": [3, 8, 8], "any": [1, 3, "H", "W"]}


def graph(steps, layout="NCHW", dtype=TensorProto.FLOAT):
    """A convolution behind nodes (operator, constants or tensors, attributes)."""
    nodes, constants, last = [], [], "x"
    for number, (operator, *rest) in enumerate(steps):
        attributes = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        inputs = [last]
        for place, part in enumerate(rest):
            name = part if isinstance(part, str) else f"c{number}_{place}"
            if not isinstance(part, str):
                constants.append(numpy_helper.from_array(np.asarray(part), name))
            inputs.append(name)
        inputs = attributes.pop("inputs", inputs)
        outputs = attributes.pop("outputs", [f"t{number}"])
        nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        last = outputs[0]
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    nodes.append(helper.make_node("Conv", [last, "w"], ["y"]))
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", dtype, SHAPES[layout])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [*constants, weights],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    model = onnx.shape_inference.infer_shapes(model)
    return model, last


def nodes_of(model):
    index = GraphIndex(model.graph)
    return read_input_nodes(index, find_inputs(index)[0])


def numbers(values, *shape):
    return np.array(values, np.float32).reshape(shape or (-1, 1, 1))


def whole(*values):
    return np.array(values, np.int64)


SPLIT = ("Split", {"axis": 1, "outputs": ["r", "g", "b"]})
CASES = {
    "nothing": [],
    "division": [("Div", numbers(255, 1))],
    "product": [("Mul", numbers(1 / 255, 1))],
    "mean and std": [("Sub", numbers(MEAN)), ("Div", numbers(STD, 1, 3, 1, 1))],
    "through casts": [
        ("Cast", {"to": TensorProto.DOUBLE}),
        ("Cast", {"to": TensorProto.FLOAT}),
        ("Identity",),
        ("Add", numbers([-1, -2, -3])),
    ],
    "gather": [("Gather", whole(2, 1, 0), {"axis": 1}), ("Sub", numbers(MEAN))],
    "slice": [
        ("Mul", numbers(STD)),
        ("Slice", whole(-1), whole(-(2**63)), whole(1), whole(-1)),
    ],
    "split and concat": [SPLIT, ("Concat", {"axis": 1, "inputs": ["b", "g", "r"]})],
    "each channel apart": [
        SPLIT,
        ("Sub", numbers(MEAN[0], 1)),
        ("Div", numbers(STD[0], 1), {"outputs": ["r2"]}),
        ("Sub", numbers(MEAN[1], 1), {"inputs": ["g", "c3_0"]}),
        ("Div", numbers(STD[1], 1), {"outputs": ["g2"]}),
        ("Sub", numbers(MEAN[2], 1), {"inputs": ["b", "c5_0"]}),
        ("Div", numbers(STD[2], 1), {"outputs": ["b2"]}),
        ("Concat", {"axis": 1, "inputs": ["r2", "g2", "b2"]}),
    ],
    "gathered one by one": [
        ("Gather", np.int64(2), {"axis": 1, "outputs": ["b"]}),
        ("Unsqueeze", whole(1), {"outputs": ["b1"]}),
        ("Gather", np.int64(1), {"axis": 1, "inputs": ["x", "c2_0"], "outputs": ["g"]}),
        ("Unsqueeze", whole(1), {"outputs": ["g1"]}),
        ("Gather", np.int64(0), {"axis": 1, "inputs": ["x", "c4_0"], "outputs": ["r"]}),
        ("Unsqueeze", whole(1), {"outputs": ["r1"]}),
        ("Concat", {"axis": 1, "inputs": ["b1", "g1", "r1"]}),
    ],
    "batch normalisation": [
        (
            "BatchNormalization",
            *(numbers(part, 3) for part in ([1, 2, 3], [0, 1, 2], MEAN, [4, 5, 6])),
        )
    ],
    "constant first": [("Mul", numbers(2, 1), {"inputs": ["c0_0", "x"]})],
}
LAST = {
    "transposed": [("Div", numbers(255, 1)), ("Transpose", {"perm": [0, 3, 1, 2]})],
    "after the mean": [
        ("Sub", numbers(MEAN, 3)),
        ("Transpose", {"perm": [0, 3, 1, 2]}),
        ("Div", numbers(STD)),
    ],
    "reversed": [
        ("Slice", whole(2), whole(-4), whole(3), whole(-1)),
        ("Transpose", {"perm": [0, 3, 1, 2]}),
    ],
}
SINGLE = {
    "unsqueezed": [("Sub", numbers(MEAN)), ("Unsqueeze", whole(0)), ("Div", numbers(STD))],
}
ALL = [
    *(("NCHW", name, steps) for name, steps in CASES.items()),
    *(("NHWC", name, steps) for name, steps in LAST.items()),
    *(("CHW", name, steps) for name, steps in SINGLE.items()),
]


@pytest.mark.parametrize(("layout", "name", "steps"), ALL, ids=[f"{a} {b}" for a, b, _ in ALL])
def test_what_is_read_is_what_is_computed(layout, name, steps, random):
    model, last = graph([(op, *map(copied, rest)) for op, *rest in steps], layout)
    entry = nodes_of(model)
    fed = random.random(SHAPES[layout], np.float32)
    expected = fed.reshape(8, 8, 3).transpose(2, 0, 1) if layout == "NHWC" else fed.reshape(3, 8, 8)
    gains, offsets = (np.array(part)[:, None, None] for part in (entry.gains, entry.offsets))
    expected = expected * gains + offsets
    expected = expected[::-1] if entry.swaps else expected
    if last != "x":
        model.graph.output.append(helper.make_empty_tensor_value_info(last))
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (found,) = session.run([last], {"x": fed})
        np.testing.assert_allclose(found.reshape(3, 8, 8), expected, rtol=1e-4, atol=1e-5)
    assert entry.computes == (
        name not in {"nothing", "reversed"} and "split" not in name and "one by one" not in name
    )


def copied(part):
    return dict(part) if isinstance(part, dict) else part


@pytest.mark.parametrize(
    "steps",
    [
        [("Relu",)],
        [("Mul", numbers(range(64), 1, 1, 8, 8))],
        [("Mul", numbers([1, 2, 0]))],
        [("Div", numbers(0, 1))],
        [("Sub", numbers(1, 1), {"inputs": ["c0_0", "x"]})],
        [("Add", "x")],
        [("Gather", whole(0, 0, 0), {"axis": 1})],
        [("Gather", whole(7, 1, 0), {"axis": 1})],
        [("Slice", whole(0), whole(2), whole(1))],
        [("Slice", whole(0), whole(8), whole(2), whole(2))],  # every other row
        [("Mul", numbers(float("nan"), 1))],
    ],
    ids=str,
)
def test_what_is_more_than_that_is_the_network(steps):
    model, _ = graph(steps)
    entry = nodes_of(model)
    assert not entry.computes
    assert not entry.swaps


@pytest.mark.parametrize(
    ("steps", "domain", "bgr"),
    [
        ([("Div", numbers(255, 1))], 255, None),
        ([("Div", numbers(127.5, 1)), ("Sub", numbers(1, 1))], 255, None),
        ([("Mul", numbers(2, 1)), ("Sub", numbers(1, 1))], 1, None),
        ([("Mul", numbers(255, 1))], 1, None),
        ([("Sub", numbers(MEAN)), ("Div", numbers(STD))], 1, False),
        ([("Sub", numbers(MEAN[::-1])), ("Div", numbers(STD[::-1]))], 1, True),
        ([("Sub", numbers([123.675, 116.28, 103.53])), ("Div", numbers([58, 57, 57]))], 255, False),
        ([("Sub", numbers([103.53, 116.28, 123.675]))], 255, True),
        ([("Sub", numbers(MEAN))], 1, False),
        ([("Div", numbers(2, 1))], None, None),
    ],
)
def test_what_white_is_and_which_channel_comes_first(steps, domain, bgr):
    model, _ = graph(steps)
    entry = nodes_of(model)
    assert (entry.domain, entry.order) == (domain, bgr)


def test_a_graph_that_resizes_its_input():
    sizes = ("Resize", "", "", whole(1, 3, 64, 64))
    entry = nodes_of(graph([sizes], "any")[0])
    assert entry.resized
    doubled = ("Resize", "", numbers([1, 1, 2, 2], 4))
    assert not nodes_of(graph([doubled], "any")[0]).resized
