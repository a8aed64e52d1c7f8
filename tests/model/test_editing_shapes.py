"""Shapes are inferred where possible, and contradictions are reported."""

import colour_model
import pytest

from detcli.model.editing import infer_shapes, renew_shapes


def test_shapes_are_inferred_up_to_the_head():
    model = infer_shapes(colour_model.build("ultralytics"))
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.value_info
    }
    assert (shapes["boxes"], shapes["head"]) == ([1, 4, 64], [1, 7, 64])


def test_a_graph_whose_shapes_cannot_be_inferred_is_unchanged():
    model = colour_model.build("body")
    model.ClearField("opset_import")
    assert infer_shapes(model) == model


def test_a_graph_with_a_constant_of_unknown_type_is_unchanged():
    model = colour_model.build("body")
    model.graph.initializer[0].data_type = 44
    assert infer_shapes(model) == model


def test_renewed_shapes_follow_the_input():
    model = infer_shapes(colour_model.build("body"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    shapes = {value.name: value.type.tensor_type.shape for value in model.graph.value_info}
    assert shapes["boxes"].dim[0].dim_value == 1
    renewed = renew_shapes(model)
    shapes = {value.name: value.type.tensor_type.shape for value in renewed.graph.value_info}
    assert shapes["boxes"].dim[0].dim_value == 2


def test_a_contradiction_is_reported():
    model = colour_model.build("body")
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(ValueError, match="2"):
        renew_shapes(model)
