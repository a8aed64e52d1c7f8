"""What a conversion did, as values; detcli/schemas/convert.json describes their JSON."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One pass over the graph.

    Attributes:
        name: The option that asked for it.
        changed: Whether it found anything to do.
        finding: What it did, or why nothing.
        nodes: How many the graph has behind it.
    """

    name: str
    changed: bool
    finding: str
    nodes: int


@dataclass(frozen=True, slots=True)
class File:
    """A model file.

    Attributes:
        path: As it was named.
        sha256: Of its content.
        bytes: Its size, with any external data.
        size: Height and width of its input; None where it takes any.
        batch: How many pictures it takes; None where it takes any number.
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
        source: The picture that both ran on.
        conf: Confidence above which detections were compared.
        old: Detections of the old model.
        new: Of the new one.
        pairs: Detections of both that belong together.
        over: Pairs further apart than the tolerance.
        borderline: Found by one only since the score is at the confidence.
        missing: Found by the old one only.
        extra: Found by the new one only.
        largest_score: Largest difference of the scores of a pair.
        largest_corner: Largest difference of the corners of a pair, in pixels.
        score_tolerance: What is allowed of the former.
        corner_tolerance: What is allowed of the latter.
        boxes_tolerance: Which share may be missing, extra or over.
        batch: Largest difference between what the new model makes of a picture in a batch with
            others and without, as a share of the largest value; None where it was not looked at.
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
    """What a conversion did.

    Attributes:
        model: The file that was converted.
        output: The file that was made, or would have been.
        written: Whether it was.
        steps: What was done, in this order.
        difference: Between the two.
        failures: Why nothing was written, one sentence each.
    """

    model: File
    output: File
    written: bool
    steps: tuple[Step, ...]
    difference: Difference
    failures: tuple[str, ...]
