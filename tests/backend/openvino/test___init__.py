"""OpenVINO: runs in flight, the comparison with ONNX Runtime, and which nodes it takes."""

from unittest import mock

import convolution_model
import numpy as np
import onnx
import optional
import pytest
from colour_model import NAMES, cell_box, image

from detcli import DetcliWarning
from detcli.backend import open_backend, openvino, survey
from detcli.backend.openvino import placement as placement_module
from detcli.backend.openvino import placement_of
from detcli.backend.postprocess import SelectionOptions
from detcli.config.device import DeviceOptions
from detcli.core.errors import DeviceError, InferenceError, ModelError
from detcli.core.timing import Stage
from detcli.data.geometry import Letterbox
from detcli.model.file import prepare

pytestmark = optional.needs("openvino")

PLACED = [Letterbox.fit((64, 64), (64, 64))]
WANTED = SelectionOptions(conf=0.6, max_det=300, class_ids=None, nms_iou=None)


@pytest.fixture
def backend(make_model):
    backend = open_backend("openvino", prepare(make_model()), DeviceOptions(workers=2))
    yield backend
    backend.close()


def start(backend, *squares):
    buffer = backend.infer(backend.prepare([image(*squares)], PLACED))
    return backend.select(buffer, PLACED, WANTED)


def test_batches_in_flight_share_nothing(backend):
    """Far more than there are streams, waited for in any order, some of them twice."""
    cells = [(column, row) for row in range(8) for column in range(8)]
    for order in (1, -1):
        pending = [start(backend, (NAMES[sum(cell) % 3], *cell)) for cell in cells]
        for cell, wait in list(zip(cells, pending, strict=True))[::order]:
            for _ in range(2):
                (detections,) = wait()
                assert detections.xyxy.tolist() == [cell_box(*cell)]
                assert detections.class_name.tolist() == [NAMES[sum(cell) % 3]]
    assert len(backend.idle_requests) == len(cells)


def test_what_was_read_stays_when_a_request_runs_again(backend):
    wait = start(backend, ("red", 1, 1))
    (detections,) = wait()
    start(backend, ("blue", 5, 5))()
    assert len(backend.idle_requests) == 1  # the same request ran both
    assert detections.xyxy.tolist() == [cell_box(1, 1)]
    assert wait()[0] is detections


def test_the_input_is_not_copied(backend):
    tensor = backend.prepare([image(("red", 1, 1))], PLACED)
    ((request, part),) = backend.infer(tensor).runs
    request.wait()
    assert request.get_input_tensor().data.ctypes.data == tensor.ctypes.data == part.ctypes.data
    # One more batch than streams is in flight.
    assert backend.workers == 1
    requests = backend._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")  # noqa: SLF001
    assert backend.in_flight == requests + 1


def test_an_observer_waits_for_each_stage(backend):
    ended = []
    backend.observe(ended.append)
    wait = start(backend, ("red", 1, 1))
    assert ended == [Stage.PREPROCESS, Stage.NETWORK, Stage.SELECTION]
    assert len(backend.idle_requests) == 1
    backend.observe(None)
    assert len(wait()[0]) == 1
    start(backend, ("red", 1, 1))()
    assert len(ended) == 3


def test_a_closed_backend_runs_nothing_but_keeps_what_was_started(make_model):
    backend = open_backend("openvino", prepare(make_model()))
    wait = start(backend, ("red", 1, 1))
    tensor = backend.prepare([image()], PLACED)
    backend.close()
    backend.close()
    with pytest.raises(InferenceError, match="has been closed"):
        backend.infer(tensor)
    assert len(wait()[0]) == 1


def test_a_failed_run_is_an_inference_error(backend):
    failure = RuntimeError("Exception from src/a.cpp:1:\nthe device is gone\n")
    started = backend.infer(backend.prepare([image()], PLACED))
    started.runs[0][0].wait()
    started.runs[0] = (mock.Mock(**{"wait.side_effect": failure}), np.zeros((1, 3, 64, 64)))
    with pytest.raises(InferenceError, match=r"shape \[1, 3, 64, 64\]: the device is gone"):
        backend.select(started, PLACED, WANTED)()


# ---------------------------------------------------------------- compared once


@pytest.fixture
def mistranslated(tmp_path):
    """HardSigmoid with `beta = 0`, which OpenVINO 2026.4 takes for the default 0.5."""
    path = tmp_path / "hard.onnx"
    onnx.save_model(convolution_model.build(size=64), path)
    return prepare(path)


def test_a_wrong_translation_is_refused_at_every_start(mistranslated, cache):
    for _ in range(2):
        with pytest.raises(ModelError, match="something else from hard than ONNX Run") as caught:
            open_backend("openvino", mistranslated)
    assert "--device cpu" in caught.value.hint
    assert list(cache.rglob("*.openvino")) == []


def test_auto_does_not_take_it(mistranslated, monkeypatch):
    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 0)
    with pytest.warns(DetcliWarning, match="the CPU is used: OpenVINO computes something else"):
        assert open_backend("auto", mistranslated).device == "cpu"


def test_what_onnx_runtime_cannot_load_is_not_compared(make_model, monkeypatch):
    refuse = mock.Mock(side_effect=ModelError("the opset is too new"))
    monkeypatch.setattr("detcli.backend.session.TensorSession", refuse)
    open_backend("openvino", prepare(make_model())).close()


def test_a_start_from_the_cache_is_not_compared_again(make_model, monkeypatch, cache):
    model = prepare(make_model())
    comparisons = []
    monkeypatch.setattr(openvino, "require_same_head", lambda *_: comparisons.append(1))
    for _ in range(2):
        open_backend("openvino", model).close()
    assert comparisons == [1]
    assert len(list(cache.rglob("*.openvino"))) == 1


# ---------------------------------------------------------------- what it takes of a graph


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
