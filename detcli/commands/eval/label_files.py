"""Reads label files in YOLO's form: a text file for each image, a line for each object."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from detcli.commands.eval.findings import Findings, Kind
from detcli.data.saved_record import finite
from detcli.storage.files import read_text

OBB_NUMBERS = 8  # of an oriented box: its four corners

Object = tuple[tuple[float, float, float, float], int, float, bool, bool]
"""A labelled object, as a row of `OBJECT` in labels.py: box, category, area, crowd, ignored."""


class LabelReader:
    """Reads files of labels in YOLO's form, and notes what is odd about them.

    Each line is `class cx cy w h`, maybe with keypoints behind, or a class and a polygon; all
    numbers but the class are fractions of the image's width or height.
    """

    def __init__(self, class_count: int, keypoints: int | None, findings: Findings) -> None:
        """`keypoints` is how many numbers of keypoints follow a box; None for none, or unknown."""
        self._class_count = class_count
        self._keypoints = keypoints
        self._findings = findings
        # Of lines that were taken for polygons: how often each count of numbers came, and where.
        self._polygons: Counter[int] = Counter()
        self._first_polygon = ""

    def read(self, path: Path) -> Iterator[Object]:
        """Yield the objects of a file, one a line; lines that cannot be read are left out."""
        try:
            lines = read_text(path).splitlines()
        except (OSError, ValueError) as error:
            self._findings.add(Kind.BAD_LABEL, f"{path}: {error}")
            return
        earlier_labels: set[tuple[float, ...]] = set()  # to tell those that are there twice
        for line_number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields:
                continue
            where = f"{path}:{line_number}"
            try:
                label = (float(fields[0]), *[finite(field) for field in fields[1:]])
                box = self._box(list(label[1:]), where)
                category = _whole_class(label[0], fields[0])
            except ValueError as error:
                self._findings.add(Kind.BAD_LABEL, f"{where}: {error}")
                continue
            if label in earlier_labels:
                self._findings.add(Kind.REPEATED_LABEL, where)
                continue
            earlier_labels.add(label)
            if 0 <= category < self._class_count:
                yield box, category, math.nan, False, False
            else:
                self._findings.add(Kind.UNKNOWN_CATEGORY, f"{where}: class {category}")

    def report_form(self) -> None:
        """Report lines that were taken for polygons, but may be boxes with keypoints.

        Polygons differ in their number of corners; where all have the same, they may be keypoints.
        """
        if len(self._polygons) != 1:
            return
        [(number_count, line_count)] = self._polygons.items()
        if line_count == 1:
            return
        example = f"{self._first_polygon}: {number_count + 1} numbers"  # with that of the class
        if number_count == OBB_NUMBERS:
            self._findings.add(Kind.CORNERS, example, line_count)
        else:
            self._findings.add(Kind.KEYPOINTS, example, line_count)

    def _box(self, numbers: list[float], where: str) -> tuple[float, float, float, float]:
        """Convert the numbers of a line, after the class, to a box in fractions of the image.

        They are `cx cy w h`, maybe with keypoints behind, or the corners of a polygon, `x y x y
        ...`. The polygons are counted, see `report_form`.

        Args:
            numbers: The numbers.
            where: The file and the line.

        Returns:
            Left, top, width and height.

        Raises:
            ValueError: There are too few or too many numbers.
        """
        count = len(numbers)
        has_keypoints = self._keypoints is not None and count == 4 + self._keypoints
        if count == 4 or has_keypoints:
            x, y, width, height = numbers[:4]
            return x - width / 2, y - height / 2, width, height
        if self._keypoints is not None:
            raise ValueError(f"{count + 1} numbers in a line, not {5 + self._keypoints}")
        if count < 6 or count % 2:
            reason = f"{count + 1} numbers in a line"  # with that of the class
            # Keypoints have three numbers each: x, y and visibility.
            may_have_keypoints = count > 4 and (count - 4) % 3 == 0
            if may_have_keypoints:
                reason += "; boxes with keypoints need a data.yaml with kpt_shape"
            raise ValueError(reason)
        self._polygons[count] += 1
        if not self._first_polygon:
            self._first_polygon = where
        corners_x = numbers[0::2]
        corners_y = numbers[1::2]
        left = min(corners_x)
        top = min(corners_y)
        return left, top, max(corners_x) - left, max(corners_y) - top


def _whole_class(number: float, text: str) -> int:
    """The class of a label, which has to be a whole number; raises ValueError otherwise."""
    if not number.is_integer():
        raise ValueError(f"class {text}")
    return int(number)
