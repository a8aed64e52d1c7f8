"""The table of families, and those whose graphs select rows, built of their exporters' nodes."""

import numpy as np
import onnx
import pytest
from anchor_graphs import distances, scores
from graph_builder import HEIGHT, WIDTH, Graph, grid
from head_checks import IMAGE, assert_same, outputs_of, read
from model.test_adapt import CAST, MIX, behind, outputs
from onnx import TensorProto

from detcli.core.errors import ModelError
from detcli.model.contract import Layout, Resize
from detcli.model.families import FAMILIES
from detcli.model.preprocessing import METADATA_KEY, PREPROCESSING_STEPS

BY_NAME = {family.name: family for family in FAMILIES}


def test_names_are_of_one_family_each():
    assert len(BY_NAME) == len(FAMILIES)


def test_a_rule_that_follows_the_image_stretches_to_a_fixed_size():
    family = BY_NAME["DETR"]
    free = family.preprocessing_for(None, (640, 640))
    assert free.resize == Resize.SHORTEST_EDGE
    assert free.edges == (800, 1333)
    fixed = family.preprocessing_for((320, 416), (640, 640))
    assert fixed.resize == Resize.STRETCH
    assert fixed.edges is None
    assert fixed.mean == free.mean


def test_a_margin_is_left_free_of_the_longer_side():
    family = BY_NAME["YOLO-NAS"]
    assert family.preprocessing_for((320, 640), (640, 640)).longest == 636
    assert family.preprocessing_for(None, (416, 320)).longest == 412
    assert BY_NAME["YOLOv5"].preprocessing_for((320, 640), (640, 640)).longest is None


def test_a_family_whose_files_differ_has_no_rule():
    assert BY_NAME["SSD"].preprocessing_for((320, 320), (640, 640)) is None


def triple_column(graph, triples, number):
    """One column of NonMaxSuppression's rows [image, class, box]: [K]."""
    return graph("Gather", triples, np.int64(number), axis=1)


def decoded(graph):
    """EfficientDet's boxes [1, N, 4] of corners, y first, in pixels."""
    cells, strides = grid()
    anchors = ((cells + np.float32(0.5)) * strides)[None]
    change = graph("Mul", graph.swapped(graph.maps(4)), np.float32(0.2))
    y_change, x_change, height_change, width_change = graph.four_columns(change)

    half = strides[None].astype(np.float32)
    y = graph("Add", graph("Mul", y_change, half), anchors[..., [1]])
    x = graph("Add", graph("Mul", x_change, half), anchors[..., [0]])
    half_height = graph("Mul", graph("Exp", height_change), half)
    half_width = graph("Mul", graph("Exp", width_change), half)

    top = graph("Sub", y, half_height)
    left = graph("Sub", x, half_width)
    bottom = graph("Add", y, half_height)
    right = graph("Add", x, half_width)
    return graph("Concat", top, left, bottom, right, axis=2)


def efficientdet(classes, *, clipped=False):
    """google/automl: [1, K, 7] rows of image, y1, x1, y2, x2, score and class, ids from 1.

    Images are whole numbers with the channels last, which the graph normalises.
    """
    graph = Graph()
    boxes = decoded(graph)
    if clipped:
        boxes = graph("Clip", boxes, np.float32(0), np.float32(WIDTH))
    final = graph.swapped(scores(graph, classes))
    best = graph("ReduceMax", final, axes=[2], keepdims=0)
    label = graph("ArgMax", final, axis=2, keepdims=0)
    triples = graph.non_max_suppression(boxes, graph("Unsqueeze", best, [1]), iou=0.5)
    anchor = triple_column(graph, triples, 2)
    boxes = graph("Gather", boxes, anchor, axis=1)
    score = graph("Gather", best, anchor, axis=1)
    label = graph("Gather", label, anchor, axis=1)
    label = graph("Cast", graph("Add", label, np.int64(1)), to=TensorProto.FLOAT)
    image = graph("ConstantOfShape", graph("Shape", score))
    columns = [image]
    for side in range(4):
        columns.append(graph("Gather", boxes, np.int64(side), axis=2))
    columns += [score, label]
    rows = graph.concat([graph("Unsqueeze", column, [2]) for column in columns], axis=2)
    model = graph.model([rows])
    constants = {"white": 255, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    for name, value in constants.items():
        array = np.array(value, np.float32).reshape(-1, 1, 1)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    steps = [CAST, MIX, ("Div", "white"), ("Sub", "mean"), ("Div", "std")]
    return behind(model, steps, TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])


@pytest.mark.parametrize("classes", [1, 3, 4])
@pytest.mark.parametrize("clipped", [False, True])
def test_rows_of_efficientdet(classes, clipped):
    model = efficientdet(classes, clipped=clipped)
    pixels = np.uint8(IMAGE.transpose(0, 2, 3, 1) * 255)
    [[rows]] = outputs(model, raw=pixels)
    assert len(rows) > 3
    detections, contract = read(model, image=np.floor(IMAGE * 255))
    assert contract.family == "EfficientDet"
    assert contract.layout == Layout.ROWS
    assert contract.class_count == classes + 1  # ids begin at 1
    assert_same(detections, (rows[:, [2, 1, 4, 3]], rows[:, 5], rows[:, 6].astype(int)))
    assert contract.preprocessing.resize == Resize.CORNER
    assert contract.preprocessing.scale == 1
    assert contract.unknown_preprocessing == ()
    assert METADATA_KEY not in dict(contract.preprocessing_sources)


def mmdetection(classes, order=("dets", "labels")):
    """MMDeploy's `multiclass_nms`: `dets` [B, K, 5] and `labels` [B, K].

    Suppressed inside, padded with a row of zeros, and sorted by a TopK. Mean, standard deviation
    and resizing differ from model to model.
    """
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    final = scores(graph, classes)
    triples = graph.non_max_suppression(boxes, final)
    label = triple_column(graph, triples, 1)
    anchor = triple_column(graph, triples, 2)
    pairs = graph.concat(graph.unsqueezed([label, anchor], axis=1), axis=1)
    score = graph("Unsqueeze", graph("GatherND", graph("Squeeze", final, [0]), pairs), [0, 2])
    rows = graph("Concat", graph("Gather", boxes, anchor, axis=1), score, axis=2)
    rows = graph("Concat", rows, np.zeros((1, 1, 5), np.float32), axis=1)
    label = graph("Concat", graph("Unsqueeze", label, [0]), np.zeros((1, 1), np.int64), axis=1)
    column = graph("Squeeze", graph.cut(rows, 4, 5, 2), [2])
    count = graph("Min", graph.cut(graph("Shape", column), 1, 2, 0), np.array([20]))
    best = graph("Squeeze", graph.all("TopK", column, count, outputs=2, axis=1)[1], [0])
    parts = {"dets": rows, "labels": label}
    return graph.model([graph("Gather", parts[name], best, axis=1) for name in order])


@pytest.mark.parametrize("classes", [1, 3, 5])
@pytest.mark.parametrize("order", [("dets", "labels"), ("labels", "dets")])
def test_rows_of_mmdetection(classes, order):
    model = mmdetection(classes, order)
    detections, contract = read(model)
    assert contract.family == "MMDetection"
    assert contract.layout == Layout.ROWS
    assert contract.class_count == classes
    assert contract.unknown_preprocessing == tuple(PREPROCESSING_STEPS)
    out = outputs_of(model, order)
    detected = out["dets"][:, 4] > 0
    assert 0 < np.count_nonzero(detected) <= 20
    rows = out["dets"][detected]
    labels = out["labels"][detected]
    assert_same(detections, (rows[:, :4], rows[:, 4], labels))


@pytest.mark.parametrize(
    ("axes", "task"), [([8, 8], "it segments objects: masks"), ([17, 3], "it finds poses")]
)
def test_masks_and_keypoints_are_named_and_boxes_can_be_had(axes, task):
    """As those of Mask R-CNN, cut out for each detection."""
    model = mmdetection(3)
    dims = [1, 20] + axes
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(dims), "more_shape"))
    model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["more_shape"], ["more"]))
    extra_output = onnx.helper.make_tensor_value_info("more", TensorProto.FLOAT, dims)
    model.graph.output.append(extra_output)
    with pytest.raises(ModelError, match=task) as caught:
        read(model)
    assert "--boxes-only" in caught.value.hint
    detections, contract = read(model, boxes_only=True)
    assert contract.warnings == ("its masks or keypoints are left out",)
    assert_same(detections, read(mmdetection(3))[0])


def paddle(classes, order, *, normalised, limited):
    """Paddle2ONNX's `multiclass_nms3`: rows [M, 6] of class, score and box, and a count.

    Boxes are divided by the input `scale_factor`; `im_shape` is there where the network asks for
    it. Models differ in mean and standard deviation, which are in a file beside the export.
    """
    graph = Graph()
    factor = graph.input("scale_factor", TensorProto.FLOAT, [1, 2])
    flipped = graph("Gather", factor, [1, 0], axis=1)
    scale = graph("Reshape", graph("Concat", flipped, flipped, axis=1), [-1, 1, 4])
    boxes = graph("Div", graph.swapped(distances(graph, centres=False)), scale)
    if limited:  # to the image, as where the network asks for its size
        shape = graph.input("im_shape", TensorProto.FLOAT, [1, 2])
        sides = graph("Reshape", graph("Gather", shape, [1, 0, 1, 0], axis=1), [1, 1, 4])
        boxes = graph("Max", graph("Min", boxes, sides), np.float32(0))
    final = scores(graph, classes)
    compared = boxes
    if not normalised:
        left, top, right, bottom = graph.all(
            "Split", boxes, np.ones(4, np.int64), outputs=4, axis=2
        )
        right = graph("Add", right, np.ones(1, np.float32))
        bottom = graph("Add", bottom, np.ones(1, np.float32))
        compared = graph("Concat", left, top, right, bottom, axis=2)
    triples = graph.non_max_suppression(compared, final)
    label = graph("Gather", triples, np.array([1]), axis=1)
    anchor = graph("Gather", triples, np.array([2]), axis=1)
    apart = graph("Sub", graph("Squeeze", label, [1]), np.array([classes]))
    some = graph("NonZero", apart)  # other than the class of no object
    label = graph("Gather", label, some, axis=0)
    anchor = graph("Gather", anchor, some, axis=0)
    flat_index = graph("Add", graph("Mul", label, np.array([len(grid()[0])])), anchor)
    flat = graph("Reshape", final, [-1])
    score = graph("Gather", flat, graph("Reshape", flat_index, [-1]), axis=0)
    max_counts = graph("Concat", graph("Shape", score), np.array([20]), axis=0)
    _, best = graph.all("TopK", score, graph("ReduceMin", max_counts, axes=[0]), outputs=2)
    score = graph("Gather", score, best, axis=0)
    label = graph("Gather", label, best, axis=1)
    anchor = graph("Gather", anchor, best, axis=1)
    chosen_boxes = graph("Gather", boxes, graph("Reshape", anchor, [-1]), axis=1)
    label = graph("Cast", label, to=TensorProto.FLOAT)
    label = graph("Reshape", label, [1, -1, 1])
    score = graph("Reshape", score, [1, -1, 1])
    rows = graph("Squeeze", graph("Concat", label, score, chosen_boxes, axis=2), [0])
    count = graph("Cast", graph("Shape", graph("Reshape", rows, [-1, 6])), to=TensorProto.INT32)
    outputs = {"rows": rows, "count": graph.cut(count, 0, 1, 0)}
    return graph.model([outputs[role] for role in order])


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3, 4])
@pytest.mark.parametrize("order", [("rows", "count"), ("count", "rows")])
@pytest.mark.parametrize(("limited", "normalised"), [(False, True), (True, False), (True, True)])
def test_rows_of_paddledetection(classes, order, limited, normalised):
    model = paddle(classes, order, limited=limited, normalised=normalised)
    detections, contract = read(model)
    assert contract.family == "PaddleDetection"
    assert contract.layout == Layout.ROWS
    assert contract.class_count == classes
    assert contract.batch == 1
    assert contract.unknown_preprocessing == tuple(PREPROCESSING_STEPS)
    rows = outputs_of(model, order)["rows"]
    assert 0 < len(rows) <= 20
    assert_same(detections, (rows[:, 2:], rows[:, 1], rows[:, 0].astype(int)))
