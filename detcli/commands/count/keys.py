"""What images and boxes are counted by, read from their records."""

import posixpath
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, cast

from detcli.config.config import Settings
from detcli.core import Fields
from detcli.data.columns import DetectionJson
from detcli.data.record import RecordJson

UNKNOWN = "unknown"
"""The day, hour or burst of a record that does not say it."""

MAX_QUOTED = 40
"""Characters of a value that an error quotes; a file from anyone may hold one of any length."""

KeyValue = str | int | None
"""The value of a key.

None is the class of an image without boxes, the zone of a box in none, or what another network says
about a box that it has not seen.
"""


class GroupKey(StrEnum):
    """What images and boxes can be counted by."""

    CLASS = "class"
    FOLDER = "folder"
    DAY = "day"
    HOUR = "hour"
    ZONE = "zone"
    CLASSIFIED = "classified"
    BURST = "burst"


class BoxFilter:
    """Tells which boxes are counted, by their class and score."""

    def __init__(self, settings: Settings, *, with_repeated: bool = False) -> None:
        """Take the classes and confidences of --classes and --conf; all boxes count by default.

        Args:
            settings: Only `conf`, `class_conf` and `classes` are used.
            with_repeated: Whether boxes count that are marked as repeated.
        """
        self._with_repeated = with_repeated

        # A box is counted if its score is above the confidence: that of its class, if the user has
        # set one for it, else that of all classes.
        self._conf = -inf
        if settings.conf is not None:
            self._conf = settings.conf
        self._class_conf: dict[str, float] = {}  # by the name or the id of a class
        for class_name, conf in settings.class_conf:
            self._class_conf[str(class_name)] = conf

        self._classes = frozenset(str(class_name) for class_name in settings.classes)
        self.seen_classes: set[str] = set()  # names of all classes in the records
        self._seen_ids: set[str] = set()  # their ids, as text

    @property
    def selects_classes(self) -> bool:
        """Whether the user typed the classes whose boxes are counted."""
        return bool(self._classes)

    @property
    def unseen(self) -> list[str]:
        """The classes, by name or id, that the user has typed and no box is of."""
        typed_classes = sorted(self._classes | self._class_conf.keys())
        seen = self.seen_classes | self._seen_ids
        return [class_name for class_name in typed_classes if class_name not in seen]

    def selected(self, detections: list[DetectionJson]) -> list[DetectionJson]:
        """Return the detections that are counted, and note the classes of all.

        Args:
            detections: The detections of a record; each has a class and a score.
        """
        selected = []
        for detection in detections:
            class_name = detection["class_name"]
            class_id = str(detection["class_id"])
            self.seen_classes.add(class_name)
            self._seen_ids.add(class_id)
            if "repeated" in detection and not self._with_repeated:
                continue
            if not self._is_selected_class(class_name, class_id):
                continue
            # As with predict --conf, the score has to be above the confidence.
            if detection["score"] > self._confidence(class_name, class_id):
                selected.append(detection)
        return selected

    def _is_selected_class(self, class_name: str, class_id: str) -> bool:
        """Return whether boxes of a class are counted: the user typed the class, or none at all."""
        if not self._classes:
            return True
        return class_name in self._classes or class_id in self._classes

    def _confidence(self, class_name: str, class_id: str) -> float:
        """Return the confidence that is set for a class, else the one of all classes."""
        if class_name in self._class_conf:
            return self._class_conf[class_name]
        return self._class_conf.get(class_id, self._conf)


def folder_of(source: str) -> str:
    """Return the folder of an input, or `.` for an input without one.

    Examples:
        >>> folder_of("card1/site7/a.jpg"), folder_of("a.jpg")
        ('card1/site7', '.')
    """
    return posixpath.dirname(source) or "."


def local_time(fields: Fields) -> datetime | None:
    """Read when the image of a record was taken, or when the frame of a stream arrived.

    Args:
        fields: A record. Its `taken` is a time of the camera's clock, and its `time`, which frames
            of a stream have, is in UTC. The file may be from anyone, so both may be anything.

    Returns:
        The time as in the record, not converted to another time zone; None if it has neither
        field.

    Raises:
        ValueError: The value of the field is not a time.
    """
    for name in ("taken", "time"):
        if name in fields:
            return _parse_time(name, fields[name])
    return None


def _parse_time(name: str, value: Any) -> datetime:  # noqa: ANN401 - JSON
    """Parse a time in ISO 8601, such as 2026-11-03T04:55:12.25.

    A date alone is refused, which would otherwise count as midnight.

    Args:
        name: The name of the field that holds the time, for the error.
        value: The value of the field.

    Raises:
        ValueError: The value is not a time.
    """
    if isinstance(value, str) and "T" in value:
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError(f"{name} is {str(value)[:MAX_QUOTED]!r}, not a time")


def burst_of(fields: Fields, burst_prefix: str) -> KeyValue:
    """Return the burst of a record: a group of images that were taken in quick succession.

    Args:
        fields: A record, which may be from anyone.
        burst_prefix: Precedes the burst id, such as "may.jsonl:", to tell the bursts of several
            files apart; empty if there is one file.

    Returns:
        The burst id, such as 7; with a prefix a string such as "may.jsonl:7"; UNKNOWN if the record
        has none.

    Raises:
        ValueError: The burst is not a number.
    """
    if "burst" not in fields:
        return UNKNOWN
    burst = fields["burst"]
    if type(burst) is not int:
        raise ValueError(f"burst is {str(burst)[:MAX_QUOTED]!r}, not a whole number")
    if burst_prefix:
        return f"{burst_prefix}{burst}"
    return burst


def value_of_record(record: RecordJson, key: GroupKey, burst_prefix: str) -> KeyValue:
    """Return what a record is counted by, for a key that is the same for all of its boxes.

    For example "card1/site7" for the folder, "2026-11-03" for the day, or "04" for the hour.

    Args:
        record: The record.
        key: The folder, burst, day or hour. The class and the zone are those of a box.
        burst_prefix: Precedes a burst id, see `burst_of`.

    Returns:
        The value, or UNKNOWN if the record does not have it.

    Raises:
        ValueError: The record has a value that cannot be read.
    """
    if key is GroupKey.FOLDER:
        return folder_of(record["source"])
    fields = cast("Fields", record)
    if key is GroupKey.BURST:
        return burst_of(fields, burst_prefix)
    time = local_time(fields)
    if time is None:
        return UNKNOWN
    if key is GroupKey.DAY:
        return time.date().isoformat()
    return f"{time.hour:02}"


def values_of_box(detection: DetectionJson, key: GroupKey) -> Iterator[KeyValue]:
    """Yield what a box is counted by: the name of its class, or those of the zones that it is in.

    For a box in no zone, or one that no other network has classified, it is None.

    Args:
        detection: The box.
        key: The class, the class by another network, or the zone.
    """
    if key is GroupKey.CLASS:
        yield detection["class_name"]
        return
    if key is GroupKey.CLASSIFIED:
        yield detection.get("classified")
        return
    zones = detection.get("zones")
    if zones:
        yield from dict.fromkeys(zones)
    else:
        yield None
