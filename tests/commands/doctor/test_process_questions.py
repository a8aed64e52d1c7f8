"""What separate processes answer, on this machine and with made-up libraries."""

import json
import sys

import cv2
import pytest
from commands.doctor.fakes import compile_library, fake_driver

from detcli.backend import nvidia
from detcli.backend.runtime import libraries, onnxruntime
from detcli.backend.runtime.libraries import CUDA, Unloadable
from detcli.commands.doctor import process
from detcli.commands.doctor.process import ask
from detcli.errors import OutputError
from detcli.sink import window

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="libraries of Linux")


@linux
def test_a_driver_that_answers(tmp_path, monkeypatch):
    fake_driver(tmp_path, version=12040, gpus=2, capability=(8, 6))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    gpu = {"name": "Made Up 9000", "capability": "8.6", "memory_bytes": 8 << 30}
    assert ask("driver_facts").value == {
        "load_error": None,
        "status": 0,
        "cuda": "12.4",
        "gpus": [gpu, gpu],
    }


@linux
def test_another_library_with_the_drivers_name(tmp_path, monkeypatch):
    compile_library(tmp_path / "libcuda.so.1", "int nothing;")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = ask("driver_facts").value["load_error"]
    assert said == "libcuda.so.1: undefined symbol: cuDriverGetVersion"


@linux
def test_a_driver_that_crashes(tmp_path, monkeypatch):
    code = "int cuDriverGetVersion(int *version) { __builtin_trap(); }"
    compile_library(tmp_path / "libcuda.so.1", code)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert ask("driver_facts").error.startswith("crashed with SIG")


def test_the_loaders_error_has_no_folders(monkeypatch):
    facts = nvidia.DriverFacts("/home/zaphod/lib/libcuda.so.1: file too short")
    monkeypatch.setattr(nvidia, "ask_driver", lambda: facts)
    assert process.driver_facts()["load_error"] == "libcuda.so.1: file too short"


def test_the_runtime_of_this_machine():
    said = ask("runtime_facts").value
    assert said["version"] == onnxruntime.__version__
    assert said["providers"] == onnxruntime.get_available_providers()
    assert set(said["failures"]) == set(said["providers"]) - {"CPUExecutionProvider"}


def test_a_runtime_without_a_gpu(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "cuda_version", "", raising=False)
    said = process.runtime_facts()
    assert (said["cuda"], said["failures"]) == (None, {})


@pytest.mark.parametrize(
    ("said", "version"), [("13.0", "13.0"), ("12.8.1", "12.8"), ("", None), (None, None)]
)
def test_the_cuda_that_the_runtime_was_built_for(monkeypatch, said, version):
    monkeypatch.setattr(onnxruntime, "get_available_providers", list)
    monkeypatch.setattr(onnxruntime, "cuda_version", said, raising=False)
    assert process.runtime_facts()["cuda"] == version


def test_unloadable_libraries_are_reported_without_folders(monkeypatch):
    failure = Unloadable("libcudnn.so.9", "no /home/zaphod/y.so", "cuDNN", "pip install x")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(libraries, "unloadable_libraries", lambda _: (failure,))
    (told,) = json.loads(json.dumps(process.runtime_facts()))["failures"][CUDA]
    assert Unloadable(**told) == Unloadable("libcudnn.so.9", "no y.so", "cuDNN", "pip install x")


def test_a_window_opens(monkeypatch):
    monkeypatch.setattr(window, "check_display", lambda: None)
    assert process.display_fault() is None


def test_why_no_window_opens(monkeypatch):
    def refuse():
        raise OutputError("cannot show pictures: could not connect to display :7")

    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setattr(window, "check_display", refuse)
    assert process.display_fault() == "could not connect to display $DISPLAY"


@linux
def test_no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    reason = "there is no display (DISPLAY is not set)"
    if not cv2.currentUIFramework():
        reason = "this OpenCV is built without windows"
    assert ask("display_fault").value == reason
