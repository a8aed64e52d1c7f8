"""A graph for pictures of any size, fixed to one."""

import colour_model
import numpy as np
import onnx
import pytest
from convolution_model import same_bytes, session_output

from detcli.commands.convert.passes import set_image_size
from detcli.errors import ModelError


@pytest.mark.parametrize("tail", colour_model.TAILS)
def test_a_dynamic_graph_is_fixed(tail, random):
    model = colour_model.build(tail, size=None)
    before = model.SerializeToString(deterministic=True)
    fixed = set_image_size(model, 96)
    assert model.SerializeToString(deterministic=True) == before
    assert same_bytes(set_image_size(fixed, 96), fixed)
    onnx.checker.check_model(fixed, full_check=True)
    dims = [dim.dim_value for dim in fixed.graph.input[0].type.tensor_type.shape.dim]
    assert dims == [1, 3, 96, 96]
    picture = random.random((1, 3, 96, 96), np.float32)
    [head], [wanted] = (session_output(side, picture) for side in (fixed, model))
    np.testing.assert_array_equal(head, wanted, strict=True)


def test_a_static_graph_is_refused():
    with pytest.raises(ModelError, match="only takes 64x64 pictures") as caught:
        set_image_size(colour_model.build(), 96)
    assert "dynamic axes" in caught.value.hint


def test_a_size_that_is_written_elsewhere_is_refused():
    """A constant as large as a feature map is nothing that can be made up."""
    model = colour_model.build(size=None)
    bias = np.zeros((1, 3, 8, 8), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    pool = model.graph.node[0]
    made = pool.output[0]
    pool.output[0] = "plain"
    model.graph.node.insert(1, onnx.helper.make_node("Add", ["plain", "bias"], [made]))
    with pytest.raises(ModelError, match="cannot take 96x96") as caught:
        set_image_size(model, 96)
    assert "export" in caught.value.hint
