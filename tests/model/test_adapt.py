"""Graphs with other inputs and endings, as they run with the nodes that are added to them."""

import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from anchor_graphs import distances, plugin, scores
from graph_builder import HEIGHT, WIDTH, Graph, corners, sigmoid, softmax
from graph_edits import insert_nodes, node_of
from head_checks import (
    ALL,
    IMAGE,
    SIZES,
    assert_same,
    expected,
    expected_of_all,
    file_of,
    outputs_of,
)
from head_graphs import model_of, suppressed
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from query_graphs import plain

from detcli.backend.postprocess import detect
from detcli.core.errors import ModelError
from detcli.model.contract import Resize

LEVELS = np.random.default_rng(2).integers(0, 256, (1, 3, HEIGHT, WIDTH)).astype(np.float32)


def outputs(model, **fed):
    content = model.SerializeToString()
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, fed)


def found_in(file, **fed):
    """What detcli finds: boxes, scores and class ids; and the contract."""
    contract = file.detector()
    detections = detect(outputs(file.body(), **fed)[0][0], ALL, contract)
    return (detections.boxes, detections.score, detections.class_id), contract


def behind(model, steps, dtype, dims):
    """A model whose image passes further nodes first: operator, constants, attributes of each."""
    nodes = []
    name = "raw"
    for number, step in enumerate(steps):
        operator = step[0]
        constants = list(step[1:])
        attributes = constants.pop() if isinstance(constants[-1], dict) else {}
        output = "images" if number == len(steps) - 1 else f"step{number}"
        nodes.append(helper.make_node(operator, [name] + constants, [output], **attributes))
        name = output
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [1], [0]))
    insert_nodes(changed.graph, 0, nodes)
    changed.graph.input[0].CopyFrom(helper.make_tensor_value_info("raw", dtype, dims))
    return changed


CAST = ("Cast", {"to": TensorProto.FLOAT})
MIX = ("Transpose", {"perm": [0, 3, 1, 2]})
INPUTS = {
    "NHWC": ([MIX], TensorProto.FLOAT, [1, HEIGHT, WIDTH, 3], lambda x: x.transpose(0, 2, 3, 1)),
    "uint8": ([CAST], TensorProto.UINT8, [1, 3, HEIGHT, WIDTH], lambda x: x.astype(np.uint8)),
    "uint8, NHWC": (
        [CAST, MIX],
        TensorProto.UINT8,
        [1, HEIGHT, WIDTH, 3],
        lambda x: x.transpose(0, 2, 3, 1).astype(np.uint8),
    ),
    "float16": ([CAST], TensorProto.FLOAT16, [1, 3, HEIGHT, WIDTH], lambda x: x.astype(np.float16)),
    "one image": ([("Unsqueeze", "axes")], TensorProto.FLOAT, [3, HEIGHT, WIDTH], lambda x: x[0]),
    "one image, uint8, HWC": (
        [CAST, ("Unsqueeze", "axes"), MIX],
        TensorProto.UINT8,
        [HEIGHT, WIDTH, 3],
        lambda x: x[0].transpose(1, 2, 0).astype(np.uint8),
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_graph_is_fed_what_its_input_wants(name):
    steps, dtype, dims, as_wanted = INPUTS[name]
    model = behind(model_of("YOLOv8", 3)[0], steps, dtype, dims)
    (head,) = outputs(model, raw=as_wanted(LEVELS))
    file = file_of(model)
    fed = LEVELS.astype(np.float16) if file.detector().input_dtype == "float16" else LEVELS
    (adapted_head,) = outputs(file.body(), raw=fed)
    np.testing.assert_array_equal(adapted_head, head)


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.BOOL])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_pixel_mask_says_that_all_pixels_are_the_images(dtype, fixed):
    """As DETR on Hugging Face has it; here it is a factor for the image."""
    graph = Graph()
    dims = [1, HEIGHT, WIDTH] if fixed else ["batch", "height", "width"]
    mask = graph("Cast", graph.input("pixel_mask", dtype, dims), to=TensorProto.FLOAT)
    features = graph("Mul", graph.queries(), graph("ReduceMin", mask, keepdims=0))
    logits = graph.linear(features, 8, 4)
    boxes = plain(graph, features)
    model = graph.model([logits, boxes])
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    raw, cxcywh = outputs(model, images=IMAGE, pixel_mask=np.ones((1, HEIGHT, WIDTH), kind))
    file = file_of(model)
    assert file.detector().family == "DETR"
    (head,) = outputs(file.body(), images=IMAGE)
    np.testing.assert_allclose(head[0, :, :4], cxcywh[0], rtol=1e-5)
    np.testing.assert_allclose(head[0, :, 4:], softmax(raw[0])[:, :-1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 3, 4])
def test_tensorrts_plugin_is_cut_off(classes):
    """No other runtime has it: what it selects from is what the same graph without it gives."""
    graph = Graph()
    model = graph.model(list(plugin(graph, classes).values()))
    node = node_of(model.graph, "EfficientNMS_TRT")
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.graph.node.remove(node)
    del bare.graph.output[:]
    for name in node.input:
        bare.graph.output.add(name=name)
    boxes, final = outputs(bare, images=IMAGE)
    detections, contract = found_in(file_of(model), images=IMAGE)
    assert contract.class_count == classes
    assert contract.nms == 0.45
    assert_same(detections, expected_of_all(corners(boxes[0]), final[0]))


def test_a_plugin_that_leaves_out_a_class_is_refused():
    graph = Graph()
    model = graph.model(list(plugin(graph, 3).values()))
    model.graph.node[-1].attribute.append(helper.make_attribute("background_class", 0))
    with pytest.raises(ModelError, match="leaves out a class, that of no object"):
        file_of(model).detector()


def test_tensorflows_rows_are_y_before_x_and_numbered_from_one():
    graph = Graph()
    boxes, score, label, _ = suppressed(graph, 3, yx=True)
    boxes = graph("Div", boxes, SIZES[[1, 0, 3, 2]])
    ids = graph("Cast", graph("Add", label, np.int64(1)), to=TensorProto.FLOAT)
    parts = [graph("Unsqueeze", part, [0]) for part in (boxes, ids, score)]
    model = behind(graph.model(parts), [CAST, MIX], TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])
    pixels = LEVELS.transpose(0, 2, 3, 1).astype(np.uint8)
    yxyx, class_numbers, final = outputs(model, raw=pixels)
    (xyxy, confidences, class_ids), contract = found_in(file_of(model), raw=LEVELS)
    assert contract.family == "TensorFlow"
    assert contract.box_fractions is True
    assert contract.preprocessing.resize is Resize.STRETCH  # since its size is fixed
    assert len(xyxy) > 3
    theirs = (yxyx[0][:, [1, 0, 3, 2]] * SIZES, final[0], class_numbers[0].astype(int))
    assert_same((xyxy * SIZES, confidences, class_ids), theirs)


def test_torchvision_takes_one_image_of_shares_of_one():
    graph = Graph()
    boxes, score, label, _ = suppressed(graph, 3)
    model = graph.model([boxes, graph("Add", label, np.int64(1)), score])
    model = behind(model, [("Unsqueeze", "axes")], TensorProto.FLOAT, [3, HEIGHT, WIDTH])
    detections, contract = found_in(file_of(model), raw=IMAGE)
    assert contract.family == "torchvision"
    assert contract.batch == 1
    assert contract.preprocessing.resize is Resize.STRETCH
    theirs, ids, final = outputs(model, raw=IMAGE[0])
    assert_same(detections, (theirs, final, ids))


def test_heads_in_float16_keep_boxes_and_scores():
    """Boxes and scores of two types are joined in the wider one."""
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False, bins=17))
    half = graph("Cast", graph.swapped(scores(graph, 3)), to=TensorProto.FLOAT16)
    model = graph.model([boxes, half])
    corners_, final = outputs(model, images=IMAGE)
    (head,) = outputs(file_of(model).body(), images=IMAGE)
    assert head.dtype == np.float32
    np.testing.assert_allclose(head[0], np.concatenate([corners_[0], final[0]], 1), rtol=1e-3)


@pytest.mark.parametrize("name", ["RKNN", "RKNN, YOLOv6 with sums"])
def test_scales_in_float16_are_decoded_in_float32(name):
    model, _ = model_of(name, 3)
    half_model = convert_float_to_float16(model)
    (head,) = outputs(file_of(half_model).body(), images=IMAGE.astype(np.float16))
    (expected_head,) = outputs(file_of(model).body(), images=IMAGE)
    assert head.dtype == np.float32
    np.testing.assert_allclose(head, expected_head, rtol=0.02, atol=0.5)


PRINT_BODY_HASH = """
import hashlib
from cell_graphs import EXPORTS
from graph_builder import Graph
from head_checks import file_of

graph = Graph()
outputs = EXPORTS["YOLOX, raw"].build(graph, 3)
body = file_of(graph.model(list(outputs.values()))).body()
print(hashlib.sha256(body.SerializeToString(deterministic=True)).hexdigest())
"""


def body_hash(seed):
    """The hash of an adapted graph in a process that hashes texts by a seed."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PRINT_BODY_HASH]
    process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return process.stdout


@pytest.mark.slow
def test_an_adapted_graph_has_the_same_bytes_in_every_process():
    """Engines are cached by them; with these seeds, sets of parts have different orders."""
    first = body_hash("1")
    assert len(first.strip()) == 64
    assert body_hash("2") == first


def with_channels_last(name):
    """A graph whose boxes are x before y, in pixels; and what its own outputs say."""
    steps, dtype, dims, _ = INPUTS["NHWC"]
    model, roles = model_of(name, 3)
    file = file_of(behind(model, steps, dtype, dims))
    return file, expected(name, outputs_of(model, roles))


@pytest.mark.parametrize("name", ["NMS, [K, 7]", "NMS, [1, K, 6]"])
def test_a_yolo_with_channels_last_is_not_taken_for_tensorflows(name):
    file, expected_detections = with_channels_last(name)
    assert_same(found_in(file, raw=IMAGE)[0], expected_detections)


def test_a_yolo_with_the_outputs_of_tensorflows_is_refused():
    file, _ = with_channels_last("NMS, four outputs")
    with pytest.raises(ModelError, match="order and unit of the corners"):
        file.detector()


def test_an_objectness_and_scores_without_a_sigmoid_get_one_before_they_are_multiplied():
    graph = Graph()
    parts = [distances(graph, centres=False), graph.maps(1), graph.maps(3)]
    head = graph.swapped(graph.concat(parts, axis=1))
    model = graph.model([graph.cut(head, 0, 4, 2), graph.cut(head, 4, 8, 2)])
    boxes, logits = outputs(model, images=IMAGE)
    detections, contract = found_in(file_of(model), images=IMAGE)
    assert contract.class_count == 3
    probabilities = sigmoid(logits[0])
    products = probabilities[:, 1:] * probabilities[:, :1]
    assert_same(detections, expected_of_all(boxes[0], products))
