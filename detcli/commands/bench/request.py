"""What to measure, where and for how long. Light, since `--help` imports it."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from detcli.backend.device import Device, DeviceOptions
from detcli.errors import UsageError

if TYPE_CHECKING:
    from detcli.settings import Settings


class Mode(StrEnum):
    """What is measured."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    TOPK = "topk"


def _default_settings() -> "Settings":
    from detcli.settings import Settings  # imports NumPy

    return Settings()


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A measurement of latency or throughput.

    Attributes:
        model: Path or name.
        mode: LATENCY or THROUGHPUT.
        device: Where to run.
        sources: Pictures and videos; empty for the built-in picture.
        batch: Pictures in a batch; None for one in mode latency, else what suits the device.
        workers: Detectors; None for one in mode latency, else one per core.
        settings: How to read the model.
        options: How to use the device.
        seconds: How long to measure, after the warm-up.
        cold_starts: Number of whole processes to time first.

    Raises:
        UsageError: The parts contradict each other.
    """

    model: str
    mode: Mode = Mode.LATENCY
    device: str = "auto"
    sources: tuple[str, ...] = ()
    batch: int | None = None
    workers: int | None = None
    settings: "Settings" = field(default_factory=_default_settings)
    options: DeviceOptions = field(default_factory=DeviceOptions)
    seconds: float = 10.0
    cold_starts: int = 5

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)
        if self.mode is Mode.LATENCY and (self.workers or 1) > 1:
            raise UsageError(
                f"--workers {self.workers}: latency is measured with one detector",
                "use --mode throughput to measure several in parallel",
            )
        if len(Device.parse_list(self.device)) > 1:
            raise UsageError(
                f"'{self.device}' names several devices", f"use --sweep device={self.device}"
            )


@dataclass(frozen=True, slots=True)
class TopKRequest:
    """A comparison of top-k implementations.

    Attributes:
        sizes: Lengths of the rows.
        k: How many values are wanted.
        device: Where to run.
        seconds: How long to measure, over all sizes.

    Raises:
        UsageError: A value is out of range.
    """

    sizes: tuple[int, ...] = (8400, 33600, 1_000_000)
    k: int = 300
    device: str = "auto"
    seconds: float = 10.0

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError("--n takes lengths of 1 or more", "as in --n 8400,33600")
        if self.k < 1:
            raise UsageError(f"--k is {self.k}", "give 1 or more")


def _check_seconds(seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is not a duration", "give a number such as 10")
