"""The machine: its hardware and software, and what disturbed a measurement."""

import contextlib
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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
    return BenchMachine(
        processor=processor_name(),
        architecture=platform.machine(),
        system=platform.system(),
        cores=available_cores(),
        memory_bytes=memory,
        gpu=gpu.name if gpu else None,
        driver=gpu.driver if gpu else None,
    )


def describe_software() -> Software:
    """The versions that a figure may depend on."""
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
    """Peak resident bytes of this process; None where the system does not report them.

    Linux's `ru_maxrss` does not serve: a process inherits it from the one that started it.
    """
    if sys.platform == "linux":
        peak = None
        with contextlib.suppress(OSError):
            status = STATUS.read_text(encoding="ascii", errors="replace")
            peak = re.search(r"^VmHWM:\s*(\d+)", status, re.MULTILINE)
        return int(peak[1]) * 1024 if peak else None
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


# GPU

GPU_INTERVAL_S = 0.5


class GpuWatch:
    """Samples the state of a GPU twice a second until it is stopped; `auto` is the first GPU.

    `before` is the state at the beginning; None without a GPU, its driver or nvidia-ml-py.
    """

    def __init__(self, device: Device) -> None:
        read = _open_nvml(device)
        self.before = read() if read else None
        self._states: list[GpuState] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=[read], daemon=True)
        if read:
            self._thread.start()

    def _sample(self, read: Callable[[], GpuState]) -> None:
        import pynvml

        stopped = False
        while not stopped:
            stopped = self._stopped.wait(GPU_INTERVAL_S)
            self._states.append(read())
        pynvml.nvmlShutdown()

    def stop(self) -> list[GpuState]:
        """All states sampled."""
        self._stopped.set()
        if self.before:
            self._thread.join()
        return self._states


def _open_nvml(device: Device) -> Callable[[], GpuState] | None:
    """Prepare to read the state of a GPU through NVML, the NVIDIA driver's library for monitoring.

    Args:
        device: The device that is measured; `auto` stands for the first GPU.

    Returns:
        A function that reads the GPU's present state; None if the device is no GPU, or if the
        driver or nvidia-ml-py is missing.
    """
    if not (device.is_gpu or device.is_auto):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        # CUDA and NVML number GPUs differently, and CUDA_VISIBLE_DEVICES hides some from CUDA.
        uuid = gpu_uuid(device.ordinal or 0)
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError:
            # It may be a part of a GPU (Multi-Instance GPU), which has a state of its own.
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        gpu_name = pynvml.nvmlDeviceGetName(handle)
        driver_version = pynvml.nvmlSystemGetDriverVersion()
    except (DeviceError, pynvml.NVMLError):
        return None
    causes_by_flag = {
        pynvml.nvmlClocksEventReasonHwSlowdown: "a hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "its temperature",
        pynvml.nvmlClocksEventReasonSwPowerCap: "its power limit",
    }

    def read_state() -> GpuState:
        # Not every GPU supports these two queries.
        memory_bytes = None
        with contextlib.suppress(pynvml.NVMLError):
            memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        slowdown_flags = 0
        with contextlib.suppress(pynvml.NVMLError):
            slowdown_flags = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        slowed_by = []
        for flag, cause in causes_by_flag.items():
            if slowdown_flags & flag:
                slowed_by.append(cause)
        return GpuState(gpu_name, driver_version, memory_bytes, tuple(slowed_by))

    return read_state


# Noise

MAX_DEVIATION = 0.1  # as a fraction of the mean
MAX_OTHER_LOAD = 0.1  # of the cores
MAX_STOLEN = 0.01  # of the time

BUSY = ("user", "nice", "system", "irq", "softirq")  # "user" includes guests


class NoiseMeter:
    """Measures what else the machine does during a measurement.

    The measurement begins when this is created, and ends with `finish`.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_percentages()  # The next call counts from here.

    def _read_percentages(self) -> tuple[list[Any], float]:
        """Read how busy the cores of this process were since the last call.

        Returns:
            Of each core that this process may use, psutil's per cent of the time by kind ("user",
            "idle", "steal", ...); and the processor time of this process in per cent of one core.
        """
        percentages = psutil.cpu_times_percent(percpu=True)
        cores: Iterable[int] = range(len(percentages))
        if hasattr(os, "sched_getaffinity"):
            cores = os.sched_getaffinity(0)
        return [percentages[core] for core in cores], self._process.cpu_percent()

    def finish(self, wall: Summary, gpu: Iterable[GpuState] = ()) -> Noise:
        """Judge whether anything disturbed the measurement, which ends here.

        Args:
            wall: A summary of the durations that were measured.
            gpu: The states of the GPU during the measurement.

        Returns:
            How much the durations deviate, what other programs, the host of a virtual machine and
            the GPU did meanwhile, and a warning about each of these that is too much.
        """
        percentages, process_percentage = self._read_percentages()
        core_count = len(percentages)
        busy_percentage = 0.0  # of one core, over all cores
        stolen_percentage = 0.0
        for core_percentages in percentages:
            for kind in BUSY:
                busy_percentage += getattr(core_percentages, kind, 0.0)
            stolen_percentage += getattr(core_percentages, "steal", 0.0)
        other_load = max(0.0, busy_percentage - process_percentage) / 100  # in cores
        stolen = stolen_percentage / 100 / core_count  # fraction of the time of all cores

        deviation = wall.deviation_s / wall.mean_s
        slowed_by = []
        for state in gpu:
            for cause in state.slowed_by:
                if cause not in slowed_by:
                    slowed_by.append(cause)

        warnings = []
        if deviation > MAX_DEVIATION:
            warnings.append(f"the times deviate by {deviation:.0%} of their mean")
        if other_load > MAX_OTHER_LOAD * core_count:
            warnings.append(f"other programs kept {other_load:.1f} of {core_count} cores busy")
        if stolen > MAX_STOLEN:
            warnings.append(f"the host of this virtual machine took away {stolen:.0%} of the time")
        if slowed_by:
            warnings.append(f"the GPU was slowed down by {', '.join(slowed_by)}")
        return Noise(
            deviation=deviation,
            other_load=other_load,
            stolen=stolen if psutil.LINUX else None,  # other systems do not report it
            taken=min(1.0, other_load / core_count + stolen),
            gpu_slowed_by=tuple(slowed_by),
            warnings=tuple(warnings),
        )
