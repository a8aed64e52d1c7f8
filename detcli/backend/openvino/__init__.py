"""OpenVINO: it runs the network; images and selection are the CPU's own code.

Strictly: OpenVINO loads, has the device, and computes in the precision that was asked for, or an
error says why not. It translates ONNX into operators of its own, and says nothing where a
translation is wrong. That of HardSigmoid in 2026.4 takes `beta = 0`, which is not the default, for
the default. So a network is compared with ONNX Runtime's, once.

    library.py      OpenVINO's import, its devices, its error messages
    precision.py    the precision that is asked for, and the one that layers compute in
    network.py      a graph compiled for a device, or read from the cache
    comparison.py   a network's head beside ONNX Runtime's
    placement.py    which graphs OpenVINO can run
    backend.py      a network as a Backend, with several batches at once
"""

from detcli.backend.openvino.backend import OpenvinoBackend
from detcli.backend.openvino.comparison import require_same_head
from detcli.backend.openvino.library import CompiledModel
from detcli.backend.openvino.network import OpenvinoTensors, open_network
from detcli.backend.openvino.placement import placement_of
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import ModelError
from detcli.model.prepared import PreparedModel

__all__ = ["open_backend", "open_tensors", "placement_of"]


def open_backend(model: PreparedModel, device: Device, options: DeviceOptions) -> OpenvinoBackend:
    """Load a model on one of OpenVINO's devices.

    When it is compiled for the first time, its head is compared with that of ONNX Runtime.

    Raises:
        DeviceError: OpenVINO lacks the device, or computes in a precision other than the one asked
            for.
        ModelError: OpenVINO cannot load the model, or computes it wrongly.
    """

    def check(compiled: CompiledModel) -> None:
        require_same_head(compiled, model)

    compiled, precision = open_network(
        graph=model.stored_graph, title=model.name, device=device, options=options, check=check
    )
    if "int8" in precision:
        _require_fixed_image_size(compiled, model.name)
    return OpenvinoBackend(compiled, precision, contract=model.contract, device=str(device))


def _require_fixed_image_size(compiled: CompiledModel, title: str) -> None:
    """Raise a ModelError if a network in 8 bits takes images of any size.

    For YOLOv10-N in 8 bits, OpenVINO 2026.4 places boxes 40 pixels off where the size is free.
    """
    image_shape = compiled.input(0).get_partial_shape()[1:]  # without the batch
    if image_shape.is_dynamic:
        raise ModelError(
            f"{title} is in 8 bits and of free size, which OpenVINO computes wrongly",
            "fix the size in a copy: detcli convert MODEL -o COPY --imgsz 640; or use --device cpu",
        )


open_tensors = OpenvinoTensors
