"""Which graphs OpenVINO can run, and how many of their nodes."""

from collections import Counter
from unittest import mock

import onnx
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
    assert placement.taken["AveragePool"] == 1
    assert "Constant" not in placement.taken
    placements = survey(graph, "m")
    assert placements[-2] == placement
    assert placements[-1].provider == "CPUExecutionProvider"
    monkeypatch.setattr("detcli.backend.has_openvino", lambda: False)
    for provider_placement in survey(graph, "m"):
        assert provider_placement.provider.endswith("ExecutionProvider")


def test_the_nodes_are_those_of_the_file(make_model):
    """OpenVINO makes several of one node, such as four of a Conv with a bias."""
    graph = make_model().read_bytes()
    counts = Counter(node.op_type for node in onnx.load_from_string(graph).graph.node)
    del counts["Constant"]
    assert placement_of(graph, "m").taken == counts


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
