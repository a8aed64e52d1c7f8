"""Graphs whose outputs have the shapes of a family's cells, but are something else."""

import onnx
import pytest
from cell_faces import YOLOV5_FACE_ANCHORS, yolov5_face
from cell_layers import SIZE, in_rows, layer
from graph_builder import Graph
from head_checks import file_of

from detcli.core.errors import ModelError

STRIDES = (8, 16, 32)


def family_of(model):
    """The family that a model is read as; None if it is refused."""
    try:
        return file_of(model).detector().family
    except ModelError:
        return None


def nanodet_of(classes=(3, 3, 3), bins=(32, 32, 32), finals=("Sigmoid", "Sigmoid", "Sigmoid")):
    """NanoDet's outputs, of which each scale may be of its own."""
    graph = Graph(size=SIZE)
    scores = []
    distances = []
    for stride, count, width, final in zip(STRIDES, classes, bins, finals, strict=True):
        scores.append(in_rows(graph, layer(graph, count, stride, final), count))
        distances.append(in_rows(graph, layer(graph, width, stride), width))
    return graph.model(scores + distances)


def test_cells_of_scales_that_are_alike_are_read():
    assert family_of(nanodet_of()) == "NanoDet"


def test_scales_with_different_numbers_of_classes_are_not_one_head():
    assert family_of(nanodet_of(classes=(3, 3, 5))) is None


def test_scales_whose_scores_are_made_in_different_ways_are_not_one_head():
    assert family_of(nanodet_of(finals=("Sigmoid", "Sigmoid", ""))) is None


@pytest.mark.parametrize("final", ["Relu", "Tanh", "Softmax"])
def test_what_is_no_sigmoid_of_a_layer_makes_no_scores_of_nanodet(final):
    assert family_of(nanodet_of(finals=(final,) * 3)) is None


def test_outputs_that_may_be_boxes_or_scores_are_asked_about():
    """With 32 classes and no sigmoid, distances and logits are alike."""
    model = nanodet_of(classes=(32, 32, 32), finals=("", "", ""))
    with pytest.raises(ModelError, match="two of its outputs may be the boxes"):
        file_of(model).detector()


def nanodet_plus_of(widths):
    """All scales in one output, whose channels come from layers of these widths."""
    graph = Graph(size=SIZE)
    maps = []
    for stride in (8, 16, 32, 64):
        scores = layer(graph, 3, stride, "Sigmoid")
        parts = [scores]
        for width in widths:
            parts.append(layer(graph, width, stride))
        maps.append(graph.flat(graph.concat(parts, axis=1), 35))
    return graph.model([graph.swapped(graph.concat(maps, axis=2))])


@pytest.mark.parametrize(
    ("widths", "family"), [((32,), "NanoDet-Plus"), ((16, 16), None), ((31, 1), None)]
)
def test_distances_are_of_one_layer(widths, family):
    assert family_of(nanodet_plus_of(widths)) == family


def ultraface_of(decode):
    """Faces whose boxes the graph decodes in some way."""
    size = (240, 320)
    graph = Graph(size=size)
    scores = []
    boxes = []
    for stride, anchors in ((8, 3), (16, 2), (32, 2), (64, 3)):
        scores.append(in_rows(graph, layer(graph, 2 * anchors, stride), 2))
        boxes.append(in_rows(graph, layer(graph, 4 * anchors, stride), 4))
    shares = graph("Softmax", graph.concat(scores, axis=1), axis=2)
    return graph.model([shares, decode(graph, graph.concat(boxes, axis=1))])


@pytest.mark.parametrize("operator", ["Abs", "Tanh", "Relu"])
def test_boxes_that_a_graph_decodes_in_no_known_way_are_not_those_of_a_family(operator):
    assert family_of(ultraface_of(lambda graph, boxes: graph(operator, boxes))) is None


def test_boxes_that_a_graph_decodes_around_cells_are_not_those_of_a_family_of_anchors():
    """A centre by a sigmoid and a size by an exponential: two outputs of another detector."""

    def decode(graph, boxes):
        centre = graph("Sigmoid", graph.cut(boxes, 0, 2, 2))
        size = graph("Exp", graph.cut(boxes, 2, 4, 2))
        return graph("Concat", centre, size, axis=2)

    assert family_of(ultraface_of(decode)) == "SSD"


def blazeface_of(point_widths):
    """Faces in one output [1, N, 17], whose landmarks come from layers of these widths."""
    graph = Graph(size=(128, 128))
    scales = []
    for stride, anchors in ((8, 2), (16, 6)):
        parts = [in_rows(graph, layer(graph, 4 * anchors, stride), 4)]
        for width in point_widths:
            parts.append(in_rows(graph, layer(graph, width * anchors, stride), width))
        parts.append(in_rows(graph, layer(graph, anchors, stride), 1))
        scales.append(graph.concat(parts, axis=2))
    return graph.model([graph.concat(scales, axis=1)])


@pytest.mark.parametrize(("point_widths", "family"), [((12,), "BlazeFace"), ((6, 6), None)])
def test_landmarks_are_of_one_layer(point_widths, family):
    assert family_of(blazeface_of(point_widths)) == family


@pytest.mark.parametrize(("class_bias", "family"), [(4.1, "YOLOv5-face"), (-4.1, None), (0, None)])
def test_a_yolov5_of_eleven_classes_is_not_one_of_faces(class_bias, family):
    """Its maps have 16 columns too; classes of several begin as rare ones."""
    graph = Graph(size=SIZE)
    outputs = yolov5_face(graph, 1, anchors_of_strides=YOLOV5_FACE_ANCHORS, class_bias=class_bias)
    assert family_of(graph.model(list(outputs.values()))) == family


@pytest.mark.parametrize("classes", [2, 80])
def test_a_yolov5_of_other_columns_is_not_one_of_faces(classes):
    graph = Graph(size=SIZE)
    outputs = yolov5_face(graph, classes, anchors_of_strides=YOLOV5_FACE_ANCHORS)
    assert family_of(graph.model(list(outputs.values()))) is None


def test_maps_of_a_yolov5_with_an_activation_are_not_those_of_faces():
    graph = Graph(size=SIZE)
    outputs = yolov5_face(graph, 1, anchors_of_strides=YOLOV5_FACE_ANCHORS)
    activated = [graph("Relu", output) for output in outputs.values()]
    assert family_of(graph.model(activated)) is None


def test_scales_with_each_others_shapes_are_refused_where_nodes_compute_the_shapes():
    graph = Graph(size=SIZE)
    outputs = {}
    for stride, output in yolov5_face(graph, 1, anchors_of_strides=YOLOV5_FACE_ANCHORS).items():
        outputs[stride] = graph("Reshape", output, graph("Shape", output))
    model = graph.model(list(outputs.values()))
    assert family_of(model) == "YOLOv5-face"
    first, second, _ = model.graph.output
    first_shape = onnx.TensorShapeProto.FromString(first.type.tensor_type.shape.SerializeToString())
    first.type.tensor_type.shape.CopyFrom(second.type.tensor_type.shape)
    second.type.tensor_type.shape.CopyFrom(first_shape)
    assert family_of(model) is None
