"""ONNX Runtime, strictly: what was asked for runs, or an error says why not.

By itself `InferenceSession(providers=["CUDAExecutionProvider"])` raises nothing when CUDA does
not load: it logs, and runs on the CPU.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.memory import is_out_of_memory, model_out_of_memory
from detcli.backend.runtime.load import onnxruntime, runtime_errors
from detcli.errors import DeviceError, InferenceError, ModelError

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
    from detcli.backend.runtime.native_output import stdout_to_stderr
    from detcli.backend.runtime.placement import RECORD, check_placement

    names = [name for name, _ in providers]
    options.add_session_config_entry(RECORD, "1")
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
