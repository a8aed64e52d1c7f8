"""What is asked of an evaluation."""

from dataclasses import dataclass
from pathlib import Path

from detcli.backend.options import DeviceOptions
from detcli.commands.eval.data import DataOptions
from detcli.settings import Settings
from detcli.source.decode import DecodeOptions


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        model: Its path or name, as it was given.
        file: Its file.
        data: On which data.
        settings: Which detections take part.
        devices: Where to run; one detector or more on each.
        device_options: How to use these.
        batch: Pictures in a batch; None is what suits the device.
        decode: How pictures are decoded.
        advise: Whether the best confidences are looked for.
        plots: Folder for plots; None for none.
        coco: File for COCO results; None for none.
    """

    model: str
    file: Path
    data: DataOptions
    settings: Settings
    devices: tuple[str, ...]
    device_options: DeviceOptions
    batch: int | None
    decode: DecodeOptions
    advise: bool
    plots: Path | None
    coco: Path | None
