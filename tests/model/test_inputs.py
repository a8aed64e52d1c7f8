"""The input for images, and what other inputs are told to want."""

import pytest
from graph_builder import Graph
from onnx import TensorProto, helper

from detcli.model.graph import GraphIndex
from detcli.model.heads import Unrecognised
from detcli.model.inputs import Role, find_inputs

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
IMAGES = ("x", FLOAT, [1, 3, 64, 96])


def find_in_graph_with(inputs):
    """What `find_inputs` returns for a graph with these inputs: name, type and shape of each."""
    values = []
    for name, dtype, dims in inputs:
        values.append(helper.make_tensor_value_info(name, dtype, dims))
    return find_inputs(GraphIndex(helper.make_graph([], "g", values, [])))


@pytest.mark.parametrize(
    ("dims", "expected"),  # channels last, a single image, batch, size
    [
        ([1, 3, 64, 96], (False, False, 1, (64, 96))),
        (["b", 3, "h", "w"], (False, False, None, None)),
        (["b", "c", "h", "w"], (False, False, None, None)),
        ([2, 64, 96, 3], (True, False, 2, (64, 96))),
        (["b", "h", "w", 3], (True, False, None, None)),
        ([3, 64, 96], (False, True, 1, (64, 96))),
        ([64, 96, 3], (True, True, 1, (64, 96))),
        ([1, 3, 64, 3], (False, False, 1, (64, 3))),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_images_come_in_these_shapes(dims, expected, dtype):
    code = {"float32": FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}[dtype]
    image, other_inputs = find_in_graph_with([("x", code, dims)])
    channels_last, single, batch, size = expected
    assert image.channels_last == channels_last
    assert image.single == single
    assert image.batch == batch
    assert image.size == size
    assert image.dtype == dtype
    assert image.is_unusual == (channels_last or single or dtype == "uint8")
    assert other_inputs == ()


@pytest.mark.parametrize(
    ("value", "role"),
    [
        (("mask", INT64, [1, 64, 96]), Role.MASK),
        (("mask", TensorProto.BOOL, ["b", "h", "w"]), Role.MASK),
        (("orig_target_sizes", INT64, ["b", 2]), Role.WIDTH_HEIGHT),
        (("sizes", TensorProto.INT32, ["b", "two"]), Role.WIDTH_HEIGHT),
        (("im_shape", FLOAT, [1, 2]), Role.HEIGHT_WIDTH),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_other_inputs_are_told_by_shape_and_type(value, role, first):
    inputs = [value, IMAGES] if first else [IMAGES, value]
    image, (other_input,) = find_in_graph_with(inputs)
    assert image.name == "x"
    assert other_input.name == value[0]
    assert other_input.dtype == value[1]
    assert other_input.role == role


def test_what_boxes_are_divided_by_is_a_scale():
    graph = Graph()
    graph.input("factor", FLOAT, [1, 2])
    flipped = graph("Gather", "factor", [1, 0], axis=1)
    model = graph.model([graph("Div", graph.swapped(graph.flat_convolution(2)), flipped)])
    _, (other_input,) = find_inputs(GraphIndex(model.graph))
    assert other_input.role is Role.SCALE


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([IMAGES, ("y", FLOAT, [1, 3, 64, 96])], "2 of them for images"),
        ([IMAGES, ("threshold", FLOAT, [1])], "what its input threshold is for"),
        ([IMAGES, ("text", INT64, [1, 77])], "what its input text is for"),
        ([IMAGES, ("sizes", TensorProto.BOOL, [1, 2])], "what its input sizes is for"),
        ([("x", FLOAT, [1, 1, 64, 96])], "not a batch of colour images"),
        ([("x", INT64, [1, 3, 64, 96])], "neither float32, float16 nor uint8"),
        ([("x", FLOAT, [1, 3, 64, "w"])], "one side"),
        ([], "it has 0 inputs"),
    ],
)
def test_anything_else_is_refused(inputs, reason):
    with pytest.raises(Unrecognised, match=reason):
        find_in_graph_with(inputs)
