"""Counts of a run, a shard or a piece of one, and the conditions of `--fail-if` on them."""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, fields
from operator import eq, ge, gt, le, lt, ne

from detcli.core import frozen
from detcli.core.errors import CheckError, DetcliError, InputError, UsageError
from detcli.core.text import count
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import Record

OPERATORS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
GRAMMAR = r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*"

ANY = "any"

SHOWN_CLASSES = 5  # how many classes a summary counts one by one


@dataclass(slots=True)
class Counts:
    """What became of inputs."""

    pictures: int = 0  # those that failed are not among them
    frames: int = 0  # of videos and streams
    failed: int = 0
    found: Counter[str] = field(default_factory=Counter)  # detections of each class
    # detections in each zone, by its name and the class
    places: Counter[tuple[str, str]] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)  # pictures and frames, by what ran them
    # of inputs, by their names: errors and warnings; who says them takes them out
    messages: list[tuple[str, DetcliError | str]] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)  # of the messages taken out, the kinds

    @property
    def done(self) -> int:
        return self.pictures + self.frames + self.failed

    def add(self, record: Record) -> None:
        """Count a record."""
        source = record.origin.source
        if record.error is not None:
            self.failed += 1
            record.error.__cause__ = record.error.__context__ = None  # they hold pictures
            self.messages.append((source, record.error.with_traceback(None)))
            return
        self.messages += ((source, warning) for warning in record.warnings)
        self.pictures += record.origin.clip is None
        self.frames += record.origin.clip is not None
        if record.detections is not None:
            precision = f" ({record.precision})" if record.precision else ""
            self.devices[f"{record.device}{precision}"] += 1
            self.found.update(name for *_, name in record.detections)
            self.places.update(record.detections.places())

    def include(self, other: "Counts") -> None:
        """Add the counts of other inputs."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def summary(
        self,
        seconds: float,
        skipped: int = 0,
        dropped: int = 0,
        times: StageTimes | None = None,
        *,
        stages: bool = True,
    ) -> Iterator[str]:
        """How much was done where, with its `stages` where the time went, and what was found."""
        parts = {
            count(self.pictures, "picture"): self.pictures or not self.frames,
            count(self.frames, "frame"): self.frames,
            count(self.found.total(), "detection"): True,
            f"{self.failed} failed": self.failed,
            f"{skipped} skipped": skipped,
            f"{count(dropped, 'frame')} dropped": dropped,
        }
        line = f"{', '.join(part for part, shown in parts.items() if shown)}, {seconds:.2f} s"
        if self.done > 1:
            line += f", {self.done / seconds:.1f}/s"
        if self.devices:
            line += f" on {', '.join(sorted(self.devices))}"
        if self.done > 1 and stages and times is not None:
            # of the work, which threads do in parallel, not of the elapsed time
            work = sum(times.values()) or 1.0
            shares = [f"{one} {times[one] / work:.0%}" for one in Stage if one in times]
            line += f"; {', '.join(shares)}"
        yield line
        if self.done > 1 and self.found:
            yield f"found {_most(self.found)}"
        for place in dict.fromkeys(place for place, _ in sorted(self.places)):
            inside = Counter(
                {name: n for (where, name), n in self.places.items() if where == place}
            )
            crossed, _, side = place.partition(" ")
            where = f"crossed {crossed} to the {side}" if side else f"in {place}"
            yield f"{where}: {_most(inside)}"


def _most(found: Counter[str]) -> str:
    """The most frequent classes, and how many others there are."""
    shown = [f"{number} {name}" for name, number in found.most_common(SHOWN_CLASSES)]
    more = len(found) - len(shown)
    return ", ".join(shown) + f" and {more} more class{'es' * (more > 1)}" * (more > 0)


@frozen
class Condition:
    """A condition such as person>0 or door.person>0, on detections of a class or of any class."""

    name: str  # of the class, or any
    sign: str  # one of OPERATORS
    count: int  # what the number of detections is compared with
    place: str = ""  # the zone that they are in, or the line that they crossed; empty for any

    def __str__(self) -> str:
        return f"{self.place}{'.' if self.place else ''}{self.name}{self.sign}{self.count}"

    def number(self, counts: Counts) -> int:
        """How many detections it is about."""
        found = counts.found
        if self.place:
            found = Counter()
            for (place, name), number in counts.places.items():
                if place == self.place or place.startswith(f"{self.place} "):  # either way
                    found[name] += number
        return found.total() if self.name == ANY else found[self.name]


def parse_condition(
    text: str,
    names: Sequence[str],
    places: Sequence[str] = (),
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
    if name in places and name not in {ANY, *names}:
        raise UsageError(
            f"--fail-if '{text}': '{name}' is a zone or a line, not a class",
            f"write {name}.any{match['sign']}{match['count']}, or a class in place of any",
        )
    zone, _, rest = name.partition(".")
    if name not in names and zone in places:
        name, place = rest, zone
    if name != ANY and name not in names:
        missing, hint = f"the model has no class '{name}'", "name one of its classes, or any"
        if rest in {ANY, *names}:
            missing, hint = f"no zone or line is named '{zone}'", "add it with --zone or --line"
        hint += f"{'; there are ' * bool(places)}{', '.join(places)}"
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
    unseen = f"{count(counts.failed, 'input')} failed" * bool(counts.failed)
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
