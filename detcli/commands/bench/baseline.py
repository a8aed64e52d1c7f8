"""Baselines: a measurement in a file, and a later one held against it.

A regression is certain when the whole 95% interval of the ratio of the medians lies above the
limit. What other programs took from one run and not from the other is in no interval, though: on
a machine that is busy, equal runs differ by half. So each bound is moved by as much as the others
had of the cores, which is the most that they can have done; a busy machine leaves it undecided.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detcli.commands.bench.modes import Verdict
from detcli.commands.bench.report import Change, Comparison, Conditions, Machine, Model, Software
from detcli.commands.bench.statistics import WALL, Interval, Samples, ratio_interval
from detcli.errors import UsageError
from detcli.files import write_file

SCHEMA_VERSION = 1
KIND = "detcli bench baseline"

Identity = dict[str, Any]
"""What must be the same for two measurements to be comparable: name -> value of JSON."""

OF_MACHINE = ("processor", "architecture", "system", "cores")
OF_CONDITIONS = ("mode", "device", "batch", "workers", "canvas")

AGAIN = "make one with --save-baseline"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A measurement of the past.

    Attributes:
        file: Where it came from.
        identity: What it was measured on, and how.
        software: With which versions; these may differ.
        samples: All its figures, in seconds.
        warnings: What cast doubt on them.
        taken: Part of the cores that others had.
    """

    file: str
    identity: Identity
    software: Software
    samples: Samples
    warnings: tuple[str, ...] = ()
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class Limit:
    """A baseline, and how much slower than it the medians may be: 0.05 for 5%."""

    baseline: Baseline
    share: float


def identity_of(
    machine: Machine | None = None,
    model: Model | None = None,
    conditions: Conditions | None = None,
    /,
    **more: Any,  # noqa: ANN401 - anything that JSON can hold
) -> Identity:
    """What has to be the same, as far as it is known yet; versions and memory may differ."""
    identity: Identity = {}
    if machine is not None:
        identity |= {name: getattr(machine, name) for name in OF_MACHINE}
    if model is not None:
        identity["model"] = model.sha256
    if conditions is not None:
        identity |= {name: getattr(conditions, name) for name in OF_CONDITIONS}
        identity["inputs"] = conditions.inputs_sha256
    plain: Identity = json.loads(json.dumps(identity | more))
    return plain


def save_baseline(baseline: Baseline) -> None:
    """Write a baseline to its file.

    Raises:
        OutputError: It could not be written.
    """
    document = {"schema_version": SCHEMA_VERSION, "kind": KIND, **asdict(baseline)}
    del document["file"]
    write_file(Path(baseline.file), (json.dumps(document, indent=1) + "\n").encode())


def load_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: There is none, or it is something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["kind"] != KIND or document["schema_version"] != SCHEMA_VERSION:
            raise ValueError("it is of another kind or version")  # noqa: TRY301 - as the others
        return Baseline(
            str(path),
            dict(document["identity"]),
            Software(**document["software"]),
            {str(name): _seconds(values) for name, values in document["samples"].items()},
            tuple(map(str, document["warnings"])),
            _part(document["taken"]),
        )
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror}", AGAIN) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is no baseline of detcli bench: {error}", AGAIN) from error


def require_same(baseline: Baseline, identity: Identity) -> None:
    """Refuse to compare what is not comparable.

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
            f"{baseline.file} cannot be compared with: {'; '.join(different)}",
            "compare under the same conditions, or save a new baseline with --save-baseline",
        )


def compare(limit: Limit, samples: Mapping[str, list[float]], taken: float = 0.0) -> Comparison:
    """Hold samples against a baseline's.

    The wall clock decides, where there is one; the stages are there to explain it. Otherwise
    every duration decides.

    Args:
        limit: With a baseline of the same conditions, see `require_same`.
        samples: Seconds.
        taken: Part of the cores that others had meanwhile.

    Raises:
        UsageError: The two have nothing in common.
    """
    baseline, changes = limit.baseline, []
    for name, after in samples.items():
        if not (before := baseline.samples.get(name)):
            continue
        ratio = ratio_interval(after, before)
        decides = name == WALL or WALL not in samples
        verdict = judge(ratio, limit.share, (baseline.taken, taken)) if decides else None
        changes.append(
            Change(name, float(np.median(before)), float(np.median(after)), ratio, verdict)
        )
    if not changes:
        raise UsageError(f"{baseline.file} has nothing in common with this measurement", AGAIN)
    verdicts = {change.verdict for change in changes}
    worst = (Verdict.REGRESSION, Verdict.UNDECIDED, Verdict.WITHIN)
    overall = next(verdict for verdict in worst if verdict in verdicts)
    told = baseline.software, baseline.warnings, baseline.taken, taken
    return Comparison(baseline.file, *told, limit.share, tuple(changes), overall)


def judge(ratio: Interval | None, limit: float, taken: tuple[float, float] = (0.0, 0.0)) -> Verdict:
    """What an interval says about a limit.

    Args:
        ratio: After over before.
        limit: As in 0.05.
        taken: Parts of the cores that others had, before and after. Without them the time before
            may have been that much less, and the time after too.
    """
    before, after = taken
    if ratio is not None and ratio.low * (1 - after) > 1 + limit:
        return Verdict.REGRESSION
    if ratio is not None and ratio.high <= (1 + limit) * (1 - before):
        return Verdict.WITHIN
    return Verdict.UNDECIDED


def _part(value: Any) -> float:  # noqa: ANN401 - of a file
    """Part of a whole.

    Raises:
        ValueError: It is none.
    """
    if not 0 <= (part := float(value)) <= 1:
        raise ValueError(f"{part} is no part of the cores")
    return part


def _seconds(values: Any) -> list[float]:  # noqa: ANN401 - of a file
    """Samples of a file.

    Raises:
        ValueError: They are no seconds.
    """
    seconds = np.array(values, np.float64)
    if seconds.ndim != 1 or not seconds.size or not np.isfinite(seconds).all() or seconds.min() < 0:
        raise ValueError("its samples are no lists of seconds")
    return list(map(float, seconds))
