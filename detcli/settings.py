"""Settings: how to read a model and which detections to keep, checked once and frozen."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat
from detcli.model.preprocessing import parse
from detcli.tiling import Tiling

USUAL_CONF = 0.25
"""The confidence for models that recommend none, as in Ultralytics' predict."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read a model and which detections to keep.

    Attributes:
        conf: Scores must be strictly above it. None means what the model recommends, or 0.25.
        max_det: Maximum number of detections in a picture.
        classes: Only these classes, by name or id; empty means all.
        nms: IoU above which non-maximum suppression drops a box of the same class with a lower
            score; required for one-to-many heads that recommend none. None means what the model
            recommends, or no suppression.
        imgsz: Side length of the network's input, for graphs with dynamic axes.
        names: A file with class names, one per line, that replace the model's own.
        box_format: Format of the head's boxes, where the graph does not show it.
        class_conf: Confidences of single classes, by name or id, that replace `conf`.
        unique: Keep at most one detection of each anchor, that of its best class.
        rect: Use the smallest input that holds a picture, for graphs with dynamic axes.
        preprocess: How pictures become the input, where the model does not say, or to say it
            otherwise: "stretch,mean=0.485:0.456:0.406,std=0.229:0.224:0.225". What is not named
            stays as it is.
        boxes_only: Read the boxes of a model that finds masks or keypoints too, and leave out the
            rest.
        tile: Look at large pictures in tiles, and once whole. `max_det` is then that of a tile.

    Raises:
        UsageError: A value is out of range.
    """

    conf: float | None = None
    max_det: int = 300
    classes: tuple[str | int, ...] = ()
    nms: float | None = None
    imgsz: int | None = None
    names: str | Path | None = None
    box_format: BoxFormat | None = None
    class_conf: tuple[tuple[str | int, float], ...] = ()
    unique: bool = False
    rect: bool = False
    preprocess: str | None = None
    boxes_only: bool = False
    tile: Tiling | None = None

    def __post_init__(self) -> None:
        for conf in (self.conf, *(least for _, least in self.class_conf)):
            if conf is not None and not 0 <= conf <= 1:
                raise UsageError(f"conf is {conf}", "use a confidence between 0 and 1 in --conf")
        if isinstance(self.classes, str):
            raise UsageError(
                f"classes is the string '{self.classes}'", "use a tuple of names or ids"
            )
        if self.max_det < 1:
            raise UsageError(f"max_det is {self.max_det}", "use 1 or more in --max-det")
        if self.nms is not None and not 0 < self.nms <= 1:
            raise UsageError(f"nms is {self.nms}", "use an IoU above 0 and at most 1 in --nms")
        if self.preprocess is not None:
            parse(self.preprocess)
        if self.imgsz is not None and self.imgsz < 1:
            raise UsageError(f"imgsz is {self.imgsz}", "use 1 pixel or more in --imgsz")

    def confidence(self, recommended: float | None) -> float:
        """`conf` where it is given, else what the model recommends, else the usual one."""
        return next(conf for conf in (self.conf, recommended, USUAL_CONF) if conf is not None)

    def suppression(self, recommended: float | None) -> float | None:
        """`nms` where it is given, else what a one-to-many head recommends, if anything."""
        return recommended if self.nms is None else self.nms


def class_ids(wanted: Iterable[str | int], names: tuple[str, ...]) -> frozenset[int] | None:
    """Class ids of names or ids; None if none are given.

    Raises:
        UsageError: The model has no such class.
    """
    chosen = set()
    for entry in wanted:
        if entry in names:
            chosen |= {index for index, name in enumerate(names) if name == entry}
        elif str(entry).isdecimal() and int(entry) < len(names):
            chosen.add(int(entry))
        else:
            raise UsageError(f"the model has no class '{entry}'", _class_hint(str(entry), names))
    return frozenset(chosen) or None


def _class_hint(wanted: str, names: tuple[str, ...]) -> str:
    """Suggest close matches of a name, or list the first of the model's names."""
    if close := difflib.get_close_matches(wanted, names):
        return f"did you mean {' or '.join(close)}?"
    more = ", ..." if len(names) > 10 else ""
    return f"its {len(names)} classes are: {', '.join(names[:10])}{more}"


def class_thresholds(
    conf: float, class_conf: Iterable[tuple[str | int, float]], names: tuple[str, ...]
) -> npt.NDArray[np.float32]:
    """The confidence that each class must exceed: `(C,)` float32.

    Raises:
        UsageError: The model has no such class.
    """
    thresholds = np.full(len(names), conf, np.float32)
    for entry, least in class_conf:
        thresholds[sorted(class_ids([entry], names) or ())] = least
    return thresholds
