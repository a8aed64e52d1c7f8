"""Noise, from made-up counters of the machine."""

import os
from types import SimpleNamespace

import psutil
import pytest

from detcli.commands.bench import machine as module
from detcli.commands.bench.machine import GpuState, NoiseMeter
from detcli.commands.bench.report import Summary

QUIET = Summary(1.0, 1.0, None, 1.0, 0.01, 10)


class Machine:
    """Counters of two cores, of which this process may use both."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.busy = self.own = self.stolen = 0.0
        self.mhz = 3000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", self.cpu_times)
        monkeypatch.setattr(psutil, "cpu_freq", lambda: SimpleNamespace(current=self.mhz))
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


def test_a_quiet_machine(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now, machine.busy, machine.own = 110.0, 15.2, 15.0
    found = meter.finish(QUIET)
    assert found.other_load == pytest.approx(0.02)
    assert found.stolen == 0
    assert found.frequency_low_mhz == found.frequency_high_mhz == 3000
    assert found.deviation == pytest.approx(0.01)
    assert found.throttled is None
    assert found.warnings == ()


def test_other_programs(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now, machine.busy, machine.own = 110.0, 20.0, 10.0
    found = meter.finish(QUIET)
    assert found.other_load == pytest.approx(1.0)
    assert found.warnings == ("other programs kept 1.0 of 2 cores busy",)


def test_a_host_that_takes_time_away(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now, machine.stolen = 110.0, 1.0
    found = meter.finish(QUIET)
    assert found.stolen == pytest.approx(0.05)
    assert "took away 5% of the time" in found.warnings[0]


def test_a_clock_that_moves(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    for mhz in (2900.0, 2000.0, 3100.0):
        machine.now, machine.mhz = machine.now + 2, mhz
        meter.look()
    found = meter.finish(QUIET)
    assert (found.frequency_low_mhz, found.frequency_high_mhz) == (2000, 3100)
    assert found.warnings == ("the processor's frequency varied between 2000 and 3100 MHz",)


def test_it_looks_once_a_second(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now, machine.mhz = 100.5, 1.0
    meter.look()
    machine.now, machine.mhz = 110.0, 3000.0
    assert meter.finish(QUIET).frequency_low_mhz == 3000


def test_an_unknown_frequency(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_freq", lambda: None)
    meter = NoiseMeter(tmp_path)
    machine.now = 110.0
    found = meter.finish(None)
    assert found.frequency_low_mhz is found.frequency_high_mhz is found.deviation is None


def test_heat_and_quotas(machine, tmp_path):
    counter = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    counter.parent.mkdir(parents=True)
    counter.write_text("7\n")
    quota = tmp_path / "sys/fs/cgroup/cpu.stat"
    quota.parent.mkdir(parents=True)
    quota.write_text("usage_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 17\n")
    meter = NoiseMeter(tmp_path)
    counter.write_text("8\n")
    quota.write_text("usage_usec 5\nnr_periods 9\nnr_throttled 12\nthrottled_usec 17\n")
    machine.now = 110.0
    found = meter.finish(QUIET)
    assert found.throttled == 11
    assert found.warnings == ("heat or a quota slowed the processor down 11 times",)


def test_restless_times(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now = 110.0
    found = meter.finish(Summary(1.0, 1.0, None, 2.0, 0.5, 10))
    assert found.deviation == pytest.approx(0.25)
    assert found.warnings == ("the times deviate by 25% of their mean",)


def test_a_gpu_that_is_slowed_down(machine, tmp_path):
    meter = NoiseMeter(tmp_path)
    machine.now = 110.0
    states = [GpuState("H200", "580", 1, why) for why in ((), ("its power limit",)) * 2]
    found = meter.finish(QUIET, states)
    assert found.gpu_slowed_by == ("its power limit",)
    assert found.warnings == ("the GPU was slowed down by its power limit",)


def test_the_real_counters(tmp_path):
    found = NoiseMeter(tmp_path).finish(QUIET)
    assert found.other_load >= 0
