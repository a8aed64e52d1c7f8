"""Edits of graphs: a cut graph computes exactly the intermediate tensor of the whole graph."""

import colour_model
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from convolution_model import same_bytes
from graph_edits import first_outputs, names_of
from onnx.helper import np_dtype_to_tensor_dtype

from detcli.model.contract import parse_names
from detcli.model.editing import (
    cut,
    drop_unused,
    infer_shapes,
    names_entry,
    number_nodes,
    opset,
    renew_shapes,
    set_metadata,
    sort_nodes,
    tensor_names,
    unused_name,
)

TEXT = """
    <ir_version: 8, opset_import: ["": 17, "other": 99]>
    steps (float[2] given) => (float[2] result)
    <float scale = {3}, float unused = {7}>
    {
        result = Add(twice, thrice)
        forgotten = Mul(given, unused)
        thrice = Mul(given, scale)
        twice = Add(given, given)
    }
"""
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


def sizes_of(value):
    """The size of each axis of an input, an output or a tensor between them."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.fixture
def parsed_model():
    return onnx.parser.parse_model(TEXT)


def test_sorting_puts_nodes_after_the_nodes_they_read(parsed_model):
    for _ in range(2):  # a sorted graph stays as it is
        sort_nodes(parsed_model.graph)
        assert first_outputs(parsed_model.graph.node) == ["forgotten", "thrice", "twice", "result"]
    onnx.checker.check_model(parsed_model, full_check=True)


def test_nodes_and_constants_that_no_output_needs_are_dropped(parsed_model):
    drop_unused(parsed_model.graph)
    assert first_outputs(parsed_model.graph.node) == ["result", "thrice", "twice"]
    assert names_of(parsed_model.graph.initializer) == ["scale"]


def test_names_and_operator_set(parsed_model):
    names = tensor_names(parsed_model.graph)
    assert names == {"given", "result", "scale", "unused", "forgotten", "thrice", "twice"}
    assert unused_name(names, "twice") == "twice2"
    assert unused_name(names, "twice") == "twice3"
    assert unused_name(names, "new") == "new"
    assert opset(parsed_model) == 17  # of the standard operators


def test_numbered_nodes_map_back_to_their_names(parsed_model):
    parsed_model.graph.node[0].name = parsed_model.graph.node[2].name = "same"
    old = number_nodes(parsed_model.graph)
    numbered = names_of(parsed_model.graph.node)
    assert len(set(numbered)) == 4
    assert [old[name] for name in numbered] == ["same", "", "same", ""]


def run(model, image):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {model.graph.input[0].name: image})


def assert_computes_the_head(body, model, image):
    """The cut graph's output is the whole graph's tensor of that name."""
    with_head_as_output = onnx.ModelProto()
    with_head_as_output.CopyFrom(model)
    values = {value.name: value for value in model.graph.value_info}
    with_head_as_output.graph.output.append(values["head"])
    [head] = run(body, image)
    np.testing.assert_array_equal(head, run(with_head_as_output, image)[1], strict=True)
    assert np.ptp(head) > 0


WHOLE_GRAPHS: list[tuple[str, int, type[np.floating], int | None]] = [
    ("ultralytics", 13, np.float32, None),
    ("ultralytics", 18, np.float16, 64),
    ("authors", 17, np.float16, None),
    ("authors", 18, np.float32, 64),
] + [(tail, 17, np.float32, 64) for tail in colour_model.TAILS]


@pytest.mark.parametrize(("tail", "opset", "dtype", "size"), WHOLE_GRAPHS)
def test_the_body_computes_the_same_head_as_the_whole_graph(tail, opset, dtype, size, random):
    model = infer_shapes(colour_model.build(tail, size=size, opset=opset, dtype=dtype))
    model = set_metadata(model, {"task": "detect"})
    before = model.SerializeToString(deterministic=True)
    body = cut(model, "head")
    onnx.checker.check_model(body, full_check=True)
    if tail in {"ultralytics", "authors", "transposed"}:  # where the head is no output
        assert_computes_the_head(body, model, random.random((1, 3, 64, 64)).astype(dtype))
    assert model.SerializeToString(deterministic=True) == before
    assert cut(body, "head") == body
    assert body.metadata_props == model.metadata_props
    assert body.opset_import == model.opset_import
    assert body.ir_version == model.ir_version
    assert body.graph.input == model.graph.input
    [output] = body.graph.output
    kind = output.type.tensor_type
    assert output.name == "head"
    assert kind.elem_type == np_dtype_to_tensor_dtype(np.dtype(dtype))
    if size:
        assert sizes_of(output) == [1, 7, 64]
    assert body.graph.node[-1].output == ["head"]
    read = set()
    for node in body.graph.node:
        read.update(node.input)
    computed = set(first_outputs(body.graph.node))
    assert set(names_of(body.graph.initializer)) == read - computed - {"images"}
    assert set(names_of(body.graph.value_info)) <= read


@pytest.mark.parametrize("tensor", ["", "Head"])
def test_an_unknown_tensor_is_a_value_error(tensor):
    with pytest.raises(ValueError, match=f"no node computes {tensor}"):
        cut(colour_model.build("authors"), tensor)


@pytest.mark.parametrize("sign", [1, -1])
def test_tensors_read_only_by_a_branch_are_kept(sign, random):
    model = infer_shapes(onnx.parser.parse_model(BRANCHES))
    body = cut(model, "head")
    image = (sign * random.random((1, 3, 8, 8))).astype(np.float32)
    assert_computes_the_head(body, model, image)
    assert set(names_of(body.graph.initializer)) == {"scale", "shift"}
    assert "forgotten" not in first_outputs(body.graph.node)


def entries(model):
    return [(entry.key, entry.value) for entry in model.metadata_props]


def test_metadata_is_set_kept_in_order_and_removed_by_an_empty_value():
    model = colour_model.build(metadata={"task": "detect", "names": "['a', 'b', 'c']"})
    changed = set_metadata(model, {"task": "see", "author": "me"})
    assert entries(changed) == [("task", "see"), ("names", "['a', 'b', 'c']"), ("author", "me")]
    assert entries(model)[0] == ("task", "detect")
    changed = set_metadata(model, {"task": "", "never": ""})
    assert entries(changed) == [("names", "['a', 'b', 'c']")]
    assert same_bytes(set_metadata(changed, {"task": ""}), changed)


def test_class_names_round_trip():
    names = ("stop sign", "it's", 'a "b"', "größe")
    assert parse_names(names_entry(names)["names"]) == list(names)


def shapes(model):
    """The shape of each tensor between inputs and outputs, by its name."""
    return {value.name: sizes_of(value) for value in model.graph.value_info}


def test_shapes_are_inferred_up_to_the_head_and_renewed_with_the_input():
    inferred_shapes = shapes(infer_shapes(colour_model.build("ultralytics")))
    assert inferred_shapes["boxes"] == [1, 4, 64]
    assert inferred_shapes["head"] == [1, 7, 64]
    model = infer_shapes(colour_model.build("body"))
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(ValueError, match="at its Concat node"):
        renew_shapes(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    assert shapes(model)["boxes"] == [1, 4, 64]
    assert shapes(renew_shapes(model))["boxes"] == [2, 4, 64]


@pytest.mark.parametrize("damage", ["no operator set", "a constant of unknown type"])
def test_a_graph_whose_shapes_cannot_be_inferred_is_unchanged(damage):
    model = colour_model.build("body")
    if damage == "no operator set":
        model.ClearField("opset_import")
    else:
        model.graph.initializer[0].data_type = 44
    assert infer_shapes(model) == model
