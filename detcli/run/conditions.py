"""The conditions of `--fail-if`, such as person>0, on what a run counted."""

import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from operator import eq, ge, gt, le, lt, ne

from detcli.core import frozen
from detcli.core.errors import CheckError, InputError, UsageError
from detcli.core.text import pluralize
from detcli.run.counts import Counts

OPERATORS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}

GRAMMAR = r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*"

ANY = "any"


@frozen
class Condition:
    """A condition such as person>0 or door.person>0, on detections of a class or of any class."""

    name: str  # of the class, or any
    sign: str  # one of OPERATORS
    count: int  # what the number of detections is compared with
    zone_or_line: str = ""  # that detections are in or have crossed; empty for all

    def __str__(self) -> str:
        text = f"{self.name}{self.sign}{self.count}"
        if self.zone_or_line:
            return f"{self.zone_or_line}.{text}"
        return text

    def detection_count(self, counts: Counts) -> int:
        """Return how many of the counted detections the condition is about.

        `person>0` is about all of the class person, `door.person>0` about those of them in the zone
        "door" or across the line "door", and `door.any>0` about all classes there.
        """
        if self.zone_or_line:
            detections_by_class = _detections_at(self.zone_or_line, counts)
        else:
            detections_by_class = counts.detections_by_class
        if self.name == ANY:
            return detections_by_class.total()
        return detections_by_class[self.name]

    def holds_for(self, detection_count: int) -> bool:
        """Return whether the condition holds for the given number of detections."""
        compare: Callable[[int, int], bool] = OPERATORS[self.sign]
        return compare(detection_count, self.count)


def _detections_at(zone_or_line: str, counts: Counts) -> Counter[str]:
    """Return how many detections of each class were in a zone, or have crossed a line.

    Crossings of a line named "gate" are counted apart, as "gate left" and "gate right".

    Args:
        zone_or_line: The name of a zone, of a line, or of one side of a line, "gate left". That of
            a line stands for both of its sides.
        counts: What the run counted.
    """
    start_of_sides = f"{zone_or_line} "
    detections_by_class: Counter[str] = Counter()
    for (zone_or_side, class_name), count in counts.zones_and_lines.items():
        if zone_or_side == zone_or_line or zone_or_side.startswith(start_of_sides):
            detections_by_class[class_name] += count
    return detections_by_class


def parse_condition(
    text: str,
    names: Sequence[str],
    zones_and_lines: Sequence[str] = (),
    excluded: Container[str] = (),
) -> Condition:
    """Parse a condition, such as "person>0", or "door.person>0" for a zone or line named door.

    The name of a class may contain dots, so it is tried first.

    Args:
        text: The condition.
        names: The model's classes.
        zones_and_lines: The names of zones and lines.
        excluded: Classes that are not among those of --classes.

    Raises:
        UsageError: The string is not a condition, or names a class, zone or line that does not
            exist.
    """
    match = re.fullmatch(GRAMMAR, text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is not a condition",
            "write CLASS>N, any>N or ZONE.CLASS>N; < >= <= == != work too",
        )
    name = match["name"]
    if name in zones_and_lines and name not in {ANY, *names}:
        raise UsageError(
            f"--fail-if '{text}': '{name}' is a zone or a line, not a class",
            f"write {name}.any{match['sign']}{match['count']}, or a class in place of any",
        )
    class_name = name
    zone_or_line = ""
    text_before_dot, _, text_after_dot = name.partition(".")
    if name not in names and text_before_dot in zones_and_lines:
        class_name = text_after_dot
        zone_or_line = text_before_dot
    if class_name not in {ANY, *names}:
        if text_after_dot in {ANY, *names}:
            reason = f"no zone or line is named '{text_before_dot}'"
            hint = "add it with --zone or --line"
        else:
            reason = f"the model has no class '{class_name}'"
            hint = "name one of its classes, or any"
        if zones_and_lines:
            hint += f"; there are {', '.join(zones_and_lines)}"
        raise UsageError(f"--fail-if '{text}': {reason}", hint)
    if class_name in excluded:
        raise UsageError(
            f"--fail-if '{text}': {class_name} is not among --classes, so none is found",
            f"add {class_name} to --classes",
        )
    return Condition(class_name, match["sign"], int(match["count"]), zone_or_line)


def check_conditions(
    conditions: Sequence[Condition], counts: Counts, *, complete: bool = True
) -> None:
    """Check the conditions of `--fail-if` on the whole run; none of them may hold.

    If inputs were not seen, there may be any number of other detections in them. A condition then
    holds only if it holds for each possible number.

    Args:
        conditions: The conditions.
        counts: What was counted.
        complete: Whether the run reached its last input.

    Raises:
        CheckError: A condition holds, whatever was not seen.
        InputError: None holds for certain, but inputs that were not seen may make one hold.
    """
    why_incomplete = _why_incomplete(counts, complete=complete)
    holding = []
    undecided = []
    for condition in conditions:
        detected = condition.detection_count(counts)
        if why_incomplete:
            possible_counts = _possible_counts(detected, condition.count)
        else:
            possible_counts = [detected]

        outcomes = [condition.holds_for(possible_count) for possible_count in possible_counts]
        if all(outcomes):
            holding.append(f"{condition} ({detected} found)")
        elif any(outcomes):
            undecided.append(f"{condition} ({detected} found)")

    if holding:
        raise CheckError(f"--fail-if holds: {', '.join(holding)}")
    if undecided:
        raise InputError(
            f"--fail-if is undecided, as {why_incomplete}: {', '.join(undecided)}",
            "a condition is decided when all inputs were read, or as soon as no more can change it",
        )


def _possible_counts(detected: int, compared: int) -> list[int]:
    """Return how many detections there may be if inputs were not seen: a few numbers for all.

    There are `detected` or any larger number. A condition compares it only with one number. All
    numbers below that one have the same outcome, and so have all numbers above it: for person>3 and
    1 detection, the numbers 1, 3 and 4 stand for all numbers from 1 upwards.

    Args:
        detected: How many were detected.
        compared: The number that the condition compares with.
    """
    return [detected, max(detected, compared), max(detected, compared + 1)]


def _why_incomplete(counts: Counts, *, complete: bool) -> str:
    """Explain why a run may have missed detections; empty if it has seen all of its inputs.

    Args:
        counts: What the run counted.
        complete: Whether it reached its last input.
    """
    if not complete:
        return "the run ended before its last input"
    if counts.input_count == 0:
        return "there were no inputs"
    if counts.failed:
        return f"{pluralize(counts.failed, 'input')} failed"
    return ""
