"""Heads of boxes and scores with masks, keypoints or angles."""

import numpy as np
import pytest
from anchor_graphs import distances, scores
from graph_builder import Graph, corners
from head_checks import assert_same, expected_of_all, file_of, outputs_of, read
from head_graphs import in_one
from onnx import helper

from detcli.core.errors import ModelError
from detcli.model.contract import Layout

CLASSES = 3


def keypoints(graph, count):
    """Columns and rows of keypoints, in pixels, and how visible they are."""
    raw = graph.flat_convolution(count)
    parts = []
    for start in range(0, count, 3):
        coordinates = graph("Mul", graph.cut(raw, start, start + 2, 1), np.float32(8))
        parts += [coordinates, graph("Sigmoid", graph.cut(raw, start + 2, start + 3, 1))]
    return graph.concat(parts, axis=1)


def built(task, *, nested=True, transposed=False, metadata=None):
    """A graph as Ultralytics exports it for a task, of one scale."""
    graph = Graph()
    boxes = graph.cut(distances(graph, centres=True), 0, 96, 2)
    final = graph.cut(scores(graph, CLASSES), 0, 96, 2)
    extra_outputs = {}
    if task == "segment":
        extra = graph.flat_convolution(32)
        extra_outputs["masks"] = graph.convolution(32, 4)
    elif task == "pose":
        extra = keypoints(graph, 12)
    else:
        turn = graph("Sigmoid", graph.flat_convolution(1))
        extra = graph("Mul", graph("Sub", turn, np.float32(0.25)), np.float32(np.pi))
    parts = [graph("Concat", boxes, final, axis=1)] if nested else [boxes, final]
    head = graph.concat(parts + [extra], axis=1)
    outputs = {"head": graph.swapped(head) if transposed else head} | extra_outputs
    return graph.model(list(outputs.values()), metadata), list(outputs)


WHAT = {
    "segment": "it segments objects",
    "pose": "it finds poses",
    "obb": "it finds oriented boxes",
}


@pytest.mark.slow
@pytest.mark.parametrize("says_task", [True, False], ids=["metadata", "bare"])
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("task", WHAT)
def test_other_tasks_are_named_and_their_boxes_can_be_had(task, says_task, nested, transposed):
    metadata = {"task": task} if says_task else {}
    model, roles = built(task, nested=nested, transposed=transposed, metadata=metadata)
    with pytest.raises(ModelError, match=WHAT[task]) as caught:
        read(model)
    assert ("--boxes-only" in caught.value.hint) == (task != "obb")
    if task == "obb":
        with pytest.raises(ModelError, match=WHAT[task]):
            read(model, boxes_only=True)
        return
    detections, contract = read(model, boxes_only=True)
    assert contract.class_count == CLASSES
    assert contract.nms == 0.7
    assert contract.warnings == ("its masks or keypoints are left out",)
    rows = outputs_of(model, roles)["head"]
    rows = rows if transposed else rows.T
    assert_same(detections, expected_of_all(corners(rows[:, :4]), rows[:, 4 : 4 + CLASSES]))


@pytest.mark.parametrize(
    ("extra", "task"), [(32, "segment"), (2, "pose"), (4, "pose"), (51, "pose"), (1, "obb")]
)
@pytest.mark.parametrize("says_task", [True, False], ids=["metadata", "bare"])
def test_boxes_of_rows_that_masks_or_keypoints_follow_in(extra, task, says_task):
    """[1, K, 6 + more] of a graph that suppresses duplicates itself."""
    graph = Graph()
    outputs = in_one(graph, CLASSES, extra_columns=extra)
    if task == "segment":
        outputs["masks"] = graph.convolution(32, 4)
    model = graph.model(list(outputs.values()), {"task": task} if says_task else {})
    with pytest.raises(ModelError, match=WHAT[task] if says_task or task != "obb" else "selects"):
        read(model)
    if task == "obb":
        with pytest.raises(ModelError):
            read(model, boxes_only=True)
        return
    detections, contract = read(model, boxes_only=True)
    assert contract.layout == Layout.ROWS
    assert contract.class_count == CLASSES
    assert contract.warnings == ("its masks or keypoints are left out",)
    rows = outputs_of(model, list(outputs))["rows"]
    assert_same(detections, (rows[:, :4], rows[:, 4], rows[:, 5]))


def test_a_detector_is_the_same_with_boxes_only():
    graph = Graph()
    parts = distances(graph, centres=True), scores(graph, CLASSES)
    model = graph.model([graph.concat(parts, axis=1)])
    assert read(model, boxes_only=True)[1] == read(model)[1]


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_an_added_axis_of_size_one_changes_nothing(axis):
    graph = Graph()
    parts = distances(graph, centres=True), scores(graph, CLASSES)
    head = graph.concat(parts, axis=1)
    expected_detections, expected_contract = read(graph.model([head]))
    detections, contract = read(graph.model([graph("Unsqueeze", head, [axis])]))
    assert contract == expected_contract
    assert_same(detections, expected_detections)


def test_classification_and_maps_are_named():
    for outputs, reason in (("flat", "values of whole images"), ("map", "maps of images")):
        graph = Graph()
        maps = graph.convolution(7, 8)
        pooled = graph("Flatten", graph("GlobalAveragePool", maps), axis=1)
        model = graph.model([pooled if outputs == "flat" else maps])
        with pytest.raises(ModelError, match=reason):
            file_of(model).detector()


def test_maps_that_a_head_is_made_of_may_be_outputs_too():
    """As in YOLOv5 exported with its training outputs."""
    graph = Graph()
    boxes = distances(graph, centres=True)
    final = scores(graph, CLASSES)
    head = graph("Concat", boxes, final, axis=1)
    model = graph.model([head, boxes, graph.swapped(final)])
    detections, _ = read(model)
    rows = outputs_of(model, ["head", "boxes", "scores"])["head"].T
    assert_same(detections, expected_of_all(corners(rows[:, :4]), rows[:, 4:]))


def test_a_nanodet_of_four_classes_is_not_read_as_scores_of_distances():
    """It joins scores, then distances; with four classes the scores are where boxes would be."""
    graph = Graph()
    maps = [graph.flat_convolution(32), graph.flat_convolution(4)]
    model = graph.model([graph("Concat", graph("Sigmoid", maps[1]), maps[0], axis=1)])
    helper.set_model_props(model, {})
    with pytest.raises(ModelError, match=r"no family|not decoded"):
        read(model)


def test_a_number_between_boxes_of_distances_and_scores_is_not_guessed():
    """YOLOv6 has a constant objectness there; what a layer gives may be anything."""
    graph = Graph()
    parts = distances(graph, centres=True), scores(graph, 1), scores(graph, CLASSES)
    model = graph.model([graph.concat(parts, axis=1)])
    with pytest.raises(ModelError, match="what the number between its boxes and scores is"):
        file_of(model).detector()
