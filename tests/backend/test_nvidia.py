"""Queries of NVIDIA's driver, answered by a double."""
# ruff: noqa: N802, SLF001 - CUDA's names

import ctypes
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from detcli.backend.nvidia import (
    CUDA_EXTRAS,
    DriverFacts,
    GpuFacts,
    ask_driver,
    count_gpus,
    cuda_command,
    explain_lack_of_code,
    fitting_extra,
    gpu_uuid,
)
from detcli.core.errors import DeviceError


class Driver:
    """A double with these statuses of cuInit and cuDeviceGetCount, and some GPUs.

    What `byref` gives has its target in `_obj`; a device's handle is its ordinal and 40.
    """

    def __init__(self, status=0, count_status=0, gpus=0, version=13020):
        self.status = status
        self.count_status = count_status
        self.gpus = gpus
        self.version = version
        self.uuid_status = 0
        self.cuDriverGetVersion = lambda number: self._give(number, self.version)
        self.cuDeviceGet = lambda device, ordinal: self._give(device, 40 + ordinal)
        self.cuDeviceTotalMem_v2 = lambda memory, device: self._give(memory, device.value << 30)
        self.cuDeviceGetAttribute = lambda value, attribute, device: self._give(
            value, {75: 9, 76: 2}[attribute] if device.value >= 40 else 0
        )

    def _give(self, target, value, status=0):
        target._obj.value = value
        return status

    def cuInit(self, flags):
        assert flags == 0
        return self.status

    def cuDeviceGetCount(self, count):
        assert self.status == 0
        return self._give(count, self.gpus, self.count_status)

    def cuDeviceGetUuid_v2(self, identity, device):
        identity[:] = bytes(range(device.value - 40, device.value - 24))
        return self.uuid_status

    def cuDeviceGetName(self, name, length, device):
        assert length == len(name)
        name.value = b"GPU %d" % device.value
        return 0


@pytest.fixture
def install_driver(monkeypatch):
    """Put a driver where the loader looks."""

    def put(driver):
        loaded = {"libcuda.so.1": driver, "nvcuda.dll": driver}
        monkeypatch.setattr(ctypes, "CDLL", loaded.__getitem__)

    return put


GPUS = (GpuFacts("GPU 40", "9.2", 40 << 30), GpuFacts("GPU 41", "9.2", 41 << 30))


@pytest.mark.parametrize(
    ("driver", "facts"),
    [
        (Driver(), DriverFacts(None, 0, "13.2", ())),
        (Driver(gpus=2), DriverFacts(None, 0, "13.2", GPUS)),
        (Driver(status=100, gpus=9), DriverFacts(None, 100, "13.2", ())),  # it may see no device
        (Driver(status=803, version=12040), DriverFacts(None, 803, "12.4", ())),
        (Driver(count_status=999, version=0, gpus=3), DriverFacts(None, 999, None, ())),
    ],
)
def test_what_the_driver_says(driver, facts, install_driver):
    install_driver(driver)
    assert ask_driver() == facts
    if facts.status in (0, 100):
        assert count_gpus() == len(facts.gpus)
        return
    with pytest.raises(DeviceError, match=f"CUDA error {facts.status}") as caught:
        count_gpus()
    assert "nvidia-smi" in caught.value.hint


def test_another_library_of_the_drivers_name(install_driver):
    """As an emulation or a damaged installation may leave behind."""
    install_driver(object())
    assert count_gpus() == 0
    assert "cuDriverGetVersion" in ask_driver().load_error


def test_the_loaders_message_is_kept(monkeypatch):
    def fail(name):
        raise OSError(f"{name}: file too short")

    monkeypatch.setattr(ctypes, "CDLL", fail)
    assert "file too short" in ask_driver().load_error
    assert count_gpus() == 0


def test_uuids_are_written_as_in_nvidia_smi(install_driver):
    driver = Driver(gpus=2)
    install_driver(driver)
    assert gpu_uuid(0) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert gpu_uuid(1) == "01020304-0506-0708-090a-0b0c0d0e0f10"
    with pytest.raises(DeviceError, match="no GPU number 2"):
        gpu_uuid(2)
    driver.uuid_status = 999
    with pytest.raises(DeviceError, match="CUDA error 999"):
        gpu_uuid(0)


@pytest.mark.parametrize(
    ("cuda", "capabilities", "extra"),
    [
        ("13.0", ["9.0"], "cuda"),
        ("13.2", ["6.0", "12.0"], "cuda"),
        ("13.0", [], "cuda"),
        (None, [], "cuda"),
        ("12.9", ["9.0"], "cuda12"),
        ("12.0", ["7.0"], "cuda12"),
        ("13.0", ["6.0"], "cuda12"),
        ("13.0", ["10.0"], "cuda12"),
        ("13.0", ["10.3"], "cuda12"),
        ("11.8", ["9.0"], None),
        ("13.0", ["5.2"], None),
    ],
)
def test_the_extra_that_fits_driver_and_gpus(cuda, capabilities, extra):
    gpus = tuple(GpuFacts("a GPU", capability, 0) for capability in capabilities)
    fitting = fitting_extra(DriverFacts(None, 0, cuda, gpus))
    assert (fitting and fitting.name) == extra


def test_the_command_that_installs_cuda(install_driver):
    for version, extra in ((13020, "cuda"), (12020, "cuda12"), (11080, "cuda")):
        install_driver(Driver(version=version))
        assert cuda_command() == f'pip install "detcli[{extra}]"'


@pytest.mark.parametrize(
    ("architectures", "capabilities", "unsupported"),
    [
        (["sm_80"], ["8.0", "8.6", "8.9"], ["7.5", "9.0", "12.0"]),
        (["sm_86"], ["8.6", "8.9"], ["8.0", "9.0"]),
        (["sm_90a"], ["9.0"], ["8.9", "9.1", "10.0"]),
        (["compute_90"], ["9.0", "10.0", "10.3", "12.1"], ["8.9"]),
        (["compute_90a"], ["9.0"], ["10.0"]),
        (["sm_120a", "nonsense"], ["12.0"], ["12.1", "10.0"]),
        ([], [], ["9.0"]),
    ],
)
def test_what_code_runs_on(architectures, capabilities, unsupported):
    extra = replace(CUDA_EXTRAS[0], architectures=" ".join(architectures))
    for capability in capabilities:
        assert extra.runs_on(capability), capability
    for capability in unsupported:
        assert not extra.runs_on(capability), capability


@pytest.mark.parametrize(
    ("capabilities", "runtime", "cuda", "lacks"),
    [
        (["10.0"], "1.31.1", "13.0", True),
        (["10.0"], "1.28", "13.2", True),
        (["10.0", "9.0"], "1.31.1", "13.0", False),  # one that works is enough
        ([], "1.31.1", "13.0", False),
        (["10.0"], "1.31.2", "13.0", False),  # newer than what was looked into
        (["10.0"], "1.31.1", "14.0", False),
        (["10.0"], "1.31.1", None, False),
        (["5.2"], "1.26.0", "12.8", True),
        (["10.0"], "1.26.0", "12.8", False),
    ],
)
def test_gpus_that_the_runtime_has_no_code_for(capabilities, runtime, cuda, lacks):
    gpus = [GpuFacts("NVIDIA B200", capability, 0) for capability in capabilities]
    message = explain_lack_of_code(gpus, runtime, cuda)
    assert (message is not None) == lacks
    if message and cuda == "13.0":
        assert message == (
            "this ONNX Runtime has no code for NVIDIA B200, of compute capability 10.0: "
            "it was compiled for 7.5, 8.0, 8.6, 8.9, 9.0, 12.0"
        )


def check_table(title, extra):
    """Each GPU of a row, with its compute capability; the last cell has those that it lacks."""
    text = (Path(__file__).parents[2] / "docs/devices.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {title} \|(.*)\|$", text, re.MULTILINE)
    driver, runs, does_not_run = row.split("|")
    assert driver.strip() == f"{extra.driver} or later"
    for capabilities, expected in ((runs, True), (does_not_run, False)):
        listed = re.findall(r"\((\d+\.\d)\)", capabilities)
        assert listed
        for capability in listed:
            assert extra.runs_on(capability) == expected, capability


def test_the_page_names_drivers_and_gpus_of_each_extra():
    for extra in CUDA_EXTRAS:
        check_table(f"`{extra.name}`", extra)


def test_arm_servers_have_wheels_for_cuda_13_alone():
    code = (
        "import platform; platform.machine = lambda: 'aarch64'; import detcli.backend.nvidia as n\n"
        "for cuda, gpu in ('13.0', '9.0'), ('13.0', '12.1'), ('13.0', '10.0'), ('12.9', '9.0'):\n"
        "    facts = n.DriverFacts(None, 0, cuda, (n.GpuFacts('GH200', gpu, 0),))\n"
        "    print(getattr(n.fitting_extra(facts), 'name', None))\n"
        "print(n.CUDA_EXTRAS[0].architectures)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    lines = process.stdout.splitlines()
    assert lines[:-1] == ["cuda", "cuda", "None", "None"]
    check_table("`cuda`, on arm64", replace(CUDA_EXTRAS[0], architectures=lines[-1]))
