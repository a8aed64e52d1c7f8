"""Any graph on any device, its tensors as arrays: to look into a network, not to be fast."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.backend.runtime.session import FAILURES, Provider, open_session, reason, run_error

Tensor = npt.NDArray[Any]


class TensorSession:
    """A graph that is run for its outputs, whatever they are.

    Attributes:
        device: Where it runs.

    Raises:
        DeviceError: The device cannot be used.
        ModelError: The runtime refuses the graph.
    """

    def __init__(
        self, device: str, providers: Sequence[Provider], graph: bytes, title: str
    ) -> None:
        """Load a graph.

        Args:
            device: Where these providers run.
            providers: See `open_session`.
            graph: A serialised ONNX graph.
            title: What to call it in errors.
        """
        self.device = device
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
