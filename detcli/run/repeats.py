"""Shows boxes that repeat on a page, as one tile for each group."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, cast

from detcli.core import Fields, frozen
from detcli.core.text import pluralize
from detcli.data.geometry import Boxes
from detcli.data.record import RecordJson
from detcli.data.repeats import MIN_IMAGES, RepeatFinder, RepeatGroup
from detcli.page.find_images import Finder
from detcli.page.page import Conclusion, Page, PageImage, PageRepeat
from detcli.run.hidden import HiddenClasses

FRAME_FIELDS = {"frame", "time_s", "time"}
"""Fields of a frame that a page of groups leaves out, as its videos are not played."""


@frozen
class Repeats:
    """The groups of repeats in the records of a run."""

    groups: list[RepeatGroup]
    record_count: int

    @property
    def sentences(self) -> list[str]:
        """What the page says above the groups."""
        if not self.groups:
            return [f"No box is at one place in {MIN_IMAGES} images or more of a camera."]
        groups = pluralize(len(self.groups), "group")
        return [
            f"{groups} of boxes of one class at one place of a camera.",
            "Drop what is not there, such as a stone; keep what is, such as a parked car.",
            "Then save the marks, for detcli merge RECORDS --apply marks.json -o corrected.jsonl:",
            "count and sort leave these boxes out of such records.",
        ]


def find_repeats(records: Iterator[RecordJson], advance: Callable[[str], None]) -> Repeats:
    """Read all records of a run, and group their boxes that repeat.

    Args:
        records: The records.
        advance: Is called with the source of each record.
    """
    finder = RepeatFinder()
    for record in records:
        finder.add(record)
        advance(record["source"])
    return Repeats(finder.find_groups(), finder.record_count)


class _GroupTile(NamedTuple):
    """What the page shows of a group: an image with one of its boxes."""

    record: RecordJson  # of the image, with this box only
    image: Fields  # what `Page.store` returned


class RepeatsPage:
    """Adds groups of repeats to a page, from the second reading of the records.

    Images are stored as their records come, so that a video is read once, and added in the order
    of the groups.
    """

    def __init__(self, page: Page, repeats: Repeats, finder: Finder, hidden: HiddenClasses) -> None:
        """Prepare to add groups to a page that has no records yet.

        The page has a tile for each group: an image with one box of the group. It also names the
        first and the last image that have a box of the group.

        Args:
            page: The page.
            repeats: The groups.
            finder: Finds the images of the records.
            hidden: The classes to hide in these images.
        """
        self._page = page
        self._repeats = repeats
        self._finder = finder
        self._hidden = hidden

        # What is needed of each record, by its index: the groups whose tile has its image, and
        # whether a group has to name its image.
        self._groups_by_shown_record: defaultdict[int, list[RepeatGroup]] = defaultdict(list)
        self._records_to_name: set[int] = set()
        for group in repeats.groups:
            self._groups_by_shown_record[group.record_index].append(group)
            self._records_to_name.add(group.first_record)
            self._records_to_name.add(group.last_record)

        # `write` fills these while it reads the records.
        self._group_tiles: dict[int, _GroupTile] = {}  # by the id of the group
        self._image_names: dict[int, str] = {}  # by the index of the record

    def write(self, records: Iterable[tuple[RecordJson, Boxes]]) -> None:
        """Read the records, and add all groups to the page, which has to be closed afterwards.

        While records are read, the images for tiles are stored, and so are the names of images.
        Only then are the groups added, since a group may name an image that comes after its tile.

        Args:
            records: The records that the groups were found in, read again from the beginning, each
                with the boxes `(N, 4)` that are to be hidden in its image.
        """
        for record_index, (record, boxes_to_hide) in enumerate(records):
            if record_index in self._records_to_name:
                self._image_names[record_index] = _name_of_image(record)
            groups = self._groups_by_shown_record.get(record_index)
            if groups is not None:
                self._store_group_tiles(record, groups, boxes_to_hide)

        for group in self._repeats.groups:
            self._add_to_page(group)

    def close(self) -> None:
        """End the page, which says what was found."""
        self._page.close(Conclusion(summary=self._repeats.sentences))

    def _store_group_tiles(
        self, record: RecordJson, groups: list[RepeatGroup], boxes_to_hide: Boxes
    ) -> None:
        """Store the image of a record in the page, and keep a tile of it for each given group.

        A tile has the image and one box. Hidden classes are hidden in the image, and texts of
        hidden barcodes are left out of the record.

        Args:
            record: The record.
            groups: The groups whose tile has the image of this record.
            boxes_to_hide: `(N, 4)`, the boxes that are to be hidden in the image.
        """

        def load_image() -> PageImage | None:
            if not self._hidden:  # no classes are to be hidden
                return self._finder.shown(record)
            hide_in_image = partial(self._hidden.in_image, boxes_to_hide)
            return self._finder.shown(record, hide_in_image)

        image = self._page.store(load_image)
        for group in groups:
            fields = {name: value for name, value in record.items() if name not in FRAME_FIELDS}
            fields["detections"] = [record["detections"][group.detection_index]]
            shown_record = cast("RecordJson", fields)
            if self._hidden:
                shown_record = self._hidden.without_texts(shown_record, boxes_to_hide)
            self._group_tiles[group.number] = _GroupTile(shown_record, image)

    def _add_to_page(self, group: RepeatGroup) -> None:
        """Add a group to the page, after `_store_group_tiles` has stored its tile."""
        tile = self._group_tiles[group.number]
        repeat = PageRepeat(
            number=group.number,
            image_count=group.image_count,
            box_count=group.box_count,
            place=group.place,
            first_name=self._image_names[group.first_record],
            last_name=self._image_names[group.last_record],
            box=group.box,
        )
        self._page.add(tile.record, tile.image, repeat=repeat)


def _name_of_image(record: RecordJson) -> str:
    """Name an image without its folder; a frame by its time, or by its number."""
    if "time" in record:
        return record["time"]
    if "time_s" in record:
        return f"{record['time_s']:.1f} s"
    if "frame" in record:
        return f"frame {record['frame']}"
    return record["source"].rpartition("/")[2]
