"""Operations: what one run of a network computes, from the shapes of its tensors.

Papers on detectors count two operations for each multiplication of a convolution or matrix
product, the second being its addition; activations, biases and what picks boxes are left out.
"""

import math
from collections import Counter
from collections.abc import Sequence

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto

from detcli.backend.runtime.survey import simplified
from detcli.commands.inspect.report import Operations
from detcli.model.graph import (
    CONVOLUTIONS,
    MULTIPLYING,
    PRODUCTS,
    GraphIndex,
    attribute,
    known_size,
)
from detcli.model.passes import infer_shapes

# Multiply too, in ways that are not worth knowing here; so a count without them is not complete.
NOT_COUNTED = frozenset(
    "Attention DeformConv Einsum FusedMatMul GRU LSTM MatMulNBits MultiHeadAttention RNN".split()
)
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Operators of others may do anything."""

FEW = 64  # entries of constants that shapes may depend on; weights have more


def count_operations(model: ModelProto, input_shape: Sequence[int | None]) -> Operations | None:
    """Count what a model computes for one input.

    Args:
        model: A model with one input.
        input_shape: The size of each axis of its input.

    Returns:
        The count; None if an axis has no size.
    """
    sizes = [size for size in input_shape if size]
    if not sizes or len(sizes) < len(input_shape):
        return None
    model = infer_shapes(_without_weights(model, sizes))
    found = _count(model, sizes)
    if found.uncounted:
        # Some exporters write sizes down as arithmetic on shapes, which onnx follows only so far.
        folded = simplified(model.SerializeToString())
        if folded is not None:
            again = _count(infer_shapes(onnx.load_model_from_string(folded)), sizes)
            found = min(found, again, key=lambda count: sum(count.uncounted.values()))
    return found


def _without_weights(model: ModelProto, sizes: Sequence[int]) -> ModelProto:
    """A small copy that takes an input of that shape, and its weights as further inputs."""
    index = GraphIndex(model.graph)
    inputs = {value.name for value in model.graph.input}
    small = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    small.functions.extend(model.functions)
    small.graph.name = model.graph.name
    small.graph.node.extend(model.graph.node)
    for value in index.image_inputs():
        fixed = small.graph.input.add()
        fixed.CopyFrom(value)
        for dim, size in zip(fixed.type.tensor_type.shape.dim, sizes, strict=True):
            dim.dim_value = size
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= FEW:
            small.graph.initializer.append(tensor)
        if math.prod(tensor.dims) > FEW or tensor.name in inputs:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            small.graph.input.append(value)
    small.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for output in model.graph.output:  # its shape may be symbolic, or that of another size
        free = small.graph.output.add(name=output.name)
        free.type.tensor_type.elem_type = output.type.tensor_type.elem_type
    return onnx.inliner.inline_local_functions(small) if small.functions else small


def _count(model: ModelProto, sizes: Sequence[int]) -> Operations:
    shapes = _Shapes(model)
    counted: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for node in model.graph.node:
        flops = _flops(node, shapes)
        if flops is None:
            uncounted[node.op_type] += 1
        elif flops:
            counted[node.op_type] += flops
        uncounted.update(_multiplying_inside(node))
    return Operations(
        flops=counted.total(),
        by_operator=dict(counted.most_common()),
        input_shape=tuple(sizes),
        uncounted=dict(uncounted),
    )


class _Shapes:
    """Shapes of all tensors of a graph, as far as they are numbers."""

    def __init__(self, model: ModelProto) -> None:
        self._index = GraphIndex(model.graph)

    def __getitem__(self, tensor: str) -> list[int] | None:
        dims = self._index.shapes.get(tensor)
        if dims is None:
            constant = self._index.constant_tensor(tensor)
            return None if constant is None else list(constant.dims)
        sizes = [size for dim in dims if (size := known_size(dim)) is not None]
        return sizes if len(sizes) == len(dims) else None


def _flops(node: NodeProto, shapes: _Shapes) -> int | None:
    """Operations of a node; None if it multiplies, but how much is not known."""
    if node.op_type in NOT_COUNTED or node.domain not in KNOWN_DOMAINS:
        return None
    if node.op_type not in MULTIPLYING:
        return 0
    if node.op_type in CONVOLUTIONS:
        weight, made = shapes[node.input[CONVOLUTIONS[node.op_type]]], shapes[node.output[0]]
        return 2 * math.prod(made) * math.prod(weight[1:]) if weight and made else None
    if node.op_type == "ConvTranspose":
        weight, read = shapes[node.input[1]], shapes[node.input[0]]
        return 2 * math.prod(read) * math.prod(weight[1:]) if weight and read else None
    factor, made = shapes[node.input[PRODUCTS[node.op_type]]], shapes[node.output[0]]
    if not factor or not made:
        return None
    # The axis that is summed over: the last but one of the second factor, unless it is transposed.
    depth = factor[-1] if len(factor) == 1 or attribute(node, "transB", 0) else factor[-2]
    return 2 * math.prod(made) * depth


def _multiplying_inside(node: NodeProto) -> Counter[str]:
    """Operators that multiply in the branches of an If or Loop: who knows how often they run."""
    inside: Counter[str] = Counter()
    for entry in node.attribute:
        for branch in (entry.g, *entry.graphs):
            for inner in branch.node:
                inside[inner.op_type] += inner.op_type in MULTIPLYING | NOT_COUNTED
                inside += _multiplying_inside(inner)
    return +inside
