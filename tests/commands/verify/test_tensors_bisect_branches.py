"""Nodes of several outputs, branches of an If or Loop, and weights: what reads them is named."""

import numpy as np
import pytest
from colour_model import build
from damaged_graphs import copy_of, maker
from onnx import helper, numpy_helper, parser

INPUT = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, 8, 8] images) => '
SPLIT = """
(float[1, 3, 8, 8] y) <float one = {1.0}> {
    [add] x = Add (images, one)
    [split] low, high = Split <axis = 3> (x)
    [join] y = Concat <axis = 3> (high, low)
}"""
IF = """
(float[1, 3, 8, 8] y) <float one = {1.0}, bool yes = {1}, float factor = {2.0}> {
    [add] x = Add (images, one)
    [choose] z = If (yes) <
        then_branch = inner_then () => (float[1, 3, 8, 8] a) { [scale] a = Mul (x, factor) },
        else_branch = inner_else () => (float[1, 3, 8, 8] b) { [keep] b = Identity (x) }
    >
    [root] y = Sqrt (z)
}"""


def parsed(text):
    return parser.parse_model(INPUT + text)


def with_weight(model, name, array):
    other = copy_of(model)
    (tensor,) = (tensor for tensor in other.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return other


def test_a_node_of_two_outputs(bisected):
    """Neither output comes before the other."""
    wrong = parsed(SPLIT)
    maker(wrong, "low").output[:] = ["high", "low"]
    found = bisected(parsed(SPLIT), wrong, size=(8, 8))
    assert (found.node.name, found.node.operator) == ("split", "Split")
    assert [tensor.name for tensor in found.inputs] == ["x"]


@pytest.mark.parametrize(
    ("weight", "node", "finding"),
    [
        ("one", "add", "its constant input one differs in b.onnx by up to 2"),
        ("factor", "choose", "its constant input factor differs in b.onnx by up to 1"),
    ],
)
def test_the_reader_of_a_weight(bisected, weight, node, finding):
    """What a branch reads from the outer graph counts as read by the If."""
    found = bisected(parsed(IF), with_weight(parsed(IF), weight, 3), size=(8, 8))
    assert (found.node.name, found.finding) == (node, finding)
    assert [tensor.name for tensor in found.inputs] == {"add": [], "choose": ["x"]}[node]


def test_a_difference_inside_a_branch(bisected):
    wrong = parsed(IF)
    branch = next(a for a in maker(wrong, "z").attribute if a.name == "then_branch")
    branch.g.node[0].op_type = "Sub"
    found = bisected(parsed(IF), wrong, size=(8, 8))
    assert (found.node.name, found.finding) == (
        "choose",
        "its attributes differ in b.onnx: then_branch",
    )


def test_the_reader_of_a_constant_node(bisected):
    """As older exporters keep weights: such a node computes nothing."""
    graph = """(float[1, 3, 8, 8] y) {
        w = Constant <value = float {%s}> ()
        [add] y = Add (images, w)
    }"""
    found = bisected(parsed(graph % 1.0), parsed(graph % 2.0), size=(8, 8))
    assert (found.node.name, found.compared) == ("add", 1)
    assert found.finding == "its constant input w differs in b.onnx by up to 1"


def test_weights_that_differ_by_less_than_the_tolerance_of_tensors(bisected):
    """One percent in each weight is one percent in the output, more than rounding."""
    kernel = np.array([100.0] + [1.0] * 8).reshape(3, 3, 1, 1)
    graph = "(float[1, 3, 8, 8] y) <float[3, 3, 1, 1] w> { [conv] y = Conv (images, w) }"
    left = parsed(graph)
    left.graph.initializer.append(numpy_helper.from_array(kernel.astype(np.float32), "w"))
    kernel[2] *= 1.08
    right = with_weight(left, "w", kernel)
    found = bisected(left, right, size=(8, 8), limit=0.0001)
    assert "its constant input w differs in b.onnx by up to 0.08" in found.finding


def test_an_output_that_is_a_constant(bisected):
    graph = "(float[1, 3, 8, 8] y, float c) <float c = {%s}> { y = Relu (images) }"
    found = bisected(parsed(graph % 1.0), parsed(graph % 2.0), size=(8, 8))
    assert (found.node, found.finding) == (None, "c is a constant")
    assert not found.output.agrees


def test_an_input_more(bisected):
    graph = "(float[1, 3, 8, 8] y) <float most = {0.1}> { [clip] y = Clip (images%s) }"
    found = bisected(parsed(graph % ""), parsed(graph % ", , most"), size=(8, 8))
    assert (found.node.name, found.finding) == ("clip", "it has 1 inputs, and 3 in b.onnx")


def test_scores_that_differ_where_nothing_before_the_head_is_common(bisected):
    """Next to 64 pixels they are within the tolerance: the head is compared in its parts."""
    left, right = build(), build()
    for model, prefix in ((left, "a"), (right, "b")):
        names = {name for node in model.graph.node for name in node.output} - {"head"}
        for node in model.graph.node:
            node.input[:] = [prefix + name if name in names else name for name in node.input]
            node.output[:] = [prefix + name if name in names else name for name in node.output]
    maker(right, "bscores").input[0] = "faded"
    right.graph.initializer.append(numpy_helper.from_array(np.float32(0.98), "fade"))
    right.graph.node.insert(1, helper.make_node("Mul", ["bcells", "fade"], ["faded"]))
    found = bisected(left, right)
    assert (found.output.name, found.output.agrees) == ("scores", False)
    assert found.node is not None


def test_infinities_that_both_have_are_no_overflow(bisected):
    """Masks are made of them."""
    graph = """<ir_version: 8, opset_import: ["": 17]>
        g (float16[1, 3, 8, 8] images) => (float16[1, 3, 8, 8] y)
        <float16 zero = {0}, float16 one = {15360}> {
        [inverse] mask = Log (zero)
        [most] masked = Max (images, mask)
        [add] y = Add (masked, one)
    }"""
    model = parser.parse_model(graph)
    found = bisected(model, model, size=(8, 8))
    assert (found.node, found.finding) == (None, "the outputs agree")
