"""What is watched: the options, read once and frozen."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from detcli.errors import UsageError
from detcli.places import Shape, read_places


class Tracker(StrEnum):
    """A tracker of Roboflow's `trackers`."""

    BYTETRACK = "bytetrack"
    BOTSORT = "botsort"
    OCSORT = "ocsort"


@dataclass(frozen=True, slots=True)
class TrackOptions:
    """How objects are followed.

    Attributes:
        tracker: What follows them.
        conf: Scores from it on begin a track; lower ones can only go on with one, and not with
            `ocsort`. None leaves it to the tracker.
    """

    tracker: Tracker
    conf: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bytetrack` or `bytetrack,conf=0.5`.

        Raises:
            UsageError: There is no such tracker, or the confidence is none.
        """
        name, *rest = (part.strip() for part in text.split(","))
        if name not in [*Tracker]:
            raise UsageError(f"--track {text}: no tracker '{name}'", f"write {', '.join(Tracker)}")
        conf = None
        if rest:
            try:
                key, _, number = ",".join(rest).partition("=")
                conf = float(number) if key == "conf" else -1
            except ValueError:
                conf = -1
            if not 0 <= conf <= 1:
                raise UsageError(
                    f"--track {text}: '{','.join(rest)}' is not a confidence",
                    f"write {name},conf=0.5, from 0 to 1",
                )
        return cls(Tracker(name), conf)

    def __str__(self) -> str:
        return self.tracker if self.conf is None else f"{self.tracker},conf={self.conf:g}"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is found out about detections.

    Attributes:
        zones: Polygons.
        lines: Lines that tracks may cross.
        track: How objects are followed from frame to frame; None if they are not.
        read: Whether symbols are read, which takes pictures at full size.
    """

    zones: tuple[Shape, ...] = ()
    lines: tuple[Shape, ...] = ()
    track: TrackOptions | None = None
    read: bool = False

    def above(self, conf: float) -> Self:
        """The same; tracks begin at this confidence if --track says nothing else."""
        if self.track is None or self.track.conf is not None:
            return self
        return replace(self, track=replace(self.track, conf=conf))

    @property
    def places(self) -> list[str]:
        """The names of zones, of lines, and of both ways across these."""
        lines = [line.name for line in self.lines]
        ways = [f"{line} {side}" for line in lines for side in ("left", "right")]
        return [*(zone.name for zone in self.zones), *lines, *ways]

    @property
    def written_zones(self) -> list[str] | None:
        """The zones as text; None without."""
        return [zone.text for zone in self.zones] or None

    @property
    def written_track(self) -> str | None:
        """How objects are followed, as text; None if they are not."""
        return None if self.track is None else str(self.track)

    @property
    def written_lines(self) -> list[str] | None:
        """The lines as text; None without."""
        return [line.text for line in self.lines] or None


def read_watch_options(
    zones: Iterable[str],
    lines: Iterable[str] = (),
    track: str | None = None,
    *,
    read: bool = False,
) -> WatchOptions:
    """Read options.

    Args:
        zones: Values of --zone.
        lines: Values of --line.
        track: Value of --track.
        read: Value of --read.

    Raises:
        UsageError: A value is malformed, or two have a name.
    """
    options = WatchOptions(
        tuple(map(Shape.zone, read_places("--zone", zones))),
        tuple(map(Shape.line, read_places("--line", lines))),
        None if track is None else TrackOptions.parse(track),
        read,
    )
    if options.lines and options.track is None:
        raise UsageError("--line needs --track: what crosses it moves", "add --track bytetrack")
    names = Counter(place.name for place in (*options.zones, *options.lines))
    if twice := [name for name, number in names.items() if number > 1]:
        raise UsageError(f"the zone or line {twice[0]} is given twice", "give each another name")
    return options
