"""Device and DeviceOptions: where to run and how, parsed and checked once, then frozen.

Nothing else takes a device's name apart. This imports nothing heavy, so `--help` can use it.
"""

import importlib.util
import os
from dataclasses import dataclass
from enum import StrEnum

from detcli.errors import DeviceError, UsageError

DEVICE_NAMES = "cpu, cuda, cuda:N, tensorrt or tensorrt:N"
"""What `--device` accepts besides auto."""

MIN_MEMORY, MAX_MEMORY = 1 << 20, 1 << 50  # bytes; others were meant in another unit


class DeviceKind(StrEnum):
    """What runs the network; AUTO is decided when a model is opened."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


PROVIDERS = {
    DeviceKind.CPU: "CPUExecutionProvider",
    DeviceKind.CUDA: "CUDAExecutionProvider",
    DeviceKind.TENSORRT: "TensorrtExecutionProvider",
}
"""ONNX Runtime's execution provider for each kind."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as `--device` names it; `str` gives the name that backends and records use.

    Attributes:
        kind: What runs the network.
        ordinal: CUDA's number of the GPU; None for kinds without one.

    Examples:
        >>> str(Device.parse("cuda"))
        'cuda:0'
    """

    kind: DeviceKind
    ordinal: int | None = None

    @classmethod
    def parse(cls, name: "str | Device") -> "Device":
        """Parse "auto", "cpu", "cuda", "cuda:N", "tensorrt" or "tensorrt:N".

        Args:
            name: The name; a Device is returned as it is.

        Raises:
            UsageError: No device has this name.
        """
        if isinstance(name, Device):
            return name
        kind, colon, number = name.partition(":")
        match kind:
            case DeviceKind.AUTO | DeviceKind.CPU if not colon:
                return cls(DeviceKind(kind))
            case DeviceKind.CUDA | DeviceKind.TENSORRT if not colon:
                return cls(DeviceKind(kind), 0)
            case DeviceKind.CUDA | DeviceKind.TENSORRT if number.isascii() and number.isdecimal():
                return cls(DeviceKind(kind), int(number))
        raise UsageError(f"unknown device '{name}'", f"use auto, {DEVICE_NAMES}")

    @classmethod
    def parse_list(cls, names: str) -> "tuple[Device, ...]":
        """Parse names with commas between them, as in "cuda:0, cuda:1"; see `parse`."""
        return tuple(cls.parse(name.strip()) for name in names.split(","))

    def __str__(self) -> str:
        return self.kind if self.ordinal is None else f"{self.kind}:{self.ordinal}"

    @property
    def is_auto(self) -> bool:
        """Whether the device is still to be chosen."""
        return self.kind is DeviceKind.AUTO

    @property
    def is_gpu(self) -> bool:
        """Whether it is one of NVIDIA's GPUs."""
        return self.kind in {DeviceKind.CUDA, DeviceKind.TENSORRT}

    @property
    def uses_tensorrt(self) -> bool:
        """Whether TensorRT runs the network."""
        return self.kind is DeviceKind.TENSORRT

    @property
    def provider(self) -> str:
        """ONNX Runtime's execution provider for it; `auto` has none."""
        return PROVIDERS[self.kind]


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How to use the GPU, and how many detectors share the CPU.

    Attributes:
        cuda_graph: Capture the network into CUDA graphs and replay them. None means where the
            graph's shapes are static; True also where they are not, one capture a shape.
        gpu_mem_limit: Bytes that the network may take on the GPU; None means no limit. The
            pictures and the boxes come on top, and so does CUDA itself.
        half: TensorRT builds its engine in float16; on other devices, a named model is taken in
            float16.
        workers: How many detectors share the CPU's cores, each with its part of them. A GPU runs
            one.

    Raises:
        UsageError: A value is out of range.
    """

    cuda_graph: bool | None = None
    gpu_mem_limit: int | None = None
    half: bool = False
    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers is {self.workers}", "give 1 or more")
        if self.gpu_mem_limit is not None and not MIN_MEMORY <= self.gpu_mem_limit <= MAX_MEMORY:
            raise UsageError(
                f"--gpu-mem-limit (gpu_mem_limit) is {self.gpu_mem_limit} bytes",
                "give 1 MiB or more, with a unit as in 2GiB",
            )

    def wants_half_file(self, device: Device) -> bool:
        """Whether to take a model's float16 file; TensorRT converts the float32 one itself."""
        return self.half and not device.uses_tensorrt

    def check(self, device: Device) -> None:
        """Refuse what a device cannot do, and let pass what does not concern it.

        So one command line serves machines with and without a GPU: `--no-cuda-graph` and
        `--gpu-mem-limit` always hold on the CPU.

        Raises:
            UsageError: The device cannot do what is asked.
        """
        if self.half and not device.uses_tensorrt:
            raise UsageError(
                f"--half has no effect with --device {device.kind}",
                "use --device tensorrt, a model that was exported in float16, or one by its name",
            )
        if self.cuda_graph and device.kind is DeviceKind.CPU:
            raise UsageError("--cuda-graph needs a GPU", "use --device cuda, or leave it out")
        if self.cuda_graph and device.uses_tensorrt:
            raise UsageError(
                "--cuda-graph does not work with --device tensorrt: ONNX Runtime's TensorRT "
                "provider replays one graph whatever the addresses are",
                "use --device cuda, or leave it out",
            )


def names_here() -> list[str]:
    """Names of the devices that this machine has, without asking whether they work."""
    from detcli.backend.nvidia import count_gpus

    try:
        gpus = range(count_gpus())
    except DeviceError:
        gpus = range(0)
    has_tensorrt = importlib.util.find_spec("tensorrt_libs") is not None
    kinds = [DeviceKind.CUDA, *[DeviceKind.TENSORRT] * has_tensorrt] if gpus else []
    named = [name for kind in kinds for name in (kind, *(Device(kind, gpu) for gpu in gpus))]
    return [*map(str, (DeviceKind.AUTO, DeviceKind.CPU, *named))]


def available_cores() -> int:
    """CPU cores that this process may use; a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
