"""Which nodes OpenVINO takes."""

from detcli.backend import openvino as module
from detcli.backend import survey
from detcli.backend.openvino import place
from detcli.core.errors import DeviceError


def test_a_graph_is_taken_as_a_whole(make_model):
    graph = make_model().read_bytes()
    found = place(graph, "m")
    assert (found.provider, found.usable, found.left) == ("OpenVINO", True, ())
    assert found.taken["AvgPool"] == 1
    assert "Constant" not in found.taken
    *_, openvino, cpu = survey(graph, "m")
    assert openvino == found
    assert cpu.provider == "CPUExecutionProvider"


def test_a_graph_that_it_cannot_read(make_model):
    found = place(make_model().read_bytes().replace(b"AveragePool", b"AverageFool"), "m")
    assert not found.usable
    assert found.reason.startswith("OpenVINO cannot load m: ")
    assert "AverageFool" in found.reason


def test_a_device_that_cannot_be_used(make_model, monkeypatch):
    def fail(_):
        raise DeviceError("no plug-in", "install it")

    monkeypatch.setattr(module, "open_core", fail)
    found = place(make_model().read_bytes(), "m")
    assert (found.usable, found.reason, found.hint) == (False, "no plug-in", "install it")


def test_without_openvino_only_onnx_runtime_is_asked(make_model, monkeypatch):
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    found = survey(make_model().read_bytes(), "m")
    assert all(one.provider.endswith("ExecutionProvider") for one in found)
