"""Baselines: conditions for a comparison, and its verdict."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detcli.commands.bench.report import (
    Baseline,
    BenchMachine,
    BenchModel,
    Conditions,
    RegressionVerdict,
    Software,
    compare,
    identity_of,
    judge,
)
from detcli.commands.bench.sampling import WALL, Interval
from detcli.core.errors import UsageError

MACHINE = BenchMachine("AMD EPYC", "x86_64", "Linux", 2, 1 << 34, None, None)
MODEL = BenchModel("a.onnx", "12" * 32)
CONDITIONS = Conditions("latency", "cpu", 1, 1, (), "34" * 32, (640, 640))
PARTS = MACHINE, MODEL, CONDITIONS
SOFTWARE = Software("0.1.0", "3.11", "2.4", "5.0", "1.31")
WITHIN, UNDECIDED, REGRESSION = RegressionVerdict


def seconds(random, median, count=100):
    return (median * random.lognormal(0, 0.02, count)).tolist()


def measured(samples, taken=0.0):
    return Baseline("", {}, SOFTWARE, samples, (), taken)


@pytest.fixture
def baseline(tmp_path, random):
    samples = {WALL: seconds(random, 0.020), "network": seconds(random, 0.015)}
    identity = identity_of(*PARTS)
    file = str(tmp_path / "baseline.json")
    return Baseline(file, identity, SOFTWARE, samples, ("the times deviate",), 0.02)


def test_a_baseline_survives_saving_and_loading(baseline, tmp_path):
    baseline.save(Path(baseline.file))
    assert Baseline.load(Path(baseline.file)) == baseline
    with pytest.raises(UsageError, match=r"cannot read .*none.json"):
        Baseline.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"kind": "other"}',
        b"\xff\xfe\x00",
        "[" * 100_000,
        '{"kind": "detcli bench baseline", "schema_version": 99}',
    ],
)
def test_other_files_are_not_baselines(content, tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"odd\.json is not a baseline") as caught:
        Baseline.load(path)
    assert "--save-baseline" in caught.value.hint


SAMPLES = ([], [1, "x"], [[1]], [-1], [1e999], 1, [10**400])


@pytest.mark.parametrize(
    "change",
    [
        *({"samples": {"a": samples}} for samples in SAMPLES),
        {"samples": [1]},
        *({"taken": taken} for taken in (-0.1, 1.1, "x", None, float("nan"), 10**400)),
    ],
)
def test_figures_must_be_possible(change, baseline):
    path = Path(baseline.file)
    baseline.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match="not a baseline"):
        Baseline.load(path)


@pytest.mark.parametrize(
    ("part", "changes", "difference"),
    [
        (MACHINE, {"processor": "Xeon"}, "processor was AMD EPYC, is Xeon"),
        (MACHINE, {"architecture": "aarch64"}, "architecture was"),
        (MACHINE, {"system": "Darwin"}, "system was"),
        (MACHINE, {"cores": 4}, "cores was 2, is 4"),
        (MACHINE, {"gpu": "NVIDIA H200"}, "gpu was None, is NVIDIA H200"),
        (MODEL, {"sha256": "99" * 32}, "model was"),
        (CONDITIONS, {"mode": "throughput"}, "mode was"),
        (CONDITIONS, {"device": "cuda:0"}, "device was"),
        (CONDITIONS, {"batch": 2}, "batch was 1, is 2"),
        (CONDITIONS, {"workers": 2}, "workers was 1, is 2"),
        (CONDITIONS, {"inputs_sha256": "35" * 32}, "inputs was"),
        (CONDITIONS, {"canvas": (640, 320)}, "canvas was"),
    ],
)
def test_another_machine_model_or_condition_is_refused(part, changes, difference, baseline):
    parts = [replace(one, **changes) if one is part else one for one in PARTS]
    with pytest.raises(UsageError, match=f"baseline.json: {difference}[^;]*$"):
        baseline.require_same(identity_of(*parts))


def test_equal_conditions_are_accepted_in_parts_and_from_a_file(baseline):
    baseline.save(Path(baseline.file))
    loaded = Baseline.load(Path(baseline.file))
    loaded.require_same(identity_of(MACHINE, MODEL))
    loaded.require_same(identity_of(*PARTS))
    larger = replace(MACHINE, memory_bytes=1 << 40, driver="580")
    loaded.require_same(identity_of(larger, replace(MODEL, file="renamed.onnx"), CONDITIONS))


@pytest.mark.parametrize(
    ("slower", "verdict"), [(1.0, WITHIN), (0.5, WITHIN), (1.2, REGRESSION), (1.05, UNDECIDED)]
)
def test_the_wall_clock_decides(slower, verdict, baseline, random):
    wall = [slower * one for one in baseline.samples[WALL]]
    after = {WALL: wall, "network": seconds(random, 9.0)}
    found = compare(baseline, measured(after), 0.05)
    assert found.verdict is verdict
    assert [change.name for change in found.changes] == [WALL, "network"]
    assert [change.verdict for change in found.changes] == [verdict, None]
    assert found.changes[0].ratio.estimate == pytest.approx(slower)
    assert found.changes[0].before_s == np.median(baseline.samples[WALL])
    assert found.software == SOFTWARE
    assert found.warnings == ("the times deviate",)


def test_too_few_samples_leave_it_undecided(baseline):
    assert compare(baseline, measured({WALL: [9.0] * 3}), 0.05).verdict is UNDECIDED


def test_nothing_in_common(baseline):
    with pytest.raises(UsageError, match="nothing in common"):
        compare(replace(baseline, samples={"network": [1.0]}), baseline, 0.05)


@pytest.mark.parametrize(
    ("low", "high", "taken", "verdict"),
    [
        (0.9, 1.05, (0.0, 0.0), WITHIN),
        (0.9, 1.0501, (0.0, 0.0), UNDECIDED),
        (1.05, 1.2, (0.0, 0.0), UNDECIDED),
        (1.0501, 1.2, (0.0, 0.0), REGRESSION),
        (1.3, 1.3, (0.8, 0.0), REGRESSION),  # others only slowed the baseline
        (1.3, 1.3, (0.0, 0.5), UNDECIDED),  # they may explain all of it
        (2.5, 2.5, (0.0, 0.5), REGRESSION),
        (9.0, 9.0, (0.0, 1.0), UNDECIDED),
        (1.0, 1.0, (0.0, 0.9), WITHIN),
        (1.0, 1.0, (0.5, 0.5), UNDECIDED),  # before, it may have taken half
        (0.4, 0.4, (0.5, 0.0), WITHIN),
    ],
)
def test_a_regression_has_its_whole_interval_above_the_limit(low, high, taken, verdict):
    """And what other programs took does not explain it."""
    assert judge(Interval(1.0, low, high), 0.05, taken) is verdict


def test_both_runs_record_what_other_programs_took(baseline):
    busy = compare(baseline, measured({WALL: [0.026] * 100}, 0.5), 0.05)
    assert (busy.taken_before, busy.taken_after) == (0.02, 0.5)
    assert busy.verdict is UNDECIDED
    assert compare(baseline, measured({WALL: [0.026] * 100}), 0.05).verdict is REGRESSION
