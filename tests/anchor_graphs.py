"""Heads whose boxes belong to cells or anchors, as the families' own code computes them."""

import numpy as np
from graph_builder import (
    HEIGHT,
    SIZES,
    STRIDES,
    WIDTH,
    Ending,
    corners,
    grid,
    softmax,
    split_corners,
)
from onnx import TensorProto


def distances(graph, *, centres, pixels=True, bins=16):
    """YOLOv8's boxes [B, 4, N]: the mean of a distribution of 16 distances, from each cell.

    YOLO26's are distances themselves: one bin.
    """
    sides = graph.maps(4 * bins)
    if bins > 1:
        apart = graph("Reshape", sides, [0, 4, bins, -1])
        shares = graph("Softmax", graph("Transpose", apart, perm=[0, 2, 1, 3]), axis=1)
        mean = graph("Conv", shares, np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
        sides = graph("Reshape", mean, [0, 4, -1])
    cells, strides = grid()
    points = (cells + np.float32(0.5)).T[None]
    low = graph("Sub", points, graph.cut(sides, 0, 2, 1))
    high = graph("Add", points, graph.cut(sides, 2, 4, 1))
    if centres:
        low, high = (
            graph("Div", graph("Add", low, high), np.float32(2)),
            graph("Sub", high, low),
        )
    boxes = graph("Concat", low, high, axis=1)
    return graph("Mul", boxes, strides.T[None]) if pixels else boxes


def scores(graph, classes):
    """Final scores [B, C, N]."""
    return graph("Sigmoid", graph.maps(classes))


def body(*, centres, transposed, bins=16):
    def build(graph, classes):
        parts = distances(graph, centres=centres, bins=bins), scores(graph, classes)
        head = graph.concat(parts, axis=1)
        return {"head": graph.swapped(head) if transposed else head}

    def expected(out):
        rows = out["head"] if transposed else out["head"].T
        return corners(rows[:, :4]) if centres else rows[:, :4], rows[:, 4:]

    return Ending("YOLO", build, expected)


def anchors(graph, classes, *, power=False, logarithm=False, fractions=False):
    """YOLOv5's head [B, N, 5 + C], two boxes a cell; v7 squares with Pow, v3 has exponentials.

    Its TensorFlow export divides centre and size by the sides of the input.
    """
    rows = []
    for number, stride in enumerate(STRIDES):
        height = HEIGHT // stride
        width = WIDTH // stride
        maps = graph.convolution(2 * (5 + classes), stride)
        split = graph("Reshape", maps, [-1, 2, 5 + classes, height, width])
        cells = graph("Transpose", split, perm=[0, 1, 3, 4, 2])
        sizes = np.array([[1, 2], [3, 1.5]], np.float32).reshape(1, 2, 1, 1, 2) * 4 * 2**number
        y, x = np.mgrid[:height, :width]
        grid = np.stack([x, y], -1)[None, None].astype(np.float32)
        parts = np.array([2, 2, 1 + classes])
        if logarithm:
            centre, size, rest = graph.all("Split", cells, parts, outputs=3, axis=4)
            centre = graph("Add", graph("Sigmoid", centre), grid)
            size = graph("Mul", graph("Exp", size), sizes)
            rest = graph("Sigmoid", rest)
        else:
            shares = graph("Sigmoid", cells)
            centre, size, rest = graph.all("Split", shares, parts, outputs=3, axis=4)
            centre = graph("Add", graph("Mul", centre, np.float32(2)), grid - np.float32(0.5))
            doubled = graph("Mul", size, np.float32(2))
            squared = (
                graph("Pow", doubled, np.float32(2)) if power else graph("Mul", doubled, doubled)
            )
            size = graph("Mul", squared, sizes)
        centre = graph("Mul", centre, np.float32(stride))
        if fractions:
            centre = graph("Div", centre, SIZES[:2])
            size = graph("Div", size, SIZES[:2])
        joined = graph("Concat", centre, size, rest, axis=4)
        rows.append(graph("Reshape", joined, [-1, 2 * height * width, 5 + classes]))
    return graph.concat(rows, axis=1)


def with_objectness(out):
    rows = out["head"]
    return corners(rows[:, :4]), rows[:, 5:] * rows[:, 4:5]


def yolox(graph, classes):
    """YOLOX's head [B, N, 5 + C], not decoded."""
    maps = []
    for stride in STRIDES:
        boxes = graph.convolution(4, stride)
        objectness = graph.convolution(1, stride)
        class_scores = graph.convolution(classes, stride)
        objectness = graph("Sigmoid", objectness)
        class_scores = graph("Sigmoid", class_scores)
        head = graph("Concat", boxes, objectness, class_scores, axis=1)
        maps.append(graph.flat(head, 5 + classes))
    return graph.swapped(graph.concat(maps, axis=2))


def raw_yolox(out):
    rows, (cells, strides) = out["head"], grid()
    boxes = np.concatenate([(rows[:, :2] + cells) * strides, np.exp(rows[:, 2:4]) * strides], 1)
    return corners(boxes), rows[:, 5:] * rows[:, 4:5]


def decoded_yolox(graph, classes):
    head, (cells, strides) = yolox(graph, classes), grid()
    centre = graph("Mul", graph("Add", graph.cut(head, 0, 2, 2), cells[None]), strides[None])
    size = graph("Mul", graph("Exp", graph.cut(head, 2, 4, 2)), strides[None])
    return {"head": graph("Concat", centre, size, graph.cut(head, 4, 99, 2), axis=2)}


def yolov6(graph, classes):
    """Boxes, a constant objectness, scores: [B, N, 5 + C]."""
    boxes = graph.swapped(distances(graph, centres=True))
    ones = np.ones((1, len(grid()[0]), 1), np.float32)
    return {"head": graph("Concat", boxes, ones, graph.swapped(scores(graph, classes)), axis=2)}


def apart(graph, classes):
    """YOLO-NAS: boxes [B, N, 4] of two corners and scores [B, N, C]."""
    boxes = graph.swapped(distances(graph, centres=False, bins=17))
    return {"boxes": boxes, "scores": graph.swapped(scores(graph, classes))}


def damo(graph, classes):
    """DAMO-YOLO: from the corners of cells, and of one class more than it gives."""
    cells, strides = grid()
    apart = graph("Reshape", graph.maps(4 * 17), [0, 4, 17, -1])
    shares = graph("Transpose", graph("Softmax", apart, axis=2), perm=[0, 3, 1, 2])
    project = np.arange(17, dtype=np.float32).reshape(17, 1)
    mean = graph("MatMul", graph("Reshape", shares, [-1, 17]), project)
    sides = graph("Mul", graph("Reshape", mean, [-1, len(cells), 4]), strides[None])
    points = (cells * strides).T[:, None]
    left = graph("Gather", sides, np.int64(0), axis=2)
    top = graph("Gather", sides, np.int64(1), axis=2)
    right = graph("Gather", sides, np.int64(2), axis=2)
    bottom = graph("Gather", sides, np.int64(3), axis=2)
    ends = [
        graph("Sub", points[0], left),
        graph("Sub", points[1], top),
        graph("Add", points[0], right),
        graph("Add", points[1], bottom),
    ]
    boxes = graph.concat(graph.unsqueezed(ends, 2), axis=2)
    class_scores = graph.cut(graph.swapped(scores(graph, classes + 1)), 0, classes, 2)
    return {"scores": class_scores, "boxes": boxes}


def cut_apart(family, build, expected, axis=2):
    """A head that was cut behind its boxes, as TensorRT's plug-ins want it."""

    def parts(graph, classes):
        (head,) = build(graph, classes).values()
        return {"rest": graph.cut(head, 4, 99, axis), "boxes": graph.cut(head, 0, 4, axis)}

    def joined(out):
        return expected({"head": np.concatenate([out["boxes"], out["rest"]], axis - 1)})

    return Ending(family, parts, joined)


def logits(graph, classes):
    """YOLOv8's head without the activation of its scores, as accelerators want it."""
    raw = graph.maps(classes)
    return {"head": graph("Concat", distances(graph, centres=True), raw, axis=1)}


def deepstream(graph, classes):
    """DeepStream-Yolo: [B, N, 6] two corners, score and class, not suppressed."""
    head = graph.swapped(
        graph("Concat", distances(graph, centres=True), scores(graph, classes), axis=1)
    )
    boxes = graph.cut(head, 0, 4, 2)
    rest = graph.cut(head, 4, 4 + classes, 2)
    matrix = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]])
    best = graph("ReduceMax", rest, axes=[2], keepdims=1)
    label = graph("Cast", graph("ArgMax", rest, axis=2, keepdims=1), to=TensorProto.FLOAT)
    return {"head": graph("Concat", graph("MatMul", boxes, matrix), best, label, axis=2)}


def best_class(out):
    rows = out["head"]
    return rows[:, :4], rows[:, 4], rows[:, 5].astype(int)


def scales(*, bins, total):
    def build(graph, classes):
        """RKNN's model zoo: maps of distances and scores of each scale."""
        outputs = {}
        for stride in STRIDES:
            outputs[f"boxes{stride}"] = graph.convolution(4 * bins, stride)
            final = graph("Sigmoid", graph.convolution(classes, stride))
            outputs[f"scores{stride}"] = final
            if total:
                summed = graph("ReduceSum", final, [1], keepdims=1)
                outputs[f"sum{stride}"] = graph("Clip", summed, np.float32(0), np.float32(1))
        return outputs

    def expected(out):
        boxes = []
        class_scores = []
        for stride in STRIDES:
            maps = out[f"boxes{stride}"]
            sides = maps.reshape(4, bins, -1)
            if bins > 1:
                sides = (softmax(sides.transpose(0, 2, 1)) * np.arange(bins)).sum(-1)
            sides = sides.reshape(4, -1).T
            y, x = np.mgrid[: maps.shape[1], : maps.shape[2]]
            points = np.stack([x, y], -1).reshape(-1, 2) + 0.5
            box = np.concatenate([points - sides[:, :2], points + sides[:, 2:]], 1)
            boxes.append(box * stride)
            class_scores.append(out[f"scores{stride}"].reshape(-1, len(sides)).T)
        return np.concatenate(boxes), np.concatenate(class_scores)

    family = "YOLO, scales apart" if bins > 1 else "YOLOv6, scales apart"
    return Ending(family, build, expected)


def crossed(graph, classes):
    """PP-YOLOE without suppression: boxes [B, N, 4], divided by the scale, and scores [B, C, N]."""
    factor = graph.input("scale_factor", TensorProto.FLOAT, [graph.batch, 2])
    flipped = graph("Gather", factor, [1, 0], axis=1)
    scale = graph("Reshape", graph("Concat", flipped, flipped, axis=1), [-1, 1, 4])
    boxes = graph("Div", graph.swapped(distances(graph, centres=False)), scale)
    return {"boxes": boxes, "scores": scores(graph, classes)}


def ssd(graph, classes, *, background=True):
    """UltraFace and its like: corners of fractions, and shares whose first is no object's."""
    cells, strides = grid()
    priors = (cells + np.float32(0.5)) * strides / SIZES[:2]
    change = graph.swapped(graph.maps(4))
    moved = graph("Mul", graph("Mul", graph.cut(change, 0, 2, 2), np.float32(0.1)), strides / 64)
    centre = graph("Add", moved, priors[None])
    grown = graph("Exp", graph("Mul", graph.cut(change, 2, 4, 2), np.float32(0.2)))
    size = graph("Mul", grown, (strides / 64)[None].astype(np.float32))
    boxes = split_corners(graph, graph("Concat", centre, size, axis=2))
    shares = graph("Softmax", graph.swapped(graph.maps(classes + 1)), axis=2)
    return {
        "scores": shares if background else graph.cut(shares, 1, classes + 1, 2),
        "boxes": boxes,
    }


def plugin(graph, classes):
    """YOLOv7 for TensorRT: what its plug-in EfficientNMS selects from."""
    head = anchors(graph, classes)
    boxes = graph.cut(head, 0, 4, 2)
    rest = graph.cut(head, 5, 5 + classes, 2)
    final = graph("Mul", rest, graph.cut(head, 4, 5, 2))
    names = graph.all(
        "EfficientNMS_TRT", boxes, final, outputs=4, domain="TRT", box_coding=1, max_output_boxes=9
    )
    return dict(zip(("count", "boxes", "scores", "labels"), names, strict=True))
