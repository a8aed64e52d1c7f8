"""Heads of queries: DETR and its descendants, as the families' own code computes them."""

from collections.abc import Callable

import numpy as np
from graph_builder import SIZES, Ending, Graph, corners, sigmoid, softmax, split_corners
from onnx import TensorProto

Begin = Callable[[Graph], str]


def chosen(graph, features=None):
    """The best of all places, as RT-DETR begins its queries, [B, 24, 8]."""
    features = features or graph.queries()
    best = graph("ReduceMax", graph.linear(features, 8, 5), axes=[2], keepdims=0)
    order = graph.all("TopK", best, [24], outputs=2, axis=1)[1]
    numbers = graph("Tile", graph("Unsqueeze", order, [-1]), [1, 1, 8])
    return graph("GatherElements", features, numbers, axis=1)


def attended(graph, features):
    """Features behind an encoder."""
    products = graph("MatMul", features, graph.swapped(features))
    return graph("MatMul", graph("Softmax", products, axis=2), features)


def encoded(graph):
    """The best of all places behind an encoder, as Deformable DETR in two stages and DINO."""
    return chosen(graph, attended(graph, graph.queries()))


def referring(graph, features):
    """Conditional DETR's boxes, once its learnt points are constants: what is added to centres."""
    points = graph.random.standard_normal((1, 24, 2)).astype(np.float32)
    change = graph.perceptron(features, 4)
    centre = graph("Add", graph.cut(change, 0, 2, 2), points)
    return graph("Sigmoid", graph("Concat", centre, graph.cut(change, 2, 4, 2), axis=2))


def refined(graph, features):
    """RT-DETR's boxes: an earlier box and a change to it, before a sigmoid."""
    logit = inverse_sigmoid(graph, graph.perceptron(features, 4))
    return graph("Sigmoid", graph("Add", graph.perceptron(features, 4), logit))


def inverse_sigmoid(graph, logit):
    """A logit, through its share and back."""
    clipped = graph("Clip", graph("Sigmoid", logit), np.float32(1e-5), np.float32(1 - 1e-5))
    rest = graph("Sub", np.float32(1), clipped)
    return graph("Log", graph("Div", clipped, rest))


def exponential(graph, features):
    """LW-DETR's and RF-DETR's boxes: an offset in sizes of an earlier box, and a factor."""
    earlier = graph("Sigmoid", graph.perceptron(features, 4))
    change = graph.perceptron(features, 4)
    moved = graph("Mul", graph.cut(change, 0, 2, 2), graph.cut(earlier, 2, 4, 2))
    centre = graph("Add", moved, graph.cut(earlier, 0, 2, 2))
    size = graph("Mul", graph("Exp", graph.cut(change, 2, 4, 2)), graph.cut(earlier, 2, 4, 2))
    return graph("Concat", centre, size, axis=2)


def distributed(graph, features):
    """D-FINE's boxes: distances from an earlier box, means of distributions, as centre and size."""
    earlier = graph("Sigmoid", graph.perceptron(features, 4))
    bins = graph("Reshape", graph.perceptron(features, 4 * 8), [0, 24, 4, 8])
    project = np.linspace(-0.5, 0.5, 8, dtype=np.float32).reshape(8, 1)
    sides = graph("Reshape", graph("MatMul", graph("Softmax", bins, axis=3), project), [0, 24, 4])
    distances = graph.four_columns(sides)
    x, y, width, height = graph.four_columns(earlier)
    moved = []
    for distance, length in zip(distances, (width, height, width, height), strict=True):
        moved.append(graph("Mul", graph("Add", distance, np.float32(0.5)), length))
    x1 = graph("Sub", x, moved[0])
    y1 = graph("Sub", y, moved[1])
    x2 = graph("Add", x, moved[2])
    y2 = graph("Add", y, moved[3])
    middle_x = graph("Div", graph("Add", x1, x2), np.float32(2))
    middle_y = graph("Div", graph("Add", y1, y2), np.float32(2))
    return graph("Concat", middle_x, middle_y, graph("Sub", x2, x1), graph("Sub", y2, y1), axis=2)


def plain(graph, features):
    """DETR's boxes."""
    return graph("Sigmoid", graph.perceptron(features, 4))


Decode = Callable[[Graph, str], str]


def of_queries(family, decode, begin=chosen, *, no_object=False, certainty=False):
    def build(graph, classes):
        features = begin(graph)
        logits = graph.linear(features, 8, classes + no_object)
        if certainty:  # D-FINE adds to a score how sharp the distributions of its box are
            shares = graph("Softmax", graph.perceptron(features, 16), axis=2)
            sharpest = graph("TopK", shares, [4], outputs=2, axis=-1)
            logits = graph("Add", logits, graph.linear(sharpest, 4, 1))
        return {"logits": logits, "boxes": decode(graph, features)}

    def expected(out):
        class_scores = softmax(out["logits"])[:, :-1] if no_object else sigmoid(out["logits"])
        return corners(out["boxes"]) * SIZES, class_scores

    return Ending(family, build, expected, one_class=no_object)


def of_shares(graph, classes):
    """DETR with its softmax, and without the class of no object."""
    features = graph.queries()
    shares = graph("Softmax", graph.linear(features, 8, classes + 1), axis=2)
    return {"scores": graph.cut(shares, 0, classes, 2), "boxes": plain(graph, features)}


def in_two_stages(graph, classes):
    """Deformable DETR in two stages: the proposals that the first class likes best are refined."""
    memory = attended(graph, graph.queries())
    liked = graph("Gather", graph.linear(memory, 8, classes), np.int64(0), axis=2)
    order = graph("Unsqueeze", graph.all("TopK", liked, [20], outputs=2, axis=1)[1], [-1])

    def best(tensor, width):
        return graph("GatherElements", tensor, graph("Tile", order, [1, 1, width]), axis=1)

    proposals = graph.perceptron(memory, 4)
    queries = graph.perceptron(best(memory, 8), 8)
    moved = graph("Add", graph.perceptron(queries, 4), inverse_sigmoid(graph, best(proposals, 4)))
    return {"logits": graph.linear(queries, 8, classes), "boxes": graph("Sigmoid", moved)}


def joined_queries(graph, classes):
    """Ultralytics' RT-DETR: [B, Q, 4 + C], fractions and final scores."""
    features = chosen(graph)
    final = graph("Sigmoid", graph.linear(features, 8, classes))
    return {"head": graph("Concat", refined(graph, features), final, axis=2)}


def picked(graph, features, classes, scale, decode):
    """The best of all queries and classes: class ids, two corners in pixels, and scores."""
    final = graph("Sigmoid", graph.linear(features, 8, classes))
    boxes = graph("Mul", split_corners(graph, decode(graph, features)), scale)
    flat = graph("Flatten", final, axis=1)
    values, order = graph.all("TopK", flat, [24 * classes], outputs=2, axis=-1)
    labels = graph("Mod", order, np.int64(classes))
    query = graph("Unsqueeze", graph("Div", order, np.int64(classes)), [-1])
    chosen_boxes = graph("GatherElements", boxes, graph("Tile", query, [1, 1, 4]), axis=1)
    return labels, chosen_boxes, values


def deployed(family, decode):
    """The authors' deploy graphs: the best of all queries and classes, in pixels of a size fed."""

    def build(graph, classes):
        features = chosen(graph)
        sizes = graph.input("orig_target_sizes", TensorProto.INT64, [graph.batch, 2])
        scale = graph("Unsqueeze", graph("Tile", graph("Cast", sizes, to=1), [1, 2]), [1])
        picks = picked(graph, features, classes, scale, decode)
        return dict(zip(("labels", "boxes", "scores"), picks, strict=True))

    def expected(out):
        return out["boxes"], out["scores"], out["labels"]

    return Ending(family, build, expected)


def paddle(graph, classes):
    """Paddle's RT-DETR: class, score, two corners [300 B, 6] and the number of each image."""
    features = chosen(graph)
    shape = graph.input("im_shape", TensorProto.FLOAT, [graph.batch, 2])
    factor = graph.input("scale_factor", TensorProto.FLOAT, [graph.batch, 2])
    size = graph("Floor", graph("Add", graph("Div", shape, factor), np.float32(0.5)))
    sides = graph("Gather", size, [1, 0], axis=1)
    scale = graph("Unsqueeze", graph("Concat", sides, sides, axis=1), [1])
    labels, boxes, values = picked(graph, features, classes, scale, refined)
    labels = graph("Cast", labels, to=TensorProto.FLOAT)
    labels, values = graph.unsqueezed([labels, values], -1)
    rows = graph("Reshape", graph("Concat", labels, values, boxes, axis=2), [-1, 6])
    k = np.array([24 * classes], np.int32)
    count = graph("Expand", k, graph.cut(graph("Shape", factor), 0, 1, 0))
    return {"rows": rows, "count": count}


def paddle_rows(out):
    rows = out["rows"]
    return rows[:, 2:], rows[:, 1], rows[:, 0].astype(int)
