"""Counts of a run, a shard or a piece of one, and their summary."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from detcli.core.errors import DetcliError
from detcli.core.text import pluralize
from detcli.core.timing import Stage, StageTimes
from detcli.data.detections import without_repeated
from detcli.data.record import Record

SHOWN_CLASSES = 5  # how many classes a summary counts one by one


@dataclass(slots=True)
class Counts:
    """Counts of the inputs of a run, or of a part of one, and of the detections in them."""

    images: int = 0  # those that failed are not among them
    frames: int = 0  # of videos and streams
    failed: int = 0
    detections_by_class: Counter[str] = field(default_factory=Counter)
    # detections in each zone, by its name and the class
    zones_and_lines: Counter[tuple[str, str]] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)  # images and frames, by what ran them
    # The names of inputs, each with an error or a warning. Whatever prints them removes them.
    messages: list[tuple[str, DetcliError | str]] = field(default_factory=list)
    # the kinds of the messages that were taken out
    printed_kinds: Counter[str] = field(default_factory=Counter)

    @property
    def input_count(self) -> int:
        """How many inputs were read, or failed."""
        return self.images + self.frames + self.failed

    def add(self, record: Record) -> None:
        """Count a record: its image or frame, its detections, and its warnings or its error.

        Args:
            record: What was detected in an image or a frame of a video, or why it failed.
        """
        source = record.origin.source
        if record.error is not None:
            self.failed += 1
            self.messages.append((source, _without_references(record.error)))
            return

        for warning in record.warnings:
            self.messages.append((source, warning))
        if record.origin.video is None:
            self.images += 1
        else:
            self.frames += 1
        if record.detections is None:
            return

        device = record.device
        if record.precision:
            device += f" ({record.precision})"
        self.devices[device] += 1

        # Boxes that a person has dropped as repeats, such as of a stone, are not counted.
        counted_detections = without_repeated(record.detections)
        for _box, _score, _class_id, class_name in counted_detections:
            self.detections_by_class[class_name] += 1
        self.zones_and_lines.update(counted_detections.zones_and_lines())

    def include(self, counts: "Counts") -> None:
        """Add the counts of other inputs, each to that of the same name."""
        for count_field in fields(self):
            total = getattr(self, count_field.name) + getattr(counts, count_field.name)
            setattr(self, count_field.name, total)

    def summary(
        self,
        seconds: float,
        skipped: int = 0,
        dropped: int = 0,
        times: StageTimes | None = None,
        *,
        stages: bool = True,
        above: float | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a summary for people.

        The first says how much was done, how fast and on which device, and the share of each stage
        in the time. The next says how many objects of which class were detected; later lines say
        the same about each zone and line. For example:

            9 images, 25 detections, 0.52 s, 17.3/s on cpu; decode 40%, network 60%
            found 21 person, 4 dog
            in door: 2 person

        Args:
            seconds: How long it took.
            skipped: Inputs that were left out, since an earlier run has their records.
            dropped: Frames of live sources that were replaced by newer ones.
            times: The time of each stage.
            stages: Whether to say which part of the time each stage took.
            above: The confidence that `eval` takes all detections above, most of which are false:
                the lines name it, and what the rate counts.
        """
        confidence = ""
        rate_unit = "/s"
        if above is not None:
            confidence = f" above {above:g}"
            rate_unit = " images/s"
        line = f"{self._totals(skipped, dropped, confidence)}, {seconds:.2f} s"
        has_several_inputs = self.input_count > 1
        if has_several_inputs and (self.images or self.frames):
            line += f", {self.input_count / seconds:.1f}{rate_unit}"
        if self.devices:
            line += f" on {', '.join(sorted(self.devices))}"
        if has_several_inputs and stages and times is not None:
            line += f"; {_stage_shares(times)}"
        yield line
        if has_several_inputs and self.detections_by_class:
            title = "found"
            if confidence:
                title = f"found{confidence}:"
            yield f"{title} {_most_frequent(self.detections_by_class)}"
        yield from self._zone_and_line_summaries()

    def _totals(self, skipped: int, dropped: int, confidence: str) -> str:
        """Format how many inputs and detections there were: "9 images, 25 detections, 1 failed".

        Args:
            skipped: Inputs that were left out, since an earlier run has their records.
            dropped: Frames of live sources that were replaced by newer ones.
            confidence: What follows the number of detections, such as " above 0.001".
        """
        totals = []
        if self.images or not self.frames:
            totals.append(pluralize(self.images, "image"))
        if self.frames:
            totals.append(pluralize(self.frames, "frame"))
        detections = pluralize(self.detections_by_class.total(), "detection")
        totals.append(detections + confidence)
        if self.failed:
            totals.append(f"{self.failed} failed")
        if skipped:
            totals.append(f"{skipped} skipped")
        if dropped:
            totals.append(f"{pluralize(dropped, 'frame')} dropped")
        return ", ".join(totals)

    def _zone_and_line_summaries(self) -> Iterator[str]:
        """Yield for each zone, and for each side of a line, how many of which class there were.

        For example "in door: 2 person" for a zone, and "crossed gate to the left: 1 dog" for a
        line, whose crossings are counted under the names "gate left" and "gate right".
        """
        counts_by_place: dict[str, Counter[str]] = {}  # counts of classes, by zone or line and side
        for (zone_or_line, class_name), count in self.zones_and_lines.items():
            counts_by_place.setdefault(zone_or_line, Counter())[class_name] = count
        for zone_or_line, class_counts in sorted(counts_by_place.items()):
            line_name, _, side = zone_or_line.partition(" ")  # the name of a zone has no space
            place = f"in {zone_or_line}"
            if side:
                place = f"crossed {line_name} to the {side}"
            yield f"{place}: {_most_frequent(class_counts)}"


def _without_references(error: DetcliError) -> DetcliError:
    """Remove the causes and the traceback from an error, and return it.

    They refer to images, whose memory has to be freed although the message is kept.
    """
    error.__cause__ = None
    error.__context__ = None
    return error.with_traceback(None)


def _stage_shares(times: StageTimes) -> str:
    """Format the share of each stage in the time that all threads worked: "decode 40%, ...".

    Threads work in parallel, so this is more than the time that elapsed.
    """
    work_s = sum(times.values()) or 1.0
    return ", ".join(f"{stage} {times[stage] / work_s:.0%}" for stage in Stage if stage in times)


def _most_frequent(class_counts: Counter[str]) -> str:
    """Format the counts of the most frequent classes, and how many other classes there are.

    For example "7 person, 2 dog", or with many classes "7 person, ... and 3 more classes".
    """
    most_common = class_counts.most_common(SHOWN_CLASSES)
    text = ", ".join(f"{count} {class_name}" for class_name, count in most_common)
    other_class_count = len(class_counts) - len(most_common)
    if other_class_count == 1:
        text += " and 1 more class"
    elif other_class_count > 1:
        text += f" and {other_class_count} more classes"
    return text
