"""driver.Gpu: what its double promises, checked on a real one too; and CUDA's failures."""

import threading

import numpy as np
import pytest

from detcli.backend.cuda import topk
from detcli.backend.cuda.topk import DeviceArray, download, top_k, upload
from detcli.errors import DeviceError, InferenceError

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'detcli[cuda]'")

from detcli.backend.cuda import driver as module
from detcli.backend.cuda.program import KERNELS

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700


@pytest.mark.parametrize(
    ("gpus", "ordinal", "why", "hint"),
    [(0, 0, "NVIDIA's driver shows none", "--device cpu"), (2, 2, "only 2", "cuda:0 to cuda:1")],
)
def test_a_missing_gpu(driver, gpus, ordinal, why, hint):
    if not gpus:
        driver.stop()
    with pytest.raises(DeviceError, match=f"no GPU number {ordinal}, {why}") as caught:
        module.Gpu(ordinal)
    assert hint in caught.value.hint


@pytest.mark.parametrize("call", ["cuCtxSetCurrent", "cuStreamCreateWithPriority"])
def test_a_gpu_that_does_not_work(driver, call):
    driver.fail(call, OUT_OF_MEMORY)
    with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        module.Gpu(0)


@pytest.fixture
def own(driver):
    """A GPU on the driver that a test controls."""
    gpu = module.Gpu(0)
    yield gpu
    driver.fail("", 0)
    gpu.close()


def test_too_little_memory_is_a_memory_error(own, driver):
    driver.fail("cuMemAllocHost", OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        own.pin(100)


@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("cuEventRecord", lambda gpu: gpu.record()),
        ("cuEventSynchronize", lambda gpu: gpu.record().wait()),
        ("cuMemcpyAsync", lambda gpu: gpu.copy(1, 2, 3)),
        ("cuMemsetD8Async", lambda gpu: gpu.clear(1, 3)),
        ("cuCtxSynchronize", lambda gpu: gpu.synchronize()),
        ("cuLaunchKernel", lambda gpu: gpu.launch("rank_anchors", (1, 1, 1), 1024, *[0] * 7)),
    ],
)
def test_a_failure_raises_inference_error(own, driver, function, use):
    driver.fail(function, ILLEGAL_ADDRESS)
    with pytest.raises(InferenceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        use(own)
    assert "--device cpu" in caught.value.hint


def test_python_errors_are_not_translated(own):
    with pytest.raises(TypeError):
        own.allocate("1")


def test_the_device_is_made_current_for_each_call(own, driver):
    """Another library, or another GPU's work, may have made another one current meanwhile."""
    other = module.Gpu(1)
    driver.record()
    for gpu in (own, other, own):
        gpu.record()
    seen = [call for call in driver.calls if call.startswith(("cuCtxSet", "cuEventRecord"))]
    record = "cuEventRecord"
    current = [f"cuCtxSetCurrent {ordinal}" for ordinal in (0, 1, 0)]
    assert seen == [call for one in current for call in (one, record)]
    other.close()


def test_each_thread_may_allocate_while_another_captures_a_graph(own, driver):
    """ONNX Runtime captures in the global mode, which forbids other threads cudaMalloc."""
    relaxed = "cuThreadExchangeStreamCaptureMode 2"
    for _ in range(2):
        driver.record()
        thread = threading.Thread(target=lambda: (own.pin(8), own.pin(8)))
        thread.start()
        thread.join()
        assert driver.calls[0] == relaxed
        assert driver.calls.count(relaxed) == 1


def test_freed_memory_is_given_back(driver):
    """cuda-core sets no limit, and ONNX Runtime cannot take what our pool holds."""
    driver.record()
    gpu = module.Gpu(1)
    gpu.allocate(8)
    *_, last = [call for call in driver.calls if call.startswith("cuMemPoolSetAttribute")]
    assert last == f"cuMemPoolSetAttribute 4 {64 << 20}"
    gpu.close()


def test_top_k_runs_where_the_array_is(own, driver):
    other = module.Gpu(1)
    values = np.array([3, 1, 2], np.float32)
    memory = upload(other, values)
    array = DeviceArray(memory.address, values.shape, values.dtype)
    with pytest.raises(ValueError, match="on GPU number 1, not 0"):
        top_k(array, 2, gpu=own)
    driver.record()
    best, _ = top_k(array, 2)
    launch = driver.calls.index("cuLaunchKernel top_k_float32")
    assert [one for one in driver.calls[:launch] if "SetCurrent" in one][-1] == "cuCtxSetCurrent 1"
    assert download(other, best.address, (2,), np.float32).tolist() == [3, 2]
    here = DeviceArray(values.ctypes.data, values.shape, values.dtype)
    with pytest.raises(ValueError, match="not in the memory of a GPU"):
        top_k(here, 2, gpu=own)
    for gpu in (topk._gpu(0), topk._gpu(1), other):  # noqa: SLF001 - which it keeps
        gpu.close()
    topk._gpu.cache_clear()  # noqa: SLF001


def test_each_file_of_kernels_is_loaded_once(own, driver):
    driver.record()
    own.load_kernels()
    own.load_kernels()
    assert driver.calls.count("cuLibraryLoadData") == len(list(KERNELS.glob("*.cu")))


def test_closing_twice(own, driver):
    memory = own.allocate(10)
    driver.record()
    own.close()
    own.close()
    memory.close()
    assert driver.calls.count("cuStreamDestroy") == 1


def test_bytes_survive_a_round_trip(gpu, random):
    values = random.integers(0, 256, 100_001, np.uint8)
    memory = upload(gpu, values)
    gpu.clear(memory.address + 10, 1000)
    values[10:1010] = 0
    np.testing.assert_array_equal(download(gpu, memory.address, values.shape, np.uint8), values)
    memory.close()


def test_memory_outlives_its_gpus_stream(gpu):
    """As results of top_k do, which their owner may drop at any time."""
    other = module.Gpu(gpu.ordinal)
    memory, pinned = other.allocate(1000), other.pin(1000)
    other.close()
    memory.close()
    pinned.close()


def test_more_memory_than_any_gpu_has(gpu):
    with pytest.raises(MemoryError):
        gpu.allocate(1 << 50)
    gpu.allocate(1000).close()  # it still works


@pytest.mark.parametrize("place", [-1, 128, 128 + 255])
def test_the_driver_on_the_cpu_notices_a_write_outside(own, driver, place):
    memory, one = own.allocate(128), own.pin(1)
    one.array[:] = 1
    own.copy(memory.address + place, one.address, 1)
    own.synchronize()
    memory.close()
    own.synchronize()
    with pytest.raises(AssertionError, match=f"byte {place} of memory of 128 bytes was written"):
        driver.stop()
    driver.start()


def test_the_driver_on_the_cpu_is_late(own, driver):
    """What is read before anybody waited is rubbish, and the same afterwards is right."""
    device, there, back = own.allocate(4), own.pin(4), own.pin(4)
    there.array[:] = 7
    own.copy(device.address, there.address, 4)
    there.array[:] = 8  # too early: the copy has not run
    own.copy(back.address, device.address, 4)
    event = own.record()
    own.clear(back.address, 4)
    assert (back.array == 0xCD).all()
    assert driver.waiting == 3
    event.wait()
    assert (back.array == 8).all()
    own.synchronize()
    assert (back.array == 0).all()
    assert driver.waiting == 0


def test_the_driver_on_the_cpu_notices_a_wrong_kernel(own, driver):
    own.launch("rank_anchors", (1, 1, 1), 1025, *[0] * 2, *[0] * 5)
    own.synchronize()
    with pytest.raises(AssertionError, match=r"rank_anchors: .*CUDA refuses a grid"):
        driver.stop()
    driver.start()
