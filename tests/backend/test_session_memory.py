"""Running out of memory, of a GPU's or the machine's."""

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from detcli.backend import open_tensors
from detcli.core.errors import DeviceMemoryError, ModelError

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
