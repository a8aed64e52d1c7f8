"""How detectors are described: what detcli reads, and what shows it."""

import colour_model
import pytest
import query_model
from cell_graphs import yolox
from graph_builder import STRIDES, Graph
from graph_edits import constant_of, names_of
from head_graphs import in_one, model_of
from onnx import helper

from detcli.commands.inspect.detector import FedInput, TensorInfo, describe
from detcli.config.values import BoxFormat
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import infer_shapes
from detcli.model.inputs import Role
from detcli.model.recognise import read_graph


def described(model, box_format=None, *, boxes_only=False):
    model = infer_shapes(model)
    reading = read_graph(model, "colours", box_format, boxes_only=boxes_only)
    return describe(model, reading, box_format)


@pytest.mark.parametrize(("tail", "keep"), [("ultralytics", 16), ("authors", 5)])
def test_an_end_to_end_graph_is_cut_at_the_head(tail, keep):
    model = colour_model.build(tail, keep=keep)
    detector = described(model)
    assert detector.layout is Layout.END_TO_END
    assert detector.head == TensorInfo("head", "float32", (1, 7, 64))
    assert detector.cut.tensor == "head"
    assert detector.cut.kept == len(colour_model.build("body").graph.node)
    assert detector.cut.kept + sum(detector.cut.dropped.values()) == len(model.graph.node)
    assert detector.cut.dropped["TopK"] == 2
    assert detector.cut.most_detections == keep
    assert "first_value and second_value (TopK)" in detector.layout_reason


def test_top_k_nodes_have_their_names():
    model = colour_model.build("authors")
    for node in model.graph.node:
        node.name = f"/{node.output[0]}"
    assert "/first_value and /second_value" in described(model).layout_reason


def test_the_limit_of_a_graph_whose_output_is_dynamic_comes_from_its_nodes():
    model = colour_model.build("authors", keep=5)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    assert described(model).cut.most_detections == 5
    constant_of(model.graph, "keep").name = "asked"
    model.graph.node.insert(0, helper.make_node("Abs", ["asked"], ["keep"]))
    assert described(model).cut.most_detections is None  # it is computed


@pytest.mark.parametrize(
    ("tail", "layout", "shape", "says"),
    [
        ("body", Layout.BODY, (1, 7, 64), "joins four box rows"),
        ("transposed", Layout.TRANSPOSED_BODY, (1, 64, 7), "anchors first"),
        ("one-to-many", Layout.ONE_TO_MANY, (1, 7, 64), "several boxes for each object"),
    ],
)
def test_other_layouts_are_not_cut(tail, layout, shape, says):
    detector = described(colour_model.build(tail))
    assert detector.layout == layout
    assert detector.cut is None
    assert detector.head.shape == shape
    assert says in detector.layout_reason


def test_metadata_can_be_the_reason_for_one_to_many():
    detector = described(colour_model.build(metadata={"end2end": "False"}))
    assert detector.layout is Layout.ONE_TO_MANY
    assert "its metadata says it is not end-to-end" in detector.layout_reason
    assert detector.needs_nms
    assert detector.one_class  # its suppression takes the best of each anchor


def test_the_box_format_has_its_reason():
    for model, settings, says in (
        (colour_model.build("body"), None, "(Sub, Add): two corners"),
        (colour_model.build("one-to-many"), None, "centre and size"),
        (colour_model.build("body"), BoxFormat.CXCYWH, "--box-format"),
        (model_of("NMS, [1, K, 6]", 3)[0], None, "corners of what"),
        (model_of("NMS, centres", 3)[0], None, "centre and size of what"),
    ):
        assert says in described(model, settings).box_format_reason


@pytest.mark.parametrize("landmarks", [False, True])
def test_landmarks_that_are_left_out_are_mentioned_and_not_warned_of(landmarks):
    """Of SCRFD: scores, distances and landmarks of two anchors a cell, in rows."""
    graph = Graph()
    widths = [1, 4]
    if landmarks:
        widths.append(10)
    rows = []
    for width in widths:
        for stride in STRIDES:
            maps = graph.convolution(2 * width, stride)
            cells = graph("Transpose", maps, perm=[0, 2, 3, 1])
            rows.append(graph("Reshape", cells, [1, -1, width]))
    model = graph.model(rows)
    assert ("; its landmarks are left out" in described(model).layout_reason) is landmarks
    assert read_graph(model, "scrfd").contract.warnings == ()


def test_an_objectness_apart_from_boxes_and_classes_is_mentioned():
    graph = Graph()
    detector = described(graph.model(list(yolox(graph, 3).values())))
    assert detector.layout is Layout.SCALES
    assert detector.score_reason == "objectness times the class's score"


def test_masks_or_keypoints_that_are_left_out_are_mentioned():
    graph = Graph()
    model = graph.model(list(in_one(graph, 3, extra_columns=32).values()))
    reason = described(model, boxes_only=True).layout_reason
    assert reason.endswith("; its masks or keypoints are left out")


def test_a_dynamic_graph_has_unknown_sizes():
    detector = described(
        colour_model.build("body", size=None, batch=None, metadata={"stride": "16"})
    )
    assert detector.stride == 16
    assert detector.stride_origin == "the model's metadata"
    assert detector.head.shape[1] == 7
    assert detector.batch is None
    assert detector.input_size is None
    assert detector.default_size == (640, 640)
    assert detector.anchor_count is None


def test_queries_without_a_selection_are_not_cut():
    detector = described(query_model.build())
    assert detector.family == "RT-DETR"
    assert detector.layout == Layout.PAIR
    assert detector.cut is None
    assert detector.head.shape == (1, 64, 7)
    boxes, scores = detector.heads
    assert boxes == TensorInfo("cxcywh", "float32", (1, 64, 4))
    assert scores == TensorInfo("logits", "float32", (1, 64, 3))
    assert detector.box_format_reason == "a sigmoid of shifted references: centre and size"
    assert detector.box_unit == "fractions"
    assert detector.score_form == ScoreForm.LOGITS
    assert detector.one_class is False
    assert detector.needs_nms is False
    assert detector.other_inputs == ()


def test_a_softmax_leaves_out_no_object():
    detector = described(query_model.build(no_object=True))
    assert detector.family == "DETR"
    assert detector.score_form == ScoreForm.FINAL
    assert detector.one_class is True
    assert "no object, which is left out" in detector.score_reason


def test_a_deploy_graph_is_cut_before_its_selection_and_fed():
    detector = described(query_model.build("deploy", keep=5))
    assert names_of(detector.heads) == ["corners", "logits"]
    assert detector.cut.tensor == "corners"
    assert detector.cut.dropped["TopK"] == 1
    assert detector.cut.most_detections == 5
    assert detector.other_inputs == (FedInput("orig_target_sizes", Role.WIDTH_HEIGHT),)
