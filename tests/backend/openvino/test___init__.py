"""OpenvinoBackend: runs in flight, and what they share."""

import numpy as np
import pytest
from colour_model import NAMES, cell_box, picture

from detcli import Letterbox
from detcli.backend import open_backend
from detcli.backend.postprocess import SelectionOptions
from detcli.core.device import DeviceOptions
from detcli.core.errors import InferenceError
from detcli.core.timing import Stage
from detcli.model.file import prepare

PLACED = [Letterbox.fit((64, 64), (64, 64))]
WANTED = SelectionOptions(confidence=0.6, max_det=300, class_ids=None, nms_iou=None)


@pytest.fixture
def backend(make_model):
    backend = open_backend("openvino", prepare(make_model()), DeviceOptions(workers=2))
    yield backend
    backend.close()


def start(backend, *squares):
    buffer = backend.infer(backend.prepare([picture(*squares)], PLACED))
    return backend.select(buffer, PLACED, WANTED)


@pytest.mark.parametrize("order", [1, -1])
def test_batches_in_flight_share_nothing(order, backend):
    """Far more than there are streams, waited for in any order, some of them twice."""
    cells = [(column, row) for row in range(8) for column in range(8)]
    for _ in range(2):
        pending = [start(backend, (NAMES[sum(cell) % 3], *cell)) for cell in cells]
        for cell, wait in [*zip(cells, pending, strict=True)][::order]:
            for _ in range(2):
                (found,) = wait()
                assert found.xyxy.tolist() == [cell_box(*cell)]
                assert found.class_name == [NAMES[sum(cell) % 3]]
    assert len(backend.idle) == len(cells)


def test_what_was_read_stays_when_a_request_runs_again(backend):
    wait = start(backend, ("red", 1, 1))
    (kept,) = wait()
    start(backend, ("blue", 5, 5))()
    assert len(backend.idle) == 1  # the same request ran both
    assert kept.xyxy.tolist() == [cell_box(1, 1)]
    assert wait()[0] is kept


def test_the_input_is_not_copied(backend):
    tensor = backend.prepare([picture(("red", 1, 1))], PLACED)
    ((request, part),) = backend.infer(tensor)
    request.wait()
    assert request.get_input_tensor().data.ctypes.data == tensor.ctypes.data == part.ctypes.data


def test_one_more_batch_than_streams_is_in_flight(backend):
    assert backend.workers == 1
    requests = backend._network.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")  # noqa: SLF001
    assert backend.in_flight == requests + 1


def test_an_observer_waits_for_each_stage(backend):
    ended = []
    backend.observe(ended.append)
    wait = start(backend, ("red", 1, 1))
    assert ended == [Stage.PREPROCESS, Stage.NETWORK, Stage.SELECTION]
    assert len(backend.idle) == 1
    backend.observe(None)
    assert len(wait()[0]) == 1
    start(backend, ("red", 1, 1))()
    assert len(ended) == 3


def test_a_closed_backend_runs_nothing_but_keeps_what_was_started(make_model):
    backend = open_backend("openvino", prepare(make_model()))
    wait = start(backend, ("red", 1, 1))
    tensor = backend.prepare([picture()], PLACED)
    backend.close()
    backend.close()
    with pytest.raises(InferenceError, match="has been closed"):
        backend.infer(tensor)
    assert len(wait()[0]) == 1


def test_a_failed_run_is_an_inference_error(backend):
    class Request:
        def wait(self):
            raise RuntimeError("Exception from src/a.cpp:1:\nthe device is gone\n")

    runs = backend.infer(backend.prepare([picture()], PLACED))
    runs[0][0].wait()
    runs[0] = (Request(), np.zeros((1, 3, 64, 64)))
    with pytest.raises(InferenceError, match=r"shape \[1, 3, 64, 64\]: the device is gone"):
        backend.select(runs, PLACED, WANTED)()
