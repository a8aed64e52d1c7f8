"""Memory of images: whose it is, when it comes back, how much there is; and slots in turn."""

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import optional
import pytest

from detcli.backend.cuda import memory as module
from detcli.backend.cuda.memory import SHARE, ImageMemory, Ring, is_page_locked

optional.require("cuda.core")

OUT_OF_MEMORY = 2
SIZE = (40, 60)
LOCKED = 8192  # bytes that are locked for such an image, which has 7200


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def memory(fake_gpu):
    memory = ImageMemory(fake_gpu, limit=4 * LOCKED)
    yield memory
    memory.close()


def allocate_images(memory, count):
    """Allocate as many images of SIZE."""
    return [memory.allocate(SIZE) for _ in range(count)]


def are_page_locked(images):
    """Of each image, whether it is in page-locked memory."""
    return [is_page_locked(image) for image in images]


def test_memory_is_used_again_when_the_last_view_is_gone(memory, driver):
    image = memory.allocate(SIZE)
    assert image.shape == (40, 60, 3)
    assert image.dtype == np.uint8
    assert image.strides == (180, 3, 1)
    image[:] = 1
    assert driver.held == 1
    first = address(image)
    view = image[3:5, ::2].T
    del image
    second = memory.allocate(SIZE)
    assert address(second) != first
    del view
    assert address(memory.allocate((40, 59))) == first  # of about the same size
    assert driver.held == 2


def test_images_beyond_the_limit_are_in_ordinary_memory(memory, driver):
    images = allocate_images(memory, 6)
    assert are_page_locked(images) == [True, True, True, True, False, False]
    assert np.shape(images) == (6, 40, 60, 3)
    assert driver.held == 4
    del images[0]
    assert is_page_locked(memory.allocate(SIZE))
    assert not is_page_locked(memory.allocate((400, 600)))


def test_memory_of_other_sizes_makes_room(memory, driver):
    images = allocate_images(memory, 4)
    assert not is_page_locked(memory.allocate((40, 80)))
    del images[:2]
    assert is_page_locked(memory.allocate((40, 80)))  # 12288 bytes
    assert driver.held == 3
    assert not is_page_locked(memory.allocate((400, 600)))  # for which nothing is freed
    assert driver.held == 3


def test_larger_memory_that_is_idle_is_used_before_any_is_freed(memory, driver):
    images = [memory.allocate((40, 80)), memory.allocate(SIZE)]
    images.clear()
    first = memory.allocate(SIZE)
    second = memory.allocate((40, 50))
    assert driver.held == 2
    assert is_page_locked(first)
    assert is_page_locked(second)


@pytest.mark.parametrize(("max_images", "total"), [(8, 1000), (1000, 8 * SHARE)])
def test_the_limit_follows_the_batches(max_images, total, fake_gpu, driver, monkeypatch):
    monkeypatch.setattr(module, "MAX_LIMIT", max_images * LOCKED)
    machine = SimpleNamespace(total=total * LOCKED)
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: machine)
    memory = ImageMemory(fake_gpu, limit=4 * LOCKED)
    memory.follow(LOCKED)
    images = allocate_images(memory, 7)
    assert are_page_locked(images) == [True, True, True, True, True, True, False]
    memory.follow(100 * LOCKED)  # as far as the system is spared
    images += allocate_images(memory, 3)
    assert driver.held == 8
    images.clear()
    memory.close()


def test_nothing_more_is_locked_once_the_system_refuses(memory, driver):
    images = [memory.allocate(SIZE)]
    driver.fail("cuMemAllocHost", OUT_OF_MEMORY)
    assert not is_page_locked(memory.allocate(SIZE))
    driver.fail("", 0)
    driver.record()
    assert not is_page_locked(memory.allocate(SIZE))
    assert "cuMemAllocHost" not in driver.calls
    images.clear()
    assert is_page_locked(memory.allocate(SIZE))


def test_images_outlive_their_owner_and_the_gpu(fake_gpu, driver):
    memory = ImageMemory(fake_gpu)
    images = [memory.allocate(SIZE), memory.allocate(SIZE)]
    idle = memory.allocate(SIZE)
    del idle
    memory.close()
    assert driver.held == 2
    assert not is_page_locked(memory.allocate(SIZE))
    fake_gpu.close()
    images[0][:] = 7
    thread = threading.Thread(target=images.clear)  # on which no device is current
    thread.start()
    thread.join()
    assert driver.held == 0


def test_threads_never_share_an_image(memory):
    def fill(number):
        for _ in range(50):
            image = memory.allocate((40, 50 + number % 3))
            image[:] = number
            if not (image == number).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fill, range(16)))


def test_memory_may_come_back_at_any_time(memory):
    """The garbage collector runs whenever Python allocates, within a call of ours too."""

    class Cycle:
        def __init__(self, image):
            self.image = image
            self.itself = self

    gc.disable()
    try:
        for _ in range(4):
            Cycle(memory.allocate(SIZE))
        pin = memory._gpu.pin  # noqa: SLF001

        def collect_and_pin(size):
            gc.collect()
            return pin(size)

        memory._gpu.pin = collect_and_pin  # noqa: SLF001
        memory._limit *= 2  # noqa: SLF001
        memory.allocate((40, 80))
    finally:
        gc.enable()
        del memory._gpu.pin  # noqa: SLF001
    assert is_page_locked(memory.allocate(SIZE))


def test_only_arrays_that_were_lent_count_as_page_locked(memory):
    image = memory.allocate(SIZE)
    for array in (image, image[3:7], image[:, :, :], image[5:6, 2:9]):
        assert is_page_locked(array)
    ordinary = np.zeros((4, 4, 3), np.uint8)
    for array in (
        ordinary,
        ordinary[1:],
        image.copy(),
        image[::2],
        image[:, 5:20],
        image[..., ::-1],
    ):
        assert not is_page_locked(array)


def enqueue(gpu, slot, value):
    """Let the GPU copy a value from one part of the slot to another."""
    staging = slot.pinned("staging", 1)
    result = slot.pinned("result", 1)
    staging.array[0] = value
    with slot.marked():
        gpu.copy(result.address, staging.address, 1)
    return result.array


@pytest.mark.parametrize(("size", "fails"), [(1, True), (2, False), (3, True)])
def test_a_slots_work_is_done_before_it_is_handed_out_again(fake_gpu, driver, size, fails):
    """Also if nobody reads its rows, or the block that enqueued the work failed."""
    ring = Ring(fake_gpu, size)
    for value in range(1, 3 * size + 1):
        slot = ring.take()
        if value > size:
            assert slot.pinned("result", 1).array[0] == value - size
            assert driver.waiting == size - 1
        with contextlib.suppress(KeyError), slot.marked():
            enqueue(fake_gpu, slot, value)
            if fails:
                raise KeyError
    assert driver.waiting == size
    fake_gpu.synchronize()
    ring.close()
    assert driver.held == 0
