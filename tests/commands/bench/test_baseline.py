# mypy: disable-error-code=arg-type
"""Baselines: conditions for a comparison, and its verdict."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from detcli.commands.bench.baseline import Baseline, compare, identity_of, judge
from detcli.commands.bench.report import BenchMachine, BenchModel, Conditions, RegressionVerdict
from detcli.commands.bench.sampling import WALL, Interval
from detcli.core.errors import UsageError

MACHINE = BenchMachine("AMD EPYC", "x86_64", "Linux", 2, 1 << 34, None, None)
MODEL = BenchModel("a.onnx", "12" * 32)
CONDITIONS = Conditions("latency", "cpu", 1, 1, (), "34" * 32, (640, 640))
PARTS = MACHINE, MODEL, CONDITIONS
IDENTITY = identity_of(MACHINE, MODEL, CONDITIONS)
SOFTWARE = {"detcli": "0.1.0", "openvino": None}
WITHIN, UNDECIDED, REGRESSION = RegressionVerdict


def seconds(random, median, count=100):
    return (median * random.lognormal(0, 0.02, count)).tolist()


def measured(samples, share_taken=0.0):
    return Baseline("", {}, SOFTWARE, samples, (), share_taken)


@pytest.fixture
def baseline(tmp_path, random):
    samples = {WALL: seconds(random, 0.020), "network": seconds(random, 0.015)}
    file = str(tmp_path / "baseline.json")
    return Baseline(file, IDENTITY, SOFTWARE, samples, ("the times deviate",), 0.02)


def test_a_baseline_survives_saving_and_loading(baseline, tmp_path):
    baseline.save(Path(baseline.file))
    assert Baseline.load(Path(baseline.file)) == baseline
    with pytest.raises(UsageError, match=r"cannot read .*none.json"):
        Baseline.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"kind": "other"}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"kind": "detcli bench baseline", "schema_version": 99}',
    ],
)
def test_other_files_are_not_baselines(content, tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"odd\.json is not a baseline") as caught:
        Baseline.load(path)
    assert "--save-baseline" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        {"samples": {"a": []}},
        {"samples": {"a": [1, "x"]}},
        {"samples": {"a": [[1]]}},
        {"samples": {"a": [-1]}},
        {"samples": {"a": [1e999]}},
        {"samples": {"a": 1}},
        {"samples": {"a": [10**400]}},
        {"samples": [1]},
        {"taken": -0.1},
        {"taken": 1.1},
        {"taken": "x"},
        {"taken": None},
        {"taken": float("nan")},
        {"taken": 10**400},
    ],
)
def test_figures_must_be_possible(change, baseline):
    path = Path(baseline.file)
    baseline.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match="not a baseline"):
        Baseline.load(path)


def fields_of_parts():
    """Each part, with the name of each of its fields."""
    names_of_fields = []
    for part in PARTS:
        for field in fields(part):
            names_of_fields.append((part, field.name))
    return names_of_fields


@pytest.mark.parametrize(("part", "name"), fields_of_parts())
def test_all_but_memory_driver_and_names_must_be_equal(part, name, baseline):
    baseline.save(Path(baseline.file))
    loaded = Baseline.load(Path(baseline.file))
    parts = list(PARTS)
    parts[PARTS.index(part)] = replace(part, **{name: (1, 2)})
    changed = identity_of(*parts)
    if name in {"memory_bytes", "driver", "file", "sources"}:
        loaded.require_same(changed)
        return
    title = {"sha256": "model", "inputs_sha256": "inputs"}.get(name, name)
    with pytest.raises(UsageError, match=f"baseline.json: {title} was [^;]*, is [^;]*$"):
        loaded.require_same(changed)


def test_equal_conditions_are_accepted_in_parts(baseline):
    baseline.require_same(IDENTITY)
    baseline.require_same(identity_of(replace(MACHINE, gpu="unknown yet"), MODEL))
    with pytest.raises(UsageError, match="processor was AMD EPYC, is Xeon; cores was 2, is 4"):
        baseline.require_same(identity_of(replace(MACHINE, processor="Xeon", cores=4), MODEL))


@pytest.mark.parametrize(
    ("slower", "verdict"), [(1.0, WITHIN), (0.5, WITHIN), (1.2, REGRESSION), (1.05, UNDECIDED)]
)
def test_the_wall_clock_decides(slower, verdict, baseline, random):
    wall = (slower * np.array(baseline.samples[WALL])).tolist()
    after = {WALL: wall, "network": seconds(random, 9.0)}
    comparison = compare(baseline, measured(after), 0.05)
    assert comparison.verdict is verdict
    wall_change, network_change = comparison.changes
    assert wall_change.name == WALL
    assert wall_change.verdict is verdict
    assert wall_change.ratio.estimate == pytest.approx(slower)
    assert wall_change.before_s == np.median(baseline.samples[WALL])
    assert network_change.name == "network"
    assert network_change.verdict is None
    assert comparison.software == SOFTWARE
    assert comparison.warnings == ("the times deviate",)


def test_too_few_samples_or_none_in_common(baseline):
    assert compare(baseline, measured({WALL: [9.0] * 3}), 0.05).verdict is UNDECIDED
    with pytest.raises(UsageError, match="nothing in common"):
        compare(replace(baseline, samples={"network": [1.0]}), baseline, 0.05)


@pytest.mark.parametrize(
    ("low", "high", "shares_taken", "verdict"),
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
def test_a_regression_has_its_whole_interval_above_the_limit(low, high, shares_taken, verdict):
    """And what other programs took does not explain it."""
    share_before, share_now = shares_taken
    assert judge(Interval(1.0, low, high), 0.05, share_before, share_now) is verdict


def test_both_runs_record_what_other_programs_took(baseline):
    busy = compare(baseline, measured({WALL: [0.026] * 100}, 0.5), 0.05)
    assert busy.taken_before == 0.02
    assert busy.taken_after == 0.5
    assert busy.verdict is UNDECIDED
    assert compare(baseline, measured({WALL: [0.026] * 100}), 0.05).verdict is REGRESSION
