"""DeviceOptions: how to use a device, checked once and frozen."""

import os
from dataclasses import dataclass

from detcli.errors import UsageError

MOST_MEMORY = 1 << 50
LEAST_MEMORY = 1 << 20  # bytes; anything below is a number that was meant in another unit


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How to use the GPU, and how many share the CPU.

    Attributes:
        cuda_graph: Capture the network into CUDA graphs and replay them. None means where the
            graph's shapes are static; True also where they are not, one capture a shape.
        gpu_mem_limit: Bytes that the network may take on the GPU; None means no limit. The
            pictures and the boxes come on top, and so does CUDA itself.
        half: TensorRT builds its engine in float16; on other devices, a model that goes by name
            is taken in float16.
        workers: How many detectors share the CPU's cores; each gets its part of them. A GPU has
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
            raise UsageError(f"workers is {self.workers}", "one works alone, more share the cores")
        if self.gpu_mem_limit is not None and not LEAST_MEMORY <= self.gpu_mem_limit <= MOST_MEMORY:
            raise UsageError(
                f"--gpu-mem-limit (gpu_mem_limit) is {self.gpu_mem_limit} bytes",
                "give 1 MiB or more, with a unit as in 2GiB",
            )

    def wants_half_file(self, device: str) -> bool:
        """Whether a model's float16 file is asked for: TensorRT makes its own of the other."""
        return self.half and not device.startswith("tensorrt")

    def check(self, kind: str) -> None:
        """Refuse what a kind of device cannot do; what it has no use for is let through.

        So one command line serves machines with and without a GPU: `--no-cuda-graph` and
        `--gpu-mem-limit` hold on the CPU by themselves.

        Args:
            kind: "auto", "cpu", "cuda" or "tensorrt".

        Raises:
            UsageError: The device cannot do what is asked.
        """
        if self.half and kind != "tensorrt":
            raise UsageError(
                f"--half has no effect with --device {kind}",
                "use --device tensorrt, a model that was exported in float16, or one by its name",
            )
        if self.cuda_graph and kind == "cpu":
            raise UsageError("--cuda-graph needs a GPU", "use --device cuda, or leave it out")
        if self.cuda_graph and kind == "tensorrt":
            raise UsageError(
                "--cuda-graph does not work with --device tensorrt: ONNX Runtime's TensorRT "
                "provider replays one graph whatever the addresses are",
                "use --device cuda, or leave it out",
            )


def available_cores() -> int:
    """CPU cores that this process may use; a container may have fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
