"""Graphs that ONNX Runtime has optimised: proved once, kept in the cache, for the CPU alone."""

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import colour_model
import convolution_model
import numpy as np
import onnx
import optional
import pytest

from detcli.backend import open_backend, optimised
from detcli.backend.session import TensorSession, onnxruntime
from detcli.config.device import DeviceOptions
from detcli.core.errors import InferenceError, ModelError
from detcli.model.prepared import PreparedModel, StoredGraph, prepare

IMAGE = colour_model.image(("red", 1, 2)).transpose(2, 0, 1)[None, ::-1] / np.float32(255)
NOISE = np.random.default_rng(1).random((1, 3, 64, 64), np.float32)


@pytest.fixture
def model(tmp_path, cache):
    """A network of a convolution, whose optimised graph has an operator of ONNX Runtime's own."""
    assert not cache.exists()
    path = tmp_path / "convolution.onnx"
    onnx.save_model(convolution_model.build("authors", size=64), path)
    return path


@pytest.fixture
def opened(monkeypatch):
    """The graphs that sessions are opened from, in their order."""
    graphs = []

    class NotingSession(TensorSession):
        def __init__(self, device, providers, graph, title, **options):
            graphs.append(graph)
            super().__init__(device, providers, graph, title, **options)

    monkeypatch.setattr(optimised, "TensorSession", NotingSession)
    return graphs


def entries(cache):
    return sorted(cache.rglob("*.optimised"))


def head_on_cpu(path):
    """Open a model on the CPU, and return the head that it computes from noise."""
    backend = open_backend("cpu", prepare(path))
    [head] = backend.infer(NOISE)
    backend.close()
    return head


def head_of_cut_graph(path):
    model = prepare(path)
    session = onnxruntime.InferenceSession(model.graph, providers=["CPUExecutionProvider"])
    [output] = session.run(None, {model.contract.input_name: NOISE})
    return output[0]


def test_the_first_start_keeps_the_optimised_graph_and_the_next_opens_it(model, cache, opened):
    expected = head_of_cut_graph(model)
    assert optimised.is_identical(head_on_cpu(model), expected)
    [entry] = entries(cache)
    cut_graph, optimised_graph = opened
    assert cut_graph == prepare(model).graph
    assert entry.read_bytes().endswith(optimised_graph)

    opened.clear()
    assert optimised.is_identical(head_on_cpu(model), expected)
    assert opened == [optimised_graph]
    assert entries(cache) == [entry]


def test_a_start_from_the_cache_does_not_read_the_cut_graph(model, cache):
    head_on_cpu(model)
    [cut_graph] = cache.rglob("*.graph")
    stamp = cut_graph.stat()
    prepared = prepare(model)
    open_backend("cpu", prepared).close()
    assert "content" not in vars(prepared.stored_graph)
    assert cut_graph.stat().st_mtime_ns == stamp.st_mtime_ns


def test_the_optimised_graph_has_operators_that_only_onnx_runtime_has(model, opened):
    head_on_cpu(model)
    graph = onnx.load_model_from_string(opened[1]).graph
    domains = {node.domain for node in graph.node}
    assert any(domain.startswith("com.microsoft") for domain in domains)


def test_the_graph_of_other_devices_has_the_operators_of_onnx_alone(model):
    head_on_cpu(model)
    graph = onnx.load_model_from_string(prepare(model).graph).graph
    assert {node.domain for node in graph.node} <= {"", "ai.onnx"}


def test_openvino_gets_the_cut_graph(make_model, cache, monkeypatch):
    optional.require("openvino")
    from detcli.backend import openvino

    path = make_model(tail="authors")
    head_on_cpu(path)
    assert len(entries(cache)) == 1
    graphs = []
    open_network = openvino.open_network

    def note(graph, **arguments):
        graphs.append(graph.content)
        return open_network(graph, **arguments)

    monkeypatch.setattr(openvino, "open_network", note)
    prepared = prepare(path)
    open_backend("openvino", prepared).close()
    [cut_graph] = cache.rglob("*.graph")
    assert graphs == [prepared.graph]
    assert cut_graph.read_bytes().endswith(prepared.graph)


def test_what_computes_another_head_is_not_used(model, cache, opened, monkeypatch, caplog):
    other_model = convolution_model.build(size=64)
    for initializer in other_model.graph.initializer:
        weights = onnx.numpy_helper.to_array(initializer)
        if weights.dtype == np.float32 and weights.any():
            changed = np.nextafter(weights, np.float32(9))
            initializer.CopyFrom(onnx.numpy_helper.from_array(changed, initializer.name))
    other_path = model.with_name("other.onnx")
    onnx.save_model(other_model, other_path)
    other_graph = prepare(other_path).graph
    monkeypatch.setattr(optimised, "optimised", lambda *_: other_graph)
    caplog.set_level(logging.INFO)
    expected = head_of_cut_graph(model)
    for _ in range(2):
        assert optimised.is_identical(head_on_cpu(model), expected)
    cut_graph = prepare(model).graph
    assert opened == [cut_graph, other_graph, cut_graph]  # nothing is proved again
    (entry,) = entries(cache)
    assert entry.stat().st_size == 32  # the hash of nothing
    assert "its optimised graph is not used: it computes another head" in caplog.text


def test_a_network_that_fails_on_the_proof_is_opened_as_it_is(model, opened, monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    def fail(*_):
        raise InferenceError("no noise")

    monkeypatch.setattr(optimised, "computes_same", fail)
    for _ in range(2):
        head_on_cpu(model)
    cut_graph = prepare(model).graph
    assert opened[0] == cut_graph
    assert opened[2:] == [cut_graph]
    assert "its optimised graph is not used: no noise" in caplog.text


def refuse_to_save(*_):
    raise ModelError("a node cannot be saved")


def test_a_graph_that_cannot_be_saved_is_opened_as_it_is(model, opened, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(optimised, "optimised", refuse_to_save)
    for _ in range(2):
        head_on_cpu(model)
    assert opened == [prepare(model).graph] * 2
    assert caplog.text.count("its optimised graph is not used: a node cannot be saved") == 1


def test_a_full_disk_is_not_remembered(model, cache, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as full:
        full.setattr(optimised, "optimised", refuse_to_save)
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        head_on_cpu(model)
    assert "its optimised graph is not cached: a node cannot be saved" in caplog.text
    assert entries(cache) == []
    head_on_cpu(model)
    assert len(entries(cache)) == 1


def test_a_network_that_cannot_be_loaded_is_an_error_as_before(model, monkeypatch):
    prepared = prepare(model)
    broken = StoredGraph(lambda: b"no graph", prepared.stored_graph.identity)
    monkeypatch.setattr(optimised, "optimised", refuse_to_save)
    with pytest.raises(ModelError, match="cannot load convolution"):
        open_backend("cpu", PreparedModel("convolution", prepared.contract, broken))


def test_an_entry_that_cannot_be_opened_is_passed_over(model, cache, caplog):
    caplog.set_level(logging.INFO)
    expected = head_on_cpu(model)
    [entry] = entries(cache)
    entry.write_bytes(hashlib.sha256(b"no graph").digest() + b"no graph")
    assert optimised.is_identical(head_on_cpu(model), expected)
    assert "its optimised graph from the cache is not used" in caplog.text


def test_a_damaged_entry_is_proved_again(model, cache, opened):
    head_on_cpu(model)
    [entry] = entries(cache)
    content = entry.read_bytes()
    entry.write_bytes(content[:-1])
    opened.clear()
    head_on_cpu(model)
    assert len(opened) == 2
    assert entry.read_bytes().endswith(opened[1])


@pytest.mark.parametrize("attribute", ["get_build_info", "package_name", "__version__"])
def test_another_onnx_runtime_has_an_entry_of_its_own(model, cache, monkeypatch, attribute):
    head_on_cpu(model)
    value = "2.0"
    monkeypatch.setattr(onnxruntime, attribute, (lambda: value) if "get" in attribute else value)
    optimised._runtime_name.cache_clear()  # noqa: SLF001
    head_on_cpu(model)
    optimised._runtime_name.cache_clear()  # noqa: SLF001
    assert len(entries(cache)) == 2


def describe_processor(monkeypatch, path, text):
    """Let the system describe another processor, or none if the text is None."""
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(optimised, "CPUINFO", path)
    forget_processor()


def forget_processor():
    optimised.processor.cache_clear()
    optimised._runtime_name.cache_clear()  # noqa: SLF001


@pytest.fixture
def _own_processor():
    yield
    forget_processor()


@pytest.mark.usefixtures("_own_processor")
def test_another_processor_has_an_entry_of_its_own(model, cache, monkeypatch, tmp_path):
    head_on_cpu(model)
    description = "processor : 0\nmodel : 1\nflags : sse avx\ncpu MHz : 2000\n\nprocessor : 1\n"
    describe_processor(monkeypatch, tmp_path / "cpuinfo", description)
    assert optimised.processor() == "flags: sse avx\nmodel: 1"
    head_on_cpu(model)
    assert len(entries(cache)) == 2

    describe_processor(monkeypatch, tmp_path / "cpuinfo", description.replace("2000", "3000"))
    head_on_cpu(model)
    assert len(entries(cache)) == 2


@pytest.mark.usefixtures("_own_processor")
@pytest.mark.parametrize("text", [None, "", "model : 1\n", "processor : 0\n\nflags : avx\n"])
def test_for_an_unknown_processor_no_weights_are_laid_out(model, monkeypatch, tmp_path, text):
    levels = []
    optimise = optimised.optimised

    def note(graph, level, title):
        levels.append(level)
        return optimise(graph, level, title)

    monkeypatch.setattr(optimised, "optimised", note)
    describe_processor(monkeypatch, tmp_path / "cpuinfo", text)
    assert optimised.processor() == ""
    expected = head_of_cut_graph(model)
    for _ in range(2):
        assert optimised.is_identical(head_on_cpu(model), expected)
    assert levels == [onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED]


def test_without_a_writable_cache_nothing_is_optimised(model, cache, opened, monkeypatch):
    cache.write_text("no folder")
    monkeypatch.setattr(optimised, "optimised", None)
    head_on_cpu(model)
    assert opened == [prepare(model).graph]


def test_in_a_cache_that_is_read_only_nothing_is_optimised(model, cache, opened, monkeypatch):
    cache.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(optimised, "optimised", None)
    head_on_cpu(model)
    assert opened == [prepare(model).graph]


def test_a_graph_of_no_file_is_opened_as_it_is(model, opened):
    prepared = prepare(model)
    graph = prepared.graph
    unnamed = PreparedModel("unnamed", prepared.contract, StoredGraph.of(graph))
    open_backend("cpu", unnamed).close()
    assert opened == [graph]


def test_workers_share_the_entry(model, cache, opened):
    prepared = prepare(model)
    for _ in range(3):
        open_backend("cpu", prepared, DeviceOptions(workers=3)).close()
    assert len(opened) == 4  # two for the proof
    assert len(entries(cache)) == 1


@pytest.mark.parametrize(
    ("array", "other", "same"),
    [
        (np.array([1, np.nan]), np.array([1, np.nan]), True),
        (np.array([0.0]), np.array([-0.0]), False),
        (np.array([1.0]), np.array([1.0], np.float32), False),
        (np.array([[1.0]]), np.array([1.0]), False),
        (np.array([1.0]), np.array([np.nextafter(1.0, 2.0)]), False),
    ],
)
def test_identical_arrays(array, other, same):
    assert optimised.is_identical(array, other) is same


OPEN = """
import hashlib, pathlib, sys
import numpy as np
from detcli.backend import open_backend
from detcli.model.prepared import prepare
print("ready", flush=True)
sys.stdin.readline()
backend = open_backend("cpu", prepare(pathlib.Path(sys.argv[1])))
noise = np.random.default_rng(1).random((1, 3, 64, 64), np.float32)
print(hashlib.sha256(backend.infer(noise)[0].tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_processes_that_start_at_once_agree(model, cache):
    hashes = []
    with contextlib.ExitStack() as stack:  # which waits for each process, whatever fails
        processes = []
        for _ in range(3):
            process = subprocess.Popen(
                [sys.executable, "-c", OPEN, model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        expected_hash = hashlib.sha256(head_of_cut_graph(model).tobytes()).hexdigest()
        for process in processes:
            output, _ = process.communicate(timeout=60)
            hashes.append(output.strip())
    assert hashes == [expected_hash] * 3
    suffixes = set()
    for path in cache.rglob("*"):
        if path.is_file():
            suffixes.add(path.suffix)
    assert suffixes - {".hash"} == {".contract", ".graph", ".optimised"}  # no parts left
