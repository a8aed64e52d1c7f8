"""Sessions that run where they were asked to, or raise an error that says why not.

`InferenceSession(providers=["CUDAExecutionProvider"])` alone raises nothing when CUDA does not
load: it logs a message and runs on the CPU. ONNX Runtime is imported here, and from here by all.
"""

import contextlib
import ctypes
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcli.backend.preprocess import Tensor
from detcli.backend.protocol import (
    LOAD_TIMEOUT_S,
    MORE_MEMORY,
    RUN_TIMEOUT_S,
    closed_error,
    is_out_of_memory,
    run_error,
    run_with_timeout,
)
from detcli.config.device import Device
from detcli.core.errors import (
    DependencyError,
    DetcliError,
    DeviceError,
    DeviceMemoryError,
    ModelError,
)

# ONNX Runtime 1.31 keeps a device id and a database of telemetry in the user's cache folder. Only
# this variable, set before the import, keeps it from doing so; a value that is set already stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

try:
    import onnxruntime as onnxruntime  # noqa: PLC0414 - all import it from here
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors
except ImportError as error:
    from detcli.core.packages import explain

    raise DependencyError(*explain("onnxruntime", str(error))) from error

_MAJOR, _MINOR = onnxruntime.__version__.split(".")[:2]
REPLAYS_RIGHTLY = (int(_MAJOR), int(_MINOR)) >= (1, 30)
"""Whether a CUDA graph, a recorded run, computes the same as an ordinary run when it is replayed.

Before version 1.30, a replay reads the arguments of some operators (Concat and Split of unequal
parts, MatMul of batches) from host memory that an ordinary run in between may have used for
something else. Then boxes are wrong, and nothing says so.
"""

Provider = tuple[str, dict[str, str]]  # an execution provider's name, and its options

CPU: Sequence[Provider] = (("CPUExecutionProvider", {}),)
CUDA = Device.parse("cuda").provider
TENSORRT = Device.parse("tensorrt").provider

STDOUT = 1  # a file descriptor
STDERR = 2

FATAL = 4  # log severity: failures are reported once, as detcli's errors

# What ONNX Runtime raises.
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

CODE = re.compile(r"^\d+ : \w+ : ")
FAILED_NODE = re.compile(
    r"^Non-zero status code returned while running (?P<operator>\w+) node\. "
    r"(?:Name:'(?P<name>[^']*)' )?(?:Status Message: )?"
)
SOURCE_LINE = re.compile(r"^/\S+:\d+ .*?\) ")  # "/source/model.cc:256 Model(const Path&) "

OPTION_REFUSALS = (
    "cannot use the graph capture feature",
    "the dynamic shape inputs with associated profiles",
)
DEVICE_FAILURES = ("cuda failure", "cuda error", "cudnn", "cublas", "tensorrt", "invalid device id")

# An option of a session: it records which provider runs each node, for `nodes_by_provider`.
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
# An option of a session: whether its threads spin, which means that they keep asking for work.
ALLOW_SPINNING = "session.intra_op.allow_spinning"
MAX_EXAMPLES = 3  # names of nodes in a line of the log

log = logging.getLogger(__name__)
log.info("ONNX Runtime %s of the package %s", onnxruntime.__version__, onnxruntime.package_name)


class OptionRefusedError(ModelError):
    """ONNX Runtime cannot use an option of a provider with this graph, but may run it without.

    Such an option is the capture of CUDA graphs, or the range of input shapes for TensorRT. Where
    TensorRT takes only parts of the graph, their inputs differ from those that are described.
    """


def open_session(
    graph: bytes,
    providers: Sequence[Provider],
    title: str,
    *,
    threads: int = 0,
    spins: bool = True,
) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Load a graph into a session of ONNX Runtime that runs on the first of these providers.

    An execution provider is the part of ONNX Runtime that runs nodes on one kind of device. Nodes
    that the first provider lacks run on the next, or on the CPU.

    With the constant `CPU` itself as providers, loading stops after a time limit. With others there
    is none, and it is checked which nodes run on the first. That includes an equal list with the
    CPU provider, which serves to see which nodes it runs.

    Args:
        graph: A serialised ONNX model.
        providers: The providers, the preferred one first.
        title: How error messages refer to the graph.
        threads: Threads that share the work of a node; 0 leaves the number to ONNX Runtime.
        spins: Whether these threads keep busy while they wait for the next node.

    Raises:
        ModelError: The graph cannot be loaded, or takes too long on the CPU.
        DeviceError: The provider cannot be used, or runs no node of the graph.
        DeviceMemoryError: The graph does not fit into the GPU's memory.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if not spins:
        options.add_session_config_entry(ALLOW_SPINNING, "0")
    is_cpu_constant = providers is CPU
    try:
        if is_cpu_constant:
            return run_with_timeout(
                LOAD_TIMEOUT_S, title, lambda: _create_quietly(graph, options, providers)
            )
        session = _create_with_placement(graph, options, providers)
    except (*FAILURES, ValueError) as error:
        raise _creation_error(reason(error), title, on_cpu=is_cpu_constant) from error
    provider_names = [name for name, _ in providers]
    check_placement(session, provider_names, title)
    return session


def _create_with_placement(graph: bytes, options: Any, providers: Sequence[Provider]) -> Any:  # noqa: ANN401
    """Create a session that records which provider runs each node, without a time limit.

    There is no limit because TensorRT takes minutes to build its engine. What the libraries of the
    providers print goes to standard error.
    """
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    onnxruntime.set_default_logger_severity(FATAL)  # the providers use the default logger
    with stdout_to_stderr():
        return _create_quietly(graph, options, providers)


def _create_quietly(graph: bytes, options: Any, providers: Sequence[Provider]) -> Any:  # noqa: ANN401
    """Create a session of ONNX Runtime that logs no messages of its own."""
    options.log_severity_level = FATAL
    # Without `enable_fallback=0`, ONNX Runtime prints a failure and tries again on the CPU.
    session = onnxruntime.InferenceSession(graph, options, list(providers), enable_fallback=0)
    # It would keep the graph, to open it once more with other providers, which nothing does here.
    session._model_bytes = None  # noqa: SLF001 - nothing public frees this memory
    return session


def _creation_error(message: str, title: str, *, on_cpu: bool) -> DetcliError:
    """Choose the error for a graph that ONNX Runtime could not load.

    ONNX Runtime has few types of exceptions, so the text of its message tells apart an option that
    does not suit the graph, too little memory, a failure of the GPU, and a graph that ONNX Runtime
    cannot run.

    Args:
        message: The message of ONNX Runtime, as `reason` shortens it.
        title: How error messages refer to the graph.
        on_cpu: Whether the graph was loaded on the CPU, so that the computer's memory ran out and
            not the GPU's.
    """
    if any(sentence in message for sentence in OPTION_REFUSALS):
        return OptionRefusedError(f"{title}: {message}", "use --no-cuda-graph, or --device cuda")
    if is_out_of_memory(message) and on_cpu:
        return ModelError(f"{title} does not fit into memory: {message}", MORE_MEMORY)
    if is_out_of_memory(message):
        return DeviceMemoryError(
            f"{title} does not fit into the GPU's memory: {message}",
            "free some (nvidia-smi shows who holds it), allow more with --gpu-mem-limit, or use "
            "--device cpu",
        )
    if any(sign in message.lower() for sign in DEVICE_FAILURES):
        return DeviceError(
            f"the GPU failed while {title} was loaded: {message}",
            "see whether nvidia-smi lists the GPU; or use --device cpu",
        )
    return ModelError(
        f"ONNX Runtime {onnxruntime.__version__} cannot load {title}: {message}",
        "export it again with a lower opset, or upgrade onnxruntime",
    )


def check_placement(session: Any, providers: Sequence[str], title: str) -> None:  # noqa: ANN401 - onnxruntime has no types
    """Make sure that a session runs on the first provider, and log the nodes that others run.

    ONNX Runtime raises no error itself if it leaves out a provider, or assigns it no node.

    Args:
        session: A session of ONNX Runtime that was created with these providers.
        providers: The names of the providers, the requested device's first.
        title: How errors and the log refer to the graph.

    Raises:
        DeviceError: A provider was not loaded, or the first runs no node.
    """
    _require_loaded(session.get_providers(), providers)
    nodes = nodes_by_provider(session)
    if nodes is None:
        log.info("%s: ONNX Runtime reports where nodes run from version 1.24 on", title)
        return
    requested = providers[0]
    node_count = sum(len(nodes_of_provider) for nodes_of_provider in nodes.values())
    if node_count and not nodes.get(requested):
        raise DeviceError(
            f"{requested} runs none of the {node_count} nodes of {title}",
            "export the model again with another opset, or use --device cpu",
        )
    for provider, nodes_of_provider in nodes.items():
        if provider != requested:
            log.info(
                "%s: %d of %d nodes run on %s: %s",
                title,
                len(nodes_of_provider),
                node_count,
                provider,
                _describe_nodes(nodes_of_provider),
            )


def _require_loaded(loaded: Sequence[str], providers: Sequence[str]) -> None:
    """Raise a DeviceError unless all providers that a session was created with are loaded."""
    for provider in providers:
        if provider not in loaded:
            raise DeviceError(
                f"ONNX Runtime chose {loaded[0]} instead of {provider}",
                "use --device cpu to run there on purpose",
            )


def _describe_nodes(nodes: Sequence[Any]) -> str:
    """Count the nodes of each operator and name some: "2 Conv, 1 Add (such as conv_1, add_7)"."""
    operator_counts = Counter(operator_of(node) for node in nodes)
    description = ", ".join(
        f"{count} {operator}" for operator, count in operator_counts.most_common()
    )
    names = [node.name for node in nodes if node.name]
    if names:
        description += f" (such as {', '.join(names[:MAX_EXAMPLES])})"
    return description


def nodes_by_provider(session: Any) -> dict[str, list[Any]] | None:  # noqa: ANN401
    """List the nodes of a session's graph by the execution provider that runs them.

    Returns:
        The name of each provider, such as "CUDAExecutionProvider", with ONNX Runtime's records of
        its nodes; None before ONNX Runtime 1.24, which does not report it.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    nodes: dict[str, list[Any]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        nodes.setdefault(subgraph.ep_name, []).extend(subgraph.get_nodes())
    return nodes


def operator_of(node: Any) -> str:  # noqa: ANN401
    """Name a node's operator, with its domain unless that is ONNX's own, which is empty."""
    return f"{node.domain}.{node.op_type}".lstrip(".")


class TensorSession:
    """A session of ONNX Runtime that takes and returns NumPy arrays, for any graph and device."""

    def __init__(
        self,
        device: str,
        providers: Sequence[Provider],
        graph: bytes,
        title: str,
        *,
        threads: int = 0,
        spins: bool = True,
    ) -> None:
        """Load a graph into a session of ONNX Runtime; errors are those of `open_session`.

        Args:
            device: The name of the device, such as "cuda:0".
            providers: The execution providers that run the graph, see `open_session`.
            graph: A serialised ONNX model.
            title: How error messages refer to the graph.
            threads: Threads that share the work of a node; 0 leaves the number to ONNX Runtime.
            spins: Whether these threads keep busy while they wait for the next node.
        """
        self.device = device
        self._title = title
        self._session = open_session(graph, providers, title, threads=threads, spins=spins)
        self._output_names = [output.name for output in self._session.get_outputs()]

    def run(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Run the graph on a tensor, and return its outputs by name.

        Outputs that are not arrays but sequences or maps, as ONNX allows, are left out.

        Args:
            name: The graph's input; the only input that gets a value.
            tensor: The value of that input.

        Raises:
            InferenceError: ONNX Runtime failed, or the session was closed.
        """
        if self._session is None:
            raise closed_error()
        try:
            outputs = self._session.run(None, {name: tensor})
        except FAILURES as error:
            raise run_error(tensor.shape, reason(error)) from error
        arrays = {}
        for output_name, output in zip(self._output_names, outputs, strict=True):
            if isinstance(output, np.ndarray):
                arrays[output_name] = np.asarray(output)
        return arrays

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Run the graph as `run` does, but raise ModelError if that takes ten minutes.

        The pipeline limits the time of its batches itself; this is for everything else.
        """
        return run_with_timeout(RUN_TIMEOUT_S, self._title, lambda: self.run(name, tensor))

    def close(self) -> None:
        self._session = None


def reason(error: Exception) -> str:
    """Shorten a message of ONNX Runtime to the sentence that says what went wrong.

    For example, "[ONNXRuntimeError] : 2 : FAIL : CUDA failure 2: out of memory ; GPU=0 ;
    hostname=..." becomes "CUDA failure 2: out of memory". If a node is named, as in "Non-zero
    status code returned while running Conv node. Name:'conv_1' Status Message: bad shape", it
    becomes "its Conv node conv_1 failed: bad shape".
    """
    text = str(error)
    if isinstance(error, MemoryError) and not text:
        return "out of memory"
    # A message may quote another error; what follows the last prefix says the cause.
    _, _, message = text.rpartition("[ONNXRuntimeError] : ")
    message = CODE.sub("", message.strip())

    node_prefix = ""
    failed_node = FAILED_NODE.match(message)
    if failed_node is not None:
        node = f"{failed_node['operator']} node {failed_node['name'] or ''}".rstrip()
        node_prefix = f"its {node} failed: "
        message = message[failed_node.end() :]

    cause = SOURCE_LINE.sub("", message)
    # After this sign, a CUDA error names the host, the source file, its line and the expression.
    sentence, _, _ = cause.partition(" ; GPU=")
    return node_prefix + sentence


def refusal(graph: bytes, title: str) -> DetcliError | None:
    """Load a graph on the CPU, and return the error that this raises; None if it loads."""
    try:
        open_session(graph, CPU, title)
    except DetcliError as error:
        return error
    return None


def simplified(graph: bytes) -> bytes | None:
    """Simplify a graph with ONNX Runtime: fold constants, and remove nodes without effect.

    Args:
        graph: A serialised ONNX model without external data.

    Returns:
        A serialised model that computes the same outputs from the same inputs; None if ONNX
        Runtime cannot load the graph, or takes too long.
    """
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return optimised(graph, level, "the graph")
    except (DetcliError, OSError):
        return None


def optimised(graph: bytes, level: Any, title: str) -> bytes:  # noqa: ANN401
    """Optimise a graph for the CPU with ONNX Runtime, and return what it would run.

    Args:
        graph: A serialised ONNX model without external data.
        level: How far, of `onnxruntime.GraphOptimizationLevel`.
        title: How error messages refer to the graph.

    Returns:
        A serialised model; at the level ORT_ENABLE_EXTENDED and above, other runtimes and providers
        lack some of its operators.

    Raises:
        ModelError: ONNX Runtime cannot load or save the graph, or takes too long.
        OSError: No folder for temporary files can be used.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
        # ONNX Runtime writes the optimised graph to a file, and offers no other way to get it.
        file = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(file)
        try:
            run_with_timeout(LOAD_TIMEOUT_S, title, lambda: _create_quietly(graph, options, CPU))
        except (*FAILURES, ValueError) as error:
            raise _creation_error(reason(error), title, on_cpu=True) from error
        return file.read_bytes()


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what is written to standard output, from C or Python, to standard error meanwhile.

    The file descriptor belongs to the whole process, so only do this while a library is loaded or
    set up, before any result is written.
    """
    _flush_stdout()
    # Standard error is copied first. A copy gets the lowest number that is free, so if standard
    # output is closed, this copy becomes number 1, and closing it restores that state in the end.
    target = _copy_of_stderr()
    try:
        original_stdout = _copy_of_stdout()
        try:
            os.dup2(target, STDOUT)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _flush_stdout()
            if original_stdout is None:
                os.close(STDOUT)
            else:
                os.dup2(original_stdout, STDOUT)
                os.close(original_stdout)
    finally:
        os.close(target)


def _copy_of_stderr() -> int:
    """Open another file descriptor for standard error, or for the null device if it is closed."""
    try:
        return os.dup(STDERR)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _copy_of_stdout() -> int | None:
    """Open another file descriptor for standard output; None if it is closed."""
    try:
        return os.dup(STDOUT)
    except OSError:
        return None


def _flush_stdout() -> None:
    """Write out what Python and the C library hold back of the text for standard output.

    Text that stays in these buffers would go to wherever the descriptor points later.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    library.fflush(None)
