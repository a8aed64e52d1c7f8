# mypy: disable-error-code=arg-type
"""What can be wrong with the driver, packages and libraries, with the command that fixes it."""

import os
import platform
import sys

import onnxruntime
import pytest

from detcli.backend.libraries import CUDA, TENSORRT
from detcli.backend.libraries import explain as explain_library
from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.commands.doctor import installation
from detcli.commands.doctor.installation import (
    INSTALL,
    STATUSES,
    HostFacts,
    driver_problem,
    provider_problems,
    read_host,
)

HOPPER = GpuFacts("NVIDIA H200", "9.0", 1 << 37)
PASCAL = GpuFacts("NVIDIA GeForce GTX 1080", "6.1", 8 << 30)
WORKING = DriverFacts(None, 0, "13.0", (HOPPER,))
ABSENT = DriverFacts(
    "libcuda.so.1: cannot open shared object file: No such file or directory", None
)
BOX = HostFacts(hardware=True, driver="580.65.06", distribution=("ubuntu", "debian"))
NO_GPU = "this machine has no NVIDIA GPU"
CUDA12 = 'pip install "detcli[cuda12]"'
CUDA_EXTRA = 'pip install "detcli[cuda]"'
VERSION = "NVRM version: NVIDIA UNIX {}  580.65.06  Release Build  (root@x)  Sun Jul 27 2025\n"

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's files")


def only(facts, host=BOX, cuda="13.0"):
    return driver_problem(facts, host, "1.26.0", cuda)


def lacking(provider, **failures):
    return provider_problems(provider, "1.26.0", failures)


@pytest.mark.parametrize("cuda", ["13.0", "12.8", "13.2", None])  # older, or a newer minor release
def test_a_working_driver_is_not_a_problem(cuda):
    assert only(WORKING, cuda=cuda) is None
    assert only(WORKING, HostFacts(hardware=True, sets_visible_devices=True), cuda) is None
    assert only(DriverFacts(None, 0, "13.0", (PASCAL, HOPPER)), cuda=cuda) is None


def unlisted(status, cuda="13.0"):
    return DriverFacts(None, status, cuda)


DAMAGED = DriverFacts("libcuda.so.1: file too short")
NOT_LOADED = "the NVIDIA driver does not load: libcuda.so.1: file too short"
CLOSED = HostFacts(hardware=True, driver="580", inaccessible=("/dev/nvidiactl", "/dev/nvidia0"))
UBUNTU = {"distribution": ("ubuntu",)}
IN_CONTAINER = "this container was started without a GPU"
DOCKER = "docker run --gpus all IMAGE"
NO_LIST = "the NVIDIA driver lists no GPU"


@pytest.mark.parametrize(
    ("facts", "host", "reason", "command"),
    [
        (ABSENT, HostFacts(hardware=False), NO_GPU, None),
        (ABSENT, HostFacts(hardware=False, container=True), NO_GPU, None),
        (ABSENT, BOX, "driver is not installed", "sudo ubuntu-drivers install"),
        (ABSENT, HostFacts(hardware=True, distribution=("linuxmint", "ubuntu")), "not installed",
         "sudo ubuntu-drivers install"),
        (ABSENT, HostFacts(hardware=True, distribution=("debian",)), "not installed", None),
        (ABSENT, HostFacts(hardware=None), "no NVIDIA GPU, or its driver is not installed", None),
        (ABSENT, HostFacts(hardware=True, container=True), IN_CONTAINER, DOCKER),
        (ABSENT, HostFacts(hardware=None, wsl=True), "Windows provides no GPU",
         "wsl.exe --shutdown"),
        (DAMAGED, BOX, NOT_LOADED, INSTALL["ubuntu"]),
        (DAMAGED, HostFacts(hardware=True, container=True, **UBUNTU), NOT_LOADED, None),
        (DAMAGED, HostFacts(hardware=True, wsl=True, **UBUNTU), NOT_LOADED, None),
        (unlisted(719), HostFacts(hardware=True, driver="580", sets_visible_devices=True),
         "CUDA error 719 from the driver", None),  # the variable is not blamed
        (unlisted(100), CLOSED, "no permission to open /dev/nvidiactl, /dev/nvidia0",
         "sudo chmod a+rw /dev/nvidiactl /dev/nvidia0"),
        (unlisted(304), CLOSED, "no permission to open /dev/nvidiactl, /dev/nvidia0",
         "sudo chmod a+rw /dev/nvidiactl /dev/nvidia0"),
        (unlisted(999), CLOSED, "no permission to open /dev/nvidiactl, /dev/nvidia0",
         "sudo chmod a+rw /dev/nvidiactl /dev/nvidia0"),
        (unlisted(0), HostFacts(hardware=True, driver="580", sets_visible_devices=True),
         "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"),
        (unlisted(0), HostFacts(hardware=False), NO_GPU, None),
        (unlisted(0), HostFacts(hardware=True, container=True), IN_CONTAINER, DOCKER),
        (unlisted(0), HostFacts(hardware=True), "the NVIDIA kernel module is not loaded",
         "sudo modprobe nvidia"),
        (unlisted(0), HostFacts(hardware=None, wsl=True), NO_LIST, None),
        (unlisted(0), BOX, NO_LIST, None),
        (unlisted(100), HostFacts(hardware=True, driver="580", sets_visible_devices=True),
         "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"),
        (unlisted(100), HostFacts(hardware=False), NO_GPU, None),
        (unlisted(100), HostFacts(hardware=True, container=True), IN_CONTAINER, DOCKER),
        (unlisted(100), HostFacts(hardware=True), "the NVIDIA kernel module is not loaded",
         "sudo modprobe nvidia"),
        (unlisted(100), HostFacts(hardware=None, wsl=True), NO_LIST, None),
        (unlisted(100), BOX, NO_LIST, None),
    ],
)  # fmt: skip
def test_no_driver_and_no_gpu(facts, host, reason, command):
    problem = only(facts, host)
    assert reason in problem.reason
    assert problem.command == command
    assert problem.command or problem.advice


def test_errors_of_the_driver():
    for status, expected in STATUSES.items():
        assert only(unlisted(status)) == expected
    assert "nvidia-smi" in only(unlisted(719)).advice


def test_commands_for_the_host_say_so():
    host = HostFacts(hardware=True, driver="580", container=True)
    problem = only(unlisted(803), host)
    assert problem.command == "sudo reboot"
    assert problem.advice.startswith("on the host, not in this container; ")
    assert only(unlisted(802), host).advice == "on the host, not in this container"


@pytest.mark.parametrize(
    ("supported", "host", "built", "command", "advice"),
    [
        ("12.0", BOX, "13.0", CUDA12, "or install driver 580 or later; "),
        ("12.4", HostFacts(container=True, **UBUNTU), "13.0", CUDA12,
         "or install driver 580 or later on the host; "),
        ("12.9", HostFacts(wsl=True, **UBUNTU), "13.0", CUDA12,
         "or install driver 580 or later in Windows; "),
        ("11.8", BOX, "13.0", INSTALL["ubuntu"],
         f"driver 580 or later is needed, or 525 for {CUDA12}; "),
        ("11.8", BOX, "12.8", INSTALL["ubuntu"], "driver 525 or later is needed; "),
        ("11.8", BOX, "14.0", INSTALL["ubuntu"],
         f"a newer driver is needed, or 525 for {CUDA12}; "),
    ],
)  # fmt: skip
def test_a_driver_that_is_too_old(supported, host, built, command, advice):
    problem = only(DriverFacts(None, 0, supported, (HOPPER,)), host, built)
    assert problem.reason == (
        f"the driver supports CUDA up to {supported}, "
        f"but this ONNX Runtime was built for CUDA {built}"
    )
    assert problem.command == command
    assert problem.advice.startswith(advice)


@pytest.mark.parametrize(
    ("capability", "cuda", "command"),
    [
        ("10.0", "13.0", CUDA12),
        ("5.2", "13.0", None),
        ("5.2", "12.8", None),
        ("10.0", "12.8", ""),
        ("9.9", "14.0", ""),  # of which nothing is known
    ],
)
def test_a_gpu_that_onnx_runtime_has_no_code_for(capability, cuda, command):
    facts = DriverFacts(None, 0, "14.0", (GpuFacts("Some GPU", capability, 8 << 30),))
    problem = only(facts, cuda=cuda)
    if command == "":
        assert problem is None
        return
    assert f"has no code for Some GPU, of compute capability {capability}: " in problem.reason
    assert problem.command == command
    assert ("--device cpu" in problem.advice) == (command is None)


@pytest.fixture
def put_file(tmp_path, monkeypatch):
    """Put files under the root of a plain Linux."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-18-amd64")

    def put(name, text=""):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return put


@linux
@pytest.mark.parametrize(
    ("devices", "hardware"),
    [
        ("", None),
        ("0x8086 0x060000, 0x10de 0x030000", True),
        ("0x10de 0x030200", True),
        ("0x1002 0x030000", False),  # a GPU of AMD
        ("0x10de 0x040300", False),  # NVIDIA's sound
        ("0x10de, 0x8086 0x060000", False),  # the first cannot be read
    ],
)
def test_gpus_on_the_bus(put_file, tmp_path, devices, hardware):
    for number, device in enumerate(filter(None, devices.split(", "))):
        for name, value in zip(("vendor", "class"), device.split(), strict=False):
            put_file(f"sys/bus/pci/devices/0000:0{number}:00.0/{name}", f"{value}\n")
    host = read_host(tmp_path)
    assert host.hardware == hardware
    assert host.driver is None


@linux
@pytest.mark.parametrize("kind", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_the_kernel_module_has_a_version_and_implies_a_gpu(put_file, kind):
    host = read_host(put_file("proc/driver/nvidia/version", VERSION.format(kind)))
    assert host.hardware is True
    assert host.driver == "580.65.06"


@linux
def test_what_else_the_system_shows(put_file, tmp_path, monkeypatch):
    plain = read_host(tmp_path)
    assert plain.container is False
    assert plain.wsl is False
    assert plain.sets_visible_devices is False
    for sign in (".dockerenv", "run/.containerenv"):
        assert read_host(put_file(sign)).container
        (tmp_path / sign).unlink()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    release = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    put_file("dev/nvidia0")
    put_file("dev/nvidiactl")
    put_file("sys/bus/pci/devices/0000:00:00.0/vendor", "0x1414")  # which shows no GPU
    host = read_host(tmp_path)
    assert host.container is True
    assert host.wsl is True
    assert host.sets_visible_devices is True
    assert host.hardware is None
    assert host.distribution == ("linuxmint", "ubuntu", "debian")
    assert host.inaccessible == ()
    monkeypatch.setattr(os, "access", lambda path, _: path.name != "nvidia0")
    assert read_host(tmp_path).inaccessible == ("/dev/nvidia0",)
    for system, hardware in (("darwin", False), ("win32", None)):
        monkeypatch.setattr(installation.sys, "platform", system)
        assert read_host().hardware is hardware


def missing(*names):
    message = "{}: cannot open shared object file: No such file or directory"
    libraries = []
    for name in names:
        libraries.append(explain_library(name, message.format(name)))
    return tuple(libraries)


def test_each_command_is_given_once_and_the_driver_is_left_out():
    lacks = missing("libcuda.so.1", "libcudnn.so.9", "libstdc++.so.6", "libcublasLt.so.13")
    first, second = lacking(CUDA, **{CUDA: lacks})
    assert first.command == CUDA_EXTRA
    assert first.reason == ("missing: libcudnn.so.9 (cuDNN), libcublasLt.so.13 (the CUDA runtime)")
    assert second.command is None
    assert ("libstdc++6" in second.advice) is True


def test_tensorrt_needs_cudas_libraries_and_its_own(monkeypatch):
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    failures = {
        CUDA: missing("libcublasLt.so.13"),
        TENSORRT: missing("libnvinfer.so.10", "libcublas.so.13"),
    }
    shared, tensorrt_problem = lacking(TENSORRT, **failures)
    assert (shared,) == lacking(CUDA, **failures)  # one command installs both
    assert tensorrt_problem.reason == "missing: libnvinfer.so.10 (TensorRT)"
    assert tensorrt_problem.command.startswith('pip install "tensorrt-cu13-libs')
