"""Detectors of faces whose layers' numbers a graph leaves as they are, as in cell_graphs.py."""

import itertools

import numpy as np
import onnx
from cell_layers import around, cells, in_rows, joined, layer, listed, rows_and_columns
from graph_builder import corners, sigmoid


def yunet(graph, classes):
    """Scores, objectness, boxes and landmarks [1, N, x] of each scale."""
    outputs = {}
    kinds = {"cls": (classes, "Sigmoid"), "obj": (1, "Sigmoid"), "bbox": (4, ""), "kps": (10, "")}
    for (name, (channels, final)), stride in itertools.product(kinds.items(), (8, 16, 32)):
        tensor = in_rows(graph, layer(graph, channels, stride), channels)
        outputs[f"{name}{stride}"] = graph(final, tensor) if final else tensor
    return outputs


def yunet_expected(out, size):
    pairs = []
    for stride in (8, 16, 32):
        box = out[f"bbox{stride}"]
        centre = (cells(size, stride) + box[:, :2]) * stride
        scores = np.sqrt(out[f"cls{stride}"] * out[f"obj{stride}"])
        pairs.append((np.concatenate([centre, np.exp(box[:, 2:]) * stride], 1), scores))
    boxes, scores = joined(pairs)
    return corners(boxes), scores


SMALL_FACE_SIDES = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
"""Sides of the priors of each stride, of UltraFace and of those that came from it."""


def ultraface_priors(size):
    """Centre and size as fractions, in the order of `generate_priors`, and clipped as there."""
    priors = []
    for stride, lengths in SMALL_FACE_SIDES.items():
        rows, columns = rows_and_columns(size, stride)
        for y, x, side in itertools.product(range(rows), range(columns), lengths):
            centre = (x + 0.5) / columns, (y + 0.5) / rows
            priors.append(list(centre) + [side / size[1], side / size[0]])
    return np.array(priors, np.float32).clip(0, 1)


def ultraface(graph, classes, *, decoded):
    """Shares of no face and a face [1, N, 2], and boxes [1, N, 4]."""
    del classes
    shares = []
    boxes = []
    for stride, anchor_count in ((8, 3), (16, 2), (32, 2), (64, 3)):
        shares.append(in_rows(graph, layer(graph, 2 * anchor_count, stride), 2))
        boxes.append(in_rows(graph, layer(graph, 4 * anchor_count, stride), 4))
    change = graph.concat(boxes, axis=1)
    if decoded:
        priors = ultraface_priors(graph.size)[None]
        moved = graph("Mul", graph.cut(change, 0, 2, 2), np.float32(0.1))
        centre = graph("Add", graph("Mul", moved, priors[..., 2:]), priors[..., :2])
        grown = graph("Exp", graph("Mul", graph.cut(change, 2, 4, 2), np.float32(0.2)))
        length = graph("Mul", grown, priors[..., 2:])
        half = graph("Div", length, np.float32(2))
        change = graph("Concat", graph("Sub", centre, half), graph("Add", centre, half), axis=2)
    return {"scores": graph("Softmax", graph.concat(shares, axis=1), axis=2), "boxes": change}


def with_variances(change, priors):
    """Centre and size from offsets of priors, with variances of 0.1 and 0.2."""
    centre = priors[:, :2] + change[:, :2] * 0.1 * priors[:, 2:]
    return np.concatenate([centre, priors[:, 2:] * np.exp(change[:, 2:] * 0.2)], 1)


def ultraface_expected(out, size, *, decoded):
    boxes = out["boxes"]
    if not decoded:
        boxes = corners(with_variances(boxes, ultraface_priors(size)))
    return boxes * np.array(list(size[::-1]) * 2), out["scores"][:, 1:]


def scrfd(graph, classes, *, landmarks, batched=False):
    """Scores, then distances, then landmarks of each scale, of two anchors a cell."""
    del classes
    outputs = {}
    kinds = {"score": 1, "bbox": 4} | ({"kps": 10} if landmarks else {})
    for (name, width), stride in itertools.product(kinds.items(), (8, 16, 32)):
        rows = in_rows(graph, layer(graph, 2 * width, stride), width, batched=batched)
        outputs[f"{name}{stride}"] = graph("Sigmoid", rows) if name == "score" else rows
    return outputs


def scrfd_expected(out, size):
    pairs = []
    for stride in (8, 16, 32):
        points = cells(size, stride, 2) * stride
        pairs.append((around(points, out[f"bbox{stride}"] * stride), out[f"score{stride}"]))
    return joined(pairs)


def retinaface_mxnet(graph, classes):
    """Maps for 32, 16 and 8: shares of no face, then of a face, of two anchors; then the rest."""
    del classes
    outputs = {}
    for stride in (32, 16, 8):
        rows, columns = rows_and_columns(graph.size, stride)
        apart = graph("Reshape", layer(graph, 4, stride), [1, 2, 2 * rows, columns])
        shares = graph("Softmax", apart, axis=1)
        outputs[f"cls{stride}"] = graph("Reshape", shares, [1, 4, rows, columns])
        outputs[f"bbox{stride}"] = layer(graph, 8, stride)
        outputs[f"landmark{stride}"] = layer(graph, 20, stride)
    return outputs


def retinaface_mxnet_expected(out, size):
    pairs = []
    for stride, lengths in ((32, (32, 16)), (16, (8, 4)), (8, (2, 1))):
        cell_centre = cells(size, stride, 2) * stride + 8
        sides_of_cell = 16 * np.array(lengths).reshape(2, 1)
        sides = np.tile(sides_of_cell, (len(cell_centre) // 2, 1))
        change = listed(out[f"bbox{stride}"], 4)
        centre = cell_centre + change[:, :2] * sides
        length = np.exp(change[:, 2:]) * sides
        scores = listed(out[f"cls{stride}"][2:], 1)
        pairs.append((np.concatenate([centre, length], 1), scores))
    boxes, scores = joined(pairs)
    return corners(boxes), scores


def retinaface(graph, classes, *, points=10):
    """All scales: boxes [1, N, 4], shares of no face and a face [1, N, 2], landmarks [1, N, 10]."""
    del classes
    outputs = {}
    for name, width in (("loc", 4), ("conf", 2), ("landms", points)):
        maps = []
        for stride in (8, 16, 32):
            maps.append(in_rows(graph, layer(graph, 2 * width, stride), width))
        outputs[name] = graph.concat(maps, axis=1)
    return outputs | {"conf": graph("Softmax", outputs["conf"], axis=-1)}


def retinaface_expected(out, size, *, smallest=16):
    priors = []
    for stride, lengths in ((8, (1, 2)), (16, (4, 8)), (32, (16, 32))):
        centre = (cells(size, stride, 2) + 0.5) * stride
        sides_of_cell = [[length * smallest] * 2 for length in lengths]
        sides = np.tile(sides_of_cell, (len(centre) // 2, 1))
        priors.append(np.concatenate([centre, sides], 1))
    return corners(with_variances(out["loc"], np.concatenate(priors))), out["conf"][:, 1:]


def face_1mb(graph, classes):
    """All scales: boxes [1, N, 4], shares of no face and a face [1, N, 2], landmarks [1, N, 10]."""
    del classes
    outputs = {}
    for name, width in (("loc", 4), ("conf", 2), ("landms", 10)):
        maps = []
        for stride, sides in SMALL_FACE_SIDES.items():
            maps.append(in_rows(graph, layer(graph, len(sides) * width, stride), width))
        outputs[name] = graph.concat(maps, axis=1)
    return outputs | {"conf": graph("Softmax", outputs["conf"], axis=-1)}


def face_1mb_expected(out, size):
    """The priors lie at the centres of cells that are as large as the stride, and are not cut."""
    priors = []
    for stride, sides in SMALL_FACE_SIDES.items():
        rows, columns = rows_and_columns(size, stride)
        for row, column, side in itertools.product(range(rows), range(columns), sides):
            centre = (column + 0.5) * stride, (row + 0.5) * stride
            priors.append(list(centre) + [side, side])
    boxes = with_variances(out["loc"], np.array(priors, np.float32))
    return corners(boxes), out["conf"][:, 1:]


FACEBOXES_ANCHORS = {32: 21, 64: 1, 128: 1}  # of a cell, by stride


def faceboxes(graph, classes):
    """All scales: boxes [1, N, 4], and shares of no face and a face [1, N, 2].

    As its `forward` has it: each scale is flattened, joined and then divided again.
    """
    del classes
    outputs = {}
    for name, width in (("loc", 4), ("conf", 2)):
        flat = []
        for stride, anchor_count in FACEBOXES_ANCHORS.items():
            maps = layer(graph, anchor_count * width, stride)
            last = graph("Transpose", maps, perm=[0, 2, 3, 1])
            flat.append(graph("Reshape", last, [1, -1]))
        outputs[name] = graph("Reshape", graph.concat(flat, axis=1), [1, -1, width])
    return outputs | {"conf": graph("Softmax", outputs["conf"], axis=-1)}


def faceboxes_expected(out, size):
    """As its `PriorBox` has it: anchors of 32 are 4 x 4 in a cell, those of 64 are 2 x 2."""
    positions = {32: (0, 0.25, 0.5, 0.75), 64: (0, 0.5)}
    priors = []
    for stride, sides in {32: (32, 64, 128), 64: (256,), 128: (512,)}.items():
        rows, columns = rows_and_columns(size, stride)
        for row, column, side in itertools.product(range(rows), range(columns), sides):
            inside = positions.get(side, (0.5,))
            for y, x in itertools.product(inside, inside):
                priors.append([(column + x) * stride, (row + y) * stride, side, side])
    boxes = with_variances(out["loc"], np.array(priors, np.float32))
    return corners(boxes), out["conf"][:, 1:]


def seetaface6(graph, classes):
    """Boxes [1, N, 4], shares of no face and a face [N, 2], and the sizes of the maps [3, 2]."""
    del classes
    maps = {"loc": [], "conf": []}
    for name, width in (("loc", 4), ("conf", 2)):
        for stride, anchor_count in FACEBOXES_ANCHORS.items():
            maps[name].append(layer(graph, anchor_count * width, stride))

    boxes = []
    for tensor in maps["loc"]:
        boxes.append(in_rows(graph, tensor, 4))
    shares = []
    for tensor in maps["conf"]:
        shares.append(in_rows(graph, tensor, 2, batched=False))
    sizes = []
    for tensor in maps["loc"]:
        size = graph("Gather", graph("Shape", tensor), [2, 3], axis=0)
        sizes.append(graph("Unsqueeze", size, [0]))
    return {
        "loc": graph.concat(boxes, axis=1),
        "conf": graph("Softmax", graph.concat(shares, axis=0), axis=-1),
        "sizes": graph("Cast", graph.concat(sizes, axis=0), to=onnx.TensorProto.FLOAT),
    }


def floored_layer(graph, channels, stride):
    """A map of whole cells only: what is left of the sides has none."""
    weights = graph.weights(channels, 3, stride, stride)
    bias = graph.random.standard_normal(channels).astype(np.float32)
    kernel = {"kernel_shape": [stride] * 2, "strides": [stride] * 2}
    return graph("Conv", "images", weights, bias, **kernel)


def yunet_2021(graph, classes):
    """All scales: boxes with landmarks [1, N, 14], shares [1, N, 2] and expected IoU [1, N, 1]."""
    del classes
    outputs = {}
    for name, width in (("loc", 14), ("conf", 2), ("iou", 1)):
        maps = []
        for stride, sides in SMALL_FACE_SIDES.items():
            maps.append(in_rows(graph, floored_layer(graph, len(sides) * width, stride), width))
        outputs[name] = graph.concat(maps, axis=1)
    iou = graph("Add", graph("Mul", outputs["iou"], np.float32(0.1)), np.float32(0.8))
    return {**outputs, "conf": graph("Softmax", outputs["conf"], axis=-1), "iou": iou}


def yunet_2021_expected(out, size):
    """A score is the root of share and IoU, which is cut off at 0 and 1.

    Boxes are those that the network was trained on; OpenCV's port took the variance of centres for
    widths, too.
    """
    priors = []
    for stride, sides in SMALL_FACE_SIDES.items():
        rows = size[0] // stride
        columns = size[1] // stride
        for row, column, side in itertools.product(range(rows), range(columns), sides):
            centre = (column + 0.5) * stride, (row + 0.5) * stride
            priors.append(list(centre) + [side, side])
    boxes = with_variances(out["loc"][:, :4], np.array(priors, np.float32))
    return corners(boxes), np.sqrt(out["conf"][:, 1:] * out["iou"].clip(0, 1))


YOLOV5_FACE_ANCHORS = {
    8: [[4, 5], [8, 10], [13, 16]],
    16: [[23, 29], [43, 55], [73, 105]],
    32: [[146, 217], [231, 300], [335, 433]],
}

YOLOV5_FACE_P6_ANCHORS = {
    8: [[6, 7], [9, 11], [13, 16]],
    16: [[18, 23], [26, 33], [37, 47]],
    32: [[54, 67], [77, 104], [112, 154]],
    64: [[174, 238], [258, 355], [445, 568]],
}


def yolov5_face(graph, classes, *, anchors_of_strides, class_bias=4.1):
    """A map [1, 3, H, W, 16] of each scale: box, objectness, five landmarks and the class."""
    columns = 15 + classes
    outputs = {}
    for stride in anchors_of_strides:
        weights = graph.weights(3 * columns, 3, 3, 3)
        biases = graph.random.standard_normal((3, columns)).astype(np.float32)
        biases[:, 15:] = class_bias
        kernel = {"kernel_shape": [3, 3], "strides": [stride] * 2, "auto_pad": "SAME_UPPER"}
        maps = graph("Conv", "images", weights, biases.ravel(), **kernel)
        map_height, map_width = rows_and_columns(graph.size, stride)
        apart = graph("Reshape", maps, [1, 3, columns, map_height, map_width])
        outputs[f"stride_{stride}"] = graph("Transpose", apart, perm=[0, 1, 3, 4, 2])
    return outputs


def yolov5_face_expected(out, size, *, anchors_of_strides):
    """As `Detect.forward` has it: the scores are products of objectness and class."""
    del size
    pairs = []
    for stride, sides in anchors_of_strides.items():
        shares = sigmoid(out[f"stride_{stride}"])  # (3, H, W, 16)
        rows, columns = np.indices(shares.shape[1:3])
        cell = np.stack([columns, rows], -1)  # (H, W, 2)
        centre = (shares[..., :2] * 2 - 0.5 + cell) * stride
        length = (shares[..., 2:4] * 2) ** 2 * np.array(sides).reshape(3, 1, 1, 2)
        boxes = np.concatenate([centre, length], -1).reshape(-1, 4)
        scores = shares[..., 4:5] * shares[..., 15:]
        pairs.append((boxes, scores.reshape(len(boxes), -1)))
    boxes, scores = joined(pairs)
    return corners(boxes), scores


def yolov5_face_decoded(graph, classes):
    """Rows [1, N, 15 + classes]: box, objectness, five landmarks and class, as with `export_cat`.

    The numbers are added to zeros, from which they are cut.
    """
    columns = 15 + classes
    scales = []
    for stride, sides in YOLOV5_FACE_ANCHORS.items():
        height, width = rows_and_columns(graph.size, stride)
        maps = graph("Reshape", layer(graph, 3 * columns, stride), [1, 3, columns, height, width])
        last = graph("Transpose", maps, perm=[0, 1, 3, 4, 2])
        shares = graph("Sigmoid", graph.cut(last, 0, 5, 4))
        class_share = graph("Sigmoid", graph.cut(last, 15, columns, 4))
        behind = graph("Concat", graph.cut(last, 5, 15, 4), class_share, axis=4)
        zeros = graph("ConstantOfShape", graph("Shape", last))
        numbers = graph("Add", zeros, graph("Concat", shares, behind, axis=4))

        cell_rows, cell_columns = np.indices((height, width))
        cell = np.stack([cell_columns, cell_rows], -1)[None, None].astype(np.float32)
        anchor_sides = np.array(sides, np.float32).reshape(1, 3, 1, 1, 2)
        doubled = graph("Mul", graph.cut(numbers, 0, 2, 4), np.float32(2))
        moved = graph("Add", graph("Sub", doubled, np.float32(0.5)), cell)
        centre = graph("Mul", moved, np.float32(stride))
        grown = graph("Mul", graph.cut(numbers, 2, 4, 4), np.float32(2))
        length = graph("Mul", graph("Pow", grown, np.float32(2)), anchor_sides)
        parts = [centre, length, graph.cut(numbers, 4, 5, 4)]
        for start in range(5, 15, 2):
            offset = graph("Mul", graph.cut(numbers, start, start + 2, 4), anchor_sides)
            parts.append(graph("Add", offset, cell * np.float32(stride)))
        parts.append(graph.cut(numbers, 15, columns, 4))
        scales.append(graph("Reshape", graph.concat(parts, axis=-1), [1, -1, columns]))
    return {"rows": graph.concat(scales, axis=1)}


def yolov5_face_decoded_expected(out, size):
    """As `non_max_suppression_face` has it: the class of a face times its objectness."""
    del size
    rows = out["rows"]
    return corners(rows[:, :4]), rows[:, 15:] * rows[:, 4:5]


def centerface(graph, classes):
    """Maps of stride 4: heat, scale, offset and landmarks; y before x."""
    del classes
    return {
        "heat": layer(graph, 1, 4, "Sigmoid"),
        "scale": layer(graph, 2, 4),
        "offset": layer(graph, 2, 4),
        "landmarks": layer(graph, 10, 4),
    }


def centerface_expected(out, size):
    offset = listed(out["offset"], 2)[:, ::-1]
    scale = listed(out["scale"], 2)[:, ::-1]
    centre = (cells(size, 4) + offset + 0.5) * 4
    return corners(np.concatenate([centre, np.exp(scale) * 4], 1)), listed(out["heat"], 1)


def blazeface(graph, classes, *, joins=True):
    """Boxes and six landmarks [1, N, 16] and scores [1, N, 1], of 2 and 6 anchors a cell."""
    del classes
    outputs = {}
    stride = graph.size[0] // 16
    for name, width in (("regressors", 16), ("classificators", 1)):
        fine = layer(graph, 2 * width, stride)
        outputs[f"{name}1"] = in_rows(graph, fine, width)
        coarse = layer(graph, 6 * width, 2 * stride)
        outputs[f"{name}2"] = in_rows(graph, coarse, width)
    if not joins:
        return outputs

    regressors = graph("Concat", outputs["regressors1"], outputs["regressors2"], axis=1)
    scores = graph("Concat", outputs["classificators1"], outputs["classificators2"], axis=1)
    return {"regressors": regressors, "classificators": scores}


def blazeface_expected(out, size):
    if "regressors" in out:
        numbers = out["regressors"]
        scores = out["classificators"]
    else:
        numbers = np.concatenate([out["regressors1"], out["regressors2"]])
        scores = np.concatenate([out["classificators1"], out["classificators2"]])
    stride = size[0] // 16
    fine_centre = (cells(size, stride, 2) + 0.5) * stride
    coarse_centre = (cells(size, 2 * stride, 6) + 0.5) * (2 * stride)
    centre = np.concatenate([fine_centre, coarse_centre])
    boxes = np.concatenate([centre + numbers[:, :2], numbers[:, 2:4]], 1)
    return corners(boxes), sigmoid(scores)


def blazeface_full(graph, classes):
    """Boxes and six landmarks [1, N, 16] and scores [1, N, 1], of an anchor a cell of 4 pixels."""
    del classes
    regressors = in_rows(graph, layer(graph, 16, 4), 16)
    return {"regressors": regressors, "classificators": in_rows(graph, layer(graph, 1, 4), 1)}


def blazeface_full_expected(out, size):
    centre = (cells(size, 4) + 0.5) * 4
    numbers = out["regressors"]
    boxes = np.concatenate([centre + numbers[:, :2], numbers[:, 2:4]], 1)
    return corners(boxes), sigmoid(out["classificators"])
