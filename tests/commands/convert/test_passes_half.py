"""float16 gives what float32 gives, within its precision, and float32 where that was asked for."""

from collections import Counter

import colour_model
import convolution_model
import numpy as np
import onnx
import pytest
from convolution_model import same_bytes, session_output
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from detcli.commands.convert.passes import is_half, to_half
from detcli.model.contract import BoxFormat
from detcli.model.editing import infer_shapes
from detcli.model.graph import GraphIndex
from detcli.model.recognise import recognise

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
def far():
    model = onnx.parser.parse_model(FAR)
    weights = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    return model


def in_float16(model, given):
    """Run a model as it is; ONNX Runtime's CPU computes much of float16 in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return ReferenceEvaluator(model).run(None, {"given": given})


def types(model):
    """Element types of all tensors, as inferred."""
    known = infer_shapes(model).graph
    values = (*known.value_info, *known.input, *known.output)
    return {value.name: value.type.tensor_type.elem_type for value in values}


@pytest.mark.parametrize("tail", colour_model.TAILS)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("size", [64, None])
def test_any_tail(tail, keep, size, random):
    model = convolution_model.build(tail, size=size)
    half = to_half(model, keep_inputs_and_outputs=keep)
    onnx.checker.check_model(half, full_check=True)
    dtype = np.float32 if keep else np.float16
    picture = random.random((1, 3, 64, 64), np.float32)
    [rows], [wanted] = session_output(half, picture.astype(dtype)), session_output(model, picture)
    assert rows.dtype == dtype
    scores = np.s_[:, :, 4] if rows.shape[-1] == 6 else np.s_[:]  # neighbours may change places
    np.testing.assert_allclose(rows[scores], wanted[scores], atol=0.005, rtol=0.002)
    weights = [t for t in half.graph.initializer if t.name.endswith("_kernel")]
    assert {tensor.data_type for tensor in weights} == {TensorProto.FLOAT16}
    contract = recognise(infer_shapes(half), "m")
    assert contract.input_dtype == np.dtype(dtype).name
    assert contract.box_format is recognise(infer_shapes(model), "m").box_format


def test_float16_overflows(far):
    """What the next tests are about."""
    [rows] = in_float16(to_half(far), np.array([[0, 1, 2, 3]], np.float16))
    assert not np.isfinite(rows[0, 1:]).any()


EXACT = {"large", "larger", "smaller", "twice", "small", "last"}


@pytest.mark.parametrize("keep", [True, False])
def test_exact_nodes_are_computed_in_float32_from_end_to_end(far, keep):
    half = to_half(far, EXACT, keep_inputs_and_outputs=keep)
    onnx.checker.check_model(half, full_check=True)
    given = np.array([[0, 1, 2, 3]], np.float32 if keep else np.float16)
    [rows] = in_float16(half, given)
    np.testing.assert_allclose(rows, 2 * given, rtol=0.001)
    assert rows.dtype == given.dtype
    found = types(half)
    for name in EXACT:  # the last one is cast for its reader, under the name it had
        maker = GraphIndex(half.graph).producers[name]
        if maker.op_type != "Cast":
            assert found[name] == TensorProto.FLOAT
    assert Counter(node.op_type for node in half.graph.node)["Cast"] == 2 + 2 * keep
    assert found["near"] == TensorProto.FLOAT16


@pytest.mark.parametrize("keep", [True, False])
def test_an_exact_node_may_feed_an_output(far, keep, random):
    exact = {*EXACT, "result"}
    half = to_half(far, exact, keep_inputs_and_outputs=keep)
    onnx.checker.check_model(half, full_check=True)
    given = random.random((1, 4)).astype(np.float32 if keep else np.float16)
    [rows] = in_float16(half, given)
    np.testing.assert_allclose(rows, 2 * given, rtol=0.002)
    last = GraphIndex(half.graph).producers["result"]
    assert last.op_type == ("Add" if keep else "Cast")


def test_a_tensor_that_several_exact_nodes_read_is_cast_once(far):
    half = to_half(far, {"larger", "smaller", "twice"})
    makers = Counter(name for node in half.graph.node for name in node.output)
    assert set(makers.values()) == {1}
    onnx.checker.check_model(half, full_check=True)


@pytest.mark.parametrize("exact", [(), EXACT])
@pytest.mark.parametrize("keep", [True, False])
def test_the_same_model_gives_the_same_bytes(far, exact, keep):
    half = to_half(far, exact, keep_inputs_and_outputs=keep)
    assert same_bytes(to_half(far, exact, keep_inputs_and_outputs=keep), half)


def test_the_model_stays_as_it_was(far):
    before = far.SerializeToString(deterministic=True)
    to_half(far, EXACT)
    assert far.SerializeToString(deterministic=True) == before


def test_nodes_keep_their_names():
    model = convolution_model.build()
    half = to_half(model)
    assert [n.name for n in half.graph.node if n.op_type == "Conv"] == [
        f"node {name}" for name in convolution_model.CONVOLUTIONS
    ]


def test_which_models_are_half():
    assert is_half(convolution_model.build(dtype=np.float16))
    assert not is_half(convolution_model.build())
    contract = recognise(infer_shapes(to_half(convolution_model.build())), "m")
    assert contract.box_format is BoxFormat.XYXY
