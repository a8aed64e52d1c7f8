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

    def __post_init__(self) -> None:
        if not 0 <= self.conf <= 1:
            raise UsageError(f"conf is {self.conf}", "a confidence lies between 0 and 1")
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
