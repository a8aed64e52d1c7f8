"""A CudaBackend without a GPU: the tests' driver, and ONNX Runtime on the CPU for the network."""

import numpy as np
import onnxruntime
import pytest
from backend.cuda.libcuda import FakeDriver

from detcli.backend import DeviceOptions
from detcli.backend.cpu import CpuBackend
from detcli.backend.cuda.backend import CudaBackend
from detcli.backend.cuda.network import Network
from detcli.backend.libraries import CUDA, require_provider
from detcli.backend.nvidia import count_gpus
from detcli.backend.postprocess import SelectionOptions
from detcli.core.errors import DeviceError
from detcli.data.geometry import Letterbox
from detcli.model.prepared import PreparedModel, prepare


def skip_without_network_on_gpu() -> None:
    """Skip a test only where there is no GPU, or ONNX Runtime lacks CUDA."""
    if count_gpus() == 0:
        pytest.skip("no GPU")
    try:
        require_provider(CUDA)
    except DeviceError as error:
        pytest.skip(f"no network on the GPU: {error}")


class StreamSession:
    """A session whose runs on device memory wait for their turn on the stream."""

    def __init__(self, session, driver: FakeDriver, gpu) -> None:
        self._session = session
        self._driver = driver
        self._gpu = gpu

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options):
        failures = []

        def run():
            try:
                self._session.run_with_iobinding(binding, options)
            except Exception as error:  # noqa: BLE001 - an exception cannot pass through the driver
                failures.append(error)

        self._driver.enqueue(run, self._gpu.stream)
        try:
            options.get_run_config_entry("disable_synchronize_execution_providers")
        except RuntimeError:  # it has not been set
            self._gpu.synchronize()
        if failures:
            raise failures[0]


def open_on_host(
    driver: FakeDriver, model: PreparedModel, wrap=StreamSession, **options
) -> CudaBackend:
    """Open a model as `cuda.open_backend` does; `wrap` makes a double of the session."""
    from detcli.backend.cuda.driver import Gpu

    gpu = Gpu(0)
    session = onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"])
    network = Network(wrap(session, driver, gpu), model.contract, device=("cpu", 0), **options)
    return CudaBackend(gpu, network, model.contract, "host")


PLACED = [Letterbox.fit((64, 64), (64, 64))]
EVERYTHING = SelectionOptions(conf=-1, max_det=20, class_ids=None, nms_iou=None)


def noise(random, count, size=(64, 64)):
    """Images in which every cell scores differently."""
    height, width = size
    return list(random.integers(0, 256, (count, height, width, 3), np.uint8))


def noise_batches(random, counts, size=(64, 64)):
    """A batch of noise for each count of images."""
    return [noise(random, count, size) for count in counts]


def enqueue(backend, images, options=EVERYTHING, canvas=(64, 64)):
    """Enqueue all three stages; calling the result waits."""
    letterboxes = [Letterbox.fit(image.shape[:2], canvas) for image in images]
    buffer = backend.infer(backend.prepare(images, letterboxes))
    return backend.select(buffer, letterboxes, options)


def enqueue_all(backend, batches):
    """Enqueue every batch before any of them is waited for."""
    return [enqueue(backend, images) for images in batches]


def rows(detections):
    """Of each image: its boxes, their scores and their class ids, as lists."""
    rows_of_images = []
    for of_image in detections:
        boxes = of_image.xyxy.tolist()
        scores = of_image.score.tolist()
        class_ids = of_image.class_id.tolist()
        rows_of_images.append((boxes, scores, class_ids))
    return rows_of_images


def rows_of_all(pending):
    """Wait for each of the enqueued batches in turn, and give the rows of each."""
    return [rows(wait()) for wait in pending]


def detected(backend, images, options=EVERYTHING, canvas=(64, 64)):
    """The rows of one batch, waited for at once."""
    wait = enqueue(backend, images, options, canvas)
    return rows(wait())


def detected_in_each(backend, batches, **options):
    """The rows of each batch, where the next is enqueued once one has been waited for."""
    return [detected(backend, images, **options) for images in batches]


def on_cpu(model, batches, **options):
    """The rows that the CPU backend detects in each batch."""
    model = model if isinstance(model, PreparedModel) else prepare(model)
    backend = CpuBackend(model, DeviceOptions())
    return detected_in_each(backend, batches, **options)
