"""The CUDA backend: batches in flight, memory, errors; see also test_conformance.py."""

import ctypes
import itertools
from dataclasses import replace

import cv2
import numpy as np
import optional
import pytest
from backend.cuda.doubles import (
    EVERYTHING,
    PLACED,
    StreamSession,
    detected,
    detected_in_each,
    enqueue,
    enqueue_all,
    noise,
    noise_batches,
    on_cpu,
    rows,
    rows_of_all,
    skip_without_network_on_gpu,
)

from detcli import DetcliWarning
from detcli.backend import DeviceOptions, open_backend
from detcli.backend.cuda import backend as module
from detcli.backend.cuda.memory import Ring
from detcli.backend.cuda.topk import top_k
from detcli.backend.postprocess import SelectionOptions
from detcli.core.errors import InferenceError
from detcli.model.contract import Layout
from detcli.model.prepared import StoredGraph, prepare

optional.require("cuda.core")

from detcli.backend.cuda.driver import Gpu

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [
        {"tail": "transposed", "batch": 1, "dtype": np.float16},
        {"tail": "body", "batch": 2, "dtype": np.float32},
        {"tail": "transposed", "batch": None, "dtype": np.float16},
    ],
)
def test_batches_in_flight_do_not_share_memory(opened_on_fake_driver, make_model, random, options):
    """Each batch is read only when the next one is enqueued, as a pipeline does."""
    model = make_model(**options)
    batches = [
        noise(random, 3, (64, 64)),
        noise(random, 1, (100, 50)),
        noise(random, 2, (31, 90)),
        noise(random, 4, (100, 50)),
        noise(random, 4, (100, 50)),
        noise(random, 1, (100, 50)),
    ]
    backend = opened_on_fake_driver(model)
    detections = []
    waiting = list
    for images in batches:
        waiting, before = enqueue(backend, images), waiting
        detections.append(rows(before()))
    detections.append(rows(waiting()))
    assert detections[1:] == on_cpu(model, batches)


COMPUTE, UPLOADS = 0, 1  # the streams of a Gpu, in the order in which it makes them


@pytest.mark.parametrize("early", [[COMPUTE], [UPLOADS]])
def test_one_stream_may_run_ahead_of_the_other(
    opened_on_fake_driver, early, driver, make_model, random
):
    """As far as events allow; in the test above, neither does."""
    model = make_model(batch=None)
    batches = noise_batches(random, (1, 3, 2, 3, 1, 3, 3, 1), (50, 60))
    driver.start(early=early)
    backend = opened_on_fake_driver(model)
    assert backend.in_flight == 3
    pending = enqueue_all(backend, batches)
    assert rows_of_all(pending) == on_cpu(model, batches)


def test_images_are_uploaded_while_the_network_runs_on_the_batch_before(
    opened_on_fake_driver, driver, make_model, random
):
    driver.start(early=[UPLOADS])
    backend = opened_on_fake_driver(make_model(), NotingSession)
    runs = []
    backend._network._session.runs = runs  # noqa: SLF001
    images = noise(random, 1)
    for _ in range(backend.in_flight):  # from here on, nothing is allocated
        enqueue(backend, images)()
    runs.clear()
    backend.infer(backend.prepare(images, PLACED))
    images = noise(random, 1)
    batch = backend.prepare(images, PLACED)
    uploaded = batch.slot.device("images", 1)
    content = ctypes.string_at(uploaded.address, uploaded.size)
    assert images[0].tobytes() in content
    assert runs == []
    backend.close()
    assert runs == [1]


@pytest.mark.parametrize("early", [[], [COMPUTE], [UPLOADS]])
def test_decoded_images_are_kept_until_they_are_uploaded(
    opened_on_fake_driver, early, driver, make_model, random
):
    """Their owner drops them at once, and the next are decoded into any memory that is free."""
    model = make_model(batch=None)
    batches = noise_batches(random, [3] * 8, (50, 60))
    driver.start(early=early)
    backend = opened_on_fake_driver(model)
    pending = []
    addresses = set()
    for images in batches:
        decoded = []
        for image in images:
            decoded.append(backend.allocate((50, 60)))
            decoded[-1][:] = image
            addresses.add(decoded[-1].ctypes.data)
        pending.append(enqueue(backend, decoded))
        del decoded
        if len(pending) >= backend.in_flight:
            pending[-backend.in_flight]()  # the device is done with these images
    assert len(addresses) == 3 * backend.in_flight
    assert rows_of_all(pending) == on_cpu(model, batches)
    backend.close()
    assert driver.held == 0


@pytest.mark.parametrize("layout", [{}, {"anchor_count": 16}, {"anchor_count": None}])
@pytest.mark.parametrize("batch", [1, 2, None])
def test_rows_can_be_read_in_any_order_and_twice(
    layout, batch, opened_on_fake_driver, make_model, random
):
    """Those of graphs that select, too: as many as the contract says, or as only a run tells."""
    file = make_model(tail="authors" if layout else "body", batch=batch)
    model = prepare(file)
    if layout:
        contract = replace(model.contract, layout=Layout.ROWS, **layout)
        model = replace(model, contract=contract, stored_graph=StoredGraph.of(file.read_bytes()))
    batches = noise_batches(random, (3, 1, 2, 1, 1, 2, 3))
    expected = on_cpu(model, batches)
    backend = opened_on_fake_driver(model)
    pending = enqueue_all(backend, batches)
    for index in (6, 0, 3, 3, 1, 5, 2, 4):
        assert rows(pending[index]()) == expected[index]


def test_a_batch_can_be_selected_from_twice(opened_on_fake_driver, make_model, random):
    backend = opened_on_fake_driver(make_model())
    head = backend.infer(backend.prepare(noise(random, 1), PLACED))
    pending = []
    for max_det in (20, 3, 100):
        options = SelectionOptions(-1, max_det, None, None)
        pending.append(backend.select(head, PLACED, options))
    assert [len(wait()[0]) for wait in pending] == [20, 3, 100]


class NotingSession(StreamSession):
    """Notes each run in `runs` when it begins."""

    def run_with_iobinding(self, binding, options):
        self._driver.enqueue(lambda: self.runs.append(1), self._gpu.stream)
        super().run_with_iobinding(binding, options)


class GraphSession(StreamSession):
    """Replays a graph where it was captured, whatever is bound later, as CUDA graphs do."""

    def __init__(self, session, driver, gpu):
        super().__init__(session, driver, gpu)
        self.captured = {}

    def run_with_iobinding(self, binding, options):
        graph = options.get_run_config_entry("gpu_graph_id")
        if graph != "-1":
            binding = self.captured.setdefault(graph, binding)
        super().run_with_iobinding(binding, options)


class OneSharedBuffer(Ring):
    """A ring that hands out the same memory again and again, and waits for nothing."""

    def take(self):
        slot = self._slots[0]
        slot.unread.clear()
        return slot


def test_a_frame_is_not_overwritten_by_the_next_replay(
    opened_on_fake_driver, driver, make_model, random, monkeypatch
):
    """Frame t is read after frame t + 1 has run; with one shared buffer it is frame t + 1's."""
    model = make_model()
    frames = noise_batches(random, [1] * 4)
    expected = on_cpu(model, frames)

    def read_one_late():
        driver.start(late=False)
        backend = opened_on_fake_driver(model, GraphSession, uses_graph=True)
        pending = enqueue_all(backend, frames)
        return rows_of_all(pending)

    assert read_one_late() == expected
    monkeypatch.setattr(module, "Ring", OneSharedBuffer)
    assert read_one_late() == [expected[-1]] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [True, False])
def test_no_frame_is_overwritten_on_a_gpu(make_model, random, cuda_graph):
    """The real thing: each frame is read after later ones have been replayed."""
    skip_without_network_on_gpu()
    options = DeviceOptions(cuda_graph=cuda_graph)
    backend = open_backend("cuda:0", prepare(make_model()), options)
    frames = noise_batches(random, [1] * 6)
    at_once = detected_in_each(backend, frames)
    pending = enqueue_all(backend, frames)
    assert rows_of_all(pending) == at_once
    for rows_of_frame, rows_of_later_frame in itertools.combinations(at_once, 2):
        assert rows_of_frame != rows_of_later_frame
    backend.close()


def test_a_batch_is_selected_from_before_the_network_runs_on_the_next(
    opened_on_fake_driver, make_model, random
):
    """All batches share the network's output, so that of the first is gone then."""
    model = make_model()
    first_images, second_images = noise(random, 1), noise(random, 1)
    first_rows, second_rows = on_cpu(model, [first_images, second_images])
    assert first_rows != second_rows
    backend = opened_on_fake_driver(model)
    # Both are uploaded before the network runs on either.
    first = backend.prepare(first_images, PLACED)
    second = backend.prepare(second_images, PLACED)
    first = backend.infer(first)
    wait_for_first = backend.select(first, PLACED, EVERYTHING)
    second = backend.infer(second)
    wait_for_second = backend.select(second, PLACED, EVERYTHING)
    assert rows(wait_for_first()) == first_rows
    assert rows(wait_for_second()) == second_rows
    with pytest.raises(InferenceError, match="has run on another since"):
        backend.select(first, PLACED, EVERYTHING)
    # What is refused would give the boxes of the second batch.
    unrefused = replace(first, inference=second.inference)
    assert rows(backend.select(unrefused, PLACED, EVERYTHING)()) == second_rows


def test_batches_in_flight_share_the_networks_input_and_output(
    opened_on_fake_driver, make_model, random, monkeypatch
):
    backend = opened_on_fake_driver(make_model())
    sizes = []
    allocate = backend._gpu.allocate  # noqa: SLF001 - what is counted
    monkeypatch.setattr(
        backend._gpu,  # noqa: SLF001
        "allocate",
        lambda size: sizes.append(size) or allocate(size),
    )
    for wait in enqueue_all(backend, noise_batches(random, [1] * 2 * backend.in_flight)):
        wait()
    input_bytes = 3 * 64 * 64 * np.dtype(backend._network.input_dtype).itemsize  # noqa: SLF001
    head_shape = backend._network.output_shape((1, 3, 64, 64))  # noqa: SLF001
    head_bytes = int(np.prod(head_shape)) * backend._network.output_dtype.itemsize  # noqa: SLF001
    assert sizes.count(input_bytes) == 1
    assert sizes.count(head_bytes) == 1


def test_a_larger_batch_leaves_those_in_flight_as_they_are(
    opened_on_fake_driver, make_model, random
):
    """It needs a larger input and output, which replace those that the stream has yet to use."""
    model = make_model(batch=None)
    batches = noise_batches(random, (1, 5, 1, 40, 3))
    backend = opened_on_fake_driver(model)
    pending = enqueue_all(backend, batches)
    assert rows_of_all(pending) == on_cpu(model, batches)


def test_a_batch_whose_slot_was_reused_is_refused(opened_on_fake_driver, make_model, random):
    backend = opened_on_fake_driver(make_model())
    images = noise(random, 1)
    first = backend.prepare(images, PLACED)
    second = backend.prepare(images, PLACED)
    backend.prepare(images, PLACED)
    backend.prepare(images, PLACED)  # in the slot of the first
    with pytest.raises(InferenceError, match="given to a later one"):
        backend.infer(first)
    head = backend.infer(second)
    backend.prepare(images, PLACED)
    with pytest.raises(InferenceError, match="given to a later one"):
        backend.select(head, PLACED, EVERYTHING)


def test_the_device_is_made_current_before_the_network_runs(
    opened_on_fake_driver, driver, make_model, random, monkeypatch
):
    """Another detector's may be current in this thread."""
    backend = opened_on_fake_driver(make_model())
    buffer = backend.prepare(noise(random, 1), PLACED)
    backend.infer(buffer)  # from here on, nothing is allocated
    other_gpu = Gpu(1)
    currents = []
    run = backend._network.run  # noqa: SLF001
    driver.record()

    def note_and_run(images_address, output_address, shape):
        currents.extend(driver.calls_of("cuCtxSetCurrent")[-1:])
        run(images_address, output_address, shape)

    monkeypatch.setattr(backend._network, "run", note_and_run)  # noqa: SLF001
    backend.infer(buffer)
    assert currents == ["cuCtxSetCurrent 0"]
    other_gpu.close()


def test_nan_is_counted_and_left_out(opened_on_fake_driver, driver, make_model, random):
    backend = opened_on_fake_driver(make_model())
    images = noise(random, 2)
    buffer = backend.infer(backend.prepare(images, PLACED * 2))
    scores = buffer.output + (7 + 4) * 64 * 4  # of the second image: (4 + 3 rows, 64 anchors)
    nan = np.full(5, np.nan, np.float32)
    driver.enqueue(
        lambda: ctypes.memmove(scores, nan.ctypes.data, nan.nbytes),
        backend._gpu.stream,  # noqa: SLF001
    )
    pending = backend.select(buffer, PLACED * 2, EVERYTHING)
    with pytest.warns(DetcliWarning, match="5 of 192 scores are NaN"):
        detections = pending()
    assert not np.isnan(detections[1].score).any()


def test_closing_frees_all_memory(opened_on_fake_driver, driver, make_model, random):
    backend = opened_on_fake_driver(make_model(batch=None))
    images = noise(random, 3)
    options = SelectionOptions(0, 5, None, None)
    pending = []
    for count in (1, 2, 3):
        pending.append(enqueue(backend, images[:count], options))
    backend.close()
    backend.close()
    assert driver.held == 0
    assert [len(wait()) for wait in pending] == [1, 2, 3]  # copied before
    with pytest.raises(InferenceError, match="closed"):
        enqueue(backend, images)


def test_a_gpu_that_fails_on_close_is_still_released(
    opened_on_fake_driver, driver, make_model, random
):
    backend = opened_on_fake_driver(make_model())
    enqueue(backend, noise(random, 1))()
    driver.fail("cuCtxSynchronize", 700)
    with pytest.raises(InferenceError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        backend.close()
    driver.fail("", 0)
    Gpu(0).close()  # waits, so that what was enqueued to be freed is
    assert driver.held == 0
    assert backend._network._session is None  # noqa: SLF001


def test_few_workspaces_are_kept(opened_on_fake_driver, make_model, random, monkeypatch):
    monkeypatch.setattr(module, "MAX_SELECTIONS", 2)
    model = make_model(batch=None)
    backend = opened_on_fake_driver(model)
    batches = noise_batches(random, (1, 2, 3, 1, 2, 3))
    assert detected_in_each(backend, batches) == on_cpu(model, batches)
    assert len(backend._selections) == 2  # noqa: SLF001


def test_each_stage_is_reported_once_the_gpu_is_idle(
    opened_on_fake_driver, driver, make_model, random
):
    order = ["preprocess", "upload", "preprocess", "network", "selection", "download", "selection"]
    for batch in (None, 2):  # of 2, the second is padded
        backend = opened_on_fake_driver(make_model(batch=batch))
        images = noise(random, 3)
        stages = []
        expected = detected(backend, images)
        backend.observe(lambda part, stages=stages: stages.append((part, driver.waiting)))
        assert detected(backend, images) == expected
        assert stages == [(part, 0) for part in order]
        backend.observe(None)
        pending = enqueue(backend, images)
        assert driver.waiting > 0
        pending()
        assert len(stages) == len(order)


def test_every_kernel_is_launched(opened_on_fake_driver, driver, shim, make_model, random):
    """A kernel that nothing launches is dead code."""
    for dtype, nms_iou in itertools.product([np.float32, np.float16], [None, 0.5]):
        tail = "body" if nms_iou is None else "one-to-many"
        backend = opened_on_fake_driver(make_model(tail=tail, dtype=dtype))
        options = SelectionOptions(0.5, 300, None, nms_iou)
        enqueue(backend, noise(random, 1), options)()
        by_class = options.with_conf_thresholds(np.array([0.5, 0.6, 0.7], np.float32))
        enqueue(backend, noise(random, 1), by_class)()
        top_k(random.random(20_000).astype(dtype), 3, gpu=backend._gpu)  # noqa: SLF001
    assert driver.launched == shim.kernels


@pytest.mark.parametrize("name", ["yolov10n-raw.onnx", "yolov10n-raw-fp16.onnx"])
def test_real_images_give_the_cpus_boxes(opened_on_fake_driver, shared, name):
    model = shared(f"models/{name}")
    bus = cv2.imread(str(shared("data/images/bus.jpg")))
    zidane = cv2.imread(str(shared("data/images/zidane.jpg")))
    images = [bus, zidane]
    options = {"options": SelectionOptions(0.25, 300, None, None), "canvas": (640, 640)}
    backend = opened_on_fake_driver(model)
    assert detected(backend, images, **options) == on_cpu(model, [images], **options)[0]
