"""What bench is asked for."""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from detcli.core.config import OUTPUT, Config
from detcli.core.errors import UsageError
from detcli.core.options import option
from detcli.core.values import parse_writable


class Mode(StrEnum):
    """One batch after the other, or all stages in parallel."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


def _duration(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise UsageError(f"--seconds {value:g} is not a duration", "give a number such as 10")
    return value


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A measurement: what runs, in a Config, and how it is measured.

    Without a batch, latency is that of one picture, and throughput that of what suits the device.
    """

    config: Config
    mode: Mode = option(
        Mode.LATENCY,
        f"--mode {'|'.join(Mode)}",
        "One batch after the other by stage, or all stages in parallel.",
        boxes=False,
    )
    seconds: float = option(
        10,
        "--seconds S",
        "How long to measure, after the warm-up.",
        boxes=False,
        parse=_duration,
    )
    cold_starts: int = option(
        5,
        "--cold-starts N",
        "Time this many whole processes first.",
        boxes=False,
        range=(0, None),
    )
    save_baseline: Path | None = option(
        None,
        "--save-baseline FILE",
        "Save the samples for a later --baseline.",
        boxes=False,
        panel=OUTPUT,
        parse=parse_writable,
    )
    baseline: Path | None = option(
        None,
        "--baseline FILE",
        "Compare with this; exit with 6 if certainly slower.",
        boxes=False,
    )
    max_regress: str = option(
        "5%",
        "--max-regress PERCENT",
        "How much slower than the baseline is allowed.",
        boxes=False,
    )

    def __post_init__(self) -> None:
        running = self.config.running
        if self.mode is Mode.LATENCY and (running.workers or 1) > 1:
            raise UsageError(
                f"--workers {running.workers}: latency is measured with one detector",
                "use --mode throughput to measure several in parallel",
            )
        if len(running.device) > 1:
            names = ",".join(map(str, running.device))
            raise UsageError(f"'{names}' names several devices", "measure one after the other")
