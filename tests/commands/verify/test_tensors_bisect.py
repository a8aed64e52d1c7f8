"""Bisecting names the node that makes two graphs differ."""

import re

import numpy as np
import onnx
import pytest
import thinning
from colour_model import build
from damaged_graphs import (
    bypassed,
    far_and_back,
    scaled_and_back,
    swapped,
    without_transpose,
)
from graph_edits import producer_of
from onnx import helper
from verify_requests import parsed, probe

from detcli.commands.verify import bisection as module
from detcli.commands.verify.bisection import bisect
from detcli.commands.verify.tensors import OutputComparison
from detcli.data.geometry import Image

pytestmark = pytest.mark.slow


def test_equal_graphs(bisected):
    bisection = bisected(build(), build())
    assert bisection.node is None
    assert bisection.finding == "the outputs agree"


def test_nothing_was_compared(make_model):
    network = probe(make_model())
    assert bisect(OutputComparison(network, network, 0.001)) is None


@pytest.mark.parametrize("tail", ["transposed", "ultralytics", "authors"])
def test_a_missing_transpose(bisected, tail):
    """The shapes stay the same, so nothing else reports it."""
    graph = build(tail)
    bisection = bisected(graph, without_transpose(graph, "rows", [1, 64, 7]))
    assert bisection.node.operator == "Transpose"
    assert bisection.node.name == "rows"
    assert bisection.finding == "it is Reshape in b.onnx"
    assert bisection.output.left.shape == bisection.output.right.shape == (1, 64, 7)
    (head,) = bisection.inputs
    assert head.name == "head"
    assert head.agrees is True


def test_a_constant_that_overflows_in_float16(bisected):
    left = scaled_and_back(build(), "cells", 1e5)
    right = scaled_and_back(build(dtype=np.float16), "cells", 1e5, np.float16)
    bisection = bisected(left, right, limit=0.1)
    assert bisection.node.operator == "Mul"
    assert bisection.node.name == "up"
    assert "values are not finite" in bisection.finding
    assert bisection.output.right.infinite == 188  # 0 x inf
    assert bisection.output.right.nan == 4
    assert bisection.inputs[0].agrees


def test_an_overflow_between_two_nodes(bisected):
    """The CPU computes in float32 between float16 nodes, so the outputs may agree."""
    bisection = bisected(
        far_and_back(build()), far_and_back(build(dtype=np.float16), np.float16), limit=0.1
    )
    assert bisection.node.operator == "Mul"
    assert bisection.node.name == "further"
    assert "the float16 limit is 65504, the other side has 262144" in bisection.finding
    assert "the outputs agree, since the CPU computes float16 in float32" in bisection.finding
    assert bisection.output.right.infinite > 0


def test_a_missing_node(bisected):
    """Its output is missing too, so the next common tensor shows the difference."""
    left = scaled_and_back(build(), "cells", 2)
    bisection = bisected(left, bypassed(left, "scaled"))
    assert bisection.node.name == "up"
    assert bisection.finding == "the node is missing in b.onnx"
    first_left_node, second_left_node = bisection.left_nodes
    assert first_left_node.name == "up"
    assert second_left_node.name == "down"
    (right_node,) = bisection.right_nodes
    assert right_node.name == "down"
    assert bisection.output.name == "scaled_back"
    (input_tensor,) = bisection.inputs
    assert input_tensor.name == "cells"


def additions(*wrong, hide=None, length=60):
    """Nodes y = x + 1 behind the image; some are wrong, one may be followed by a Clip."""
    steps = []
    before = "images"
    for n in range(length):
        steps.append(f"[n{n}] t{n} = Add ({before}, {'two' if n in wrong else 'one'})")
        before = f"t{n}"
        if n == hide:
            steps.append(f"c = Clip ({before}, , most)")
            before = "c"
    constants = "<float one = {1.0}, float two = {2.0}, float most = {0.5}>"
    return parsed(f"{constants} {{ {' '.join(steps)} y = Identity ({before}) }}")


@pytest.mark.parametrize("wrong", [0, 11, 12, 59])
def test_a_long_chain_takes_few_rounds(bisected, wrong):
    bisection = bisected(additions(), additions(wrong), size=(8, 8))
    assert bisection.node.name == f"n{wrong}"
    assert bisection.rounds <= 5
    assert bisection.compared < 30


@pytest.mark.parametrize(("hide", "first"), [(None, "n20"), (30, "n40")])
def test_the_first_of_two_differences(bisected, hide, first):
    """Behind a Clip the graphs agree up to the second difference."""
    bisection = bisected(additions(hide=hide), additions(20, 40, hide=hide), size=(8, 8))
    assert bisection.node.name == first


@pytest.mark.parametrize("size", [1, 12])
def test_a_difference_that_one_of_two_branches_hides(bisected, monkeypatch, size):
    """Tensors before one that agrees are unlikely to differ, but inputs are always compared."""
    left = additions(hide=0, length=1)
    right = additions(0, hide=0, length=1)
    for model in (left, right):
        producer_of(model.graph, "y").CopyFrom(
            helper.make_node("Add", ["t0", "c"], ["y"], name="join")
        )
    monkeypatch.setattr(module, "TENSORS_PER_ROUND", size)
    assert bisected(left, right, size=(8, 8)).node.name == "n0"


def without_a_transpose(load):
    model = load("yolov10n-raw.onnx")
    attention = "/model.10/attn/Transpose_output_0"
    return model, without_transpose(model, attention, [1, 2, 400, 32])


def with_a_swapped_subtraction(load):
    model = load("yolov10n-raw.onnx")
    return model, swapped(model, "/model.23/Sub_output_0")


def with_a_float16_overflow(load):
    scaled = "/model.4/cv1/act/Mul_output_0"
    return (
        scaled_and_back(load("yolov10n-raw.onnx"), scaled, 2.0**15),
        scaled_and_back(load("yolov10n-raw-fp16.onnx"), scaled, 2.0**15, np.float16),
    )


DAMAGED = [
    (with_a_swapped_subtraction, 0.001, ("Sub", "/model.23/Sub"), ""),
    (without_a_transpose, 0.001, ("Transpose", "/model.10/attn/Transpose"), ""),
    (with_a_float16_overflow, 0.1, ("Mul", "up"), "the float16 limit is 65504"),
]
"""Faults of real ports: what makes two graphs, their tolerance, the node and what is said of it."""


@thinning.only_whole
@pytest.mark.parametrize(("damage", "limit", "node", "says"), DAMAGED)
def test_damaged_copies_of_a_real_model(bisected, shared, damage, limit, node, says):
    import cv2

    image = Image.whole(cv2.imread(str(shared("data/images/bus.jpg"))))  # type: ignore[arg-type]
    model, damaged = damage(lambda name: onnx.load(shared(f"models/{name}")))
    report = bisected(model, damaged, image, (640, 640), limit)
    assert (report.node.operator, report.node.name) == node
    assert says in report.finding
    for tensor in report.inputs:
        assert tensor.agrees, tensor.name
    assert report.rounds < 8


def test_a_search_that_takes_too_long_says_how_far_it_came(bisected, monkeypatch):
    monkeypatch.setattr(module, "MAX_SECONDS", 0)
    bisection = bisected(build(), swapped(build(), "low"))
    assert bisection.node is None
    assert bisection.finding == f"head differs; {module.GIVEN_UP}"
    half = build(dtype=np.float16)
    bisection = bisected(half, half)
    assert bisection.node is None
    assert re.fullmatch(
        rf"the outputs agree, and 0 of \d+ tensors of a.onnx do not overflow; {module.GIVEN_UP}",
        bisection.finding,
    )
