"""The machine: its hardware and software, and what disturbed a measurement."""

import contextlib
import os
import platform
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from detcli import __version__
from detcli.backend.nvidia import gpu_uuid
from detcli.commands.bench.report import BenchMachine, Noise, Software
from detcli.commands.bench.sampling import Summary
from detcli.config.device import Device, available_cores
from detcli.core import frozen
from detcli.core.errors import DependencyError, DeviceError, system_reason
from detcli.run.machine import package_version, processor_name


@frozen
class GpuState:
    """A GPU at one moment, as its driver reports it."""

    name: str
    driver: str
    memory_bytes: int | None  # of all programs
    slowed_by: tuple[str, ...]


def describe_machine(gpu: GpuState | None) -> BenchMachine:
    """Describe the hardware of this machine, and the GPU in use if there is one.

    Reports are shared, so the names of the machine and of its user are left out.
    """
    try:
        memory = psutil.virtual_memory().total
    except OSError as error:
        raise DependencyError(
            f"psutil cannot read {error.filename}: {system_reason(error)}",
            "mount the folder: mount -t proc proc /proc",
        ) from error
    gpu_name = None
    gpu_driver = None
    if gpu is not None:
        gpu_name = gpu.name
        gpu_driver = gpu.driver
    return BenchMachine(
        processor=processor_name(),
        architecture=platform.machine(),
        system=platform.system(),
        cores=available_cores(),
        memory_bytes=memory,
        gpu=gpu_name,
        driver=gpu_driver,
    )


def describe_software() -> Software:
    """List the versions of what figures may depend on; None for a package that is missing."""
    return {
        "detcli": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "opencv": package_version("opencv-python", "opencv-python-headless"),
        "onnxruntime": package_version("onnxruntime-gpu", "onnxruntime"),
        "openvino": package_version("openvino"),
    }


STATUS = Path("/proc/self/status")


def peak_memory() -> int | None:
    """Read the peak memory of this process so far, in bytes.

    None where the system does not report it.
    """
    if sys.platform == "linux":
        return _peak_memory_in_linux()
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _peak_memory_in_linux() -> int | None:
    """Read the peak of the resident memory from the status of this process, in bytes.

    `ru_maxrss` would be wrong: a process inherits it from the one that started it.
    """
    try:
        status = STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"^VmHWM:\s*(\d+)", status, re.MULTILINE)  # in KiB
    if match is None:
        return None
    return int(match[1]) * 1024


# GPU

GPU_INTERVAL_S = 0.5


class GpuWatch:
    """Samples the state of a GPU twice a second until it is stopped.

    Attributes:
        before: The state when the sampling began; None if there is no GPU, driver or nvidia-ml-py,
            and so nothing is sampled.
    """

    def __init__(self, device: Device) -> None:
        """Start sampling; `auto` stands for the first GPU."""
        self.before: GpuState | None = None
        self._states: list[GpuState] = []
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        reader = _open_reader(device)
        if reader is not None:
            self.before = reader.read()
            self._thread = threading.Thread(target=self._sample, args=[reader], daemon=True)
            self._thread.start()

    def _sample(self, reader: "_GpuReader") -> None:
        """Sample until `stop` is called, and once more then."""
        is_stopped = False
        while not is_stopped:
            is_stopped = self._is_stopped.wait(GPU_INTERVAL_S)
            self._states.append(reader.read())
        reader.close()

    def stop(self) -> list[GpuState]:
        """End the sampling, and return all states that were sampled."""
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()
        return self._states


class _GpuReader:
    """Reads the state of a GPU through NVML, the NVIDIA driver's library for monitoring."""

    def __init__(self, device: Device) -> None:
        """Find the GPU of a device.

        Raises:
            ImportError: nvidia-ml-py is missing.
            DeviceError: CUDA does not know the GPU.
            pynvml.NVMLError: The driver is missing, or does not know the GPU.
        """
        import pynvml

        self._nvml = pynvml
        # CUDA and NVML number GPUs differently, and CUDA_VISIBLE_DEVICES hides some from CUDA.
        uuid = gpu_uuid(device.ordinal or 0)
        pynvml.nvmlInit()
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError:
            # It may be a part of a GPU (Multi-Instance GPU), which has a state of its own.
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        self._gpu_name = pynvml.nvmlDeviceGetName(self._handle)
        self._driver_version = pynvml.nvmlSystemGetDriverVersion()
        self._causes_by_flag = {
            pynvml.nvmlClocksEventReasonHwSlowdown: "a hardware slowdown",
            pynvml.nvmlClocksEventReasonSwThermalSlowdown: "its temperature",
            pynvml.nvmlClocksEventReasonSwPowerCap: "its power limit",
        }

    def read(self) -> GpuState:
        """Read the memory in use, and what slows the GPU down, if it supports these queries."""
        memory_bytes = None
        with contextlib.suppress(self._nvml.NVMLError):
            memory_bytes = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        slowdown_flags = 0
        with contextlib.suppress(self._nvml.NVMLError):
            slowdown_flags = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        slowed_by = []
        for flag, cause in self._causes_by_flag.items():
            if slowdown_flags & flag:
                slowed_by.append(cause)
        return GpuState(self._gpu_name, self._driver_version, memory_bytes, tuple(slowed_by))

    def close(self) -> None:
        """Close NVML."""
        self._nvml.nvmlShutdown()


def _open_reader(device: Device) -> _GpuReader | None:
    """Open what reads the state of a GPU.

    Args:
        device: The device that is measured; `auto` stands for the first GPU.

    Returns:
        The reader; None if the device is not a GPU, or if the driver or nvidia-ml-py is missing.
    """
    if not (device.is_gpu or device.is_auto):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return _GpuReader(device)
    except (DeviceError, pynvml.NVMLError):
        return None


# Noise

MAX_DEVIATION = 0.1  # as a fraction of the mean
MAX_OTHER_LOAD = 0.1  # of the cores
MAX_STOLEN = 0.01  # of the time

BUSY = ("user", "nice", "system", "irq", "softirq")  # "user" includes guests


class _CoreTimes(NamedTuple):
    """How busy the cores that this process may use were in a period."""

    percentages: list[Any]  # of each core, psutil's per cent of the time: `user`, `idle`, `steal`
    process_percentage: float  # the processor time of this process in per cent of one core


class _Load(NamedTuple):
    """What took processor time from this process in a period."""

    core_count: int
    other_load: float  # how many cores other programs kept busy on average
    stolen: float  # the share of the time that the host of a virtual machine took away


class NoiseMeter:
    """Measures what else the machine does during a measurement.

    The measurement begins when this is created, and ends with `judge`.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_core_times()  # The next call counts from here.

    def _read_core_times(self) -> _CoreTimes:
        """Read how busy the cores were since the last call."""
        percentages = psutil.cpu_times_percent(percpu=True)
        if hasattr(os, "sched_getaffinity"):
            usable_cores = os.sched_getaffinity(0)
            percentages = [percentages[core] for core in usable_cores]
        return _CoreTimes(percentages, self._process.cpu_percent())

    def judge(self, durations: Summary, gpu: Iterable[GpuState] = ()) -> Noise:
        """End the measurement, and judge whether anything disturbed it.

        Args:
            durations: A summary of the durations that were measured.
            gpu: The states of the GPU during the measurement.

        Returns:
            How much the durations deviate, how much processor time other programs and the host of a
            virtual machine took, and what slowed the GPU down. Whatever exceeds its limit comes
            with a warning.
        """
        load = self._measure_load()
        deviation = durations.deviation_s / durations.mean_s
        gpu_slowed_by: list[str] = []  # each cause once, in the order in which they appeared
        for state in gpu:
            for cause in state.slowed_by:
                if cause not in gpu_slowed_by:
                    gpu_slowed_by.append(cause)

        warnings = []
        if deviation > MAX_DEVIATION:
            warnings.append(f"the times deviate by {deviation:.0%} of their mean")
        if load.other_load > MAX_OTHER_LOAD * load.core_count:
            warnings.append(
                f"other programs kept {load.other_load:.1f} of {load.core_count} cores busy"
            )
        if load.stolen > MAX_STOLEN:
            warnings.append(
                f"the host of this virtual machine took away {load.stolen:.0%} of the time"
            )
        if gpu_slowed_by:
            warnings.append(f"the GPU was slowed down by {', '.join(gpu_slowed_by)}")

        reported_stolen = None  # only Linux tells how much the host took away
        if psutil.LINUX:
            reported_stolen = load.stolen
        return Noise(
            deviation=deviation,
            other_load=load.other_load,
            stolen=reported_stolen,
            taken=min(1.0, load.other_load / load.core_count + load.stolen),
            gpu_slowed_by=tuple(gpu_slowed_by),
            warnings=tuple(warnings),
        )

    def _measure_load(self) -> _Load:
        """Measure what took processor time from this process since the last call."""
        core_times = self._read_core_times()
        core_count = len(core_times.percentages)
        # Per cent of one core, summed over all cores: 200 stands for two busy cores.
        busy_percentage = 0.0
        stolen_percentage = 0.0
        for percentages in core_times.percentages:
            for kind in BUSY:
                busy_percentage += getattr(percentages, kind, 0.0)
            stolen_percentage += getattr(percentages, "steal", 0.0)
        other_percentage = max(0.0, busy_percentage - core_times.process_percentage)
        return _Load(
            core_count,
            other_load=other_percentage / 100,
            stolen=stolen_percentage / 100 / core_count,
        )
