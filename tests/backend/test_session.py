"""The strict session: what was asked for, or an error that says what went wrong."""

import logging
import os
import subprocess
import sys

import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from detcli.backend import libraries
from detcli.backend.session import CPU, CaptureRefusedError, open_session
from detcli.core.errors import DeviceError, DeviceMemoryError, ModelError

CUDA = (("CUDAExecutionProvider", {"device_id": "0"}),)


class FallenBack:
    """ONNX Runtime's fallback: CUDA was requested, nothing is raised, and the CPU is used."""

    def get_providers(self):
        return ["CPUExecutionProvider"]


@pytest.fixture
def made(monkeypatch):
    """The arguments of each session; `made.result` is what opening one calls."""
    calls = []

    def make(graph, options, providers, **more):
        calls.append((graph, options, providers, more))
        return made.result()

    def made():
        return calls

    made.result = FallenBack
    monkeypatch.setattr(libraries, "require_provider", lambda _: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    yield made
    onnxruntime.set_default_logger_severity(2)  # its default


def failing(error):
    def result():
        sys.stdout.write("noise")
        raise error

    return result


def test_a_session_on_another_provider_is_refused(made):
    with pytest.raises(DeviceError, match="chose CPUExecutionProvider instead of CUDA"):
        open_session(b"graph", CUDA, "model")
    ((graph, options, providers, more),) = made()
    assert (graph, providers) == (b"graph", list(CUDA))
    assert more == {"enable_fallback": 0}
    assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ("Available memory of 1 is smaller than requested bytes of 2", DeviceMemoryError, "fit"),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=box", DeviceMemoryError, "model does"),
        ("CUDA failure 101: invalid device ordinal ; GPU=7 ; hostname=box", DeviceError, "failed"),
        ("CUDNN_STATUS_NOT_INITIALIZED", DeviceError, "the GPU failed while model was loaded"),
        (
            "This session cannot use the graph capture feature as the model has control flow",
            CaptureRefusedError,
            "control flow",
        ),
        ("This is an invalid model", ModelError, "cannot load model"),
    ],
)
@pytest.mark.parametrize("kind", [RuntimeError, runtime_errors.Fail, runtime_errors.EPFail])
def test_why_a_session_cannot_be_made(message, error, words, kind, made, capfd):  # noqa: PLR0913, PLR0917
    made.result = failing(kind(f"[ONNXRuntimeError] : 1 : FAIL : {message}"))
    with pytest.raises(error, match=words) as caught:
        open_session(b"", CUDA, "model")
    assert type(caught.value) is error
    assert "hostname" not in str(caught.value)
    if error is DeviceMemoryError:
        assert str(caught.value).startswith("model does not fit into the GPU's memory: ")
        assert "nvidia-smi" in caught.value.hint
    assert capfd.readouterr().out == ""


def test_the_runtimes_source_lines_are_left_out_of_errors(make_model, capfd):
    model = onnx.load(make_model())
    model.opset_import[0].version = 99
    with pytest.raises(ModelError, match=r"cannot load model: ONNX Runtime only \*guarantees"):
        open_session(model.SerializeToString(), CPU, "model")
    model.opset_import[0].version, model.ir_version = 17, 99
    with pytest.raises(ModelError, match="cannot load model: Unsupported model IR version: 99"):
        open_session(model.SerializeToString(), CPU, "model")
    with pytest.raises(ModelError, match="cannot load rubbish"):
        open_session(b"rubbish", CPU, "rubbish")
    assert capfd.readouterr() == ("", "")


def test_where_a_real_session_runs_is_checked(make_model, monkeypatch, caplog):
    """A session that claims to have loaded CUDA but runs its nodes on the CPU."""
    real = onnxruntime.InferenceSession

    def make(graph, options, providers, **more):  # noqa: ARG001 - as it is called
        session = real(graph, options, ["CPUExecutionProvider"])
        session.get_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
        return session

    monkeypatch.setattr(libraries, "require_provider", lambda _: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    caplog.set_level(logging.INFO, "detcli")
    if hasattr(real, "get_provider_graph_assignment_info"):
        with pytest.raises(DeviceError, match=r"runs none of the \d\d nodes of model"):
            open_session(make_model().read_bytes(), CUDA, "model")
    else:
        open_session(make_model().read_bytes(), CUDA, "model")
        assert "from version 1.24 on" in caplog.text


def test_the_cpu_imports_nothing_that_only_a_gpu_needs(make_model):
    script = (
        "import sys; from detcli import Detector; Detector(sys.argv[1], 'auto'); "
        "print([name for name in sys.modules if name.startswith(('cuda', 'detcli.backend.cuda', "
        "'detcli.backend.libraries'))])"
    )
    command = [sys.executable, "-c", script, str(make_model())]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    assert finished.stdout == "[]\n"


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
