"""Runs small detectors as detcli adapts them, and as their family's own postprocessing has them."""

import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from graph_builder import HEIGHT, WIDTH
from head_graphs import ENDINGS
from onnx import TensorProto, helper

from detcli.backend.postprocess import SelectionOptions, detect
from detcli.model.file import ModelFile
from detcli.model.graph import shape

ALL = SelectionOptions(conf=0.0, max_det=10**6, class_ids=None, nms_iou=None)
IMAGE = np.random.default_rng(1).random((1, 3, HEIGHT, WIDTH), np.float32)
SIZES = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32)

OPTIONS = ort.SessionOptions()
OPTIONS.intra_op_num_threads = 1  # for graphs that run once


def run(model, inputs):
    """All outputs of a graph, for inputs by how they are fed."""
    session = ort.InferenceSession(model.SerializeToString(), OPTIONS, ["CPUExecutionProvider"])
    kinds = {TensorProto.FLOAT: np.float32, TensorProto.INT64: np.int64}
    fed = {}
    for value in model.graph.input:
        if len(shape(value)) == 4:
            fed[value.name] = inputs
        elif value.type.tensor_type.elem_type == TensorProto.INT64:
            fed[value.name] = np.array([[WIDTH, HEIGHT]])
        else:  # a scale, or height and width
            is_scale = "scale" in value.doc_string or "scale_factor" in value.name
            fed[value.name] = np.array([[1, 1] if is_scale else [HEIGHT, WIDTH]], kinds[1])  # type: ignore[index]
    return session.run(None, fed)


def renamed(model):
    """A copy with other names for all tensors and nodes, and the new names by the old."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    graph = copy.graph
    names = set()
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
    names.discard("")  # of optional inputs that a node leaves out
    for value in graph.input:
        if len(shape(value)) == 2:  # such inputs are told by their names
            names.discard(value.name)
    new = {name: f"t{secrets.token_hex(4)}" for name in names}

    for node in graph.node:
        node.name = ""
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for value in list(graph.input) + list(graph.output) + list(graph.initializer):
        value.name = new.get(value.name, value.name)
    return copy, new


def shuffled(model):
    """With the nodes the other way round, as ONNX Runtime takes them."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    return model


def with_constant_nodes(model):
    """As exporters leave it that fold nothing: a Constant and an Identity for each initialiser."""
    nodes = list(model.graph.node)
    tensors = list(model.graph.initializer)
    del model.graph.node[:], model.graph.initializer[:]
    for tensor in tensors:
        model.graph.node.add(op_type="Constant", output=[f"{tensor.name}/value"]).attribute.append(
            helper.make_attribute("value", tensor)
        )
        model.graph.node.add(
            op_type="Identity", input=[f"{tensor.name}/value"], output=[tensor.name]
        )
    model.graph.node.extend(nodes)
    return model


def with_fed_constants(model):
    """As before IR version 4: each initialiser is an input too, and one that nothing reads."""
    count = helper.make_tensor("num_batches_tracked", TensorProto.INT64, [], [1])
    model.graph.initializer.append(count)
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(value)
    model.ir_version = 3
    return model


def with_copies_of_outputs(model):
    """With each output a second time, through an Identity, in front of all others."""
    outputs = list(model.graph.output)
    copies = []
    for output in outputs:
        copy = onnx.ValueInfoProto.FromString(output.SerializeToString())
        copy.name = f"copy of {output.name}"
        model.graph.node.append(helper.make_node("Identity", [output.name], [copy.name]))
        copies.append(copy)
    del model.graph.output[:]
    model.graph.output.extend(copies)
    model.graph.output.extend(outputs)
    return model


def with_softmax_arithmetic(model):
    """With the nodes that ONNX defines a Softmax by in its place, as ONNX Runtime saves it."""
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Softmax":
            nodes += softmax_arithmetic(model.graph, node)
        else:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def softmax_arithmetic(graph, softmax):
    """The nodes for one Softmax."""
    logits = softmax.input[0]
    shares = softmax.output[0]
    axis = -1
    for entry in softmax.attribute:
        axis = entry.i
    axes = f"{shares}/axes"
    graph.initializer.append(helper.make_tensor(axes, TensorProto.INT64, [1], [axis]))
    maximum = f"{shares}/maximum"
    shifted = f"{shares}/shifted"
    exponential = f"{shares}/exponential"
    total = f"{shares}/total"
    return [
        helper.make_node("ReduceMax", [logits], [maximum], axes=[axis]),
        helper.make_node("Sub", [logits, maximum], [shifted]),
        helper.make_node("Exp", [shifted], [exponential]),
        helper.make_node("ReduceSum", [exponential, axes], [total]),
        helper.make_node("Div", [exponential, total], [shares]),
    ]


def with_negative_sizes(model):
    """With -1 for the batch of all inputs and outputs, and for the other axes of outputs."""
    for value in list(model.graph.input) + list(model.graph.output):
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value = -1
        if value in model.graph.output and len(dims) == 3:
            dims[1].dim_value = -1
            dims[2].dim_value = -1
    return model


def file_of(model, **options):
    """A model that is on no disk."""
    content = model.SerializeToString()
    return ModelFile.read(Path("elsewhere/model.onnx"), content=content, **options)


def read(model, *, boxes_only=False, image=IMAGE):
    """What detcli finds: boxes, scores and class ids; and the contract."""
    file = file_of(model, boxes_only=boxes_only)
    contract = file.detector()
    (head,) = run(file.body(), image)
    selection = detect(head[0], replace(ALL, multi_label=contract.multi_label), contract)
    sides = list(image.shape[:1:-1]) * 2
    boxes = (
        selection.boxes * np.array(sides, np.float32) if contract.box_fractions else selection.boxes
    )
    return (boxes, selection.score, selection.class_id), contract


def expected(name, outputs):
    """What the family itself finds in the outputs of a file, by what they hold."""
    ending = ENDINGS[name]
    detections = ending.expected(outputs)
    if len(detections) == 3:  # with class ids
        return detections
    boxes, scores = detections
    if ending.one_class:
        return boxes, scores.max(1), scores.argmax(1)
    return expected_of_all(boxes, scores)


def expected_of_all(boxes, scores):
    """Each box with each of its classes."""
    anchors, classes = np.indices(scores.shape).reshape(2, -1)
    return boxes[anchors], scores.ravel(), classes


def outputs_of(model, roles):
    """The outputs for the image by what they hold, without the axis of the batch."""
    arrays = run(model, IMAGE)
    outputs = dict(zip(roles, arrays, strict=True))
    if set(roles) == {"rows", "count"}:  # Paddle's have no such axis
        return outputs

    for role, array in outputs.items():
        if array.ndim > 1 and array.shape[0] == 1:
            outputs[role] = array[0]
    return outputs


def best_first(detections):
    """Boxes, scores and class ids, those with the highest score first."""
    boxes, scores, classes = detections
    order = np.argsort(-scores)
    return boxes[order], scores[order], classes[order]


def assert_same(detections, expected, pixels=1e-2):
    """The best of what is found is what is wanted: a graph may keep some only.

    Scores near 1 differ by rounding alone, so neither order nor rank says which belong together.
    """
    boxes, scores, classes = best_first(detections)
    expected_boxes, expected_scores, expected_classes = best_first(expected)
    free = np.ones(len(scores), bool)
    for box, score, class_id in zip(expected_boxes, expected_scores, expected_classes, strict=True):
        near = np.abs(scores - score) <= 1e-4 + 1e-4 * abs(score)
        matches = np.flatnonzero(free & (classes == class_id) & near)
        matches = matches[
            (np.abs(boxes[matches] - box) <= pixels * (1 + 1e-2 * np.abs(box))).all(1)
        ]
        assert len(matches), (box, score, class_id)
        free[matches[0]] = False
    assert scores[free].max(initial=-1) <= np.min(expected_scores, initial=2) + 1e-4
