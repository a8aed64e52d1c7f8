import os

import numpy as np
import onnx
import pytest

from detcli.backend import libraries, open_tensors, session
from detcli.core.device import DeviceOptions
from detcli.core.errors import DeviceError, InferenceError, ModelError


@pytest.fixture
def graph(make_model):
    """All tensors of a small network as outputs."""
    model = onnx.load(make_model())
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in ("cells", "scores", "anchors")
    )
    return model.SerializeToString()


def test_all_outputs_by_name(graph):
    ones = np.ones((1, 3, 64, 64), np.float32)
    session = open_tensors("cpu", graph, "m")
    assert session.device == "cpu"
    found = session.run("images", ones)
    assert {name: tensor.shape for name, tensor in found.items()} == {
        "head": (1, 7, 64),
        "cells": (1, 3, 8, 8),
        "scores": (1, 3, 64),
        "anchors": (1, 2, 64),
    }
    assert (found["cells"] == 1).all()


def test_failures_raise_detcli_errors(graph):
    session = open_tensors("cpu", graph, "m")
    with pytest.raises(InferenceError, match="batch of shape"):
        session.run("images", np.ones((1, 3, 32, 32), np.float32))
    with pytest.raises(ModelError, match="cannot load m"):
        open_tensors("cpu", b"\x08\x01", "m")


@pytest.fixture
def opened(monkeypatch):
    """How a session would be opened on a GPU."""
    opened = []

    class Session:
        def get_outputs(self):
            return []

    def open_session(graph, providers, title, threads):
        assert threads == 0
        opened.append((graph, providers, title))
        return Session()

    monkeypatch.setattr(session, "open_session", open_session)
    monkeypatch.setattr(libraries, "require_provider", opened.append)
    return opened


def test_on_a_gpu(opened, monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    open_tensors("cuda:2", b"graph", "m")
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ  # it has an option
    required, (graph, ((name, told),), title) = opened
    assert (required, graph, name, title) == (libraries.CUDA, b"graph", libraries.CUDA, "m")
    assert told["device_id"] == "2"
    assert told["use_tf32"] == "0"
    assert "user_compute_stream" not in told


def test_with_tensorrt(opened, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    open_tensors("tensorrt:0", b"graph", "m", DeviceOptions(half=True))
    required, (_, (engine, (second, _)), _) = opened
    assert required == libraries.TENSORRT
    assert engine == (libraries.TENSORRT, {"device_id": "0", "trt_fp16_enable": "True"})
    assert second == libraries.CUDA
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"


def test_a_missing_gpu(monkeypatch):
    def missing(provider):
        raise DeviceError(f"no {provider}")

    monkeypatch.setattr(libraries, "require_provider", missing)
    with pytest.raises(DeviceError, match="no CUDA"):
        open_tensors("cuda:0", b"graph", "m")
