"""Detectors of queries: detcli's selection against the graph's, copies, a planted change."""

import functools

import numpy as np
import onnx
import pytest
import query_model
import verify_requests
from colour_model import image
from graph_edits import constant_of, producer_of

from detcli.commands.verify.report import SelectedBy
from detcli.data.geometry import Image
from detcli.data.record import Origin
from detcli.source.loading import Item

SQUARES = Image.whole(image(("red", 2, 2), ("blue", 5, 5)))
ITEMS = [Item(Origin("squares"), lambda: SQUARES)]


@pytest.fixture
def write_query_model(tmp_path):
    def write(name="model.onnx", *tail, change=None):
        model = query_model.named(*tail)
        if change is not None:
            change(model)
        (tmp_path / name).write_bytes(model.SerializeToString())
        return tmp_path / name

    return write


verified = functools.partial(verify_requests.verified, ITEMS)


def forget_shapes(model):
    """As PyTorch's exporter leaves the outputs of the authors' deploy graphs."""
    for value in model.graph.output:
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{number}"


@pytest.mark.parametrize(
    ("tail", "change"), [("deploy", None), ("rows", None), ("deploy", forget_shapes)]
)
def test_own_selection_agrees_with_the_graphs(write_query_model, tail, change):
    report = verified(write_query_model("model.onnx", tail, change=change))
    assert report.agree, report.failures
    assert report.right.selection is SelectedBy.GRAPH
    assert report.detections.left == 2
    assert report.detections.pairs == 2


def test_a_selection_that_mistakes_classes_for_queries_is_found(write_query_model):
    """rf-detr 1320: the position in Q x C is taken for the query."""

    def change(model):
        producer_of(model.graph, "column").input[0] = "labels"

    report = verified(write_query_model("model.onnx", "deploy", change=change))
    assert not report.agree
    assert report.detections.disagreeing


@pytest.mark.parametrize("tails", [("pair", "pair"), ("deploy", "pair"), ("deploy", "deploy")])
def test_a_planted_change_is_found(write_query_model, tails):
    def change(model):
        weights = constant_of(model.graph, "weights")
        values = onnx.numpy_helper.to_array(weights).copy()
        values[0, 0] += 3
        weights.CopyFrom(onnx.numpy_helper.from_array(values, "weights"))

    left = write_query_model("left.onnx", tails[0])
    right = write_query_model("right.onnx", tails[1], change=change)
    report = verified(left, right, tensors=True, bisect=True)
    assert not report.agree
    assert report.bisect.node.operator == "MatMul"
    assert report.bisect.output.name == "raw"
    assert {tensor.name for tensor in report.tensors} >= {"scores"}


def test_a_half_copy_agrees_within_its_tolerance(write_query_model, tmp_path):
    from detcli.commands.convert.number_types import to_half

    path = write_query_model("model.onnx", "rows")
    half = to_half(onnx.load(path), float32_nodes={"moved", "cxcywh", "nothing"})
    (tmp_path / "half.onnx").write_bytes(half.SerializeToString())
    report = verified(path, tmp_path / "half.onnx", tensors=True)
    assert report.agree, report.failures
    assert report.detections.pairs == 2
    assert np.isfinite(report.detections.largest_corner_difference)
