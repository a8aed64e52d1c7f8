"""The rules of `--by`, which say into which folder an image is sorted."""

import re
from collections.abc import Iterable, Sequence

from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import looks_like_address, public_name
from detcli.data.columns import DetectionJson
from detcli.storage.file_names import safe

ANY = "any"
"""Stands for any class in a rule."""

FAILED = "failed"
"""The folder of inputs with an error: nobody knows what they show."""

EMPTY = "empty"
"""The folder of images that meet no rule."""

GRAMMAR = r"\s*(?P<name>.+?)\s*(?:(?P<sign>>=|>)\s*(?P<score>[0-9.eE+-]+)\s*)?"

HINT = "write CLASS>=SCORE, as in animal>=0.2,person>=0.3"


@frozen
class SortRule:
    """A rule such as animal>=0.2: an image meets it if it shows that class with such a score."""

    text: str  # as it was typed
    class_name: str  # or the id as text, or any
    score: float
    takes_equal: bool  # whether a box with exactly that score counts
    folder: str  # of the images that meet it

    def is_met_by(self, detection: DetectionJson) -> bool:
        """Return whether a detection belongs to the class and has such a score."""
        names = {ANY, detection["class_name"], str(detection["class_id"])}
        if self.class_name not in names:
            return False
        score = detection["score"]
        return score > self.score or (self.takes_equal and score == self.score)


class SortRules:
    """Rules in their order: an image goes to the folder of the first that it meets."""

    def __init__(self, rules: Sequence[SortRule]) -> None:
        self._rules = list(rules)
        self.seen_classes: set[str] = set()  # names and ids of all classes in the records
        self.folders = [rule.folder for rule in rules] + [FAILED, EMPTY]  # by their rank

    @property
    def failed_rank(self) -> int:
        """The rank of an input with an error: before images that are known to be empty."""
        return len(self._rules)

    @property
    def texts(self) -> list[str]:
        """The rules as they were typed."""
        return [rule.text for rule in self._rules]

    @property
    def unseen_classes(self) -> list[str]:
        """The classes of rules that no detection was of."""
        names = []
        for rule in self._rules:
            if rule.class_name != ANY and rule.class_name not in self.seen_classes:
                names.append(rule.class_name)
        return names

    def rank(self, detections: Iterable[DetectionJson]) -> int:
        """Return the rank of an image's folder: an index into `folders`, 0 for the first rule.

        It is that of the first rule that any of its detections meets; if they meet none, it
        is the last. The classes of the detections are added to `seen_classes`.

        Args:
            detections: The detections of an image, whose classes and scores were checked; those
                that are marked as repeated are ignored.
        """
        counted_detections = [detection for detection in detections if "repeated" not in detection]
        for detection in counted_detections:
            self.seen_classes.add(detection["class_name"])
            self.seen_classes.add(str(detection["class_id"]))
        for rank, rule in enumerate(self._rules):
            if any(rule.is_met_by(detection) for detection in counted_detections):
                return rank
        return len(self.folders) - 1


def parse_rules(texts: Iterable[str]) -> SortRules:
    """Parse the rules of --by.

    Raises:
        UsageError: A string is not a rule, or two of them have the same folder.
    """
    rules = []
    folders = {FAILED, EMPTY}
    for text in texts:
        rule = _parse_rule(text)
        folder = rule.folder.casefold()  # as some file systems do not tell cases apart
        if folder in folders:
            raise UsageError(
                f"--by {text}: there is a folder {rule.folder} already",
                "name each class once, and none that is called failed or empty",
            )
        folders.add(folder)
        rules.append(rule)
    return SortRules(rules)


def _parse_rule(text: str) -> SortRule:
    """Parse a rule such as animal>=0.2, or animal for any score.

    Raises:
        UsageError: The text is not a rule.
    """
    if looks_like_address(text):  # its folder and the log would show a password
        raise UsageError(
            f"--by {public_name(text)} is an address, but the option takes rules", HINT
        )
    match = re.fullmatch(GRAMMAR, text)
    if match is None or re.search("[<>=]", match["name"]):
        raise UsageError(f"--by '{text}' is not a rule", HINT)
    score = 0.0
    if match["score"] is not None:
        try:
            score = float(match["score"])
        except ValueError:
            raise UsageError(f"--by '{text}': {match['score']} is not a number", HINT) from None
    if not 0 <= score <= 1:
        raise UsageError(f"--by '{text}': the score is {score:g}", "use one between 0 and 1")
    class_name = match["name"]
    return SortRule(
        text=text,
        class_name=class_name,
        score=score,
        takes_equal=match["sign"] != ">",
        folder=safe(class_name),
    )
