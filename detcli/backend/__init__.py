"""Backends: each runs a prepared model on one kind of device.

`open_backend` holds the only branch on the device in the package.
"""

from detcli.backend.protocol import Backend, Buffer, Limits
from detcli.errors import DeviceError, UsageError
from detcli.model.prepared import PreparedModel

__all__ = ["Backend", "Buffer", "Limits", "open_backend"]


def open_backend(device: str, model: PreparedModel) -> Backend:
    """Load a model on a device.

    Args:
        device: "cpu", "cuda", "cuda:N", or "auto": the GPU where it is proven usable, else the
            CPU. A device that was asked for by name is used or refused, never replaced.
        model: What to load.

    Raises:
        UsageError: There is no device of that name.
        DeviceError: It cannot be used here; the message says why.
        ModelError: The runtime cannot load the model.
    """
    kind, _, number = device.partition(":")
    match kind:
        case "auto" | "cpu" if not number:
            from detcli.backend.cpu import CpuBackend  # imports the runtime

            # Until there is a CUDA backend to prove usable, "auto" is the CPU.
            return CpuBackend(model)
        case "cuda" if not number or number.isdecimal():
            from detcli.backend.session import require_provider

            require_provider("CUDAExecutionProvider")
            raise DeviceError(
                "CUDA works here, but this version of detcli has no CUDA backend",
                "use --device cpu",
            )
    raise UsageError(f"no device is called '{device}'", "use auto, cpu, cuda or cuda:N")
