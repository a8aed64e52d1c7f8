"""Copies of models with a fault of the kind that other runtimes and converters make."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def maker(model: onnx.ModelProto, tensor: str) -> onnx.NodeProto:
    """The node that makes a tensor."""
    for node in model.graph.node:
        if tensor in node.output:
            return node
    raise LookupError(tensor)


def redirect(model: onnx.ModelProto, tensor: str, other_tensor: str) -> None:
    """Let all nodes that read a tensor read another one."""
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name == tensor:
                node.input[position] = other_tensor


def without_transpose(model: onnx.ModelProto, tensor: str, shape: list[int]) -> onnx.ModelProto:
    """The Transpose that makes a tensor is gone: entries lie as before, under the same shape."""
    damaged = copy_of(model)
    node = maker(damaged, tensor)
    assert node.op_type == "Transpose"
    damaged.graph.initializer.append(
        numpy_helper.from_array(np.array(shape, np.int64), "kept_shape")
    )
    name = f"{node.name}_gone" if node.name else ""
    node.CopyFrom(helper.make_node("Reshape", [node.input[0], "kept_shape"], [tensor], name=name))
    return damaged


def bypassed(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """The node that makes a tensor is gone, and who read it reads what the node read."""
    damaged = copy_of(model)
    dropped = maker(damaged, tensor)
    before = dropped.input[0]
    damaged.graph.node.remove(dropped)
    redirect(damaged, tensor, before)
    return damaged


def swapped(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """The node that makes a tensor reads its two inputs the wrong way round."""
    damaged = copy_of(model)
    node = maker(damaged, tensor)
    node.input[:] = reversed(node.input)
    return damaged


def scaled_and_back(
    model: onnx.ModelProto, tensor: str, factor: float, dtype: type = np.float32
) -> onnx.ModelProto:
    """Two nodes more behind a tensor, `up` and `down`, that make it larger and as it was."""
    changed = copy_of(model)
    redirect(changed, tensor, "scaled_back")
    position = list(changed.graph.node).index(maker(changed, tensor))
    with np.errstate(over="ignore"):
        constants = {"factor": np.array(factor, dtype), "inverse": np.array(1 / factor, dtype)}
    for name, value in constants.items():
        changed.graph.initializer.append(numpy_helper.from_array(value, name))
    up = helper.make_node("Mul", [tensor, "factor"], ["scaled"], name="up")
    down = helper.make_node("Mul", ["scaled", "inverse"], ["scaled_back"], name="down")
    for offset, node in enumerate((up, down), start=1):
        changed.graph.node.insert(position + offset, node)
    return changed


def far_and_back(model: onnx.ModelProto, dtype: type = np.float32) -> onnx.ModelProto:
    """Upwards in two steps, `up` and `further`, each by what float16 holds; together it does not.

    Behind the `cells` of a colour model, which are up to 1.
    """
    changed = scaled_and_back(model, "cells", 512, dtype)
    for name, value in (("again", 512), ("undo", 1 / 512)):
        constant = numpy_helper.from_array(np.array(value, dtype), name)
        changed.graph.initializer.append(constant)
    position = list(changed.graph.node).index(maker(changed, "scaled")) + 1
    maker(changed, "scaled_back").input[0] = "undone"
    further = helper.make_node("Mul", ["scaled", "again"], ["far"], name="further")
    undo = helper.make_node("Mul", ["far", "undo"], ["undone"], name="undone")
    changed.graph.node.insert(position, further)
    changed.graph.node.insert(position + 1, undo)
    return changed
