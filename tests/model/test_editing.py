"""Edits of graphs."""

import onnx
import pytest

from detcli.model.editing import (
    drop_unused,
    number_nodes,
    opset,
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


@pytest.fixture
def model():
    return onnx.parser.parse_model(TEXT)


def outputs(model):
    return [node.output[0] for node in model.graph.node]


def test_sorting_puts_nodes_after_the_nodes_they_read(model):
    sort_nodes(model.graph)
    assert outputs(model) == ["forgotten", "thrice", "twice", "result"]
    onnx.checker.check_model(model, full_check=True)


def test_sorting_keeps_the_order_of_sorted_nodes(model):
    sort_nodes(model.graph)
    before = outputs(model)
    sort_nodes(model.graph)
    assert outputs(model) == before


def test_nodes_and_constants_that_no_output_needs_are_dropped(model):
    drop_unused(model.graph)
    assert outputs(model) == ["result", "thrice", "twice"]
    assert [tensor.name for tensor in model.graph.initializer] == ["scale"]


def test_opset_is_the_version_of_the_standard_operators(model):
    assert opset(model) == 17


def test_names(model):
    names = tensor_names(model.graph)
    assert names == {"given", "result", "scale", "unused", "forgotten", "thrice", "twice"}
    assert [unused_name(names, "twice"), unused_name(names, "twice")] == ["twice2", "twice3"]
    assert unused_name(names, "new") == "new"


def test_numbered_nodes_map_back_to_their_names(model):
    model.graph.node[0].name = model.graph.node[2].name = "same"
    old = number_nodes(model.graph)
    assert len({node.name for node in model.graph.node}) == 4
    assert [old[node.name] for node in model.graph.node] == ["same", "", "same", ""]
