"""Reads label files in YOLO's form: a text file for each image, a line for each object."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from detcli.commands.eval.findings import Findings, Kind
from detcli.data.saved_record import finite
from detcli.storage.files import read_text

BOX_NUMBERS = 4  # centre and size
MIN_POLYGON_NUMBERS = 6  # of three corners
OBB_NUMBERS = 8  # of an oriented box: its four corners

LabelBox = tuple[float, float, float, float]
"""Left, top, width and height."""


class Object(NamedTuple):
    """A labelled object, with the fields of a row of `OBJECT` in labels.py."""

    box: LabelBox
    category: int
    area: float = math.nan
    crowd: bool = False
    ignored: bool = False


class _Label(NamedTuple):
    """A line of a label file."""

    numbers: tuple[float, ...]  # all numbers in the line, beginning with the class
    box: LabelBox
    category: int


class LabelReader:
    """Reads files of labels in YOLO's form, and notes what is odd about them.

    Each line is `class cx cy w h`, perhaps followed by keypoints, or a class and a polygon; all
    numbers but the class are fractions of the image's width or height.
    """

    def __init__(
        self, class_count: int, numbers_of_keypoints: int | None, findings: Findings
    ) -> None:
        """Make a reader that has read no file yet.

        Args:
            class_count: How many classes there are; boxes of others are left out.
            numbers_of_keypoints: How many numbers after a box describe keypoints: 51 for 17
                keypoints with x, y and visibility. None if there are no keypoints, or the data does
                not say.
            findings: Collects what is odd about the labels.
        """
        self._class_count = class_count
        self._numbers_of_keypoints = numbers_of_keypoints
        self._findings = findings
        # How many lines were read as polygons, by how many numbers follow the class in them.
        self._polygon_lines_by_length: Counter[int] = Counter()
        self._first_polygon = ""  # the file and line of the first polygon; empty before it

    def read(self, path: Path) -> Iterator[Object]:
        """Yield the objects of a file, one a line.

        A file or a line that cannot be read, a repeated line and one of an unknown class are left
        out, and added to the findings.
        """
        try:
            lines = read_text(path).splitlines()
        except (OSError, ValueError) as error:
            self._findings.add(Kind.BAD_LABEL, f"{path}: {error}")
            return

        numbers_of_earlier_lines: set[tuple[float, ...]] = set()
        for line_number, line in enumerate(lines, start=1):
            fields = line.split()
            if not fields:
                continue

            where = f"{path}:{line_number}"
            try:
                label = self._parse(fields, where)
            except ValueError as error:
                self._findings.add(Kind.BAD_LABEL, f"{where}: {error}")
                continue

            if label.numbers in numbers_of_earlier_lines:
                self._findings.add(Kind.REPEATED_LABEL, where)
                continue
            numbers_of_earlier_lines.add(label.numbers)

            if 0 <= label.category < self._class_count:
                yield Object(label.box, label.category)
            else:
                self._findings.add(Kind.UNKNOWN_CATEGORY, f"{where}: class {label.category}")

    def _parse(self, fields: list[str], where: str) -> _Label:
        """Parse a line of a label file, and count it if it is a polygon.

        Args:
            fields: The strings between the spaces of the line, beginning with the class.
            where: The file and the number of the line.

        Raises:
            ValueError: The fields are not those of a label.
        """
        class_number = float(fields[0])
        numbers_after_class = [finite(field) for field in fields[1:]]
        box = self._convert_to_box(numbers_after_class, where)
        category = _whole_class(class_number, fields[0])
        return _Label(numbers=(class_number, *numbers_after_class), box=box, category=category)

    def report_doubtful_polygons(self) -> None:
        """Report lines that were read as polygons, but may be boxes with keypoints.

        Polygons usually differ in their number of corners. So several lines that all have equally
        many numbers may be boxes with keypoints: `class cx cy w h x y x y ...`.
        """
        if len(self._polygon_lines_by_length) != 1:
            return  # there are no polygons, or their numbers of corners differ
        [(number_count, line_count)] = self._polygon_lines_by_length.items()
        if line_count == 1:
            return
        count_with_class = number_count + 1
        example = f"{self._first_polygon}: {count_with_class} numbers"
        if number_count == OBB_NUMBERS:  # probably the four corners of oriented boxes
            self._findings.add(Kind.CORNERS, example, line_count)
        else:
            self._findings.add(Kind.KEYPOINTS, example, line_count)

    def _convert_to_box(self, numbers: list[float], where: str) -> LabelBox:
        """Convert the numbers of a line, without the class, to a box in fractions of the image.

        The numbers are `cx cy w h`, perhaps followed by keypoints, or the corners of a polygon, `x
        y x y ...`. A polygon is counted for `report_doubtful_polygons`, and the first one recorded.

        Args:
            numbers: All numbers after the class.
            where: The file and the line.

        Raises:
            ValueError: There are too few or too many numbers.
        """
        number_count = len(numbers)
        has_box_alone = number_count == BOX_NUMBERS
        has_box_and_keypoints = (
            self._numbers_of_keypoints is not None
            and number_count == BOX_NUMBERS + self._numbers_of_keypoints
        )
        if has_box_alone or has_box_and_keypoints:
            centre_x, centre_y, width, height = numbers[:BOX_NUMBERS]
            return centre_x - width / 2, centre_y - height / 2, width, height

        self._require_polygon(number_count)
        self._polygon_lines_by_length[number_count] += 1
        if not self._first_polygon:
            self._first_polygon = where
        return _box_around(numbers)

    def _require_polygon(self, number_count: int) -> None:
        """Raise ValueError if a line that is not a box cannot be a polygon either.

        In data with keypoints, a line is never a polygon. Otherwise, a polygon has an x and a y for
        each of at least three corners.

        Args:
            number_count: How many numbers follow the class in the line.
        """
        count_with_class = number_count + 1
        if self._numbers_of_keypoints is not None:
            count_with_keypoints = 1 + BOX_NUMBERS + self._numbers_of_keypoints
            raise ValueError(f"{count_with_class} numbers in a line, not {count_with_keypoints}")
        if number_count >= MIN_POLYGON_NUMBERS and number_count % 2 == 0:
            return

        reason = f"{count_with_class} numbers in a line"
        # Keypoints have three numbers each: x, y and visibility.
        count_after_box = number_count - BOX_NUMBERS
        may_have_keypoints = count_after_box > 0 and count_after_box % 3 == 0
        if may_have_keypoints:
            reason += "; boxes with keypoints need a data.yaml with kpt_shape"
        raise ValueError(reason)


def _whole_class(number: float, text: str) -> int:
    """Return the class of a label; raises ValueError if it is not a whole number.

    Args:
        number: The number that the line begins with.
        text: The same as in the file, for the error.
    """
    if not number.is_integer():
        raise ValueError(f"class {text}")
    return int(number)


def _box_around(polygon: list[float]) -> LabelBox:
    """Return left, top, width and height of the box around a polygon, `x y x y ...`."""
    corners_x = polygon[0::2]
    corners_y = polygon[1::2]
    left = min(corners_x)
    top = min(corners_y)
    return left, top, max(corners_x) - left, max(corners_y) - top
