"""MMDetection's detectors as MMDeploy exports them: `dets` [B, K, 5] and `labels` [B, K].

Suppressed inside, padded with a row of zeros, and sorted by a TopK, as in MMDeploy's
`multiclass_nms`. Mean, standard deviation and resizing differ from model to model, and are in
files that MMDeploy writes for its own runtime.
"""

import numpy as np
import pytest
from head_checks import assert_same, outputs_of, read
from head_graphs import Graph, distances, scores

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


def test_how_pictures_are_prepared_is_not_guessed():
    contract = read(built(3))[1]
    assert contract.unsettled == ("resize", "interpolation", "values", "channels")
