"""What each execution provider of this ONNX Runtime makes of a graph."""

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from detcli.backend.runtime import onnxruntime
from detcli.backend.runtime.session import CPU, FAILURES, FATAL, Provider, open_session
from detcli.errors import DetcliError


def simplified(graph: bytes) -> bytes | None:
    """What ONNX Runtime leaves of a graph: what can be computed beforehand has been.

    Args:
        graph: A serialised ONNX graph, all within itself.

    Returns:
        A serialised ONNX graph of the same inputs and outputs; None if it does not load.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
        file = Path(folder) / "simplified.onnx"  # it writes to a file, or not at all
        options.optimized_model_filepath = str(file)
        try:
            onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            return file.read_bytes()
        except (*FAILURES, ValueError, OSError):
            return None


# Where a node runs does not depend on how well it is tuned: the least effort builds an engine in
# seconds instead of minutes.
LEAST_EFFORT = {"trt_builder_optimization_level": "0"}


@dataclass(frozen=True, slots=True)
class LeftNode:
    """A node that the provider in question leaves to another."""

    name: str
    operator: str
    provider: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the nodes of a graph would run, if a provider was asked for.

    Attributes:
        provider: ONNX Runtime's name of it.
        usable: Whether it takes the graph here.
        reason: Why not; empty if it does.
        hint: What to do about that.
        taken: How many nodes of each operator it takes, after ONNX Runtime's own simplifications;
            None if it does not take the graph, or ONNX Runtime does not tell.
        left: The nodes that it leaves to others; None where `taken` is.
    """

    provider: str
    usable: bool
    reason: str = ""
    hint: str = ""
    taken: dict[str, int] | None = None
    left: tuple[LeftNode, ...] | None = None


def survey(graph: bytes, title: str) -> tuple[Placement, ...]:
    """Load a graph with each provider that this ONNX Runtime was built with.

    Args:
        graph: A serialised ONNX graph.
        title: What to call it in errors.

    Returns:
        A placement for each provider, ONNX Runtime's preferred one first, the CPU last.
    """
    return tuple(_place(graph, name, title) for name in onnxruntime.get_available_providers())


def refusal(graph: bytes, title: str) -> DetcliError | None:
    """Why the CPU does not take a graph; None if it does."""
    try:
        open_session(graph, CPU, title)
    except DetcliError as error:
        return error
    return None


def _place(graph: bytes, name: str, title: str) -> Placement:
    # Made for those who want a GPU: it looks for its libraries.
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider

    providers: list[Provider] = [(name, {})]
    if name == TENSORRT:
        providers = [(TENSORRT, LEAST_EFFORT), (CUDA, {})]
    try:
        if name in {CUDA, TENSORRT}:
            require_provider(name)
        session = open_session(graph, providers, title)
    except DetcliError as error:
        return Placement(name, usable=False, reason=str(error), hint=error.hint)
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return Placement(name, usable=True)  # before ONNX Runtime 1.24
    taken: Counter[str] = Counter()
    left = []
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            operator = f"{node.domain}.{node.op_type}".lstrip(".")
            if part.ep_name == name:
                taken[operator] += 1
            else:
                left.append(LeftNode(node.name, operator, part.ep_name))
    return Placement(name, usable=True, taken=dict(taken.most_common()), left=tuple(left))
