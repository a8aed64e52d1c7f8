"""Kinds of cores, from a made tree of Linux's files."""

import logging
import os

import pytest

from detcli.config.cores import fastest_cores, use_fastest_cores

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins no process to cores"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make the files that say how fast each core is, on a machine with as many cores."""

    def make(file, *speeds):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(len(speeds))))
        for core, speed in enumerate(speeds):
            path = tmp_path / f"sys/devices/system/cpu/cpu{core}" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{speed}\n")
        return tmp_path

    return make


CLOCK = "cpufreq/cpuinfo_max_freq"


@pytest.mark.parametrize(
    ("file", "speeds", "fast_cores"),
    [
        (CLOCK, (5000, 5200, 3800, 3800), {0, 1}),
        ("cpu_capacity", (446, 446, 1024, 1024), {2, 3}),
        (CLOCK, (5000, 4500), set()),
        (CLOCK, (5000, 4499), {0}),
        (CLOCK, (3000, 3000), set()),
        (CLOCK, (3000, "unknown"), set()),
        (CLOCK, (3000,), set()),
        ("elsewhere", (5000, 3000), set()),
    ],
)
def test_cores_are_of_the_fastest_kind_by_their_clock_or_capacity(
    machine, file, speeds, fast_cores
):
    assert fastest_cores(machine(file, *speeds)) == fast_cores


def test_equal_capacities_do_not_hide_different_clocks(machine):
    machine("cpu_capacity", 1024, 1024)
    assert fastest_cores(machine(CLOCK, 5000, 3000)) == {0}


def test_slow_cores_that_this_process_may_not_use_are_no_other_kind(machine, monkeypatch):
    root = machine(CLOCK, 5000, 5000, 3000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert fastest_cores(root) == set()


def test_a_system_that_pins_no_process_has_one_kind(machine, monkeypatch):
    root = machine(CLOCK, 5000, 3000)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert fastest_cores(root) == set()


@pytest.mark.parametrize(("cores", "pinned"), [({1}, [(0, {1})]), (set(), [])])
def test_the_process_is_pinned_where_there_are_several_kinds(cores, pinned, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "detcli")
    calls = []
    monkeypatch.setattr("detcli.config.cores.fastest_cores", lambda: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call))
    use_fastest_cores()
    assert calls == pinned
    assert caplog.messages == ["--fast-cores: 1" if cores else NO_KINDS]


NO_KINDS = "--fast-cores: this process sees only one kind of cores"
