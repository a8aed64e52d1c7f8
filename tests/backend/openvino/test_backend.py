"""Batches in flight with OpenVINO."""

from unittest import mock

import numpy as np
import optional
import pytest
from colour_model import NAMES, cell_box, image, image_of

from detcli.backend import open_backend
from detcli.backend.postprocess import SelectionOptions
from detcli.config.device import DeviceOptions
from detcli.core.errors import InferenceError
from detcli.core.timing import Stage
from detcli.data.geometry import Letterbox
from detcli.model.prepared import prepare

pytestmark = optional.needs("openvino")


PLACED = [Letterbox.fit((64, 64), (64, 64))]

WANTED = SelectionOptions(conf=0.6, max_det=300, class_ids=None, nms_iou=None)


@pytest.fixture
def backend(make_model):
    backend = open_backend("openvino", prepare(make_model()), DeviceOptions(workers=2))
    yield backend
    backend.close()


def start(backend, square):
    """Enqueue an image with one square: its colour, column and row."""
    buffer = backend.infer(backend.prepare([image_of([square])], PLACED))
    return backend.select(buffer, PLACED, WANTED)


def test_batches_in_flight_share_nothing(backend):
    """Far more than there are streams, waited for in any order, some of them twice."""
    for order in (1, -1):
        pending = []
        for row in range(8):
            for column in range(8):
                square = (NAMES[(column + row) % 3], column, row)
                pending.append((square, start(backend, square)))
        for (colour, column, row), wait in pending[::order]:
            for _ in range(2):
                (detections,) = wait()
                assert detections.xyxy.tolist() == [cell_box(column, row)]
                assert detections.class_name.tolist() == [colour]
    assert len(backend.idle_requests) == 8 * 8


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
