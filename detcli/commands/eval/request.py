"""What is asked of an evaluation."""

from dataclasses import dataclass
from pathlib import Path

from detcli.commands.eval.data import DataOptions
from detcli.commands.shared.setup import RunOptions
from detcli.model.zoo import LocatedModel
from detcli.source.decode import DecodeOptions


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        run: Which model, where and how.
        model: The model's file.
        data: On which data.
        decode: How pictures are decoded.
        advise: Whether the best confidences are looked for.
        plots: Folder for plots; None for none.
        coco: File for COCO results; None for none.
    """

    run: RunOptions
    model: LocatedModel
    data: DataOptions
    decode: DecodeOptions
    advise: bool
    plots: Path | None
    coco: Path | None
