"""Request: what is to be measured, and for how long."""

import math
from dataclasses import dataclass, field

from detcli.backend.device import DeviceOptions
from detcli.commands.bench.modes import Mode
from detcli.errors import UsageError
from detcli.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """One measurement.

    Attributes:
        model: Path of the ONNX file.
        mode: LATENCY or THROUGHPUT.
        device: Where to run.
        sources: Pictures and videos; none means the built-in picture.
        batch: Pictures in a batch; None for one at a time in mode latency, and for what suits the
            device in mode throughput.
        workers: Detectors; None for one in mode latency, and one a core in mode throughput.
        settings: How to read the model.
        options: How to use the device.
        seconds: How long to measure, after the warm-up.
        cold_starts: So many whole processes are timed before.

    Raises:
        UsageError: The parts contradict each other.
    """

    model: str
    mode: Mode = Mode.LATENCY
    device: str = "auto"
    sources: tuple[str, ...] = ()
    batch: int | None = None
    workers: int | None = None
    settings: Settings = field(default_factory=Settings)
    options: DeviceOptions = field(default_factory=DeviceOptions)
    seconds: float = 10.0
    cold_starts: int = 5

    def __post_init__(self) -> None:
        check_seconds(self.seconds)
        if self.mode is Mode.LATENCY and (self.workers or 1) > 1:
            raise UsageError(
                f"--workers {self.workers}: latency is that of one detector",
                "use --mode throughput to measure several at work",
            )
        if "," in self.device:
            raise UsageError(
                f"'{self.device}' are several devices", f"use --sweep device={self.device}"
            )


def check_seconds(seconds: float) -> None:
    """Refuse what is no time to measure for.

    Raises:
        UsageError: It is negative, endless or not a number.
    """
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is no time", "ask for 10, say")
