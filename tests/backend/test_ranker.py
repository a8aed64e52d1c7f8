"""Top-k and selection by themselves."""

import numpy as np
import pytest

import detcli
from detcli import DetcliWarning
from detcli.backend import open_ranker
from detcli.backend.postprocess import SelectionOptions, select
from detcli.errors import DependencyError, DeviceError, UsageError


def test_the_cpus_is_the_specification(random):
    ranker = open_ranker("cpu")
    assert ranker.device == "cpu"
    row, head = random.random(500, np.float32), random.random((9, 300), np.float32)
    for own, expected in zip(
        ranker.top_k(ranker.upload(row), 7), detcli.top_k(row, 7), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    options = SelectionOptions(0.5, 20, None, None)
    for own, expected in zip(
        ranker.select(ranker.upload(head), options), select(head, options), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
    ranker.close()


@pytest.mark.parametrize("device", ["cpu:1", "gpu", "", "auto:0", "cuda:x"])
def test_no_such_device(device):
    with pytest.raises(UsageError, match="unknown device"):
        open_ranker(device)


@pytest.mark.parametrize("device", ["tensorrt", "tensorrt:1"])
def test_tensorrt_has_no_top_k_of_ours(device):
    with pytest.raises(UsageError, match="TensorRT runs networks") as caught:
        open_ranker(device)
    assert "--device cuda" in caught.value.hint


def test_a_gpu_that_is_asked_for_is_not_replaced(monkeypatch):
    with pytest.raises(DeviceError):
        open_ranker("cuda:99")

    def fail(_):
        raise DependencyError("cuda-core does not load", "install it")

    monkeypatch.setattr("detcli.backend.cuda.open_ranker", fail)
    with pytest.raises(DeviceError, match="cuda-core") as caught:
        open_ranker("cuda")
    assert caught.value.hint == "install it"


def test_auto_says_why_not_the_gpu(monkeypatch):
    def fail(_):
        raise DeviceError("the GPU is broken")

    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 1)
    monkeypatch.setattr("detcli.backend.cuda.open_ranker", fail)
    with pytest.warns(DetcliWarning, match="the GPU is broken"):
        assert open_ranker("auto").device == "cpu"
    monkeypatch.setattr("detcli.backend.nvidia.count_gpus", lambda: 0)
    assert open_ranker("auto").device == "cpu"
