"""The state of a GPU, from a double of NVIDIA's management library."""

import sys
from types import SimpleNamespace

import pynvml
import pytest

from detcli.commands.bench import machine as module
from detcli.commands.bench.machine import GpuState, GpuWatch
from detcli.core.device import Device
from detcli.core.errors import DeviceError

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
BEFORE = GpuState("NVIDIA H200", "580.65", 1000 << 20, ())


class Nvml:
    """Stands for the driver: the GPU is in use and hot from the second look on."""

    def __init__(self, monkeypatch, gpus=2):
        self.looks = self.closed = 0
        self.memory = [1000 << 20, 3000 << 20]
        self.reasons = [pynvml.nvmlClocksEventReasonNone]
        self.reasons.append(
            pynvml.nvmlClocksEventReasonSwThermalSlowdown
            | pynvml.nvmlClocksEventReasonSwPowerCap
            | pynvml.nvmlClocksEventReasonGpuIdle
        )
        for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByUUID"):
            monkeypatch.setattr(pynvml, name, getattr(self, name))
        for name, answer in {
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlSystemGetDriverVersion": "580.65",
        }.items():
            monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", self.memory_info)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", self.slowdowns)
        monkeypatch.setattr(module, "gpu_uuid", lambda ordinal: self.uuid(ordinal, gpus))
        monkeypatch.setattr(module, "GPU_INTERVAL_S", 0.001)

    def uuid(self, ordinal, gpus):
        if ordinal >= gpus:
            raise DeviceError("there is no such GPU")
        return UUID

    def nvmlInit(self):  # noqa: N802 - NVML's names
        pass

    def nvmlShutdown(self):  # noqa: N802
        self.closed += 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        assert uuid == UUID
        return 7

    def memory_info(self, handle):
        assert handle == 7
        self.looks += 1
        return SimpleNamespace(used=self.memory[self.looks > 1])

    def slowdowns(self, handle):
        assert handle == 7
        return self.reasons[self.looks > 1]


@pytest.mark.parametrize("device", ["cuda:1", "auto"])
def test_a_gpu_is_watched(device, monkeypatch):
    nvml = Nvml(monkeypatch)
    watch = GpuWatch(Device.parse(device))
    assert watch.before == BEFORE
    while nvml.looks < 3:
        pass
    seen = watch.stop()
    assert nvml.closed == 1
    assert len(seen) >= 2
    hot = GpuState("NVIDIA H200", "580.65", 3000 << 20, ("its temperature", "its power limit"))
    assert set(seen) == {hot}


def test_figures_that_a_gpu_does_not_report(monkeypatch):
    Nvml(monkeypatch)

    def refuse(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", refuse)
    watch = GpuWatch(Device.parse("cuda:0"))
    watch.stop()
    assert watch.before == GpuState("NVIDIA H200", "580.65", None, ())


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 2), ("cuda:7", 2), ("auto", 0)])
def test_there_is_no_such_gpu(device, gpus, monkeypatch):
    Nvml(monkeypatch, gpus)
    watch = GpuWatch(Device.parse(device))
    assert watch.before is None
    assert watch.stop() == []


def test_without_the_package_or_with_a_driver_that_fails(monkeypatch):
    Nvml(monkeypatch)

    def fail(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    for name in ("nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetName"):
        with monkeypatch.context() as patch:
            patch.setattr(pynvml, name, fail)
            assert GpuWatch(Device.parse("cuda")).before is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuWatch(Device.parse("cuda")).before is None
