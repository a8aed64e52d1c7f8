"""Baselines: measurements saved to a file, and comparisons with a later one.

A regression is certain when the whole 95% interval of the ratio of the medians lies above the
limit. That interval does not cover what other programs took from one run and not from the other:
on a busy machine, equal runs differ by half. So each bound is moved by the fraction of the cores
that others took, the most they can have cost; on a busy machine the verdict stays undecided.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detcli.commands.bench.report import (
    BaselineComparison,
    BenchMachine,
    BenchModel,
    Change,
    Conditions,
    Interval,
    RegressionVerdict,
    RunReport,
    Software,
)
from detcli.commands.bench.sampling import WALL, Samples, interval
from detcli.errors import UsageError
from detcli.files import write_output

HEADER = {"schema_version": 1, "kind": "detcli bench baseline"}

UNUSABLE = ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What arbitrary JSON in place of a baseline may raise."""

Identity = dict[str, Any]
"""What must be equal for two measurements to be comparable: name -> JSON value."""

NAMES = "processor architecture system cores mode device batch workers canvas".split()
COMPARED = {name: name for name in NAMES} | {"sha256": "model", "inputs_sha256": "inputs"}
"""Fields of reports that must be equal, and their names in a baseline."""

HINT = "make one with --save-baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier measurement.

    Attributes:
        file: Where it was loaded from, or is to be saved.
        identity: What it was measured on, and how.
        software: Its versions, which may differ.
        samples: All its durations, in seconds.
        warnings: Its warnings about noise.
        taken: Fraction of the cores that other programs took.
    """

    file: str
    identity: Identity
    software: Software
    samples: Samples
    warnings: tuple[str, ...] = ()
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A report, its samples, and what it is comparable with."""

    report: RunReport
    samples: Samples
    identity: Identity


@dataclass(frozen=True, slots=True)
class Limit:
    """A baseline, and how much slower than it the medians may be: 0.05 for 5%."""

    baseline: Baseline
    share: float


def identity_of(
    *parts: BenchMachine | BenchModel | Conditions,
    **more: Any,  # noqa: ANN401 - anything that JSON can hold
) -> Identity:
    """What must be equal, as far as it is known; versions and memory may differ."""
    found = {
        name: getattr(part, field)
        for part in parts
        for field, name in COMPARED.items()
        if hasattr(part, field)
    }
    plain: Identity = json.loads(json.dumps(found | more))
    return plain


def save_baseline(baseline: Baseline) -> None:
    """Write a baseline to its file.

    Raises:
        OutputError: The file cannot be written.
    """
    document = HEADER | asdict(baseline)
    del document["file"]
    write_output(Path(baseline.file), (json.dumps(document, indent=1) + "\n").encode())


def load_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: The file cannot be read, or is not a baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if any(document[name] != value for name, value in HEADER.items()):
            raise ValueError("unknown kind or version")
        taken = float(document["taken"])
        if not 0 <= taken <= 1:
            raise ValueError(f"{taken} is not a fraction of the cores")
        return Baseline(
            str(path),
            dict(document["identity"]),
            Software(**document["software"]),
            {str(name): _seconds(values) for name, values in document["samples"].items()},
            tuple(map(str, document["warnings"])),
            taken,
        )
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror}", HINT) from error
    except UNUSABLE as error:
        raise UsageError(f"{path} is not a baseline of detcli bench: {error}", HINT) from error


def _seconds(values: Any) -> list[float]:  # noqa: ANN401 - from a file
    seconds = np.array(values, np.float64)
    if seconds.ndim != 1 or not seconds.size or not np.isfinite(seconds).all() or seconds.min() < 0:
        raise ValueError("its samples are not lists of seconds")
    return list(map(float, seconds))


def require_same(baseline: Baseline, identity: Identity) -> None:
    """Refuse to compare under different conditions.

    Raises:
        UsageError: Something differs; the message says what.
    """
    different = [
        f"{name} was {baseline.identity.get(name)}, is {value}"
        for name, value in identity.items()
        if baseline.identity.get(name) != value
    ]
    if different:
        raise UsageError(
            f"cannot compare with {baseline.file}: {'; '.join(different)}",
            "compare under the same conditions, or save a new baseline with --save-baseline",
        )


def compare(
    limit: Limit, samples: Mapping[str, list[float]], taken: float = 0.0
) -> BaselineComparison:
    """Compare samples with those of a baseline under the same conditions, see `require_same`.

    The wall clock decides, and the stages explain it. `taken` is the fraction of the cores that
    other programs took.

    Raises:
        UsageError: The baseline has no wall clock.
    """
    baseline, changes = limit.baseline, []
    for name, after in samples.items():
        if not (before := baseline.samples.get(name)):
            continue
        ratio = interval(np.median, after, before)
        verdict = judge(ratio, limit.share, (baseline.taken, taken)) if name == WALL else None
        changes.append(
            Change(name, float(np.median(before)), float(np.median(after)), ratio, verdict)
        )
    if not any(change.verdict for change in changes):
        raise UsageError(f"{baseline.file} has nothing in common with this measurement", HINT)
    worst = next(change.verdict for change in changes if change.verdict)
    told = baseline.software, baseline.warnings, baseline.taken, taken
    return BaselineComparison(baseline.file, *told, limit.share, tuple(changes), worst)


def judge(
    ratio: Interval | None, limit: float, taken: tuple[float, float] = (0.0, 0.0)
) -> RegressionVerdict:
    """Decide whether a ratio is certainly above 1 + `limit`, certainly not, or neither.

    `taken` are the fractions of the cores that other programs took, before and after; without those
    programs, each time may have been shorter by that fraction.
    """
    before, after = taken
    if ratio is not None and ratio.low * (1 - after) > 1 + limit:
        return RegressionVerdict.REGRESSION
    if ratio is not None and ratio.high <= (1 + limit) * (1 - before):
        return RegressionVerdict.WITHIN
    return RegressionVerdict.UNDECIDED
