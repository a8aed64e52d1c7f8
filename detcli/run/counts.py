"""Counts of a run, a shard or a piece of one, and the conditions of `--fail-if` on them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from detcli.core.errors import DetcliError
from detcli.core.text import pluralize
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import Record

SHOWN_CLASSES = 5  # how many classes a summary counts one by one


@dataclass(slots=True)
class Counts:
    """What became of inputs."""

    pictures: int = 0  # those that failed are not among them
    frames: int = 0  # of videos and streams
    failed: int = 0
    found: Counter[str] = field(default_factory=Counter)  # detections of each class
    # detections in each zone, by its name and the class
    zones_and_lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)  # pictures and frames, by what ran them
    # of inputs, by their names: errors and warnings; who says them takes them out
    messages: list[tuple[str, DetcliError | str]] = field(default_factory=list)
    printed_kinds: Counter[str] = field(
        default_factory=Counter
    )  # of the messages taken out, the kinds

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
        self.pictures += record.origin.video is None
        self.frames += record.origin.video is not None
        if record.detections is not None:
            precision = f" ({record.precision})" if record.precision else ""
            self.devices[f"{record.device}{precision}"] += 1
            self.found.update(name for *_, name in record.detections)
            self.zones_and_lines.update(record.detections.zones_and_lines())

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
            pluralize(self.pictures, "picture"): self.pictures or not self.frames,
            pluralize(self.frames, "frame"): self.frames,
            pluralize(self.found.total(), "detection"): True,
            f"{self.failed} failed": self.failed,
            f"{skipped} skipped": skipped,
            f"{pluralize(dropped, 'frame')} dropped": dropped,
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
        for place in dict.fromkeys(place for place, _ in sorted(self.zones_and_lines)):
            inside = Counter(
                {name: n for (where, name), n in self.zones_and_lines.items() if where == place}
            )
            crossed, _, side = place.partition(" ")
            where = f"crossed {crossed} to the {side}" if side else f"in {place}"
            yield f"{where}: {_most(inside)}"


def _most(found: Counter[str]) -> str:
    """The most frequent classes, and how many others there are."""
    shown = [f"{number} {name}" for name, number in found.most_common(SHOWN_CLASSES)]
    more = len(found) - len(shown)
    return ", ".join(shown) + f" and {more} more class{'es' * (more > 1)}" * (more > 0)
