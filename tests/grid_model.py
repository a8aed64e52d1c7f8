"""A detector for one picture size, with everything that such an export holds of the size.

It finds cells of pure colour, as `colour_model` does, at two strides: 8 and 16. The anchor grid is
constant, and targets of Reshape are numbers.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STRIDES = (8, 16)
CHANNELS = 3


def levels(size):
    """Cells a side at each stride."""
    return [size // stride for stride in STRIDES]


def anchors(size):
    """Centres of all cells in cells: (1, 2, N), x before y."""
    points = [np.indices((side, side))[::-1].reshape(2, -1) + 0.5 for side in levels(size)]
    return np.concatenate(points, axis=1)[None].astype(np.float32)


def strides(size):
    """The stride of each anchor: (1, N)."""
    counts = [side * side for side in levels(size)]
    return np.repeat(np.array(STRIDES, np.float32), counts)[None]


def build(size=64, *, batch=1, resize=True):
    """Build the model; with `resize`, a Resize to a fixed shape is in it."""
    first, second = levels(size)
    count = first**2 + second**2
    constants = {
        "anchors": anchors(size),
        "strides": strides(size),
        "half": np.array(0.5, np.float32),
        "zero": np.array(0, np.float32),
        "flat_8": np.array([batch, CHANNELS, first**2]),
        "square_8": np.array([batch, CHANNELS, first, first]),
        "flat_16": np.array([batch, CHANNELS, -1]),
        "pair": np.array([batch, 1, CHANNELS, count]),
        "back": np.array([batch, CHANNELS, count]),
        "one_plane": np.array([batch, 1, count]),
        "sides": np.array([batch, CHANNELS, second, second]),
        "start": np.array([0]),
        "stop": np.array([1]),
        "axis": np.array([1]),
    }
    nodes = [
        _node("AveragePool", ["images"], "cells_8", kernel_shape=[8, 8], strides=[8, 8]),
        _node("AveragePool", ["cells_8"], "cells_16", kernel_shape=[2, 2], strides=[2, 2]),
        _node("Resize", ["cells_16", "", "", "sides"], "same_16", mode="nearest")
        if resize
        else _node("Identity", ["cells_16"], "same_16"),
        _node("Reshape", ["cells_8", "flat_8"], "first"),
        _node("Reshape", ["first", "square_8"], "squared"),
        _node("Reshape", ["squared", "flat_8"], "again"),
        _node("Reshape", ["same_16", "flat_16"], "second"),
        _node("Concat", ["again", "second"], "joined", axis=2),
        _node("Reshape", ["joined", "pair"], "paired"),
        _node("Reshape", ["paired", "back"], "scores"),
        _node("Slice", ["scores", "start", "stop", "axis"], "one"),
        _node("Reshape", ["one", "one_plane"], "plane"),
        _node("Mul", ["plane", "zero"], "nothing"),
        _node("Add", ["nothing", "half"], "distance"),
        _node("Sub", ["anchors", "distance"], "low"),
        _node("Add", ["anchors", "distance"], "high"),
        _node("Concat", ["low", "high"], "corners", axis=1),
        _node("Mul", ["corners", "strides"], "boxes"),
        _node("Concat", ["boxes", "scores"], "head", axis=1),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("images", [batch, 3, size, size]), ("head", [batch, 7, count]))
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "grid", values[:1], values[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def _node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs, [output], **attributes)
