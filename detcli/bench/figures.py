"""Samples of a duration, summarised; and how certain a figure is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = dict[str, list[float]]
"""Seconds of each run, in order of time, by what they are of."""

WALL = "wall clock"
"""Of whole runs: what counts. The other samples of a measurement explain it."""

LEAST_FOR_P90, LEAST_FOR_P99 = 10, 100
"""Samples; of fewer, the percentile would be the largest one under another name."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples of one duration; p90_s is None of fewer than 10, p99_s of fewer than 100."""

    p50_s: float
    p90_s: float | None
    p99_s: float | None
    mean_s: float
    deviation_s: float
    samples: int

    @classmethod
    def of(cls, samples: npt.ArrayLike) -> "Summary":
        """Summarise seconds; at least one."""
        values = np.asarray(samples, np.float64)
        p50, p90, p99 = (float(value) for value in np.percentile(values, [50, 90, 99]))
        count = len(values)
        return cls(
            p50_s=p50,
            p90_s=p90 if count >= LEAST_FOR_P90 else None,
            p99_s=p99 if count >= LEAST_FOR_P99 else None,
            mean_s=float(values.mean()),
            deviation_s=float(values.std()),
            samples=count,
        )


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate, and the interval that holds it with 95% confidence."""

    estimate: float
    low: float
    high: float
