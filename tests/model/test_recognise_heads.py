"""Heads of all families, run as detcli adapts them, against their own postprocessing."""

from dataclasses import replace

import onnx
import optional
import pytest
from graph_builder import Graph
from graph_edits import names_of, node_of, rename_tensor
from head_checks import (
    assert_same,
    expected,
    outputs_of,
    read,
    renamed,
    shuffled,
    with_constant_nodes,
    with_copies_of_outputs,
    with_fed_constants,
    with_negative_sizes,
    with_softmax_arithmetic,
)
from head_graphs import ENDINGS, model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from thinning import RUNS_WHOLE, thin

from detcli.core.errors import ModelError
from detcli.model.contract import Layout
from detcli.model.editing import infer_shapes
from detcli.model.families import FAMILIES
from detcli.model.graph import shape

pytestmark = pytest.mark.slow

BY_NAME = {family.name: family for family in FAMILIES}


def class_counts():
    """Each head with several numbers of classes."""
    cases = []
    for name in ENDINGS:
        cases += [(name, 1), (name, 3), (name, 4)]
    # With 64 classes, maps of scores have the shape of maps of boxes.
    cases += [("RKNN", 64), ("RKNN with sums", 64), ("YOLOv8", 64)]
    return cases


CLASSES = class_counts()


@pytest.mark.parametrize(
    ("name", "classes"), thin("heads, by class count", CLASSES, len(CLASSES) // 2)
)
def test_a_head_is_read_as_its_family_reads_it(name, classes):
    model, roles = model_of(name, classes)
    detections, contract = read(model)
    assert contract.family == ENDINGS[name].family
    assert contract.clips == BY_NAME[contract.family].clips
    if contract.layout is not Layout.ROWS:
        assert contract.class_count == classes
    assert_same(detections, expected(name, outputs_of(model, roles)))


def by_onnxslim(model):
    return optional.require("onnxslim").slim(model)


def by_onnxsim(model):
    return optional.require("onnxsim").simplify(model)[0]


ONE_OF_EACH_FAMILY = {ending.family: name for name, ending in ENDINGS.items()}.values()

CHANGES = [
    (by_onnxslim, ENDINGS),
    (by_onnxsim, ONE_OF_EACH_FAMILY),
    (shuffled, ENDINGS),
    (with_constant_nodes, ENDINGS),
    (with_copies_of_outputs, ENDINGS),
    (with_fed_constants, ENDINGS),
    (with_softmax_arithmetic, ENDINGS),
]


def changed_heads():
    """Heads, and what changes their file and nothing that they find."""
    cases = []
    for change, names in CHANGES:
        for name in names:
            cases.append((name, change))
    return cases


@pytest.mark.parametrize(("name", "slim"), thin("changed files of heads", changed_heads(), 20))
def test_a_slimmed_file_is_read_as_it_was(name, slim):
    model, roles = model_of(name, 3)
    expected_detections = expected(name, outputs_of(model, roles))
    contract = read(model)[1]
    detections, slimmed = read(slim(model))
    unchanged = {"head": slimmed.head, "heads": slimmed.heads, "layout": slimmed.layout}
    assert slimmed == replace(contract, **unchanged)
    assert_same(detections, expected_detections)


@pytest.mark.parametrize("name", ["YOLO-NAS", "YOLOv5 cut apart", "SSD", "DETR", "RT-DETR"])
def test_sizes_of_minus_one_are_any_sizes(name):
    model, roles = model_of(name, 3)
    expected_detections = expected(name, outputs_of(model, roles))
    detections, contract = read(with_negative_sizes(model))
    assert contract.family == ENDINGS[name].family
    assert contract.batch is None
    assert_same(detections, expected_detections)


@pytest.mark.parametrize("name", ["YOLOv8", "YOLOv5", "YOLOX", "SSD", "DETR", "DeepStream"])
def test_outputs_without_a_batch_are_read_as_those_with_one(name):
    """[N, 4 + C], or [N, 4] and [N, C]."""
    model, roles = model_of(name, 3)
    expected_detections = expected(name, outputs_of(model, roles))
    contract = read(model)[1]
    axis = helper.make_tensor("first", TensorProto.INT64, [1], [0])
    model.graph.initializer.append(axis)
    for output in model.graph.output:
        squeezed = f"{output.name}/single"
        model.graph.node.add(op_type="Squeeze", input=[output.name, "first"], output=[squeezed])
        dims = shape(output)[1:]
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(squeezed, kind, dims))
    detections, single = read(model)
    assert single.family == contract.family
    assert single.layout == contract.layout
    assert_same(detections, expected_detections)


def test_boxes_behind_more_nodes_than_the_scores_are_still_the_boxes():
    """Scores of four classes, before and behind the sigmoid, look like boxes and scores too."""
    model, roles = model_of("D-FINE deployed", 4)
    expected_detections = expected("D-FINE deployed", outputs_of(model, roles))
    detections, contract = read(decorated(model, roles.index("boxes"), ["transposes"] * 2))
    assert contract.family == "D-FINE"
    assert_same(detections, expected_detections)


def rearranged(model, roles, order):
    """Put the outputs of a model in another order; returns what they hold."""
    values = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.output]
    del model.graph.output[:]
    roles_in_order = []
    for number in order:
        model.graph.output.append(values[number])
        roles_in_order.append(roles[number])
    return roles_in_order


def decorated(model, output, steps):
    """A model with nodes behind one of its outputs that change nothing."""
    value = model.graph.output[output]
    rank = len(shape(value))
    dtype = value.type.tensor_type.elem_type
    last = f"inner{output}"
    final = value.name
    rename_tensor(model.graph.node, final, last)
    for number, step in enumerate(steps):
        name = f"step{output}_{number}"
        nodes = {
            "identity": [("Identity", [], {})],
            "casts": [("Cast", [], {"to": TensorProto.DOUBLE}), ("Cast", [], {"to": dtype})],
            "transposes": [("Transpose", [], {"perm": list(range(rank))[::-1]})] * 2,
            "reshape": [("Unsqueeze", ["zero"], {}), ("Squeeze", ["zero"], {})],
        }[step]
        for position, (operator, extra_inputs, attributes) in enumerate(nodes):  # type: ignore[arg-type]
            node_output = f"{name}_{position}"
            model.graph.node.append(
                helper.make_node(operator, [last] + extra_inputs, [node_output], **attributes)
            )
            last = node_output
    model.graph.node.append(helper.make_node("Identity", [last], [final]))
    if "zero" not in names_of(model.graph.initializer):
        model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    return model


@pytest.mark.parametrize("name", thin("heads quantised behind a cut", ENDINGS, 17))
def test_what_is_quantised_behind_a_cut_is_read_as_it_was(name):
    """Quantising exporters round each part that a Split or Slice cuts out."""
    model, roles = model_of(name, 3)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for number, cut in enumerate(node.output):
            if node.op_type in {"Slice", "Split"}:
                node.output[number] = f"{cut}_before"
                behind = helper.make_node("Identity", [f"{cut}_before"], [cut])
                nodes.append(behind)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    detections, contract = read(model)
    assert contract.family == ENDINGS[name].family
    assert_same(detections, expected(name, outputs_of(model, roles)))


@pytest.mark.parametrize("name", ["YOLOv3", "YOLOv5", "YOLOv7"])
def test_parts_of_a_sequence_are_read_as_parts_of_a_split(name):
    """As PyTorch's exporter writes a split, unless it optimises."""
    model, roles = model_of(name, 3)
    value_info = list(infer_shapes(model).graph.value_info)
    nodes = []
    for node in model.graph.node:
        if node.op_type != "Split":
            nodes.append(node)
            continue
        sequence = f"{node.output[0]}_sequence"
        axis = {"axis": node.attribute[0].i}
        nodes.append(helper.make_node("SplitToSequence", node.input, [sequence], **axis))
        for number, part in enumerate(node.output):
            position = helper.make_tensor(f"{part}_place", TensorProto.INT64, [], [number])
            model.graph.initializer.append(position)
            nodes.append(helper.make_node("SequenceAt", [sequence, position.name], [part]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.value_info.extend(value_info)
    detections, contract = read(model)
    assert contract.family == "YOLOv5"
    assert contract.class_count == 3
    assert_same(detections, expected(name, outputs_of(model, roles)))


def test_scores_of_anchors_that_nothing_explains_are_refused():
    """They may begin with an objectness or not, which would shift all classes."""
    model, _ = model_of("YOLOv5", 3)
    for node in list(model.graph.node):
        if node.op_type == "Concat" and len(node.input) == 3 and node.attribute[0].i == 4:
            position = list(model.graph.node).index(node)
            rest = node.input[2]
            node.input[2] = f"{rest}_unknown"
            model.graph.node.insert(position, helper.make_node("Softsign", [rest], [node.input[2]]))
    with pytest.raises(ModelError, match="whether its scores begin with an objectness"):
        read(model)


def test_what_each_layer_gives_for_each_query_is_no_mask():
    graph = Graph()
    outputs = ENDINGS["RT-DETR"].build(graph, 3)
    hidden = graph("Unsqueeze", graph.queries(), [1])  # [B, layers, Q, features]
    _, contract = read(graph.model(list(outputs.values()) + [hidden]))
    assert contract.family == "RT-DETR"
    masks = graph.convolution(24, 4)  # [B, Q, H, W]
    with pytest.raises(ModelError, match="it segments objects: masks come"):
        read(graph.model(list(outputs.values()) + [masks]))


def test_a_map_that_boxes_are_computed_from_is_no_mask():
    graph = Graph()
    outputs = ENDINGS["RT-DETR"].build(graph, 3)
    file_without_map = graph.model(list(outputs.values()))
    feature_map = node_of(file_without_map.graph, "Conv").output[0]  # [B, features, H, W]
    expected_detections, _ = read(file_without_map)
    detections, contract = read(graph.model([feature_map] + list(outputs.values())))
    assert contract.family == "RT-DETR"
    assert_same(detections, expected_detections)


PAIRS = [
    "YOLO-NAS",
    "DAMO-YOLO",
    "PP-YOLOE",
    "SSD",
    "DETR",
    "RT-DETR",
    "RF-DETR",
    "D-FINE",
    "YOLOv5 cut apart",
    "YOLOv8 cut apart",
    "YOLOX cut apart",
    "YOLOX decoded, cut apart",
]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("turned", [False, True])
def test_two_tensors_are_told_apart_whatever_their_names_order_and_classes(name, turned):
    counts = (4, 1, 3, 2, 5)  # four look like the sides of a box
    for classes in thin("class counts of two tensors", counts, 2):
        model, roles = model_of(name, classes)
        if turned:
            roles = rearranged(model, roles, [1, 0])
        model, _ = renamed(model)
        detections, contract = read(model)
        assert contract.family == ENDINGS[name].family
        assert contract.class_count == classes
        assert_same(detections, expected(name, outputs_of(model, roles)))


# DeepStream's product that makes corners would be rounded too; it is refused.
@pytest.mark.parametrize("name", thin("heads in int8", sorted(set(ENDINGS) - {"DeepStream"}), 17))
def test_a_file_with_weights_in_int8_is_read_as_it_was(name, tmp_path):
    """With scales that follow the image, as the quantised files at Hugging Face have them."""
    model, roles = model_of(name, 3)
    contract = read(model)[1]
    onnx.save(model, tmp_path / "whole.onnx")
    quantize_dynamic(tmp_path / "whole.onnx", tmp_path / "small.onnx", weight_type=QuantType.QUInt8)
    small = onnx.load(tmp_path / "small.onnx")
    operators = [node.op_type for node in small.graph.node]
    assert "ConvInteger" in operators or "MatMulInteger" in operators
    detections, contract_of_int8 = read(small)
    assert contract_of_int8 == replace(
        contract, head=contract_of_int8.head, heads=contract_of_int8.heads
    )
    assert_same(detections, expected(name, outputs_of(small, roles)))


STEPS = st.lists(st.sampled_from(["identity", "casts", "transposes", "reshape"]), max_size=3)


@settings(max_examples=60 if RUNS_WHOLE else 15)
@given(data=st.data(), name=st.sampled_from(sorted(ENDINGS)), classes=st.integers(1, 8))
def test_a_changed_file_is_read_as_it_was_or_refused(data, name, classes):
    model, roles = model_of(name, classes)
    shuffled = data.draw(st.permutations(range(len(roles))), "outputs")
    for output in shuffled:
        model = decorated(model, output, data.draw(STEPS, "steps"))
    roles = rearranged(model, roles, shuffled)
    model, _ = renamed(model)
    expected_detections = expected(name, outputs_of(model, roles))
    try:
        detections, contract = read(model)
    except ModelError:
        return
    assert contract.family == ENDINGS[name].family
    assert_same(detections, expected_detections)
