"""Convolutions in 8 bits: which ones, at which scales, and what they give."""

import convolution_model
import numpy as np
import onnx
import pytest
from convolution_model import CONVOLUTIONS, same_bytes, session_output

from detcli.commands.convert.passes import SILU_FLOOR, to_int8
from detcli.errors import ModelError
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, is_quantised
from detcli.model.recognise import recognise

RANGES = dict.fromkeys(("images", *CONVOLUTIONS), (0.0, 1.0))


@pytest.fixture
def model():
    return convolution_model.build()


def convolutions(model):
    """Whether each convolution reads and makes 8 bits, by its output."""
    index = GraphIndex(model.graph)
    found = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            readers = [n.op_type for n in model.graph.node if node.output[0] in n.input]
            weights = index.producers.get(node.input[1])
            found[node.output[0].removesuffix("_QuantizeLinear_Input")] = (
                node.input[0].endswith("DequantizeLinear_Output")
                and weights is not None
                and readers == ["QuantizeLinear"]
            )
    return found


@pytest.mark.parametrize("exact", [(), ("layer1",), ("layer4", "cells")])
def test_the_chosen_convolutions_are_quantised(model, exact, random):
    quantised = to_int8(model, RANGES, exact)
    onnx.checker.check_model(quantised, full_check=True)
    assert convolutions(quantised) == {name: name not in exact for name in CONVOLUTIONS}
    picture = random.random((1, 3, 64, 64), np.float32)
    [head], [wanted] = session_output(quantised, picture), session_output(model, picture)
    np.testing.assert_array_equal(head[:, :4], wanted[:, :4])
    np.testing.assert_allclose(head[:, 4:], wanted[:, 4:], atol=0.03)
    assert np.abs(head[:, 4:] - wanted[:, 4:]).max() > 0


def test_each_channel_has_a_scale_of_its_own():
    model = convolution_model.build()
    kernel = next(t for t in model.graph.initializer if t.name == "layer2_kernel")
    values = np.diag([1.0, 0.01, 100.0]).reshape(3, 3, 1, 1).astype(np.float32)
    kernel.CopyFrom(onnx.numpy_helper.from_array(values, "layer2_kernel"))
    quantised = to_int8(model, RANGES)
    scales = GraphIndex(quantised.graph).array("layer2_kernel_scale")
    np.testing.assert_allclose(scales, np.array([1, 0.01, 100]) / 127, rtol=0.01)


def test_scales_are_those_of_the_ranges(model):
    quantised = to_int8(model, RANGES | {"layer2": (-1.0, 3.0)})
    index = GraphIndex(quantised.graph)
    np.testing.assert_allclose(index.array("layer2_scale"), 4 / 255, rtol=1e-5)
    assert index.array("layer2_zero_point") == 64
    np.testing.assert_allclose(index.array("layer1_scale"), 1 / 255, rtol=1e-5)


def test_of_what_feeds_a_silu_the_far_negative_end_is_left_out(model):
    graph = model.graph
    third = GraphIndex(graph).producers["layer3"]
    third.input[0] = "silu"
    at = list(graph.node).index(third)
    nodes = [("Sigmoid", ["layer2"], "gate"), ("Mul", ["layer2", "gate"], "silu")]
    for offset, (operator, inputs, output) in enumerate(nodes):
        graph.node.insert(at + offset, onnx.helper.make_node(operator, inputs, [output]))
    ranges = RANGES | {"layer2": (-1000.0, 8.0), "silu": (-0.3, 8.0), "layer4": (-1000.0, 8.0)}
    index = GraphIndex(to_int8(model, ranges).graph)
    np.testing.assert_allclose(index.array("layer2_scale"), (8 - SILU_FLOOR) / 255, rtol=1e-5)
    np.testing.assert_allclose(index.array("layer4_scale"), 1008 / 255, rtol=1e-5)


def test_the_same_model_gives_the_same_bytes(model):
    quantised = to_int8(model, RANGES)
    assert is_quantised(quantised.graph)
    assert same_bytes(to_int8(model, RANGES), quantised)


def test_it_is_recognised_and_keeps_its_names(model):
    before = model.SerializeToString(deterministic=True)
    quantised = to_int8(model, RANGES)
    assert model.SerializeToString(deterministic=True) == before
    assert not is_quantised(model.graph)
    layers = [node.name for node in quantised.graph.node if node.op_type == "Conv"]
    assert layers == [f"node {name}" for name in CONVOLUTIONS]
    given, found = (recognise(infer_shapes(side), "m") for side in (model, quantised))
    assert found == given


def test_an_old_opset_is_refused(model):
    model.opset_import[0].version = 12
    with pytest.raises(ModelError, match="opset 12"):
        to_int8(model, RANGES)


def test_a_graph_without_convolutions_is_refused(model):
    with pytest.raises(ModelError, match="no convolution"):
        to_int8(model, RANGES, CONVOLUTIONS)
