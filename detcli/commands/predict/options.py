"""Values of options: labels, the conditions of `--fail-if`, runs in shards."""

import os
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

from detcli.commands.shared.formats import Format
from detcli.errors import CheckError, UsageError

if TYPE_CHECKING:
    from detcli.shards.engines import OpenEngine

LABEL_PARTS = ("name", "score")


def parse_labels(text: str) -> frozenset[str]:
    """Read the parts of the labels in pictures: `name,score`, one of them, or `none`.

    Raises:
        UsageError: The text has another part.
    """
    parts = frozenset(part.strip() for part in text.split(","))
    if parts == {"none"}:
        return frozenset()
    if not parts <= {*LABEL_PARTS}:
        raise UsageError(
            f"--labels '{text}' has a part other than name and score",
            "write name,score or one of them, or none",
        )
    return parts


def check_resume(output: str | None, wanted: Format | None, conditions: Sequence[str]) -> None:
    """Refuse options that --resume excludes.

    Args:
        output: What records are written to, if that was given.
        wanted: Their format, if it was given.
        conditions: Of --fail-if.

    Raises:
        UsageError: One of them is given.
    """
    if conditions:
        raise UsageError(
            "--fail-if with --resume would count this run only", "count in the file with jq"
        )
    if output is not None:
        raise UsageError("--resume and --output are mutually exclusive", "leave out --output")
    if wanted not in {None, Format.JSONL}:
        raise UsageError(f"--resume writes JSON Lines, not {wanted}", "leave out --format")


ACTORS = re.compile(r"([0-9]{1,6})(?:\.\.([0-9]{1,6}))?", re.ASCII)
SHARE = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """The options of a run in shards.

    Attributes:
        folder: Where manifest and parts go.
        format: Format of the parts.
        engine: Starts the workers.
        share: This run takes every `share[1]`-th shard, from the `share[0]`-th on, counted from 1.
        size: Names in a shard; None for the manifest's, or what suits their number.
        extend: Whether new names become further shards.
    """

    folder: str
    format: Format
    engine: "OpenEngine"
    share: tuple[int, int]
    size: int | None
    extend: bool


def read_shard_options(  # noqa: PLR0913 - one parameter an option
    output: str | None,
    wanted: Format | None,
    *,
    on: str | None,
    actors: str | None,
    shards: str | None,
    size: int | None,
    extend: bool,
    others: Mapping[str, object],
) -> ShardOptions | None:
    """Read the options of a run in shards; None unless the output is a folder.

    Args:
        output: What records are written to.
        wanted: Their format, if it was given.
        on: What works the shards.
        actors: How many actors of Ray do.
        shards: Which of them this run works.
        size: Names in a shard.
        extend: Whether new names become further shards.
        others: Options that do not go with it, and their values.

    Raises:
        UsageError: A value is malformed, or two options do not go together.
    """
    if output is None or not output.endswith(("/", os.sep)):
        if {on, actors, shards, size} != {None} or extend:
            raise UsageError(
                "--on, --actors, --shards, --shard-size and --extend are for runs in shards",
                "name a folder for its parts, with a / at the end: --output boxes/",
            )
        return None
    for name, value in others.items():
        if value:
            later = f"; then detcli report {output} makes a page" if name == "--report" else ""
            raise UsageError(
                f"{name} does not go with a run in shards (--output {output})",
                f"leave it out{later}, or name a file with --output",
            )
    if wanted is not None and not wanted.traits.can_be_part:
        possible = " or ".join(one for one in Format if one.traits.can_be_part)
        raise UsageError(
            f"--format {wanted}: parts are {possible}",
            f"leave it out; detcli merge {output} --format {wanted} writes it from the parts",
        )
    from detcli.shards.engines import parse_engine

    engine = parse_engine("local:1" if on is None else on, _parse_actors(actors))
    share = (1, 1) if shards is None else _parse_share(shards)
    return ShardOptions(output, wanted or Format.JSONL, engine, share, size, extend)


def _parse_actors(text: str | None) -> tuple[int, int] | None:
    """Read `4` or `1..32`: the least number to begin with, and the largest."""
    if text is None:
        return None
    found = ACTORS.fullmatch(text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not max(least, 1) <= most:
        hint = "write 4 for four, 1..32 to begin with one and go up to 32"
        raise UsageError(f"--actors {text} is not a number of actors", hint)
    return least, most


def _parse_share(text: str) -> tuple[int, int]:
    """Read `3/8`: the third of eight."""
    found = SHARE.fullmatch(text)
    share = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= share[0] <= share[1]:
        hint = "write 1/8 for the first of eight tasks, and 8/8 for the last"
        raise UsageError(f"--shards {text} is not a share", hint)
    return share


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
