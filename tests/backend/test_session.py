"""The strict session: what was asked for, or an error that says what went wrong."""

import os
import subprocess
import sys
from types import SimpleNamespace

import colour_model
import convolution_model
import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from detcli.backend import libraries, open_tensors, session
from detcli.backend.session import (
    CPU,
    CUDA,
    TENSORRT,
    OptionRefusedError,
    check_placement,
    open_session,
    refusal,
    simplified,
)
from detcli.commands.convert.number_types import to_half
from detcli.config.device import DeviceOptions
from detcli.core.errors import DeviceError, DeviceMemoryError, InferenceError, ModelError

ON_CUDA = ((CUDA, {"device_id": "0"}),)
CPU_NAME = "CPUExecutionProvider"
ONES = np.ones((1, 3, 64, 64), np.float32)


@pytest.fixture
def creation(monkeypatch):
    """The arguments of each session; `made.result` is what opening one calls.

    By default that is ONNX Runtime's fallback: nothing is raised, and the CPU is used.
    """
    creation = SimpleNamespace(
        calls=[], result=lambda: SimpleNamespace(get_providers=lambda: [CPU_NAME])
    )

    def make(graph, options, providers, **settings):
        creation.calls.append((graph, options, providers, settings))
        return creation.result()

    monkeypatch.setattr(libraries, "require_provider", lambda _: None)
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    yield creation
    onnxruntime.set_default_logger_severity(2)  # its default


def failing(error, noise=""):
    def fail(*_, **__):
        sys.stdout.write(noise)
        raise error

    return fail


def test_a_session_on_another_provider_is_refused(creation):
    with pytest.raises(DeviceError, match="chose CPUExecutionProvider instead of CUDA"):
        open_session(b"graph", ON_CUDA, "model")
    ((graph, options, providers, settings),) = creation.calls
    assert graph == b"graph"
    assert providers == list(ON_CUDA)
    assert settings == {"enable_fallback": 0}
    assert options.get_session_config_entry(session.RECORD_PLACEMENT) == "1"


@pytest.mark.parametrize(
    ("message", "error", "words"),
    [
        ("Available memory of 1 is smaller than requested bytes of 2", DeviceMemoryError, "fit"),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=box", DeviceMemoryError, "model does"),
        ("CUDA failure 101: invalid device ordinal ; GPU=7 ; hostname=box", DeviceError, "failed"),
        ("CUDNN_STATUS_NOT_INITIALIZED", DeviceError, "the GPU failed while model was loaded"),
        (
            "This session cannot use the graph capture feature as the model has control flow",
            OptionRefusedError,
            "control flow",
        ),
        ("This is an invalid model", ModelError, "cannot load model"),
    ],
)
def test_why_a_session_cannot_be_made(message, error, words, creation, capfd):
    for kind in (RuntimeError, runtime_errors.Fail, runtime_errors.EPFail):
        creation.result = failing(kind(f"[ONNXRuntimeError] : 1 : FAIL : {message}"), "noise")
        with pytest.raises(error, match=words) as caught:
            open_session(b"", ON_CUDA, "model")
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
    model.opset_import[0].version = 17
    model.ir_version = 99
    with pytest.raises(ModelError, match="cannot load model: Unsupported model IR version: 99"):
        open_session(model.SerializeToString(), CPU, "model")
    with pytest.raises(ModelError, match="cannot load rubbish"):
        open_session(b"rubbish", CPU, "rubbish")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("spins", [True, False])
def test_threads_of_the_network_spin_only_if_they_may(spins, monkeypatch):
    opened = []

    class Options(onnxruntime.SessionOptions):
        """Options of a session that note what is added to them."""

        def __init__(self):
            super().__init__()
            self.added = {}
            opened.append(self)

        def add_session_config_entry(self, name, value):
            self.added[name] = value

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: SimpleNamespace())
    open_session(b"", CPU, "model", spins=spins)
    expected = {} if spins else {"session.intra_op.allow_spinning": "0"}
    assert opened[0].added == expected


# ---------------------------------------------------------------- where nodes run


def node(operator, name="", domain=""):
    return SimpleNamespace(op_type=operator, name=name, domain=domain)


def session_of(parts, providers=(TENSORRT, CUDA, CPU_NAME)):
    """A double of a session; each part is a provider and its nodes."""
    info = []
    for name, nodes in parts:
        info.append(SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes))
    return SimpleNamespace(
        get_providers=lambda: list(providers), get_provider_graph_assignment_info=lambda: info
    )


@pytest.fixture
def info(caplog):
    caplog.set_level("INFO", "detcli")
    return caplog


LEFT = (
    "model: 5 of 12 nodes run on CPUExecutionProvider: 4 Shape, 1 my.Odd "
    "(such as /0/Shape, /1/Shape, /2/Shape)"
)
SHAPES = [
    node("Shape", "/0/Shape"),
    node("Shape", "/1/Shape"),
    node("Shape", "/2/Shape"),
    node("Shape", "/3/Shape"),
]


@pytest.mark.parametrize(
    ("parts", "requested", "message"),
    [
        ([(CUDA, [node("Conv")]), (CUDA, [node("Mul")])], [CUDA], []),
        (
            [
                (CUDA, [node("Conv")] * 7),
                (CPU_NAME, SHAPES[:3]),
                (CPU_NAME, [node("Odd", "", "my")]),
                (CPU_NAME, SHAPES[3:]),
            ],
            [CUDA],
            [LEFT],
        ),
        (
            [(TENSORRT, [node("Conv")]), (CUDA, [node("Mod")])],
            [TENSORRT, CUDA],
            ["model: 1 of 2 nodes run on CUDAExecutionProvider: 1 Mod"],
        ),
    ],
)
def test_nodes_elsewhere_are_listed(parts, requested, message, info):
    check_placement(session_of(parts), requested, "model")
    assert info.messages == message


@pytest.mark.parametrize("provider", [CUDA, CPU_NAME])
def test_a_wanted_provider_without_a_node_is_refused(provider):
    with pytest.raises(DeviceError, match="TensorrtExecutionProvider runs none of the 1 nodes"):
        check_placement(session_of([(provider, [node("Conv")])]), [TENSORRT, CUDA], "model")


@pytest.mark.parametrize("providers", [[CPU_NAME], [CUDA, CPU_NAME], [TENSORRT, CPU_NAME]])
def test_a_provider_that_did_not_load_is_refused(providers):
    session = session_of([(providers[0], [node("Conv")])], providers=providers)
    with pytest.raises(DeviceError, match=f"chose {providers[0]} instead of"):
        check_placement(session, [TENSORRT, CUDA], "model")


def test_an_older_onnxruntime_is_trusted(info):
    session = SimpleNamespace(get_providers=lambda: [CUDA, CPU_NAME])
    check_placement(session, [CUDA], "model")
    assert "from version 1.24 on" in info.text


def test_where_a_real_session_runs_is_checked(make_model, monkeypatch, info):
    """A session that claims to have loaded CUDA but runs its nodes on the CPU."""
    session_class = onnxruntime.InferenceSession

    def make(graph, options, providers, **_):
        session = session_class(graph, options, [CPU_NAME])
        names = [name for name, _ in providers] + [CPU_NAME]
        session.get_providers = lambda: names
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    graph = make_model().read_bytes()
    if hasattr(session_class, "get_provider_graph_assignment_info"):
        open_session(graph, [(CPU_NAME, {})], "model")
        assert info.messages == []
        with pytest.raises(DeviceError, match=r"runs none of the \d\d nodes of model"):
            open_session(graph, ON_CUDA, "model")
    else:
        open_session(graph, ON_CUDA, "model")
        assert "from version 1.24 on" in info.text


# ---------------------------------------------------------------- tensors of any graph


@pytest.fixture
def graph(make_model):
    """All tensors of a small network as outputs."""
    model = onnx.load(make_model())
    for name in ("cells", "scores", "anchors"):
        model.graph.output.add(name=name)
    return model.SerializeToString()


def test_all_outputs_by_name_or_errors(graph):
    tensors = open_tensors("cpu", graph, "m")
    assert tensors.device == "cpu"
    outputs = tensors.run("images", ONES)  # type: ignore[attr-defined]
    assert {name: tensor.shape for name, tensor in outputs.items()} == {
        "head": (1, 7, 64),
        "cells": (1, 3, 8, 8),
        "scores": (1, 3, 64),
        "anchors": (1, 2, 64),
    }
    assert (outputs["cells"] == 1).all()
    with pytest.raises(InferenceError, match="batch of shape"):
        tensors.run("images", ONES[:, :, :32, :32])  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="cannot load m"):
        open_tensors("cpu", b"\x08\x01", "m")


@pytest.fixture
def opened_graphs(monkeypatch):
    """How a session would be opened on a GPU."""
    opened = []

    def open_session(graph, providers, title, *, threads, spins):
        assert threads == 0
        assert spins
        opened.append((graph, providers, title))
        return SimpleNamespace(get_outputs=list)

    monkeypatch.setattr(session, "open_session", open_session)
    monkeypatch.setattr(libraries, "require_provider", opened.append)
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    return opened


@pytest.fixture
def half():
    """A serialised graph whose matrices are all in float16."""
    return to_half(convolution_model.build()).SerializeToString()


def test_tensors_on_a_gpu(opened_graphs, make_model, half, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    exact = make_model().read_bytes()
    open_tensors("cuda:2", exact, "m")
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ  # it has an option
    required, (graph, ((name, provider_options),), title) = opened_graphs
    assert required == CUDA
    assert graph == exact
    assert name == CUDA
    assert title == "m"
    assert provider_options["device_id"] == "2"
    assert provider_options["use_tf32"] == "0"
    assert "user_compute_stream" not in provider_options
    open_tensors("cuda:2", half, "m")
    _, ((_, provider_options),), _ = opened_graphs[-1]
    assert "use_tf32" not in provider_options  # it would keep float16 from tensor cores


@pytest.mark.parametrize("requests_half", [True, False])
def test_tensors_with_tensorrt(requests_half, opened_graphs, make_model, half, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    graph = make_model().read_bytes() if requests_half else half
    open_tensors("tensorrt:0", graph, "m", DeviceOptions(half=requests_half))
    required, (_, (engine, (second, _)), _) = opened_graphs
    assert required == TENSORRT
    assert engine == (TENSORRT, {"device_id": "0", "trt_fp16_enable": "True"})
    assert second == CUDA
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"


FULL = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. "


def test_a_session_does_not_keep_the_serialised_graph(make_model):
    graph = make_model().read_bytes()
    references = sys.getrefcount(graph)
    opened = session.TensorSession("cpu", CPU, graph, "model.onnx")
    assert sys.getrefcount(graph) == references
    opened.close()


@pytest.mark.parametrize(
    "failure",
    [
        runtime_errors.Fail(f"{FULL}Failed to allocate memory for requested buffer of size 14400"),
        runtime_errors.RuntimeException(f"{FULL}Status Message: std::bad_alloc"),
        MemoryError("std::bad_alloc"),
        MemoryError("Unable to allocate 13.4 GiB for an array with shape (60000, 60000)"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_on_the_cpu(failure, make_model, monkeypatch):
    tensors = open_tensors("cpu", make_model().read_bytes(), "m")
    monkeypatch.setattr(tensors, "_session", SimpleNamespace(run=failing(failure)))
    message = r"shape \[1, 3, 64, 64\] does not fit into memory: "
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        tensors.run("images", ONES)  # type: ignore[attr-defined]
    assert "GPU" not in str(caught.value)
    assert "--imgsz" in caught.value.hint
    monkeypatch.setattr(onnxruntime, "InferenceSession", failing(failure))
    with pytest.raises(ModelError, match=r"^m does not fit into memory: .") as caught:
        open_tensors("cpu", b"", "m")
    assert "gpu" not in f"{caught.value}{caught.value.hint}"


def test_a_node_that_fails_is_named_without_words_of_the_library(make_model, monkeypatch):
    tensors = open_tensors("cpu", make_model().read_bytes(), "m")
    failure = runtime_errors.InvalidArgument(
        "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running "
        "Reshape node. Name:'head/1' Status Message: /source/reshape.h:44 Compute(int) sizes differ"
    )
    monkeypatch.setattr(tensors, "_session", SimpleNamespace(run=failing(failure)))
    with pytest.raises(InferenceError) as caught:
        tensors.run("images", np.concatenate([ONES, ONES]))  # type: ignore[attr-defined]
    assert str(caught.value) == (
        "the network failed on a batch of shape [2, 3, 64, 64]: its Reshape node head/1 failed: "
        "sizes differ"
    )
    assert caught.value.hint.startswith("pass --batch 1: ")


# ---------------------------------------------------------------- simplified graphs


def test_constants_are_folded_and_the_head_stays(random):
    model = colour_model.build("body").SerializeToString()
    small = simplified(model)
    assert len(onnx.load_from_string(small).graph.node) < len(
        onnx.load_from_string(model).graph.node
    )
    image = random.random(ONES.shape).astype(np.float32)
    head = open_tensors("cpu", model, "m").run("images", image)["head"]  # type: ignore[attr-defined]
    folded_head = open_tensors("cpu", small, "m").run("images", image)["head"]  # type: ignore[attr-defined]
    np.testing.assert_allclose(head, folded_head, rtol=1e-6)


def test_a_graph_that_does_not_load_has_a_reason_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = colour_model.build()
    assert refusal(model.SerializeToString(), "colours") is None
    assert simplified(model.SerializeToString()) is not None
    model.graph.node[0].op_type = "NoSuchOperator"
    for damage in (b"", b"no model", model.SerializeToString()):
        assert simplified(damage) is None
        assert isinstance(refusal(damage, "colours"), ModelError)
    assert "NoSuchOperator" in str(refusal(model.SerializeToString(), "colours"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what a start loads and leaves


@pytest.mark.slow
def test_the_cpu_imports_nothing_that_only_a_gpu_needs(make_model):
    script = (
        "import sys; from detcli import Detector; Detector(sys.argv[1], 'auto'); "
        "print([name for name in sys.modules if name.startswith(('cuda', 'detcli.backend.cuda', "
        "'detcli.backend.libraries'))])"
    )
    command = [sys.executable, "-c", script, str(make_model())]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    assert finished.stdout == "[]\n"


@pytest.mark.slow
def test_an_onnxruntime_that_does_not_load_is_explained(detcli, make_model, make_image, tmp_path):
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/onnxruntime.py").write_text("raise ImportError('half a wheel')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    finished = detcli("predict", make_image("a.png"), "-m", make_model(), env=environment)
    assert finished.returncode == 1
    assert " does not load: half a wheel\n  hint: pip install --force-reinstall" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_verbose_says_which_package_is_loaded(make_model, make_image):
    """`onnxruntime` and `onnxruntime-gpu` install the same module."""
    words = ["predict", make_image("a.png"), "-v", "-m", make_model(), "--device", "cpu"]
    command = [sys.executable, "-m", "detcli"] + list(map(str, words))
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = f"{onnxruntime.__version__} of the package {onnxruntime.package_name}"
    assert f"detcli: ONNX Runtime {loaded}\n" in process.stderr
