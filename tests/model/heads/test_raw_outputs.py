"""Detectors whose layers' numbers are left to be decoded, against their families' own code."""

import json
import shlex
from functools import cache

import forked
import numpy as np
import onnx
import pytest
from cell_graphs import EXPORTS
from cell_layers import SIZE, in_rows, layer
from graph_builder import Graph
from head_checks import (
    assert_same,
    expected_of_all,
    file_of,
    read,
    renamed,
    run,
    shuffled,
    with_constant_nodes,
    with_copies_of_outputs,
    with_fed_constants,
)
from model.test_recognise_heads import by_onnxslim, rearranged
from onnx import helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from thinning import thin

from detcli.core.errors import ModelError
from detcli.model.contract import MultiLabel
from detcli.model.families import FAMILIES
from detcli.model.graph import shape
from detcli.source.decode import BUILT_IN

pytestmark = pytest.mark.slow


def image_of(size, dtype=np.float32):
    height, width = size
    return np.random.default_rng(1).random((1, 3, height, width), np.float32).astype(dtype)


@cache
def model_and_roles(name, classes, size):
    """A file, and what its outputs hold."""
    graph = Graph(size=size, batch=10 if EXPORTS[name].at == size else 1)
    outputs = EXPORTS[name].build(graph, classes)
    return graph.model(list(outputs.values())), list(outputs)


def expected_of_file(name, size, outputs):
    """What the family's own code makes of the outputs of a file, by what they hold."""
    export = EXPORTS[name]
    alone = {}
    for role, array in outputs.items():
        image = array[0] if len(array) == 1 else array
        alone[role] = image.astype(np.float32)
    boxes, scores = export.expected(alone, size)
    if export.one_class:
        return boxes, scores.max(1), scores.argmax(1)
    return expected_of_all(boxes, scores)


def in_order(detections):
    """Boxes, scores and classes, sorted by class and then by score."""
    boxes, scores, classes = detections
    order = np.lexsort((scores.round(6), classes))
    return boxes[order], scores[order], classes[order]


def assert_equal(detections, expected):
    """All anchors are found, each with its box to a thousandth of a pixel, or a millionth of it."""
    assert len(detections[1]) == len(expected[1])
    boxes, scores, classes = in_order(detections)
    expected_boxes, expected_scores, expected_classes = in_order(expected)
    close = np.isclose(boxes, expected_boxes, rtol=1e-6, atol=1e-3).all(1)
    close &= np.isclose(scores, expected_scores, rtol=1e-5, atol=1e-6)
    close &= classes == expected_classes

    others = boxes[~close], scores[~close], classes[~close]
    expected_others = expected_boxes[~close], expected_scores[~close], expected_classes[~close]
    assert_same(others, expected_others, pixels=1e-3)


def check(name, model, size, expected, image=None):
    export = EXPORTS[name]
    detections, contract = read(model, image=image_of(size) if image is None else image)
    assert contract.family == export.family
    assert (contract.multi_label is MultiLabel.NEVER) == export.one_class
    assert_equal(detections, expected)
    return contract


def class_counts_and_sizes():
    """Each export with all its class counts at its first size, and with its other sizes."""
    cases = []
    for name, export in EXPORTS.items():
        for class_count in export.classes:
            cases.append((name, class_count, export.sizes[0]))
        for other_size in export.sizes[1:]:
            cases.append((name, export.classes[0], other_size))
    return cases


@pytest.mark.parametrize(
    ("name", "classes", "size"),
    thin("class counts and sizes of cells", class_counts_and_sizes(), 50),
)
def test_cells_are_read_as_their_family_reads_them(name, classes, size):
    model, roles = model_and_roles(name, classes, size)
    outputs = dict(zip(roles, run(model, image_of(size)), strict=True))
    file, _ = model_and_roles(name, classes, EXPORTS[name].at or size)
    contract = check(name, file, size, expected_of_file(name, size, outputs))
    assert contract.class_count == classes


def test_each_family_of_cells_has_an_export():
    families_with_export = {export.family for export in EXPORTS.values()}
    families_of_cells = {family.name for family in FAMILIES if family.grid}
    assert families_of_cells <= families_with_export


@pytest.mark.parametrize("name", ["YOLOv8, raw", "YOLOv6", "YOLOX, raw", "FastestDet"])
def test_each_image_of_a_batch_has_its_own_boxes(name):
    graph = Graph(size=SIZE, batch=2)
    body = file_of(graph.model(list(EXPORTS[name].build(graph, 3).values()))).body()
    alone = file_of(model_and_roles(name, 3, SIZE)[0]).body()
    images = np.concatenate([image_of(SIZE), image_of(SIZE)[..., ::-1]])
    (heads,) = run(body, images)
    for head, image in zip(heads, images, strict=True):
        np.testing.assert_allclose(head, run(alone, image[None])[0][0], rtol=1e-5, atol=1e-3)


def reordered(model):
    rearranged(model, [0] * len(model.graph.output), range(len(model.graph.output))[::-1])
    return renamed(model)[0]


# Maps of as many channels that no node tells apart: which is which, the order of the nodes says.
ALIKE = {"CenterFace"}


CHANGES = [
    reordered,
    by_onnxslim,
    shuffled,
    with_constant_nodes,
    with_copies_of_outputs,
    with_fed_constants,
]


def changed_exports():
    """Each export with each change that leaves its outputs distinguishable."""
    cases = []
    for change in CHANGES:
        for name in EXPORTS:
            if change is not shuffled or name not in ALIKE:
                cases.append((name, change))
    return cases


@pytest.mark.parametrize(("name", "change"), thin("changed files of cells", changed_exports(), 30))
def test_a_changed_file_is_read_as_it_was(name, change):
    export = EXPORTS[name]
    size = export.sizes[0]
    classes = export.classes[0]
    model, roles = model_and_roles(name, classes, size)
    outputs = dict(zip(roles, run(model, image_of(size)), strict=True))
    copy = type(model).FromString(
        model_and_roles(name, classes, export.at or size)[0].SerializeToString()
    )
    check(name, change(copy), size, expected_of_file(name, size, outputs))


def with_a_copy_in_front(model, position, operator):
    """The output at a position a second time, before all others, through an Identity or Reshape."""
    output = model.graph.output[position]
    copy = onnx.ValueInfoProto.FromString(output.SerializeToString())
    copy.name = "copy"
    inputs = [output.name]
    if operator == "Reshape":
        dims = np.array(shape(output), np.int64)
        model.graph.initializer.append(numpy_helper.from_array(dims, "dims"))
        inputs.append("dims")
    model.graph.node.append(helper.make_node(operator, inputs, ["copy"]))
    model.graph.output.insert(0, copy)
    return model


def copied_outputs():
    """Each output of each export, with each operator that can copy it."""
    cases = []
    for name, export in EXPORTS.items():
        _, output_names = model_and_roles(name, export.classes[0], export.at or export.sizes[0])
        for position in range(len(output_names)):
            cases.append((name, position, "Identity"))
            cases.append((name, position, "Reshape"))
    return cases


@pytest.mark.parametrize(
    ("name", "position", "operator"),
    thin("copies of single outputs", copied_outputs(), 40)
    + [
        ("CenterFace", 1, "Identity"),
        ("CenterFace", 2, "Reshape"),  # to the size that the file was traced with
    ],
)
def test_a_second_copy_of_any_output_changes_nothing(name, position, operator):
    """Where nothing but the order of nodes tells outputs apart, the copy's node comes last."""
    export = EXPORTS[name]
    size = export.sizes[0]
    model, roles = model_and_roles(name, export.classes[0], size)
    outputs = dict(zip(roles, run(model, image_of(size)), strict=True))
    file, _ = model_and_roles(name, export.classes[0], export.at or size)
    file = type(file).FromString(file.SerializeToString())
    copied = with_a_copy_in_front(file, position, operator)
    check(name, copied, size, expected_of_file(name, size, outputs))


def exports_of_any_size():
    """Each export whose files can take images of any size, with one batch size and with any."""
    cases = []
    for batch in (1, "batch"):
        for name, export in EXPORTS.items():
            if export.sizes[0] == SIZE and export.frees:
                cases.append((name, batch))
    return cases


@pytest.mark.parametrize(("name", "batch"), thin("cells of any size", exports_of_any_size(), 16))
def test_a_file_of_any_size_is_read_as_one_of_that_size(name, batch):
    """Its cells are counted at a size that is supposed."""
    export = EXPORTS[name]
    model, roles = model_and_roles(name, export.classes[0], SIZE)
    outputs = dict(zip(roles, run(model, image_of(SIZE)), strict=True))
    graph = Graph(size=("height", "width"), batch=batch)  # type: ignore[arg-type]
    free = graph.model(list(export.build(graph, export.classes[0]).values()))
    contract = check(name, free, SIZE, expected_of_file(name, SIZE, outputs))
    assert contract.input_size is None
    assert contract.anchor_count is None


# Those whose graphs decode themselves, in float16.
DECODED = {"YOLOv5-face, decoded"}


@pytest.mark.parametrize("name", sorted(set(EXPORTS) - DECODED))
def test_a_file_in_float16_is_decoded_in_float32(name):
    export = EXPORTS[name]
    size = export.sizes[0]
    classes = export.classes[0]
    model, roles = model_and_roles(name, classes, size)
    image = image_of(size, np.float16)
    half = convert_float_to_float16(model)
    outputs = dict(zip(roles, run(half, image), strict=True))
    check(name, half, size, expected_of_file(name, size, outputs), image)


@pytest.mark.parametrize("name", sorted(DECODED))
def test_a_file_that_decodes_in_float16_is_read_to_its_precision(name):
    model, roles = model_and_roles(name, 1, SIZE)
    image = image_of(SIZE, np.float16)
    half = convert_float_to_float16(model)
    outputs = dict(zip(roles, run(half, image), strict=True))
    detections, contract = read(half, image=image)
    expected = expected_of_file(name, SIZE, outputs)
    assert contract.family == EXPORTS[name].family
    np.testing.assert_allclose(np.sort(detections[1]), np.sort(expected[1]), rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(
        detections[0][np.lexsort(detections[0].T)], expected[0][np.lexsort(expected[0].T)]
    )


# Exports whose numbers are those of two families, and both.
EITHER = {
    ("YOLOv8, raw", 32): ("YOLO, scales apart", "NanoDet"),
    ("YOLOv8, raw, boxes apart", 4): ("YOLO, scales apart", "YOLOv6, scales apart"),
    ("YOLOv8, raw, boxes apart", 32): ("YOLO, scales apart", "NanoDet"),
    ("NanoDet, logits without a batch", 4): ("YOLOv6, scales apart", "NanoDet"),
}


@pytest.mark.parametrize(("export", "families"), EITHER.items())
def test_a_file_of_either_of_two_families_is_asked_about_unless_it_says(export, families):
    name, class_count = export
    model, roles = model_and_roles(name, class_count, SIZE)
    with pytest.raises(ModelError, match=f"it may be {' or '.join(families)}, which"):
        read(model)
    outputs = dict(zip(roles, run(model, image_of(SIZE)), strict=True))
    class_names = str([f"class {number}" for number in range(class_count)])
    for entries in ({"detcli.family": EXPORTS[name].family}, {"names": class_names}):
        model_with_family = type(model).FromString(model.SerializeToString())
        helper.set_model_props(model_with_family, entries)
        check(name, model_with_family, SIZE, expected_of_file(name, SIZE, outputs))


@pytest.mark.parametrize("family", EITHER["YOLOv8, raw, boxes apart", 4])
def test_the_hint_says_how_to_name_the_family(family, tmp_path):
    onnx.save(model_and_roles("YOLOv8, raw, boxes apart", 4, SIZE)[0], tmp_path / "FILE")
    predict = ["predict", BUILT_IN, "--device", "cpu", "--format", "jsonl", "--conf", "0.01", "-m"]
    refused = forked.run(predict + ["FILE"], cwd=tmp_path)
    assert refused.returncode == 4
    assert refused.stdout == ""
    _, _, command = refused.stderr.partition("hint: say which: detcli ")
    converted = forked.run(shlex.split(command.replace("NAME", family)), cwd=tmp_path)
    assert converted.returncode == 0, converted.stderr
    predicted = forked.run(predict + ["NEW"], cwd=tmp_path)
    assert predicted.returncode == 0, predicted.stderr
    ids = {detection["class_id"] for detection in json.loads(predicted.stdout)["detections"]}
    assert (max(ids) < 4) == (family == "YOLO, scales apart")  # of 4 classes, or of 64


def layers(*kinds, strides=(8, 16, 32), joins=False):
    """Of each scale, a layer for each pair of channels and activation; or one that joins them."""

    def build(graph):
        outputs = []
        for stride in strides:
            maps = [layer(graph, channels, stride, final) for channels, final in kinds]
            if joins:
                outputs.append(graph.concat(maps, axis=1))
            else:
                outputs += maps
        return outputs

    return build


def rows_of_scales(graph, width, strides, anchors):
    """Rows [1, N, width] of all scales; scale i has `anchors[i]` anchors per cell."""
    rows = []
    for stride, count in zip(strides, anchors, strict=True):
        rows.append(in_rows(graph, layer(graph, count * width, stride), width))
    return graph.concat(rows, axis=1)


def of_anchors(*widths, anchors=(2, 2, 2)):
    """All scales of rows [1, N, width], `anchors[i]` anchors per cell; the second are shares."""

    def build(graph):
        strides = (8, 16, 32, 64)[: len(anchors)]
        outputs = []
        for width in widths:
            outputs.append(rows_of_scales(graph, width, strides, anchors))
        outputs[1] = graph("Softmax", outputs[1], axis=2)
        return outputs

    return build


def with_points(name, role, width):
    """A family's export whose landmarks are of another number."""

    def build(graph):
        outputs = EXPORTS[name].build(graph, 1)
        for number, output in outputs.items():
            if number.startswith(role):
                outputs[number] = graph("Concat", output, graph.cut(output, 0, width, 2), axis=2)
        return list(outputs.values())

    return build


def faceboxes_of(*widths, strides=(32, 64, 128), anchors=(21, 1, 1)):
    """FaceBoxes' outputs [1, N, width], of which the second holds shares."""

    def build(graph):
        outputs = []
        for width in widths:
            outputs.append(rows_of_scales(graph, width, strides, anchors))
        outputs[1] = graph("Softmax", outputs[1], axis=2)
        return outputs

    return build


SIZES_OF_MAPS = np.array([[4, 6], [2, 3], [1, 2]], np.float32)


def seetaface6_of(classes):
    """SeetaFace6's outputs with `classes` shares, and the sizes of the maps as a constant."""

    def build(graph):
        outputs = faceboxes_of(4, classes)(graph)
        outputs.append(graph("Identity", SIZES_OF_MAPS))
        return outputs

    return build


def yolov5_face_like(*widths):
    """Boxes as YOLOv5 decodes them, an objectness, other numbers and a class [1, N, columns]."""

    def build(graph):
        scales = []
        for stride in (8, 16, 32):
            centre = graph("Sigmoid", layer(graph, 2, stride))
            doubled = graph("Mul", graph("Sigmoid", layer(graph, 2, stride)), np.float32(2))
            length = graph("Mul", graph("Pow", doubled, np.float32(2)), np.float32(8))
            parts = [graph("Mul", centre, np.float32(stride)), length]
            parts.append(layer(graph, 1, stride, "Sigmoid"))
            columns = 5
            for width, final in widths:
                parts.append(layer(graph, width, stride, final))
                columns += width
            scales.append(in_rows(graph, graph.concat(parts, axis=1), columns))
        return [graph.concat(scales, axis=1)]

    return build


def classifier(graph, class_count):
    """A number for each class of the whole image, [1, classes]."""
    features = graph("Reshape", layer(graph, 8, 32), [1, -1])
    return graph.linear(features, 8 * 4 * 6, class_count)


OTHERS = {
    "backbone": layers((64, "")),
    "backbone of joined blocks": layers((64, "Relu"), (64, "Relu"), joins=True),
    "semantic segmentation": layers((21, ""), strides=(8,)),
    "semantic segmentation at 16": layers((21, "Softmax"), strides=(16,)),
    "segmentation, supervised at three depths": layers((21, "")),
    "masks and depth": layers((21, "Softmax"), (1, ""), strides=(4,)),
    "YOLOv3": layers((255, "")),
    "YOLOv3, tiny": layers((255, ""), strides=(16, 32)),
    "CenterNet of one class": layers((1, "Sigmoid"), (2, ""), (2, ""), strides=(4,)),
    "CenterNet of 80 classes": layers((80, "Sigmoid"), (2, ""), (2, ""), strides=(4,)),
    "CenterNet of poses": layers((1, "Sigmoid"), (2, ""), (2, ""), (34, ""), strides=(4,)),
    "text": layers((1, "Sigmoid"), (5, ""), strides=(4,)),
    "YOLOv8, poses joined": layers((64, ""), (1, ""), (51, ""), joins=True),
    "YOLOv8, masks joined": layers((64, ""), (80, ""), (32, ""), joins=True),
    "YOLOv8, oriented": layers((64, ""), (15, ""), (1, "Sigmoid"), joins=True),
    "YOLOv8, poses apart": layers((64, ""), (1, "Sigmoid"), (51, "")),
    "NanoDet, masks": layers((80, "Sigmoid"), (32, ""), (32, "")),
    "YuNet, six landmarks": with_points("YuNet", "kps", 2),
    "SCRFD, six landmarks": with_points("SCRFD with landmarks and a batch", "kps", 2),
    "RetinaFace, six landmarks": with_points("RetinaFace", "landms", 2),
    "BlazeFace, seven landmarks": with_points("BlazeFace", "regressors", 2),
    "RetinaFace, no landmarks": of_anchors(4, 2),
    "FCOS": layers((80, ""), (4, ""), (1, "")),
    "boxes and classes of one scale": layers((4, ""), (5, "Sigmoid"), strides=(32,)),
    "SSD of three anchors": of_anchors(4, 2, anchors=(3, 3, 3)),
    "YOLOv5-face, four landmarks": yolov5_face_like((8, ""), (1, "Sigmoid")),
    "YOLOv5-face, six landmarks": yolov5_face_like((12, ""), (1, "Sigmoid")),
    "YOLOv5-face, confidences of landmarks": yolov5_face_like((10, "Sigmoid"), (1, "Sigmoid")),
    "YOLOv5-face, a class that is no probability": yolov5_face_like((10, ""), (1, "")),
    "YOLOv7, poses": yolov5_face_like((1, "Sigmoid"), (10, "")),
    "FaceBoxes with landmarks": faceboxes_of(4, 2, 10),
    "FaceBoxes of three classes": faceboxes_of(4, 3),
    "FaceBoxes of one anchor less": faceboxes_of(4, 2, anchors=(20, 1, 1)),
    "FaceBoxes of smaller strides": faceboxes_of(4, 2, strides=(16, 32, 64)),
    "SeetaFace6 of three classes": seetaface6_of(3),
    "YuNet of 2021, six landmarks": of_anchors(16, 2, 1, anchors=(3, 2, 2, 3)),
    "YuNet of 2021 without an IoU": of_anchors(14, 2, anchors=(3, 2, 2, 3)),
    "two classifiers": lambda graph: [classifier(graph, 4), classifier(graph, 10)],
}


def test_landmarks_between_objectness_and_class_are_left_out():
    """The look-alikes above differ from this in what comes behind the objectness only."""
    graph = Graph(size=SIZE)
    model = graph.model(yolov5_face_like((10, ""), (1, "Sigmoid"))(graph))
    _, contract = read(model, image=image_of(SIZE))
    assert contract.family == "YOLOv5-face, decoded"
    assert contract.class_count == 1


def test_sizes_of_maps_tell_seetaface6_from_faceboxes():
    """Older FaceBoxes give them, too, but take BGR: a note says so."""
    graph = Graph(size=SIZE)
    _, contract = read(graph.model(seetaface6_of(2)(graph)), image=image_of(SIZE))
    assert contract.family == "SeetaFace6"
    assert not contract.preprocessing.bgr
    ((step, assumption),) = contract.assumed_preprocessing
    assert step == "values"
    assert assumption.endswith("pass --preprocess bgr,mean=104:117:123")


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_of_no_family_is_refused(name):
    sizes = {"BlazeFace, seven landmarks": (128, 128)}
    graph = Graph(size=sizes.get(name, SIZE))
    with pytest.raises(ModelError) as refused:
        read(graph.model(OTHERS[name](graph)), image=image_of(graph.size))
    assert refused.value.exit_code == 4
