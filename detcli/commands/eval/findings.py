"""What deserves a look about the data, or about the pictures that were to be evaluated."""

from dataclasses import dataclass
from enum import StrEnum

MOST_EXAMPLES = 5


class Level(StrEnum):
    """How grave a finding is."""

    FAILURE = "failure"  # pictures are left out: exit code 3
    WARNING = "warning"  # the figures may be about something else than the reader thinks
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding.

    Attributes:
        title: What it is, in the singular.
        level: How grave it is.
        meaning: What was done about it.
    """

    title: str
    level: Level
    meaning: str


_OUT = "left out of the figures"
_OUTSIDE = "more than a pixel of it; kept as it is, but a detection ends at the picture's edge"
_NAMELESS = "none of the model's classes is called so: its boxes are left out of the figures"
_UNASKED = "no category of the data is called so: its detections are left out of the figures"
_SIZE = "boxes are compared as they are, and may be of another picture or orientation"

MISSING = Kind("missing picture", Level.FAILURE, f"{_OUT}, with its boxes")
UNREADABLE = Kind("unreadable picture", Level.FAILURE, f"{_OUT}, with its boxes")
REPEATED = Kind("picture listed twice", Level.WARNING, "evaluated once")
OTHER_SIZE = Kind("picture of another size than the data says", Level.WARNING, _SIZE)
UNLABELLED = Kind("picture without a label file", Level.NOTE, "taken for background")
BAD_LABEL = Kind("unreadable label", Level.WARNING, _OUT)
OUTSIDE = Kind("box outside the picture", Level.WARNING, _OUTSIDE)
NO_AREA = Kind("box without area", Level.WARNING, "kept: a box that no detection can match")
UNKNOWN_CATEGORY = Kind("box of an unknown category", Level.WARNING, _OUT)
UNKNOWN_PICTURE = Kind("box of an unknown picture", Level.WARNING, _OUT)
REPEATED_CATEGORY = Kind(
    "category listed twice", Level.WARNING, "boxes of both are taken for boxes of the first"
)
NO_CLASS = Kind("category that the model does not know", Level.WARNING, _NAMELESS)
NO_CATEGORY = Kind("class that the data does not know", Level.WARNING, _UNASKED)
EMPTY = Kind(
    "class without boxes", Level.NOTE, "no figures for it; its false alarms lower none but F1"
)
CROWD = Kind("crowd", Level.NOTE, "neither to be found nor a false alarm where it is found")
IGNORED = Kind("box to be ignored", Level.NOTE, "neither to be found nor a false alarm")
CUT = Kind(
    "picture with more detections of a class than are evaluated",
    Level.NOTE,
    "the evaluator takes the best 100 of each class in a picture",
)
HIGH_CONFIDENCE = Kind(
    "high --conf", Level.WARNING, "what scores less counts as not found: the figures are too low"
)

KINDS = (
    *(MISSING, UNREADABLE, REPEATED, OTHER_SIZE, UNLABELLED, BAD_LABEL, OUTSIDE, NO_AREA),
    *(UNKNOWN_CATEGORY, UNKNOWN_PICTURE, REPEATED_CATEGORY, NO_CLASS, NO_CATEGORY, EMPTY),
    *(CROWD, IGNORED, CUT, HIGH_CONFIDENCE),
)
"""All of them, in the order of the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one kind; the first five are examples."""

    kind: str
    level: Level
    count: int
    meaning: str
    examples: tuple[str, ...]


class Findings:
    """Collects them; what is found a million times takes no more memory than what is found once."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._examples: dict[Kind, list[str]] = {}

    def add(self, kind: Kind, example: str, count: int = 1) -> None:
        """Count some of a kind; the example stands for all of them."""
        if count:
            self._counts[kind] = self._counts.get(kind, 0) + count
            examples = self._examples.setdefault(kind, [])
            if len(examples) < MOST_EXAMPLES:
                examples.append(example)

    def report(self) -> tuple[Finding, ...]:
        """What was found, failures first."""
        found = [kind for kind in KINDS if kind in self._counts]
        return tuple(
            Finding(
                *(kind.title, kind.level, self._counts[kind], kind.meaning),
                tuple(self._examples[kind]),
            )
            for level in Level
            for kind in found
            if kind.level is level
        )
