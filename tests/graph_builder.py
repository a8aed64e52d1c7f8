"""Builds small detectors node by node, with random weights; and what their heads hold, in NumPy."""

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
    size: tuple[int, int] = (HEIGHT, WIDTH)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def __post_init__(self):
        self.input("images", TensorProto.FLOAT, [self.batch, 3] + list(self.size))

    def input(self, name, dtype, dims):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def all(self, operator, *inputs, outputs=1, **attributes):
        names = []
        for entry in inputs:
            if isinstance(entry, str):
                names.append(entry)
            else:
                names.append(self.constant(entry))
        output_names = []
        for number in range(outputs):
            output_names.append(f"{operator.lower()}{len(self.nodes)}_{number}")
        self.nodes.append(helper.make_node(operator, names, output_names, **attributes))
        return output_names

    def __call__(self, operator, *inputs, **attributes):
        return self.all(operator, *inputs, **attributes)[0]

    def concat(self, tensors, axis):
        return self("Concat", *tensors, axis=axis)

    def constant(self, value):
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *dims):
        fan = np.prod(dims[1:]) if len(dims) == 4 else dims[0]
        return (self.random.standard_normal(dims) * 3 / np.sqrt(fan)).astype(np.float32)

    def convolution(self, channels, stride, source="images", inside=3):
        """A map [B, channels, H / stride, W / stride]."""
        weights = self.weights(channels, inside, stride, stride)
        bias = self.random.standard_normal(channels).astype(np.float32)
        kernel = {"kernel_shape": [stride] * 2, "strides": [stride] * 2}
        return self("Conv", source, weights, bias, **kernel)

    def maps(self, channels):
        """Maps of all scales, one after the other: [B, channels, N]."""
        maps = [self.flat_convolution(channels, stride) for stride in STRIDES]
        return self.concat(maps, axis=2)

    def flat(self, tensor, channels):
        return self("Reshape", tensor, [0, channels, -1])

    def flat_convolution(self, channels, stride=8):
        """A map of one scale with its cells in a row: [B, channels, N]."""
        return self.flat(self.convolution(channels, stride), channels)

    def cut(self, tensor, start, stop, axis):
        return self("Slice", tensor, [start], [stop], [axis])

    def four_columns(self, boxes):
        """The four numbers of boxes [B, N, 4], each as [B, N, 1]."""
        columns = []
        for column in range(4):
            columns.append(self.cut(boxes, column, column + 1, 2))
        return columns

    def unsqueezed(self, tensors, axis):
        """Each of the tensors with one more axis."""
        outputs = []
        for tensor in tensors:
            outputs.append(self("Unsqueeze", tensor, [axis]))
        return outputs

    def queries(self):
        """Features of 24 queries, [B, 24, 8]."""
        return self.rows(self.convolution(8, 8, self("Sigmoid", self.convolution(8, 2)), 8))

    def patches(self):
        """The same of 24 patches of the image, as a vision transformer begins."""
        return self.rows(self.convolution(8, 16))

    def rows(self, maps):
        return self("Relu", self("Transpose", self.flat(maps, 8), perm=[0, 2, 1]))

    def linear(self, tensor, inside, outside):
        product = self("MatMul", tensor, self.weights(inside, outside))
        return self("Add", product, self.random.standard_normal(outside).astype(np.float32))

    def perceptron(self, tensor, outside):
        return self.linear(self("Relu", self.linear(tensor, 8, 8)), 8, outside)

    def non_max_suppression(self, boxes, scores, *, count=20, iou=0.6, conf=0.3, **attributes):
        """Image, class and box [K, 3] of the detections left, at most `count` per class."""
        limits = [np.array([count]), np.array([iou], np.float32), np.array([conf], np.float32)]
        return self("NonMaxSuppression", boxes, scores, *limits, **attributes)

    def swapped(self, tensor):
        return self("Transpose", tensor, perm=[0, 2, 1])

    def model(self, outputs, metadata=None):
        values = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, values, self.constants)
        domains = {node.domain for node in self.nodes} - {""}
        imports = [helper.make_opsetid(name, 1) for name in sorted(domains)]
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)] + imports, ir_version=8
        )
        helper.set_model_props(model, metadata or {})
        return with_types(model)


def with_types(model):
    """The model with the types and shapes of its outputs, which no exporter leaves out."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    values = {}
    for value in list(inferred.graph.value_info) + list(inferred.graph.output):
        values[value.name] = value
    for value in model.graph.output:
        value.CopyFrom(values[value.name])
        if not value.type.tensor_type.elem_type:  # of plug-ins, whose shapes nobody infers
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def grid():
    """Column and row of each cell of all scales, (N, 2), and its stride, (N, 1)."""
    cells = []
    strides = []
    for stride in STRIDES:
        y, x = np.mgrid[: HEIGHT // stride, : WIDTH // stride]
        cells.append(np.stack([x, y], -1).reshape(-1, 2))
        strides.append(np.full((cells[-1].shape[0], 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


def corners(boxes):
    """x1, y1, x2, y2 of centre and size."""
    centre = boxes[..., :2]
    size = boxes[..., 2:]
    return np.concatenate([centre - size / 2, centre + size / 2], -1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Ending:
    """A way to end a graph.

    Attributes:
        family: As detcli is to name it.
        build: Adds the nodes for C classes; returns the output tensors by what they hold.
        expected: From these outputs of one image, boxes (N, 4) x1, y1, x2, y2 in pixels of the
            input and scores (N, C), or class ids (N,) beside scores (N,).
        one_class: Whether only the best class of each box counts.
    """

    family: str
    build: Callable[[Graph, int], dict[str, str]]
    expected: Callable[[Arrays], tuple[npt.NDArray[Any], ...]]
    one_class: bool = False


def split_corners(graph, boxes):
    """Two corners of centre and size, as torchvision's box_convert."""
    centre = graph.cut(boxes, 0, 2, 2)
    size = graph.cut(boxes, 2, 4, 2)
    half = graph("Mul", size, np.float32(0.5))
    return graph("Concat", graph("Sub", centre, half), graph("Add", centre, half), axis=2)
