"""`--fail-if`: conditions on how many detections of a class there were."""

import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from detcli.errors import CheckError, UsageError

OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
GRAMMAR = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*")

ANY = "any"


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a count, such as person>0.

    Attributes:
        name: A class, or "any" for all of them.
        sign: One of OPERATORS.
        count: What the number of detections is compared with.
    """

    name: str
    sign: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.count}"


def parse_condition(text: str, names: Sequence[str]) -> Condition:
    """Read a condition.

    Args:
        text: As in "person>0".
        names: The model's classes.

    Raises:
        UsageError: It is none, or the model has no such class.
    """
    match = GRAMMAR.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is no condition", "write CLASS>N, or any>N; also < >= <= == !="
        )
    name = match["name"]
    if name != ANY and name not in names:
        raise UsageError(f"--fail-if '{text}': the model has no class '{name}'", "or use any")
    return Condition(name, match["sign"], int(match["count"]))


def check_conditions(conditions: Sequence[Condition], found: Counter[str]) -> None:
    """Compare what was found in the whole run.

    Raises:
        CheckError: At least one condition holds.
    """
    held = []
    for condition in conditions:
        count = found.total() if condition.name == ANY else found[condition.name]
        if OPERATORS[condition.sign](count, condition.count):
            held.append(f"{condition} ({count} found)")
    if held:
        raise CheckError(f"--fail-if holds: {', '.join(held)}")
