"""YOLOX's first release was trained on normalised images: its first weights are larger."""

import numpy as np
import pytest
from anchor_graphs import yolox
from graph_builder import Graph
from graph_edits import node_of
from head_checks import file_of
from onnx import ModelProto, helper

from detcli.model.contract import Resize

EARLIER = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
LATER = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def build(first_weight, *, stem=None):
    """YOLOX's raw head behind a first convolution whose weights have this mean absolute value."""
    graph = Graph()
    image = graph("Slice", "images", [0], [64], [2])  # as the stem's pixels are gathered
    weights = np.random.default_rng(3).choice([-1.0, 1.0], (3, 3, 1, 1)) * first_weight
    weights = weights.astype(np.float32)
    first = stem(graph, image, weights) if stem else graph("Conv", image, weights)
    head = yolox(graph, 3)
    model = graph.model([head])
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[0] == "images":
            node.input[0] = first
    return model


def normalised(graph, image, weights):
    """A convolution before its normalisation, which makes its weights a hundred times smaller."""
    convolution = graph("Conv", image, weights)
    ones = np.ones(3, np.float32)
    zeros = np.zeros(3, np.float32)
    return graph("BatchNormalization", convolution, ones, zeros, zeros, ones * np.float32(10_000))


def in_integers(graph, image, weights):
    step = np.float32(np.abs(weights).max() / 127)
    stored = np.round(weights / step).astype(np.int8)
    zero = np.array(0, np.int8)
    return graph("Conv", image, graph("DequantizeLinear", stored, np.array(step), zero))


def values_of(model):
    contract = file_of(model).detector()
    assert contract.family == "YOLOX"
    assert contract.preprocessing.resize is Resize.CORNER
    assert contract.preprocessing.scale == 1
    return contract


@pytest.mark.parametrize("stem", [None, in_integers])
@pytest.mark.parametrize("weight", [0.1, 0.303, 1.0])
def test_large_first_weights_are_those_of_the_first_release(weight, stem):
    contract = values_of(build(weight, stem=stem))
    preprocessing = contract.preprocessing
    assert (preprocessing.mean, preprocessing.std) == EARLIER
    assert not preprocessing.bgr
    assert "values" not in dict(contract.assumed_preprocessing)


@pytest.mark.parametrize("stem", [None, in_integers])
@pytest.mark.parametrize("weight", [0.0003, 0.0053, 0.0081])
def test_small_first_weights_are_those_of_later_ones(weight, stem):
    contract = values_of(build(weight, stem=stem))
    preprocessing = contract.preprocessing
    assert (preprocessing.mean, preprocessing.std) == LATER
    assert preprocessing.bgr
    assert "values" not in dict(contract.assumed_preprocessing)


def test_a_normalisation_behind_it_counts():
    preprocessing = values_of(build(0.3, stem=normalised)).preprocessing
    assert (preprocessing.mean, preprocessing.std) == LATER


def test_weights_that_are_computed_leave_the_values_assumed():
    model = build(0.3)
    convolution = node_of(model.graph, "Conv")
    weight = convolution.input[1]
    doubled = helper.make_node("Mul", ["images", weight], ["computed_weight"])
    model.graph.node.insert(0, doubled)
    convolution.input[1] = "computed_weight"
    contract = file_of(model).contract
    assert contract is None or "values" in dict(contract.assumed_preprocessing)


def test_values_that_are_given_count():
    metadata = {"detcli.preprocess": "corner,bgr,scale=1"}
    model = ModelProto.FromString(build(0.3).SerializeToString())
    helper.set_model_props(model, metadata)
    preprocessing = values_of(model).preprocessing
    assert preprocessing.bgr


def test_a_network_of_the_first_release_is_right_without_an_option(shared, detcli):
    model = shared("real/yolox-nano-hitsz.onnx")
    image = shared("data/images/bus.jpg")
    process = detcli("predict", image, "-m", model, "--device", "cpu", "--format", "csv")
    rows = process.stdout.splitlines()[1:]
    class_names = [row.split(",")[8] for row in rows]
    assert class_names == ["bus", "person", "person", "person"]


def test_a_network_that_mixes_channels_is_refused(shared, detcli):
    model = shared("real/odd/yolox-nano-bubbliiiing.onnx")
    image = shared("data/images/bus.jpg")
    process = detcli("predict", image, "-m", model, "--device", "cpu")
    assert process.returncode == 4
    assert "a Reshape in place of a Transpose" in process.stderr
