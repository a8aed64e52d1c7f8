"""Counts of a run, a shard or a piece of one, and their summary."""

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
    """Counts of inputs and of what was found in them."""

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
        """How many inputs were read, or failed."""
        return self.pictures + self.frames + self.failed

    def add(self, record: Record) -> None:
        """Count a record."""
        source = record.origin.source
        if record.error is not None:
            self.failed += 1
            record.error.__cause__ = record.error.__context__ = None  # they hold pictures
            self.messages.append((source, record.error.with_traceback(None)))
            return
        for warning in record.warnings:
            self.messages.append((source, warning))
        if record.origin.video is None:
            self.pictures += 1
        else:
            self.frames += 1
        if record.detections is not None:
            device = record.device
            if record.precision:
                device += f" ({record.precision})"
            self.devices[device] += 1
            for _, _, _, name in record.detections:
                self.found[name] += 1
            self.zones_and_lines.update(record.detections.zones_and_lines())

    def include(self, other: "Counts") -> None:
        """Add the counts of other inputs."""
        for field_ in fields(self):
            total = getattr(self, field_.name) + getattr(other, field_.name)
            setattr(self, field_.name, total)

    def summary(
        self,
        seconds: float,
        skipped: int = 0,
        dropped: int = 0,
        times: StageTimes | None = None,
        *,
        stages: bool = True,
    ) -> Iterator[str]:
        """Yield how much was done where, with its `stages` where the time went, and what was found.

        Args:
            seconds: How long it took.
            skipped: Inputs that an earlier run has worked.
            dropped: Frames of live sources that were replaced by newer ones.
            times: The time of each stage.
            stages: Whether to say which part of the time each stage took.
        """
        parts = []
        if self.pictures or not self.frames:
            parts.append(pluralize(self.pictures, "picture"))
        if self.frames:
            parts.append(pluralize(self.frames, "frame"))
        parts.append(pluralize(self.found.total(), "detection"))
        if self.failed:
            parts.append(f"{self.failed} failed")
        if skipped:
            parts.append(f"{skipped} skipped")
        if dropped:
            parts.append(f"{pluralize(dropped, 'frame')} dropped")
        line = f"{', '.join(parts)}, {seconds:.2f} s"
        if self.done > 1:
            line += f", {self.done / seconds:.1f}/s"
        if self.devices:
            line += f" on {', '.join(sorted(self.devices))}"
        if self.done > 1 and stages and times is not None:
            line += f"; {_stage_shares(times)}"
        yield line
        if self.done > 1 and self.found:
            yield f"found {_most_frequent(self.found)}"
        numbers_of: dict[str, Counter[str]] = {}  # of classes, in each zone and over each line
        for (zone_or_line, name), number in self.zones_and_lines.items():
            numbers_of.setdefault(zone_or_line, Counter())[name] = number
        for zone_or_line, numbers in sorted(numbers_of.items()):
            line_name, _, side = zone_or_line.partition(" ")
            where = f"in {zone_or_line}"
            if side:
                where = f"crossed {line_name} to the {side}"
            yield f"{where}: {_most_frequent(numbers)}"


def _stage_shares(times: StageTimes) -> str:
    """The part of each stage in the work, which threads do in parallel, not in the elapsed time."""
    work_s = sum(times.values()) or 1.0
    return ", ".join(f"{stage} {times[stage] / work_s:.0%}" for stage in Stage if stage in times)


def _most_frequent(numbers: Counter[str]) -> str:
    """The most frequent classes, and how many other classes there are."""
    parts = [f"{number} {name}" for name, number in numbers.most_common(SHOWN_CLASSES)]
    text = ", ".join(parts)
    hidden_count = len(numbers) - len(parts)
    if hidden_count > 0:
        text += f" and {hidden_count} more {'class' if hidden_count == 1 else 'classes'}"
    return text
