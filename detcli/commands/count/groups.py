"""Counts images and boxes in groups, whose number alone takes memory."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from detcli.commands.count.keys import (
    UNKNOWN,
    BoxFilter,
    GroupKey,
    KeyValue,
    value_of_record,
    values_of_box,
)
from detcli.data.columns import DetectionJson
from detcli.data.record import RecordJson

GroupValues = tuple[KeyValue, ...]
"""What the images and boxes of a group have in common: a value for each key, in their order."""

BOX_KEYS = frozenset({GroupKey.CLASS, GroupKey.ZONE, GroupKey.CLASSIFIED})
"""Keys that each box of an image has a value of its own for."""


@dataclass(slots=True)
class GroupCounts:
    """The counts of one group."""

    images: int = 0  # and frames of videos
    boxes: int = 0
    failed: int = 0  # inputs with an error in place of boxes


class Groups:
    """The counts of images and boxes in records, grouped by the given keys."""

    def __init__(self, by: tuple[GroupKey, ...], box_filter: BoxFilter) -> None:
        """Create empty counts; `add` counts a record.

        Args:
            by: The keys to group by, such as class and day, each once.
            box_filter: Selects the boxes that are counted.
        """
        self.keys = by
        self.image_count = 0  # images and frames of videos, without failed ones
        self.box_count = 0
        self.failed_count = 0  # inputs with an error in place of boxes
        self.seen_keys: set[GroupKey] = set()  # the keys that any record has a value for
        self._box_filter = box_filter
        self._counts: dict[GroupValues, GroupCounts] = {}

    def add(self, record: RecordJson, burst_prefix: str = "") -> None:
        """Count the image of a record and its boxes, or its failure.

        An image is counted once in each group that any of its boxes is in. An image without boxes
        is in the group whose class and zone are None; so is a failed input.

        Args:
            record: The record; the classes and scores of its detections were checked.
            burst_prefix: Precedes a burst id, to tell the bursts of several files apart, such as
                "may.jsonl:".

        Raises:
            ValueError: The record has a time or a burst that cannot be read.
        """
        common_values = self._common_values(record, burst_prefix)
        group_without_boxes = tuple(common_values.get(key) for key in self.keys)
        if "error" in record:
            self.failed_count += 1
            self._group(group_without_boxes).failed += 1
            return

        boxes = self._box_filter.selected(record.get("detections", []))
        self.image_count += 1
        self.box_count += len(boxes)
        box_counts = self._box_counts(boxes, common_values)
        if not boxes:
            box_counts[group_without_boxes] = 0
        for values, box_count in box_counts.items():
            group = self._group(values)
            group.images += 1
            group.boxes += box_count

    def _common_values(self, record: RecordJson, burst_prefix: str) -> dict[GroupKey, KeyValue]:
        """Return the values that all boxes of a record have in common, by their keys.

        Keys of which it has a value are added to `seen_keys`.
        """
        common_values: dict[GroupKey, KeyValue] = {}
        for key in self.keys:
            if key in BOX_KEYS:
                continue
            value = value_of_record(record, key, burst_prefix)
            common_values[key] = value
            if value != UNKNOWN:
                self.seen_keys.add(key)
        return common_values

    def _box_counts(
        self, boxes: list[DetectionJson], common_values: dict[GroupKey, KeyValue]
    ) -> Counter[GroupValues]:
        """Count the boxes of one image by group; a box in several zones is in several groups.

        Args:
            boxes: The boxes of the image that are counted.
            common_values: For keys such as the day, which are about the image, the value that all
                its boxes have in common.
        """
        box_counts = Counter[GroupValues]()
        for box in boxes:
            values_by_position: list[list[KeyValue]] = []  # for each key, the values of the box
            for key in self.keys:
                if key in BOX_KEYS:
                    values_by_position.append(self._values_of_box(box, key))
                else:
                    values_by_position.append([common_values[key]])

            # A box is in a group for each combination of its values. A car in the zones "door" and
            # "yard", by class and zone, is in the groups (car, door) and (car, yard).
            groups_of_box = itertools.product(*values_by_position)
            box_counts.update(groups_of_box)
        return box_counts

    def _values_of_box(self, box: DetectionJson, key: GroupKey) -> list[KeyValue]:
        """Return the values of a box for a key, and record in `seen_keys` that there is one."""
        values = list(values_of_box(box, key))
        if values != [None]:
            self.seen_keys.add(key)
        return values

    def _group(self, values: GroupValues) -> GroupCounts:
        """Return the counts of a group, which begin with 0."""
        return self._counts.setdefault(values, GroupCounts())

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[tuple[GroupValues, GroupCounts]]:
        """Yield the groups, sorted by value: numbers, then strings, unknown ones, and None."""
        for values in sorted(self._counts, key=_sort_key):
            yield values, self._counts[values]


class _KindOrder(IntEnum):
    """The order in which the kinds of values of a key are sorted."""

    NUMBER = 0
    TEXT = 1
    UNKNOWN = 2
    NONE = 3


class _ValueSortKey(NamedTuple):
    """What a value of a group is sorted by: its kind, then the number or text if it is one."""

    kind: _KindOrder
    number: int = 0
    text: str = ""


def _sort_key(values: GroupValues) -> list[_ValueSortKey]:
    """Return what a group is sorted by: a sort key for each of its values.

    The values themselves cannot be compared, as numbers, strings and None may be mixed.
    """
    sort_keys = []
    for value in values:
        if value is None:
            sort_keys.append(_ValueSortKey(_KindOrder.NONE))
        elif value == UNKNOWN:
            sort_keys.append(_ValueSortKey(_KindOrder.UNKNOWN))
        elif isinstance(value, int):
            sort_keys.append(_ValueSortKey(_KindOrder.NUMBER, number=value))
        else:
            sort_keys.append(_ValueSortKey(_KindOrder.TEXT, text=value))
    return sort_keys
