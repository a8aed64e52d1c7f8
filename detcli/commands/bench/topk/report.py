"""What a comparison of top-ks comes to; its JSON form is described by schemas/bench.json."""

from dataclasses import dataclass

from detcli.commands.bench.report import Comparison, Machine, Noise, Software
from detcli.commands.bench.statistics import Summary


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the same answer; `missing` says why it was not timed."""

    name: str
    summary: Summary | None
    times_ours: float | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """One task and size, done in several ways; the first is detcli's."""

    task: str
    n: int
    k: int
    ways: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class TopKReport:
    """Top-k and selection beside those of other libraries.

    `clock_share` is the most that timing took of any figure.
    """

    kind: str
    machine: Machine
    software: Software
    device: str
    cases: tuple[Case, ...]
    clock_share: float
    noise: Noise
    comparison: Comparison | None = None
