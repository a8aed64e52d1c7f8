# mypy: disable-error-code=arg-type
"""The letterbox kernel against `backend.preprocess`, bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcli.backend.cuda.letterbox import ALIGNMENT, LetterboxBatch
from detcli.backend.cuda.memory import ImageMemory
from detcli.backend.preprocess import DEFAULT, fit_letterbox, letterbox_image, to_tensor
from detcli.data.geometry import Letterbox
from detcli.model.contract import FOLLOWING, Interpolation, Preprocessing, Resize

DTYPES = [np.dtype(np.float32), np.dtype(np.float16)]

# Heights and widths of images and canvases: up and down in scale, kept, halved, in strips.
CASES = [
    ((480, 640), (64, 64)),
    ((1080, 1920), (96, 160)),
    ((33, 31), (64, 64)),
    ((20, 15), (96, 64)),
    ((64, 64), (64, 64)),
    ((64, 40), (64, 64)),
    ((128, 128), (64, 64)),
    ((128, 96), (64, 96)),
    ((1, 1), (32, 32)),
    ((1, 2), (32, 64)),
    ((2, 1), (64, 32)),
    ((1, 5000), (32, 64)),
    ((5000, 1), (64, 32)),
    ((3, 7), (1, 1)),
    ((50, 70), (7, 5)),
    ((50, 70), (9, 33)),
    ((7, 3), (63, 31)),
]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


def noise(random, size):
    """An image of this height and width."""
    height, width = size
    return random.integers(0, 256, (height, width, 3), np.uint8)


def images_of_noise(random, sizes):
    return [noise(random, size) for size in sizes]


def letterboxes_of(images, canvas, preprocessing=DEFAULT):
    """How each image is fitted into the canvas."""
    return [fit_letterbox(image.shape[:2], canvas, preprocessing) for image in images]


def expected(images, letterboxes, dtype, preprocessing=DEFAULT):
    height, width = letterboxes[0].canvas
    tensor = np.empty((len(images), 3, height, width), dtype)
    for image, letterbox, out in zip(images, letterboxes, tensor, strict=True):
        to_tensor(letterbox_image(image, letterbox, preprocessing), out, preprocessing)
    return tensor


def letterbox(gpu, images, letterboxes, dtype, preprocessing=DEFAULT):
    """The tensor that the kernel makes."""
    batch = LetterboxBatch(images, letterboxes, dtype, preprocessing)
    size = math.prod(batch.shape) * dtype.itemsize
    staging = gpu.pin(batch.size)
    result = gpu.pin(size)
    device = gpu.allocate(batch.size)
    tensor = gpu.allocate(size)
    batch.upload(gpu, staging, device)
    batch.enqueue(gpu, device, tensor.address)
    gpu.copy(result.address, tensor.address, size)
    gpu.record().wait()
    answer = result.array.view(dtype).reshape(batch.shape).copy()
    for memory in (staging, result, device, tensor):
        memory.close()  # fails if a guard was overwritten
    return answer


def check(gpu, images, canvas, dtype, preprocessing=DEFAULT):
    letterboxes = letterboxes_of(images, canvas, preprocessing)
    tensor = letterbox(gpu, images, letterboxes, dtype, preprocessing)
    bits = np.dtype(f"u{dtype.itemsize}")
    expected_tensor = expected(images, letterboxes, dtype, preprocessing)
    np.testing.assert_array_equal(tensor.view(bits), expected_tensor.view(bits))


def test_one_image(dtype, gpu, random):
    for size, canvas in CASES:
        check(gpu, [noise(random, size)], canvas, dtype)


@pytest.mark.slow
def test_a_batch_of_different_sizes(dtype, gpu, random):
    sizes = [(48, 64), (1, 1), (128, 128), (300, 17), (48, 64), (64, 48), (31, 200), (64, 64)]
    for canvas in [(64, 64), (40, 72), (384, 640)]:
        check(gpu, images_of_noise(random, sizes), canvas, dtype)


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize("interpolation", Interpolation)
def test_an_input_that_follows_the_image(interpolation, dtype, gpu, random):
    by_edge = Preprocessing(Resize.SHORTEST_EDGE, interpolation, **IMAGENET, edges=(40, 70))
    for preprocessing in (by_edge, Preprocessing(Resize.NONE, interpolation, scale=1)):
        for size in [(48, 64), (1, 1), (90, 30), (40, 55)]:
            check(gpu, [noise(random, size)], (64, 64), dtype, preprocessing)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=3),
    canvas=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    dtype=st.sampled_from(DTYPES),
    preprocessing=st.just(DEFAULT)
    | st.builds(
        Preprocessing,
        resize=st.sampled_from(sorted(set(Resize) - FOLLOWING)),
        interpolation=st.sampled_from(Interpolation),
        scale=st.sampled_from([1 / 255, 1.0, 1 / 127.5]),
        mean=st.tuples(st.floats(-130, 130), st.floats(-130, 130), st.floats(-130, 130)),
        std=st.tuples(st.floats(0.01, 130), st.floats(0.01, 130), st.floats(0.01, 130)),
        bgr=st.booleans(),
        pad=st.integers(0, 255),
        longest=st.none() | st.integers(1, 100),
        enlarge=st.none() | st.floats(1, 3),
    ),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_preprocessing(gpu, sizes, canvas, dtype, preprocessing, seed):
    random = np.random.default_rng(seed)
    check(gpu, images_of_noise(random, sizes), canvas, dtype, preprocessing)


def test_every_level(dtype, gpu):
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    check(gpu, [np.stack([levels, levels.T, 255 - levels], axis=-1)], (16, 16), dtype)


def test_images_that_are_views(dtype, gpu, random):
    for view in (
        np.s_[:, ::2],
        np.s_[::3],
        np.s_[5:90, 7:81],
        np.s_[::-1],
        np.s_[:, ::-1],
        np.s_[..., ::-1],
    ):
        check(gpu, [noise(random, (100, 100))[view]], (48, 64), dtype)


def test_the_images_may_change_as_soon_as_they_are_staged(fake_gpu, random):
    """Nothing has run yet when the caller has its image back."""
    image = noise(random, (30, 40))
    letterboxes = [Letterbox.fit((30, 40), (32, 32))]
    dtype = np.dtype(np.float32)
    expected_tensor = expected([image], letterboxes, dtype)
    batch = LetterboxBatch([image], letterboxes, dtype)
    staging = fake_gpu.pin(batch.size)
    device = fake_gpu.allocate(batch.size)
    tensor = fake_gpu.pin(expected_tensor.nbytes)
    batch.upload(fake_gpu, staging, device)
    batch.enqueue(fake_gpu, device, tensor.address)
    image[:] = 0
    fake_gpu.record().wait()
    np.testing.assert_array_equal(
        tensor.array.view(dtype).reshape(expected_tensor.shape), expected_tensor
    )


def test_one_upload_and_one_launch(random):
    """Whatever the batch; the addresses are aligned for the kernel's widest read."""

    class Recorder:
        def __init__(self):
            self.uploads = []
            self.launches = []

        def upload(self, copies):
            self.uploads.extend(copies)

        def launch(self, *arguments):
            self.launches.append(arguments)

    class Area:
        def __init__(self, address, size):
            self.address = address
            self.size = size
            self.array = np.zeros(size, np.uint8)

    images = images_of_noise(random, [(3, 5), (7, 1), (11, 13)])
    letterboxes = letterboxes_of(images, (40, 72))
    batch = LetterboxBatch(images, letterboxes, np.dtype(np.float16))
    gpu = Recorder()
    # The areas come from a slot that has held a larger batch.
    device = Area(1 << 40, 10**6)
    batch.upload(gpu, Area(4096, 10**6), device)
    batch.enqueue(gpu, device, 1 << 41)
    assert gpu.uploads == [(1 << 40, 4096, batch.size)]
    (launch,) = gpu.launches
    assert launch[:3] == ("letterbox_float16", (3, 5, 3), 256)
    addresses = launch[3:5]
    for address in addresses:
        assert 1 << 40 <= address < (1 << 40) + batch.size
        assert address % ALIGNMENT == 0
    assert launch[5:] == (1 << 41, 40, 72, 114, 0, 0)
    for number in launch[6:]:
        assert isinstance(number, np.uint32)


def test_images_in_page_locked_memory_are_uploaded_from_there(dtype, fake_gpu, random):
    """Among others, and views of such; the host copies only those that are not."""
    memory = ImageMemory(fake_gpu)

    def decoded(size):
        image = memory.allocate(size)
        image[:] = noise(random, size)
        return image

    images = [
        decoded((33, 31)),
        noise(random, (20, 15)),
        decoded((64, 40))[10:50],
        decoded((1, 2)),
        noise(random, (20, 15)),
        decoded((50, 70))[5:40, 3:9],
    ]
    check(fake_gpu, images, (48, 64), dtype)
    letterboxes = letterboxes_of(images, (48, 64))
    batch = LetterboxBatch(images, letterboxes, dtype)
    copies = [image.copy() for image in images]
    size_of_copies = LetterboxBatch(copies, letterboxes, dtype).size
    staged = fake_gpu.pin(batch.staged_size)  # not a byte more is written
    device = fake_gpu.allocate(batch.size)
    tensor = fake_gpu.allocate(10**6)
    upload = fake_gpu.upload
    uploads = []
    fake_gpu.upload = lambda copies: (uploads.extend(copies), upload(copies))
    batch.upload(fake_gpu, staged, device)
    batch.enqueue(fake_gpu, device, tensor.address)
    fake_gpu.synchronize()
    sources = [(source, size) for _, source, size in uploads]
    expected_sources = [(staged.address, batch.staged_size)]
    size_of_direct = 0
    for image in (images[0], images[2], images[3]):
        expected_sources.append((image.ctypes.data, image.nbytes))
        size_of_direct += math.ceil(image.nbytes / ALIGNMENT) * ALIGNMENT
    assert sources == expected_sources
    assert batch.size == size_of_copies
    assert batch.size - batch.staged_size == size_of_direct
    del fake_gpu.upload, images, image, batch
    memory.close()


def test_images_of_one_size_share_their_tables(random):
    """A video's frames take hardly more room than their pixels."""
    images = images_of_noise(random, [(16, 16)] * 4)
    letterboxes = letterboxes_of(images, (640, 640))
    sizes = []
    for count in (1, 2, 3, 4):
        batch = LetterboxBatch(images[:count], letterboxes[:count], np.dtype(np.float32))
        sizes.append(batch.size)
    descriptor = 48
    assert set(np.diff(sizes)) == {images[0].nbytes + descriptor}
