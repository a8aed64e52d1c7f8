"""Which graphs OpenVINO can run, and with which of its operators."""

from unittest import mock

import optional

from detcli.backend import survey
from detcli.backend.openvino import placement as placement_module
from detcli.backend.openvino import placement_of
from detcli.core.errors import DeviceError

pytestmark = optional.needs("openvino")


def test_a_graph_is_taken_as_a_whole(make_model, monkeypatch):
    graph = make_model().read_bytes()
    placement = placement_of(graph, "m")
    assert placement.provider == "OpenVINO"
    assert placement.usable is True
    assert placement.left == ()
    assert placement.taken["AvgPool"] == 1
    assert "Constant" not in placement.taken
    *_, openvino_placement, cpu = survey(graph, "m")
    assert openvino_placement == placement
    assert cpu.provider == "CPUExecutionProvider"
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    assert all(
        provider_placement.provider.endswith("ExecutionProvider")
        for provider_placement in survey(graph, "m")
    )


def test_a_graph_that_it_cannot_read(make_model):
    placement = placement_of(make_model().read_bytes().replace(b"AveragePool", b"AverageFool"), "m")
    assert not placement.usable
    assert placement.reason.startswith("OpenVINO cannot load m: ")
    assert "AverageFool" in placement.reason


def test_a_device_that_cannot_be_used(make_model, monkeypatch):
    refuse = mock.Mock(side_effect=DeviceError("no plug-in", "install it"))
    monkeypatch.setattr(placement_module, "open_core", refuse)
    placement = placement_of(make_model().read_bytes(), "m")
    assert placement.usable is False
    assert placement.reason == "no plug-in"
    assert placement.hint == "install it"
