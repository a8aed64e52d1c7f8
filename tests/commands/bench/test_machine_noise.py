"""Noise, from made-up counters of the machine."""

import os
from types import SimpleNamespace

import psutil
import pytest

from detcli.commands.bench.machine import GpuState, NoiseMeter
from detcli.commands.bench.sampling import Summary

QUIET = Summary(1.0, 1.0, None, 1.0, 0.01, 10)
RESTLESS = Summary(1.0, 1.0, None, 2.0, 0.5, 10)


@pytest.fixture
def measured(monkeypatch):
    """Noise where two cores of three are for us, busy and stolen to this per cent of one."""

    def run(counts, wall=QUIET, gpu=()):
        busy, own, stolen = counts
        core = SimpleNamespace(user=busy / 4, nice=busy / 4, steal=stolen / 2, idle=1e9)
        other = SimpleNamespace(user=1e9, steal=1e9, idle=0.0)
        calls = iter([[other] * 3, [core, other, core]])  # what was before counts for nothing
        monkeypatch.setattr(psutil, "cpu_times_percent", lambda **_: next(calls))
        monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: own)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
        return NoiseMeter().finish(wall, gpu)

    return run


@pytest.mark.parametrize(
    ("counts", "wall", "warnings"),
    [
        ((152, 150, 0), QUIET, []),
        ((170, 150, 0), QUIET, []),  # a tenth of both cores
        ((171, 150, 0), QUIET, ["other programs kept 0.2 of 2 cores busy"]),
        ((200, 100, 0), QUIET, ["other programs kept 1.0 of 2 cores busy"]),
        ((0, 3, 2), QUIET, []),
        ((0, 0, 10), QUIET, ["the host of this virtual machine took away 5% of the time"]),
        ((0, 0, 0), Summary(1.0, 1.0, None, 2.0, 0.2, 10), []),
        ((0, 0, 0), RESTLESS, ["the times deviate by 25% of their mean"]),
    ],
)
def test_what_disturbs(measured, counts, wall, warnings):
    found, (busy, own, stolen) = measured(counts, wall), counts
    assert list(found.warnings) == warnings
    assert found.deviation == wall.deviation_s / wall.mean_s
    assert found.other_load == pytest.approx(max(0, busy - own) / 100)
    assert found.stolen == pytest.approx(stolen / 200)
    assert found.taken == pytest.approx(found.other_load / 2 + found.stolen)


def test_a_gpu_that_is_slowed_down(measured):
    states = [GpuState("H200", "580", 1, why) for why in ((), ("its power limit",)) * 2]
    found = measured((0, 0, 0), gpu=states)
    assert found.gpu_slowed_by == ("its power limit",)
    assert found.warnings == ("the GPU was slowed down by its power limit",)


def test_the_real_counters():
    found = NoiseMeter().finish(QUIET)
    assert found.other_load >= 0
    assert 0 <= found.taken <= 1
