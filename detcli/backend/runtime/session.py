"""ONNX Runtime, strictly: what was asked for runs, or an error says why not.

By itself `InferenceSession(providers=["CUDAExecutionProvider"])` raises nothing when CUDA does
not load: it logs, and runs on the CPU.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.runtime import onnxruntime, runtime_errors
from detcli.errors import DeviceError, DeviceMemoryError, InferenceError, ModelError

Provider = tuple[str, dict[str, str]]
"""An execution provider, as ONNX Runtime names it, and its options."""

CPU: Sequence[Provider] = (("CPUExecutionProvider", {}),)

FATAL = 4  # log severity: what goes wrong is reported as an error of ours, once

FAILURES = (
    runtime_errors.EPFail,
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
    RuntimeError,  # a dtype that NumPy lacks; bound buffers that do not fit
)
"""What ONNX Runtime raises."""

CODE = re.compile(r"^\d+ : \w+ : ")
SOURCE_LINE = re.compile(r"^/\S+:\d+ .*?\) ")  # "/source/model.cc:256 Model(const Path&) "

REFUSED_CAPTURE = "cannot use the graph capture feature"
DEVICE_FAILURES = ("cuda failure", "cuda error", "cudnn", "cublas", "tensorrt", "invalid device id")


OUT_OF_MEMORY = (
    "out of memory",  # the CUDA runtime, and TensorRT in one of its spellings
    "outofmemory",
    "out_of_memory",  # the driver's name of the error
    "alloc_failed",  # cuBLAS and cuDNN
    "failed to allocate memory",  # ONNX Runtime, when the driver has no more
    "is smaller than requested bytes",  # its arena, at the limit that it was given
)

RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""Session configuration that makes ONNX Runtime keep what `check_placement` reads."""

MAX_EXAMPLES = 3

log = logging.getLogger(__name__)


class CaptureRefusedError(ModelError):
    """ONNX Runtime cannot capture this graph into a CUDA graph; without one it may well run."""


def open_session(graph: bytes, providers: Sequence[Provider], title: str, threads: int = 0) -> Any:  # noqa: ANN401 - onnxruntime has no types
    """Create a session that runs on the first provider.

    Args:
        graph: A serialised ONNX graph.
        providers: CPU, or what a GPU backend made of `providers.py`, after `require_provider` found
            that they load: nodes that the first of them
            does not know go to the next, in the end to the CPU; `-v` tells which.
        title: What to call the model in errors.
        threads: How many threads compute an operator on the CPU; 0 for one a core.

    Raises:
        DeviceError: A provider does not load, or runs no node.
        DeviceMemoryError: The model does not fit into the GPU's memory.
        CaptureRefusedError: CUDA graphs were asked for, and this graph does not allow them.
        ModelError: The runtime refuses the graph.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.intra_op_num_threads = threads
    if providers is CPU:
        return _create(graph, options, providers, title)
    # What a GPU needs takes time to import, and the CPU should start fast.
    from detcli.backend.runtime.libraries import stdout_to_stderr

    names = [name for name, _ in providers]
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    onnxruntime.set_default_logger_severity(FATAL)  # the providers log past their session
    with stdout_to_stderr():
        session = _create(graph, options, providers, title)
    check_placement(session, names, title)
    return session


def _create(
    graph: bytes,
    options: Any,  # noqa: ANN401
    providers: Sequence[Provider],
    title: str,
) -> Any:  # noqa: ANN401
    try:
        # Without `enable_fallback=0` it prints what went wrong, and tries again on the CPU.
        return onnxruntime.InferenceSession(graph, options, list(providers), enable_fallback=0)
    except (*FAILURES, ValueError) as error:
        raise _creation_error(reason(error), title) from error


def _creation_error(why: str, title: str) -> Exception:
    """What it means that a session could not be made."""
    if REFUSED_CAPTURE in why:
        return CaptureRefusedError(f"{title}: {why}", "use --no-cuda-graph")
    if is_out_of_memory(why):
        return model_out_of_memory(title, why)
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
    """Make sure that a session runs where it was asked to, and log what runs elsewhere.

    Args:
        session: A session that was made with RECORD_PLACEMENT set to "1".
        providers: ONNX Runtime's names of the execution providers that were asked for, the
            wanted one first.
        title: What to call the model.

    Raises:
        DeviceError: A provider did not load, or the wanted one took no node.
    """
    wanted, loaded = providers[0], session.get_providers()
    if absent := [provider for provider in providers if provider not in loaded]:
        raise DeviceError(
            f"ONNX Runtime chose {loaded[0]} instead of {absent[0]}",
            "use --device cpu to run there on purpose",
        )
    if not hasattr(session, "get_provider_graph_assignment_info"):
        log.info("%s: ONNX Runtime tells where nodes run from version 1.24 on", title)
        return
    nodes: dict[str, list[Any]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(part.get_nodes())
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


def _summary(nodes: Sequence[Any]) -> str:
    """Operators with their number, the most frequent first, and a few names."""
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in nodes)
    counts = ", ".join(f"{count} {operator}" for operator, count in operators.most_common())
    names = [node.name for node in nodes if node.name][:MAX_EXAMPLES]
    return f"{counts} (such as {', '.join(names)})" if names else counts


def run(session: Any, name: str, tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:  # noqa: ANN401
    """Feed the input of that name and return the only output.

    Raises:
        InferenceError: The runtime failed, or the session has been closed.
    """
    if session is None:
        raise closed()
    try:
        (output,) = session.run(None, {name: tensor})
    except FAILURES as error:
        raise run_error(tensor.shape, reason(error)) from error
    return np.asarray(output)


def closed() -> InferenceError:
    """Build the error for a session that has been closed."""
    return InferenceError("the detector has been closed", "use it inside its with block")


def run_error(shape: tuple[int, ...], why: str) -> InferenceError:
    """Build the error for a run that failed on an input of that shape."""
    return InferenceError(
        f"the network failed on a batch of shape {list(shape)}: {why}",
        "a graph with dynamic axes may need another --imgsz",
    )


def reason(error: Exception) -> str:
    """What ONNX Runtime says, without its code ("[ONNXRuntimeError] : 2 : FAIL : ") and addenda."""
    said = str(error).rpartition("[ONNXRuntimeError] : ")[2].strip()
    said = SOURCE_LINE.sub("", CODE.sub("", said))
    return said.partition(" ; GPU=")[0]  # host name, file, line and expression follow


def is_out_of_memory(reason: str) -> bool:
    """Tell whether a library's message means that memory ran out."""
    lowered = reason.lower()
    return any(sign in lowered for sign in OUT_OF_MEMORY)


def out_of_memory(shape: tuple[int, ...], reason: str, *, fixed: bool = False) -> DeviceMemoryError:
    """Build the error for a batch that does not fit.

    Args:
        shape: `(B, 3, H, W)` of the network's input.
        reason: What the library said.
        fixed: The graph takes B pictures and no other number.
    """
    batch = shape[0]
    if batch == 1:
        first = "a smaller --imgsz"
    elif fixed:
        first = "a model that was exported with a smaller batch"
    else:
        first = f"a batch of {batch // 2}"
    pictures = "1 picture" if batch == 1 else f"{batch} pictures"
    return DeviceMemoryError(
        f"a batch of {pictures}, shape {list(shape)}, does not fit into the GPU's memory: {reason}",
        f"try {first}, a larger --gpu-mem-limit, or --device cpu",
    )


def model_out_of_memory(title: str, reason: str) -> DeviceMemoryError:
    """Build the error for a model that does not even load."""
    return DeviceMemoryError(
        f"{title} does not fit into the GPU's memory: {reason}",
        "free some (nvidia-smi shows who holds it), allow more with --gpu-mem-limit, or use "
        "--device cpu",
    )
