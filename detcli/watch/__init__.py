"""Watching: records get what pictures alone do not show, such as the zones that detections are in.

    detector -> records -> watch -> sinks

A run has one `Watcher`, which gets its records in order.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from detcli.errors import UsageError
from detcli.places import Shape, read_places
from detcli.record import Record


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is found out about detections.

    Attributes:
        zones: Polygons.
    """

    zones: tuple[Shape, ...] = ()

    @property
    def written_zones(self) -> list[str] | None:
        """The zones as text; None without."""
        return [zone.text for zone in self.zones] or None


def read_watch_options(zones: Iterable[str]) -> WatchOptions:
    """Read options.

    Args:
        zones: Values of --zone.

    Raises:
        UsageError: A value is malformed, or two have a name.
    """
    options = WatchOptions(tuple(map(Shape.zone, read_places("--zone", zones))))
    names = Counter(place.name for place in options.zones)
    if twice := [name for name, number in names.items() if number > 1]:
        raise UsageError(f"--zone {twice[0]} is given twice", "give each another name")
    return options


class Watcher:
    """Adds to records what its options ask for; without any, records pass as they are."""

    def __init__(self, options: WatchOptions) -> None:
        self._zones = None
        if options.zones:
            from detcli.watch.zones import Zones

            self._zones = Zones(options.zones)

    def __call__(self, record: Record) -> Record:
        """The record with what was found out; one of an input that failed as it is."""
        if record.picture is None or record.detections is None:
            return record
        if self._zones is not None:
            record = self._zones.add(record, record.picture.size, record.detections)
        return record
