"""Graphs are recognised by their structure, not by their exporter or their names."""

import itertools
from dataclasses import replace

import colour_model
import numpy as np
import onnx
import pytest
from anchor_graphs import distances, scores
from graph_builder import Graph
from graph_edits import (
    add_constants,
    constant_of,
    insert_nodes,
    position_of_producer,
    redirect_readers,
)
from head_checks import renamed
from head_graphs import model_of, suppressed
from onnx import TensorProto, helper
from text_model import DECODE, contract_of, parsed

from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.data.coco import COCO, COCO_IDS
from detcli.model.contract import Layout
from detcli.model.editing import cut, infer_shapes
from detcli.model.heads import ChannelRange, Head, Unrecognised
from detcli.model.recognise import _class_count, read_graph

EXPECTED = {
    "body": (Layout.BODY, "head", False, BoxFormat.XYXY),
    "transposed": (Layout.TRANSPOSED_BODY, "rows", True, BoxFormat.XYXY),
    "ultralytics": (Layout.END_TO_END, "head", False, BoxFormat.XYXY),
    "authors": (Layout.END_TO_END, "head", False, BoxFormat.XYXY),
    "one-to-many": (Layout.ONE_TO_MANY, "head", False, BoxFormat.CXCYWH),
}


def after(model, tensor, operators):
    """The model with a chain of operators between a tensor and its readers."""
    position = position_of_producer(model.graph, tensor)
    nodes = []
    last = tensor
    for step, (operator, arguments, attributes) in enumerate(operators, 1):
        name = f"{tensor}_{step}"
        nodes.append(helper.make_node(operator, [last] + arguments, [name], **attributes))
        last = name
    redirect_readers(model.graph.node[position + 1 :], tensor, last)
    insert_nodes(model.graph, position + 1, nodes)
    add_constants(model.graph, {"scale": np.float32(0.1), "zero_point": np.uint8(0)})
    return model


@pytest.mark.slow
@pytest.mark.parametrize("tail", colour_model.TAILS)
@pytest.mark.parametrize("size", [64, None])
@pytest.mark.parametrize("opset", [13, 17, 18])
def test_every_tail_is_recognised(tail, size, opset):
    for batch, dtype in itertools.product([1, 2, None], ["float32", "float16"]):
        options = {"batch": batch, "dtype": np.dtype(dtype).type, "opset": opset}
        contract = contract_of(colour_model.build(tail, size=size, **options))
        layout, head, anchors_first, box_format = EXPECTED[tail]
        assert contract.layout == layout
        assert contract.head == head
        assert contract.anchors_first == anchors_first
        assert contract.box_format == box_format
        assert contract.class_count == 3
        assert contract.anchor_count == (64 if size else None)
        assert contract.input_name == "images"
        assert contract.input_dtype == dtype
        assert contract.batch == batch
        assert contract.input_size == ((64, 64) if size else None)
        assert contract.names == ("class_0", "class_1", "class_2")
        assert contract.names_origin == "numbers, since the model names none"
        assert contract.warnings == ()


@pytest.mark.parametrize("tail", colour_model.TAILS)
@pytest.mark.parametrize("size", [64, None])
def test_names_of_nodes_and_tensors_do_not_matter(tail, size):
    contract = contract_of(colour_model.build(tail, size=size))
    for _ in range(4):  # new names each
        model, new = renamed(colour_model.build(tail, size=size))
        assert contract_of(model) == replace(
            contract, head=new[contract.head], input_name=new[contract.input_name]
        )


def with_nodes(model, output, nodes, **constants):
    """A model with nodes in the text form of ONNX in place of the one that makes a tensor."""
    position = position_of_producer(model.graph, output)
    new_nodes = onnx.parser.parse_graph(f"nodes () => () {{ {nodes} }}").node
    del model.graph.node[position]
    insert_nodes(model.graph, position, new_nodes)
    add_constants(model.graph, constants)
    onnx.checker.check_model(model, full_check=True)
    return model


CASTS = [("Cast", [], {"to": TensorProto.DOUBLE}), ("Cast", [], {"to": TensorProto.FLOAT})]
QUANTISED = [
    ("QuantizeLinear", ["scale", "zero_point"], {}),
    ("DequantizeLinear", ["scale", "zero_point"], {}),
]


@pytest.mark.parametrize("tail", ["ultralytics", "authors"])
@pytest.mark.parametrize(
    "operators",
    [[("Identity", [], {})], CASTS, QUANTISED],
    ids=["identity", "casts", "quantisation"],
)
@pytest.mark.parametrize("tensor", ["low", "cells_boxes", "boxes", "rows", "class_scores", "best"])
def test_casts_and_quantisation_are_seen_through(tail, operators, tensor):
    contract = contract_of(colour_model.build(tail))
    assert contract_of(after(colour_model.build(tail), tensor, operators)) == contract


def test_casts_after_the_head_are_seen_through():
    contract = contract_of(after(colour_model.build("authors"), "head", CASTS))
    assert contract == replace(contract_of(colour_model.build("authors")), head=contract.head)


def test_a_cut_graph_is_recognised_as_a_body():
    contract = contract_of(colour_model.build("authors"))
    body = cut(infer_shapes(colour_model.build("authors")), contract.head)
    assert read_graph(body, "cut").contract == replace(contract, layout=Layout.BODY)


@pytest.mark.parametrize("opset", [17, 18])  # axes are an attribute, then an input
def test_an_end_to_end_head_may_be_anchors_first(opset):
    turned = "Transpose <perm = [0, 2, 1]>"
    nodes = f"b = {turned} (boxes) s = {turned} (scores) rows = Concat <axis = -1> (b, s)"
    contract = contract_of(with_nodes(colour_model.build("authors", opset=opset), "rows", nodes))
    expected = contract_of(colour_model.build("authors"))
    assert contract == replace(expected, head="rows", anchors_first=True)


@pytest.mark.parametrize("size", [64, None])
def test_boxes_and_scores_may_be_sliced_instead_of_split(size):
    nodes = """
        class_boxes = Slice (rows, none, four, last_axis)
        class_scores = Slice (rows, four, seven, last_axis)
    """
    ends = {"none": [0], "four": [4], "seven": [7], "last_axis": [2]}
    model = with_nodes(colour_model.build("authors", size=size), "class_boxes", nodes, **ends)
    assert contract_of(model) == contract_of(colour_model.build("authors", size=size))


@pytest.mark.parametrize("as_node", [False, True], ids=["initializer", "node"])
def test_classes_are_counted_in_the_split_if_shapes_are_unknown(as_node):
    model = colour_model.build("authors")
    if as_node:
        sizes = constant_of(model.graph, "sizes")
        model.graph.node.insert(0, helper.make_node("Constant", [], ["sizes"], value=sizes))
        model.graph.initializer.remove(sizes)
    contract = read_graph(model, "without shapes").contract
    assert contract == replace(contract_of(model), anchor_count=None)
    assert contract.class_count == 3


def named(*names, warned=None):
    classes = "1 class" if warned == 1 else f"{warned} classes"
    warning = f"the metadata names {classes}, the graph has 3"
    fields = {"names": names, "names_origin": "the model's metadata"}
    return fields | ({"warnings": (warning,)} if warned else {})


def sized(height, width, stride=32):
    assumed = {} if (height, width) == (640, 640) else {"assumed_preprocessing": ()}
    return {"default_size": (height, width), "stride": stride} | assumed


SEVERAL = {"layout": Layout.ONE_TO_MANY, "nms": 0.7}


@pytest.mark.parametrize(
    ("tail", "metadata", "changed"),
    [
        ("body", {"end2end": "False"}, SEVERAL),
        ("transposed", {"end2end": "False"}, SEVERAL),
        ("one-to-many", {"end2end": "False"}, SEVERAL),
        ("one-to-many", {"end2end": "True"}, {"layout": Layout.BODY, "nms": None}),
        ("body", {"end2end": "True"}, {}),
        ("authors", {"end2end": "False"}, {}),
        ("authors", {"imgsz": "[320, 416]", "stride": "16"}, sized(320, 416, 16)),
        ("authors", {"imgsz": "(320, 416)", "stride": "[64]"}, sized(320, 416, 64)),
        ("authors", {"imgsz": "320"}, sized(320, 320)),
        ("authors", {"imgsz": "rubbish", "stride": "-1"}, sized(640, 640)),
        ("authors", {"imgsz": "", "stride": "0"}, sized(640, 640)),
        ("authors", {"imgsz": "[1000000000, 1000000000]", "stride": "1000000000"}, {}),
        ("authors", {"names": "{0: 'red', 1: 'green', 2: 'blue'}"}, named("red", "green", "blue")),
        ("authors", {"names": "{0: 'red'}"}, named("red", "class_1", "class_2", warned=1)),
        ("authors", {"names": "['r', 'g', 'b', 'w']"}, named("r", "g", "b", warned=4)),
    ],
)
def test_the_metadata_changes_what_it_names_and_nothing_else(tail, metadata, changed):
    plain = contract_of(colour_model.build(tail, size=None))
    assert plain.default_size == (640, 640)
    assert plain.stride == 32
    contract = contract_of(colour_model.build(tail, size=None, metadata=metadata))
    assert contract == replace(plain, **changed)


NAMED = {"names": str(dict(enumerate(colour_model.NAMES)))}


@pytest.mark.parametrize(
    ("tail", "entries", "recommended", "warning"),
    [
        ("body", {}, (None, (), None), None),
        ("body", {"detcli.conf": "0.4"}, (0.4, (), None), None),
        ("body", {"detcli.conf": "0.4, blue=0.5,1=0"}, (0.4, ((2, 0.5), (1, 0)), None), None),
        ("body", {"detcli.conf": "red=0.3"}, (None, ((0, 0.3),), None), None),
        ("one-to-many", {"detcli.nms": "0.7"}, (None, (), 0.7), None),
        ("one-to-many", {}, (None, (), 0.7), None),
        ("one-to-many", {"detcli.nms": "0"}, (None, (), 0.7), "its metadata detcli.nms is '0'"),
        ("body", {"detcli.nms": "0.7"}, (None, (), None), "one box for each object"),
    ],
)
def test_confidence_and_iou_come_from_the_metadata(tail, entries, recommended, warning):
    contract = contract_of(colour_model.build(tail, metadata=NAMED | entries))
    conf, class_conf, nms = recommended
    assert contract.conf == conf
    assert contract.class_conf == class_conf
    assert contract.nms == nms
    assert len(contract.warnings) == (warning is not None)
    assert (warning or "") in "".join(contract.warnings)


@pytest.mark.parametrize("key", ["detcli.conf", "detcli.nms", "detcli.tile"])
@pytest.mark.parametrize(
    "text", ["", "high", "nan", "-0.1", "1.5", "40%", "[0.4]", "9" * 5000, "red=2", "0.4,cat=0.3"]
)
def test_what_is_no_recommendation_is_a_warning(key, text):
    contract = contract_of(colour_model.build(metadata=NAMED | {key: text}))
    assert contract.conf is None
    assert contract.class_conf == ()
    assert contract.nms is None
    assert contract.tile is None
    [warning] = contract.warnings
    assert warning.startswith(f"its metadata {key} is '")
    assert len(warning) < 200


def names_by_coco_id():
    """The name of each of 91 class ids, of which COCO uses 80."""
    names = [f"class_{number}" for number in range(91)]
    for coco_id, coco_name in zip(COCO_IDS, COCO, strict=True):
        names[coco_id] = coco_name
    return names


BY_NUMBER = names_by_coco_id()


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (80, COCO),
        (91, tuple(BY_NUMBER)),
        (90, tuple(["person"] + BY_NUMBER[2:12] + ["class_11"] + BY_NUMBER[13:26] + ["class_25"])),
        (79, tuple(f"class_{number}" for number in range(79))),
        (1, ("class_0",)),
    ],
)
@pytest.mark.parametrize("metadata", [{}, {"names": "rubbish"}])
def test_unnamed_classes_get_the_names_of_coco(classes, names, metadata):
    nodes = f"{DECODE} head = Concat<axis = 1>(boxes, scores)"
    outputs = f"float[1, {classes + 4}, 6144] head"
    contract = contract_of(parsed(nodes, outputs, classes=classes, **metadata))
    assert contract.class_count == classes
    assert contract.names[: len(names)] == names
    assert len(contract.names) == classes
    assert ("COCO" in contract.names_origin) == (classes in {80, 90, 91})


def test_a_head_without_a_join_is_recognised_by_the_number_of_names():
    names = str(["red", "green", "blue"])
    nodes = f"{DECODE} joined = Concat<axis = 1>(boxes, scores) head = Sigmoid(joined)"
    model = parsed(nodes, "float[1, 7, 6144] head", names=names)
    contract = contract_of(model, BoxFormat.CXCYWH)
    assert contract.anchors_first is False
    assert contract.class_count == 3
    del model.metadata_props[:]
    with pytest.raises(ModelError, match="its output is not a detection head"):
        contract_of(model, BoxFormat.CXCYWH)


def test_weights_listed_as_inputs_are_not_inputs():
    model = colour_model.build("authors")
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    assert contract_of(model) == contract_of(colour_model.build("authors"))


SIDES = """
    x1 = Slice(low, zero, one, one)
    y1 = Slice(low, one, two, one)
    x2 = Slice(high, zero, one, one)
    y2 = Slice(high, one, two, one)
    two_f = Cast<to = 1>(two)
    half_w = Div(x2, two_f)
    half_h = Div(y2, two_f)
"""
FOUR_WAYS = {
    "corners": (
        """left = Sub(x1, half_w) top = Sub(y1, half_h)
        right = Add(x1, half_w) bottom = Add(y1, half_h)
        sides = Concat<axis = 1>(left, top, right, bottom)""",
        BoxFormat.XYXY,
    ),
    "centres": (
        """across = Add(x1, x2) down = Add(y1, y2) cx = Div(across, two_f) cy = Div(down, two_f)
        w = Sub(x2, x1) h = Sub(y2, y1)
        sides = Concat<axis = 1>(cx, cy, w, h)""",
        BoxFormat.CXCYWH,
    ),
}


@pytest.mark.parametrize(("join", "expected"), FOUR_WAYS.values(), ids=FOUR_WAYS)
def test_four_sides_may_be_joined_at_once_before_the_scores_are(join, expected):
    nodes = f"{DECODE} {SIDES} {join} head = Concat<axis = 1>(sides, scores)"
    assert contract_of(parsed(nodes, "float[1, 7, 6144] head")).box_format is expected


@pytest.mark.parametrize("tail", colour_model.TAILS)
@pytest.mark.parametrize("box_format", BoxFormat)
def test_the_callers_box_format_changes_nothing_else(tail, box_format):
    model = colour_model.build(tail)
    contract = contract_of(model)
    warning = f"its nodes show boxes in {contract.box_format}, not {box_format} as asked for"
    warnings = () if box_format is contract.box_format else (warning,)
    assert contract_of(model, box_format) == replace(
        contract, box_format=box_format, warnings=warnings
    )


def test_classes_are_counted_where_scores_are_split_off_if_shapes_are_unknown():
    nodes = f"""{DECODE} both = Concat<axis = 1>(boxes, scores)
        rest, logits = Split<axis = 1>(both, four_and_two)
        chances = Sigmoid(logits)
        head = Concat<axis = 1>(boxes, chances)"""
    model = parsed(nodes, "float[b, channels, anchors] head", classes=2)
    assert read_graph(model, "without shapes").contract.class_count == 2


@pytest.mark.parametrize("ending", ["NMS, [K, 7]", "NMS, [1, K, 6]", "NMS, four outputs"])
def test_a_graph_that_lists_all_detections_takes_one_image_at_a_time(ending):
    model, _ = model_of(ending, 3, batch="pictures")
    assert contract_of(model).batch == 1


def test_names_of_the_metadata_count_the_classes_of_rows_that_do_not_show_them():
    graph = Graph()
    boxes, score, label, _ = suppressed(graph, 2)
    outputs = [boxes, score, graph("Mul", label, np.int64(1))]
    contract = contract_of(graph.model(outputs, {"names": "['a', 'b']"}))
    assert contract.layout == Layout.ROWS
    assert contract.class_count == 2
    assert contract.counts_classes is False
    assert contract.with_names(("a", "b", "c"), "names.txt").class_count == 3
    counted = contract_of(model_of("NMS, [1, K, 6]", 3)[0])
    assert counted.class_count == 3
    assert counted.counts_classes is True


def test_a_graph_that_lists_the_detections_of_several_images_is_refused():
    graph = Graph(batch=4)
    boxes = graph.swapped(distances(graph, centres=False))
    final = scores(graph, 3)
    triples = graph("NonMaxSuppression", boxes, final, np.array([20]))
    selected_boxes = graph("GatherND", boxes, graph("Gather", triples, np.array([0, 2]), axis=1))
    score = graph("GatherND", final, triples)
    label = graph("Gather", triples, np.array(1), axis=1)
    with pytest.raises(ModelError, match="takes 4 images at once"):
        contract_of(graph.model([selected_boxes, score, label]))


@pytest.mark.parametrize(
    ("count", "dropped", "classes"),
    [
        (1, False, 1),
        (2, True, 1),
        (100_000, False, 100_000),
        (100_001, True, 100_000),
    ],
)
def test_a_model_may_have_1_to_100_000_classes(count, dropped, classes):
    assert _class_count(head_of_classes(count), None, drops_no_object=dropped) == classes


@pytest.mark.parametrize(
    ("count", "dropped"), [(0, False), (1, True), (100_001, False), (100_002, True), (None, False)]
)
def test_another_number_of_classes_is_unclear(count, dropped):
    with pytest.raises(Unrecognised, match="the number of its classes is unclear"):
        _class_count(head_of_classes(count), None, drops_no_object=dropped)


def head_of_classes(count):
    return Head(
        Layout.BODY,
        (ChannelRange("head", 0, 4),),
        (ChannelRange("head", 4),),
        class_count=count,
        anchors_first=False,
        decoded=None,
    )
