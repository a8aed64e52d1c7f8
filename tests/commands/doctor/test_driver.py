"""Every way in which a driver fails, with the command that fixes it."""

import pytest

from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.commands.doctor.driver import (
    INSTALL,
    NO_GPU,
    STATUSES,
    UNKNOWN,
    HostFacts,
    driver_problems,
)

HOPPER = GpuFacts("NVIDIA H200", "9.0", 1 << 37)
PASCAL = GpuFacts("NVIDIA GeForce GTX 1080", "6.1", 8 << 30)
WORKING = DriverFacts(None, 0, "13.0", (HOPPER,))
ABSENT = DriverFacts(
    "libcuda.so.1: cannot open shared object file: No such file or directory", None
)
SHOWS_NONE = DriverFacts(None, 100, "13.0")
BOX = HostFacts(hardware=True, driver="580.65.06", distribution=("ubuntu", "debian"))


def only(facts, host=BOX, cuda="13.0"):
    """The only problem found."""
    (problem,) = driver_problems(facts, host, cuda)
    return problem


def test_a_working_driver_is_not_a_problem():
    assert driver_problems(WORKING, BOX, "13.0") == ()
    assert driver_problems(WORKING, BOX, None) == ()


def test_older_cuda_and_newer_minor_releases_are_supported():
    assert driver_problems(WORKING, BOX, "12.8") == ()
    assert driver_problems(WORKING, BOX, "13.2") == ()


@pytest.mark.parametrize(
    ("host", "reason", "command"),
    [
        (HostFacts(hardware=False), "this machine has no NVIDIA GPU", None),
        (HostFacts(hardware=False, container=True), "this machine has no NVIDIA GPU", None),
        (BOX, "driver is not installed", "sudo ubuntu-drivers install"),
        (HostFacts(hardware=True, distribution=("linuxmint", "ubuntu")), "not installed",
         "sudo ubuntu-drivers install"),
        (HostFacts(hardware=True, distribution=("debian",)), "not installed", None),
        (HostFacts(hardware=True, distribution=("plan9",)), "not installed", None),
        (HostFacts(hardware=None), "no NVIDIA GPU, or its driver is not installed", None),
        (HostFacts(hardware=True, container=True), "this container was started without a GPU",
         "docker run --gpus all IMAGE"),
        (HostFacts(hardware=False, wsl=True), "Windows provides no GPU", "wsl.exe --shutdown"),
    ],
)  # fmt: skip
def test_no_driver(host, reason, command):
    problem = only(ABSENT, host)
    assert reason in problem.reason
    assert problem.command == command
    assert problem.command or problem.advice


@pytest.mark.parametrize(
    "said", ["libcuda.so.1: file too short", "libcuda.so.1: undefined symbol: cuDriverGetVersion"]
)
def test_the_loaders_error_is_quoted(said):
    problem = only(DriverFacts(said))
    assert problem.reason == f"the NVIDIA driver does not load: {said}"
    assert problem.command == INSTALL["ubuntu"]


@pytest.mark.parametrize("inside", [{"container": True}, {"wsl": True}])
def test_no_driver_is_installed_in_a_container_or_in_wsl(inside):
    host = HostFacts(hardware=True, distribution=("ubuntu",), **inside)
    assert only(DriverFacts("libcuda.so.1: file too short"), host).command is None


def test_commands_for_the_host_say_so():
    host = HostFacts(hardware=True, driver="580", container=True)
    problem = only(DriverFacts(None, 803), host)
    assert problem.command == "sudo reboot"
    assert problem.advice.startswith("on the host, not in this container; ")
    assert only(DriverFacts(None, 802), host).advice == "on the host, not in this container"


@pytest.mark.parametrize("status", STATUSES)
def test_errors_with_a_single_cause(status):
    assert only(DriverFacts(None, status, "13.0")) == STATUSES[status]


def test_error_999():
    assert only(DriverFacts(None, 999, "13.0")) == UNKNOWN


def test_an_unknown_error():
    problem = only(DriverFacts(None, 719, "13.0"))
    assert "719" in problem.reason
    assert (problem.command, "nvidia-smi" in problem.advice) == (None, True)


@pytest.mark.parametrize(
    ("group", "command"),
    [
        ("video", 'sudo usermod -aG video "$USER"'),
        (None, "sudo chmod a+rw /dev/nvidiactl /dev/nvidia0"),
    ],
)
@pytest.mark.parametrize("status", [100, 304, 999])
def test_no_permission(status, group, command):
    closed = (("/dev/nvidiactl", group), ("/dev/nvidia0", group))
    host = HostFacts(hardware=True, driver="580", inaccessible=closed)
    problem = only(DriverFacts(None, status, "13.0"), host)
    assert problem.reason == "no permission to open /dev/nvidiactl, /dev/nvidia0"
    assert problem.command == command


@pytest.mark.parametrize("status", [0, 100])
def test_a_variable_hides_all_gpus(status):
    host = HostFacts(hardware=True, driver="580", visible_devices=True)
    problem = only(DriverFacts(None, status, "13.0"), host)
    assert problem.reason == "CUDA_VISIBLE_DEVICES hides every GPU"
    assert problem.command == "unset CUDA_VISIBLE_DEVICES"


def test_the_variable_is_not_blamed_for_other_errors():
    host = HostFacts(hardware=True, driver="580", visible_devices=True)
    assert "719" in only(DriverFacts(None, 719, "13.0"), host).reason


def test_a_variable_that_hides_some_gpus_is_not_a_problem():
    assert driver_problems(WORKING, HostFacts(hardware=True, visible_devices=True), "13.0") == ()


@pytest.mark.parametrize(
    ("host", "reason", "command"),
    [
        (HostFacts(hardware=False), NO_GPU.reason, None),
        (HostFacts(hardware=True, container=True), "without a GPU",
         "docker run --gpus all IMAGE"),
        (HostFacts(hardware=True), "the NVIDIA kernel module is not loaded",
         "sudo modprobe nvidia"),
        (BOX, "the NVIDIA driver lists no GPU", None),
    ],
)  # fmt: skip
def test_a_driver_that_lists_no_gpu(host, reason, command):
    problem = only(SHOWS_NONE, host)
    assert reason in problem.reason
    assert problem.command == command


@pytest.mark.parametrize(
    ("host", "command", "where"),
    [
        (BOX, "sudo ubuntu-drivers install", "driver 580 or later is needed;"),
        (HostFacts(container=True, distribution=("ubuntu",)), None, "on the host"),
        (HostFacts(wsl=True, distribution=("ubuntu",)), None, "in Windows"),
    ],
)
def test_a_driver_that_is_too_old(host, command, where):
    facts = DriverFacts(None, 0, "12.4", (HOPPER,))
    problem = only(facts, host)
    assert "supports CUDA up to 12.4, but this ONNX Runtime was built for CUDA 13.0" in (
        problem.reason
    )
    assert problem.command == command
    assert where in problem.advice


def test_a_gpu_that_is_too_old():
    problem = only(DriverFacts(None, 0, "13.0", (PASCAL,)))
    assert (
        "NVIDIA GeForce GTX 1080 is too old: this ONNX Runtime was built for CUDA 13.0"
        in problem.reason
    )
    assert "6.1" in problem.reason
    assert "7.5" in problem.reason
    assert driver_problems(DriverFacts(None, 0, "13.0", (PASCAL,)), BOX, "12.8") == ()


def test_one_recent_gpu_is_enough():
    assert driver_problems(DriverFacts(None, 0, "13.0", (PASCAL, HOPPER)), BOX, "13.0") == ()
