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
    """This machine and the GPU in use, without the machine's or its user's name."""
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
    """A function that reads the state of a GPU; None if that is impossible."""
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
        except pynvml.NVMLError:  # a part of a GPU, whose figures are its own
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        name, driver = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlSystemGetDriverVersion()
    except (DeviceError, pynvml.NVMLError):
        return None
    slowdowns = {
        pynvml.nvmlClocksEventReasonHwSlowdown: "a hardware slowdown",
        pynvml.nvmlClocksEventReasonSwThermalSlowdown: "its temperature",
        pynvml.nvmlClocksEventReasonSwPowerCap: "its power limit",
    }

    def read() -> GpuState:
        memory, reasons = None, 0
        with contextlib.suppress(pynvml.NVMLError):  # not supported by every GPU
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        with contextlib.suppress(pynvml.NVMLError):
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        slowed_by = tuple(why for reason, why in slowdowns.items() if reasons & reason)
        return GpuState(name, driver, memory, slowed_by)

    return read


# Noise

MAX_DEVIATION = 0.1  # as a fraction of the mean
MAX_OTHER_LOAD = 0.1  # of the cores
MAX_STOLEN = 0.01  # of the time

BUSY = ("user", "nice", "system", "irq", "softirq")  # "user" includes guests


class NoiseMeter:
    """What else the machine does during a measurement, which begins when this is made."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._read()

    def _read(self) -> tuple[list[Any], float]:
        """Per cent of each core's time, and of one core's by this process, since the last call."""
        every = psutil.cpu_times_percent(percpu=True)
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        return [every[core] for core in cores], self._own.cpu_percent()

    def finish(self, wall: Summary, gpu: Iterable[GpuState] = ()) -> Noise:
        """What happened to the durations measured and to the GPU."""
        times, own = self._read()
        busy = sum(getattr(one, name, 0.0) for one in times for name in BUSY)
        load, cores = max(0.0, busy - own) / 100, len(times)
        stolen = sum(getattr(one, "steal", 0.0) for one in times) / 100 / cores
        deviation = wall.deviation_s / wall.mean_s
        slowed_by = tuple(dict.fromkeys(why for state in gpu for why in state.slowed_by))
        doubts = {
            f"the times deviate by {deviation:.0%} of their mean": deviation > MAX_DEVIATION,
            f"other programs kept {load:.1f} of {cores} cores busy": load > MAX_OTHER_LOAD * cores,
            f"the host of this virtual machine took away {stolen:.0%} of the time": (
                stolen > MAX_STOLEN
            ),
            f"the GPU was slowed down by {', '.join(slowed_by)}": bool(slowed_by),
        }
        return Noise(
            deviation=deviation,
            other_load=load,
            stolen=stolen if psutil.LINUX else None,
            taken=min(1.0, load / cores + stolen),
            gpu_slowed_by=slowed_by,
            warnings=tuple(text for text, doubtful in doubts.items() if doubtful),
        )
