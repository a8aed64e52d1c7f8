"""Any graph on any device, its tensors as arrays: to look into a network, not to be fast."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.options import DeviceOptions
from detcli.backend.runtime.session import (
    CPU,
    FAILURES,
    Provider,
    open_session,
    reason,
    run_error,
)

Tensor = npt.NDArray[Any]


class TensorSession:
    """A graph that is run for its outputs, whatever they are.

    Raises:
        DeviceError: The device cannot be used.
        ModelError: The runtime refuses the graph.
    """

    def __init__(
        self, device: str, graph: bytes, title: str, options: DeviceOptions | None = None
    ) -> None:
        """Load a graph.

        Args:
            device: "cpu", "cuda:N" or "tensorrt:N", as backends call themselves.
            graph: A serialised ONNX graph.
            title: What to call it in errors.
            options: Of these, the memory limit and TensorRT's precision.
        """
        providers = _providers(device, options or DeviceOptions())
        self._session = open_session(graph, providers, title)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Feed the input of that name; all outputs by name.

        Raises:
            InferenceError: The runtime failed.
        """
        try:
            outputs = self._session.run(None, {name: tensor})
        except FAILURES as error:
            raise run_error(tensor.shape, reason(error)) from error
        return {
            name: np.asarray(output)
            for name, output in zip(self._names, outputs, strict=True)
            if isinstance(output, np.ndarray)  # sequences and maps are no tensors
        }


def _providers(device: str, options: DeviceOptions) -> Sequence[Provider]:
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return CPU
    from detcli.backend.runtime.libraries import CUDA, TENSORRT, require_provider
    from detcli.backend.runtime.providers import cuda_provider

    require_provider(TENSORRT if kind == "tensorrt" else CUDA)
    ordinal = int(number or 0)
    name, told = cuda_provider(ordinal, 0, options, graph=False)
    # Arrays come and go by the runtime's own copies, so on a stream of its own.
    cuda = name, {key: value for key, value in told.items() if key != "user_compute_stream"}
    if kind == "cuda":
        return (cuda,)
    # No cache of engines: each question is another graph, asked once.
    engine = {"device_id": str(ordinal), "trt_fp16_enable": str(options.half)}
    return (TENSORRT, engine), cuda
