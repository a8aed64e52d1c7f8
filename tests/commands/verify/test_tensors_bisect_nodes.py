"""Bisecting says what differs about a node."""

import numpy as np
import pytest
from colour_model import build
from graph_edits import producer_of
from onnx import helper, numpy_helper
from verify_requests import IMAGE, parsed

from detcli.commands.verify.causes import Graphs
from detcli.commands.verify.tensors import compare_tensors
from detcli.model.graph import GraphIndex

HALVES = "float16[1, 3, 8, 8]"
ALIKE = "the node is the same on both sides: the precision, runtime or device makes it differ"

CHAIN = """<float c = {1.0}, float w = {2.0}> {
    [sub] d = Sub (images, c)
    [mul] p = Mul (d, w)
    [relu] y = LeakyRelu <alpha = 0.1> (p)
}"""
SHORT = CHAIN.replace("[mul] p = Mul (d, w)\n    ", "").replace("(p)", "(d)")
DIRECT = "{ [sin] y = Sin (images) }"
TWO_STEPS = "{ [neg] p = Neg (images) [sin] y = Sin (p) }"
NAMELESS = "{ x = Sqrt (images) [last] y = Floor (x) }"
ROUNDED = "<float16 h = {16896}> { w = Cast <to = 1> (h) [mul] y = Mul (images, w) }"  # 3
EXACT = "<float w = {3.001}> { [mul] y = Mul (images, w) }"
CONSTANT = "{ w = Constant <value = float {1.0}> () [add] y = Add (images, w) }"
CLIP = "<float most = {0.1}> { [clip] y = Clip (images) }"
SPLIT = """<float one = {1.0}> {
    [add] x = Add (images, one)
    [split] low, high = Split <axis = 3> (x)
    [join] y = Concat <axis = 3> (high, low)
}"""
IF = """<float one = {1.0}, bool yes = {1}, float factor = {2.0}> {
    [add] x = Add (images, one)
    [choose] z = If (yes) <
        then_branch = inner_then () => (float[1, 3, 8, 8] a) { [scale] a = Mul (x, factor) },
        else_branch = inner_else () => (float[1, 3, 8, 8] b) { [keep] b = Identity (x) }
    >
    [root] y = Sqrt (z)
}"""


@pytest.mark.parametrize(
    ("left", "change", "node", "finding", "inputs"),
    [
        (CHAIN, ("(images, c)", "(c, images)"), "sub",
         "its inputs are swapped in b.onnx: c, images", ""),
        (CHAIN, (CHAIN, SHORT), "mul", "the node is missing in b.onnx", "d"),
        (SHORT, (SHORT, CHAIN), "relu", "it reads d, but p in b.onnx", "d"),
        (DIRECT, (DIRECT, TWO_STEPS), "neg", "the node is missing in a.onnx", ""),
        (CHAIN, ("LeakyRelu", "Elu"), "relu", "it is Elu in b.onnx", "p"),
        (CHAIN, ("0.1", "0.2"), "relu", "its attributes differ in b.onnx: alpha", "p"),
        (CHAIN, ("w = {2.0}", "w = {3.0}"), "mul",
         "its constant input w differs in b.onnx by up to 1", "d"),
        (CONSTANT, ("1.0", "2.0"), "add",
         "its constant input w differs in b.onnx by up to 1", ""),
        (EXACT, ("3.001", "3.0"), "mul",
         "its constant input w differs in b.onnx by up to 0.001", ""),
        (EXACT, (EXACT, ROUNDED), "mul", ALIKE, ""),  # not more than float16 rounds
        (CLIP, ("(images)", "(images, , most)"), "clip", "it has 1 inputs, and 3 in b.onnx", ""),
        (NAMELESS, ("Sqrt", "Neg"), "x", "it is Neg in b.onnx", ""),
        # Neither output comes before the other.
        (SPLIT, ("low, high =", "high, low ="), "split", "the node is missing in b.onnx", "x"),
        (IF, ("one = {1.0}", "one = {3.0}"), "add",
         "its constant input one differs in b.onnx by up to 2", ""),
        # What a branch reads from the outer graph counts as read by the If.
        (IF, ("factor = {2.0}", "factor = {3.0}"), "choose",
         "its constant input factor differs in b.onnx by up to 1", "x"),
        (IF, ("Mul (x", "Sub (x"), "choose",
         "its attributes differ in b.onnx: then_branch", "x"),
    ],
)  # fmt: skip
def test_what_differs_about_a_node(bisected, left, change, node, finding, inputs):
    old, new = change
    right = left.replace(old, new)
    bisection = bisected(parsed(left), parsed(right), size=(8, 8), limit=0.0001)
    assert bisection.node.name == node
    assert finding == bisection.finding
    assert [tensor.name for tensor in bisection.inputs] == inputs.split()


def test_weights_that_differ_by_less_than_the_tolerance_of_tensors(bisected):
    """One percent in each weight is one percent in the output, more than rounding."""
    left = parsed("<float[3, 3, 1, 1] w> { [conv] y = Conv (images, w) }")
    right = parsed("<float[3, 3, 1, 1] w> { [conv] y = Conv (images, w) }")
    kernel = np.array([100.0] + [1.0] * 8, np.float32).reshape(3, 3, 1, 1)
    for model, factor in ((left, 1), (right, np.float32(1.08))):
        kernel[2] *= factor
        model.graph.initializer.append(numpy_helper.from_array(kernel, "w"))
    bisection = bisected(left, right, size=(8, 8), limit=0.0001)
    assert "its constant input w differs in b.onnx by up to 0.08" in bisection.finding


def test_an_output_that_is_a_constant(bisected):
    graph, outputs = "<float c = {%s}> { y = Relu (images) }", f"{IMAGE} y, float c"
    bisection = bisected(parsed(graph % 1.0, outputs), parsed(graph % 2.0, outputs), size=(8, 8))
    assert bisection.node is None
    assert bisection.finding == "c is a constant"
    assert not bisection.output.agrees


def prefix_tensors(model, prefix):
    """Put a prefix before the name of every tensor that a node makes, but the head."""
    new_names = {}
    for node in model.graph.node:
        for name in node.output:
            if name != "head":
                new_names[name] = prefix + name
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = new_names.get(name, name)


def test_scores_that_differ_where_nothing_before_the_head_is_common(bisected):
    """Next to 64 pixels they are within the tolerance: the head is compared in its parts."""
    left = build()
    right = build()
    prefix_tensors(left, "a")
    prefix_tensors(right, "b")
    producer_of(right.graph, "bscores").input[0] = "faded"
    right.graph.initializer.append(numpy_helper.from_array(np.float32(0.98), "fade"))  # type: ignore[arg-type]
    right.graph.node.insert(1, helper.make_node("Mul", ["bcells", "fade"], ["faded"]))
    bisection = bisected(left, right)
    assert bisection.output.name == "scores"
    assert bisection.output.agrees is False
    assert bisection.node is not None


def test_infinities_that_both_have_are_no_overflow(bisected):
    """Masks are made of them."""
    graph = """<float16 zero = {0}, float16 one = {15360}> {
        [inverse] mask = Log (zero)
        [most] masked = Max (images, mask)
        [add] y = Add (masked, one)
    }"""
    model = parsed(graph, f"{HALVES} y", HALVES)
    bisection = bisected(model, model, size=(8, 8))
    assert bisection.node is None
    assert bisection.finding == "the outputs agree"


@pytest.mark.parametrize(
    ("largest", "says"),
    [
        (70123, "in b.onnx only: the float16 limit is 65504, the other side has 70123"),
        (1, "in b.onnx only"),
    ],
)
def test_an_overflow(largest, says):
    index = GraphIndex(parsed(CHAIN).graph)
    output = compare_tensors("y", np.array([largest, 1.0]), np.array([np.inf, 1.0]), 0.01, "a")
    nodes = index.graph.node
    ((node, finding),) = Graphs(index, index, "a.onnx", "b.onnx").explain(nodes, nodes, output)
    assert node.name == "relu"
    assert finding == f"1 infinities and 0 NaN {says}"
