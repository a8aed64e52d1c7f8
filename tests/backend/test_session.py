"""The strict session: no silent fallback, and the reason why a provider does not load."""

import ctypes
import os
import sys

import onnxruntime
import pytest

from detcli.backend import session
from detcli.backend.session import open_session, require_provider
from detcli.errors import DeviceError, ModelError

CUDA = "CUDAExecutionProvider"


@pytest.fixture
def gpu_build(monkeypatch):
    """An ONNX Runtime with the CUDA provider, and a loader that misses what a test names."""
    missing = []

    def load(name, mode=0):  # noqa: ARG001 - ctypes' signature
        for library in missing:
            if library in name or (library.startswith("libcublas") and "providers_cuda" in name):
                raise OSError(f"{library}: cannot open shared object file: No such file")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("noise"))
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(session.sys, "platform", "linux")
    return missing


def test_a_missing_driver_is_named(gpu_build):
    gpu_build.append("libcuda.so.1")
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1 \(NVIDIA's driver\)") as caught:
        require_provider(CUDA)
    assert "install the NVIDIA driver" in caught.value.hint
    assert "pip" not in caught.value.hint


def test_a_missing_cuda_library_is_named_with_the_extra_that_brings_it(gpu_build):
    gpu_build.append("libcublasLt.so.13")
    with pytest.raises(DeviceError, match=r"libcublasLt\.so\.13 \(the CUDA runtime\)") as caught:
        require_provider(CUDA)
    assert "onnxruntime-gpu[cuda,cudnn]" in caught.value.hint


def test_all_that_is_missing_is_named_once(gpu_build):
    gpu_build.extend(["libcuda.so.1", "libcublas.so.13"])
    with pytest.raises(DeviceError) as caught:
        require_provider(CUDA)
    assert "libcuda.so.1" in str(caught.value)
    assert "libcublas.so.13" in str(caught.value)


def test_nothing_missing_passes_and_nothing_reaches_stdout(gpu_build, capsys):
    assert gpu_build == []
    require_provider(CUDA)
    assert capsys.readouterr().out == ""


def test_a_build_without_the_provider_is_named(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match="built without CUDAExecutionProvider"):
        require_provider(CUDA)


def test_a_session_that_landed_elsewhere_is_refused(gpu_build, monkeypatch):
    """As ONNX Runtime does it: CUDA was asked for, nothing is raised, and the CPU is used."""
    assert gpu_build == []

    class Fallen:
        def disable_fallback(self):
            pass

        def get_providers(self):
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: Fallen())
    with pytest.raises(DeviceError, match="chose CPUExecutionProvider instead of CUDA"):
        open_session(b"", CUDA, "model")


def test_rubbish_is_a_model_error():
    with pytest.raises(ModelError, match="cannot load rubbish"):
        open_session(b"rubbish", "CPUExecutionProvider", "rubbish")


def test_an_onnxruntime_that_does_not_load_is_explained(detcli, make_model, make_picture, tmp_path):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/onnxruntime.py").write_text("raise ImportError('half a wheel')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), env=environment)
    assert finished.returncode == 1
    assert "ONNX Runtime does not load: half a wheel" in finished.stderr
    assert "pip uninstall" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_nothing_is_left_in_the_users_home(detcli, make_model, make_picture, tmp_path):
    """ONNX Runtime's telemetry would leave a device id there."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)  # set by this process's own import
    finished = detcli("predict", make_picture("a.png"), "-m", make_model(), env=environment)
    assert finished.returncode == 0
    assert list(home.rglob("*")) == []
