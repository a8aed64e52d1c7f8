"""What eval is asked for."""

from dataclasses import dataclass
from pathlib import Path

from detcli.core.config import INPUT, OUTPUT, Config
from detcli.core.options import REQUIRED, option
from detcli.core.values import parse_writable


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """How a model runs, in a Config, and which data it is measured on."""

    config: Config
    data: Path = option(
        REQUIRED,
        "--data DATA",
        "Labelled pictures: COCO's instances.json; YOLO's data.yaml, a list (.txt) or a folder.",
        boxes=False,
        panel=INPUT,
    )
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Pictures of an instances.json; default: images beside it.",
        boxes=False,
        panel=INPUT,
    )
    split: str | None = option(
        None,
        "--split train|val|test",
        "Part of a data.yaml; default: val.",
        boxes=False,
        panel=INPUT,
    )
    advise: bool = option(
        False,
        "--advise",
        "Find the --conf with the best F1, overall and by class.",
        boxes=False,
        panel=OUTPUT,
    )
    plots: Path | None = option(
        None,
        "--plots DIR",
        "Plot precision-recall, F1 by confidence and the confusion matrix, as PNG.",
        boxes=False,
        panel=OUTPUT,
        parse=parse_writable,
    )
