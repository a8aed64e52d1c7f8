"""Detectors whose layers' numbers a graph leaves as they are, a row for each way of exporting.

Each is built as its family's own code exports it, and comes with what that code makes of the file's
outputs, written from it in plain NumPy: the boxes of all anchors and the scores of all classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from cell_faces import (
    YOLOV5_FACE_ANCHORS,
    YOLOV5_FACE_P6_ANCHORS,
    blazeface,
    blazeface_expected,
    blazeface_full,
    blazeface_full_expected,
    centerface,
    centerface_expected,
    face_1mb,
    face_1mb_expected,
    faceboxes,
    faceboxes_expected,
    retinaface,
    retinaface_expected,
    retinaface_mxnet,
    retinaface_mxnet_expected,
    scrfd,
    scrfd_expected,
    seetaface6,
    ultraface,
    ultraface_expected,
    yolov5_face,
    yolov5_face_decoded,
    yolov5_face_decoded_expected,
    yolov5_face_expected,
    yunet,
    yunet_2021,
    yunet_2021_expected,
    yunet_expected,
)
from cell_layers import (
    SIZE,
    Size,
    around,
    cells,
    cells_of_scales,
    in_rows,
    joined,
    layer,
    mean_of_bins,
    row_per_cell,
)
from graph_builder import Arrays, Graph, corners, sigmoid, softmax


@dataclass(frozen=True)
class Export:
    """A way to export a family.

    Attributes:
        family: As detcli is to name it.
        build: Adds the nodes for C classes; returns the output tensors by what they hold.
        expected: From these outputs of one image, without a batch, and the size of the input:
            boxes (N, 4) x1, y1, x2, y2 in pixels of the input and scores (N, C).
        sizes: The inputs to try; the first is the usual one.
        classes: Of how many it has models, the usual number first.
        one_class: Whether only the best class of each box counts.
        at: The size that its files say, where they take any.
        frees: Whether its files may take any size.
    """

    family: str
    build: Callable[[Graph, int], dict[str, str]]
    expected: Callable[[Arrays, Size], tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    sizes: tuple[Size, ...] = (SIZE, (192, 128))
    classes: tuple[int, ...] = (3, 1, 4, 80)
    one_class: bool = False
    at: Size | None = None
    frees: bool = True


def yolov8(graph, classes, *, apart=False):
    """The head in training mode: boxes in 16 bins, then the classes, of each scale."""
    outputs = {}
    for stride in (8, 16, 32):
        boxes = layer(graph, 64, stride)
        scores = layer(graph, classes, stride)
        if apart:
            outputs[f"box{stride}"] = boxes
            outputs[f"class{stride}"] = scores
        else:
            outputs[f"map{stride}"] = graph("Concat", boxes, scores, axis=1)
    return outputs


def yolov8_expected(out, size):
    pairs = []
    for stride in (8, 16, 32):
        if f"map{stride}" in out:
            rows = row_per_cell(out[f"map{stride}"])
            bins = rows[:, :64]
            logits = rows[:, 64:]
        else:
            bins = row_per_cell(out[f"box{stride}"])
            logits = row_per_cell(out[f"class{stride}"])
        points = cells(size, stride) + 0.5
        boxes = around(points, mean_of_bins(bins, 16)) * stride
        pairs.append((boxes, sigmoid(logits)))
    return joined(pairs)


def yolov6(graph, classes):
    """RKNN's model zoo: distances and final scores of each scale."""
    outputs = {}
    for stride in (8, 16, 32):
        outputs[f"box{stride}"] = layer(graph, 4, stride)
        outputs[f"class{stride}"] = layer(graph, classes, stride, "Sigmoid")
    return outputs


def yolov6_expected(out, size):
    pairs = []
    for stride in (8, 16, 32):
        sides = row_per_cell(out[f"box{stride}"])
        boxes = around(cells(size, stride) + 0.5, sides) * stride
        pairs.append((boxes, row_per_cell(out[f"class{stride}"])))
    return joined(pairs)


def yolox(graph, classes, *, apart=False):
    """As accelerators want it: box, objectness and classes, none of them final."""
    maps = {}
    for stride in (8, 16, 32):
        boxes = layer(graph, 4, stride)
        objectness = layer(graph, 1, stride)
        scores = layer(graph, classes, stride)
        maps[f"map{stride}"] = graph("Concat", boxes, objectness, scores, axis=1)
    if apart:
        return maps

    flat = []
    for feature_map in maps.values():
        flat.append(graph.flat(feature_map, 5 + classes))
    return {"rows": graph.swapped(graph.concat(flat, axis=2))}


def yolox_expected(out, size):
    if "rows" in out:
        rows = out["rows"]
    else:
        fine = row_per_cell(out["map8"])
        middle = row_per_cell(out["map16"])
        coarse = row_per_cell(out["map32"])
        rows = np.concatenate([fine, middle, coarse])
    grid, strides = cells_of_scales(size, (8, 16, 32))
    boxes = np.concatenate([(rows[:, :2] + grid) * strides, np.exp(rows[:, 2:4]) * strides], 1)
    return corners(boxes), sigmoid(rows[:, 4:5]) * sigmoid(rows[:, 5:])


def nanodet(graph, classes, *, strides=(8, 16, 32), final="Sigmoid", batched=True):
    """`cls_pred_stride_8` and its like [1, N, C], then `dis_pred_stride_8` [1, N, 32].

    Without a batch, those of a scale are next to each other.
    """
    outputs = {}
    for stride in strides:
        scores = layer(graph, classes, stride, final)
        sides = layer(graph, 32, stride)
        outputs[f"cls{stride}"] = in_rows(graph, scores, classes, batched=batched)
        outputs[f"dis{stride}"] = in_rows(graph, sides, 32, batched=batched)
    return dict(sorted(outputs.items(), key=lambda item: item[0][:3])) if batched else outputs


def of_bins(strides, centre, *, final=True):
    """Boxes around points that are `centre(stride)` from the top left of their cells."""

    def expected(out, size):
        pairs = []
        for stride in strides:
            points = cells(size, stride) * stride + centre(stride)
            scores = out[f"cls{stride}"]
            boxes = around(points, mean_of_bins(out[f"dis{stride}"], 8) * stride)
            pairs.append((boxes, scores if final else sigmoid(scores)))
        return joined(pairs)

    return expected


def nanodet_plus(graph, classes):
    """All scales and both kinds in one tensor [1, N, C + 32]."""
    maps = []
    for stride in (8, 16, 32, 64):
        parts = layer(graph, classes, stride, "Sigmoid"), layer(graph, 32, stride)
        maps.append(graph.flat(graph.concat(parts, axis=1), classes + 32))
    return {"rows": graph.swapped(graph.concat(maps, axis=2))}


def nanodet_plus_expected(out, size):
    grid, strides = cells_of_scales(size, (8, 16, 32, 64))
    scores = out["rows"][:, :-32]
    bins = out["rows"][:, -32:]
    return around(grid * strides, mean_of_bins(bins, 8) * strides), scores


def fastestdet(graph, classes, *, rows=False):
    """A map [1, 5 + C, H, W] of objectness, box and shares of the classes, or rows of it."""
    shares = graph("Softmax", layer(graph, classes, 16), axis=1)
    parts = layer(graph, 1, 16, "Sigmoid"), layer(graph, 4, 16), shares
    maps = graph.concat(parts, axis=1)
    return {"head": in_rows(graph, maps, 5 + classes, batched=False) if rows else maps}


def fastestdet_expected(out, size):
    head = out["head"]
    if head.ndim == 3:
        head = row_per_cell(head)
    sides = np.array([-(-size[1] // 16), -(-size[0] // 16)])
    centre = (np.tanh(head[:, 1:3]) + cells(size, 16)) / sides * size[::-1]
    boxes = np.concatenate([centre, sigmoid(head[:, 3:5]) * size[::-1]], 1)
    return corners(boxes), head[:, :1] ** 0.6 * head[:, 5:] ** 0.4


FASTEST = {
    16: [[12.64, 19.39], [37.88, 51.48], [55.71, 138.31]],
    32: [[126.91, 78.23], [131.57, 214.55], [279.92, 258.87]],
}


def yolo_fastest(graph, classes, *, listed_in_one=True, final=True):
    """Three boxes and objectnesses, and one set of classes, of each cell."""
    outputs = {}
    for stride in FASTEST:
        if final:
            boxes = layer(graph, 12, stride, "Sigmoid")
            objectness = layer(graph, 3, stride, "Sigmoid")
            shares = graph("Softmax", layer(graph, classes, stride), axis=1)
            maps = graph("Concat", boxes, objectness, shares, axis=1)
            outputs[f"map{stride}"] = graph("Transpose", maps, perm=[0, 2, 3, 1])
        else:  # as trained: six maps
            outputs[f"reg{stride}"] = layer(graph, 12, stride)
            outputs[f"obj{stride}"] = layer(graph, 3, stride)
            outputs[f"cls{stride}"] = layer(graph, classes, stride)
    if not listed_in_one:
        return outputs

    rows = []
    for tensor in outputs.values():
        rows.append(graph("Reshape", tensor, [-1, 15 + classes]))
    return {"rows": graph.concat(rows, axis=0)}


def yolo_fastest_expected(out, size):
    if "rows" in out:
        count = len(cells(size, 16))
        rows_by_stride = {16: out["rows"][:count], 32: out["rows"][count:]}
    elif "map16" in out:
        columns = out["map16"].shape[-1]
        rows_by_stride = {
            16: out["map16"].reshape(-1, columns),
            32: out["map32"].reshape(-1, columns),
        }
    else:
        rows_by_stride = {}
        for stride in FASTEST:
            boxes = sigmoid(row_per_cell(out[f"reg{stride}"]))
            objectness = sigmoid(row_per_cell(out[f"obj{stride}"]))
            shares = softmax(row_per_cell(out[f"cls{stride}"]))
            rows_by_stride[stride] = np.concatenate([boxes, objectness, shares], 1)

    pairs = []
    for stride, rows in rows_by_stride.items():
        box = rows[:, :12].reshape(-1, 4)
        cell = cells(size, stride, 3)
        sides = np.tile(FASTEST[stride], (len(rows), 1))
        centre = (box[:, :2] * 2 - 0.5 + cell) * stride
        scores = rows[:, 12:15].reshape(-1, 1) * np.repeat(rows[:, 15:], 3, axis=0)
        pairs.append((np.concatenate([centre, (box[:, 2:] * 2) ** 2 * sides], 1), scores))
    boxes, scores = joined(pairs)
    return corners(boxes), scores


FACES = (1,)
LARGE = ((240, 320), (480, 640))
EXPORTS = {
    "YOLOv8, raw": Export("YOLO, scales apart", yolov8, yolov8_expected),
    "YOLOv8, raw, boxes apart": Export(
        "YOLO, scales apart", partial(yolov8, apart=True), yolov8_expected, classes=(3, 1, 80)
    ),
    "YOLOv6": Export("YOLOv6, scales apart", yolov6, yolov6_expected),
    "YOLOX, raw": Export("YOLOX", yolox, yolox_expected, classes=(3, 1, 32, 80)),
    "YOLOX, raw, scales apart": Export("YOLOX", partial(yolox, apart=True), yolox_expected),
    "NanoDet": Export("NanoDet", nanodet, of_bins((8, 16, 32), lambda stride: (stride - 1) / 2)),
    "NanoDet, logits without a batch": Export(
        "NanoDet",
        partial(nanodet, final="", batched=False),
        of_bins((8, 16, 32), lambda stride: (stride - 1) / 2, final=False),
        classes=(3, 1, 80),
    ),
    "NanoDet-Plus": Export("NanoDet-Plus", nanodet_plus, nanodet_plus_expected),
    "PicoDet": Export(
        "PicoDet",
        partial(nanodet, strides=(8, 16, 32, 64)),
        of_bins((8, 16, 32, 64), lambda stride: stride / 2),
    ),
    "YuNet": Export("YuNet", yunet, yunet_expected, classes=FACES),
    "FastestDet": Export("FastestDet", fastestdet, fastestdet_expected, one_class=True),
    "FastestDet, rows": Export(
        "FastestDet", partial(fastestdet, rows=True), fastestdet_expected, one_class=True
    ),
    "Yolo-FastestV2": Export("Yolo-FastestV2", yolo_fastest, yolo_fastest_expected, one_class=True),
    "Yolo-FastestV2, scales apart": Export(
        "Yolo-FastestV2",
        partial(yolo_fastest, listed_in_one=False),
        yolo_fastest_expected,
        one_class=True,
    ),
    "Yolo-FastestV2, as trained": Export(
        "Yolo-FastestV2",
        partial(yolo_fastest, listed_in_one=False, final=False),
        yolo_fastest_expected,
        classes=(80, 1, 3),  # 3 are as many as there are boxes of a cell
        one_class=True,
    ),
    "UltraFace": Export(
        "UltraFace",
        partial(ultraface, decoded=True),
        partial(ultraface_expected, decoded=True),
        LARGE,
        FACES,
    ),
    "UltraFace, raw": Export(
        "UltraFace",
        partial(ultraface, decoded=False),
        partial(ultraface_expected, decoded=False),
        LARGE,
        FACES,
    ),
    "SCRFD": Export("SCRFD", partial(scrfd, landmarks=False), scrfd_expected, classes=FACES),
    "SCRFD with landmarks": Export(
        "SCRFD", partial(scrfd, landmarks=True), scrfd_expected, classes=FACES
    ),
    "SCRFD with landmarks and a batch": Export(
        "SCRFD", partial(scrfd, landmarks=True, batched=True), scrfd_expected, classes=FACES
    ),
    "RetinaFace, MXNet": Export(
        "RetinaFace, MXNet",
        retinaface_mxnet,
        retinaface_mxnet_expected,
        classes=FACES,
        frees=False,
    ),
    "RetinaFace": Export("RetinaFace", retinaface, retinaface_expected, classes=FACES),
    "RetinaFace, plates": Export(
        "RetinaFace, plates",
        partial(retinaface, points=8),
        partial(retinaface_expected, smallest=24),
        classes=FACES,
    ),
    "YuNet of 2021": Export(
        "YuNet of 2021",
        yunet_2021,
        yunet_2021_expected,
        (SIZE, (120, 160), (320, 320)),
        FACES,
    ),
    "YOLOv5-face": Export(
        "YOLOv5-face",
        partial(yolov5_face, anchors_of_strides=YOLOV5_FACE_ANCHORS),
        partial(yolov5_face_expected, anchors_of_strides=YOLOV5_FACE_ANCHORS),
        classes=FACES,
        frees=False,
    ),
    "YOLOv5-face, P6": Export(
        "YOLOv5-face, P6",
        partial(yolov5_face, anchors_of_strides=YOLOV5_FACE_P6_ANCHORS),
        partial(yolov5_face_expected, anchors_of_strides=YOLOV5_FACE_P6_ANCHORS),
        classes=FACES,
        frees=False,
    ),
    "YOLOv5-face, decoded": Export(
        "YOLOv5-face, decoded",
        yolov5_face_decoded,
        yolov5_face_decoded_expected,
        (SIZE, (192, 128), (320, 320)),
        FACES,
        frees=False,
    ),
    "Face-Detector-1MB": Export(
        "Face-Detector-1MB", face_1mb, face_1mb_expected, (SIZE, (320, 320)), FACES
    ),
    "FaceBoxes": Export(
        "FaceBoxes",
        faceboxes,
        faceboxes_expected,
        (SIZE, (192, 128), (1024, 1024), (160, 224), (100, 150)),
        FACES,
    ),
    "SeetaFace6": Export(
        "SeetaFace6",
        seetaface6,
        faceboxes_expected,
        (SIZE, (192, 128), (1024, 1024), (160, 224), (100, 150)),
        FACES,
    ),
    "CenterFace": Export("CenterFace", centerface, centerface_expected, classes=FACES, at=(32, 32)),
    "BlazeFace": Export(
        "BlazeFace", blazeface, blazeface_expected, ((128, 128), (256, 256)), FACES
    ),
    "BlazeFace, full range": Export(
        "BlazeFace, full range",
        blazeface_full,
        blazeface_full_expected,
        ((192, 192),),
        FACES,
    ),
    "BlazeFace, scales apart": Export(
        "BlazeFace",
        partial(blazeface, joins=False),
        blazeface_expected,
        ((128, 128), (256, 256)),
        FACES,
    ),
}
