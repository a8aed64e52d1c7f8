"""Settings: what a user may ask of a model, checked once and frozen."""

from dataclasses import dataclass
from pathlib import Path

from detcli.errors import UsageError
from detcli.model.contract import BoxFormat


@dataclass(frozen=True, slots=True)
class Settings:
    """How to read a model and which detections to keep.

    Attributes:
        conf: Scores must be strictly above it.
        max_det: At most so many detections in a picture.
        classes: Only these classes, by name or id; empty means all.
        nms: IoU above which a box of the same class is a duplicate of a better one; needed for
            one-to-many heads. None means no non-maximum suppression.
        imgsz: Side length of the network's input, for graphs with dynamic axes.
        names: A file with class names, one a line, in place of the model's own.
        box_format: What the head's boxes are, where the graph does not show it.
        class_conf: A confidence for single classes, by name or id, in place of `conf`.
        unique: At most one detection for each anchor, of its best class.
        rect: Feed the smallest rectangle that holds a picture, for graphs with dynamic axes.

    Raises:
        UsageError: A value is out of range.
    """

    conf: float = 0.25
    max_det: int = 300
    classes: tuple[str | int, ...] = ()
    nms: float | None = None
    imgsz: int | None = None
    names: str | Path | None = None
    box_format: BoxFormat | None = None
    class_conf: tuple[tuple[str | int, float], ...] = ()
    unique: bool = False
    rect: bool = False

    def __post_init__(self) -> None:
        for conf in (self.conf, *(least for _, least in self.class_conf)):
            if not 0 <= conf <= 1:
                raise UsageError(f"conf is {conf}", "a confidence lies between 0 and 1")
        if isinstance(self.classes, str):
            raise UsageError(
                f"classes is the text '{self.classes}'", "give a tuple of names or ids"
            )
        if self.max_det < 1:
            raise UsageError(f"max_det is {self.max_det}", "ask for one detection or more")
        if self.nms is not None and not 0 < self.nms <= 1:
            raise UsageError(f"nms is {self.nms}", "an IoU lies above 0 and up to 1")
        if self.imgsz is not None and self.imgsz < 1:
            raise UsageError(f"imgsz is {self.imgsz}", "a side length is 1 pixel or more")
