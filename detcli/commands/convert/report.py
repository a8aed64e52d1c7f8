"""The report of a conversion; `detcli schema convert` describes its JSON."""

from dataclasses import dataclass
from typing import Literal

StepName = Literal[
    "names", "metadata", "imgsz", "batch", "cut", "half", "int8", "end-to-end", "guard-transpose"
]
"""The option that asks for a step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass over the graph.

    Attributes:
        name: The option that asked for it.
        changed: Whether it changed the graph.
        finding: What it did, or why it changed nothing.
        nodes: Number of nodes in the graph after it.
    """

    name: StepName
    changed: bool
    finding: str
    nodes: int


@dataclass(frozen=True, slots=True)
class File:
    """A model file.

    Attributes:
        path: Its path, as the user named it.
        sha256: SHA-256 of the file.
        bytes: Its size, including external data.
        size: Height and width of the input; None for a dynamic graph.
        batch: Number of pictures in a batch; None for a dynamic batch.
    """

    path: str
    sha256: str
    bytes: int
    size: tuple[int, int] | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How the detections of the old and the new model differ.

    Attributes:
        source: The picture that both models ran on.
        conf: Detections above this score were compared.
        old: Number of detections of the old model.
        new: Of the new model.
        pairs: Detections of both models that match.
        over: Pairs that differ by more than the tolerance.
        borderline: Found by one model only, or with one score below `conf`, since it is near it.
        missing: Found by the old model only.
        extra: Found by the new model only.
        largest_score: Largest difference of the scores of a pair.
        largest_corner: Largest difference of the corners of a pair, in pixels.
        score_tolerance: Allowed difference of scores.
        corner_tolerance: Allowed difference of corners, in pixels.
        boxes_tolerance: Allowed share of boxes that are missing, extra or over.
        batch: Largest difference of the new model's output for a picture in a batch with others
            and without, as a share of the largest value; None if the batch was not converted.
    """

    source: str
    conf: float
    old: int
    new: int
    pairs: int
    over: int
    borderline: int
    missing: int
    extra: int
    largest_score: float
    largest_corner: float
    score_tolerance: float
    corner_tolerance: float
    boxes_tolerance: float
    batch: float | None


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        model: The file that was converted.
        output: The result, written or not.
        written: Whether the result was written.
        steps: The passes, in their order.
        difference: How both models differ.
        failures: Why nothing was written, one sentence each.
    """

    model: File
    output: File
    written: bool
    steps: tuple[Step, ...]
    difference: Difference
    failures: tuple[str, ...]
