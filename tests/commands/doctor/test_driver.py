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

RUNTIME = "1.26.0"
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
    (problem,) = driver_problems(facts, host, cuda, RUNTIME)
    return problem


def test_a_working_driver_is_not_a_problem():
    assert driver_problems(WORKING, BOX, "13.0", RUNTIME) == ()
    assert driver_problems(WORKING, BOX, None, RUNTIME) == ()


def test_older_cuda_and_newer_minor_releases_are_supported():
    assert driver_problems(WORKING, BOX, "12.8", RUNTIME) == ()
    assert driver_problems(WORKING, BOX, "13.2", RUNTIME) == ()


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
    assert (
        driver_problems(WORKING, HostFacts(hardware=True, visible_devices=True), "13.0", RUNTIME)
        == ()
    )


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
    ("host", "where"),
    [
        (BOX, "driver 580 or later;"),
        (HostFacts(container=True, distribution=("ubuntu",)), "on the host"),
        (HostFacts(wsl=True, distribution=("ubuntu",)), "in Windows"),
    ],
)
@pytest.mark.parametrize("cuda", ["12.0", "12.4", "12.9"])
def test_a_driver_that_is_too_old_for_cuda_13(host, where, cuda):
    problem = only(DriverFacts(None, 0, cuda, (HOPPER,)), host)
    assert problem.reason == (
        f"the driver supports CUDA up to {cuda}, but this ONNX Runtime was built for CUDA 13.0"
    )
    assert problem.command == "pip install 'detcli[cuda12]'"
    assert where in problem.advice


@pytest.mark.parametrize(
    ("runtime", "needed"),
    [
        ("13.0", "driver 580 or later is needed, or 525 for pip install 'detcli[cuda12]'; "),
        ("12.8", "driver 525 or later is needed; "),
        ("14.0", "a newer driver is needed, or 525 for pip install 'detcli[cuda12]'; "),
    ],
)
def test_a_driver_that_is_too_old_for_any(runtime, needed):
    problem = only(DriverFacts(None, 0, "11.8", (HOPPER,)), cuda=runtime)
    assert "supports CUDA up to 11.8" in problem.reason
    assert problem.command == "sudo ubuntu-drivers install"
    assert problem.advice.startswith(needed)


@pytest.mark.parametrize(
    ("capability", "runtime", "command"),
    [
        ("6.1", "13.0", "pip install 'detcli[cuda12]'"),
        ("10.0", "13.0", "pip install 'detcli[cuda12]'"),
        ("12.1", "13.0", "pip install 'detcli[cuda12]'"),
        ("5.2", "13.0", None),
        ("5.2", "12.8", None),
        ("6.1", "12.8", ""),
        ("10.0", "12.8", ""),
        ("9.9", "14.0", ""),  # of which nothing is known
    ],
)
def test_a_gpu_that_onnx_runtime_has_no_code_for(capability, runtime, command):
    facts = DriverFacts(None, 0, "14.0", (GpuFacts("Some GPU", capability, 8 << 30),))
    if command == "":
        assert driver_problems(facts, BOX, runtime, RUNTIME) == ()
        return
    problem = only(facts, cuda=runtime)
    assert f"has no code for Some GPU, of compute capability {capability}: " in problem.reason
    assert problem.command == command
    assert ("--device cpu" in problem.advice) == (command is None)


def test_one_recent_gpu_is_enough():
    assert (
        driver_problems(DriverFacts(None, 0, "13.0", (PASCAL, HOPPER)), BOX, "13.0", RUNTIME) == ()
    )
