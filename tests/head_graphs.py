"""Small detectors, one for each way in which exporters end a graph.

Each is built as its family's own code computes it, and comes with what its own postprocessing makes
of the file's outputs, in plain NumPy: the boxes of all anchors and the scores of all classes.
"""

import numpy as np
from anchor_graphs import (
    anchors,
    apart,
    best_class,
    body,
    crossed,
    cut_apart,
    damo,
    decoded_yolox,
    deepstream,
    distances,
    logits,
    raw_yolox,
    scales,
    scores,
    ssd,
    with_objectness,
    yolov6,
    yolox,
)
from graph_builder import SIZES, Ending, Graph, corners, grid, sigmoid
from onnx import TensorProto
from query_graphs import (
    chosen,
    deployed,
    distributed,
    encoded,
    exponential,
    in_two_stages,
    joined_queries,
    of_queries,
    of_shares,
    paddle,
    paddle_rows,
    plain,
    referring,
    refined,
)


def suppressed(graph, classes, *, yx=False, centres=False):
    """Boxes [K, 4], scores [K], classes [K] and images [K] that NonMaxSuppression leaves."""
    boxes = graph.swapped(distances(graph, centres=centres))
    if yx:
        boxes = graph("Gather", boxes, [1, 0, 3, 2], axis=2)
    final = scores(graph, classes)
    triples = graph.non_max_suppression(boxes, final, center_point_box=int(centres))
    image = graph("Gather", triples, np.int64(0), axis=1)
    label = graph("Gather", triples, np.int64(1), axis=1)
    anchor = graph("Gather", triples, np.int64(2), axis=1)
    chosen_boxes = graph("Gather", graph("Squeeze", boxes, [0]), anchor, axis=0)
    pairs = graph.concat(graph.unsqueezed([label, anchor], 1), axis=1)
    score = graph("GatherND", graph("Squeeze", final, [0]), pairs)
    return chosen_boxes, score, label, image


def of_images(graph, classes):
    """YOLOv7 for ONNX Runtime: image, two corners, class, score [K, 7]."""
    boxes, score, label, image = suppressed(graph, classes)
    image = graph("Cast", image, to=TensorProto.FLOAT)
    label = graph("Cast", label, to=TensorProto.FLOAT)
    image, label, score = graph.unsqueezed([image, label, score], 1)
    return {"rows": graph("Concat", image, boxes, label, score, axis=1)}


def in_one(graph, classes, *, empty=False, centres=False, extra_columns=0):
    """Two corners or centre and size, score and class [1, K, 6], and `more` columns."""
    boxes, score, label, _ = suppressed(graph, classes, centres=centres)
    label = graph("Cast", label, to=TensorProto.FLOAT)
    parts = graph.unsqueezed([score, label], 1)
    if extra_columns:
        parts.append(graph("Tile", graph.cut(boxes, 0, 1, 1), [1, extra_columns]))
    if empty:  # the masks of a detector that has none
        parts.append(graph.cut(boxes, 4, 99, 1))
    return {"rows": graph("Unsqueeze", graph.concat([boxes] + parts, axis=1), [0])}


def in_four(graph, classes):
    """How many there are, boxes [1, K, 4], scores and classes [1, K]."""
    boxes, score, label, _ = suppressed(graph, classes)
    count = graph("Cast", graph("Reshape", graph("Shape", score), [1, 1]), to=TensorProto.INT32)
    boxes, score, label = graph.unsqueezed([boxes, score, label], 0)
    return {"count": count, "boxes": boxes, "scores": score, "labels": label}


def in_three(graph, classes):
    """torchvision: boxes [K, 4], class ids from 1 and scores [K]."""
    boxes, score, label, _ = suppressed(graph, classes)
    return {"boxes": boxes, "labels": graph("Add", label, np.int64(1)), "scores": score}


def overwritten(graph, tensor, start, values):
    """Two channels of `tensor` [1, N, channels] replaced by others, as PyTorch assigns to them."""
    cell_count = len(grid()[0])
    positions = np.moveaxis(np.indices((1, cell_count, 2)), 0, -1) + np.array([0, 0, start])
    return graph("ScatterND", tensor, positions, values)


def of_zoo(graph, classes, *, y_first=False, scores_apart=False, with_objectness=True):
    """YOLOX in PINTO's zoo of models: image, class, score, corners [K, 7].

    Older files have the scores in an output of their own, [K, 1] beside [K, 6].
    """
    head = yolox(graph, classes)
    cells, strides = grid()
    centre = graph("Mul", graph("Add", graph.cut(head, 0, 2, 2), cells[None]), strides[None])
    head = overwritten(graph, head, 0, centre)
    size = graph("Mul", graph("Exp", graph.cut(head, 2, 4, 2)), strides[None])
    head = overwritten(graph, head, 2, size)
    boxes = graph.cut(head, 0, 4, 2)
    x, y, width, height = graph.four_columns(boxes)
    half_width = graph("Div", width, np.float32(2))
    half_height = graph("Div", height, np.float32(2))
    left = graph("Sub", x, half_width)
    top = graph("Sub", y, half_height)
    right = graph("Add", x, half_width)
    bottom = graph("Add", y, half_height)
    rows_first = graph("Concat", top, left, bottom, right, axis=2)
    ordered = rows_first
    if not y_first:
        ordered = graph("Concat", left, top, right, bottom, axis=2)

    products = graph.cut(head, 5, 99, 2)
    if with_objectness:
        products = graph("Mul", graph.cut(head, 4, 5, 2), products)
    final = graph.swapped(graph("Sqrt", products))
    triples = graph.non_max_suppression(rows_first, final)
    triples = graph("Mul", triples, np.array([1]))
    image_number = graph.cut(triples, 0, 1, 1)
    class_id = graph.cut(triples, 1, 2, 1)
    image = graph("Cast", image_number, to=TensorProto.FLOAT)
    label = graph("Cast", class_id, to=TensorProto.FLOAT)
    score = graph("Reshape", graph("GatherND", final, triples), [-1, 1])
    positions_of_boxes = graph("Gather", triples, np.array([0, 2]), axis=1)
    chosen_boxes = graph("GatherND", ordered, positions_of_boxes)
    if scores_apart:
        rows = graph("Concat", image, label, chosen_boxes, axis=1)
        return {"score": graph("Slice", score, [0], [1], [1]), "rows": rows}
    return {"rows": graph("Concat", image, label, score, chosen_boxes, axis=1)}


ENDINGS = {
    "YOLOv10": body(centres=False, transposed=False),
    "YOLOv10 transposed": body(centres=False, transposed=True),
    "YOLOv8": body(centres=True, transposed=False),
    "YOLOv8 transposed": body(centres=True, transposed=True),
    "YOLOv8, logits": Ending(
        "YOLO", logits, lambda out: (corners(out["head"].T[:, :4]), sigmoid(out["head"].T[:, 4:]))
    ),
    "YOLOv8 cut apart": cut_apart(
        "YOLO, boxes apart",
        body(centres=True, transposed=False).build,
        body(centres=True, transposed=False).expected,
        axis=1,
    ),
    "YOLOv10 cut apart": cut_apart(
        "YOLO, boxes apart",
        body(centres=False, transposed=True).build,
        body(centres=False, transposed=True).expected,
    ),
    "YOLO26 cut apart": cut_apart(
        "YOLO, boxes apart",
        body(centres=False, transposed=True, bins=1).build,
        body(centres=False, transposed=True, bins=1).expected,
    ),
    "YOLOv5": Ending("YOLOv5", lambda g, c: {"head": anchors(g, c)}, with_objectness),
    "YOLOv5, fractions": Ending(
        "YOLOv5",
        lambda g, c: {"head": anchors(g, c, fractions=True)},
        lambda out: (with_objectness(out)[0] * SIZES, with_objectness(out)[1]),
    ),
    "YOLOv5 cut apart": cut_apart("YOLOv5", lambda g, c: {"head": anchors(g, c)}, with_objectness),
    "YOLOv7": Ending("YOLOv5", lambda g, c: {"head": anchors(g, c, power=True)}, with_objectness),
    "YOLOv3": Ending(
        "YOLOv5", lambda g, c: {"head": anchors(g, c, logarithm=True)}, with_objectness
    ),
    "YOLOv6": Ending("YOLOv5", yolov6, with_objectness),
    "YOLOX": Ending("YOLOX", lambda g, c: {"head": yolox(g, c)}, raw_yolox),
    "YOLOX cut apart": cut_apart("YOLOX", lambda g, c: {"head": yolox(g, c)}, raw_yolox),
    "YOLOX decoded, cut apart": cut_apart("YOLOX", decoded_yolox, with_objectness),
    "YOLOX decoded": Ending("YOLOX", decoded_yolox, with_objectness),
    "YOLO-NAS": Ending("YOLO-NAS", apart, lambda out: (out["boxes"], out["scores"])),
    "DAMO-YOLO": Ending("DAMO-YOLO", damo, lambda out: (out["boxes"], out["scores"])),
    "DeepStream": Ending("YOLO, boxes apart", deepstream, best_class, one_class=True),
    "RKNN": scales(bins=16, total=False),
    "RKNN with sums": scales(bins=16, total=True),
    "RKNN, YOLOv6": scales(bins=1, total=False),
    "RKNN, YOLOv6 with sums": scales(bins=1, total=True),
    "DETR": of_queries("DETR", plain, Graph.queries, no_object=True),
    "Conditional DETR": of_queries("Conditional DETR", refined, Graph.queries),
    "Conditional DETR, folded": of_queries("Conditional DETR", referring, Graph.queries),
    "Deformable DETR": of_queries("Conditional DETR", refined, encoded),
    "Deformable DETR, two stages": Ending(
        "Conditional DETR",
        in_two_stages,
        lambda o: (corners(o["boxes"]) * SIZES, sigmoid(o["logits"])),
    ),
    "RT-DETR": of_queries("RT-DETR", refined),
    "RF-DETR": of_queries("RF-DETR", exponential),
    "D-FINE": of_queries("D-FINE", distributed, certainty=True),
    "DEIMv2": of_queries("DEIMv2", distributed, lambda g: chosen(g, g.patches()), certainty=True),
    "RT-DETR, patches": of_queries(
        "DETR, refined boxes", refined, lambda g: chosen(g, g.patches())
    ),
    "RT-DETR joined": Ending(
        "RT-DETR", joined_queries, lambda o: (corners(o["head"][:, :4]) * SIZES, o["head"][:, 4:])
    ),
    "RT-DETR deployed": deployed("RT-DETR", refined),
    "D-FINE deployed": deployed("D-FINE", distributed),
    "RF-DETR deployed": deployed("RF-DETR", exponential),
    "Paddle": Ending("RT-DETR", paddle, paddle_rows),
    "PP-YOLOE": Ending("PP-YOLOE", crossed, lambda out: (out["boxes"], out["scores"].T)),
    "SSD": Ending("SSD", ssd, lambda out: (out["boxes"] * SIZES, out["scores"][:, 1:])),
    "DETR, no object left out": Ending(
        "DETR", of_shares, lambda o: (corners(o["boxes"]) * SIZES, o["scores"]), one_class=True
    ),
    "SSD, no object left out": Ending(
        "SSD",
        lambda g, c: ssd(g, c, background=False),
        lambda out: (out["boxes"] * SIZES, out["scores"]),
    ),
    "NMS, [K, 7]": Ending(
        "YOLOv7, selected inside",
        of_images,
        lambda o: (o["rows"][:, 1:5], o["rows"][:, 6], o["rows"][:, 5].astype(int)),
    ),
    "YOLOX, NMS, [K, 7]": Ending(
        "YOLOX, selected inside",
        of_zoo,
        lambda o: (o["rows"][:, 3:], o["rows"][:, 2], o["rows"][:, 1].astype(int)),
    ),
    "YOLOX, NMS, [K, 7], y first": Ending(
        "YOLOX, selected inside",
        lambda g, c: of_zoo(g, c, y_first=True),
        lambda o: (o["rows"][:, [4, 3, 6, 5]], o["rows"][:, 2], o["rows"][:, 1].astype(int)),
    ),
    "YOLOX, NMS, [K, 6] and [K, 1]": Ending(
        "YOLOX, selected inside",
        lambda g, c: of_zoo(g, c, scores_apart=True),
        lambda o: (o["rows"][:, 2:], o["score"][:, 0], o["rows"][:, 1].astype(int)),
    ),
    "NMS, [1, K, 6]": Ending(
        "selected inside",
        in_one,
        lambda o: (o["rows"][:, :4], o["rows"][:, 4], o["rows"][:, 5].astype(int)),
    ),
    "NMS, [1, K, 6], an empty part": Ending(
        "selected inside",
        lambda g, c: in_one(g, c, empty=True),
        lambda o: (o["rows"][:, :4], o["rows"][:, 4], o["rows"][:, 5].astype(int)),
    ),
    "NMS, centres": Ending(
        "selected inside",
        lambda g, c: in_one(g, c, centres=True),
        lambda o: (corners(o["rows"][:, :4]), o["rows"][:, 4], o["rows"][:, 5].astype(int)),
    ),
    "NMS, four outputs": Ending(
        "selected inside", in_four, lambda out: (out["boxes"], out["scores"], out["labels"])
    ),
    "NMS, three outputs": Ending(
        "selected inside", in_three, lambda out: (out["boxes"], out["scores"], out["labels"])
    ),
}


def model_of(name, classes, **options):
    """A graph with one of the ENDINGS, and what each of its outputs holds."""
    graph = Graph(**options)
    outputs = ENDINGS[name].build(graph, classes)
    return graph.model(list(outputs.values())), list(outputs)
