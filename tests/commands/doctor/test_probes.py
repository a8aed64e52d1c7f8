"""What is asked in a process of its own: of this machine, and of libraries that a test makes up."""

import json
import sys

import pytest
from commands.doctor.fakes import compile_library, fake_driver

from detcli.backend import nvidia
from detcli.backend.runtime import libraries, onnxruntime
from detcli.backend.runtime.libraries import CUDA, Unloadable
from detcli.commands.doctor import probes
from detcli.commands.doctor.process import call
from detcli.errors import OutputError
from detcli.sink import window

PROBES = "detcli.commands.doctor.probes"

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries of Linux")


@linux
def test_a_driver_that_answers(tmp_path, monkeypatch):
    fake_driver(tmp_path, version=12040, gpus=2, capability=(8, 6))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    gpu = {"name": "Made Up 9000", "capability": [8, 6], "memory_bytes": 8 << 30}
    assert call(PROBES, "driver").value == {
        "load_error": None,
        "status": 0,
        "cuda": [12, 4],
        "gpus": [gpu, gpu],
    }


@linux
def test_something_else_of_the_drivers_name(tmp_path, monkeypatch):
    compile_library(tmp_path / "libcuda.so.1", "int nothing;")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = call(PROBES, "driver").value["load_error"]
    assert said == "libcuda.so.1: undefined symbol: cuDriverGetVersion"


@linux
def test_a_driver_that_crashes(tmp_path, monkeypatch):
    code = "int cuDriverGetVersion(int *version) { __builtin_trap(); }"
    compile_library(tmp_path / "libcuda.so.1", code)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert call(PROBES, "driver").error.startswith("it crashed (SIG")


def test_what_the_loader_said_is_without_folders(monkeypatch):
    facts = nvidia.DriverFacts("/home/zaphod/lib/libcuda.so.1: file too short")
    monkeypatch.setattr(nvidia, "ask_driver", lambda: facts)
    assert probes.driver()["load_error"] == "libcuda.so.1: file too short"


def test_the_runtime_of_this_machine():
    said = call(PROBES, "runtime").value
    assert said["version"] == onnxruntime.__version__
    assert said["providers"] == onnxruntime.get_available_providers()
    assert set(said["failures"]) == set(said["providers"]) - {"CPUExecutionProvider"}


def test_a_runtime_without_a_gpu(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "cuda_version", "", raising=False)
    said = probes.runtime()
    assert (said["cuda"], said["failures"]) == (None, {})


def test_libraries_that_do_not_load_are_told_without_folders(monkeypatch):
    failure = Unloadable("libcudnn.so.9", "no /home/zaphod/y.so", "cuDNN", "pip install x")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(libraries, "unloadable_libraries", lambda _: (failure,))
    (told,) = json.loads(json.dumps(probes.runtime()))["failures"][CUDA]
    assert Unloadable(**told) == Unloadable("libcudnn.so.9", "no y.so", "cuDNN", "pip install x")


def test_a_window_opens(monkeypatch):
    monkeypatch.setattr(window, "check_display", lambda: None)
    assert probes.display() is None


def test_no_window_and_why(monkeypatch):
    def refuse():
        raise OutputError("cannot show pictures: could not connect to display :7")

    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setattr(window, "check_display", refuse)
    assert probes.display() == "could not connect to display $DISPLAY"


@linux
def test_no_display_at_all(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    assert call(PROBES, "display").value == "there is no display (DISPLAY is not set)"
