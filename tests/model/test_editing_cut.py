"""A cut graph computes exactly the intermediate tensor of the whole graph."""

import colour_model
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from detcli.model.editing import cut, infer_shapes

END_TO_END = ("ultralytics", "authors")
BRANCHES = """
    <ir_version: 8, opset_import: ["": 17]>
    branches (float[1, 3, 8, 8] images) => (float[1, 3, 8, 8] result)
    <float scale = {3}, float shift = {5}, float unused = {7}>
    {
        smooth = Sigmoid(images)
        forgotten = Mul(images, unused)
        sum = ReduceSum<keepdims = 0>(images)
        zero = Sub(sum, sum)
        positive = Greater(sum, zero)
        head = If (positive) <
            then_branch = higher () => (float[1, 3, 8, 8] high) {
                high = If (positive) <
                    then_branch = inner () => (float[1, 3, 8, 8] deep) {
                        deep = Mul(smooth, scale)
                    },
                    else_branch = other () => (float[1, 3, 8, 8] flat) {
                        flat = Identity(smooth)
                    }
                >
            },
            else_branch = lower () => (float[1, 3, 8, 8] low) {
                local = Add(smooth, shift)
                low = Neg(local)
            }
        >
        late = Add(head, head)
        result = Add(late, forgotten)
    }
"""


def run(model, picture):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {model.graph.input[0].name: picture})


def with_output(model, tensor):
    """The whole graph with an intermediate tensor as another output."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    value = next(value for value in model.graph.value_info if value.name == tensor)
    whole.graph.output.append(value)
    return whole


@pytest.mark.parametrize("tail", END_TO_END)
@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("size", [64, None])
def test_the_body_computes_the_same_head_as_the_whole_graph(tail, opset, dtype, size, random):
    model = infer_shapes(colour_model.build(tail, size=size, opset=opset, dtype=dtype))
    picture = random.random((1, 3, 64, 64)).astype(dtype)
    [head] = run(cut(model, "head"), picture)
    np.testing.assert_array_equal(head, run(with_output(model, "head"), picture)[1], strict=True)
    assert head.shape == (1, 7, 64)
    assert np.ptp(head) > 0


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_the_body_is_valid_and_its_only_output_is_the_head(tail):
    body = cut(infer_shapes(colour_model.build(tail)), "head")
    onnx.checker.check_model(body, full_check=True)
    [output] = body.graph.output
    assert output.name == "head"
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [1, 7, 64]
    assert body.graph.node[-1].output == ["head"]


def test_cutting_again_changes_nothing():
    body = cut(infer_shapes(colour_model.build("authors")), "head")
    assert cut(body, "head") == body


def test_cutting_does_not_modify_the_model():
    model = infer_shapes(colour_model.build("authors"))
    before = model.SerializeToString(deterministic=True)
    cut(model, "head")
    assert model.SerializeToString(deterministic=True) == before


def test_metadata_opset_and_inputs_are_kept():
    model = infer_shapes(colour_model.build("authors", metadata={"task": "detect"}, opset=13))
    body = cut(model, "head")
    assert body.metadata_props == model.metadata_props
    assert body.opset_import == model.opset_import
    assert body.ir_version == model.ir_version
    assert body.graph.input == model.graph.input


def test_only_used_constants_are_kept():
    body = cut(infer_shapes(colour_model.build("authors")), "head")
    read = {name for node in body.graph.node for name in node.input}
    assert {tensor.name for tensor in body.graph.initializer} == read - {
        "images",
        *(name for node in body.graph.node for name in node.output),
    }
    assert {value.name for value in body.graph.value_info} <= read


@pytest.mark.parametrize("tensor", ["", "Head", "no such tensor"])
def test_an_unknown_tensor_is_a_value_error(tensor):
    with pytest.raises(ValueError, match=f"no node computes {tensor}"):
        cut(colour_model.build("authors"), tensor)


@pytest.mark.parametrize("sign", [1, -1])
def test_tensors_read_only_by_a_branch_are_kept(sign, random):
    model = infer_shapes(onnx.parser.parse_model(BRANCHES))
    body = cut(model, "head")
    picture = (sign * random.random((1, 3, 8, 8))).astype(np.float32)
    [head] = run(body, picture)
    np.testing.assert_array_equal(head, run(with_output(model, "head"), picture)[1], strict=True)
    assert {tensor.name for tensor in body.graph.initializer} == {"scale", "shift"}
    assert "forgotten" not in {name for node in body.graph.node for name in node.output}
