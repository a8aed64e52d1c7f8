"""Conversion to float16 and to 8 bits, and float32 where it is wanted."""

from collections import Counter

import convolution_model
import numpy as np
import onnx
import pytest
from convolution_model import CONVOLUTIONS, same_bytes, session_output
from graph_edits import constant_of
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from detcli.commands.convert.number_types import (
    SILU_FLOOR,
    to_half,
    to_int8,
)
from detcli.core.errors import ModelError
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex, is_half, is_quantised
from detcli.model.recognise import read_graph

EXPECTED_CONVOLUTION_NAMES = [f"node {name}" for name in CONVOLUTIONS]

FAR = """
    <ir_version: 8, opset_import: ["": 17]>
    far (float[1, 4] given) => (float[1, 4] result)
    <float million = {1e6}>
    {
        near = MatMul(given, weights)
        large = Mul(near, million)
        larger = Mul(large, million)
        smaller = Div(larger, million)
        twice = Add(larger, smaller)
        small = Div(twice, million)
        last = Div(small, million)
        result = Add(last, near)
    }
"""


@pytest.fixture
def overflowing():
    model = onnx.parser.parse_model(FAR)
    weights = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    return model


def in_float16(model, values):
    """Run a model as it is; ONNX Runtime's CPU computes much of float16 in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return ReferenceEvaluator(model).run(None, {"given": values})


def convolution_names(model):
    """The names of the convolutions of a model."""
    return [node.name for node in model.graph.node if node.op_type == "Conv"]


@pytest.mark.parametrize(
    ("tail", "keep", "size"),
    [
        ("body", True, 64),
        ("body", False, None),
        ("transposed", False, 64),
        ("ultralytics", True, None),
        ("authors", False, None),
        ("one-to-many", True, 64),
    ],
)
def test_any_tail(tail, keep, size, random):
    model = convolution_model.build(tail, size=size)
    half = to_half(model, keep_inputs_and_outputs=keep)
    onnx.checker.check_model(half, full_check=True)
    dtype = np.float32 if keep else np.float16
    image = random.random((1, 3, 64, 64), np.float32)
    [rows], [expected] = session_output(half, image.astype(dtype)), session_output(model, image)
    assert rows.dtype == dtype
    scores = np.s_[:, :, 4] if rows.shape[-1] == 6 else np.s_[:]  # neighbours may change places
    np.testing.assert_allclose(rows[scores], expected[scores], atol=0.005, rtol=0.002)
    assert is_half(half)
    assert not is_half(model)
    assert convolution_names(half) == EXPECTED_CONVOLUTION_NAMES
    types_of_weights = set()
    for tensor in half.graph.initializer:
        if tensor.name.endswith("_kernel"):
            types_of_weights.add(tensor.data_type)
    assert types_of_weights == {TensorProto.FLOAT16}
    contract = read_graph(infer_shapes(half), "m").contract
    assert contract.input_dtype == np.dtype(dtype).name
    assert contract.box_format is read_graph(infer_shapes(model), "m").contract.box_format


EXACT = {"large", "larger", "smaller", "twice", "small", "last"}


@pytest.mark.parametrize("keep", [True, False])
def test_exact_nodes_are_computed_in_float32_from_end_to_end(overflowing, keep):
    values = np.array([[0, 1, 2, 3]], np.float32 if keep else np.float16)
    [rows] = in_float16(to_half(overflowing), values.astype(np.float16))
    assert not np.isfinite(rows[0, 1:]).any()  # what this is about
    before = overflowing.SerializeToString(deterministic=True)
    # The last one is cast for its reader, under the name it had, or feeds an output.
    for exact in (EXACT, set(EXACT) | {"result"}):
        half = to_half(overflowing, exact, keep_inputs_and_outputs=keep)
        assert overflowing.SerializeToString(deterministic=True) == before
        assert same_bytes(to_half(overflowing, exact, keep_inputs_and_outputs=keep), half)
        onnx.checker.check_model(half, full_check=True)
        [rows] = in_float16(half, values)
        np.testing.assert_allclose(rows, 2 * values, rtol=0.001, strict=True)  # type: ignore[arg-type]
        index = GraphIndex(infer_shapes(half).graph)
        types, makers = index.types, index.producers
        exact_types = set()
        for name in EXACT:
            if makers[name].op_type != "Cast":
                exact_types.add(types[name])
        assert exact_types == {TensorProto.FLOAT}
        assert types["near"] == TensorProto.FLOAT16
        if exact == EXACT:
            operators = [node.op_type for node in half.graph.node]
            assert operators.count("Cast") == 2 + 2 * keep
    assert makers["result"].op_type == ("Add" if keep else "Cast")


def test_a_tensor_that_several_exact_nodes_read_is_cast_once(overflowing):
    half = to_half(overflowing, {"larger", "smaller", "twice"})
    makers: Counter[str] = Counter()
    for node in half.graph.node:
        makers.update(node.output)
    assert set(makers.values()) == {1}
    onnx.checker.check_model(half, full_check=True)


RANGES = dict.fromkeys(["images"] + list(CONVOLUTIONS), (0.0, 1.0))


@pytest.fixture
def convolution_network():
    return convolution_model.build()


def convolutions(model):
    """Whether each convolution reads and makes 8 bits, by its output."""
    index = GraphIndex(model.graph)
    by_tensor = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            readers = []
            for other_node in model.graph.node:
                if node.output[0] in other_node.input:
                    readers.append(other_node.op_type)
            weights = index.producers.get(node.input[1])
            by_tensor[node.output[0].removesuffix("_QuantizeLinear_Input")] = (
                node.input[0].endswith("DequantizeLinear_Output")
                and weights is not None
                and readers == ["QuantizeLinear"]
            )
    return by_tensor


@pytest.mark.parametrize("exact", [(), ("layer1",), ("layer4", "cells")])
def test_the_chosen_convolutions_are_quantised(convolution_network, exact, random):
    quantised = to_int8(convolution_network, RANGES, exact)
    onnx.checker.check_model(quantised, full_check=True)
    assert convolutions(quantised) == {name: name not in exact for name in CONVOLUTIONS}
    image = random.random((1, 3, 64, 64), np.float32)
    [head] = session_output(quantised, image)
    [expected] = session_output(convolution_network, image)
    np.testing.assert_array_equal(head[:, :4], expected[:, :4])
    np.testing.assert_allclose(head[:, 4:], expected[:, 4:], atol=0.03)
    assert np.abs(head[:, 4:] - expected[:, 4:]).max() > 0


def test_each_channel_has_a_scale_of_its_own(convolution_network):
    kernel = constant_of(convolution_network.graph, "layer2_kernel")
    values = np.diag([1.0, 0.01, 100.0]).reshape(3, 3, 1, 1).astype(np.float32)
    kernel.CopyFrom(onnx.numpy_helper.from_array(values, "layer2_kernel"))
    quantised = to_int8(convolution_network, RANGES)
    scales = GraphIndex(quantised.graph).array("layer2_kernel_scale")
    np.testing.assert_allclose(scales, np.array([1, 0.01, 100]) / 127, rtol=0.01)


def test_scales_are_those_of_the_ranges(convolution_network):
    quantised = to_int8(convolution_network, RANGES | {"layer2": (-1.0, 3.0)})
    index = GraphIndex(quantised.graph)
    np.testing.assert_allclose(index.array("layer2_scale"), 4 / 255, rtol=1e-5)
    assert index.array("layer2_zero_point") == 64
    np.testing.assert_allclose(index.array("layer1_scale"), 1 / 255, rtol=1e-5)


def test_of_what_feeds_a_silu_the_far_negative_end_is_left_out(convolution_network):
    graph = convolution_network.graph
    third = GraphIndex(graph).producers["layer3"]
    third.input[0] = "silu"
    at = list(graph.node).index(third)
    nodes = [("Sigmoid", ["layer2"], "gate"), ("Mul", ["layer2", "gate"], "silu")]
    for offset, (operator, inputs, output) in enumerate(nodes):
        graph.node.insert(at + offset, onnx.helper.make_node(operator, inputs, [output]))
    ranges = RANGES | {"layer2": (-1000.0, 8.0), "silu": (-0.3, 8.0), "layer4": (-1000.0, 8.0)}
    index = GraphIndex(to_int8(convolution_network, ranges).graph)
    np.testing.assert_allclose(index.array("layer2_scale"), (8 - SILU_FLOOR) / 255, rtol=1e-5)
    np.testing.assert_allclose(index.array("layer4_scale"), 1008 / 255, rtol=1e-5)


def test_it_is_recognised_and_keeps_its_names(convolution_network):
    before = convolution_network.SerializeToString(deterministic=True)
    quantised = to_int8(convolution_network, RANGES)
    assert convolution_network.SerializeToString(deterministic=True) == before
    assert is_quantised(quantised.graph)
    assert convolution_names(quantised) == EXPECTED_CONVOLUTION_NAMES
    contract = read_graph(infer_shapes(convolution_network), "m").contract
    assert read_graph(infer_shapes(quantised), "m").contract == contract


def test_what_cannot_be_quantised_is_refused(convolution_network):
    with pytest.raises(ModelError, match="no convolution"):
        to_int8(convolution_network, RANGES, CONVOLUTIONS)
    convolution_network.opset_import[0].version = 12
    with pytest.raises(ModelError, match="opset 12"):
        to_int8(convolution_network, RANGES)
