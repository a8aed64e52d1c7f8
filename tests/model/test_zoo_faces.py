"""Files of UltraFace that select their faces, as a zoo of models has them."""

from functools import cache

import numpy as np
import pytest
from cell_faces import ultraface
from graph_builder import Graph
from head_checks import read, renamed, run, shuffled, with_constant_nodes, with_fed_constants
from model.test_recognise_heads import by_onnxslim
from onnx import TensorProto
from onnxruntime.transformers.float16 import convert_float_to_float16

from detcli.core.errors import ModelError

pytestmark = pytest.mark.slow

SIZES = ((240, 320), (480, 640))
SCORE = 0.5
IOU = 0.5
MOST = 20  # rows, which random weights give in any case


def with_selection(graph, boxes, class_scores, *, y_first=False):
    """Rows of image, class, score and corners [K, 7] that NonMaxSuppression leaves."""
    left, top, right, bottom = graph.four_columns(boxes)
    rows_first = graph("Concat", top, left, bottom, right, axis=2)
    triples = graph.non_max_suppression(rows_first, class_scores, count=MOST, iou=IOU, conf=SCORE)
    triples = graph("Mul", triples, np.array([1]))
    image = graph("Cast", graph.cut(triples, 0, 1, 1), to=TensorProto.FLOAT)
    label = graph("Cast", graph.cut(triples, 1, 2, 1), to=TensorProto.FLOAT)
    score = graph("Reshape", graph("GatherND", class_scores, triples), [-1, 1])
    positions = graph("Gather", triples, np.array([0, 2]), axis=1)
    chosen = graph("GatherND", rows_first if y_first else boxes, positions)
    return graph("Concat", image, label, score, chosen, axis=1)


@cache
def faces(size, *, first_class=1, y_first=False):
    """A file whose faces are selected."""
    graph = Graph(size=size)
    outputs = ultraface(graph, 1, decoded=True)
    class_scores = graph.swapped(graph.cut(outputs["scores"], first_class, 2, 2))
    rows = with_selection(graph, outputs["boxes"], class_scores, y_first=y_first)
    return graph.model([rows])


def image_of(size):
    return np.random.default_rng(1).random((1, 3) + size, np.float32)


def with_new_names(model):
    copy, _ = renamed(model)
    return copy


def assert_rows_are_read(model, size):
    """The rows that the unchanged file gives: image, class, score and corners as fractions."""
    (rows,) = run(faces(size), image_of(size))
    (boxes, scores, class_ids), contract = read(model, image=image_of(size))
    height, width = size
    expected_boxes = rows[:, 3:] * np.array([width, height, width, height], np.float32)
    order = np.argsort(-scores, kind="stable")
    expected_order = np.argsort(-rows[:, 2], kind="stable")
    assert contract.family == "UltraFace, selected inside"
    assert contract.names == ("face",)
    assert contract.nms is None
    assert len(rows) == MOST
    assert set(class_ids) == {0}
    np.testing.assert_array_equal(scores[order], rows[expected_order, 2])
    np.testing.assert_allclose(boxes[order], expected_boxes[expected_order], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_faces_are_read_at_both_sizes(size):
    assert_rows_are_read(faces(size), size)


@pytest.mark.parametrize(
    "change", [by_onnxslim, shuffled, with_constant_nodes, with_fed_constants, with_new_names]
)
def test_rows_of_a_changed_file_are_read_as_before(change):
    model = faces(SIZES[0])
    copy = type(model).FromString(model.SerializeToString())
    assert_rows_are_read(change(copy), SIZES[0])


def test_rows_of_a_file_in_float16_are_read():
    half = convert_float_to_float16(faces(SIZES[0]), op_block_list=["NonMaxSuppression"])
    image = image_of(SIZES[0]).astype(np.float16)
    (rows,) = run(half, image)
    (_, scores, _), contract = read(half, image=image)
    assert contract.family == "UltraFace, selected inside"
    np.testing.assert_array_equal(np.sort(scores), np.sort(rows[:, 2].astype(np.float32)))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (faces(SIZES[0], first_class=0), "no family is known"),
        (faces((128, 192)), "no family is known"),
        (faces(SIZES[0], y_first=True), "order and unit of the corners"),
    ],
    ids=["two classes", "another number of anchors", "y before x"],
)
def test_rows_that_only_look_like_it_are_refused(model, reason):
    with pytest.raises(ModelError, match=reason):
        read(model)
