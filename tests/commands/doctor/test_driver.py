"""Each way in which a driver fails, with the command that would fix it."""

import pytest

from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.commands.doctor.driver import INSTALL, NO_GPU, STATUSES, UNKNOWN, driver_problems
from detcli.commands.doctor.surroundings import DeviceFile, Surroundings

HOPPER = GpuFacts("NVIDIA H200", (9, 0), 1 << 37)
PASCAL = GpuFacts("NVIDIA GeForce GTX 1080", (6, 1), 8 << 30)
WORKING = DriverFacts(None, 0, (13, 0), (HOPPER,))
ABSENT = DriverFacts(
    "libcuda.so.1: cannot open shared object file: No such file or directory", None
)
SHOWS_NONE = DriverFacts(None, 100, (13, 0))
BOX = Surroundings(hardware=True, driver="580.65.06", distribution=("ubuntu", "debian"))


def only(facts, around=BOX, cuda=(13, 0)):
    """The one problem that there is."""
    (problem,) = driver_problems(facts, around, cuda)
    return problem


def test_a_driver_that_works_is_no_problem():
    assert driver_problems(WORKING, BOX, (13, 0)) == ()
    assert driver_problems(WORKING, BOX, None) == ()


def test_a_newer_driver_runs_an_older_cuda_and_a_newer_minor_release_is_no_matter():
    assert driver_problems(WORKING, BOX, (12, 8)) == ()
    assert driver_problems(WORKING, BOX, (13, 2)) == ()


@pytest.mark.parametrize(
    ("around", "reason", "command"),
    [
        (Surroundings(hardware=False), "this machine has no NVIDIA GPU", None),
        (Surroundings(hardware=False, container=True), "this machine has no NVIDIA GPU", None),
        (BOX, "driver is not installed", "sudo ubuntu-drivers install"),
        (Surroundings(hardware=True, distribution=("linuxmint", "ubuntu")), "not installed",
         "sudo ubuntu-drivers install"),
        (Surroundings(hardware=True, distribution=("debian",)), "not installed", None),
        (Surroundings(hardware=True, distribution=("plan9",)), "not installed", None),
        (Surroundings(hardware=None), "no NVIDIA GPU, or its driver is not installed", None),
        (Surroundings(hardware=True, container=True), "this container was started without a GPU",
         "docker run --gpus all IMAGE"),
        (Surroundings(hardware=False, wsl=True), "Windows lends no GPU", "wsl.exe --shutdown"),
    ],
)  # fmt: skip
def test_no_driver(around, reason, command):
    problem = only(ABSENT, around)
    assert reason in problem.reason
    assert problem.command == command
    assert problem.command or problem.advice


@pytest.mark.parametrize(
    "said", ["libcuda.so.1: file too short", "libcuda.so.1: undefined symbol: cuDriverGetVersion"]
)
def test_a_driver_that_does_not_load_is_quoted(said):
    problem = only(DriverFacts(said))
    assert problem.reason == f"NVIDIA's driver does not load: {said}"
    assert problem.command == INSTALL["ubuntu"]


@pytest.mark.parametrize("inside", [{"container": True}, {"wsl": True}])
def test_no_driver_is_installed_into_a_container_or_into_windows(inside):
    around = Surroundings(hardware=True, distribution=("ubuntu",), **inside)
    assert only(DriverFacts("libcuda.so.1: file too short"), around).command is None


def test_what_only_the_host_can_do_is_said_to_be_done_there():
    around = Surroundings(hardware=True, driver="580", container=True)
    problem = only(DriverFacts(None, 803), around)
    assert problem.command == "sudo reboot"
    assert problem.advice.startswith("on the host, not in this container; ")
    assert only(DriverFacts(None, 802), around).advice == "on the host, not in this container"


@pytest.mark.parametrize("status", STATUSES)
def test_errors_that_are_known(status):
    assert only(DriverFacts(None, status, (13, 0))) == STATUSES[status]


def test_errors_that_only_restarting_cures():
    assert only(DriverFacts(None, 999, (13, 0))) == UNKNOWN


def test_an_error_that_is_not():
    problem = only(DriverFacts(None, 719, (13, 0)))
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
    closed = (DeviceFile("/dev/nvidiactl", group), DeviceFile("/dev/nvidia0", group))
    around = Surroundings(hardware=True, driver="580", closed=closed)
    problem = only(DriverFacts(None, status, (13, 0)), around)
    assert problem.reason == "no permission to open /dev/nvidiactl, /dev/nvidia0"
    assert problem.command == command


@pytest.mark.parametrize("status", [0, 100])
def test_a_variable_hides_all_gpus(status):
    around = Surroundings(hardware=True, driver="580", hidden=True)
    problem = only(DriverFacts(None, status, (13, 0)), around)
    assert problem.reason == "CUDA_VISIBLE_DEVICES hides every GPU"
    assert problem.command == "unset CUDA_VISIBLE_DEVICES"


def test_a_variable_is_not_to_blame_for_an_error():
    around = Surroundings(hardware=True, driver="580", hidden=True)
    assert "719" in only(DriverFacts(None, 719, (13, 0)), around).reason


def test_a_variable_that_hides_some_is_no_problem():
    assert driver_problems(WORKING, Surroundings(hardware=True, hidden=True), (13, 0)) == ()


@pytest.mark.parametrize(
    ("around", "reason", "command"),
    [
        (Surroundings(hardware=False), NO_GPU.reason, None),
        (Surroundings(hardware=True, container=True), "without a GPU",
         "docker run --gpus all IMAGE"),
        (Surroundings(hardware=True), "the kernel's part of NVIDIA's driver is not loaded",
         "sudo modprobe nvidia"),
        (BOX, "NVIDIA's driver shows no GPU", None),
    ],
)  # fmt: skip
def test_a_driver_without_a_gpu(around, reason, command):
    problem = only(SHOWS_NONE, around)
    assert reason in problem.reason
    assert problem.command == command


@pytest.mark.parametrize(
    ("around", "command", "where"),
    [
        (BOX, "sudo ubuntu-drivers install", "driver 580 or later is needed;"),
        (Surroundings(container=True, distribution=("ubuntu",)), None, "on the host"),
        (Surroundings(wsl=True, distribution=("ubuntu",)), None, "in Windows"),
    ],
)
def test_a_driver_that_is_too_old(around, command, where):
    facts = DriverFacts(None, 0, (12, 4), (HOPPER,))
    problem = only(facts, around)
    assert "runs CUDA up to 12.4, not CUDA 13.0, which this ONNX Runtime was built for" in (
        problem.reason
    )
    assert problem.command == command
    assert where in problem.advice


def test_a_gpu_that_is_too_old():
    problem = only(DriverFacts(None, 0, (13, 0), (PASCAL,)))
    assert "NVIDIA GeForce GTX 1080 is too old for CUDA 13.0" in problem.reason
    assert "6.1" in problem.reason
    assert "7.5" in problem.reason
    assert driver_problems(DriverFacts(None, 0, (13, 0), (PASCAL,)), BOX, (12, 8)) == ()


def test_one_gpu_that_is_young_enough_will_do():
    assert driver_problems(DriverFacts(None, 0, (13, 0), (PASCAL, HOPPER)), BOX, (13, 0)) == ()
