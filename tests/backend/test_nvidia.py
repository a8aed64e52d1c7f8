"""How many GPUs the driver shows, asked of a driver that a test makes up."""

import ctypes

import pytest

from detcli.backend.nvidia import count_gpus
from detcli.errors import DeviceError


class Driver:
    """cuInit and cuDeviceGetCount with these statuses, and some GPUs."""

    def __init__(self, status=0, count_status=0, gpus=0):
        self.status, self.count_status, self.gpus = status, count_status, gpus

    def cuInit(self, flags):  # noqa: N802 - CUDA's name
        assert flags == 0
        return self.status

    def cuDeviceGetCount(self, count):  # noqa: N802
        assert self.status == 0
        count._obj.value = self.gpus  # noqa: SLF001 - what byref points to
        return self.count_status


@pytest.fixture
def install(monkeypatch):
    """Put a driver where the loader looks."""

    def put(driver):
        loaded = {"libcuda.so.1": driver, "nvcuda.dll": driver}
        monkeypatch.setattr(ctypes, "CDLL", loaded.__getitem__)

    return put


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_gpus_are_counted(gpus, install):
    install(Driver(gpus=gpus))
    assert count_gpus() == gpus


def test_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert count_gpus() == 0


def test_a_driver_that_sees_no_device(install):
    """So it is with CUDA_VISIBLE_DEVICES set to nothing."""
    install(Driver(status=100, gpus=9))
    assert count_gpus() == 0


@pytest.mark.parametrize("driver", [Driver(status=803), Driver(count_status=803)])
def test_a_driver_that_does_not_work(driver, install):
    install(driver)
    with pytest.raises(DeviceError, match="CUDA error 803") as caught:
        count_gpus()
    assert "nvidia-smi" in caught.value.hint
