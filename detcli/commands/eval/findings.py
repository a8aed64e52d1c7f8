"""What is odd about labelled images: kinds of findings, counted with a few examples."""

from collections import Counter, defaultdict
from enum import Enum, StrEnum

from detcli.core import frozen

MAX_EXAMPLES = 5


class Level(StrEnum):
    """How serious a finding is."""

    FAILURE = "failure"  # images are left out: exit code 3
    WARNING = "warning"  # the figures may not mean what the reader thinks
    NOTE = "note"


_LEFT_OUT = "left out of the figures"
_NEITHER = "neither missed nor, where detected, a false positive"


class Kind(Enum):
    """A kind of finding: its title, level and consequence."""

    MISSING = "missing picture", Level.FAILURE, f"{_LEFT_OUT}, with its boxes"
    UNREADABLE = "unreadable picture", Level.FAILURE, f"{_LEFT_OUT}, with its boxes"
    REPEATED = "picture listed twice", Level.WARNING, "evaluated once"
    OTHER_SIZE = (
        "picture of another size than the data says",
        Level.WARNING,
        "boxes are compared unchanged; they may belong to another image or orientation",
    )
    UNLABELLED = "picture without a label file", Level.NOTE, "treated as background"
    BAD_LABEL = "unreadable label", Level.WARNING, _LEFT_OUT
    REPEATED_LABEL = (
        "label that is there twice",
        Level.WARNING,
        "evaluated once, as trainers take it",
    )
    REPEATED_ANNOTATION = (
        "annotation that is there twice",
        Level.WARNING,
        "both count, as in COCO's own evaluation, although a detection can match only one",
    )
    KEYPOINTS = (
        "label of equally many numbers each, as keypoints have",
        Level.WARNING,
        "taken for a polygon; if it is a box with keypoints, add kpt_shape to a data.yaml",
    )
    CORNERS = (
        "label of eight numbers",
        Level.NOTE,
        "taken for four corners; if it is a box with two keypoints, add kpt_shape to a data.yaml",
    )
    OUTSIDE = (
        "box outside the picture",
        Level.WARNING,
        "by more than a pixel; kept unchanged, although most models' boxes end at the edge",
    )
    NO_AREA = "box without area", Level.WARNING, "kept, although no detection can match it"
    UNKNOWN_CATEGORY = "box of an unknown category", Level.WARNING, _LEFT_OUT
    UNKNOWN_IMAGE = "box of an unknown picture", Level.WARNING, _LEFT_OUT
    REPEATED_CATEGORY = (
        "category listed twice",
        Level.WARNING,
        "boxes of both count as boxes of the first",
    )
    NO_CLASS = (
        "category that the model does not know",
        Level.WARNING,
        f"no class of the model has this name: its boxes are {_LEFT_OUT}",
    )
    NO_CATEGORY = (
        "class that the data does not know",
        Level.WARNING,
        f"no category of the data has this name: its detections are {_LEFT_OUT}",
    )
    EMPTY = "class without boxes", Level.NOTE, "has no figures; its false positives lower only F1"
    CROWD = "crowd", Level.NOTE, _NEITHER
    IGNORED = "box to be ignored", Level.NOTE, _NEITHER
    CUT = (
        "picture with more detections of a class than are evaluated",
        Level.NOTE,
        "only the best 100 of each class in an image are evaluated",
    )
    HIGH_CONFIDENCE = (
        "high --conf",
        Level.WARNING,
        "detections at or below it count as missed: the figures are too low",
    )


@frozen
class Finding:
    """The findings of one kind, with the first five as examples."""

    kind: str
    level: Level
    count: int
    meaning: str
    examples: tuple[str, ...]

    def text(self) -> str:
        """In one line, without the level and examples."""
        return f"{self.kind} ({self.count}): {self.meaning}"


class Findings:
    """Counts findings; memory does not grow with their number."""

    def __init__(self) -> None:
        self._counts: Counter[Kind] = Counter()
        self._examples: defaultdict[Kind, list[str]] = defaultdict(list)

    def add(self, kind: Kind, example: str, count: int = 1) -> None:
        """Count findings of a kind, the example among them."""
        self._counts[kind] += count
        if len(self._examples[kind]) < MAX_EXAMPLES:
            self._examples[kind].append(example)

    def report(self) -> tuple[Finding, ...]:
        """All findings, failures first."""
        findings = []
        for level in Level:
            for kind in Kind:
                title, level_of_kind, meaning = kind.value
                count = self._counts[kind]
                if level_of_kind is level and count:
                    examples = tuple(self._examples[kind])
                    findings.append(Finding(title, level, count, meaning, examples))
        return tuple(findings)
