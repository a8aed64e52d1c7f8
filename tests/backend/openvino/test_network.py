"""Networks of OpenVINO: precision, cache, scheduling and errors."""

import os
from dataclasses import replace
from unittest import mock

import numpy as np
import optional
import pytest
from backend.openvino.bfloat16 import NO_BFLOAT16, multiplies_in_bfloat16
from backend.openvino.doubles import convolution, layers

from detcli.backend import open_backend, open_tensors
from detcli.backend.openvino import network
from detcli.backend.openvino.library import open_core
from detcli.backend.openvino.network import REQUEST_COUNT, open_network, scheduling
from detcli.backend.openvino.precision import precision_of
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DeviceError, InferenceError, ModelError
from detcli.model.prepared import StoredGraph, prepare

pytestmark = optional.needs("openvino")


CPU = Device.parse("openvino")


def open_graph(graph, options, check=None):
    """Open a graph of no file on the processor, by OpenVINO."""
    return open_network(StoredGraph.of(graph), "m", CPU, options, check)


def test_float32_means_float32_and_half_is_bfloat16_or_refused():
    """OpenVINO's own default is half precision, where the processor has it."""
    assert open_graph(convolution(), DeviceOptions())[1] == "f32"
    if multiplies_in_bfloat16():
        assert open_graph(convolution(), DeviceOptions(half=True))[1] == "bf16"
        return
    with pytest.raises(DeviceError, match="--half would be slower"):
        open_graph(convolution(), DeviceOptions(half=True))


@pytest.mark.parametrize("half", [False, True])
def test_what_is_checked_is_float32(half, cache):
    """A wrong translation shows in any precision, but half precision differs by itself."""
    if half and not multiplies_in_bfloat16():
        pytest.skip(NO_BFLOAT16)
    checked = []
    options = DeviceOptions(half=half)
    _, precision = open_graph(convolution(), options, checked.append)
    assert list(map(precision_of, checked)) == ["f32"]
    assert precision == ("bf16" if half else "f32")
    open_graph(convolution(), options, checked.append)
    assert len(checked) == len(list(cache.rglob("*.openvino"))) == 1


def test_float32_that_runs_in_half_precision_is_refused(monkeypatch):
    compiled = layers(("Convolution", "bf16", ""))
    monkeypatch.setattr(network, "_read_or_compile", lambda *_: compiled)
    with pytest.raises(DeviceError, match="OpenVINO runs m in bf16 on CPU, though float32"):
        open_graph(b"", DeviceOptions())


@pytest.fixture
def compiled(monkeypatch):
    """The configurations that networks are compiled in, as opposed to read from the cache."""
    networks = []
    core = open_core(CPU)

    class Counting:
        def compile_model(self, model, unit, config):
            networks.append(config["INFERENCE_PRECISION_HINT"])
            return core.compile_model(model, unit, config)

        def __getattr__(self, name):
            return getattr(core, name)

    monkeypatch.setattr(network, "open_core", lambda _: Counting())
    return networks


def test_a_second_start_compiles_nothing(cache, compiled):
    graph = convolution()
    for workers in (1, 1, 8):
        options = DeviceOptions(workers=workers)
        assert open_graph(graph, options)[1] == "f32"
    assert compiled == ["f32"]
    (entry,) = (cache / "prepared").glob("*.openvino")
    assert entry.stat().st_mode & 0o777 == 0o600
    other_graph = graph.replace(b"made", b"make")
    open_graph(other_graph, DeviceOptions())
    assert compiled == ["f32", "f32"]


def test_each_precision_and_device_has_its_own_entry(cache, compiled, monkeypatch):
    graph = convolution()
    open_graph(graph, DeviceOptions())
    monkeypatch.setattr(network, "choose_precision", lambda *_, **__: "bf16")
    open_graph(graph, DeviceOptions(half=True))
    assert compiled == ["f32", "bf16"]
    assert len(list((cache / "prepared").glob("*.openvino"))) == 2


@pytest.mark.parametrize("spoil", [lambda data: data[:-9], lambda _: b"", lambda data: data[::-1]])
def test_a_damaged_entry_is_compiled_again(spoil, cache, compiled):
    graph = convolution()
    open_graph(graph, DeviceOptions())
    (entry,) = (cache / "prepared").glob("*.openvino")
    content = entry.read_bytes()
    entry.write_bytes(spoil(content))
    open_graph(graph, DeviceOptions())
    assert compiled == ["f32", "f32"]
    assert entry.stat().st_size == len(content)


def test_an_entry_that_openvino_refuses_is_compiled_again(cache, compiled, monkeypatch):
    """As after an update of a driver."""
    monkeypatch.setattr(network, "cached", lambda *_: b"of another release")
    assert open_graph(convolution(), DeviceOptions())[1] == "f32"
    assert compiled == ["f32"]
    assert not cache.exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_cache_that_others_can_write_to_is_not_used(cache, compiled):
    open_graph(convolution(), DeviceOptions())
    (cache / "prepared").chmod(0o777)
    open_graph(convolution(), DeviceOptions())
    assert compiled == ["f32", "f32"]


def test_streams_are_left_to_openvino_within_the_quota(monkeypatch):
    monkeypatch.setattr(network, "visible_cores", lambda: 8)
    monkeypatch.setattr(network, "available_cores", lambda: 8)
    four = DeviceOptions(workers=4)
    assert scheduling(CPU, DeviceOptions()) == {"PERFORMANCE_HINT": "LATENCY"}
    many = {"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": "4"}
    assert scheduling(CPU, four) == many
    shared = {**many, "ENABLE_CPU_PINNING": "NO"}
    assert scheduling(CPU, replace(four, cores=2)) == {**shared, "INFERENCE_NUM_THREADS": "2"}
    monkeypatch.setattr(network, "available_cores", lambda: 3)
    assert scheduling(CPU, four) == {**shared, "INFERENCE_NUM_THREADS": "3"}
    assert scheduling(CPU, replace(four, cores=8)) == {**shared, "INFERENCE_NUM_THREADS": "3"}
    assert scheduling(Device.parse("openvino:GPU"), four) == many


def test_a_quota_limits_the_threads(monkeypatch):
    monkeypatch.setattr(network, "available_cores", lambda: 1)
    compiled, _ = open_graph(convolution(), DeviceOptions(workers=4))
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1
    assert compiled.get_property(REQUEST_COUNT) == 1


def test_a_graph_that_openvino_refuses_is_a_model_error(make_model):
    model = make_model()
    model.write_bytes(model.read_bytes().replace(b"AveragePool", b"AverageFool"))
    with pytest.raises(ModelError, match=r"cannot load colours: .*AverageFool") as caught:
        open_backend("openvino", prepare(model))
    assert "--device cpu" in caught.value.hint
    with pytest.raises(ModelError, match="cannot load m"):
        open_tensors("openvino", b"\x08\x01", "m")


def test_a_graph_that_does_not_fit_into_memory(monkeypatch):
    for failure in (MemoryError("std::bad_alloc"), RuntimeError("bad_alloc")):
        monkeypatch.setattr(network, "_read_or_compile", mock.Mock(side_effect=failure))
        with pytest.raises(ModelError, match=r"^m does not fit into memory"):
            open_graph(b"", DeviceOptions())


def test_tensors_of_any_graph_by_name():
    tensors = open_tensors("openvino", convolution(), "m")
    assert tensors.device == "openvino:CPU"
    ones = np.ones((1, 16, 8, 8), np.float32)
    ones.flags.writeable = False
    outputs = tensors.run_watched("given", ones)
    outputs_of_twos = tensors.run_watched("given", ones * 2)
    assert list(outputs) == ["made"]
    assert outputs["made"].shape == (1, 16, 6, 6)
    np.testing.assert_allclose(outputs_of_twos["made"], 2 * outputs["made"], rtol=1e-5)
    with pytest.raises(InferenceError, match=r"\[1, 16, 4\]"):
        tensors.run_watched("given", np.ones((1, 16, 4), np.float32))
