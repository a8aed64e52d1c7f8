"""What is odd about labelled pictures: kinds of findings, counted with a few examples."""

from collections import Counter, defaultdict
from enum import Enum, StrEnum

from detcli.core import frozen

MAX_EXAMPLES = 5


class Level(StrEnum):
    """How serious a finding is."""

    FAILURE = "failure"  # pictures are left out: exit code 3
    WARNING = "warning"  # the figures may not mean what the reader thinks
    NOTE = "note"


_FAILURE, _WARNING, _NOTE = Level
_OUT = "left out of the figures"
_NEITHER = "neither missed nor, where detected, a false positive"


class Kind(Enum):
    """A kind of finding: its title, level and consequence."""

    MISSING = "missing picture", _FAILURE, f"{_OUT}, with its boxes"
    UNREADABLE = "unreadable picture", _FAILURE, f"{_OUT}, with its boxes"
    REPEATED = "picture listed twice", _WARNING, "evaluated once"
    OTHER_SIZE = (
        *("picture of another size than the data says", _WARNING),
        "boxes are compared unchanged; they may belong to another picture or orientation",
    )
    UNLABELLED = "picture without a label file", _NOTE, "treated as background"
    BAD_LABEL = "unreadable label", _WARNING, _OUT
    REPEATED_LABEL = "label that is there twice", _WARNING, "evaluated once, as trainers take it"
    REPEATED_ANNOTATION = (
        *("annotation that is there twice", _WARNING),
        "both count, as in COCO's own evaluation, although a detection can match only one",
    )
    KEYPOINTS = (
        *("label of equally many numbers each, as keypoints have", _WARNING),
        "taken for a polygon; if it is a box with keypoints, add kpt_shape to a data.yaml",
    )
    CORNERS = (
        *("label of eight numbers", _NOTE),
        "taken for four corners; if it is a box with two keypoints, add kpt_shape to a data.yaml",
    )
    OUTSIDE = (
        *("box outside the picture", _WARNING),
        "by more than a pixel; kept unchanged, although most models' boxes end at the edge",
    )
    NO_AREA = "box without area", _WARNING, "kept, although no detection can match it"
    UNKNOWN_CATEGORY = "box of an unknown category", _WARNING, _OUT
    UNKNOWN_PICTURE = "box of an unknown picture", _WARNING, _OUT
    REPEATED_CATEGORY = (
        *("category listed twice", _WARNING),
        "boxes of both count as boxes of the first",
    )
    NO_CLASS = (
        *("category that the model does not know", _WARNING),
        f"no class of the model has this name: its boxes are {_OUT}",
    )
    NO_CATEGORY = (
        *("class that the data does not know", _WARNING),
        f"no category of the data has this name: its detections are {_OUT}",
    )
    EMPTY = "class without boxes", _NOTE, "has no figures; its false positives lower only F1"
    CROWD = "crowd", _NOTE, _NEITHER
    IGNORED = "box to be ignored", _NOTE, _NEITHER
    CUT = (
        *("picture with more detections of a class than are evaluated", _NOTE),
        "only the best 100 of each class in a picture are evaluated",
    )
    HIGH_CONFIDENCE = (
        *("high --conf", _WARNING),
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
        return tuple(
            Finding(title, level, self._counts[kind], meaning, tuple(self._examples[kind]))
            for level in Level
            for kind in Kind
            for title, of, meaning in [kind.value]
            if of is level and self._counts[kind]
        )
