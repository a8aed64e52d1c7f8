"""PaddleDetection with its suppression inside: rows [M, 6] of class, score and box, and a count.

The nodes are those that Paddle2ONNX makes of `multiclass_nms3`. Boxes are divided by the input
`scale_factor`; `im_shape` is there where the network asks for it. Models differ in mean and
standard deviation, which are in a file beside the export.
"""

import numpy as np
import pytest
from anchor_graphs import distances, scores
from graph_builder import Graph, grid
from head_checks import assert_same, outputs_of, read
from onnx import TensorProto

from detcli.model.contract import Layout

ROLES = ["rows", "count"]


def candidates(graph, *, limited):
    """Boxes [1, N, 4] in pixels of the picture that scale_factor is of."""
    factor = graph.input("scale_factor", TensorProto.FLOAT, [1, 2])
    flipped = graph("Gather", factor, [1, 0], axis=1)
    scale = graph("Reshape", graph("Concat", flipped, flipped, axis=1), [-1, 1, 4])
    boxes = graph("Div", graph.swapped(distances(graph, centres=False)), scale)
    if limited:  # to the picture, as where the network asks for its size
        shape = graph.input("im_shape", TensorProto.FLOAT, [1, 2])
        sides = graph("Reshape", graph("Gather", shape, [1, 0, 1, 0], axis=1), [1, 1, 4])
        boxes = graph("Max", graph("Min", boxes, sides), np.float32(0))
    return boxes


def built(classes, *, normalised=True, limited=False, first="rows"):
    graph = Graph()
    boxes, final = candidates(graph, limited=limited), scores(graph, classes)
    compared = boxes
    if not normalised:
        sides = graph.all("Split", boxes, np.ones(4, np.int64), outputs=4, axis=2)
        high = [graph("Add", side, np.ones(1, np.float32)) for side in sides[2:]]
        compared = graph("Concat", *sides[:2], *high, axis=2)
    limits = np.array([20]), np.array([0.6], np.float32), np.array([0.3], np.float32)
    triples = graph("NonMaxSuppression", compared, final, *limits)
    label, anchor = (graph("Gather", triples, np.array([i]), axis=1) for i in (1, 2))
    apart = graph("Sub", graph("Squeeze", label, [1]), np.array([classes]))
    some = graph("NonZero", apart)  # other than the class of no object
    label, anchor = (graph("Gather", part, some, axis=0) for part in (label, anchor))
    place = graph("Add", graph("Mul", label, np.array([len(grid()[0])])), anchor)
    flat = graph("Reshape", final, [-1])
    score = graph("Gather", flat, graph("Reshape", place, [-1]), axis=0)
    most = graph("Concat", graph("Shape", score), np.array([20]), axis=0)
    _, best = graph.all("TopK", score, graph("ReduceMin", most, axes=[0]), outputs=2)
    score = graph("Gather", score, best, axis=0)
    label, anchor = (graph("Gather", part, best, axis=1) for part in (label, anchor))
    chosen = graph("Gather", boxes, graph("Reshape", anchor, [-1]), axis=1)
    label = graph("Cast", label, to=TensorProto.FLOAT)
    columns = [graph("Reshape", part, [1, -1, 1]) for part in (label, score)]
    rows = graph("Squeeze", graph("Concat", *columns, chosen, axis=2), [0])
    count = graph("Cast", graph("Shape", graph("Reshape", rows, [-1, 6])), to=TensorProto.INT32)
    made = {"rows": rows, "count": graph.cut(count, 0, 1, 0)}
    roles = ROLES if first == "rows" else ROLES[::-1]
    return graph.model([made[role] for role in roles]), roles


@pytest.mark.parametrize("classes", [1, 3, 4])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_rows_are_those_of_the_file(classes, limited, normalised):
    model, roles = built(classes, limited=limited, normalised=normalised)
    found, contract = read(model)
    assert (contract.family, contract.layout) == ("PaddleDetection", Layout.ROWS)
    assert (contract.class_count, contract.batch) == (classes, 1)
    rows = outputs_of(model, roles)["rows"]
    assert 0 < len(rows) <= 20
    assert_same(found, (rows[:, 2:], rows[:, 1], rows[:, 0].astype(int)))


def test_the_order_of_the_outputs_does_not_matter():
    model, roles = built(3, first="count")
    rows = outputs_of(model, roles)["rows"]
    assert_same(read(model)[0], (rows[:, 2:], rows[:, 1], rows[:, 0].astype(int)))


def test_how_pictures_are_prepared_is_not_guessed():
    contract = read(built(3)[0])[1]
    assert contract.unsettled == ("resize", "interpolation", "values", "channels")
