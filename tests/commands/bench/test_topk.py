"""Implementations of top-k: agreement, and which are timed."""

import sys

import numpy as np
import pytest
from commands.bench import topk_doubles as doubles

from detcli.backend.cpu import CpuRanker
from detcli.commands.bench.baseline import Baseline, Limit
from detcli.commands.bench.machine import NoiseMeter
from detcli.commands.bench.report import RegressionVerdict
from detcli.commands.bench.topk import measure_case, measure_top_k, selection_task, top_k_task
from detcli.errors import CheckError, DeviceError, UsageError

TASKS = [top_k_task, selection_task]
SIZES = [(1, 1), (100, 300), (300, 300), (1025, 7), (8400, 300)]
HERE = ["detcli", "stable argsort", "argpartition", "ONNX Runtime TopK"]


@pytest.fixture(autouse=True)
def _nothing_else_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)


def ways_of(task, ranker=None):
    case, samples = measure_case(task, ranker or CpuRanker(), 0.0, NoiseMeter())
    assert samples
    return {way.name: way for way in case.ways}


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_all_implementations_agree(make, n, k):
    ways = ways_of(make(n, k))
    assert next(iter(ways)) == "detcli"
    assert [name for name, way in ways.items() if way.summary is not None] == HERE
    assert ways["detcli"].times_ours == 1
    assert ways["PyTorch"].missing == "PyTorch is not installed"
    assert ways["CuPy"].missing == "CuPy needs a GPU"


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_pytorch_takes_part_where_it_is_installed(make, n, k, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", doubles.torch())
    assert ways_of(make(n, k))["PyTorch"].missing is None


@pytest.mark.parametrize("make", TASKS)
def test_a_wrong_implementation_is_not_timed(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", doubles.torch(wrong=True))
    way = ways_of(make(500, 30))["PyTorch"]
    assert way.summary is way.times_ours is None
    assert "not those of a stable sort" in way.missing


def test_a_failing_implementation_is_not_timed(monkeypatch):
    broken = doubles.torch()
    broken.topk = None
    monkeypatch.setitem(sys.modules, "torch", broken)
    assert ways_of(top_k_task(500, 30))["PyTorch"].missing.startswith("TypeError")


class GpuRanker(CpuRanker):
    device = "cuda:1"


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_peers_use_the_gpu_too(make, n, k, monkeypatch):
    cupy = doubles.CuPy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", doubles.torch(gpu=True))
    ways = ways_of(make(n, k), GpuRanker())
    assert ways["CuPy"].missing is ways["PyTorch"].missing is None
    assert cupy.used == [1]
    assert "CUDAExecutionProvider cannot be loaded" in ways["ONNX Runtime TopK"].missing


def test_a_pytorch_without_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", doubles.torch(gpu=False))
    ways = ways_of(top_k_task(50, 3), GpuRanker())
    assert ways["PyTorch"].missing == "PyTorch does not find the GPU"
    assert ways["CuPy"].missing == "CuPy is not installed"


class WrongRanker(CpuRanker):
    """Orders equal values wrongly, which only detcli promises."""

    def top_k(self, values, k):
        best = np.argsort(-values[::-1], kind="stable")[:k]
        return values[::-1][best], len(values) - 1 - best


def test_our_own_answer_must_order_equal_values():
    task = top_k_task(100, 30)
    task.values[:] = 0.5
    ways_of(task)
    with pytest.raises(CheckError, match="detcli's top_k of 100 on cpu is wrong"):
        ways_of(task, WrongRanker())


class BrokenRanker(CpuRanker):
    def select(self, *_):
        raise DeviceError("broken")


def test_a_failure_of_our_own_is_not_hidden():
    with pytest.raises(DeviceError, match="broken"):
        ways_of(selection_task(100, 3), BrokenRanker())


def test_a_report_has_both_tasks_at_each_size():
    found = measure_top_k((50, 1000), 20, "cpu", 0.0)
    assert [(case.task, case.n) for case in found.report.cases] == [
        ("top_k", 50),
        ("selection", 50),
        ("top_k", 1000),
        ("selection", 1000),
    ]
    assert found.report.device == "cpu"
    assert 0 < found.report.clock_share < 1
    assert set(found.samples) == {
        f"{task}, {n} to 20" for task in ("top_k", "selection") for n in (50, 1000)
    }


def test_beside_a_baseline():
    request = ((200,), 20, "cpu", 0.0)
    first = measure_top_k(*request)
    software = first.report.software
    slow = {name: [9.0 + one for one in taken] for name, taken in first.samples.items()}
    again = measure_top_k(*request, Limit(Baseline("a", first.identity, software, slow), 0.05))
    assert again.report.comparison.verdict is RegressionVerdict.WITHIN
    fast = {name: [one / 1000 for one in taken] for name, taken in first.samples.items()}
    again = measure_top_k(*request, Limit(Baseline("a", first.identity, software, fast), 0.05))
    assert again.report.comparison.verdict is RegressionVerdict.REGRESSION
    with pytest.raises(UsageError, match="k was 20, is 21"):
        measure_top_k(
            *((200,), 21, "cpu", 0.0), Limit(Baseline("a", first.identity, software, fast), 0.05)
        )
