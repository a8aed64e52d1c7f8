"""Graphs that are not detectors are refused, with a list of their inputs and outputs."""

import importlib
import inspect
import re

import colour_model
import numpy as np
import onnx
import onnx.inliner
import pytest
from anchor_graphs import distances
from graph_builder import Graph
from graph_edits import constant_of, names_of, node_of
from head_graphs import model_of, of_zoo
from onnx import TensorProto, helper, numpy_helper
from text_model import DECODE, IMAGES, contract_of, parsed

from detcli.config.values import BoxFormat
from detcli.core.errors import ModelError
from detcli.data.coco import COCO
from detcli.model.editing import infer_shapes
from detcli.model.heads import BOXES_ONLY, DETECTORS
from detcli.model.recognise import read_graph
from detcli.model.refusals import TASKS


def test_an_absurd_number_of_classes_is_a_model_error():
    model = colour_model.build("authors", size=None)
    sizes = constant_of(model.graph, "sizes")
    sizes.CopyFrom(numpy_helper.from_array(np.array([4, 2_000_000]), "sizes"))
    with pytest.raises(ModelError):  # 10**12 of them would fill the memory with names
        read_graph(model, "torn")


HEAD = "float[1, 7, 6144] head"
JOIN = f"{DECODE} head = Concat<axis = 1>(boxes, scores)"
ROWS = f"{JOIN} rows = Transpose<perm = [0, 2, 1]>(head) six_rows = Slice(rows, zero, six, two)"
DETECTIONS = "float[1, K, 6] detections"
TOP_DETECTIONS = "float[1, 1000, 6] detections"
SINGLE_TOP_K = f"""{ROWS}
    flat = Reshape(scores, all)
    top_scores, order = TopK(flat, many)
    anchor = Mod(order, many)
    detections = Gather<axis = 1>(six_rows, anchor)
"""
SUPPRESSED = f"""{ROWS}
    box_rows = Transpose<perm = [0, 2, 1]>(boxes)
    chosen = NonMaxSuppression(box_rows, scores, many)
    triples = Slice(chosen, two, three, one)
    anchor = Reshape(triples, all)
    detections = Gather<axis = 1>(six_rows, anchor)
"""
JOINED = f"""{SUPPRESSED.replace("detections", "kept")}
    kept_boxes, kept_scores = Split<axis = 2>(kept, four_and_two)
    detections = Concat<axis = 2>(kept_boxes, kept_scores)
"""
YOLOV5 = f"""{DECODE}
    columns = Concat<axis = 1>(points, low, scores)
    scale = Transpose<perm = [0, 2, 1]>(columns)
"""
MASKS = f"{JOIN} masks = Concat<axis = 1>(boxes, boxes)"
LOOSE = f"""{DECODE}
    squares = Mul(points, points)
    loose = Concat<axis = 1>(%s, %s)
    head = Concat<axis = 1>(loose, scores)
"""
COCO_NAMES = {"names": str(COCO)}
REFUSALS = {
    "classifier": (
        "flat = Flatten(images) scores = Slice(flat, zero, many, one)",
        "float[1, 1000] scores",
        {},
        "it gives values of whole images",
    ),
    "two inputs": (JOIN, HEAD, {"inputs": f"{IMAGES}, float[1] floor"}, "what its input floor is"),
    "two images": (
        JOIN,
        HEAD,
        {"inputs": f"{IMAGES}, float[1, 3, 64, 64] depth"},
        "it has 2 inputs, 2 of them for images",
    ),
    "two outputs": (
        f"{JOIN} other = Neg(boxes)",
        f"{HEAD}, float[1, 4, 6144] other",
        {},
        "it has 2 outputs",
    ),
    "grey": (
        f"images = Expand(grey, colours) {JOIN}",
        HEAD,
        {"inputs": "float[1, 1, 64, 64] grey"},
        "not a batch of colour images",
    ),
    "segmentation": (JOIN, HEAD, {"task": "segment"}, "its metadata says task 'segment'"),
    "masks": (
        f"{MASKS} all_rows = Concat<axis = 1>(head, masks)",
        "float[1, 15, 6144] all_rows",
        {},
        "7 rows come before its class scores",
    ),
    "masks in one join": (
        f"{MASKS} all_rows = Concat<axis = 1>(boxes, scores, masks)",
        "float[1, 15, 6144] all_rows",
        {"names": str(["red", "green", "blue"])},
        "its output is not a detection head",
    ),
    "objectness, one scale": (
        YOLOV5,
        "float[1, 6144, 85] scale",
        {"classes": 81} | COCO_NAMES,
        "its output is not a detection head",
    ),
    "objectness, two scales": (
        f"{YOLOV5} head = Concat<axis = 1>(scale, scale)",
        "float[1, 12288, 85] head",
        {"classes": 81} | COCO_NAMES,
        "6144 rows come before its class scores",
    ),
    "objectness, three scales": (
        f"{YOLOV5} head = Concat<axis = 1>(scale, scale, scale)",
        "float[1, 18432, 85] head",
        {"classes": 81} | COCO_NAMES,
        "its output is not a detection head",
    ),
    "single top-k": (SINGLE_TOP_K, TOP_DETECTIONS, {}, r"selects boxes itself \(TopK\)"),
    "suppression": (SUPPRESSED, DETECTIONS, {}, r"selects boxes itself \(NonMaxSuppression\)"),
}


@pytest.mark.parametrize("box_format", [None] + list(BoxFormat))
@pytest.mark.parametrize(("nodes", "outputs", "options", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_other_graphs_are_refused_with_their_inputs_and_outputs(
    nodes, outputs, options, reason, box_format
):
    model = parsed(nodes, outputs, **options)
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(ModelError, match=f"^colours.onnx is not .*{reason}") as error:
        contract_of(model, box_format)
    _, has = str(error.value).split(". Inputs: ")
    described = zip(has.split(". Outputs: "), (options.get("inputs", IMAGES), outputs), strict=True)
    for signatures, values in described:  # "images float[1, 3]", "float[1, 3] images"
        assert signatures == re.sub(r"(\w+\[[^]]*\]) (\w+)", r"\2 \1", values)
    assert ("[B, 4 + C, N]" in error.value.hint) == ("task" not in options)
    assert error.value.exit_code == 4


@pytest.mark.parametrize("task", TASKS)
def test_models_of_other_tasks_are_refused_with_what_can_be_done(task):
    with pytest.raises(ModelError, match=TASKS[task]) as error:
        contract_of(parsed(JOIN, HEAD, task=task))
    hint = BOXES_ONLY if task in {"segment", "pose"} else DETECTORS
    assert error.value.hint == hint


@pytest.mark.parametrize("names", [{}, {"names": str(["cat", "dog"])}], ids=["unnamed", "named"])
@pytest.mark.parametrize("nodes", [SINGLE_TOP_K, SUPPRESSED, JOINED], ids=["k", "nms", "join"])
def test_rows_of_detections_are_not_taken_for_a_head_of_two_classes(nodes, names):
    model = parsed(nodes, DETECTIONS, classes=2, **names)
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(ModelError, match="selects boxes itself"):
        contract_of(model)


def test_selected_boxes_with_exponential_sizes_are_of_yolox_with_an_objectness_alone():
    """Others decode like that too, such as SSD, and take other values of pixels."""
    graph = Graph()
    rows = of_zoo(graph, 3, with_objectness=False)
    with pytest.raises(ModelError, match="no family is known that decodes boxes and scores"):
        contract_of(graph.model(list(rows.values())))


@pytest.mark.parametrize(
    "halves", [("points", "points"), ("high", "low"), ("squares", "low"), ("low", "squares")]
)
def test_boxes_of_an_unknown_decode_are_refused_unless_their_format_is_given(halves):
    model = parsed(LOOSE % halves, HEAD)
    with pytest.raises(ModelError, match="its boxes are not decoded in a known way") as error:
        contract_of(model)
    assert "pass --box-format" in error.value.hint
    contract = contract_of(model, BoxFormat.XYXY)
    assert contract == contract_of(parsed(JOIN, HEAD))


@pytest.mark.parametrize("operator", ["Exp", "Neg", "Sqrt"])
def test_arithmetic_after_the_decode_makes_it_unknown(operator):
    nodes = f"{DECODE} other = {operator}(boxes) head = Concat<axis = 1>(other, scores)"
    with pytest.raises(ModelError, match="not decoded in a known way"):
        contract_of(parsed(nodes, HEAD))


def test_a_head_that_is_split_in_three_is_not_cut():
    model = colour_model.build("authors")
    node_of(model.graph, "Split").output.append("masks")
    sizes = constant_of(model.graph, "sizes")
    sizes.CopyFrom(numpy_helper.from_array(np.array([4, 2, 1]), "sizes"))
    with pytest.raises(ModelError, match="follow the scores of each box"):
        read_graph(model, "masks")


@pytest.mark.parametrize(
    ("dims", "reason"),
    [
        ((1, 3, 64, "w"), "fixes one side"),
        ((1, 64, 64, 4), "not a batch of colour"),
        ((1, 3, 10**9, 10**9), "its input has 1000000000000000000 pixels"),
        ((10**9, 3, 64, 64), "its input has 4096000000000 pixels"),
    ],
)
def test_other_inputs_are_refused(dims, reason):
    model = colour_model.build()
    old = model.graph.input[0]
    old.CopyFrom(helper.make_tensor_value_info("images", TensorProto.FLOAT, dims))
    with pytest.raises(ModelError, match=reason):
        read_graph(model, "input")


def test_of_many_outputs_some_are_listed():
    model = colour_model.build()
    first_output = model.graph.output[0]
    for number in range(99):
        name = f"output{number}"
        model.graph.node.append(helper.make_node("Neg", [first_output.name], [name]))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match=r"Outputs: .* and 92 more$") as error:
        read_graph(model, "many")
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("name", ["predict", "inspect", "bench", "eval", "convert", "verify"])
def test_the_hint_names_the_commands_that_have_the_option(name):
    module = importlib.import_module(f"detcli.commands.{name}")
    options = set()
    for command in vars(module).values():
        if inspect.isfunction(command):
            options.update(inspect.signature(command).parameters)
    assert ("boxes_only" in options) == (name in BOXES_ONLY)


def detr_of_four_scores(names):
    """A graph of DETR's nodes whose metadata has these names."""
    model, _ = model_of("DETR", 3)
    helper.set_model_props(model, {"names": str(dict(enumerate(names)))})
    return model


def test_a_look_alike_of_detr_that_names_all_its_scores_is_refused():
    model = detr_of_four_scores(["cat", "dog", "cow", "hen"])
    with pytest.raises(ModelError, match="names a class for each of its 4 scores"):
        read_graph(model, "model.onnx")
    model.metadata_props.add(key="detcli.family", value="DETR")
    assert read_graph(model, "model.onnx").contract.class_count == 3


@pytest.mark.parametrize("names", [["cat", "dog", "cow"], ["cat", "dog", "cow", "no-object"]])
def test_detr_need_not_name_what_stands_for_no_object(names):
    contract = read_graph(detr_of_four_scores(names), "model.onnx").contract
    assert contract.names == ("cat", "dog", "cow")


def detr_of_biases(add_biases):
    """A graph of DETR's nodes without names, whose logits have some biases or none."""
    graph = Graph()
    features = graph.queries()
    boxes = graph("Sigmoid", graph.perceptron(features, 4))
    logits = add_biases(graph, features)
    return graph.model([logits, boxes])


def logits_with(biases, operator="MatMul"):
    """Adds a layer of scores with these biases."""
    values = np.array(biases, np.float32)

    def add(graph, features):
        weights = graph.weights(8, len(values))
        if operator == "Gemm":
            rows = graph("Reshape", features, [-1, 8])
            return graph("Reshape", graph("Gemm", rows, weights, values), [1, 24, len(values)])
        return graph("Add", graph("MatMul", features, weights), values)

    return add


def logits_without_biases(graph, features):
    return graph("MatMul", features, graph.weights(8, 4))


LOW_BIASES = (-4.7, -4.2, -5.1, -3.9)


@pytest.mark.parametrize(
    ("add_biases", "reason"),
    [
        (logits_with(LOW_BIASES), "biases of its scores are those of a sigmoid"),
        (logits_with(LOW_BIASES, "Gemm"), "biases of its scores are those of a sigmoid"),
        (logits_without_biases, "its scores have no biases"),
    ],
)
def test_a_look_alike_of_detr_whose_scores_are_sigmoids_is_refused(add_biases, reason):
    """It would lose its last class, and its scores would become shares."""
    model = detr_of_biases(add_biases)
    with pytest.raises(ModelError, match=reason) as refused:
        read_graph(model, "model.onnx")
    assert "detcli.family=NAME" in refused.value.hint
    model.metadata_props.add(key="detcli.family", value="DETR")
    assert read_graph(model, "model.onnx").contract.class_count == 3


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_detr_has_a_likely_class_that_stands_for_no_object(operator):
    model = detr_of_biases(logits_with((-4.7, -4.2, -5.1, 0.9), operator))
    contract = read_graph(model, "model.onnx").contract
    assert contract.family == "DETR"
    assert contract.class_count == 3


def test_landmarks_beside_boxes_and_scores_are_named():
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    scores = graph.swapped(graph("Sigmoid", graph.maps(2)))
    landmarks = graph.swapped(graph.maps(10))
    with pytest.raises(ModelError, match=f"gives landmarks, {landmarks}, beside its boxes"):
        read_graph(infer_shapes(graph.model([landmarks, boxes, scores])), "model.onnx")


def test_nodes_in_functions_as_torchs_dynamo_exporter_leaves_them_are_the_reason():
    model, _ = model_of("YOLOv8", 3)
    inputs = ["images"] + names_of(model.graph.initializer)
    outputs = names_of(model.graph.output)
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("torch", "Network", inputs, outputs, model.graph.node, imports)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("torch", 1))
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Network", inputs, outputs, domain="torch"))
    with pytest.raises(ModelError, match="its nodes are in functions of the file") as error:
        read_graph(model, "model.onnx")
    assert "dynamo=False" in error.value.hint
    inlined = onnx.inliner.inline_local_functions(model)
    assert read_graph(infer_shapes(inlined), "model.onnx").contract.family == "YOLO"


def test_logits_that_the_scores_are_computed_from_are_not_called_landmarks():
    graph = Graph()
    boxes = graph.swapped(distances(graph, centres=False))
    logits = graph.swapped(graph.maps(2))
    scores = graph("Sigmoid", logits)
    with pytest.raises(ModelError, match="two of its outputs may be the boxes, or two the scores"):
        read_graph(infer_shapes(graph.model([logits, boxes, scores])), "model.onnx")


def pooled_features(graph):
    """Eight features of the whole image, [B, 8]."""
    return graph("Flatten", graph("GlobalAveragePool", graph.convolution(8, 8)))


def full_size_map(graph, channels):
    """A map [B, channels, H, W] of the size of the image."""
    features = graph("Relu", graph.convolution(8, 8))
    weights = graph.weights(8, channels, 8, 8)
    return graph("ConvTranspose", features, weights, strides=[8, 8])


def classifier(graph):
    return [graph("Softmax", graph.linear(pooled_features(graph), 8, 1000), axis=1)]


def classifier_with_two_heads(graph):
    features = pooled_features(graph)
    genders = graph("Softmax", graph.linear(features, 8, 2), axis=1)
    ages = graph("Softmax", graph.linear(features, 8, 8), axis=1)
    return [genders, ages]


def locator_of_one_object(graph):
    """One box and its class, without anchors or queries."""
    features = pooled_features(graph)
    box = graph("Sigmoid", graph.linear(features, 8, 4))
    scores = graph("Softmax", graph.linear(features, 8, 20), axis=1)
    return [box, scores]


def embedder(graph):
    return [graph("LpNormalization", graph.linear(pooled_features(graph), 8, 512), axis=1)]


def segmenter(graph):
    return [full_size_map(graph, 21)]


def unet_of_two_sizes(graph):
    shares = graph("Sigmoid", full_size_map(graph, 2))
    return [shares, graph("MaxPool", shares, kernel_shape=[2, 2], strides=[2, 2])]


def pose_heatmaps(graph):
    return [graph.convolution(17, 4)]


def depth_map(graph):
    return [graph("Relu", full_size_map(graph, 1))]


def upscaler(graph):
    return [graph("DepthToSpace", graph.convolution(12, 1), blocksize=2)]


def anomaly_map(graph):
    anomalies = full_size_map(graph, 1)
    return [anomalies, graph("ReduceMax", anomalies, axes=[1, 2, 3], keepdims=0)]


def text_recogniser(graph):
    """Shares of 37 symbols for each of 12 columns, [T, B, C]."""
    columns = graph("ReduceMean", graph.convolution(16, 8), axes=[2], keepdims=0)
    steps = graph("Transpose", columns, perm=[2, 0, 1])
    return [graph("Softmax", graph.linear(steps, 16, 37), axis=2)]


def landmark_regressor(graph):
    coordinates = graph.linear(pooled_features(graph), 8, 136)
    return [graph("Reshape", coordinates, [-1, 68, 2])]


def variational_autoencoder(graph):
    features = pooled_features(graph)
    mean = graph.linear(features, 8, 4)
    log_variance = graph.linear(features, 8, 4)
    sample = graph("Add", mean, graph("Exp", log_variance))
    image = graph("Reshape", graph.linear(sample, 4, 3 * 64 * 96), [-1, 3, 64, 96])
    return [graph("Sigmoid", image), mean, log_variance]


VALUES = r"it gives values of whole images, as a classifier does: its output is \[B, C\]"
MAPS = "it gives maps of images, as for segments or heat, or its boxes are not decoded"
NO_PAIR = "it has 2 outputs, and it is not clear which are boxes and which scores, if any"
OTHER_NETWORKS = {
    classifier: VALUES,
    embedder: VALUES,
    segmenter: MAPS,
    pose_heatmaps: MAPS,
    depth_map: MAPS,
    upscaler: MAPS,
    classifier_with_two_heads: NO_PAIR,
    locator_of_one_object: NO_PAIR,
    unet_of_two_sizes: NO_PAIR,
    anomaly_map: NO_PAIR,
    text_recogniser: "its output is not a detection head",
    landmark_regressor: "its output is not a detection head",
    variational_autoencoder: NO_PAIR.replace("2", "3"),
}


@pytest.mark.parametrize("batch", [1, "batch"])
@pytest.mark.parametrize(
    ("build", "reason"),
    OTHER_NETWORKS.items(),
    ids=[build.__name__ for build in OTHER_NETWORKS],
)
def test_networks_that_are_no_detectors_are_refused_for_what_they_are(build, reason, batch):
    graph = Graph(batch=batch)
    model = infer_shapes(graph.model(build(graph)))
    onnx.checker.check_model(model)
    with pytest.raises(ModelError, match=f"^other.onnx is not a detector .*: {reason}"):
        read_graph(model, "other.onnx")
