"""The images that a reviewer looks at: small copies of what was dealt, and nothing else."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from detcli.cli.records import read_selected
from detcli.commands.promise.inputs import WantedClasses
from detcli.commands.promise.units import Integers
from detcli.core import Fields, frozen
from detcli.core.errors import UsageError
from detcli.core.lines import bounded_lines
from detcli.data.geometry import Pixels
from detcli.data.record import RecordJson, box_of
from detcli.page.find_images import Finder
from detcli.page.page import IMAGE, render
from detcli.page.review_page import ReviewImage
from detcli.storage.files import make_folder, open_lines, write_file, writing

IMAGES = "images.jsonl"
"""The file of a review that says which copies show which unit."""

MAX_IMAGES = 24
"""How many images of a unit are shown: twelve seconds at two a second."""

MAX_BOXES = 10
"""How many boxes of an image the page can show, the best of the wanted classes."""


@frozen
class UnitCopies:
    """The copies of the images of a unit."""

    name: str  # of the unit
    images: tuple[ReviewImage, ...]  # in the order of time
    sha256: tuple[str, ...]  # of the file that each was read from
    missing: int  # images that were not found, or could not be read
    left_out: int  # images beyond those that are shown

    @property
    def is_gone(self) -> bool:
        """Whether an image of it is missing, so that nobody can say that nothing is in it."""
        return self.missing > 0


def records_of_units(
    records: str, unit_by_record: Integers, units: Iterable[int], wanted_classes: WantedClasses
) -> dict[int, list[RecordJson]]:
    """Read the records of the given units again, for the page with their images and boxes.

    A unit is an image or a group of images. Each record only has the detections that the page can
    show: of the wanted classes, the best MAX_BOXES.

    Args:
        records: The name of the records.
        unit_by_record: `(N,)`, the index of the unit that each of N records belongs to.
        units: The indices of the units to read.
        wanted_classes: The classes whose boxes the page shows, except for boxes that are marked as
            repeated.

    Returns:
        By unit index, the records of the unit in the order of the file.
    """
    records_by_unit: dict[int, list[RecordJson]] = {int(unit): [] for unit in units}
    # Indexing `data` gives Python's numbers, which is faster than indexing the array.
    unit_indices = unit_by_record.data

    def is_needed(record_index: int) -> bool:
        return unit_indices[record_index] in records_by_unit

    for record_index, record in read_selected(records, is_needed):
        detections = []
        for detection in record["detections"]:
            if wanted_classes.has(detection) and "repeated" not in detection:
                detections.append(detection)
        detections.sort(key=lambda detection: detection["score"], reverse=True)
        record["detections"] = detections[:MAX_BOXES]
        records_by_unit[unit_indices[record_index]].append(record)
    return records_by_unit


def in_time(records: Sequence[RecordJson]) -> list[RecordJson]:
    """Put the records of a unit in the order in which they were taken, as far as it is known."""
    return sorted(
        records,
        key=lambda record: (record.get("taken", ""), record["source"], record.get("frame", 0)),
    )


def shown_records(records: Sequence[RecordJson]) -> list[RecordJson]:
    """Choose the images that a reviewer sees of a video or burst: all, or MAX_IMAGES of them.

    Half of these are the images with the best scores, and the others are spread evenly over what
    is left.

    Args:
        records: The records of the images, in the order of time.

    Returns:
        The records of the chosen images, in the same order.
    """
    if len(records) <= MAX_IMAGES:
        return list(records)
    all_numbers = range(len(records))
    best_first = sorted(all_numbers, key=lambda number: -_best_score(records[number]))
    chosen_numbers = set(best_first[: MAX_IMAGES // 2])

    other_numbers = [number for number in all_numbers if number not in chosen_numbers]
    spread_count = MAX_IMAGES - len(chosen_numbers)
    for step in range(spread_count):
        position = step * len(other_numbers) // spread_count
        chosen_numbers.add(other_numbers[position])
    return [records[number] for number in sorted(chosen_numbers)]


def _best_score(record: RecordJson) -> float:
    """Return the best score of a record's boxes, 0 if it has none."""
    return max((detection["score"] for detection in record["detections"]), default=0.0)


def fractions(record: RecordJson) -> list[tuple[float, float, float, float]]:
    """Return the boxes of a record as fractions of its image: left, top, right and bottom."""
    boxes = []
    for detection in record["detections"]:
        left, top, right, bottom = box_of(detection)
        box = (
            _fraction(left, record["width"]),
            _fraction(top, record["height"]),
            _fraction(right, record["width"]),
            _fraction(bottom, record["height"]),
        )
        boxes.append(box)
    return boxes


def _fraction(position: float, side: int) -> float:
    """Return a position as a fraction of a side of the image, from 0 to 1, to four decimals."""
    return round(min(max(position / side, 0.0), 1.0), 4)


class Copier:
    """Writes small copies of images into the folder of a review."""

    def __init__(self, folder: Path, finder: Finder) -> None:
        """Make the folder of the images in the folder of the review.

        Args:
            folder: The folder of the review.
            finder: Finds the images of records.
        """
        self._folder = folder
        self._finder = finder
        make_folder(folder / "images")

    def copy_all(
        self,
        records_by_unit: Mapping[str, Sequence[RecordJson]],
        advance: Callable[[str], object],
    ) -> list[UnitCopies]:
        """Copy the images of all units: photographs on several threads, videos one by one.

        A unit is an image, or a group of images that are looked at together.

        Args:
            records_by_unit: The records of each unit by its name. The numbers of the files follow
                this order, which should tell nothing about scores.
            advance: Is called with the name of each unit.
        """
        photograph_names = {}  # the names of units without video, by the number of their files
        copies_by_name = {}
        for number, (name, records) in enumerate(records_by_unit.items(), start=1):
            has_video = any("frame" in record for record in records)
            if has_video:
                copies_by_name[name] = self._copy_unit(number, name, records)
                advance(name)
            else:
                photograph_names[number] = name

        def copy(number: int) -> UnitCopies:
            name = photograph_names[number]
            return self._copy_unit(number, name, records_by_unit[name])

        # Closing the iterator cancels what is left, so that Ctrl-C does not wait for all images.
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            closing(cast("Generator[UnitCopies]", pool.map(copy, photograph_names))) as all_copies,
        ):
            for copies in all_copies:
                copies_by_name[copies.name] = copies
                advance(copies.name)
        return [copies_by_name[name] for name in records_by_unit]

    def _copy_unit(self, number: int, name: str, records: Sequence[RecordJson]) -> UnitCopies:
        """Write copies of the images of one unit, an image or a group that is looked at together.

        The file of a single image is `images/00007.jpg`; those of a group are `images/00007-01.jpg`
        and so on. Of a large group only some images are shown. Those that cannot be read are
        counted.

        Args:
            number: The number that the names of the unit's files begin with.
            name: The name of the unit.
            records: The records of its images.
        """
        records_to_show = shown_records(in_time(records))
        images = []
        hashes = []  # of each image in `images`
        for position, record in enumerate(records_to_show, start=1):
            image = self._finder.read_image(record)
            if image is None:
                continue
            file_name = f"images/{number:05}.jpg"
            if len(records_to_show) > 1:
                file_name = f"images/{number:05}-{position:02}.jpg"
            jpeg = self._write_copy(file_name, image.pixels)
            images.append(ReviewImage(file_name, fractions(record)))

            # For a photograph, the file is hashed. A frame of a video has no file, so the copy is.
            content = image.file or jpeg
            hashes.append(hashlib.sha256(content).hexdigest())
        return UnitCopies(
            name=name,
            images=tuple(images),
            sha256=tuple(hashes),
            missing=len(records_to_show) - len(images),
            left_out=len(records) - len(records_to_show),
        )

    def _write_copy(self, file_name: str, pixels: Pixels) -> bytes:
        """Write a small copy of an image as JPEG, and return the content of its file.

        Args:
            file_name: The name of the file in the folder of the review.
            pixels: The pixels of the image.
        """
        (jpeg,) = render(pixels, [IMAGE])
        path = self._folder / file_name
        with writing(path):
            # `write_file` would wait for the disk, which takes long for thousands of images.
            path.write_bytes(jpeg)
        return jpeg


def write_copies(folder: Path, copies_of_units: Iterable[UnitCopies]) -> None:
    """Write which copies show which unit, a line of JSON for each."""
    lines = []
    for copies in copies_of_units:
        images = []
        for image, file_hash in zip(copies.images, copies.sha256, strict=True):
            images.append({"file": image.file, "boxes": image.boxes, "sha256": file_hash})
        lines.append(json.dumps({"source": copies.name, "images": images}) + "\n")
    write_file(folder / IMAGES, "".join(lines).encode())


def read_copies(folder: Path) -> dict[str, Fields]:
    """Read the file of a review that says which copies of images show which unit.

    Returns:
        The line of each unit, by the name of the unit. It has the keys `source`, which is this
        name, and `images`, a list of objects with `file`, `boxes` and `sha256`.

    Raises:
        UsageError: The folder has no such file, or it is damaged.
    """
    path = folder / IMAGES
    lines = {}
    try:
        with open_lines(path) as file:
            for line in bounded_lines(file):
                fields: Any = json.loads(line)
                lines[str(fields["source"])] = fields
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"cannot read {path}: {error}", "name a folder that promise deal wrote"
        ) from error
    return lines


def images_of(fields: Fields) -> list[ReviewImage]:
    """Return the images of a unit, from its line in the file of copies."""
    return [ReviewImage(image["file"], image["boxes"]) for image in fields["images"]]
