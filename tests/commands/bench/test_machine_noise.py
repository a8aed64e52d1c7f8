"""Noise, from made-up counters of the machine."""

import os
from types import SimpleNamespace

import psutil
import pytest

from detcli.commands.bench import machine as module
from detcli.commands.bench.machine import GpuState, NoiseMeter
from detcli.commands.bench.sampling import Summary

QUIET = Summary(1.0, 1.0, None, 1.0, 0.01, 10)
RESTLESS = Summary(1.0, 1.0, None, 2.0, 0.5, 10)


class Machine:
    """Counters of two cores, of which this process may use both."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.busy = self.own = self.stolen = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(psutil, "Process", lambda: self)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)

    def cpu_times(self, percpu=None):
        if percpu is None:  # of this process
            return SimpleNamespace(user=self.own, system=0.0)
        core = SimpleNamespace(user=self.busy / 2, system=0.0, steal=self.stolen / 2, idle=1e9)
        other = SimpleNamespace(user=1e9 * self.now, system=0.0, steal=1e9 * self.now, idle=0.0)
        return [core, other, core]  # the one in the middle is not for us


@pytest.fixture
def machine(monkeypatch):
    found = Machine(monkeypatch)
    found.now = 100.0
    return found


@pytest.mark.parametrize(
    ("counts", "wall", "warnings"),
    [
        ((15.2, 15.0, 0.0), QUIET, []),
        ((17.0, 15.0, 0.0), QUIET, []),  # a tenth of both cores
        ((17.1, 15.0, 0.0), QUIET, ["other programs kept 0.2 of 2 cores busy"]),
        ((20.0, 10.0, 0.0), QUIET, ["other programs kept 1.0 of 2 cores busy"]),
        ((0.0, 0.0, 0.2), QUIET, []),
        ((0.0, 0.0, 1.0), QUIET, ["the host of this virtual machine took away 5% of the time"]),
        ((0.0, 0.0, 0.0), Summary(1.0, 1.0, None, 2.0, 0.2, 10), []),
        ((0.0, 0.0, 0.0), RESTLESS, ["the times deviate by 25% of their mean"]),
    ],
)
def test_what_disturbs(machine, counts, wall, warnings):
    meter = NoiseMeter()
    machine.now, (busy, own, stolen) = 110.0, counts
    machine.busy, machine.own, machine.stolen = counts
    found = meter.finish(wall)
    assert list(found.warnings) == warnings
    assert found.deviation == wall.deviation_s / wall.mean_s
    assert found.other_load == pytest.approx((busy - own) / 10)
    assert found.stolen == pytest.approx(stolen / 20)
    assert found.taken == pytest.approx(found.other_load / 2 + found.stolen)


def test_a_gpu_that_is_slowed_down(machine):
    meter = NoiseMeter()
    machine.now = 110.0
    states = [GpuState("H200", "580", 1, why) for why in ((), ("its power limit",)) * 2]
    found = meter.finish(QUIET, states)
    assert found.gpu_slowed_by == ("its power limit",)
    assert found.warnings == ("the GPU was slowed down by its power limit",)


def test_the_real_counters():
    found = NoiseMeter().finish(QUIET)
    assert found.other_load >= 0
