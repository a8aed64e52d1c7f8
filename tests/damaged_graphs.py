"""Copies of models with a fault of the kind that other runtimes and converters make."""

import numpy as np
import onnx
from graph_edits import insert_nodes, position_of_producer, producer_of, redirect_readers
from onnx import helper, numpy_helper


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def without_transpose(model: onnx.ModelProto, tensor: str, shape: list[int]) -> onnx.ModelProto:
    """The Transpose that makes a tensor is gone: entries lie as before, under the same shape."""
    damaged = copy_of(model)
    node = producer_of(damaged.graph, tensor)
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
    dropped = producer_of(damaged.graph, tensor)
    before = dropped.input[0]
    damaged.graph.node.remove(dropped)
    redirect_readers(damaged.graph.node, tensor, before)
    return damaged


def swapped(model: onnx.ModelProto, tensor: str) -> onnx.ModelProto:
    """The node that makes a tensor reads its two inputs the wrong way round."""
    damaged = copy_of(model)
    node = producer_of(damaged.graph, tensor)
    node.input[:] = reversed(node.input)
    return damaged


def scaled_and_back(
    model: onnx.ModelProto, tensor: str, factor: float, dtype: type = np.float32
) -> onnx.ModelProto:
    """Two nodes more behind a tensor, `up` and `down`, that make it larger and as it was."""
    changed = copy_of(model)
    redirect_readers(changed.graph.node, tensor, "scaled_back")
    position = position_of_producer(changed.graph, tensor)
    with np.errstate(over="ignore"):
        constants = {"factor": np.array(factor, dtype), "inverse": np.array(1 / factor, dtype)}
    for name, value in constants.items():
        changed.graph.initializer.append(numpy_helper.from_array(value, name))
    up = helper.make_node("Mul", [tensor, "factor"], ["scaled"], name="up")
    down = helper.make_node("Mul", ["scaled", "inverse"], ["scaled_back"], name="down")
    insert_nodes(changed.graph, position + 1, [up, down])
    return changed


def far_and_back(model: onnx.ModelProto, dtype: type = np.float32) -> onnx.ModelProto:
    """Upwards in two steps, `up` and `further`, each by what float16 holds; together it does not.

    Behind the `cells` of a colour model, which are up to 1.
    """
    changed = scaled_and_back(model, "cells", 512, dtype)
    for name, value in (("again", 512), ("undo", 1 / 512)):
        constant = numpy_helper.from_array(np.array(value, dtype), name)
        changed.graph.initializer.append(constant)
    position = position_of_producer(changed.graph, "scaled") + 1
    producer_of(changed.graph, "scaled_back").input[0] = "undone"
    further = helper.make_node("Mul", ["scaled", "again"], ["far"], name="further")
    undo = helper.make_node("Mul", ["far", "undo"], ["undone"], name="undone")
    insert_nodes(changed.graph, position, [further, undo])
    return changed
