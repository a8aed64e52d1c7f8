"""The whole examination, with one thing broken at a time."""

import json

import jsonschema
import pytest
from report_schemas import validator

from detcli.commands.doctor import examine as module
from detcli.commands.doctor import packages, process
from detcli.commands.doctor.driver import HostFacts
from detcli.commands.doctor.examine import examine
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import DoctorProblem
from detcli.commands.shared.reports import encode

WRONG = {"reason": "wrong", "hint": ""}


@pytest.fixture
def machine(monkeypatch):
    """A machine without a GPU and without real processes; a test sets each answer."""
    driver = {"load_error": "libcuda.so.1: cannot open: No such file", "status": None,
              "cuda": None, "gpus": []}  # fmt: skip
    runtime = {"version": "1.31.1", "cuda": "13.0", "providers": [], "failures": {},
               "cuda_command": "pip install it"}  # fmt: skip
    answers = {"driver_facts": Outcome(driver), "runtime_facts": Outcome(runtime),
               "display_fault": Outcome(), "trial": Outcome()}  # fmt: skip
    monkeypatch.setattr(process, "ask", lambda name, *_: answers[name])
    monkeypatch.setattr(packages, "find_mixture", lambda: None)
    monkeypatch.setattr(module, "read_host", lambda: HostFacts(hardware=False))
    return answers


@pytest.fixture
def unloadable(machine, monkeypatch):
    """Errors by module; the CPU then cannot be used."""
    errors = {}
    machine["trial"] = Outcome(WRONG)
    monkeypatch.setattr(process, "load", lambda name, _: Outcome(error=errors.get(name)))
    return errors


def test_this_machine_as_it_is():
    report = examine()
    validator("doctor").validate(json.loads(encode(report)))
    assert report.devices[0].usable
    assert report.packages["numpy"]
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        validator("doctor").validate({**json.loads(encode(report)), "surprise": 1})


@pytest.mark.usefixtures("machine")
def test_an_intact_machine_has_no_problems():
    report = examine()
    assert report.problems == ()
    assert report.display.usable
    assert report.nvidia.runtime_cuda == "13.0"


def test_a_library_that_does_not_load_stops_every_device(unloadable):
    unloadable["cv2"] = "crashed with SIGSEGV"
    report = examine()
    (problem,) = report.problems
    builds = " ".join(packages.owners("cv2"))  # two where one does not load, see the Makefile
    assert problem.reason == f"{builds} does not load: crashed with SIGSEGV"
    assert all(device.problems == report.problems for device in report.devices)
    validator("doctor").validate(json.loads(encode(report)))


def test_numpy_is_reported_once_and_not_for_each_dependent(unloadable):
    unloadable.update(dict.fromkeys(packages.REQUIRED, "libopenblas.so: file too short"))
    (problem,) = examine().problems
    assert problem.reason == "numpy does not load: libopenblas.so: file too short"


@pytest.mark.usefixtures("unloadable")
def test_the_trials_reason_stands_where_everything_loads():
    assert examine().problems == (DoctorProblem("wrong", None, ""),)


def test_a_python_that_does_not_start_is_not_blamed_on_numpy(machine):
    machine["trial"] = Outcome(error="Python does not start: Permission denied")
    reason = "nothing could be tested: Python does not start: Permission denied"
    assert examine().problems == (DoctorProblem(reason, None),)


def test_a_mixture_that_does_not_load_is_one_problem(unloadable, monkeypatch):
    mixture = DoctorProblem("installed over each other", "pip uninstall both")
    monkeypatch.setattr(packages, "find_mixture", lambda: mixture)
    unloadable["onnxruntime"] = "cannot import name 'get_all_providers'"
    report = examine()
    assert report.problems == report.devices[0].problems == (mixture,)


@pytest.mark.usefixtures("machine")
def test_a_mixture_that_loads_is_still_a_problem(monkeypatch):
    mixture = DoctorProblem("installed over each other", "pip uninstall both")
    monkeypatch.setattr(packages, "find_mixture", lambda: mixture)
    report = examine()
    assert report.problems == (mixture,)
    assert report.devices[0].usable


@pytest.mark.parametrize("name", ["driver_facts", "runtime_facts"])
def test_a_crashing_gpu_library_leaves_the_cpu_usable(machine, name):
    machine[name] = Outcome(error="crashed with SIGSEGV")
    cpu, cuda, *_ = examine().devices
    assert cpu.usable
    assert cuda.problems[0].reason.endswith(" cannot be tested: crashed with SIGSEGV")


def test_a_gpu_without_code_is_a_problem_of_both_gpu_devices(machine):
    gpu = {"name": "NVIDIA B200", "capability": "10.0", "memory_bytes": 1 << 37}
    machine["driver_facts"].value.update(load_error=None, status=0, cuda="13.0", gpus=[gpu])
    _, cuda, tensorrt, _ = examine().devices
    assert cuda.problems[0].reason.startswith("this ONNX Runtime has no code for NVIDIA B200, ")
    assert cuda.problems[0].command == "pip install 'detcli[cuda12]'"
    assert tensorrt.problems[0] == cuda.problems[0]


def test_a_gpu_is_described(machine):
    gpu = {"name": "NVIDIA H200", "capability": "9.0", "memory_bytes": 1 << 37}
    machine["driver_facts"].value.update(load_error=None, status=0, cuda="12.4", gpus=[gpu])
    report = examine()
    assert (report.nvidia.hardware, report.nvidia.driver_cuda) == (True, "12.4")
    assert report.nvidia.gpus[0].capability == "9.0"
    assert (
        "supports CUDA up to 12.4, but this ONNX Runtime was built for CUDA 13.0"
        in report.devices[1].problems[0].reason
    )


@pytest.mark.parametrize("outcome", [Outcome("no display"), Outcome(error="no display")])
def test_why_no_window_opens(machine, outcome):
    machine["display_fault"] = outcome
    display = examine().display
    assert (display.usable, display.reason) == (False, "no display")
