"""Which nodes each provider runs, reported by doubles and by ONNX Runtime itself."""

from types import SimpleNamespace

import colour_model
import onnxruntime
import pytest

from detcli.backend import libraries as survey
from detcli.backend.libraries import LeftNode, Placement
from detcli.backend.session import refusal
from detcli.core.errors import DeviceError, ModelError

CUDA, TENSORRT, CPU = (f"{name}ExecutionProvider" for name in ("CUDA", "Tensorrt", "CPU"))

REPORTS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
reports_placement = pytest.mark.skipif(
    not REPORTS, reason="ONNX Runtime reports where nodes run from version 1.24 on"
)


def node(operator, name="", domain=""):
    return SimpleNamespace(op_type=operator, name=name, domain=domain)


@pytest.fixture
def runtime(monkeypatch):
    """A runtime with these providers and the nodes they run; None fails to load."""

    def fake(**parts):
        opened = []
        names = [f"{name}ExecutionProvider" for name in parts]
        placed = dict(zip(names, parts.values(), strict=True))
        double = SimpleNamespace(get_available_providers=lambda: names)
        monkeypatch.setattr(survey, "onnxruntime", double)

        def require(name):
            if placed[name] is None:
                raise DeviceError(f"{name} is missing", "install it")

        def open_session(_graph, providers, title):
            opened.append((providers, title))
            told = placed[providers[0][0]]
            if not isinstance(told, list):
                return SimpleNamespace()
            info = [
                SimpleNamespace(ep_name=name, get_nodes=lambda nodes=nodes: nodes)
                for name, nodes in told
            ]
            return SimpleNamespace(get_provider_graph_assignment_info=lambda: info)

        monkeypatch.setattr(survey, "require_provider", require)
        monkeypatch.setattr(survey, "open_session", open_session)
        return opened

    return fake


def test_nodes_taken_are_counted_and_nodes_left_are_named(runtime):
    runtime(
        CUDA=[
            (CUDA, [node("Conv")] * 3 + [node("Mul")]),
            (CPU, [node("Odd", "/odd", "my")]),
            (CUDA, [node("Mul")]),
        ]
    )
    assert survey.survey(b"", "model") == (
        Placement(
            CUDA, usable=True, taken={"Conv": 3, "Mul": 2}, left=(LeftNode("/odd", "my.Odd", CPU),)
        ),
    )


def test_a_provider_that_does_not_load_is_reported_and_not_opened(runtime):
    opened = runtime(Tensorrt=None, CUDA=None, CPU=[(CPU, [node("Conv")])])
    tensorrt, cuda, cpu = survey.survey(b"", "model")
    for placement, name in ((tensorrt, TENSORRT), (cuda, CUDA)):
        assert placement == Placement(
            name, usable=False, reason=f"{name} is missing", hint="install it"
        )
    assert cpu == Placement(CPU, usable=True, taken={"Conv": 1}, left=())
    assert [providers for providers, _ in opened] == [[(CPU, {})]]


def test_tensorrt_falls_back_to_cuda_and_builds_with_the_least_effort(runtime):
    opened = runtime(Tensorrt=[(TENSORRT, [node("Conv")]), (CUDA, [node("Mod")])])
    (placement,) = survey.survey(b"", "model")
    assert placement.left == (LeftNode("", "Mod", CUDA),)
    [(providers, title)] = opened
    assert (providers, title) == ([(TENSORRT, survey.LEAST_EFFORT), (CUDA, {})], "model")


def test_an_older_runtime_reports_no_nodes(runtime):
    runtime(CPU="nothing")
    assert survey.survey(b"", "model") == (Placement(CPU, usable=True),)


@reports_placement
def test_the_cpu_runs_all_of_a_real_graph():
    graph = colour_model.build("authors").SerializeToString()
    cpu = survey.survey(graph, "colours")[-1]
    assert (cpu.provider, cpu.usable, cpu.left) == (CPU, True, ())
    assert cpu.taken["TopK"] == 2


def test_every_provider_of_this_runtime_is_reported():
    placements = survey.survey(colour_model.build().SerializeToString(), "colours")
    assert [placement.provider for placement in placements] == onnxruntime.get_available_providers()
    for placement in placements:
        assert placement.usable == (not placement.reason)
        assert bool(placement.hint) == (not placement.usable)


def test_a_graph_that_the_runtime_refuses_is_refused_with_its_reason():
    model = colour_model.build()
    assert refusal(model.SerializeToString(), "colours") is None
    model.graph.node[0].op_type = "NoSuchOperator"
    error = refusal(model.SerializeToString(), "colours")
    assert isinstance(error, ModelError)
    assert "NoSuchOperator" in str(error)
    assert survey.survey(model.SerializeToString(), "colours")[-1] == Placement(
        CPU, usable=False, reason=str(error), hint=error.hint
    )
