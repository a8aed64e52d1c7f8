"""The machine and its GPU, from a double of NVIDIA's library, and noise, from made-up counters."""

import os
import platform
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pynvml
import pytest

from detcli.commands.bench import machine as module
from detcli.commands.bench.machine import (
    GpuState,
    GpuWatch,
    NoiseMeter,
    describe_machine,
    describe_software,
    peak_memory,
)
from detcli.commands.bench.sampling import Summary
from detcli.config.device import Device
from detcli.core.errors import DependencyError, DeviceError


def test_the_machine_is_described_without_its_name():
    machine = describe_machine(None)
    assert platform.node() not in {machine.processor, machine.architecture, machine.system}
    assert machine.cores >= 1
    assert machine.gpu is machine.driver is None
    machine = describe_machine(GpuState("NVIDIA H200", "580.65", 1, ()))
    assert machine.gpu == "NVIDIA H200"
    assert machine.driver == "580.65"
    packages = describe_software()
    assert packages["numpy"][0].isdigit()
    assert packages["onnxruntime"] is not None


def test_a_system_without_proc(monkeypatch, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("has none anyway")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    with pytest.raises(DependencyError, match="meminfo: No such file or directory") as caught:
        describe_machine(None)
    assert "mount -t proc" in caught.value.hint


def test_the_peak_stays_when_memory_is_freed():
    before = peak_memory()
    memory = np.ones(200_000_000, np.uint8)
    during = peak_memory()
    del memory
    assert before is not None
    assert during >= 200_000_000
    assert peak_memory() >= 200_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_an_unknown_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STATUS", tmp_path / "status")
    assert peak_memory() is None
    for text, peak in (("", None), ("VmPeak:\t9 kB\nVmHWM:\t   7 kB\n", 7 * 1024)):
        module.STATUS.write_text(f"Name:\tx\n{text}VmRSS:\t5 kB\n")
        assert peak_memory() == peak


UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
BEFORE = GpuState("NVIDIA H200", "580.65", 1000 << 20, ())


def refuse(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs; the one that is looked at is in use and hot from the second look on."""
    hot = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap
    double = SimpleNamespace(gpus=2, closed=0, looks=[], kind="GPU")

    def look(handle):
        assert handle == 7
        double.looks.append(handle)
        return SimpleNamespace(used=(3000 if len(double.looks) > 1 else 1000) << 20)

    def uuid(ordinal):
        if ordinal >= double.gpus:
            raise DeviceError("there is no such GPU")
        return UUID

    def close():
        double.closed += 1

    def find(uuid):
        if uuid != f"{double.kind}-{UUID}":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 7

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": close,
        "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetName": {7: "NVIDIA H200"}.get,
        "nvmlSystemGetDriverVersion": lambda: "580.65",
        "nvmlDeviceGetMemoryInfo": look,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: (
            hot | pynvml.nvmlClocksEventReasonGpuIdle if len(double.looks) > 1 else 0
        ),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(module, "gpu_uuid", uuid)
    monkeypatch.setattr(module, "GPU_INTERVAL_S", 0.001)
    return double


@pytest.mark.parametrize(("device", "kind"), [("cuda:1", "GPU"), ("auto", "GPU"), ("cuda", "MIG")])
def test_a_gpu_or_a_part_of_one_is_watched(device, kind, nvml):
    nvml.kind = kind
    watch = GpuWatch(Device.parse(device))
    assert watch.before == BEFORE
    while len(nvml.looks) < 3:
        pass
    states = watch.stop()
    assert nvml.closed == 1
    assert len(states) >= 2
    hot = GpuState("NVIDIA H200", "580.65", 3000 << 20, ("its temperature", "its power limit"))
    assert set(states) == {hot}


@pytest.mark.usefixtures("nvml")
def test_figures_that_a_gpu_does_not_report(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", refuse)
    watch = GpuWatch(Device.parse("cuda:0"))
    watch.stop()
    assert watch.before == GpuState("NVIDIA H200", "580.65", None, ())


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 2), ("cuda:7", 2), ("auto", 0)])
def test_there_is_no_such_gpu(device, gpus, nvml):
    nvml.gpus = gpus
    watch = GpuWatch(Device.parse(device))
    assert watch.before is None
    assert watch.stop() == []


@pytest.mark.usefixtures("nvml")
def test_without_the_package_or_with_a_driver_that_fails(monkeypatch):
    for name in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName"):
        with monkeypatch.context() as patch:
            patch.setattr(pynvml, name, refuse)
            assert GpuWatch(Device.parse("cuda")).before is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuWatch(Device.parse("cuda")).before is None


QUIET = Summary(1.0, 1.0, None, 1.0, 0.01, 10)
RESTLESS = Summary(1.0, 1.0, None, 2.0, 0.5, 10)


@pytest.fixture
def measured(monkeypatch):
    """Noise where two cores of three are for us, busy and stolen to this per cent of one."""

    def run(counts, wall=QUIET, gpu=()):
        busy, own_share, stolen = counts
        core = SimpleNamespace(user=busy / 4, nice=busy / 4, steal=stolen / 2, idle=1e9)
        others_before = SimpleNamespace(user=1e9, steal=1e9, idle=0.0)
        calls = iter(
            [[others_before] * 3, [core, others_before, core]]
        )  # what was before counts for nothing
        monkeypatch.setattr(psutil, "cpu_times_percent", lambda **_: next(calls))
        monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: own_share)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
        return NoiseMeter().judge(wall, gpu)

    return run


@pytest.mark.parametrize(
    ("counts", "wall", "warnings"),
    [
        ((152, 150, 0), QUIET, []),
        ((170, 150, 0), QUIET, []),  # a tenth of both cores
        ((171, 150, 0), QUIET, ["other programs kept 0.2 of 2 cores busy"]),
        ((200, 100, 0), QUIET, ["other programs kept 1.0 of 2 cores busy"]),
        ((0, 3, 2), QUIET, []),
        ((0, 0, 10), QUIET, ["the host of this virtual machine took away 5% of the time"]),
        ((0, 0, 0), Summary(1.0, 1.0, None, 2.0, 0.2, 10), []),
        ((0, 0, 0), RESTLESS, ["the times deviate by 25% of their mean"]),
    ],
)
def test_what_disturbs(measured, counts, wall, warnings):
    noise, (busy, own_share, stolen) = measured(counts, wall), counts
    assert list(noise.warnings) == warnings
    assert noise.deviation == wall.deviation_s / wall.mean_s
    assert noise.other_load == pytest.approx(max(0, busy - own_share) / 100)
    assert noise.stolen == pytest.approx(stolen / 200)
    assert noise.taken == pytest.approx(noise.other_load / 2 + noise.stolen)


def test_a_gpu_that_is_slowed_down(measured):
    steady = GpuState("H200", "580", 1, ())
    slowed = GpuState("H200", "580", 1, ("its power limit",))
    noise = measured((0, 0, 0), gpu=[steady, slowed, steady, slowed])
    assert noise.gpu_slowed_by == ("its power limit",)
    assert noise.warnings == ("the GPU was slowed down by its power limit",)


def test_the_real_counters():
    noise = NoiseMeter().judge(QUIET)
    assert noise.other_load >= 0
    assert 0 <= noise.taken <= 1
