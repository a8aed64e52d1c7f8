"""Running out of memory, of a GPU's or the machine's."""

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from detcli.backend import open_tensors
from detcli.backend.runtime.session import is_out_of_memory, out_of_memory
from detcli.errors import DeviceMemoryError, ModelError


@pytest.mark.parametrize(
    "message",
    [
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; expr=cudaMalloc((void**)&p, size);",
        "BFCArena: Available memory of 2097152 is smaller than requested bytes of 6553600",
        "Failed to allocate memory for requested buffer of size 6553600",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "[TensorRT] Error Code 2: OutOfMemory (Requested size was 8589934592 bytes.)",
    ],
)
def test_messages_that_mean_it(message):
    assert is_out_of_memory(message)


@pytest.mark.parametrize(
    "message",
    ["CUDA failure 700: an illegal memory access was encountered", "Got invalid dimensions", ""],
)
def test_messages_that_do_not(message):
    assert not is_out_of_memory(message)


@pytest.mark.parametrize(
    ("shape", "fixed", "batch", "first"),
    [
        ((8, 3, 640, 640), False, "8 pictures, shape [8, 3, 640, 640],", "try a batch of 4,"),
        ((3, 3, 32, 64), False, "3 pictures, shape [3, 3, 32, 64],", "try a batch of 1,"),
        ((1, 3, 1280, 1280), False, "1 picture, shape [1, 3, 1280, 1280],", "a smaller --imgsz"),
        ((16, 3, 640, 640), True, "16 pictures", "exported with a smaller batch"),
        ((1, 3, 640, 640), True, "1 picture", "a smaller --imgsz"),
    ],
)
def test_the_error_names_the_batch_and_what_to_try(shape, fixed, batch, first):
    error = out_of_memory(shape, "no more", fixed=fixed)
    assert batch in str(error)
    assert str(error).endswith(": no more")
    assert first in error.hint
    assert "--gpu-mem-limit" in error.hint
    assert "--device cpu" in error.hint
    assert error.exit_code == 1


FULL = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Expand node. "


@pytest.mark.parametrize(
    "failure",
    [
        runtime_errors.Fail(f"{FULL}Failed to allocate memory for requested buffer of size 14400"),
        runtime_errors.RuntimeException(f"{FULL}Status Message: std::bad_alloc"),
        MemoryError("std::bad_alloc"),
        MemoryError("Unable to allocate 13.4 GiB for an array with shape (60000, 60000)"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_on_the_cpu(failure, make_model, monkeypatch):
    session = open_tensors("cpu", make_model().read_bytes(), "m")

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=fail))
    with pytest.raises(
        DeviceMemoryError, match=r"shape \[1, 3, 64, 64\] does not fit into memory: "
    ) as caught:
        session.run("images", np.ones((1, 3, 64, 64), np.float32))
    assert "GPU" not in str(caught.value)
    assert "--imgsz" in caught.value.hint
    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    with pytest.raises(ModelError, match=r"^m does not fit into memory: .") as caught:
        open_tensors("cpu", b"", "m")
    assert "gpu" not in f"{caught.value}{caught.value.hint}"
