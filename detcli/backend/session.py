"""Sessions that run where they were asked to, or raise an error that says why not.

`InferenceSession(providers=["CUDAExecutionProvider"])` alone raises nothing when CUDA does not
load: it logs a message and runs on the CPU. ONNX Runtime is imported here, and from here by all.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcli.backend.preprocess import Tensor
from detcli.backend.protocol import (
    BATCHES,
    LOAD_TIMEOUT_S,
    MORE_MEMORY,
    RUN_TIMEOUT_S,
    closed_error,
    is_out_of_memory,
    run_error,
    run_with_timeout,
)
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import (
    DependencyError,
    DetcliError,
    DeviceError,
    DeviceMemoryError,
    ModelError,
    OutputError,
)
from detcli.model.contract import Resize
from detcli.model.file import PreparedModel
from detcli.storage.cache import cache_folder, is_cache_trusted, make_cache_folders

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
BLOCKS_WHILE_REPLAYING = (int(_MAJOR), int(_MINOR)) < (1, 28)
"""Before that version, a replay waits for the GPU, whatever its run's options say."""

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
SOURCE_LINE = re.compile(r"^/\S+:\d+ .*?\) ")  # "/source/model.cc:256 Model(const Path&) "

OPTION_REFUSALS = (
    "cannot use the graph capture feature",
    "the dynamic shape inputs with associated profiles",
)
DEVICE_FAILURES = ("cuda failure", "cuda error", "cudnn", "cublas", "tensorrt", "invalid device id")

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"  # what `placement` reads
MAX_EXAMPLES = 3

log = logging.getLogger(__name__)
log.info("ONNX Runtime %s of the package %s", onnxruntime.__version__, onnxruntime.package_name)


class OptionRefusedError(ModelError):
    """ONNX Runtime cannot use an option of a provider with this graph, but may run it without.

    That is the capture of CUDA graphs, and shapes for TensorRT, of which a graph that it takes only
    parts of has inputs of its own.
    """


def open_session(graph: bytes, providers: Sequence[Provider], title: str, threads: int = 0) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Create a session that runs on the first provider."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    is_on_cpu = providers is CPU
    try:
        if is_on_cpu:
            return run_with_timeout(
                LOAD_TIMEOUT_S, title, lambda: _create(graph, options, providers)
            )
        options.add_session_config_entry(RECORD_PLACEMENT, "1")
        onnxruntime.set_default_logger_severity(FATAL)  # the providers use the default logger
        with stdout_to_stderr():
            # Without a limit, as TensorRT takes minutes to build an engine.
            session = _create(graph, options, providers)
    except (*FAILURES, ValueError) as error:
        raise _creation_error(reason(error), title, on_cpu=is_on_cpu) from error
    check_placement(session, [name for name, _ in providers], title)
    return session


def _create(graph: bytes, options: Any, providers: Sequence[Provider]) -> Any:  # noqa: ANN401
    """Create a session of ONNX Runtime, without its messages."""
    options.log_severity_level = FATAL
    # Without `enable_fallback=0` it prints the failure and tries again on the CPU.
    return onnxruntime.InferenceSession(graph, options, list(providers), enable_fallback=0)


def _creation_error(message: str, title: str, *, on_cpu: bool) -> Exception:
    """The error for a session that could not be created, by the message of ONNX Runtime."""
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
    """Make sure that a session runs where it was asked to, and log what runs elsewhere."""
    requested = providers[0]
    loaded = session.get_providers()
    for provider in providers:
        if provider not in loaded:
            raise DeviceError(
                f"ONNX Runtime chose {loaded[0]} instead of {provider}",
                "use --device cpu to run there on purpose",
            )

    nodes = placement(session)
    if nodes is None:
        log.info("%s: ONNX Runtime reports where nodes run from version 1.24 on", title)
        return
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
                _listed(nodes_of_provider),
            )


def _listed(nodes: Sequence[Any]) -> str:
    """How many nodes there are of each operator, and the names of some."""
    operators = Counter(operator_of(node) for node in nodes)
    listed = ", ".join(f"{count} {operator}" for operator, count in operators.most_common())
    names = [node.name for node in nodes if node.name]
    if names:
        listed += f" (such as {', '.join(names[:MAX_EXAMPLES])})"
    return listed


def placement(session: Any) -> dict[str, list[Any]] | None:  # noqa: ANN401
    """Nodes of a session by the provider that runs them; None before ONNX Runtime 1.24."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    nodes: dict[str, list[Any]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        nodes.setdefault(subgraph.ep_name, []).extend(subgraph.get_nodes())
    return nodes


def operator_of(node: Any) -> str:  # noqa: ANN401
    """A node's operator, with its domain unless it is ONNX's own."""
    return f"{node.domain}.{node.op_type}".lstrip(".")


class TensorSession:
    """Any graph on any device, with arrays as its inputs and outputs."""

    def __init__(
        self, device: str, providers: Sequence[Provider], graph: bytes, title: str, threads: int = 0
    ) -> None:
        self.device = device
        self._title = title
        self._session = open_session(graph, providers, title, threads)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Feed the named input and return all outputs that are arrays, by name."""
        if self._session is None:
            raise closed_error()
        try:
            outputs = self._session.run(None, {name: tensor})
        except FAILURES as error:
            raise run_error(tensor.shape, reason(error)) from error
        arrays = {}
        for output_name, output in zip(self._names, outputs, strict=True):
            if isinstance(output, np.ndarray):  # not a sequence or a map
                arrays[output_name] = np.asarray(output)
        return arrays

    def run_watched(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """As `run`; raises ModelError after ten minutes, for callers outside the pipeline."""
        return run_with_timeout(RUN_TIMEOUT_S, self._title, lambda: self.run(name, tensor))

    def close(self) -> None:
        self._session = None


def reason(error: Exception) -> str:
    """ONNX Runtime's message, without its code ("[ONNXRuntimeError] : 2 : FAIL : ") and addenda."""
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory"
    _, _, message = str(error).rpartition("[ONNXRuntimeError] : ")
    message = CODE.sub("", message.strip())
    message = SOURCE_LINE.sub("", message)
    # Host name, file, line and expression follow.
    sentence, _, _ = message.partition(" ; GPU=")
    return sentence


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
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
        file = Path(folder) / "simplified.onnx"  # it only writes to files
        options.optimized_model_filepath = str(file)
        try:
            run_with_timeout(LOAD_TIMEOUT_S, "the graph", lambda: _create(graph, options, CPU))
            return file.read_bytes()
        except (*FAILURES, DetcliError, ValueError, OSError):
            return None


def cuda_provider(
    ordinal: int,
    stream: int | None,
    options: DeviceOptions,
    *,
    half: bool = False,
    graph: bool = False,
) -> Provider:
    """The CUDA provider with its options; `half` says that the network computes in float16 only."""
    settings = {
        "device_id": str(ordinal),
        # The default asks cuDNN for its slower heuristic (before cuDNN 9 it timed every algorithm,
        # so two runs could choose differently). This one plans each new shape quickly, which short
        # runs feel, and always chooses the same.
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    if not half:
        # The default rounds the factors of float32 convolutions to 10 bits of mantissa, but the
        # boxes must equal the CPU's. A float16 model gives the speed: with this option, ONNX
        # Runtime would leave out tensor cores for its convolutions, too.
        settings["use_tf32"] = "0"
    if stream is not None:
        settings["user_compute_stream"] = str(stream)
    if options.gpu_mem_limit is not None:
        settings["gpu_mem_limit"] = str(options.gpu_mem_limit)
        # The default grows in doubling steps, and so takes more of the limit than it needs.
        settings["arena_extend_strategy"] = "kSameAsRequested"
    if graph:
        settings["enable_cuda_graph"] = "1"
    return CUDA, settings


BOUNDED = {Resize.STRETCH, Resize.LETTERBOX, Resize.CORNER}  # by the canvas; others by images


def profile_of(model: PreparedModel) -> dict[str, str]:
    """TensorRT's options for what a graph with dynamic axes will take; none for other graphs.

    Without them, TensorRT plans for the first batch, and again, for minutes, for each smaller or
    larger one.
    """
    contract = model.contract
    name = contract.input_name
    is_fixed = contract.batch and contract.input_size
    is_bounded = contract.input_size or contract.preprocessing.resize in BOUNDED
    name_can_be_told = set(name).isdisjoint(":,")
    if is_fixed or not is_bounded or not name_can_be_told:
        return {}

    size = contract.input_size or model.canvas or contract.default_size
    smallest_size = contract.input_size or (contract.stride, contract.stride)
    bounds = (
        ("min", 1, smallest_size),
        ("opt", BATCHES[-1], size),
        ("max", BATCHES[0], size),
    )
    profile = {}
    for bound, usual_batch, (height, width) in bounds:
        batch = contract.batch or usual_batch
        profile[f"trt_profile_{bound}_shapes"] = f"{name}:{batch}x3x{height}x{width}"
    return profile


def tensorrt_provider(
    ordinal: int,
    stream: int,
    options: DeviceOptions,
    model: PreparedModel,
    profile: Mapping[str, str],
) -> Provider:
    """The TensorRT provider with its options, and those of `profile_of`.

    Its CUDA graphs stay off: it keeps a single one, and replays it with the addresses of its
    capture even if a run is bound to others.
    """
    is_half = options.half or model.half or model.contract.input_dtype == "float16"
    settings = {
        "device_id": str(ordinal),
        "user_compute_stream": str(stream),
        "trt_fp16_enable": str(is_half),  # it only reads True and False
    }
    settings.update(profile)
    if options.gpu_mem_limit is not None:
        settings["trt_max_workspace_size"] = str(options.gpu_mem_limit)
    settings.update(_engine_cache(model, profile))
    return TENSORRT, settings


def _engine_cache(model: PreparedModel, profile: Mapping[str, str]) -> dict[str, str]:
    """The options that make TensorRT cache its engines; empty without a trusted cache."""
    try:
        # The provider names an engine after the graph's tensors, not its weights, so two trainings
        # of one architecture would share it: each file content gets a folder.
        folder = cache_folder()
        timings = folder / "tensorrt"
        engines = timings / hashlib.sha256(model.graph + repr(profile).encode()).hexdigest()
        make_cache_folders(folder, timings, engines)
        # An engine is code, which TensorRT runs unchecked.
        files = list(timings.glob("*.timing")) + list(engines.glob("*"))
        is_trusted = is_cache_trusted(folder, timings, engines, *files)
    except (OutputError, OSError) as error:
        log.info("TensorRT builds its engine at every start: %s", error)
        return {}
    if not is_trusted:
        return {}
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(engines),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(timings),
    }


def tensor_providers(device: Device, options: DeviceOptions, *, half: bool) -> Sequence[Provider]:
    """Providers of a `TensorSession` on a GPU; of the options, memory limit and precision count."""
    ordinal = device.ordinal or 0
    cuda = cuda_provider(ordinal, None, options, half=half)  # the runtime copies the arrays itself
    if not device.uses_tensorrt:
        return (cuda,)
    # No cache of engines: each call loads another graph, once.
    engine = {"device_id": str(ordinal), "trt_fp16_enable": str(options.half or half)}
    return (TENSORRT, engine), cuda


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send everything written to standard output to standard error, from C or Python.

    The file descriptor belongs to the whole process, so only do this while a library is loaded or
    set up, before any result is written.
    """
    _flush()
    # This one first: a closed descriptor is the next to be handed out.
    try:
        target = os.dup(STDERR)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    try:
        try:
            original = os.dup(STDOUT)  # if it was closed, it is `target` by now
        except OSError:  # unless standard input was closed too, and became `target`
            original = None
        try:
            os.dup2(target, STDOUT)
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            _flush()
            if original is None:
                os.close(STDOUT)
            else:
                os.dup2(original, STDOUT)
                os.close(original)
    finally:
        os.close(target)


def _flush() -> None:
    """Flush Python's and C's buffers; the rest would come out once the descriptor is restored."""
    if sys.stdout is not None:
        sys.stdout.flush()
    library = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None)
    library.fflush(None)
