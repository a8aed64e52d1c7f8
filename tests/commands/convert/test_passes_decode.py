"""The end of a network is found from its head, its beginning from its input."""

import colour_model
import convolution_model
import onnx
import pytest

from detcli.commands.convert.passes import (
    decode_nodes,
    first_convolutions,
    score_convolutions,
)
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.recognise import recognise

DISTRIBUTION = """
    <ir_version: 8, opset_import: ["": 17]>
    focal (float[1, 16, 8] images, float[1, 3, 8] given) => (float[1, 7, 8] head)
    <float[3, 3, 1] w, float[1, 2, 1] mean, float[16, 16, 1] body, int64[4] four = {1, 4, 2, 16},
     int64[3] back = {1, 4, 8}, int64[3] fold = {1, 2, 32}, int64[2] pairs = {2, 2},
     float[1, 2, 8] points>
    {
        deep = Conv(images, body)
        distances = Conv(deep, body)
        apart = Reshape(distances, fold)
        shares = Softmax(apart)
        expected = Conv(shares, mean)
        four_sides = Reshape(expected, back)
        near, far = Split<axis = 1>(four_sides, pairs)
        low = Sub(points, near)
        high = Add(points, far)
        boxes = Concat<axis = 1>(low, high)
        shallow = Conv(given, w)
        logits = Conv(shallow, w)
        scores = Sigmoid(logits)
        head = Concat<axis = 1>(boxes, scores)
    }
"""


@pytest.fixture
def distribution():
    return onnx.parser.parse_model(DISTRIBUTION).graph


def test_the_mean_of_a_distribution_belongs_to_the_decode(distribution):
    assert decode_nodes(distribution, ["head"]) == {
        *("apart", "shares", "expected", "four_sides", "near", "low", "high", "boxes")
    }


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(0, set()), (1, {"logits"}), (2, {"logits", "shallow"}), (9, {"logits", "shallow"})],
)
def test_score_convolutions(distribution, depth, expected):
    assert score_convolutions(distribution, ["head"], depth) == expected


@pytest.mark.parametrize(
    ("image", "depth", "expected"),
    [
        ("images", 1, {"deep"}),
        ("images", 2, {"deep", "distances"}),
        ("images", 9, {"deep", "distances", "expected"}),
        ("given", 1, {"shallow"}),
    ],
)
def test_first_convolutions(distribution, image, depth, expected):
    assert first_convolutions(distribution, image, depth) == expected


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_the_decode_ends_at_the_network(tail):
    model = infer_shapes(colour_model.build(tail))
    decode = decode_nodes(model.graph, [recognise(model, "m").head])
    assert {"boxes", "low", "high", "anchors"} <= decode
    assert decode.isdisjoint({"cells", "scores", "head", "first", "rows"})


def test_convolutions_are_counted_from_the_head():
    model = infer_shapes(convolution_model.build())
    names = convolution_model.CONVOLUTIONS
    for depth in range(6):
        expected = set(names[len(names) - depth :])
        assert score_convolutions(model.graph, ["head"], depth) == expected


def test_a_shape_is_no_part_of_it():
    """The grid of a dynamic export is as large as a feature map, which is not thereby decode."""
    model = infer_shapes(colour_model.build())
    graph = model.graph
    at = next(i for i, node in enumerate(graph.node) if "low" in node.output)
    graph.node.insert(at, onnx.helper.make_node("Shape", ["cells"], ["size"]))
    graph.node.insert(at + 1, onnx.helper.make_node("Expand", ["half", "size"], ["wide"]))
    low = GraphIndex(graph).producers["boxes"]
    low.input[1] = "wide"
    assert decode_nodes(graph, ["head"]).isdisjoint({"size", "cells"})
    assert "wide" in decode_nodes(graph, ["head"])


def test_where_boxes_and_scores_are_one_tensor_both_count(distribution):
    nodes = {node.output[0]: node for node in distribution.node}
    nodes["scores"].input[0] = "deep"
    assert score_convolutions(distribution, ["head"], 1) == {"deep"}
