"""What to measure, where and for how long. Light, since `--help` imports it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from detcli.errors import UsageError

if TYPE_CHECKING:
    from detcli.commands.shared.setup import RunOptions


class Mode(StrEnum):
    """What is measured."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A measurement of latency or throughput.

    Attributes:
        run: Model, device and settings; its batch is None for one picture in mode latency, else
            for what suits the device.
        mode: LATENCY or THROUGHPUT.
        sources: Pictures and videos; empty for the built-in picture.
        seconds: How long to measure, after the warm-up.
        cold_starts: Number of whole processes to time first.

    Raises:
        UsageError: The parts contradict each other.
    """

    run: "RunOptions"
    mode: Mode = Mode.LATENCY
    sources: tuple[str, ...] = ()
    seconds: float = 10.0
    cold_starts: int = 5

    def __post_init__(self) -> None:
        workers = self.run.device_options.workers
        if self.mode is Mode.LATENCY and workers > 1:
            raise UsageError(
                f"--workers {workers}: latency is measured with one detector",
                "use --mode throughput to measure several in parallel",
            )
        if len(self.run.devices) > 1:
            names = ",".join(map(str, self.run.devices))
            raise UsageError(f"'{names}' names several devices", "measure one after the other")
