"""EfficientDet of google/automl: [1, K, 7] rows of picture, y1, x1, y2, x2, score and class.

Pictures are whole numbers with the channels last; the graph normalises them, decodes boxes with
y first, suppresses, and stacks seven columns. Class ids begin at 1.
"""

import numpy as np
import pytest
from graph_builder import STRIDES, Graph, grid
from head_checks import HEIGHT, IMAGE, WIDTH, assert_same, read
from onnx import TensorProto, helper

from detcli.model.contract import Layout, Resize
from detcli.model.preprocessing import METADATA_KEY

MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)


def decoded(graph):
    """Boxes [1, N, 4] of corners, y first, in pixels."""
    cells, strides = grid()
    anchors = ((cells + np.float32(0.5)) * strides)[None]
    maps = [graph.flat(graph.convolution(4, stride), 4) for stride in STRIDES]
    change = graph("Mul", graph.swapped(graph("Concat", *maps, axis=2)), np.float32(0.2))
    ty, tx, th, tw = (graph.cut(change, side, side + 1, 2) for side in range(4))
    half = strides[None].astype(np.float32)
    y, x = (
        graph("Add", graph("Mul", offset, half), anchors[..., [side]])
        for offset, side in ((ty, 1), (tx, 0))
    )
    height, width = (graph("Mul", graph("Exp", size), half) for size in (th, tw))
    low = graph("Sub", y, height), graph("Sub", x, width)
    high = graph("Add", y, height), graph("Add", x, width)
    return graph("Concat", *low, *high, axis=2)


def built(classes, *, clipped=False):
    graph = Graph()
    boxes = decoded(graph)
    if clipped:
        boxes = graph("Clip", boxes, np.float32(0), np.float32(WIDTH))
    maps = [graph.flat(graph.convolution(classes, stride), classes) for stride in STRIDES]
    final = graph("Sigmoid", graph.swapped(graph("Concat", *maps, axis=2)))
    best = graph("ReduceMax", final, axes=[2], keepdims=0)
    label = graph("ArgMax", final, axis=2, keepdims=0)
    limits = np.array([20]), np.array([0.5], np.float32), np.array([0.3], np.float32)
    triples = graph("NonMaxSuppression", boxes, graph("Unsqueeze", best, [1]), *limits)
    anchor = graph("Gather", triples, np.int64(2), axis=1)
    boxes, score, label = (graph("Gather", part, anchor, axis=1) for part in (boxes, best, label))
    label = graph("Cast", graph("Add", label, np.int64(1)), to=TensorProto.FLOAT)
    picture = graph("ConstantOfShape", graph("Shape", score))
    sides = [graph("Gather", boxes, np.int64(side), axis=2) for side in range(4)]
    columns = [graph("Unsqueeze", part, [2]) for part in (picture, *sides, score, label)]
    model = graph.model([graph("Concat", *columns, axis=2)])
    return with_whole_numbers(model)


def with_whole_numbers(model):
    """The same graph for pictures [1, H, W, 3] of whole numbers, which it normalises."""
    [image] = model.graph.input
    image.CopyFrom(
        helper.make_tensor_value_info("pixels", TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])
    )
    for name, value in (("scale", np.float32(255)), ("mean", MEAN), ("std", STD)):
        model.graph.initializer.append(
            helper.make_tensor(name, TensorProto.FLOAT, np.shape(value), np.ravel(value))
        )
    nodes = [
        helper.make_node("Cast", ["pixels"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["levels"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Div", ["first", "scale"], ["shares"]),
        helper.make_node("Sub", ["shares", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "std"], ["images"]),
    ]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    return model


def own(model):
    """What the file itself gives: boxes x1, y1, x2, y2, scores and class ids."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    pixels = np.uint8(IMAGE.transpose(0, 2, 3, 1) * 255)
    [[rows]] = session.run(None, {"pixels": pixels})
    return rows[:, [2, 1, 4, 3]], rows[:, 5], rows[:, 6].astype(int)


@pytest.mark.parametrize("classes", [1, 3, 4])
@pytest.mark.parametrize("clipped", [False, True])
def test_rows_are_those_of_the_file(classes, clipped):
    model = built(classes, clipped=clipped)
    wanted = own(model)
    assert len(wanted[1]) > 3
    found, contract = read(model, image=np.floor(IMAGE * 255))
    assert (contract.family, contract.layout) == ("EfficientDet", Layout.ROWS)
    assert contract.class_count == classes + 1  # ids begin at 1
    assert_same(found, wanted)


def test_pictures_are_levels_in_the_corner():
    contract = read(built(3), image=np.floor(IMAGE * 255))[1]
    assert (contract.preprocessing.resize, contract.preprocessing.scale) == (Resize.CORNER, 1)
    assert contract.unsettled == ()
    assert METADATA_KEY not in dict(contract.settled)
