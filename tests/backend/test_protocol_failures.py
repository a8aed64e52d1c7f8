"""Failures of any runtime: time limits, and running out of memory."""

import threading

import pytest

from detcli.backend.protocol import is_out_of_memory, out_of_memory, run_with_timeout
from detcli.core.errors import ModelError


@pytest.mark.slow
def test_what_never_ends_is_abandoned():
    with pytest.raises(ModelError, match="endless did not finish within 1 seconds"):
        run_with_timeout(1, "endless", threading.Event().wait)


def test_within_the_limit_results_and_errors_are_passed_on():
    assert run_with_timeout(1, "quick", lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        run_with_timeout(1, "broken", lambda: 1 / 0)


def test_messages():
    for message in (
        "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
        "BFCArena: Available memory of 2 is smaller than requested bytes of 6",
        "Failed to allocate memory for requested buffer of size 6553600",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "[TensorRT] Error Code 2: OutOfMemory (Requested size was 8 bytes.)",
    ):
        assert is_out_of_memory(message), message
    for message in ("CUDA failure 700: an illegal memory access", "Got invalid dimensions", ""):
        assert not is_out_of_memory(message), message


@pytest.mark.parametrize(
    ("shape", "fixed", "batch", "first"),
    [
        ((8, 3, 640, 640), False, "8 images, shape [8, 3, 640, 640],", "try a batch of 1,"),
        ((3, 3, 32, 64), False, "3 images, shape [3, 3, 32, 64],", "try a batch of 1,"),
        ((1, 3, 1280, 1280), False, "1 image, shape [1, 3, 1280, 1280],", "a smaller --imgsz"),
        ((16, 3, 640, 640), True, "16 images", "exported with a smaller batch"),
        ((1, 3, 640, 640), True, "1 image", "a smaller --imgsz"),
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
