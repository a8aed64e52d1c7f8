"""A graph for another picture size gives what an export for that size gives."""

import colour_model
import grid_model
import numpy as np
import onnx
import pytest
from convolution_model import same_bytes, session_output

from detcli.commands.convert.passes.size import set_image_size
from detcli.errors import ModelError


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(("old", "new"), [(64, 96), (96, 64), (64, 32), (64, 160)])
def test_a_static_graph_becomes_the_one_for_that_size(folded, old, new, random):
    model = grid_model.build(old, folded=folded)
    resized = set_image_size(model, new, sum(side**2 for side in grid_model.levels(old)))
    onnx.checker.check_model(resized, full_check=True)
    expected = grid_model.build(new)
    assert resized.graph.input == expected.graph.input
    assert resized.graph.output == expected.graph.output
    picture = random.random((1, 3, new, new), np.float32)
    [head], [wanted] = (session_output(side, picture) for side in (resized, expected))
    np.testing.assert_array_equal(head, wanted, strict=True)


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_a_dynamic_graph_is_fixed(tail, random):
    model = colour_model.build(tail, size=None)
    fixed = set_image_size(model, 96, None)
    onnx.checker.check_model(fixed, full_check=True)
    dims = [dim.dim_value for dim in fixed.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 96, 96]
    picture = random.random((1, 3, 96, 96), np.float32)
    [head], [wanted] = (session_output(side, picture) for side in (fixed, model))
    np.testing.assert_array_equal(head, wanted, strict=True)


def test_twice_is_once():
    resized = set_image_size(grid_model.build(64), 96, 80)
    assert same_bytes(set_image_size(resized, 96, 180), resized)
    back = set_image_size(resized, 64, 180)
    assert back.graph.output == grid_model.build(64).graph.output
    assert same_bytes(set_image_size(back, 96, 80), resized)


def test_the_model_stays_as_it_was():
    model = grid_model.build(64)
    before = model.SerializeToString(deterministic=True)
    set_image_size(model, 96, 80)
    assert model.SerializeToString(deterministic=True) == before


def test_a_grid_of_its_own_is_refused():
    odd = grid_model.anchors(64)
    odd[0, 0, 0] = 3
    with pytest.raises(ModelError, match="anchors depends on the size"):
        set_image_size(grid_model.build(64, anchor_grid=odd), 96, 80)


@pytest.mark.parametrize("anchors", [None, 81])
def test_an_unknown_number_of_anchors_is_refused(anchors):
    with pytest.raises(ModelError, match="do not form a grid of known strides"):
        set_image_size(grid_model.build(64), 96, anchors)


def test_a_size_that_is_written_elsewhere_is_refused():
    """A constant as large as a feature map is nothing that can be made up."""
    model = grid_model.build(64)
    bias = np.zeros((1, 3, 8, 8), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    pool = model.graph.node[0]
    pool.output[0] = "plain"
    model.graph.node.insert(1, onnx.helper.make_node("Add", ["plain", "bias"], ["cells_8"]))
    with pytest.raises(ModelError, match="cannot take 96x96") as caught:
        set_image_size(model, 96, 80)
    assert "export" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thu", "ultralytics", "raw"])
@pytest.mark.parametrize("size", [320, 416])
def test_real_exports_give_what_the_dynamic_export_gives(name, size, shared, random):
    """Bit for bit, in all 300 rows or 8400 anchors."""
    static = onnx.load(shared(f"models/yolov10n-{name}.onnx"))
    dynamic = "raw-dynamic" if name == "raw" else "ultralytics-dynamic"
    resized = set_image_size(static, size, 8400)
    picture = random.random((1, 3, size, size), np.float32)
    [rows] = session_output(resized, picture)
    [wanted] = session_output(onnx.load(shared(f"models/yolov10n-{dynamic}.onnx")), picture)
    np.testing.assert_array_equal(rows, wanted, strict=True)
