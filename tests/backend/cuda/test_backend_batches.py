"""The CUDA backend: how many images it runs at a time, and what it loads at the start."""

from dataclasses import replace

import onnxruntime
import optional
import pytest
from backend.cuda.doubles import (
    detected,
    detected_in_each,
    enqueue,
    noise,
    noise_batches,
    on_cpu,
)

from detcli import DetcliWarning, Settings
from detcli.backend import DeviceOptions, cuda
from detcli.backend.cuda import backend as module
from detcli.backend.cuda import network
from detcli.backend.postprocess import SelectionOptions
from detcli.core.errors import DeviceMemoryError
from detcli.model.contract import Layout
from detcli.model.prepared import prepare
from detcli.run.batches import BatchDetector

optional.require("cuda.core")

from detcli.backend.cuda import driver as driver_module
from detcli.backend.cuda.driver import Gpu, entry_points

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("batch", [None, 4])
def test_a_batch_that_does_not_fit_is_named(
    opened_on_fake_driver, driver, make_model, random, batch
):
    model = make_model(batch=batch)
    driver.start(capacity=100_000)
    backend = opened_on_fake_driver(model)
    runs = batch or 8  # as many at a time
    message = rf"{runs} images, shape \[{runs}, 3, 64, 64\]"
    with pytest.raises(DeviceMemoryError, match=message) as caught:
        enqueue(backend, noise(random, 4))
    assert caught.value.exit_code == 1
    assert ("a batch of 1" in caught.value.hint) == (batch is None)
    if batch is None:  # the smaller batch does fit
        images = noise(random, 1)
        assert detected(backend, images) == on_cpu(model, [images])[0]


def test_a_batch_of_many_runs_is_said_once(opened_on_fake_driver, make_model, random):
    """Their addresses are more than graphs are kept."""
    backend = opened_on_fake_driver(make_model())
    images = noise(random, 32)
    with pytest.warns(
        DetcliWarning, match=r"32 runs; `detcli convert MODEL --batch 32 -o NEW`"
    ) as warned:
        detections = detected_in_each(backend, [images, images])
    assert len(warned) == 1
    assert detections == on_cpu(make_model(), [images, images])
    detected(
        opened_on_fake_driver(make_model(batch=None)), noise(random, 352)
    )  # of any number, whose runs are 32


def test_a_network_runs_on_few_numbers_of_images(opened_on_fake_driver, make_model, random):
    """Each new one has all convolutions planned anew."""
    model = make_model(batch=None)
    batches = noise_batches(random, (32, 5, 32, 8, 1, 17, 2, 40))
    backend = opened_on_fake_driver(model)
    session = backend._network._session  # noqa: SLF001
    bound = []
    bind = session._session.io_binding  # noqa: SLF001

    def binding():
        io_binding = bind()
        bind_input = io_binding.bind_input
        io_binding.bind_input = lambda *arguments: (
            bound.append(arguments[4][0]) or bind_input(*arguments)
        )
        return io_binding

    session._session.io_binding = binding  # noqa: SLF001
    detections = detected_in_each(backend, batches)
    assert set(bound) == {1, 8, 32}
    assert detections == on_cpu(model, batches)


@pytest.mark.parametrize(
    ("multiprocessors", "gib", "canvas", "batch"),
    [
        (128, 8, (640, 640), 32),
        (127, 80, (640, 640), 16),
        (148, 7, (640, 640), 16),
        (64, 4, (640, 640), 16),
        (64, 3, (640, 640), 8),
        (63, 80, (640, 640), 8),
        (1, 0, (640, 640), 8),
        (128, 24, (640, 640), 32),
        (128, 24, (1280, 1280), 16),
    ],
)
def test_a_batch_follows_multiprocessors_and_memory(multiprocessors, gib, canvas, batch):
    assert module.largest_batch(multiprocessors, gib << 30, canvas) == batch


@pytest.mark.parametrize(
    ("options", "capacity", "limit", "imgsz", "batch"),
    [
        ({"batch": 2}, None, None, None, 2),
        ({"batch": None, "size": None}, None, None, 320, 16),
        ({"batch": None, "size": None}, None, None, 1280, 8),
        ({"batch": None, "size": None}, 900 << 20, None, 320, 8),
        ({"batch": None, "size": None}, None, 900 << 20, 320, 8),
    ],
)
def test_a_detectors_batch_suits_the_gpu_and_the_input(
    options, capacity, limit, imgsz, batch, driver, make_model, monkeypatch
):
    """The driver of the tests has 64 multiprocessors and 8 GiB."""
    driver.start(capacity=capacity)
    monkeypatch.setattr(cuda, "_require_runtime", lambda _: None)
    monkeypatch.setattr(
        network,
        "open_network",
        lambda model, *_: network.Network(
            onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"]),
            model.contract,
        ),
    )
    settings = Settings(imgsz=imgsz)
    limited = DeviceOptions(gpu_mem_limit=limit)
    with BatchDetector(make_model(**options), "cuda:0", settings, limited) as detector:
        assert detector.batch_size == batch
        assert detector.in_flight == 3


@pytest.mark.parametrize(
    ("batch", "imgsz", "rect", "limit", "images_per_run"),
    [
        (None, 320, False, None, 16),
        (None, 1280, True, None, 8),
        (None, 320, False, 900 << 20, 8),
        (1, 320, False, None, 1),
        (20, 320, False, None, 32),
    ],
)
def test_the_network_is_opened_for_the_batch_that_runs(
    batch, imgsz, rect, limit, images_per_run, driver, make_model, monkeypatch
):
    """The driver of the tests has 64 multiprocessors and 8 GiB, most of which is taken here."""
    driver.start(capacity=900 << 20)
    calls = []

    def open_double(model, device, stream, options, images_per_run):  # noqa: ARG001 - as is called
        calls.append((model, images_per_run))
        session = onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"])
        return network.Network(session, model.contract)

    monkeypatch.setattr(cuda, "_require_runtime", lambda _: None)
    monkeypatch.setattr(network, "open_network", open_double)
    file = make_model(batch=None, size=None)
    settings = Settings(imgsz=imgsz, rect=rect)
    options = DeviceOptions(gpu_mem_limit=limit)
    with BatchDetector(file, "cuda:0", settings, options, batch):
        ((model, images_of_network),) = calls
    assert images_of_network == images_per_run
    assert model.canvas == (imgsz, imgsz)
    assert model.narrows == rect


@pytest.mark.parametrize(
    ("nms", "files"),
    [(None, {"letterbox", "class_max", "select"}), (0.45, {"letterbox", "class_max", "nms"})],
)
def test_kernels_that_a_model_launches_are_loaded_at_the_start(
    nms, files, opened_on_fake_driver, driver, make_model, random
):
    model = prepare(make_model())
    model = replace(model, contract=replace(model.contract, nms=nms))
    options = SelectionOptions(conf=-1, max_det=20, class_ids=None, nms_iou=nms)
    detected(opened_on_fake_driver(model), noise(random, 1), options)
    launched_files = {entry_points()[kernel].stem for kernel in driver.launched}
    assert launched_files == files
    assert set(cuda.kernel_files(model.contract)) == files
    rows_of_graph = replace(model.contract, layout=Layout.ROWS, anchor_count=16)
    assert cuda.kernel_files(rows_of_graph) == ("letterbox",)


def test_kernels_of_other_files_are_not_compiled_at_the_start(driver, monkeypatch):
    driver.start()
    compiled = []
    compile_file = driver_module.compile_file

    def compile_and_note(path, architecture):
        compiled.append(path.stem)
        return compile_file(path, architecture)

    monkeypatch.setattr(driver_module, "compile_file", compile_and_note)
    gpu = Gpu(0)
    gpu.load_kernels(("letterbox", "select"))
    assert compiled == ["letterbox", "select"]
    gpu.kernel("rank_anchors")
    assert compiled == ["letterbox", "select", "nms"]
    gpu.close()
