"""driver.Gpu: what its double promises, checked on a real one too; and CUDA's failures."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from detcli.backend.cuda.topk import download, upload
from detcli.errors import DeviceError, InferenceError

pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'detcli[cuda]'")

from detcli.backend.cuda import driver as module
from detcli.backend.cuda.program import KERNELS


class CUDAError(Exception):
    """Named like cuda-core's, which is not public."""


class FakeDevice:
    """A device of cuda-core that cannot do what `failing` names."""

    failing: frozenset = frozenset()
    reason = "CUDA_ERROR_OUT_OF_MEMORY: The API call failed because it was unable to allocate"
    arch, name = "90", "fake"

    def __init__(self, ordinal):
        self.ordinal, self.threads, self.closed_streams = ordinal, [], 0

    def set_current(self):
        self.attempt("set_current")
        self.threads.append(threading.get_ident())

    def create_stream(self):
        return SimpleNamespace(handle=7, record=self.record, close=self.close_stream)

    def allocate(self, size, *, stream):  # noqa: ARG002 - cuda-core's signature
        self.attempt("allocate")
        return SimpleNamespace(handle=4096, size=size, close=lambda: None)

    def record(self):
        self.attempt("record")
        return SimpleNamespace(sync=lambda: self.attempt("sync"))

    def close_stream(self):
        self.closed_streams += 1

    def attempt(self, what):
        if what in self.failing:
            raise CUDAError(f"{self.reason}\nand more")


@pytest.fixture
def open_fake(monkeypatch):
    """Open a GPU whose driver fails in some way."""

    def open_gpu(*failing, reason=FakeDevice.reason, gpus=1, ordinal=0):
        device = type("Device", (FakeDevice,), {"failing": frozenset(failing), "reason": reason})
        monkeypatch.setattr(module, "Device", device)
        monkeypatch.setattr(module, "count_gpus", lambda: gpus)
        success = (module.driver.CUresult.CUDA_SUCCESS,)
        monkeypatch.setattr(module.driver, "cuCtxSynchronize", lambda: success)
        return module.Gpu(ordinal)

    return open_gpu


@pytest.mark.parametrize(
    ("gpus", "ordinal", "why", "hint"),
    [(0, 0, "NVIDIA's driver shows none", "--device cpu"), (2, 2, "only 2", "cuda:0 to cuda:1")],
)
def test_a_missing_gpu(open_fake, gpus, ordinal, why, hint):
    with pytest.raises(DeviceError, match=f"no GPU number {ordinal}, {why}") as caught:
        open_fake(gpus=gpus, ordinal=ordinal)
    assert hint in caught.value.hint


def test_a_gpu_that_does_not_work(open_fake):
    with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        open_fake("set_current")


def test_too_little_memory_is_a_memory_error(open_fake):
    with pytest.raises(MemoryError, match=r"unable to allocate$"):
        open_fake("allocate").allocate(100)


@pytest.mark.parametrize("call", ["record", "sync"])
def test_a_failure_raises_inference_error(open_fake, call):
    gpu = open_fake(call, reason="CUDA_ERROR_ILLEGAL_ADDRESS: while executing a kernel")
    with pytest.raises(InferenceError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        gpu.record().wait()
    assert "--device cpu" in caught.value.hint


def test_a_failing_copy_raises_inference_error(open_fake, monkeypatch):
    result = module.driver.CUresult.CUDA_ERROR_INVALID_VALUE
    calls = []
    gpu = open_fake()
    for name in ("cuMemcpyAsync", "cuMemsetD8Async", "cuCtxSynchronize"):
        monkeypatch.setattr(module.driver, name, lambda *given: calls.append(given) or (result,))
    with pytest.raises(InferenceError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.copy(1, 2, 3)
    with pytest.raises(InferenceError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.clear(1, 3)
    with pytest.raises(InferenceError, match="CUDA_ERROR_INVALID_VALUE"):
        gpu.synchronize()
    assert calls == [(1, 2, 3, gpu.stream), (1, 0, 3, gpu.stream), ()]


def test_python_errors_are_not_translated(open_fake, monkeypatch):
    gpu = open_fake()
    monkeypatch.setattr(gpu._device, "allocate", None)  # noqa: SLF001
    with pytest.raises(TypeError):
        gpu.allocate(1)


def test_the_device_is_made_current_for_each_call(open_fake):
    """Another library, or another GPU's work, may have made another one current meanwhile."""
    gpu = open_fake()
    before = len(gpu._device.threads)  # noqa: SLF001
    gpu.record()
    gpu.allocate(10)
    other = threading.Thread(target=gpu.record)
    other.start()
    other.join()
    me = threading.get_ident()
    assert gpu._device.threads[before:] == [me, me, other.ident]  # noqa: SLF001


def test_each_file_of_kernels_is_loaded_once(open_fake, monkeypatch):
    compiled = []

    def compile_file(path, architecture):
        compiled.append((path.name, architecture))
        return SimpleNamespace(get_kernel=lambda name: name)

    monkeypatch.setattr(module, "compile_file", compile_file)
    gpu = open_fake()
    for _ in range(2):
        gpu.load_kernels()
    assert compiled == [
        (name, "sm_90") for name in sorted(path.name for path in KERNELS.glob("*.cu"))
    ]


def test_closing_twice(open_fake):
    gpu = open_fake()
    memory = gpu.allocate(10)
    gpu.close()
    gpu.close()
    memory.close()
    assert gpu._device.closed_streams == 1  # noqa: SLF001


def test_bytes_survive_a_round_trip(gpu, random):
    values = random.integers(0, 256, 100_001, np.uint8)
    memory = upload(gpu, values)
    gpu.clear(memory.address + 10, 1000)
    values[10:1010] = 0
    np.testing.assert_array_equal(download(gpu, memory.address, values.shape, np.uint8), values)
    memory.close()


@pytest.mark.gpu
def test_memory_outlives_its_gpus_stream(real_gpu):
    """As results of top_k do, which their owner may drop at any time."""
    gpu = module.Gpu(real_gpu.ordinal)
    memory, pinned = gpu.allocate(1000), gpu.pin(1000)
    gpu.close()
    memory.close()
    pinned.close()


@pytest.mark.gpu
def test_more_memory_than_any_gpu_has(real_gpu):
    with pytest.raises(MemoryError):
        real_gpu.allocate(1 << 50)
    real_gpu.allocate(1000).close()  # it still works
