"""Grid heads whose file declares other shapes for its outputs than its nodes compute."""

import numpy as np
import pytest
from graph_edits import rename_tensor
from head_checks import IMAGE, file_of, read, run
from head_graphs import model_of
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from detcli.core.errors import ModelError
from detcli.model.graph import shape


def declare(model, channels, *, in_place_of):
    """Declare another number of channels for the outputs of a model that have this many."""
    for output in model.graph.output:
        dims = shape(output)
        if dims[1] == in_place_of:
            dims[1] = channels
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, dims))


def hide_shapes(model):
    """Put a Reshape behind each output whose sizes are only known when the graph runs."""
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "nothing"))
    for output in graph.output:
        computed = f"{output.name}/computed"
        rename_tensor(graph.node, output.name, computed)
        zeros = f"{computed}/zeros"
        zero = f"{computed}/zero"
        whole_zero = f"{computed}/whole zero"
        dims = f"{computed}/dims"
        sizes = f"{computed}/sizes"
        graph.node.extend(
            [
                helper.make_node("Mul", [computed, "nothing"], [zeros]),
                helper.make_node("ReduceMax", [zeros], [zero], keepdims=0),
                helper.make_node("Cast", [zero], [whole_zero], to=TensorProto.INT64),
                helper.make_node("Shape", [computed], [dims]),
                helper.make_node("Add", [dims, whole_zero], [sizes]),
                helper.make_node("Reshape", [computed, sizes], [output.name]),
            ]
        )


# The shapes of YOLOv6, of NanoDet, and of fewer classes than there are.
@pytest.mark.parametrize(("computed", "declared"), [(64, 4), (64, 32), (20, 10)])
def test_a_grid_head_is_not_read_by_shapes_that_its_nodes_do_not_compute(computed, declared):
    model, _ = model_of("RKNN", 20)
    declare(model, declared, in_place_of=computed)
    with pytest.raises(ModelError, match=rf"declares the shape \[1, {declared}, 8, 12\].* compute"):
        read(model)


@pytest.mark.parametrize(("computed", "declared"), [(64, 4), (64, 32), (20, 10)])
def test_where_nodes_do_not_show_the_shape_the_graph_fails_when_it_runs(computed, declared):
    model, _ = model_of("RKNN", 20)
    hide_shapes(model)
    declare(model, declared, in_place_of=computed)
    body = file_of(model).body()
    with pytest.raises((Fail, RuntimeException)):
        run(body, IMAGE)


def test_shapes_that_nodes_do_not_show_are_read_as_the_file_declares_them():
    model, _ = model_of("RKNN", 20)
    expected, _ = read(model)
    hide_shapes(model)
    detections, contract = read(model)
    assert contract.family == "YOLO, scales apart"
    for part, expected_part in zip(detections, expected, strict=True):
        np.testing.assert_array_equal(part, expected_part)
