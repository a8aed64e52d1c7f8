"""A detector whose answers are known: it finds cells of pure colour.

The network averages each 8x8 cell of the image; the averages of red, green and blue are the
scores of three classes, and each cell is an anchor whose box is the cell itself. So a square
painted red on grey is one detection, "red" with score 1. The graph comes with every tail that
exporters write.
"""

import numpy as np
import onnx
from graph_edits import constant_of
from onnx import TensorProto, helper, numpy_helper

CELL = 8
NAMES = ("red", "green", "blue")
COLOURS = {"red": (0, 0, 255), "green": (0, 255, 0), "blue": (255, 0, 0)}  # BGR
TAILS = ("body", "transposed", "ultralytics", "authors", "one-to-many")


def image(*squares, size=(64, 64), grey=114):
    """`image_of` with the squares as arguments."""
    return image_of(squares, size, grey)


def image_of(squares, size=(64, 64), grey=114):
    """A grey image (H, W, 3) with squares of (colour, column, row), in cells.

    The usual grey scores 0.45 in every cell and class; below 64 it is not found by default.
    """
    height, width = size
    image = np.full((height, width, 3), grey, np.uint8)
    for colour, column, row in squares:
        y, x = row * CELL, column * CELL
        image[y : y + CELL, x : x + CELL] = COLOURS[colour]
    return image


def cell_box(column, row):
    """x1, y1, x2, y2 of a cell."""
    left = float(CELL * column)
    top = float(CELL * row)
    return [left, top, left + CELL, top + CELL]


def build(
    tail="body",
    *,
    size=64,
    batch=1,
    dtype=np.float32,
    keep=16,
    metadata=None,
    opset=17,
    reach=0.5,
):
    """Build the graph with one of the TAILS; `size` or `batch` None makes that axis dynamic.

    A cell's box reaches half a cell from its middle, or that many with `reach`.
    """
    graph = _Graph(dtype)
    graph.add("AveragePool", ["images"], "cells", kernel_shape=[CELL, CELL], strides=[CELL, CELL])
    graph.add("Reshape", ["cells", graph.ints("flat", [0, 3, -1])], "scores")
    # Anchor points from running sums of ones, so that any size and batch will do.
    graph.add("Slice", ["cells"] + list(graph.slice_of(1, 0, 1)), "one_plane")
    graph.add("Mul", ["one_plane", graph.number("zero", 0)], "zeros")
    graph.add("Add", ["zeros", graph.number("one", 1)], "ones")
    for axis, name in ((3, "x"), (2, "y")):
        graph.add("Cast", ["ones"], f"{name}_ones", to=TensorProto.FLOAT)
        graph.add("CumSum", [f"{name}_ones", graph.scalar(f"{name}_axis", axis)], f"{name}_sums")
        graph.add("Cast", [f"{name}_sums"], f"{name}_steps", to=graph.type)
    graph.add("Concat", ["x_steps", "y_steps"], "steps", axis=1)
    graph.add("Sub", ["steps", graph.number("half", 0.5)], "centres")
    graph.add("Reshape", ["centres", graph.ints("flat2", [0, 2, -1])], "anchors")
    graph.add("Mul", ["anchors", "zero"], "no_distance")
    far = "half" if reach == 0.5 else graph.number("reach", reach)
    graph.add("Add", ["no_distance", far], "distance")
    graph.add("Sub", ["anchors", "distance"], "low")
    graph.add("Add", ["anchors", "distance"], "high")
    if tail == "one-to-many":
        graph.add("Add", ["low", "high"], "sum")
        graph.add("Div", ["sum", graph.number("two", 2)], "middle")
        graph.add("Sub", ["high", "low"], "extent")
        graph.add("Concat", ["middle", "extent"], "cells_boxes", axis=1)
    else:
        graph.add("Concat", ["low", "high"], "cells_boxes", axis=1)
    graph.add("Mul", ["cells_boxes", graph.number("stride", CELL)], "boxes")
    graph.add("Concat", ["boxes", "scores"], "head", axis=1)
    output = _TAIL_BUILDERS[tail](graph, keep, opset)

    count = size // CELL * (size // CELL) if size else None
    shapes = {"head": [batch, 7, count], "rows": [batch, count, 7], "detections": [batch, keep, 6]}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "colours",
            [helper.make_tensor_value_info("images", graph.type, _dims([batch, 3, size, size]))],
            [helper.make_tensor_value_info(output, graph.type, _dims(shapes[output]))],
            graph.initializers,
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    helper.set_model_props(model, metadata or {})
    onnx.checker.check_model(model, full_check=True)
    return model


def _plain(graph, keep, opset):  # noqa: ARG001 - as the others
    return "head"


def _transposed(graph, keep, opset):  # noqa: ARG001
    graph.add("Transpose", ["head"], "rows", perm=[0, 2, 1])
    return "rows"


def _ultralytics(graph, keep, opset):
    """The tail that Ultralytics' exporter writes: scores are gathered, boxes at the end."""
    _first_stage(graph, keep, opset)
    graph.add("Tile", ["first", graph.ints("over_classes", [1, 1, 3])], "first_c")
    graph.add("GatherElements", ["class_scores", "first_c"], "kept", axis=1)
    _second_stage(graph, keep)
    graph.add("GatherElements", ["first", "rank_u"], "anchor", axis=1)
    graph.add("Tile", ["anchor", graph.ints("over_sides", [1, 1, 4])], "anchor_4")
    graph.add("GatherElements", ["class_boxes", "anchor_4"], "kept_boxes", axis=1)
    return _join(graph)


def _authors(graph, keep, opset):
    """The tail that the authors' exporter writes: boxes are gathered after either stage."""
    _first_stage(graph, keep, opset)
    graph.add("Tile", ["first", graph.ints("over_sides", [1, 1, 4])], "first_4")
    graph.add("GatherElements", ["class_boxes", "first_4"], "first_boxes", axis=1)
    graph.add("Tile", ["first", graph.ints("over_classes", [1, 1, 3])], "first_c")
    graph.add("GatherElements", ["class_scores", "first_c"], "kept", axis=1)
    _second_stage(graph, keep)
    graph.add("Tile", ["rank_u", "over_sides"], "rank_4")
    graph.add("GatherElements", ["first_boxes", "rank_4"], "kept_boxes", axis=1)
    return _join(graph)


def _first_stage(graph, keep, opset):
    graph.add("Transpose", ["head"], "rows", perm=[0, 2, 1])
    sizes = graph.ints("sizes", [4, 3])
    graph.nodes.append(
        helper.make_node("Split", ["rows", sizes], ["class_boxes", "class_scores"], axis=-1)
    )
    if opset >= 18:
        graph.add("ReduceMax", ["class_scores", graph.ints("last", [-1])], "best", keepdims=0)
    else:
        graph.add("ReduceMax", ["class_scores"], "best", axes=[-1], keepdims=0)
    graph.top_k("best", graph.ints("keep", [keep]), "first")
    graph.add("Unsqueeze", ["first_index", graph.ints("minus_one", [-1])], "first")


def _second_stage(graph, keep):  # noqa: ARG001 - `keep` is an initializer by now
    graph.add("Flatten", ["kept"], "flat_scores", axis=1)
    graph.top_k("flat_scores", "keep", "second")
    classes = graph.scalar("class_count", 3)
    graph.add("Mod", ["second_index", classes], "class_index")
    graph.add("Div", ["second_index", classes], "rank")
    graph.add("Unsqueeze", ["rank", "minus_one"], "rank_u")


def _join(graph):
    graph.add("Unsqueeze", ["second_value", "minus_one"], "score_u")
    graph.add("Cast", ["class_index"], "class_float", to=graph.type)
    graph.add("Unsqueeze", ["class_float", "minus_one"], "class_u")
    graph.add("Concat", ["kept_boxes", "score_u", "class_u"], "detections", axis=-1)
    return "detections"


_TAIL_BUILDERS = {
    "body": _plain,
    "one-to-many": _plain,
    "transposed": _transposed,
    "ultralytics": _ultralytics,
    "authors": _authors,
}


def _dims(shape):
    """A shape in which each axis of any length has a name."""
    dims = list(shape)
    for axis, length in enumerate(shape):
        if length is None:
            dims[axis] = f"axis{axis}"
    return dims


class _Graph:
    """Collects nodes and constants."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def add(self, operator, inputs, output, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))

    def top_k(self, values, k, name):
        outputs = [f"{name}_value", f"{name}_index"]
        self.nodes.append(helper.make_node("TopK", [values, k], outputs, axis=-1))

    def slice_of(self, axis, start, stop):
        return [
            self.ints("start", [start]),
            self.ints("stop", [stop]),
            self.ints("slice_axis", [axis]),
        ]

    def ints(self, name, values):
        return self._constant(name, np.array(values, np.int64))

    def scalar(self, name, value):
        return self._constant(name, np.array(value, np.int64))

    def number(self, name, value):
        return self._constant(name, np.array(value, self.dtype))

    def _constant(self, name, array):
        self.initializers.append(numpy_helper.from_array(array, name))
        return name


def save_external(path, stride=CELL, location="weights.bin", **options):
    """Write a body whose constants are all in a file beside it."""
    model = build("body")
    tensor = constant_of(model.graph, "stride")
    tensor.CopyFrom(numpy_helper.from_array(np.array(stride, np.float32), "stride"))
    if options:  # constants as nodes instead
        for tensor in model.graph.initializer:
            node = onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
            model.graph.node.insert(0, node)
        del model.graph.initializer[:]
    (path.parent / location).unlink(missing_ok=True)
    onnx.save_model(
        model, path, save_as_external_data=True, location=location, size_threshold=0, **options
    )
    return path
