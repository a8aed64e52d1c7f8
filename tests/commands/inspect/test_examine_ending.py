"""Layout and cut, and the reasons given for them."""

import colour_model
import pytest
import query_model
from head_graphs import model_of
from onnx import helper

from detcli.commands.inspect.examine import FedInput, TensorInfo, describe
from detcli.core.values import BoxFormat
from detcli.model.contract import Layout, ScoreForm
from detcli.model.editing import infer_shapes
from detcli.model.inputs import Role
from detcli.model.recognise import read_graph


def described(model, box_format=None):
    model = infer_shapes(model)
    return describe(model, read_graph(model, "colours", box_format), box_format)


@pytest.mark.parametrize(("tail", "keep"), [("ultralytics", 16), ("authors", 5)])
def test_an_end_to_end_graph_is_cut_at_the_head(tail, keep):
    model = colour_model.build(tail, keep=keep)
    found = described(model)
    assert found.layout is Layout.END_TO_END
    assert found.head == TensorInfo("head", "float32", (1, 7, 64))
    assert found.cut.tensor == "head"
    assert found.cut.kept == len(colour_model.build("body").graph.node)
    assert found.cut.kept + sum(found.cut.dropped.values()) == len(model.graph.node)
    assert found.cut.dropped["TopK"] == 2
    assert found.cut.most_detections == keep
    assert "first_value and second_value (TopK)" in found.layout_reason


def test_top_k_nodes_have_their_names():
    model = colour_model.build("authors")
    for node in model.graph.node:
        node.name = f"/{node.output[0]}"
    assert "/first_value and /second_value" in described(model).layout_reason


def test_the_limit_of_a_graph_whose_output_is_dynamic_comes_from_its_nodes():
    model = colour_model.build("authors", keep=5)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "rows"
    assert described(model).cut.most_detections == 5
    keep = next(tensor for tensor in model.graph.initializer if tensor.name == "keep")
    keep.name = "asked"
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
    found = described(colour_model.build(tail))
    assert (found.layout, found.cut, found.head.shape) == (layout, None, shape)
    assert says in found.layout_reason


def test_metadata_can_be_the_reason_for_one_to_many():
    found = described(colour_model.build(metadata={"end2end": "False"}))
    assert found.layout is Layout.ONE_TO_MANY
    assert "its metadata says it is not end-to-end" in found.layout_reason


def test_the_box_format_has_its_reason():
    for model, asked, says in (
        (colour_model.build("body"), None, "(Sub, Add): two corners"),
        (colour_model.build("one-to-many"), None, "centre and size"),
        (colour_model.build("body"), BoxFormat.CXCYWH, "--box-format"),
        (model_of("NMS, [1, K, 6]", 3)[0], None, "corners of what"),
        (model_of("NMS, centres", 3)[0], None, "centre and size of what"),
    ):
        assert says in described(model, asked).box_format_reason


def test_a_dynamic_graph_has_unknown_sizes():
    found = described(colour_model.build("body", size=None, batch=None, metadata={"stride": "16"}))
    assert (found.stride, found.stride_origin) == (16, "the model's metadata")
    assert found.head.shape[1] == 7
    assert (found.batch, found.input_size, found.default_size) == (None, None, (640, 640))
    assert found.anchor_count is None


def test_queries_without_a_selection_are_not_cut():
    found = described(query_model.build())
    assert (found.family, found.layout, found.cut) == ("RT-DETR", Layout.PAIR, None)
    assert found.head.shape == (1, 64, 7)
    boxes, scores = found.heads
    assert boxes == TensorInfo("cxcywh", "float32", (1, 64, 4))
    assert scores == TensorInfo("logits", "float32", (1, 64, 3))
    assert found.box_format_reason == "a sigmoid of shifted references: centre and size"
    assert (found.box_unit, found.score_form) == ("fractions", ScoreForm.LOGITS)
    assert (found.one_class, found.needs_nms, found.other_inputs) == (False, False, ())


def test_a_softmax_leaves_out_no_object():
    found = described(query_model.build(no_object=True))
    assert (found.family, found.score_form, found.one_class) == ("DETR", ScoreForm.FINAL, True)
    assert "no object, which is left out" in found.score_reason


def test_a_deploy_graph_is_cut_before_its_selection_and_fed():
    found = described(query_model.build("deploy", keep=5))
    assert [tensor.name for tensor in found.heads] == ["corners", "logits"]
    assert found.cut.tensor == "corners"
    assert found.cut.dropped["TopK"] == 1
    assert found.cut.most_detections == 5
    assert found.other_inputs == (FedInput("orig_target_sizes", Role.WIDTH_HEIGHT),)
