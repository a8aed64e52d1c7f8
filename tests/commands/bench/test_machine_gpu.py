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


def refuse(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


@pytest.fixture
def nvml(monkeypatch):
    """Two GPUs; the one that is looked at is in use and hot from the second look on."""
    hot = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap
    double = SimpleNamespace(gpus=2, closed=0, looks=[])

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

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": close,
        "nvmlDeviceGetHandleByUUID": {UUID: 7}.get,
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


@pytest.mark.parametrize("device", ["cuda:1", "auto"])
def test_a_gpu_is_watched(device, nvml):
    watch = GpuWatch(Device.parse(device))
    assert watch.before == BEFORE
    while len(nvml.looks) < 3:
        pass
    seen = watch.stop()
    assert nvml.closed == 1
    assert len(seen) >= 2
    hot = GpuState("NVIDIA H200", "580.65", 3000 << 20, ("its temperature", "its power limit"))
    assert set(seen) == {hot}


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
