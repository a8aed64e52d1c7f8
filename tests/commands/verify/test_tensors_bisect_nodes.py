import numpy as np
import onnx
import pytest
from damaged_graphs import bypassed, copy_of, maker, swapped
from onnx import helper, numpy_helper

from detcli.commands.verify.tensors import Graphs, compare_tensors, nodes_between
from detcli.model.graph import GraphIndex


def build():
    """y = relu(w * (x - c)), each step a node."""
    constants = {"c": np.array([1.0], np.float32), "w": np.array([2.0, 3.0], np.float32)}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Sub", ["x", "c"], ["difference"], name="sub"),
            helper.make_node("Mul", ["difference", "w"], ["product"], name="mul"),
            helper.make_node("LeakyRelu", ["product"], ["y"], name="relu", alpha=0.1),
        ],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph)


def explained(left, right, tensor="y", known=("x",), output=None):
    """The node between a tensor and known tensors, and what differs about it."""
    graphs = Graphs(GraphIndex(left.graph), GraphIndex(right.graph), "a.onnx", "b.onnx")
    nodes = (nodes_between(graph, tensor, known)[0] for graph in graphs[:2])
    one = np.ones(2, np.float32)
    output = output or compare_tensors(tensor, one, -one, 0.01, "a")
    node, finding = next(graphs.explain(*nodes, output))
    return node.name, node.operator, finding


def test_the_nodes_between():
    index = GraphIndex(build().graph)
    nodes, reached = nodes_between(index, "product", {"x", "difference", "product"})
    assert ([node.name for node in nodes], reached) == (["mul"], {"difference"})
    nodes, reached = nodes_between(index, "y", {"x"})
    assert ([node.name for node in nodes], reached) == (["sub", "mul", "relu"], {"x"})
    assert nodes_between(index, "x", set()) == ([], set())


def test_swapped_inputs():
    assert explained(build(), swapped(build(), "difference")) == (
        *("sub", "Sub"),
        "its inputs are swapped in b.onnx: c, x",
    )


def test_a_missing_node_and_a_new_one():
    whole, short = build(), bypassed(build(), "product")
    assert explained(whole, short) == ("mul", "Mul", "the node is missing in b.onnx")
    other = copy_of(whole)
    maker(other, "y").op_type = "Elu"
    assert explained(whole, other) == ("relu", "LeakyRelu", "it is Elu in b.onnx")
    renamed = copy_of(whole)
    for node in renamed.graph.node:
        node.input[:] = ["clipped" if name == "difference" else name for name in node.input]
    clip = helper.make_node("Relu", ["difference"], ["clipped"], name="clip")
    renamed.graph.node.insert(1, clip)
    name, _, finding = explained(whole, renamed)
    assert (name, finding) == ("mul", "it reads difference, but clipped in b.onnx")
    assert explained(whole, renamed, "product", ("difference",))[0] == "mul"


def test_a_constant_that_differs():
    other = build()
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32([2, 4]), "w"))
    expected = "its constant input w differs in b.onnx by up to 1"
    assert explained(build(), other) == ("mul", "Mul", expected)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32([2, np.inf]), "w"))
    assert "1 values are not finite instead of 0" in explained(build(), other)[2]


def test_a_constant_that_is_rounded_does_not_differ():
    other = build()
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float16([2, 3.001]), "w"))
    assert "the same on both sides" in explained(build(), other)[2]
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32([2, 3.001]), "w"))
    assert "differs in b.onnx by up to 0.001" in explained(build(), other)[2]


def test_attributes():
    other = build()
    maker(other, "y").attribute[0].f = 0.2
    assert explained(build(), other) == (
        *("relu", "LeakyRelu"),
        "its attributes differ in b.onnx: alpha",
    )


def test_casts_are_ignored():
    """Converters to float16 put them around nodes."""
    other = build()
    maker(other, "product").input[0] = "cast"
    cast = helper.make_node("Cast", ["difference"], ["cast"], to=onnx.TensorProto.FLOAT16)
    other.graph.node.insert(1, cast)
    assert explained(build(), other)[::2] == (
        "relu",
        "the node is the same on both sides: the precision, runtime or device makes it differ",
    )


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (
            [70123.0, 1.0],
            "1 infinities and 0 NaN in b.onnx only: the float16 limit is 65504, the other",
        ),
        ([1.0, 1.0], "1 infinities and 0 NaN in b.onnx only"),
    ],
)
def test_an_overflow(left, says):
    output = compare_tensors("y", np.array(left), np.array([np.inf, 1.0]), 0.01, "a")
    finding = explained(build(), build(), output=output)[2]
    assert finding.startswith(says)
    assert ("65504" in finding) == (left[0] > 65504)


def test_a_node_without_a_name_has_that_of_its_output():
    other = build()
    nameless = maker(other, "difference")
    nameless.name = ""
    assert explained(swapped(other, "difference"), other)[0] == "difference"
