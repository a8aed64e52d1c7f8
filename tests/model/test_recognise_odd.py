"""Graphs with odd shapes, ranks and attributes: what is intact is never called damaged."""

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from head_graphs import ENDINGS, model_of
from onnx import ModelProto, TensorProto, helper, numpy_helper
from thinning import thin

from detcli.core.errors import ModelError
from detcli.model.editing import is_valid
from detcli.model.file import ModelFile
from detcli.model.graph import GraphIndex
from detcli.model.heads.channels import groups_along

OPERATORS = (
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "DequantizeLinear",
    "Expand",
    "Flatten",
    "Gather",
    "Mul",
    "QuantizeLinear",
    "ReduceMax",
    "Reshape",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Split",
    "Squeeze",
    "Tile",
    "TopK",
    "Transpose",
    "Unsqueeze",
)
MUTATIONS = thin("oddities of graphs", range(300), 75)


def test_a_join_of_unknown_rank_within_another_is_no_damage():
    """As in a file that was found: what follows a Shape of its own has no shape that is known."""
    body = helper.make_tensor_value_info("body", TensorProto.FLOAT, [1, 7, 5])
    head = helper.make_tensor_value_info("head", TensorProto.FLOAT, [1, 7, 5])
    nodes = [
        helper.make_node("Concat", ["left", "right"], ["inner"], axis=-1),
        helper.make_node("Concat", ["body", "inner"], ["head"], axis=1),
    ]
    index = GraphIndex(helper.make_graph(nodes, "g", [body], [head]))
    assert groups_along(index, "head", 1) == [(7, "body"), (0, "inner")]


def test_the_detector_with_a_rank_of_zero_is_refused_for_what_it_is(shared, detcli):
    model = shared("real/odd/yolofastest-xl-qqsuhao.onnx")
    process = detcli("inspect", model, "--format", "json")
    assert "damaged" not in process.stdout + process.stderr
    assert "it is not clear which are boxes and which scores" in process.stdout + process.stderr


def mutated(model, choices):
    """A copy with one oddity."""
    copy = ModelProto.FromString(model.SerializeToString())
    graph = copy.graph
    node = choices.choice(graph.node)
    mutations = [
        lambda: replace_constant(graph, choices, first_as_scalar),
        lambda: replace_constant(graph, choices, emptied),
        lambda: replace_constant(graph, choices, zeros),
        lambda: drop_attribute(node, choices),
        lambda: turn_axis(node, choices),
        lambda: drop_input(node, choices),
        lambda: change_size(graph, choices),
        lambda: setattr(node, "op_type", choices.choice(OPERATORS)),
    ]
    choices.choice(mutations)()
    return copy


def replace_constant(graph, choices, change):
    tensor = choices.choice(graph.initializer)
    array = change(numpy_helper.to_array(tensor))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def first_as_scalar(array):
    return array.ravel()[0] if array.size else array


def emptied(array):
    return array.ravel()[:0]


def zeros(array):
    return np.zeros_like(array)


def drop_attribute(node, choices):
    if node.attribute:
        del node.attribute[choices.randrange(len(node.attribute))]


def turn_axis(node, choices):
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.INT:
            entry.i = choices.choice([-5, -1, 0, 1, 2, 7])


def drop_input(node, choices):
    if node.input:
        node.input[choices.randrange(len(node.input))] = ""


def change_size(graph, choices):
    dims = graph.input[0].type.tensor_type.shape.dim
    choices.choice(dims).dim_value = choices.choice([0, 1, 2])


@pytest.mark.slow
def test_no_oddity_of_an_intact_graph_is_called_damage():
    choices = random.Random(54)  # noqa: S311 - the same in every run
    names = sorted(ENDINGS)
    damaged = []
    for _ in MUTATIONS:
        name = choices.choice(names)
        model = mutated(model_of(name, 3)[0], choices)
        file = ModelFile.read(Path("odd.onnx"), content=model.SerializeToString())
        try:
            _ = file.contract
        except ModelError as error:
            if is_valid(model):
                damaged.append(f"{name}: {error}")
    assert damaged == []
