"""OpenVINO: it runs the network; pictures and selection are the CPU's own code.

library.py   OpenVINO itself, and whether it has the device
proof.py     whether it computes what ONNX Runtime does
network.py   a compiled network: its precision, the cached copy, requests that run it
backend.py   all of it as a Backend
"""

from typing import Any

from detcli.backend.openvino.backend import OpenvinoBackend
from detcli.backend.openvino.network import OpenvinoTensors, open_network
from detcli.core.device import Device, DeviceOptions
from detcli.model.file import PreparedModel


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> OpenvinoBackend:
    """Load a model, see `backend.open_backend`."""

    def check(compiled: Any) -> None:  # noqa: ANN401 - openvino's types are incomplete
        from detcli.backend.openvino.proof import require_same_head  # needs ONNX Runtime

        require_same_head(compiled, model)

    network = open_network(model.graph, model.name, device, options, check)
    return OpenvinoBackend(network, model.contract, str(device))


def open_tensors(
    graph: bytes, title: str, device: Device, options: DeviceOptions
) -> OpenvinoTensors:
    """Load any graph, see `backend.open_tensors`."""
    return OpenvinoTensors(graph, title, device, options)
