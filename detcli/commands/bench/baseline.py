"""An earlier measurement: its file, and whether the model got slower since.

A regression is certain when the whole 95% interval of the ratio of the medians lies above the
limit. That interval does not cover what other programs took from one run and not from the other:
on a busy machine, equal runs differ by half. So each bound is moved by the fraction of the cores
that others took, the most they can have cost; on a busy machine the verdict stays undecided.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from detcli.commands.bench.report import (
    BaselineComparison,
    BenchMachine,
    BenchModel,
    Change,
    Conditions,
    RegressionVerdict,
    Software,
)
from detcli.commands.bench.sampling import WALL, Interval, Samples, interval
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.storage.files import read_text, write_output

HEADER = {"schema_version": 1, "kind": "detcli bench baseline"}

UNUSABLE = ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What arbitrary JSON in place of a baseline may raise."""

Identity = dict[str, Any]
"""What must be equal for two measurements to be comparable: name -> JSON value."""

HINT = "make one with --save-baseline"


@frozen
class Baseline:
    """A measurement that later ones can be compared with.

    Attributes:
        file: The file that it was read from; empty for one that was just made.
        identity: What has to be equal in both measurements.
        software: The versions of the software.
        samples: The seconds of each run, by what was timed.
        warnings: What disturbed the measurement.
        taken: The fraction of the cores that other programs took.
    """

    file: str
    identity: Identity
    software: Software
    samples: Samples
    warnings: tuple[str, ...] = ()
    taken: float = 0.0

    def save(self, path: Path) -> None:
        """Write the measurement to a file, or raise OutputError."""
        document = HEADER | asdict(self)
        del document["file"]
        write_output(path, (json.dumps(document, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Baseline":
        """Read a measurement from a file, which may hold anything.

        Raises:
            UsageError: It cannot be read, or is not a baseline.
        """
        try:
            return cls._from_document(json.loads(read_text(path)), str(path))
        except OSError as error:
            raise UsageError(f"cannot read the baseline {path}: {error.strerror}", HINT) from error
        except UNUSABLE as error:
            raise UsageError(f"{path} is not a baseline of detcli bench: {error}", HINT) from error

    @classmethod
    def _from_document(cls, document: Any, file: str) -> "Baseline":  # noqa: ANN401 - JSON
        """Make a baseline from the JSON of a file, which may be anything.

        Args:
            document: The JSON; what `save` wrote, if the file is a baseline.
            file: The name of the file.

        Raises:
            Exception: The JSON is not a baseline. The type of the error is one of UNUSABLE.
        """
        for name, value in HEADER.items():
            if document[name] != value:
                raise ValueError("unknown kind or version")

        # The fraction of the cores that other programs took.
        fraction_taken = float(document["taken"])
        if not 0 <= fraction_taken <= 1:
            raise ValueError(f"{fraction_taken} is not a fraction of the cores")

        samples = document["samples"]
        return cls(
            file=file,
            identity=dict(document["identity"]),
            software=dict(document["software"]),
            samples={str(name): _checked_samples(values) for name, values in samples.items()},
            warnings=tuple(str(warning) for warning in document["warnings"]),
            taken=fraction_taken,
        )

    def require_same(self, identity: Identity) -> None:
        """Refuse to compare this baseline with a measurement under other conditions.

        Args:
            identity: The conditions of the other measurement.

        Raises:
            UsageError: Some conditions differ; the message lists them.
        """
        differences = []
        for name, value in identity.items():
            earlier_value = self.identity.get(name)
            if earlier_value != value:
                differences.append(f"{name} was {earlier_value}, is {value}")
        if differences:
            raise UsageError(
                f"cannot compare with {self.file}: {'; '.join(differences)}",
                "compare under the same conditions, or save a new baseline with --save-baseline",
            )


def _checked_samples(values: Any) -> list[float]:  # noqa: ANN401 - from a file
    """Return the samples of a baseline, or raise ValueError unless they are seconds."""
    samples = np.array(values, np.float64)
    are_seconds = (samples >= 0) & (samples < np.inf)
    if samples.ndim != 1 or not samples.size or not are_seconds.all():
        raise ValueError("its samples are not lists of seconds")
    return [float(sample) for sample in samples]


def identity_of(
    machine: BenchMachine, model: BenchModel, conditions: Conditions | None = None
) -> Identity:
    """Collect what must be equal in two measurements that are compared.

    Versions of the software and the size of the memory may differ.

    Args:
        machine: The machine.
        model: The model.
        conditions: How it is measured; None if that is not known yet. Then the GPU that is in use
            is not known either.

    Returns:
        Values of JSON by name, as in a baseline.
    """
    identity: Identity = {
        "processor": machine.processor,
        "architecture": machine.architecture,
        "system": machine.system,
        "cores": machine.cores,
        "model": model.sha256,
    }
    if conditions is None:
        return identity
    return identity | {
        "mode": conditions.mode,
        "device": conditions.device,
        "batch": conditions.batch,
        "workers": conditions.workers,
        "canvas": list(conditions.canvas),  # a list, as it is read back from JSON
        "gpu": machine.gpu,
        "inputs": conditions.inputs_sha256,
    }


def compare(before: Baseline, after: Baseline, max_regress: float) -> BaselineComparison:
    """Compare two measurements, to find out whether the model got slower.

    The times of whole runs, which are the samples named WALL, decide the verdict. The times of the
    stages only explain the difference.

    Args:
        before: The earlier measurement.
        after: The later one, under the same conditions.
        max_regress: How much slower it may be: 0.05 for 5%.

    Raises:
        UsageError: The earlier one has no times of whole runs.
    """
    if not before.samples.get(WALL):
        raise UsageError(f"{before.file} has nothing in common with this measurement", HINT)
    wall_ratio = interval(np.median, after.samples[WALL], before.samples[WALL])
    verdict = judge(wall_ratio, max_regress, taken_before=before.taken, taken_after=after.taken)

    changes = []
    for name, samples_after in after.samples.items():
        if name not in before.samples:
            continue
        samples_before = before.samples[name]
        if name == WALL:
            ratio = wall_ratio
            shown_verdict = verdict
        else:
            ratio = interval(np.median, samples_after, samples_before)
            shown_verdict = None  # a stage decides nothing
        change = Change(
            name,
            before_s=float(np.median(samples_before)),
            after_s=float(np.median(samples_after)),
            ratio=ratio,
            verdict=shown_verdict,
        )
        changes.append(change)

    return BaselineComparison(
        file=before.file,
        software=before.software,
        warnings=before.warnings,
        taken_before=before.taken,
        taken_after=after.taken,
        max_regress=max_regress,
        changes=tuple(changes),
        verdict=verdict,
    )


def judge(
    ratio: Interval | None, max_regress: float, taken_before: float, taken_after: float
) -> RegressionVerdict:
    """Decide whether a model certainly got slower than allowed, certainly did not, or may have.

    Where other programs took 10% of the cores, up to 10% of a time may be due to them, and nobody
    knows how much really is: 10 s may be anything from 9 s to 10 s on an idle machine. So the ratio
    is only known to lie between two bounds. It is lowest if other programs slowed down the later
    measurement only, and highest if they slowed down the earlier measurement only.

    Args:
        ratio: The later time divided by the earlier one, with its interval; None if it is not
            known.
        max_regress: How much slower is allowed: 0.05 for 5%.
        taken_before: The fraction of the cores that other programs took during the earlier
            measurement.
        taken_after: The same fraction during the later measurement.
    """
    if ratio is None:
        return RegressionVerdict.UNDECIDED

    max_ratio = 1 + max_regress
    lowest_possible = ratio.low * (1 - taken_after)
    if lowest_possible > max_ratio:
        return RegressionVerdict.REGRESSION

    # The highest possible ratio is ratio.high / (1 - taken_before), whose divisor may be 0.
    if ratio.high <= max_ratio * (1 - taken_before):
        return RegressionVerdict.WITHIN
    return RegressionVerdict.UNDECIDED
