"""ONNX Runtime's TopK, as exported graphs have it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from detcli.backend.device import Device
from detcli.backend.runtime import onnxruntime
from detcli.backend.runtime.libraries import CUDA, require_provider
from detcli.backend.runtime.session import CPU, open_session
from detcli.commands.bench.topk.cases import CLASSES, CONFIDENCE, Answer, Do, MissingError, Task
from detcli.errors import DeviceError

TITLE = "a graph of TopK"
OPSET = 18  # the first in which ReduceMax takes its axes as an input


def runtime_way(task: Task, device: Device) -> Do:
    """A graph with one TopK, or the tail that exporters write, with two.

    Raises:
        MissingError: ONNX Runtime cannot use the GPU.
    """
    graph = _top_k_graph(task) if task.name == "top_k" else _tail_graph(task)
    providers, place = CPU, ("cpu", 0)
    if device.is_gpu:
        try:
            require_provider(CUDA)
        except DeviceError as error:
            raise MissingError(str(error)) from error
        ordinal = device.ordinal or 0
        providers, place = [(CUDA, {"device_id": str(ordinal)})], ("cuda", ordinal)
    session = open_session(graph, providers, TITLE)
    values = onnxruntime.OrtValue.ortvalue_from_numpy(task.values, *place)

    def run() -> Answer:
        binding = session.io_binding()
        binding.bind_ortvalue_input("values", values)
        for output in session.get_outputs():
            binding.bind_output(output.name)  # on the host
        session.run_with_iobinding(binding)
        found = binding.copy_outputs_to_cpu()
        if task.name == "top_k":
            return list(found)
        above = found[0] > np.float32(CONFIDENCE)
        return [part[above] for part in found]

    return run


def _top_k_graph(task: Task) -> bytes:
    nodes = [helper.make_node("TopK", ["values", "k"], ["best", "indices"], axis=-1)]
    outputs = {"best": TensorProto.FLOAT, "indices": TensorProto.INT64}
    return _model(task, nodes, {"k": [min(task.k, task.n)]}, outputs)


def _tail_graph(task: Task) -> bytes:
    """Best class of each anchor, TopK, their scores, TopK, their boxes."""
    keep = min(task.k, task.n)
    steps: list[tuple[str, list[str], list[str], dict[str, Any]]] = [
        ("Split", ["values", "parts"], ["boxes", "scores"], {"axis": 0}),
        ("ReduceMax", ["scores", "first"], ["anchor_score"], {"keepdims": 0}),
        ("TopK", ["anchor_score", "anchor_k"], ["anchor_best", "anchors"], {"axis": -1}),
        ("Gather", ["scores", "anchors"], ["class_major"], {"axis": 1}),
        ("Transpose", ["class_major"], ["anchor_major"], {"perm": [1, 0]}),
        ("Reshape", ["anchor_major", "flat"], ["kept"], {}),
        ("TopK", ["kept", "k"], ["best", "place"], {"axis": -1}),
        ("Mod", ["place", "classes"], ["class_id"], {}),
        ("Div", ["place", "classes"], ["rank"], {}),
        ("Gather", ["anchors", "rank"], ["anchor"], {"axis": 0}),
        ("Gather", ["boxes", "anchor"], ["columns"], {"axis": 1}),
        ("Transpose", ["columns"], ["rows"], {"perm": [1, 0]}),
    ]
    nodes = [helper.make_node(kind, given, made, **rest) for kind, given, made, rest in steps]
    numbers = {
        "parts": [4, CLASSES],
        "first": [0],
        "anchor_k": [keep],
        "flat": [-1],
        "k": [min(task.k, keep * CLASSES)],
        "classes": [CLASSES],
    }
    kinds = {"best": TensorProto.FLOAT, "class_id": TensorProto.INT64, "rows": TensorProto.FLOAT}
    return _model(task, nodes, numbers, kinds)


def _model(
    task: Task,
    nodes: Sequence[NodeProto],
    numbers: dict[str, list[int]],
    outputs: Mapping[str, int],
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "ranking",
        [helper.make_tensor_value_info("values", TensorProto.FLOAT, list(task.values.shape))],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.array(values), name) for name, values in numbers.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model
