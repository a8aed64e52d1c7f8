"""What each execution provider of this ONNX Runtime makes of a graph."""

import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detcli.backend.failures import LOAD_TIMEOUT_S, run_with_timeout
from detcli.backend.runtime import onnxruntime
from detcli.backend.runtime.session import (
    CPU,
    FAILURES,
    FATAL,
    Provider,
    open_session,
    operator_of,
    placement,
)
from detcli.errors import DetcliError

LEAST_EFFORT = {"trt_builder_optimization_level": "0"}
"""Builds TensorRT's engine in seconds instead of minutes; nodes are placed the same way."""


@dataclass(frozen=True, slots=True)
class LeftNode:
    """A node that the provider in question leaves to another."""

    name: str
    operator: str
    provider: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the nodes of a graph would run if a provider was asked for."""

    provider: str  # its name in ONNX Runtime
    usable: bool  # whether it accepts the graph here
    reason: str = ""  # why it does not; empty if it does
    hint: str = ""  # what to do about that
    # number of nodes it runs by operator, after ONNX Runtime's own simplifications; None if it does
    # not accept the graph, or ONNX Runtime does not report it
    taken: dict[str, int] | None = None
    # nodes that it leaves to other providers; None where `taken` is
    left: tuple[LeftNode, ...] | None = None


def survey(graph: bytes, title: str) -> tuple[Placement, ...]:
    """Load a serialised ONNX graph with each provider that this ONNX Runtime was built with.

    `title` names the graph in errors. ONNX Runtime's preferred provider comes first, the CPU last.
    """
    return tuple(_place(graph, name, title) for name in onnxruntime.get_available_providers())


def refusal(graph: bytes, title: str) -> DetcliError | None:
    """Why the CPU does not accept a graph; None if it does."""
    try:
        open_session(graph, CPU, title)
    except DetcliError as error:
        return error
    return None


def simplified(graph: bytes) -> bytes | None:
    """Simplify a graph as ONNX Runtime does, with its constants folded.

    Both graphs are serialised, without external data, and have the same inputs and outputs; None
    if the graph does not load.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
        file = Path(folder) / "simplified.onnx"  # it only writes to files
        options.optimized_model_filepath = str(file)
        try:
            create = partial(
                onnxruntime.InferenceSession,
                graph,
                options,
                providers=["CPUExecutionProvider"],
                enable_fallback=0,
            )
            run_with_timeout(LOAD_TIMEOUT_S, "the graph", create)
            return file.read_bytes()
        except (*FAILURES, DetcliError, ValueError, OSError):
            return None


def _place(graph: bytes, name: str, title: str) -> Placement:
    # Imported here: it searches for a GPU's libraries.
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider

    providers: list[Provider] = [(name, {})]
    if name == TENSORRT:
        providers = [(TENSORRT, LEAST_EFFORT), (CUDA, {})]
    try:
        if name in {CUDA, TENSORRT}:
            require_provider(name)
        nodes = placement(open_session(graph, providers, title))
    except DetcliError as error:
        return Placement(name, usable=False, reason=str(error), hint=error.hint)
    if nodes is None:
        return Placement(name, usable=True)
    taken = Counter(map(operator_of, nodes.pop(name, ())))
    left = tuple(
        LeftNode(node.name, operator_of(node), provider)
        for provider, placed in nodes.items()
        for node in placed
    )
    return Placement(name, usable=True, taken=dict(taken.most_common()), left=left)
