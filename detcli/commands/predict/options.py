"""The conditions of `--fail-if`."""

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from detcli.errors import CheckError, UsageError

OPERATORS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
GRAMMAR = r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*"

ANY = "any"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition such as person>0 or door.person>0, on detections of a class or of any class.

    Attributes:
        name: The class, or any.
        sign: One of OPERATORS.
        count: What the number of detections is compared with.
        place: The zone that they are in, or the line that they crossed; empty for any.
    """

    name: str
    sign: str
    count: int
    place: str = ""

    def __str__(self) -> str:
        return f"{self.place}{'.' if self.place else ''}{self.name}{self.sign}{self.count}"

    def number(self, found: Counter[str], places: Counter[tuple[str, str]]) -> int:
        """How many detections it is about."""
        if self.place:
            found = Counter()
            for (place, name), number in places.items():
                if place == self.place or place.startswith(f"{self.place} "):  # either way
                    found[name] += number
        return found.total() if self.name == ANY else found[self.name]


def parse_condition(
    text: str,
    names: Sequence[str],
    places: Sequence[str] = (),
    left_out: Container[str] = (),
) -> Condition:
    """Read a condition.

    Args:
        text: The condition, such as "person>0".
        names: The model's classes.
        places: The names of zones and lines.
        left_out: Classes that are not among those of --classes.

    Raises:
        UsageError: The text is not a condition, or names an unknown class or zone, or a class that
            is never found.
    """
    match = re.fullmatch(GRAMMAR, text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is not a condition",
            "write CLASS>N, any>N or ZONE.CLASS>N; < >= <= == != work too",
        )
    name, place = match["name"], ""
    if name in places and name not in {ANY, *names}:
        raise UsageError(
            f"--fail-if '{text}': '{name}' is a zone or a line, not a class",
            f"write {name}.any{match['sign']}{match['count']}, or a class in place of any",
        )
    zone, _, rest = name.partition(".")
    if name not in names and zone in places:
        name, place = rest, zone
    if name != ANY and name not in names:
        raise UsageError(
            f"--fail-if '{text}': the model has no class '{name}'",
            f"name one of its classes, or any{'; there are ' * bool(places)}{', '.join(places)}",
        )
    if name in left_out:
        raise UsageError(
            f"--fail-if '{text}': {name} is not among --classes, so none is found",
            f"add {name} to --classes",
        )
    return Condition(name, match["sign"], int(match["count"]), place)


def check_conditions(
    conditions: Sequence[Condition],
    found: Counter[str],
    places: Counter[tuple[str, str]] | None = None,
) -> None:
    """Check the conditions on the whole run.

    Args:
        conditions: What must not hold.
        found: Number of detections of each class.
        places: Number in each zone, by its name and the class.

    Raises:
        CheckError: At least one condition holds.
    """
    held = []
    for condition in conditions:
        count = condition.number(found, places or Counter())
        if OPERATORS[condition.sign](count, condition.count):
            held.append(f"{condition} ({count} found)")
    if held:
        raise CheckError(f"--fail-if holds: {', '.join(held)}")
