"""The whole examination, with one thing broken at a time."""

import json
from importlib import resources

import jsonschema
import pytest

from detcli.commands.doctor import devices, packages, process
from detcli.commands.doctor import examine as module
from detcli.commands.doctor.examine import examine
from detcli.commands.doctor.process import Outcome
from detcli.commands.doctor.report import Problem
from detcli.commands.doctor.surroundings import Surroundings
from detcli.commands.shared.reports import encode

SCHEMA = json.loads(resources.files("detcli").joinpath("commands/doctor/schema.json").read_text())
WRONG = {"reason": "wrong", "hint": ""}


@pytest.fixture
def machine(monkeypatch):
    """One without a GPU, where nothing is really tried; a test says what each probe answers."""
    nobody = {"load_error": "libcuda.so.1: cannot open: No such file", "status": None,
              "cuda": None, "gpus": []}  # fmt: skip
    runtime = {"version": "1.31.1", "cuda": "13.0", "providers": [], "failures": {}}
    answers = {"driver": Outcome(nobody), "runtime": Outcome(runtime), "display": Outcome(),
               "cpu": Outcome()}  # fmt: skip
    monkeypatch.setattr(process, "call", lambda _, name: answers[name])
    monkeypatch.setattr(devices, "try_device", lambda name: answers[name])
    monkeypatch.setattr(packages, "find_mixture", lambda: None)
    monkeypatch.setattr(module, "look_around", lambda: Surroundings(hardware=False))
    return answers


@pytest.fixture
def unloadable(machine, monkeypatch):
    """Say why a module does not load; the CPU can then not be used."""
    errors = {}
    machine["cpu"] = Outcome(WRONG)
    monkeypatch.setattr(process, "load", lambda name, _: Outcome(error=errors.get(name)))
    return errors


def test_this_machine_as_it_is():
    report = examine()
    jsonschema.validate(json.loads(encode(report)), SCHEMA)
    assert report.devices[0].usable
    assert report.packages["numpy"]


def test_the_schema_is_one_and_knows_every_field():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate({**json.loads(encode(examine())), "surprise": 1}, SCHEMA)


@pytest.mark.usefixtures("machine")
def test_nothing_broken_is_no_problem():
    report = examine()
    assert report.problems == ()
    assert report.display.usable
    assert report.nvidia.runtime_cuda == "13.0"


def test_a_library_that_does_not_load_stops_every_device(unloadable):
    unloadable["cv2"] = "it crashed (SIGSEGV)"
    report = examine()
    (problem,) = report.problems
    assert problem.reason == "opencv-python does not load: it crashed (SIGSEGV)"
    assert all(device.problems == report.problems for device in report.devices)
    jsonschema.validate(json.loads(encode(report)), SCHEMA)


def test_numpy_is_told_once_and_not_for_each_that_needs_it(unloadable):
    unloadable.update(dict.fromkeys(packages.REQUIRED, "libopenblas.so: file too short"))
    (problem,) = examine().problems
    assert problem.reason == "numpy does not load: libopenblas.so: file too short"


@pytest.mark.usefixtures("unloadable")
def test_where_all_loads_and_the_cpu_fails_the_trial_says_why():
    assert examine().problems == (Problem("wrong", None, ""),)


def test_a_python_that_does_not_start_is_not_blamed_on_numpy(machine):
    machine["cpu"] = Outcome(error="Python does not start: Permission denied")
    reason = "nothing could be tried: Python does not start: Permission denied"
    assert examine().problems == (Problem(reason, None),)


def test_a_mixture_that_does_not_load_is_one_problem(unloadable, monkeypatch):
    mixture = Problem("installed over each other", "pip uninstall both")
    monkeypatch.setattr(packages, "find_mixture", lambda: mixture)
    unloadable["onnxruntime"] = "cannot import name 'get_all_providers'"
    report = examine()
    assert report.problems == report.devices[0].problems == (mixture,)


@pytest.mark.usefixtures("machine")
def test_a_mixture_that_loads_is_a_problem_all_the_same(monkeypatch):
    mixture = Problem("installed over each other", "pip uninstall both")
    monkeypatch.setattr(packages, "find_mixture", lambda: mixture)
    report = examine()
    assert report.problems == (mixture,)
    assert report.devices[0].usable


@pytest.mark.parametrize("name", ["driver", "runtime"])
def test_a_library_of_a_gpu_that_crashes_leaves_the_cpu(machine, name):
    machine[name] = Outcome(error="it crashed (SIGSEGV)")
    cpu, cuda, _ = examine().devices
    assert cpu.usable
    assert cuda.problems[0].reason.endswith(" cannot be tried: it crashed (SIGSEGV)")


def test_a_gpu_is_described(machine):
    gpu = {"name": "NVIDIA H200", "capability": [9, 0], "memory_bytes": 1 << 37}
    machine["driver"].value.update(load_error=None, status=0, cuda=[12, 4], gpus=[gpu])
    report = examine()
    assert (report.nvidia.hardware, report.nvidia.driver_cuda) == (True, "12.4")
    assert report.nvidia.gpus[0].capability == "9.0"
    assert "runs CUDA up to 12.4, not CUDA 13.0" in report.devices[1].problems[0].reason


@pytest.mark.parametrize(("said", "version"), [("13.0", "13.0"), ("12.8", "12.8"), (None, None)])
def test_the_cuda_of_the_runtime(machine, said, version):
    machine["runtime"].value["cuda"] = said
    assert examine().nvidia.runtime_cuda == version


@pytest.mark.parametrize("outcome", [Outcome("no display"), Outcome(error="no display")])
def test_no_window_and_why(machine, outcome):
    machine["display"] = outcome
    display = examine().display
    assert (display.usable, display.reason) == (False, "no display")
