"""A detector with convolutions: `colour_model` behind a few convolutions that change nothing.

An averaging convolution makes the cells, and others of one pixel hand them on.
"""

import colour_model
import numpy as np
from graph_edits import insert_nodes, position_of_producer, redirect_readers
from onnx import helper, numpy_helper

CONVOLUTIONS = ["layer1", "layer2", "layer3", "layer4", "cells"]


def build(tail="body", scale=1.0, **options):
    """Build the model; in its middle all is `scale` times as large."""
    model = colour_model.build(tail, **options)
    graph = model.graph
    dtype = options.get("dtype", np.float32)
    average = np.zeros((3, 3, 8, 8))
    average[range(3), range(3)] = 1 / 64
    same = np.eye(3).reshape(3, 3, 1, 1)
    kernels = [average, same, same * scale, same, same / scale]
    nodes, before = [], "images"
    for name, kernel in zip(CONVOLUTIONS, kernels, strict=True):
        graph.initializer.append(numpy_helper.from_array(kernel.astype(dtype), f"{name}_kernel"))
        strides = {"strides": [8, 8]} if name == "layer1" else {}
        inputs = [before, f"{name}_kernel"]
        nodes.append(helper.make_node("Conv", inputs, [name], name=f"node {name}", **strides))  # type: ignore[arg-type]
        before = name
    pool = graph.node[0]
    assert pool.op_type == "AveragePool"
    graph.node.remove(pool)
    insert_nodes(graph, 0, nodes)
    # Scores that a layer leaves would be logits. This activation changes nothing from 0 to 1.
    position = position_of_producer(graph, "scores")
    graph.node[position].output[0] = "linear"
    final = helper.make_node("HardSigmoid", ["linear"], ["scores"], alpha=1.0, beta=0.0)
    graph.node.insert(position + 1, final)
    return model


def behind_a_convolution(weight, pads=0, **options):
    """The colour model, with a layer in front of it."""
    model = colour_model.build(**options)
    redirect_readers(model.graph.node, "images", "mixed")
    node = helper.make_node("Conv", ["images", "weight"], ["mixed"], pads=[pads] * 4)
    model.graph.node.insert(0, node)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    return model


def session_output(model, tensor):
    """Run a model of one input."""
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {model.graph.input[0].name: tensor})


def same_bytes(first, second):
    """Whether two models are the same, byte for byte."""
    return first.SerializeToString(deterministic=True) == second.SerializeToString(
        deterministic=True
    )
