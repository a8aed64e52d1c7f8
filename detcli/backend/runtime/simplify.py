"""ONNX Runtime's own simplification of a graph."""

import tempfile
from pathlib import Path

from detcli.backend.runtime.load import onnxruntime
from detcli.backend.runtime.session import FAILURES, FATAL


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
