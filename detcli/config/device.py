"""Device and DeviceOptions: where to run and how, parsed and checked once, then frozen.

Nothing else takes a device's name apart. This imports nothing heavy, so `--help` can use it.
"""

import importlib.util
import math
import os
import re
import warnings
from dataclasses import KW_ONLY
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.config.typed import convert_fields, describe_value
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import closest

DEVICE_NAMES = (
    "cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, openvino:CPU, openvino:GPU or openvino:NPU"
)
"""What `--device` accepts besides auto."""

NAME = r"(auto|cpu)|(cuda|tensorrt)(?::([0-9]+))?|(openvino)(?::(CPU|NPU|GPU(?:\.[0-9]+)?))?"
"""OpenVINO's names of its devices are in capitals; of several GPUs of Intel, GPU.N is one."""

MAX_WORKERS = 1024  # more than cores only wait, and each has the network in memory
MAX_CORES = 1 << 16  # no machine has more; a library's thread count has a limit
MIN_MEMORY = 1 << 20  # bytes; a smaller number was meant in a different unit
MAX_MEMORY = 1 << 50  # bytes; so was a larger one


class DeviceKind(StrEnum):
    """What runs the network; AUTO is decided when a model is opened."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    TENSORRT = "tensorrt"
    OPENVINO = "openvino"


OTHER_NAMES = {"gpu": "cuda", "trt": "tensorrt"}
"""The names of kinds of devices in other programs."""

PROVIDERS = {
    DeviceKind.CPU: "CPUExecutionProvider",
    DeviceKind.CUDA: "CUDAExecutionProvider",
    DeviceKind.TENSORRT: "TensorrtExecutionProvider",
}
"""ONNX Runtime's execution provider for each kind that it runs."""


def _similar_device(name: str) -> str:
    """Return the device that was probably meant by a name; empty if none resembles it.

    A number alone is taken for a GPU: some programs take `--device 0`.

    Examples:
        >>> _similar_device("cuad:1"), _similar_device("gpu"), _similar_device("openvino:cpu")
        ('cuda:1', 'cuda', 'openvino:CPU')
        >>> _similar_device("0")
        'cuda:0'
    """
    if name.isdecimal():
        return f"cuda:{name}"
    kind, _, unit = name.partition(":")
    similar_kind = OTHER_NAMES.get(kind.lower()) or closest(kind, DeviceKind)

    device = f"{similar_kind}:{unit}"
    if re.fullmatch(NAME, device):
        return device
    # The units of OpenVINO are in capitals: CPU, GPU.
    device_in_capitals = f"{similar_kind}:{unit.upper()}"
    if re.fullmatch(NAME, device_in_capitals):
        return device_in_capitals
    return similar_kind


@frozen
class Device:
    """A device as `--device` names it; `str` gives the name that backends and records use.

    Examples:
        >>> str(Device.parse("cuda"))
        'cuda:0'
    """

    kind: DeviceKind  # what runs the network
    ordinal: int | None = None  # CUDA's ordinal of the GPU; None for kinds without one
    # OpenVINO's name of its device, as in "CPU" or "GPU"; None for other kinds
    unit: str | None = None

    @classmethod
    def parse(cls, name: "str | Device") -> "Device":
        """Parse the name of a device, as in `--device cuda:0`.

        Without a number, "cuda" and "tensorrt" mean the first GPU; "openvino" is "openvino:CPU".

        Raises:
            UsageError: It is neither "auto" nor one of DEVICE_NAMES.
        """
        if isinstance(name, Device):
            return name
        if not isinstance(name, str):
            raise UsageError(
                f"device is {describe_value(name)}",
                f"use one of the texts auto, {DEVICE_NAMES}, as in cuda:0",
            )
        match = re.fullmatch(NAME, name)
        if match is not None:
            # Only the groups of one alternative of NAME are set.
            auto_or_cpu, gpu_kind, ordinal, openvino, unit = match.groups()
            if gpu_kind:
                return cls(DeviceKind(gpu_kind), ordinal=int(ordinal or 0))
            if openvino:
                return cls(DeviceKind(openvino), unit=unit or "CPU")
            return cls(DeviceKind(auto_or_cpu))
        if "," in name:
            raise UsageError(f"'{name}' names several devices", "name one of them here")
        question = ""
        similar_name = _similar_device(name)
        if similar_name:
            question = f"did you mean {similar_name}? "
        raise UsageError(f"unknown device '{name}'", f"{question}use auto, {DEVICE_NAMES}")

    def __str__(self) -> str:
        if self.unit is not None:
            return f"{self.kind}:{self.unit}"
        if self.ordinal is not None:
            return f"{self.kind}:{self.ordinal}"
        return str(self.kind)

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
    def computes_half(self) -> bool:
        """Whether it runs a float32 model in half precision by itself, see `DeviceOptions.half`."""
        return self.kind in {DeviceKind.TENSORRT, DeviceKind.OPENVINO}

    @property
    def half_type(self) -> str:
        """The number type that `--half` means where the device converts by itself."""
        if self.kind is DeviceKind.OPENVINO and self.unit == "CPU":
            return "bfloat16"
        return "float16"

    @property
    def provider(self) -> str:
        """ONNX Runtime's execution provider for it; `auto` and OpenVINO have none."""
        return PROVIDERS[self.kind]


AUTO = Device(DeviceKind.AUTO)


@frozen
class DeviceOptions:
    """How to use the device, and how many detectors share the CPU.

    Attributes:
        cuda_graph: Capture the network into CUDA graphs and replay them, one for each shape. None
            means where the axes are static, and where not, shapes that repeat, as full batches do.
        gpu_mem_limit: Bytes that the network may take on the GPU; None means no limit. The
            images and the boxes come on top, and so does CUDA itself.
        half: TensorRT builds its engine in float16; OpenVINO computes in bfloat16 on a processor
            and in float16 elsewhere; on other devices, a named model is taken in float16.
        workers: How many detectors share the CPU's cores, each with its share of them. A GPU runs
            one detector; OpenVINO runs one too, with at most this many streams.
        cores: How many of the CPU's cores are for this process, where several processes share a
            machine; None for all that are available.
        spins: Whether threads that share a network on the CPU keep busy while they wait for each
            other. The next node then begins sooner, which is fastest for one image at a time; but
            other threads, which read and decode images, get less CPU time.

    Raises:
        UsageError: A value is out of range.
    """

    _: KW_ONLY
    cuda_graph: bool | None = None
    gpu_mem_limit: int | None = None
    half: bool = False
    workers: int = 1
    cores: int | None = None
    spins: bool = True

    def __post_init__(self) -> None:
        """Convert the values to the types of the fields, and refuse those out of range."""
        convert_fields(self)
        counts = (("workers", self.workers, MAX_WORKERS), ("cores", self.cores, MAX_CORES))
        for name, count, max_count in counts:
            if count is not None and not 1 <= count <= max_count:
                raise UsageError(f"{name} is {count}", f"give 1 to {max_count}")
        if self.gpu_mem_limit is not None and not MIN_MEMORY <= self.gpu_mem_limit <= MAX_MEMORY:
            raise UsageError(
                f"gpu_mem_limit is {self.gpu_mem_limit} bytes",
                "give 1 MiB or more: 2GiB on the command line, and 2 << 30 in Python",
            )

    if not TYPE_CHECKING:  # type checkers should not see these names

        def __getattr__(self, name: str) -> object:
            """Return a method that version 0.1.0 had, for its callers, with a warning."""
            former_methods = {"check": check_device_options, "wants_half_file": wants_half_file}
            if name not in former_methods:
                raise AttributeError(f"'DeviceOptions' object has no attribute {name!r}")
            warnings.warn(
                f"DeviceOptions.{name} is not public any more, and will be removed in 1.0: "
                "Detector checks its options",
                DeprecationWarning,
                stacklevel=2,
            )
            return partial(former_methods[name], self)


def wants_half_file(options: DeviceOptions, device: Device) -> bool:
    """Whether to take a model's float16 file for a device, with these options."""
    return options.half and not device.computes_half


def check_device_options(options: DeviceOptions, device: Device) -> None:
    """Refuse options that the device cannot fulfil; those that do not concern it are ignored.

    So one command line serves machines with and without a GPU: on the CPU, `--no-cuda-graph`
    and `--gpu-mem-limit` are fulfilled anyway.

    Raises:
        UsageError: The device cannot do it; the hint says which one can.
    """
    if options.half and not device.computes_half:
        raise UsageError(
            f"--half has no effect with --device {device.kind}",
            "use --device tensorrt or openvino, a model that was exported in float16, or one "
            "by its name",
        )
    if options.cuda_graph and device.kind in {DeviceKind.CPU, DeviceKind.OPENVINO}:
        raise UsageError(
            "--cuda-graph needs one of NVIDIA's GPUs", "use --device cuda, or leave it out"
        )
    if options.cuda_graph and device.uses_tensorrt:
        raise UsageError(
            "--cuda-graph does not work with --device tensorrt: ONNX Runtime's TensorRT "
            "provider replays one graph whatever the addresses are",
            "use --device cuda, or leave it out",
        )


def has_openvino() -> bool:
    """Whether OpenVINO is installed, without importing it."""
    return importlib.util.find_spec("openvino") is not None


def available_cores() -> int:
    """Count the CPU cores that this process may use; a container may have a limit."""
    return math.ceil(min(visible_cores(), cpu_quota()))


def visible_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float:
    """Read how much CPU time Linux control groups grant this process, in cores.

    A container has such a limit: `docker run --cpus 2` leaves all cores visible, and pauses a
    process whose threads together use more than two. Control groups are nested, and the smallest
    limit applies.

    Args:
        root: The root folder of the file system; another one in tests.

    Returns:
        2.0 for the time of two cores; infinity if there is no limit.
    """
    folder = root / "sys/fs/cgroup"
    quotas = []
    # Version 2 of control groups has a file for each group on the path to this process.
    group = _control_group(root)
    for enclosing_group in (group, *group.parents):
        quotas.append(_read_quota([folder / enclosing_group / "cpu.max"]))
    # Version 1 has two files, which a container sees at this place.
    quotas.append(_read_quota([folder / "cpu/cpu.cfs_quota_us", folder / "cpu/cpu.cfs_period_us"]))
    return min(quotas)


def _control_group(root: Path) -> Path:
    """The path of this process's group, in version 2 of control groups; empty if there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return Path()
    for line in lines:
        if line.startswith("0::/"):  # the line of version 2
            return Path(line.removeprefix("0::/"))
    return Path()


def _read_quota(files: list[Path]) -> float:
    """Read a CPU quota, in cores: the time granted in each period, by the period's length.

    Args:
        files: A file with both numbers, as in "200000 100000" for two cores, or a file for each.

    Returns:
        The quota; infinity if there is none ("max" or -1 in place of the first number), or the
        files cannot be read.
    """
    try:
        text = " ".join(file.read_text() for file in files)
        quota, period = [int(number) for number in text.split()]
        if quota <= 0:
            return math.inf
        return quota / period
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
