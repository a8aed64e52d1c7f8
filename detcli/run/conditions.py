"""The conditions of `--fail-if` on what a run counted."""

import re
from collections import Counter
from collections.abc import Container, Sequence
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
    zone_or_line: str = ""  # that they are in, or that they crossed; empty for all detections

    def __str__(self) -> str:
        prefix = f"{self.zone_or_line}." if self.zone_or_line else ""
        return f"{prefix}{self.name}{self.sign}{self.count}"

    def number(self, counts: Counts) -> int:
        """How many detections it is about."""
        found = counts.found
        if self.zone_or_line:
            found = Counter()
            either_side = f"{self.zone_or_line} "  # of a line
            for (zone_or_line, name), number in counts.zones_and_lines.items():
                if zone_or_line == self.zone_or_line or zone_or_line.startswith(either_side):
                    found[name] += number
        return found.total() if self.name == ANY else found[self.name]


def parse_condition(
    text: str,
    names: Sequence[str],
    zones_and_lines: Sequence[str] = (),
    left_out: Container[str] = (),
) -> Condition:
    """Read a condition, such as "person>0", on a model's classes, and on zones and lines.

    Classes that are `left_out` are not among those of --classes.
    """
    match = re.fullmatch(GRAMMAR, text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is not a condition",
            "write CLASS>N, any>N or ZONE.CLASS>N; < >= <= == != work too",
        )
    name, place = match["name"], ""
    if name in zones_and_lines and name not in {ANY, *names}:
        raise UsageError(
            f"--fail-if '{text}': '{name}' is a zone or a line, not a class",
            f"write {name}.any{match['sign']}{match['count']}, or a class in place of any",
        )
    zone, _, rest = name.partition(".")
    if name not in names and zone in zones_and_lines:
        name, place = rest, zone
    if name != ANY and name not in names:
        missing, hint = f"the model has no class '{name}'", "name one of its classes, or any"
        if rest in {ANY, *names}:
            missing, hint = f"no zone or line is named '{zone}'", "add it with --zone or --line"
        hint += f"{'; there are ' * bool(zones_and_lines)}{', '.join(zones_and_lines)}"
        raise UsageError(f"--fail-if '{text}': {missing}", hint)
    if name in left_out:
        raise UsageError(
            f"--fail-if '{text}': {name} is not among --classes, so none is found",
            f"add {name} to --classes",
        )
    return Condition(name, match["sign"], int(match["count"]), place)


def check_conditions(
    conditions: Sequence[Condition], counts: Counts, *, complete: bool = True
) -> None:
    """Check the conditions, none of which may hold, on the whole run.

    What nobody looked at may have held any number of detections: inputs that failed, those that
    follow in a run that is not `complete`, and all of them where there were none.

    Raises:
        CheckError: A condition holds, whatever was not seen.
        InputError: None of them does, but one would with some number in what was not seen.
    """
    unseen = f"{pluralize(counts.failed, 'input')} failed" * bool(counts.failed)
    if not counts.done:
        unseen = "there were no inputs"
    if not complete:
        unseen = "the run ended before its last input"
    held, unknown = [], []
    for one in conditions:
        number, holds = one.number(counts), OPERATORS[one.sign]
        # of all numbers from this one on, these tell the result apart
        possible = {number, *(max(number, one.count + more) for more in (0, 1) if unseen)}
        results = {holds(possibly, one.count) for possibly in possible}
        if False not in results:
            held.append(f"{one} ({number} found)")
        elif True in results:
            unknown.append(f"{one} ({number} found)")
    if held:
        raise CheckError(f"--fail-if holds: {', '.join(held)}")
    if unknown:
        hint = (
            "a condition is decided when all inputs were read, or as soon as no more can change it"
        )
        raise InputError(f"--fail-if is undecided, as {unseen}: {', '.join(unknown)}", hint)
