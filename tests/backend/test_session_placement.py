"""Where nodes run, reported by a double and by ONNX Runtime itself."""

import logging
from types import SimpleNamespace

import onnxruntime
import pytest

from detcli.backend.session import RECORD_PLACEMENT, check_placement
from detcli.core.errors import DeviceError

CUDA, TENSORRT, CPU = (f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "CPU"))


def node(operator, name="", domain=""):
    return SimpleNamespace(op_type=operator, name=name, domain=domain)


class Session:
    def __init__(self, *parts, providers=(TENSORRT, CUDA, CPU)):
        self.parts = parts
        self.providers = list(providers)

    def get_providers(self):
        return self.providers

    def get_provider_graph_assignment_info(self):
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes)
            for name, nodes in self.parts
        ]


@pytest.fixture
def info(caplog):
    caplog.set_level(logging.INFO, "detcli")
    return caplog


def test_nothing_is_logged_if_all_nodes_run_on_the_gpu(info):
    check_placement(Session((CUDA, [node("Conv")]), (CUDA, [node("Mul")])), [CUDA], "model")
    assert info.messages == []


def test_nodes_on_the_cpu_are_listed(info):
    shapes = [node("Shape", f"/{number}/Shape") for number in range(4)]
    parts = [(CUDA, [node("Conv")] * 7), (CPU, shapes[:3]), (CPU, [node("Odd", "", "my")])]
    check_placement(Session(*parts, (CPU, shapes[3:])), [CUDA], "model")
    (message,) = info.messages
    assert message == (
        "model: 5 of 12 nodes run on CPUExecutionProvider: 4 Shape, 1 my.Odd "
        "(such as /0/Shape, /1/Shape, /2/Shape)"
    )


def test_what_tensorrt_leaves_to_cuda_is_listed(info):
    parts = [(TENSORRT, [node("Conv")]), (CUDA, [node("Mod")])]
    check_placement(Session(*parts), [TENSORRT, CUDA], "model")
    assert info.messages == ["model: 1 of 2 nodes run on CUDAExecutionProvider: 1 Mod"]


@pytest.mark.parametrize("provider", [CUDA, CPU])
def test_a_wanted_provider_without_a_node_is_refused(provider):
    with pytest.raises(DeviceError, match="TensorrtExecutionProvider runs none of the 1 nodes"):
        check_placement(Session((provider, [node("Conv")])), [TENSORRT, CUDA], "model")


@pytest.mark.parametrize("providers", [[CPU], [CUDA, CPU], [TENSORRT, CPU]])
def test_a_provider_that_did_not_load_is_refused(providers):
    session = Session((providers[0], [node("Conv")]), providers=providers)
    with pytest.raises(DeviceError, match=f"chose {providers[0]} instead of"):
        check_placement(session, [TENSORRT, CUDA], "model")


def test_an_older_onnxruntime_is_trusted(info):
    session = SimpleNamespace(get_providers=lambda: [CUDA, CPU])
    check_placement(session, [CUDA], "model")
    assert "from version 1.24 on" in info.text


@pytest.mark.skipif(
    not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
    reason="ONNX Runtime reports where nodes run from version 1.24 on",
)
def test_a_real_session(make_model, info):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    session = onnxruntime.InferenceSession(make_model(), options, providers=[CPU])
    check_placement(session, [CPU], "model")
    assert info.messages == []
    session.get_providers = lambda: [CUDA, CPU]
    with pytest.raises(DeviceError, match="runs none"):
        check_placement(session, [CUDA], "model")
