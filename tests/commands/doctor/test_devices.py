"""Devices on a ground that a test makes up: what is missing, what is said first, what is tried."""

import sys
from dataclasses import replace

import pytest

from detcli.backend.runtime.libraries import CUDA, TENSORRT, explain
from detcli.commands.doctor import devices
from detcli.commands.doctor.devices import (
    CUDA_EXTRA,
    Ground,
    examine_devices,
    find_copies,
    trial_problems,
)
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import Problem

CPU = "CPUExecutionProvider"
SOLID = Ground(
    packages=("onnxruntime-gpu",),
    version="1.31.1",
    providers=[TENSORRT, CUDA, CPU],
    failures={CUDA: (), TENSORRT: ()},
)
WANTED = "libcublasLt.so.13"


def missing(*names):
    said = "{}: cannot open shared object file: No such file or directory"
    return tuple(explain(name, said.format(name)) for name in names)


@pytest.fixture
def machine(monkeypatch):
    """One where a trial goes well; tests take from that."""

    class Machine:
        answer = Outcome()
        tried = ()

    def try_device(name):
        machine.tried += (name,)
        return machine.answer

    machine = Machine()
    monkeypatch.setattr(devices, "find_copies", lambda _: ())
    monkeypatch.setattr(devices, "gpu_wheel_exists", lambda: True)
    monkeypatch.setattr(devices, "try_device", try_device)
    return machine


def examine(ground=SOLID, wanted=None, **failures):
    """Devices by name; libraries that CUDA and TensorRT lack can be given."""
    lacking = {CUDA: failures.get("cuda", ()), TENSORRT: failures.get("tensorrt", ())}
    ground = replace(ground, failures=lacking)
    return {device.name: device for device in examine_devices(ground, wanted)}


def test_all_is_well_and_all_is_tried(machine):
    found = examine()
    assert list(found) == ["cpu", "cuda", "tensorrt"]
    assert all(device.usable and not device.problems for device in found.values())
    assert machine.tried == ("cuda", "tensorrt")  # the CPU has been, elsewhere


def test_the_gpu_that_is_asked_for_is_the_one_that_is_tried(machine):
    found = examine(wanted="cuda:1")
    assert list(found) == ["cpu", "cuda:1", "tensorrt"]
    assert machine.tried == ("cuda:1", "tensorrt")


def test_what_is_broken_for_all_stops_everything(machine):
    broken = Problem("numpy does not load", "pip install --force-reinstall numpy")
    for device in examine(replace(SOLID, broken=(broken,))).values():
        assert (device.usable, device.problems) == (False, (broken,))
    assert machine.tried == ()


def test_a_driver_that_cannot_be_asked_is_the_one_problem(machine):
    driver = Problem("NVIDIA's driver cannot be tried: it crashed (SIGSEGV)", None)
    found = {device.name: device for device in examine_devices(Ground(driver=(driver,)))}
    assert found["cpu"].usable
    assert found["cuda"].problems == found["tensorrt"].problems == (driver,)
    assert machine.tried == ()


def test_the_driver_comes_first_and_libraries_after_it(machine):
    driver = Problem("no driver", "sudo install")
    ground = replace(SOLID, driver=(driver,))
    found = examine(ground, cuda=missing("libcuda.so.1", "libcudnn.so.9"))
    assert found["cpu"].usable
    first, second = found["cuda"].problems
    assert first is driver
    assert second == Problem("missing: libcudnn.so.9 (cuDNN)", CUDA_EXTRA)
    assert machine.tried == ()


@pytest.mark.usefixtures("machine")
def test_tensorrt_needs_what_cuda_needs_and_its_own():
    own = missing("libnvinfer.so.10", "libcublas.so.13")
    found = examine(cuda=missing(WANTED), tensorrt=own)
    shared, tensorrt = found["tensorrt"].problems
    assert (shared,) == found["cuda"].problems  # what brings the one brings the other
    assert tensorrt.reason == "missing: libnvinfer.so.10 (TensorRT)"
    assert tensorrt.command.startswith("pip install 'tensorrt-cu13-libs")


@pytest.mark.usefixtures("machine")
def test_one_command_is_given_once():
    found = examine(cuda=missing("libcudnn.so.9", "libstdc++.so.6", WANTED))
    first, second = found["cuda"].problems
    assert first.command == CUDA_EXTRA
    assert "libcudnn.so.9" in first.reason
    assert WANTED in first.reason
    assert "libstdc++.so.6" in second.reason


@pytest.mark.usefixtures("machine")
def test_a_library_that_no_package_brings():
    old = "/x/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /y/provider.so)"
    (problem,) = examine(cuda=(explain("provider.so", old),))["cuda"].problems
    assert "libstdc++.so.6" in problem.reason
    assert "lacks GLIBCXX_3.4.32, which provider.so needs" in problem.reason
    assert problem.command is None
    assert "libstdc++6" in problem.advice


@pytest.mark.usefixtures("machine")
def test_what_else_is_there_is_mentioned_once(monkeypatch):
    monkeypatch.setattr(devices, "find_copies", lambda _: ("another release",))
    (problem,) = examine(cuda=missing(WANTED, "libcublas.so.13"))["cuda"].problems
    assert (problem.command, problem.advice) == (CUDA_EXTRA, "another release")


@pytest.mark.usefixtures("machine")
def test_a_build_for_the_cpu_only():
    ground = replace(SOLID, providers=[CPU], packages=("onnxruntime",))
    (problem,) = examine(ground)["cuda"].problems
    assert problem.reason.startswith("onnxruntime 1.31.1 is installed, which was built without ")
    assert problem.command == f"pip uninstall -y onnxruntime && {CUDA_EXTRA}"


@pytest.mark.usefixtures("machine")
def test_a_mixture_of_two_wheels_is_the_reason():
    mixture = Problem("installed over each other", "pip uninstall both")
    ground = replace(SOLID, providers=[CPU], mixture=mixture)
    assert examine(ground)["cuda"].problems == (mixture,)


@pytest.mark.usefixtures("machine")
def test_a_machine_that_has_no_gpu_wheel(monkeypatch):
    monkeypatch.setattr(devices, "gpu_wheel_exists", lambda: False)
    (problem,) = examine(replace(SOLID, providers=[CPU]))["cuda"].problems
    assert problem.reason.startswith("PyPI has no ONNX Runtime with CUDA for ")
    assert problem.command is None


def test_only_the_trial_proves_it(machine):
    machine.answer = Outcome({"reason": "no memory", "hint": "wait"})
    device = examine()["cuda"]
    assert (device.usable, device.problems) == (False, (Problem("no memory", None, "wait"),))


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome({"reason": "r", "hint": "pip install x; or use --device cpu"}),
         Problem("r", "pip install x", "or use --device cpu")),
        (Outcome({"reason": "r", "hint": ""}), Problem("r", None, "")),
        (Outcome(error="it crashed (SIGSEGV)"),
         Problem("a small detector could not be run: it crashed (SIGSEGV)", None)),
    ],
)  # fmt: skip
def test_what_a_trial_says(outcome, problem):
    assert trial_problems(outcome) == (problem,)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put an empty file under a root; pip's packages lie in its folder `site`."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "site")])

    def make(name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    return make


def test_nothing_is_found_where_nothing_is(put, tmp_path):
    put("usr/local/cuda-13.0/lib64/libcublas.so.13")  # another library
    assert list(find_copies(WANTED, tmp_path)) == []


@pytest.mark.parametrize(
    "folder",
    ["usr/local/cuda-13.0/lib64", "usr/local/cuda/targets/x86_64-linux/lib", "opt/cuda/lib64"],
)
def test_a_copy_where_the_loader_does_not_look(put, tmp_path, folder):
    path = put(f"{folder}/{WANTED}")
    (said,) = find_copies(WANTED, tmp_path)
    assert said.startswith(f"{WANTED} is in {path.parent}, where the loader does not look")


@pytest.mark.parametrize(
    "path",
    [
        "usr/local/cuda-12.8/lib64/libcublasLt.so.12.8.4.1",
        "usr/lib/x86_64-linux-gnu/libcublasLt.so.12",
        "site/nvidia/cublas/lib/libcublasLt.so.12",
    ],
)
def test_another_release_is_named_by_its_first_number(put, tmp_path, path):
    put(path)
    assert list(find_copies(WANTED, tmp_path)) == ["libcublasLt.so.12 is there, another release"]


def test_the_wanted_one_is_no_other_release(put, tmp_path):
    put(f"site/nvidia/cublas/lib/{WANTED}")
    assert list(find_copies(WANTED, tmp_path)) == []


def test_folders_that_the_loader_was_told_to_search(put, tmp_path, monkeypatch):
    folder = put("mine/libcublasLt.so.12").parent
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{folder}")
    assert list(find_copies(WANTED, tmp_path)) == ["libcublasLt.so.12 is there, another release"]


def test_windows_names_have_no_release_to_look_for(put, tmp_path):
    put("usr/lib64/cudnn64_9.dll")
    assert list(find_copies("cudnn64_9.dll", tmp_path)) == []
