"""top_k on the GPU against detcli.top_k."""

import itertools
import re

import numpy as np
import pytest
from backend.cuda.shim import kernel_sources
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from thinning import thin

import detcli
from detcli.backend.cuda.topk import (
    SHARED_LIST,
    DeviceArray,
    download,
    spill_capacity,
    top_k,
    upload,
)

pytestmark = pytest.mark.slow


def assert_same(gpu, values, k):
    for ordered in (True, False):
        best, indices = top_k(values, k, sorted=ordered, gpu=gpu)
        expected, expected_indices = detcli.top_k(values, k, sorted=ordered)
        assert best.shape == expected.shape
        assert best.dtype == values.dtype
        assert best.tobytes() == expected.tobytes()  # type: ignore[union-attr]  # the sign of zero and the bits of NaN too
        np.testing.assert_array_equal(indices, expected_indices)


LENGTHS = [1, 1023, 1024, 1025, 8400, 16384, 33600]


@pytest.mark.parametrize("length", thin("lengths of rows", LENGTHS, 4))
def test_any_length(gpu, random, length):
    for k, dtype in itertools.product((1, 300, 2048, 2049), (np.float32, np.float16)):
        assert_same(gpu, random.normal(size=(2, length)).astype(dtype), k)


def test_a_million(gpu, random):
    values = random.random(1_000_000, np.float32)
    assert_same(gpu, values, 300)
    assert_same(gpu, values, 100_000)


def test_ties_and_oddities(gpu, random):
    some = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3.0], np.float32)
    for length, k in [(100, 1), (100, 90), (100, 100), (40_000, 1), (40_000, 90), (40_000, 40_000)]:
        assert_same(gpu, random.choice(some, length), k)
        assert_same(gpu, np.zeros(length, np.float32), k)
        assert_same(gpu, np.full(length, np.nan, np.float16), k)


LEADING = arrays.array_shapes(min_dims=0, max_dims=2, max_side=3)
SHAPES = st.builds(lambda leading, length: leading + (length,), LEADING, st.integers(1, 80))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=arrays.arrays(st.sampled_from([np.float16, np.float32]), SHAPES), k=st.integers(0, 100)
)
@example(values=np.ones((0,), np.float32), k=2)
@example(values=np.ones((0, 5), np.float32), k=2)
@example(values=np.ones((5, 0), np.float32), k=2)
def test_any_shape_and_value(gpu, values, k):
    assert_same(gpu, values, k)


def test_more_rows_than_a_grid_holds(gpu, random, monkeypatch):
    monkeypatch.setattr("detcli.backend.cuda.topk.MAX_GRID", 3)
    for length in (2, 40_000):
        assert_same(gpu, random.random((7, length), np.float32), 1)


def test_arrays_on_the_gpu_stay_there(gpu, random):
    values = random.random((2, 50), np.float32)
    uploaded = upload(gpu, values)
    pointer = DeviceArray(uploaded.address, values.shape, values.dtype)
    for array in (pointer, Foreign(uploaded.address, values, stream=None)):
        best, indices = top_k(array, 3, gpu=gpu)
        assert isinstance(best, DeviceArray)
        expected, expected_indices = detcli.top_k(values, 3)
        np.testing.assert_array_equal(read(gpu, best), expected)
        np.testing.assert_array_equal(read(gpu, indices), expected_indices)
        best_of_best, _ = top_k(best, 2, gpu=gpu)
        np.testing.assert_array_equal(read(gpu, best_of_best), expected[:, :2])
    uploaded.close()


def test_device_memory_is_freed(fake_gpu, driver, random):
    top_k(random.random((2, 40_000), np.float32), 5, gpu=fake_gpu)
    fake_gpu.synchronize()
    assert driver.held == 0


@pytest.mark.parametrize("interface", [{"stream": 7, "version": 3}, {}])
def test_another_streams_work_is_waited_for(fake_gpu, driver, interface):
    """An array that names its stream, or has no such entry as in torch, may not be written yet."""
    memory = upload(fake_gpu, np.array([1, 4, 2, 3], np.float32))
    waited = []
    driver.enqueue(lambda: waited.append(driver.launched))
    array = Foreign(memory.address, np.zeros(4, np.float32), **interface)
    driver.record()
    best, _ = top_k(array, 2, gpu=fake_gpu)
    calls = driver.calls_of("cuCtxSync", "cuLaunchKernel")
    assert calls == ["cuCtxSynchronize", "cuLaunchKernelEx top_k_float32"]
    assert waited
    np.testing.assert_array_equal(read(fake_gpu, best), [4, 3])


def test_refusals(gpu):
    values = np.ones((4, 6), np.float32)
    for array, k, error, message in [
        (values, -1, ValueError, "negative"),
        (np.float32(1), 1, ValueError, "axis"),
        (values.astype(np.float64), 1, TypeError, "float64"),
        (Foreign(0, values[:, ::2]), 1, ValueError, "contiguous"),
    ]:
        with pytest.raises(error, match=message):
            top_k(array, k, gpu=gpu)


class Foreign:
    """An array of another library, described by its `__cuda_array_interface__`."""

    def __init__(self, address, values, **entries):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": values.shape,
            "typestr": values.dtype.str,
            "strides": None if values.flags.c_contiguous else values.strides,
            "version": 2,
            **entries,
        }


def read(gpu, array):
    """Copy a device array to the host."""
    return download(gpu, array.address, array.shape, array.dtype)


def test_upload_and_download(gpu, random):
    packed = []
    for shape in [(), (0,), (3,), (2, 3, 4)]:
        for dtype in (np.float16, np.uint32):
            packed.append(np.asarray(random.integers(0, 100, shape), dtype))
    packed.append(random.integers(0, 256, 100_001, np.uint8))
    for array in packed + [random.integers(0, 100, (6, 8))[::2, 1::3]]:  # a view is packed
        memory = upload(gpu, array)
        if array.nbytes > 2000:
            gpu.clear(memory.address + 10, 1000)
            array[10:1010] = 0
        downloaded = download(gpu, memory.address, array.shape, array.dtype)
        np.testing.assert_array_equal(downloaded, array)
        memory.close()


def test_the_limit_is_that_of_the_kernels():
    limit = re.search(r"SHARED_LIST = (\d+)", kernel_sources()["top.cuh"])
    assert int(limit[1]) == SHARED_LIST
    for k, capacity in [(1, 0), (2048, 0), (2049, 4096), (4096, 4096), (4097, 8192)]:
        assert spill_capacity(k) == capacity
