"""driver.Gpu: what its double promises, checked on a real one too; and CUDA's failures."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optional
import pytest

from detcli.backend.cuda import topk
from detcli.backend.cuda.selection import HeadShape, SelectionKernels
from detcli.backend.cuda.topk import DeviceArray, download, top_k, upload
from detcli.backend.postprocess import SelectionOptions
from detcli.core.errors import DeviceError, InferenceError

optional.require("cuda.core")

from detcli.backend.cuda import driver as module
from detcli.backend.cuda.driver import KERNELS

HEAD = HeadShape(1, 6, 10, anchors_first=False, cxcywh=False, dtype="float32")
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


def test_a_gpu_that_does_not_work_or_has_too_little_memory(fake_gpu, driver):
    for call in ("cuCtxSetCurrent", "cuStreamCreateWithPriority"):
        driver.fail(call, OUT_OF_MEMORY)
        with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            module.Gpu(0)
    driver.fail("cuMemAllocHost", OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        fake_gpu.pin(100)
    with pytest.raises(TypeError):  # not translated
        fake_gpu.allocate("1")


@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("cuEventRecord", lambda gpu: gpu.record()),
        ("cuEventSynchronize", lambda gpu: gpu.record().wait()),
        ("cuMemcpyAsync", lambda gpu: gpu.copy(1, 2, 3)),
        ("cuMemcpyAsync", lambda gpu: gpu.upload([(1, 2, 3)])),
        ("cuStreamWaitEvent", lambda gpu: gpu.upload([])),
        ("cuMemsetD8Async", lambda gpu: gpu.clear(1, 3)),
        ("cuCtxSynchronize", lambda gpu: gpu.synchronize()),
        (
            "cuLaunchKernelEx",
            lambda gpu: gpu.launch("rank_anchors", (1, 1, 1), 1024, 0, 0, 0, 0, 0, 0, 0),
        ),
        ("cuGraphAddMemcpyNode", lambda gpu: gpu.graph().copy(1, 2, 3)),
        ("cuGraphLaunch", lambda gpu: gpu.graph().enqueue()),
    ],
)
def test_a_failure_raises_inference_error(fake_gpu, driver, function, use):
    driver.fail(function, ILLEGAL_ADDRESS)
    with pytest.raises(InferenceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        use(fake_gpu)
    assert "--device cpu" in caught.value.hint


def test_the_device_is_made_current_for_each_call(fake_gpu, driver):
    """Another library, or another GPU's work, may have made another one current meanwhile."""
    other_gpu = module.Gpu(1)
    events = [fake_gpu.record(), other_gpu.record(), fake_gpu.record()]
    driver.record()
    for event in events:
        event.record()
    assert driver.calls_of("cuCtxSet", "cuEventRecord") == [
        "cuCtxSetCurrent 0",
        "cuEventRecord",
        "cuCtxSetCurrent 1",
        "cuEventRecord",
        "cuCtxSetCurrent 0",
        "cuEventRecord",
    ]
    other_gpu.close()


def test_each_thread_may_allocate_while_another_captures_a_graph(fake_gpu, driver):
    """ONNX Runtime captures in the global mode, which forbids other threads cudaMalloc."""
    relaxed = "cuThreadExchangeStreamCaptureMode 2"
    for _ in range(2):
        driver.record()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: (fake_gpu.pin(8), fake_gpu.pin(8))).result()
        assert driver.calls[0] == relaxed
        assert driver.calls.count(relaxed) == 1


def test_freed_memory_is_given_back(driver):
    """cuda-core sets no limit, and ONNX Runtime cannot take what our pool holds."""
    driver.record()
    gpu = module.Gpu(1)
    gpu.allocate(8)
    attributes = driver.calls_of("cuMemPoolSetAttribute")
    assert attributes[-1] == f"cuMemPoolSetAttribute 4 {64 << 20}"
    gpu.close()


def test_top_k_runs_where_the_array_is(fake_gpu, driver):
    other_gpu = module.Gpu(1)
    values = np.array([3, 1, 2], np.float32)
    memory = upload(other_gpu, values)
    array = DeviceArray(memory.address, values.shape, values.dtype)
    with pytest.raises(ValueError, match="on GPU number 1, not 0"):
        top_k(array, 2, gpu=fake_gpu)
    driver.record()
    best, _ = top_k(array, 2)
    launch = "cuLaunchKernelEx top_k_float32"
    calls = driver.calls_of("cuCtxSetCurrent", launch)
    calls_before_launch = calls[: calls.index(launch)]
    assert calls_before_launch[-1] == "cuCtxSetCurrent 1"
    assert download(other_gpu, best.address, (2,), np.float32).tolist() == [3, 2]  # type: ignore[union-attr]
    device_array = DeviceArray(values.ctypes.data, values.shape, values.dtype)
    with pytest.raises(ValueError, match="not in the memory of a GPU"):
        top_k(device_array, 2, gpu=fake_gpu)
    for gpu in (topk._gpu(0), topk._gpu(1), other_gpu):  # noqa: SLF001 - which it keeps
        gpu.close()
    topk._gpu.cache_clear()  # noqa: SLF001


def test_each_file_of_kernels_is_loaded_once(fake_gpu, driver):
    driver.record()
    files = [path.stem for path in KERNELS.glob("*.cu")]
    fake_gpu.load_kernels(files)
    fake_gpu.load_kernels(files)
    assert driver.calls.count("cuLibraryLoadData") == len(list(KERNELS.glob("*.cu")))


def test_a_graph_does_its_work_in_order_each_time(gpu):
    """Enqueuing it takes one call, and what it reads is read then."""
    source = gpu.pin(8)
    memory = gpu.allocate(8)
    target = gpu.pin(8)
    graph = gpu.graph()
    graph.copy(memory.address, source.address, 8)
    graph.clear(memory.address, 4)
    graph.copy(target.address, memory.address, 8)
    for value in (1, 2):
        source.array[:] = value
        graph.enqueue()
        gpu.record().wait()
        assert target.array.tolist() == [0] * 4 + [value] * 4


COMPUTE, UPLOADS = 0, 1  # the streams of a Gpu, in the order in which it makes them


@pytest.mark.parametrize("early", [[], [COMPUTE], [UPLOADS], [COMPUTE, UPLOADS]])
def test_work_waits_for_the_uploads_before_it(early, driver):
    """And an upload for the memory that it writes to."""
    driver.start(early=early)
    gpu = module.Gpu(0)
    sources = []  # with the memory they go to, until the work is done
    results = []
    for value in (1, 2):
        memory = gpu.allocate(4)
        source = gpu.pin(4)
        back = gpu.pin(4)
        source.array[:] = value
        first_half = (memory.address, source.address, 2)
        second_half = (memory.address + 2, source.address, 2)
        gpu.upload([first_half, second_half])
        gpu.copy(back.address, memory.address, 4)
        sources.append((source, memory))
        results.append(back)
    gpu.record().wait()
    assert results[0].array.tolist() == [1] * 4
    assert results[1].array.tolist() == [2] * 4
    gpu.close()


def test_uploads_overtake_work_that_does_not_need_them(driver):
    driver.start(early=[UPLOADS])
    gpu = module.Gpu(0)
    first = gpu.allocate(4)
    second = gpu.allocate(4)
    source = gpu.pin(4)
    gpu.upload([(first.address, source.address, 4)])  # waits for both allocations
    gpu.synchronize()
    gpu.clear(first.address, 4)
    source.array[:] = 7
    waiting = driver.waiting
    gpu.upload([(second.address, source.address, 4)])
    source.array[:] = 8
    assert driver.waiting == waiting + 1  # the stream's, for the upload
    back = gpu.pin(4)
    gpu.copy(back.address, second.address, 4)
    gpu.record().wait()
    assert back.array.tolist() == [7] * 4
    gpu.close()


def test_later_batches_take_one_call_for_kernels_and_copy(fake_gpu, driver):
    selection = SelectionKernels(fake_gpu, HEAD, SelectionOptions(0.5, 3, None, None))
    head = fake_gpu.allocate(4 * 6 * 10)
    download = fake_gpu.pin(selection.result_size)
    fake_gpu.clear(head.address, head.size)
    selection.enqueue(head.address, download.address)
    for _ in range(2):
        driver.record()
        selection.enqueue(head.address, download.address)
        assert driver.calls == ["cuCtxSetCurrent 0", "cuGraphLaunch"]
        fake_gpu.record().wait()
    [(rows, nan_count)] = selection.read(download.array)
    assert rows.shape == (0, 6)
    assert nan_count == 0


@pytest.mark.parametrize(("cores", "flags"), [(4, 3), (5, 2)])
def test_where_cores_are_few_a_thread_that_waits_sleeps(driver, monkeypatch, cores, flags):
    """CU_EVENT_BLOCKING_SYNC is 1, CU_EVENT_DISABLE_TIMING 2."""
    monkeypatch.setattr(module, "available_cores", lambda: cores)
    gpu = module.Gpu(0)
    driver.record()
    gpu.record()
    assert f"cuEventCreate {flags}" in driver.calls
    gpu.close()


def test_closing_twice(fake_gpu, driver):
    memory = fake_gpu.allocate(10)
    driver.record()
    fake_gpu.close()
    fake_gpu.close()
    memory.close()
    assert driver.calls.count("cuStreamDestroy") == 2


def test_memory_outlives_its_gpus_stream(gpu):
    """As results of top_k do, which their owner may drop at any time."""
    other_gpu = module.Gpu(gpu.ordinal)
    memory = other_gpu.allocate(1000)
    pinned = other_gpu.pin(1000)
    other_gpu.close()
    memory.close()
    pinned.close()
    with pytest.raises(MemoryError):
        gpu.allocate(1 << 50)  # more than any has
    gpu.allocate(1000).close()  # it still works


@pytest.mark.parametrize("position", [-1, 128, 128 + 255])
def test_the_driver_on_the_cpu_notices_a_write_outside(fake_gpu, driver, position):
    memory = fake_gpu.allocate(128)
    source = fake_gpu.pin(1)
    source.array[:] = 1
    fake_gpu.copy(memory.address + position, source.address, 1)
    fake_gpu.synchronize()
    memory.close()
    fake_gpu.synchronize()
    with pytest.raises(AssertionError, match=f"byte {position} of memory of 128 bytes was written"):
        driver.stop()
    driver.start()


def test_the_driver_on_the_cpu_is_late(fake_gpu, driver):
    """What is read before anybody waited is rubbish, and the same afterwards is right."""
    device = fake_gpu.allocate(4)
    source = fake_gpu.pin(4)
    back = fake_gpu.pin(4)
    source.array[:] = 7
    fake_gpu.copy(device.address, source.address, 4)
    source.array[:] = 8  # too early: the copy has not run
    fake_gpu.copy(back.address, device.address, 4)
    event = fake_gpu.record()
    fake_gpu.clear(back.address, 4)
    assert (back.array == 0xCD).all()
    assert driver.waiting == 4  # the first is the allocation
    event.wait()
    assert (back.array == 8).all()
    fake_gpu.synchronize()
    assert (back.array == 0).all()
    assert driver.waiting == 0


@pytest.mark.parametrize("early", [[], [1]])
def test_the_driver_on_the_cpu_runs_streams_apart_as_far_as_events_allow(early, fake_gpu, driver):
    driver.start(early=early)
    first = fake_gpu._device.create_stream()  # noqa: SLF001
    second = fake_gpu._device.create_stream()  # noqa: SLF001
    order = []
    event = None
    for name in "ab":
        driver.enqueue(lambda name=name: order.append(f"first {name}"), int(first.handle))
        event = event or first.record()
    driver.enqueue(lambda: order.append("second a"), int(second.handle))
    second.wait(event)
    driver.enqueue(lambda: order.append("second b"), int(second.handle))
    assert order == ["second a"][: len(early)]
    second.sync()
    assert order == ["second a", "first a", "second b"]
    first.sync()
    assert order[3:] == ["first b"]
