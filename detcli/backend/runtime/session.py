"""Sessions that run where they were asked to, or raise an error that says why not.

`InferenceSession(providers=["CUDAExecutionProvider"])` alone raises nothing when CUDA does not
load: it logs a message and runs on the CPU. `survey` asks each provider what it makes of a graph.
"""

import contextlib
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.protocol import (
    LOAD_TIMEOUT_S,
    MORE_MEMORY,
    RUN_TIMEOUT_S,
    closed_error,
    is_out_of_memory,
    run_error,
    run_with_timeout,
)
from detcli.backend.runtime import onnxruntime, runtime_errors
from detcli.core.errors import DetcliError, DeviceError, DeviceMemoryError, ModelError

Tensor = npt.NDArray[Any]
Provider = tuple[str, dict[str, str]]
"""An execution provider, as ONNX Runtime names it, and its options."""

CPU: Sequence[Provider] = (("CPUExecutionProvider", {}),)

FATAL = 4  # log severity: failures are reported once, as detcli's errors

FAILURES = (
    runtime_errors.EPFail,
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
    RuntimeError,  # a dtype that NumPy lacks; bound buffers that do not fit
    MemoryError,
)
"""Exceptions that ONNX Runtime raises."""

CODE = re.compile(r"^\d+ : \w+ : ")
SOURCE_LINE = re.compile(r"^/\S+:\d+ .*?\) ")  # "/source/model.cc:256 Model(const Path&) "

REFUSED_CAPTURE = "cannot use the graph capture feature"
DEVICE_FAILURES = ("cuda failure", "cuda error", "cudnn", "cublas", "tensorrt", "invalid device id")

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""Session configuration that makes ONNX Runtime record what `placement` reads."""

MAX_EXAMPLES = 3

log = logging.getLogger(__name__)


class CaptureRefusedError(ModelError):
    """ONNX Runtime cannot capture this graph into a CUDA graph, but may run it without one."""


def open_session(graph: bytes, providers: Sequence[Provider], title: str, threads: int = 0) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Create a session that runs on the first provider."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.intra_op_num_threads = threads
    quiet: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if providers is not CPU:
        # Imported here to keep the CPU's start fast.
        from detcli.backend.runtime.libraries import stdout_to_stderr

        quiet = stdout_to_stderr()
        options.add_session_config_entry(RECORD_PLACEMENT, "1")
        onnxruntime.set_default_logger_severity(FATAL)  # the providers use the default logger
    try:
        with quiet:
            # Without `enable_fallback=0` it prints the failure and tries again on the CPU.
            create = partial(
                onnxruntime.InferenceSession, graph, options, list(providers), enable_fallback=0
            )
            # TensorRT takes minutes to build an engine.
            on_cpu = providers is CPU
            session = run_with_timeout(LOAD_TIMEOUT_S, title, create) if on_cpu else create()
    except (*FAILURES, ValueError) as error:
        raise _creation_error(reason(error), title, on_cpu=providers is CPU) from error
    if providers is not CPU:
        check_placement(session, [name for name, _ in providers], title)
    return session


def _creation_error(why: str, title: str, *, on_cpu: bool) -> Exception:
    if REFUSED_CAPTURE in why:
        return CaptureRefusedError(f"{title}: {why}", "use --no-cuda-graph")
    if is_out_of_memory(why) and on_cpu:
        return ModelError(f"{title} does not fit into memory: {why}", MORE_MEMORY)
    if is_out_of_memory(why):
        return DeviceMemoryError(
            f"{title} does not fit into the GPU's memory: {why}",
            "free some (nvidia-smi shows who holds it), allow more with --gpu-mem-limit, or use "
            "--device cpu",
        )
    if any(sign in why.lower() for sign in DEVICE_FAILURES):
        return DeviceError(
            f"the GPU failed while {title} was loaded: {why}",
            "see whether nvidia-smi lists the GPU; or use --device cpu",
        )
    return ModelError(
        f"ONNX Runtime {onnxruntime.__version__} cannot load {title}: {why}",
        "export it again with a lower opset, or upgrade onnxruntime",
    )


def check_placement(session: Any, providers: Sequence[str], title: str) -> None:  # noqa: ANN401 - onnxruntime has no types
    """Make sure that a session runs where it was asked to, and log what runs elsewhere."""
    wanted, loaded = providers[0], session.get_providers()
    if absent := [provider for provider in providers if provider not in loaded]:
        raise DeviceError(
            f"ONNX Runtime chose {loaded[0]} instead of {absent[0]}",
            "use --device cpu to run there on purpose",
        )
    nodes = placement(session)
    if nodes is None:
        log.info("%s: ONNX Runtime reports where nodes run from version 1.24 on", title)
        return
    count = sum(map(len, nodes.values()))
    if count and not nodes.get(wanted):
        raise DeviceError(
            f"{wanted} runs none of the {count} nodes of {title}",
            "export the model again with another opset, or use --device cpu",
        )
    for provider, placed in nodes.items():
        if provider != wanted:
            log.info("%s: %d of %d nodes run on %s: %s", title, len(placed), count, provider,
                     _summary(placed))  # fmt: skip


def placement(session: Any) -> dict[str, list[Any]] | None:  # noqa: ANN401
    """Nodes of a session by the provider that runs them; None before ONNX Runtime 1.24."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    nodes: dict[str, list[Any]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(part.get_nodes())
    return nodes


def operator_of(node: Any) -> str:  # noqa: ANN401
    """A node's operator, with its domain unless it is ONNX's own."""
    return f"{node.domain}.{node.op_type}".lstrip(".")


def _summary(nodes: Sequence[Any]) -> str:
    """Operators with their counts, the most frequent first, and the names of a few nodes."""
    operators = Counter(map(operator_of, nodes)).most_common()
    counts = ", ".join(f"{count} {operator}" for operator, count in operators)
    names = [node.name for node in nodes if node.name][:MAX_EXAMPLES]
    return f"{counts} (such as {', '.join(names)})" if names else counts


class TensorSession:
    """Any graph on any device, with arrays as its inputs and outputs."""

    def __init__(
        self, device: str, providers: Sequence[Provider], graph: bytes, title: str, threads: int = 0
    ) -> None:
        self.device, self._title = device, title
        self._session = open_session(graph, providers, title, threads)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Feed the named input and return all outputs by name."""
        if self._session is None:
            raise closed_error()
        try:
            outputs = self._session.run(None, {name: tensor})
        except FAILURES as error:
            raise run_error(tensor.shape, reason(error)) from error
        return {
            name: np.asarray(output)
            for name, output in zip(self._names, outputs, strict=True)
            if isinstance(output, np.ndarray)  # not a sequence or a map
        }

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """As `run`; raises ModelError after ten minutes, for callers outside the pipeline."""
        return run_with_timeout(RUN_TIMEOUT_S, self._title, partial(self.run, name, tensor))

    def close(self) -> None:
        self._session = None


def reason(error: Exception) -> str:
    """ONNX Runtime's message, without its code ("[ONNXRuntimeError] : 2 : FAIL : ") and addenda."""
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory"
    said = str(error).rpartition("[ONNXRuntimeError] : ")[2].strip()
    said = SOURCE_LINE.sub("", CODE.sub("", said))
    return said.partition(" ; GPU=")[0]  # host name, file, line and expression follow


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
