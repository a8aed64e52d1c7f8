"""MMDetection's detectors as MMDeploy exports them: `dets` [B, K, 5] and `labels` [B, K].

Suppressed inside, padded with a row of zeros, and sorted by a TopK, as in MMDeploy's
`multiclass_nms`. Mean, standard deviation and resizing differ from model to model, and are in
files that MMDeploy writes for its own runtime.
"""

import numpy as np
import onnx
import pytest
from anchor_graphs import distances, scores
from graph_builder import Graph
from head_checks import assert_same, outputs_of, read

from detcli.core.errors import ModelError
from detcli.model.contract import Layout


def built(classes, *, kept=20, outputs=("dets", "labels")):
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    final = scores(graph, classes)
    limits = np.array([20]), np.array([0.6], np.float32), np.array([0.3], np.float32)
    triples = graph("NonMaxSuppression", boxes, final, *limits)
    label, anchor = (graph("Gather", triples, np.int64(i), axis=1) for i in (1, 2))
    pairs = graph("Concat", *(graph("Unsqueeze", p, [1]) for p in (label, anchor)), axis=1)
    score = graph("Unsqueeze", graph("GatherND", graph("Squeeze", final, [0]), pairs), [0, 2])
    rows = graph("Concat", graph("Gather", boxes, anchor, axis=1), score, axis=2)
    rows = graph("Concat", rows, np.zeros((1, 1, 5), np.float32), axis=1)
    label = graph("Concat", graph("Unsqueeze", label, [0]), np.zeros((1, 1), np.int64), axis=1)
    column = graph("Squeeze", graph.cut(rows, 4, 5, 2), [2])
    count = graph("Min", graph.cut(graph("Shape", column), 1, 2, 0), np.array([kept]))
    _, best = graph.all("TopK", column, count, outputs=2, axis=1)
    best = graph("Squeeze", best, [0])
    made = {
        "dets": graph("Gather", rows, best, axis=1),
        "labels": graph("Gather", label, best, axis=1),
    }
    return graph.model([made[name] for name in outputs])


@pytest.mark.parametrize("classes", [1, 3, 5])
@pytest.mark.parametrize("outputs", [("dets", "labels"), ("labels", "dets")])
def test_rows_are_those_of_the_file(classes, outputs):
    model = built(classes, outputs=outputs)
    found, contract = read(model)
    assert (contract.family, contract.layout) == ("MMDetection", Layout.ROWS)
    assert contract.class_count == classes
    out = outputs_of(model, outputs)
    detected = out["dets"][:, 4] > 0
    assert 0 < np.count_nonzero(detected) <= 20
    rows, labels = out["dets"][detected], out["labels"][detected]
    assert_same(found, (rows[:, :4], rows[:, 4], labels))


@pytest.mark.parametrize(
    ("axes", "task"), [([8, 8], "it segments objects: masks"), ([17, 3], "it finds poses")]
)
def test_masks_and_keypoints_are_named_and_boxes_can_be_had(axes, task):
    """As those of Mask R-CNN, cut out for each detection."""
    model, floats = built(3), onnx.TensorProto.FLOAT
    shape = onnx.numpy_helper.from_array(np.array([1, 20, *axes]), "more_shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["more_shape"], ["more"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("more", floats, [1, 20, *axes]))
    with pytest.raises(ModelError, match=task) as caught:
        read(model)
    assert "--boxes-only" in caught.value.hint
    found, contract = read(model, boxes_only=True)
    assert contract.warnings == ("its masks or keypoints are left out",)
    assert_same(found, read(built(3))[0])


def test_how_pictures_are_prepared_is_not_guessed():
    contract = read(built(3))[1]
    assert contract.unsettled == ("resize", "interpolation", "values", "channels")
