"""Small detectors with random weights, one for each way in which exporters end a graph.

Each is built as its family's own code computes it, and comes with what its own postprocessing makes
of the file's outputs, in plain NumPy: the boxes of all anchors and the scores of all classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

HEIGHT, WIDTH = 64, 96
SIZES = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32)
STRIDES = (8, 16, 32)
Arrays = dict[str, npt.NDArray[Any]]


@dataclass
class Graph:
    """Collects nodes; an array among the inputs becomes a constant."""

    opset: int = 17
    batch: int | str = 1
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.input("images", TensorProto.FLOAT, [self.batch, 3, HEIGHT, WIDTH])

    def input(self, name: str, dtype: int, dims: list[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def all(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [entry if isinstance(entry, str) else self.constant(entry) for entry in inputs]
        made = [f"{operator.lower()}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, names, made, **attributes))
        return made

    def __call__(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        return self.all(operator, *inputs, **attributes)[0]

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *dims: int) -> npt.NDArray[np.float32]:
        fan = np.prod(dims[1:]) if len(dims) == 4 else dims[0]
        return (self.random.standard_normal(dims) * 3 / np.sqrt(fan)).astype(np.float32)

    def convolution(
        self, channels: int, stride: int, source: str = "images", inside: int = 3
    ) -> str:
        """A map [B, channels, H / stride, W / stride]."""
        weights = self.weights(channels, inside, stride, stride)
        bias = self.random.standard_normal(channels).astype(np.float32)
        kernel = {"kernel_shape": [stride] * 2, "strides": [stride] * 2}
        return self("Conv", source, weights, bias, **kernel)

    def flat(self, tensor: str, channels: int) -> str:
        return self("Reshape", tensor, [0, channels, -1])

    def cut(self, tensor: str, start: int, stop: int, axis: int) -> str:
        return self("Slice", tensor, [start], [stop], [axis])

    def queries(self) -> str:
        """Features of 24 queries, [B, 24, 8]."""
        return self.rows(self.convolution(8, 8, self("Sigmoid", self.convolution(8, 2)), 8))

    def patches(self) -> str:
        """The same of 24 patches of the picture, as a vision transformer begins."""
        return self.rows(self.convolution(8, 16))

    def rows(self, maps: str) -> str:
        return self("Relu", self("Transpose", self.flat(maps, 8), perm=[0, 2, 1]))

    def linear(self, tensor: str, inside: int, outside: int) -> str:
        product = self("MatMul", tensor, self.weights(inside, outside))
        return self("Add", product, self.random.standard_normal(outside).astype(np.float32))

    def perceptron(self, tensor: str, outside: int) -> str:
        return self.linear(self("Relu", self.linear(tensor, 8, 8)), 8, outside)

    def swapped(self, tensor: str) -> str:
        return self("Transpose", tensor, perm=[0, 2, 1])

    def model(self, outputs: list[str], metadata: dict[str, str] | None = None) -> onnx.ModelProto:
        values = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, values, self.constants)
        domains = {node.domain for node in self.nodes} - {""}
        imports = [helper.make_opsetid(name, 1) for name in sorted(domains)]
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset), *imports], ir_version=8
        )
        helper.set_model_props(model, metadata or {})
        return with_types(model)


def with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types and shapes of its outputs, which no exporter leaves out."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    found = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    known = {value.name: value for value in (*found.graph.value_info, *found.graph.output)}
    for value in model.graph.output:
        value.CopyFrom(known[value.name])
        if not value.type.tensor_type.elem_type:  # of plug-ins, whose shapes nobody infers
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def grid() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Column and row of each cell of all scales, (N, 2), and its stride, (N, 1)."""
    cells, strides = [], []
    for stride in STRIDES:
        y, x = np.mgrid[: HEIGHT // stride, : WIDTH // stride]
        cells.append(np.stack([x, y], -1).reshape(-1, 2))
        strides.append(np.full((cells[-1].shape[0], 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def corners(boxes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """x1, y1, x2, y2 of centre and size."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([centre - size / 2, centre + size / 2], -1)


def sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 1 / (1 + np.exp(-x))


def softmax(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Ending:
    """A way to end a graph.

    Attributes:
        family: As detcli is to name it.
        build: Adds the nodes for C classes; returns the output tensors by what they hold.
        expected: From these outputs of one picture, boxes (N, 4) x1, y1, x2, y2 in pixels of the
            input and scores (N, C), or class ids (N,) beside scores (N,).
        one_class: Whether only the best class of each box counts.
    """

    family: str
    build: Callable[[Graph, int], dict[str, str]]
    expected: Callable[[Arrays], tuple[npt.NDArray[Any], ...]]
    one_class: bool = False


# Heads of cells.


def distances(graph: Graph, *, centres: bool, pixels: bool = True, bins: int = 16) -> str:
    """YOLOv8's boxes [B, 4, N]: the mean of a distribution of 16 distances, from each cell."""
    maps = [graph.flat(graph.convolution(4 * bins, stride), 4 * bins) for stride in STRIDES]
    apart = graph("Reshape", graph("Concat", *maps, axis=2), [0, 4, bins, -1])
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


def scores(graph: Graph, classes: int) -> str:
    """Final scores [B, C, N]."""
    maps = [graph.flat(graph.convolution(classes, stride), classes) for stride in STRIDES]
    return graph("Sigmoid", graph("Concat", *maps, axis=2))


def body(*, centres: bool, transposed: bool) -> Ending:
    def build(graph: Graph, classes: int) -> dict[str, str]:
        parts = distances(graph, centres=centres), scores(graph, classes)
        head = graph("Concat", *parts, axis=1)
        return {"head": graph.swapped(head) if transposed else head}

    def expected(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
        rows = out["head"] if transposed else out["head"].T
        return corners(rows[:, :4]) if centres else rows[:, :4], rows[:, 4:]

    return Ending("YOLO", build, expected)


def anchors(graph: Graph, classes: int, *, power: bool = False, logarithm: bool = False) -> str:
    """YOLOv5's head [B, N, 5 + C], two boxes a cell; v7 squares with Pow, v3 has exponentials."""
    rows = []
    for number, stride in enumerate(STRIDES):
        height, width = HEIGHT // stride, WIDTH // stride
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
        joined = graph("Concat", centre, size, rest, axis=4)
        rows.append(graph("Reshape", joined, [-1, 2 * height * width, 5 + classes]))
    return graph("Concat", *rows, axis=1)


def with_objectness(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
    rows = out["head"]
    return corners(rows[:, :4]), rows[:, 5:] * rows[:, 4:5]


def yolox(graph: Graph, classes: int) -> str:
    """YOLOX's head [B, N, 5 + C], not decoded."""
    maps = []
    for stride in STRIDES:
        parts = [graph.convolution(channels, stride) for channels in (4, 1, classes)]
        finals = [graph("Sigmoid", part) for part in parts[1:]]
        maps.append(graph.flat(graph("Concat", parts[0], *finals, axis=1), 5 + classes))
    return graph.swapped(graph("Concat", *maps, axis=2))


def raw_yolox(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
    rows, (cells, strides) = out["head"], grid()
    boxes = np.concatenate([(rows[:, :2] + cells) * strides, np.exp(rows[:, 2:4]) * strides], 1)
    return corners(boxes), rows[:, 5:] * rows[:, 4:5]


def decoded_yolox(graph: Graph, classes: int) -> dict[str, str]:
    head, (cells, strides) = yolox(graph, classes), grid()
    centre = graph("Mul", graph("Add", graph.cut(head, 0, 2, 2), cells[None]), strides[None])
    size = graph("Mul", graph("Exp", graph.cut(head, 2, 4, 2)), strides[None])
    return {"head": graph("Concat", centre, size, graph.cut(head, 4, 99, 2), axis=2)}


def yolov6(graph: Graph, classes: int) -> dict[str, str]:
    """Boxes, a constant objectness, scores: [B, N, 5 + C]."""
    boxes = graph.swapped(distances(graph, centres=True))
    ones = np.ones((1, len(grid()[0]), 1), np.float32)
    return {"head": graph("Concat", boxes, ones, graph.swapped(scores(graph, classes)), axis=2)}


def apart(graph: Graph, classes: int) -> dict[str, str]:
    """YOLO-NAS: boxes [B, N, 4] of two corners and scores [B, N, C]."""
    boxes = graph.swapped(distances(graph, centres=False, bins=17))
    return {"boxes": boxes, "scores": graph.swapped(scores(graph, classes))}


def cut_apart(
    family: str,
    build: Callable[[Graph, int], dict[str, str]],
    expected: Callable[[Arrays], tuple[npt.NDArray[Any], ...]],
    axis: int = 2,
) -> Ending:
    """A head that was cut behind its boxes, as TensorRT's plug-ins want it."""

    def parts(graph: Graph, classes: int) -> dict[str, str]:
        (head,) = build(graph, classes).values()
        return {"rest": graph.cut(head, 4, 99, axis), "boxes": graph.cut(head, 0, 4, axis)}

    def joined(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
        return expected({"head": np.concatenate([out["boxes"], out["rest"]], axis - 1)})

    return Ending(family, parts, joined)


def logits(graph: Graph, classes: int) -> dict[str, str]:
    """YOLOv8's head without the activation of its scores, as accelerators want it."""
    maps = [graph.flat(graph.convolution(classes, stride), classes) for stride in STRIDES]
    raw = graph("Concat", *maps, axis=2)
    return {"head": graph("Concat", distances(graph, centres=True), raw, axis=1)}


def deepstream(graph: Graph, classes: int) -> dict[str, str]:
    """DeepStream-Yolo: [B, N, 6] two corners, score and class, not suppressed."""
    head = graph.swapped(
        graph("Concat", distances(graph, centres=True), scores(graph, classes), axis=1)
    )
    boxes, rest = graph.cut(head, 0, 4, 2), graph.cut(head, 4, 4 + classes, 2)
    matrix = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]])
    best = graph("ReduceMax", rest, axes=[2], keepdims=1)
    label = graph("Cast", graph("ArgMax", rest, axis=2, keepdims=1), to=TensorProto.FLOAT)
    return {"head": graph("Concat", graph("MatMul", boxes, matrix), best, label, axis=2)}


def best_class(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
    rows = out["head"]
    return rows[:, :4], rows[:, 4], rows[:, 5].astype(int)


def scales(*, bins: int, total: bool) -> Ending:
    def build(graph: Graph, classes: int) -> dict[str, str]:
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

    def expected(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
        boxes, found = [], []
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
            found.append(out[f"scores{stride}"].reshape(-1, len(sides)).T)
        return np.concatenate(boxes), np.concatenate(found)

    return Ending("YOLO, scales apart", build, expected)


# Heads of queries.


Begin = Callable[[Graph], str]


def chosen(graph: Graph, features: str | None = None) -> str:
    """The best of all places, as RT-DETR begins its queries, [B, 24, 8]."""
    features = features or graph.queries()
    best = graph("ReduceMax", graph.linear(features, 8, 5), axes=[2], keepdims=0)
    order = graph.all("TopK", best, [24], outputs=2, axis=1)[1]
    numbers = graph("Tile", graph("Unsqueeze", order, [-1]), [1, 1, 8])
    return graph("GatherElements", features, numbers, axis=1)


def encoded(graph: Graph) -> str:
    """The best of all places behind an encoder, as Deformable DETR in two stages and DINO."""
    features = graph.queries()
    products = graph("MatMul", features, graph.swapped(features))
    return chosen(graph, graph("MatMul", graph("Softmax", products, axis=2), features))


def referring(graph: Graph, features: str) -> str:
    """Conditional DETR's boxes, once its learnt points are constants: what is added to centres."""
    points = graph.random.standard_normal((1, 24, 2)).astype(np.float32)
    change = graph.perceptron(features, 4)
    centre = graph("Add", graph.cut(change, 0, 2, 2), points)
    return graph("Sigmoid", graph("Concat", centre, graph.cut(change, 2, 4, 2), axis=2))


def refined(graph: Graph, features: str) -> str:
    """RT-DETR's boxes: an earlier box and a change to it, before a sigmoid."""
    logit = inverse_sigmoid(graph, graph.perceptron(features, 4))
    return graph("Sigmoid", graph("Add", graph.perceptron(features, 4), logit))


def inverse_sigmoid(graph: Graph, logit: str) -> str:
    """A logit, through its share and back."""
    clipped = graph("Clip", graph("Sigmoid", logit), np.float32(1e-5), np.float32(1 - 1e-5))
    rest = graph("Sub", np.float32(1), clipped)
    return graph("Log", graph("Div", clipped, rest))


def exponential(graph: Graph, features: str) -> str:
    """LW-DETR's and RF-DETR's boxes: an offset in sizes of an earlier box, and a factor."""
    earlier = graph("Sigmoid", graph.perceptron(features, 4))
    change = graph.perceptron(features, 4)
    moved = graph("Mul", graph.cut(change, 0, 2, 2), graph.cut(earlier, 2, 4, 2))
    centre = graph("Add", moved, graph.cut(earlier, 0, 2, 2))
    size = graph("Mul", graph("Exp", graph.cut(change, 2, 4, 2)), graph.cut(earlier, 2, 4, 2))
    return graph("Concat", centre, size, axis=2)


def distributed(graph: Graph, features: str) -> str:
    """D-FINE's boxes: distances from an earlier box, means of distributions, as centre and size."""
    earlier = graph("Sigmoid", graph.perceptron(features, 4))
    bins = graph("Reshape", graph.perceptron(features, 4 * 8), [0, 24, 4, 8])
    project = np.linspace(-0.5, 0.5, 8, dtype=np.float32).reshape(8, 1)
    sides = graph("Reshape", graph("MatMul", graph("Softmax", bins, axis=3), project), [0, 24, 4])
    cut = [graph.cut(sides, i, i + 1, 2) for i in range(4)]
    x, y, width, height = (graph.cut(earlier, i, i + 1, 2) for i in range(4))
    moved = [
        graph("Mul", graph("Add", side, np.float32(0.5)), length)
        for side, length in zip(cut, (width, height, width, height), strict=True)
    ]
    x1, y1 = graph("Sub", x, moved[0]), graph("Sub", y, moved[1])
    x2, y2 = graph("Add", x, moved[2]), graph("Add", y, moved[3])
    middle = [graph("Div", graph("Add", *pair), np.float32(2)) for pair in ((x1, x2), (y1, y2))]
    return graph("Concat", *middle, graph("Sub", x2, x1), graph("Sub", y2, y1), axis=2)


def plain(graph: Graph, features: str) -> str:
    """DETR's boxes."""
    return graph("Sigmoid", graph.perceptron(features, 4))


Decode = Callable[[Graph, str], str]


def of_queries(
    family: str,
    decode: Decode,
    begin: Begin = chosen,
    *,
    no_object: bool = False,
    certainty: bool = False,
) -> Ending:
    def build(graph: Graph, classes: int) -> dict[str, str]:
        features = begin(graph)
        logits = graph.linear(features, 8, classes + no_object)
        if certainty:  # D-FINE adds to a score how sharp the distributions of its box are
            shares = graph("Softmax", graph.perceptron(features, 16), axis=2)
            sharpest = graph("TopK", shares, [4], outputs=2, axis=-1)
            logits = graph("Add", logits, graph.linear(sharpest, 4, 1))
        return {"logits": logits, "boxes": decode(graph, features)}

    def expected(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
        found = softmax(out["logits"])[:, :-1] if no_object else sigmoid(out["logits"])
        return corners(out["boxes"]) * SIZES, found

    return Ending(family, build, expected, one_class=no_object)


def in_two_stages(graph: Graph, classes: int) -> dict[str, str]:
    """Deformable DETR in two stages: the proposals that the first class likes best are refined."""
    features = graph.queries()
    products = graph("MatMul", features, graph.swapped(features))
    memory = graph("MatMul", graph("Softmax", products, axis=2), features)
    liked = graph("Gather", graph.linear(memory, 8, classes), np.int64(0), axis=2)
    order = graph("Unsqueeze", graph.all("TopK", liked, [20], outputs=2, axis=1)[1], [-1])

    def best(tensor: str, width: int) -> str:
        return graph("GatherElements", tensor, graph("Tile", order, [1, 1, width]), axis=1)

    proposals = graph.perceptron(memory, 4)
    queries = graph.perceptron(best(memory, 8), 8)
    moved = graph("Add", graph.perceptron(queries, 4), inverse_sigmoid(graph, best(proposals, 4)))
    return {"logits": graph.linear(queries, 8, classes), "boxes": graph("Sigmoid", moved)}


def joined_queries(graph: Graph, classes: int) -> dict[str, str]:
    """Ultralytics' RT-DETR: [B, Q, 4 + C], fractions and final scores."""
    features = chosen(graph)
    final = graph("Sigmoid", graph.linear(features, 8, classes))
    return {"head": graph("Concat", refined(graph, features), final, axis=2)}


def split_corners(graph: Graph, boxes: str) -> str:
    """Two corners of centre and size, as torchvision's box_convert."""
    centre, size = graph.cut(boxes, 0, 2, 2), graph.cut(boxes, 2, 4, 2)
    half = graph("Mul", size, np.float32(0.5))
    return graph("Concat", graph("Sub", centre, half), graph("Add", centre, half), axis=2)


def deployed(family: str, decode: Decode, kept: int = 300) -> Ending:
    """The authors' deploy graphs: the best of all queries and classes, in pixels of a size fed."""

    def build(graph: Graph, classes: int) -> dict[str, str]:
        features = chosen(graph)
        sizes = graph.input("orig_target_sizes", TensorProto.INT64, [graph.batch, 2])
        final = graph("Sigmoid", graph.linear(features, 8, classes))
        scale = graph("Unsqueeze", graph("Tile", graph("Cast", sizes, to=1), [1, 2]), [1])
        boxes = graph("Mul", split_corners(graph, decode(graph, features)), scale)
        flat = graph("Flatten", final, axis=1)
        values, order = graph.all("TopK", flat, [min(kept, 24 * classes)], outputs=2, axis=-1)
        labels = graph("Mod", order, np.int64(classes))
        query = graph("Unsqueeze", graph("Div", order, np.int64(classes)), [-1])
        gathered = graph("GatherElements", boxes, graph("Tile", query, [1, 1, 4]), axis=1)
        return {"labels": labels, "boxes": gathered, "scores": values}

    def expected(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
        return out["boxes"], out["scores"], out["labels"]

    return Ending(family, build, expected)


def paddle(graph: Graph, classes: int) -> dict[str, str]:
    """Paddle's RT-DETR: class, score, two corners [300 B, 6] and the number of each picture."""
    features = chosen(graph)
    shape = graph.input("im_shape", TensorProto.FLOAT, [graph.batch, 2])
    factor = graph.input("scale_factor", TensorProto.FLOAT, [graph.batch, 2])
    final = graph("Sigmoid", graph.linear(features, 8, classes))
    whole = graph("Floor", graph("Add", graph("Div", shape, factor), np.float32(0.5)))
    sides = graph("Gather", whole, [1, 0], axis=1)
    scale = graph("Unsqueeze", graph("Concat", sides, sides, axis=1), [1])
    boxes = graph("Mul", split_corners(graph, refined(graph, features)), scale)
    values, order = graph.all("TopK", graph("Flatten", final, axis=1), [24], outputs=2, axis=-1)
    labels = graph("Cast", graph("Mod", order, np.int64(classes)), to=TensorProto.FLOAT)
    query = graph("Unsqueeze", graph("Div", order, np.int64(classes)), [-1])
    picked = graph("GatherElements", boxes, graph("Tile", query, [1, 1, 4]), axis=1)
    parts = [graph("Unsqueeze", part, [-1]) for part in (labels, values)]
    rows = graph("Reshape", graph("Concat", *parts, picked, axis=2), [-1, 6])
    count = graph("Expand", np.array([24], np.int32), graph.cut(graph("Shape", factor), 0, 1, 0))
    return {"rows": rows, "count": count}


def paddle_rows(out: Arrays) -> tuple[npt.NDArray[Any], ...]:
    rows = out["rows"]
    return rows[:, 2:], rows[:, 1], rows[:, 0].astype(int)


def crossed(graph: Graph, classes: int) -> dict[str, str]:
    """PP-YOLOE without suppression: boxes [B, N, 4], divided by the scale, and scores [B, C, N]."""
    factor = graph.input("scale_factor", TensorProto.FLOAT, [graph.batch, 2])
    flipped = graph("Gather", factor, [1, 0], axis=1)
    scale = graph("Reshape", graph("Concat", flipped, flipped, axis=1), [-1, 1, 4])
    boxes = graph("Div", graph.swapped(distances(graph, centres=False)), scale)
    return {"boxes": boxes, "scores": scores(graph, classes)}


def ssd(graph: Graph, classes: int) -> dict[str, str]:
    """UltraFace and its like: corners of fractions, and shares whose first is no object's."""
    cells, strides = grid()
    priors = (cells + np.float32(0.5)) * strides / SIZES[:2]
    maps = [graph.flat(graph.convolution(4, stride), 4) for stride in STRIDES]
    change = graph.swapped(graph("Concat", *maps, axis=2))
    moved = graph("Mul", graph("Mul", graph.cut(change, 0, 2, 2), np.float32(0.1)), strides / 64)
    centre = graph("Add", moved, priors[None])
    grown = graph("Exp", graph("Mul", graph.cut(change, 2, 4, 2), np.float32(0.2)))
    size = graph("Mul", grown, (strides / 64)[None].astype(np.float32))
    boxes = split_corners(graph, graph("Concat", centre, size, axis=2))
    maps = [graph.flat(graph.convolution(classes + 1, s), classes + 1) for s in STRIDES]
    shares = graph("Softmax", graph.swapped(graph("Concat", *maps, axis=2)), axis=2)
    return {"scores": shares, "boxes": boxes}


def plugin(graph: Graph, classes: int) -> dict[str, str]:
    """YOLOv7 for TensorRT: what its plug-in EfficientNMS selects from."""
    head = anchors(graph, classes)
    boxes, rest = graph.cut(head, 0, 4, 2), graph.cut(head, 5, 5 + classes, 2)
    final = graph("Mul", rest, graph.cut(head, 4, 5, 2))
    names = graph.all(
        "EfficientNMS_TRT", boxes, final, outputs=4, domain="TRT", box_coding=1, max_output_boxes=9
    )
    return dict(zip(("count", "boxes", "scores", "labels"), names, strict=True))


# Detections that the graph selects.


def suppressed(graph: Graph, classes: int, *, yx: bool = False) -> tuple[str, str, str, str]:
    """Boxes [K, 4], scores [K], classes [K] and pictures [K] that NonMaxSuppression leaves."""
    boxes = graph.swapped(distances(graph, centres=False))
    if yx:
        boxes = graph("Gather", boxes, [1, 0, 3, 2], axis=2)
    final = scores(graph, classes)
    limits = np.array([20]), np.array([0.6], np.float32), np.array([0.3], np.float32)
    triples = graph("NonMaxSuppression", boxes, final, *limits)
    picture, label, anchor = (graph("Gather", triples, np.int64(i), axis=1) for i in range(3))
    chosen = graph("Gather", graph("Squeeze", boxes, [0]), anchor, axis=0)
    pairs = graph("Concat", *(graph("Unsqueeze", p, [1]) for p in (label, anchor)), axis=1)
    score = graph("GatherND", graph("Squeeze", final, [0]), pairs)
    return chosen, score, label, picture


def of_pictures(graph: Graph, classes: int) -> dict[str, str]:
    """YOLOv7 for ONNX Runtime: picture, two corners, class, score [K, 7]."""
    boxes, score, label, picture = suppressed(graph, classes)
    parts = [graph("Cast", part, to=TensorProto.FLOAT) for part in (picture, label)]
    picture, label, score = (graph("Unsqueeze", part, [1]) for part in (*parts, score))
    return {"rows": graph("Concat", picture, boxes, label, score, axis=1)}


def in_one(graph: Graph, classes: int, *, empty: bool = False) -> dict[str, str]:
    """Two corners, score and class [1, K, 6]."""
    boxes, score, label, _ = suppressed(graph, classes)
    label = graph("Cast", label, to=TensorProto.FLOAT)
    parts = [graph("Unsqueeze", part, [1]) for part in (score, label)]
    if empty:  # the masks of a detector that has none
        parts.append(graph.cut(boxes, 4, 99, 1))
    return {"rows": graph("Unsqueeze", graph("Concat", boxes, *parts, axis=1), [0])}


def in_four(graph: Graph, classes: int) -> dict[str, str]:
    """How many there are, boxes [1, K, 4], scores and classes [1, K]."""
    boxes, score, label, _ = suppressed(graph, classes)
    count = graph("Cast", graph("Reshape", graph("Shape", score), [1, 1]), to=TensorProto.INT32)
    boxes, score, label = (graph("Unsqueeze", part, [0]) for part in (boxes, score, label))
    return {"count": count, "boxes": boxes, "scores": score, "labels": label}


def in_three(graph: Graph, classes: int) -> dict[str, str]:
    """torchvision: boxes [K, 4], class ids from 1 and scores [K]."""
    boxes, score, label, _ = suppressed(graph, classes)
    return {"boxes": boxes, "labels": graph("Add", label, np.int64(1)), "scores": score}


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
    "YOLOv5": Ending("YOLOv5", lambda g, c: {"head": anchors(g, c)}, with_objectness),
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
    "NMS, [K, 7]": Ending(
        "YOLOv7, selected inside",
        of_pictures,
        lambda o: (o["rows"][:, 1:5], o["rows"][:, 6], o["rows"][:, 5].astype(int)),
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
    "NMS, four outputs": Ending(
        "selected inside", in_four, lambda out: (out["boxes"], out["scores"], out["labels"])
    ),
    "NMS, three outputs": Ending(
        "selected inside", in_three, lambda out: (out["boxes"], out["scores"], out["labels"])
    ),
}


def model_of(name: str, classes: int, **options: Any) -> tuple[onnx.ModelProto, list[str]]:
    """A graph with one of the ENDINGS, and what each of its outputs holds."""
    graph = Graph(**options)
    outputs = ENDINGS[name].build(graph, classes)
    return graph.model(list(outputs.values())), list(outputs)
