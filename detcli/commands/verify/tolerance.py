"""How far two ways of running may be apart, and still agree."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from detcli.errors import UsageError


class Precision(StrEnum):
    """In what a network computes."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two ways of running may be apart.

    Attributes:
        score: Of a pair of detections.
        corner: Of the sides of a pair, in pixels of the picture.
        boxes: Which share of all boxes may have no counterpart, or one beyond these two.
        tensor: Of two tensors: largest difference, as a share of the largest magnitude.

    Raises:
        UsageError: A value is out of range.
    """

    score: float
    corner: float
    boxes: float
    tensor: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf") or (field.name == "boxes" and value > 1):
                raise UsageError(
                    f"--tolerance: {field.name} is {value}",
                    "give 0 or more; boxes is a share, as in 1% or 0.01",
                )


NAMES = tuple(field.name for field in fields(Tolerance))

# The order of additions differs by device and by version. Five exports of YOLOv10-N agree within
# 0.00001 in score and 0.01 pixels on one device; ten and a hundred times that is left for others.
EXACT = Tolerance(score=0.001, corner=0.1, boxes=0.0, tensor=0.001)
# What 11 bits of mantissa do to YOLOv10-N on 128 pictures: of 537 boxes, 99% stay within 0.013 and
# 0.35 pixels; single ones differ by 0.08, or by one pixel, which is 0.09 of the largest score.
REDUCED = Tolerance(score=0.02, corner=2.0, boxes=0.01, tensor=0.1)


def tolerance_for(precisions: set[Precision], wanted: Mapping[str, float]) -> Tolerance:
    """What was asked for; for the rest, what the precision of the two sides lets expect.

    Args:
        precisions: Of both sides.
        wanted: Values by name of their field.

    Raises:
        UsageError: A value is out of range.
    """
    return replace(EXACT if precisions == {Precision.FLOAT32} else REDUCED, **wanted)


def parse_tolerance(text: str | None, known: tuple[str, ...]) -> dict[str, float]:
    """Read "score=0.02,corner=2,boxes=1%"; a percentage is a share of 1.

    Args:
        text: What was given; None for nothing.
        known: The names that there are.

    Raises:
        UsageError: An entry is no number, or has another name.
    """
    hint = f"write NAME=NUMBER for any of {', '.join(known)}, as in {known[0]}=0.01"
    values = {}
    for entry in (part.strip() for part in (text or "").split(",") if part.strip()):
        name, _, number = (part.strip() for part in entry.partition("="))
        share = 0.01 if number.endswith("%") else 1.0
        try:
            value = float(number.removesuffix("%")) * share
        except ValueError:
            raise UsageError(f"--tolerance '{text}': '{entry}' is no tolerance", hint) from None
        if name not in known or name in values:
            why = "comes twice" if name in values else "is none"
            raise UsageError(f"--tolerance '{text}': '{name}' {why}", hint)
        values[name] = value
    if text is not None and not values:
        raise UsageError(f"--tolerance '{text}' says nothing", hint)
    return values
