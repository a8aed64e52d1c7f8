"""Zones, lines and regions: how they are read from text, and where they are in a picture."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError, system_reason

if TYPE_CHECKING:
    from detcli.data.geometry import Area, Points, Size

SHAPE_NAME = r"\w[\w-]{0,39}"  # of a zone or a line
MAX_COORDINATE = 1e6  # pixels from the corner of a picture, beyond which nothing is


@frozen
class Shape:
    """A zone or a line, with its name, or a region without one."""

    name: str  # letters, digits, hyphens and underscores
    # the corners of a zone, the two ends of a line, two corners of a region; x and y
    points: tuple[tuple[float, float], ...]
    fractions: bool  # whether these are fractions of the picture's width and height, not pixels

    @classmethod
    def zone(cls, text: str) -> Self:
        """Read `NAME=x,y,x,y,x,y`: a polygon, whose last corner is joined to its first."""
        zone = cls._parse("--zone", text, "NAME=x,y,x,y,x,y with three corners or more")
        import numpy as np  # `--help` does without

        corners = np.array(zone.points)
        if np.linalg.matrix_rank(corners[1:] - corners[0]) < 2:
            raise UsageError(
                f"--zone '{text}': its corners enclose nothing",
                "name three or more that are not on one line",
            )
        return zone

    @classmethod
    def line(cls, text: str) -> Self:
        """Read `NAME=x1,y1,x2,y2`: from one end to the other."""
        line = cls._parse("--line", text, "NAME=x1,y1,x2,y2")
        if len(line.points) != 2 or line.points[0] == line.points[1]:
            raise UsageError(
                f"--line '{text}': not two different points", "write it as NAME=x1,y1,x2,y2"
            )
        return line

    @classmethod
    def region(cls, text: str) -> Self:
        """Read `x1,y1,x2,y2`: a rectangle without a name, by its left, top, right and bottom."""
        region = cls._parse("--region", text, "X1,Y1,X2,Y2", has_name=False)
        left, top = region.points[0]
        right, bottom = region.points[-1]
        is_rectangle = 0 <= left < right and 0 <= top < bottom
        if len(region.points) != 2 or not is_rectangle:
            raise UsageError(
                f"--region '{text}': not a rectangle",
                "write its left, top, right and bottom, as in 0,0.5,1,1 for the lower half",
            )
        return region

    @classmethod
    def _parse(cls, option: str, text: str, form: str, *, has_name: bool = True) -> Self:
        """Read a name and points.

        Args:
            option: The flag that errors name.
            text: What was typed.
            form: How to write it, for the hint.
            has_name: Whether a name and "=" precede the points.

        Raises:
            UsageError: It is not a list of points with a name.
        """
        hint = f"write {form}, in fractions of the picture (all from 0 to 1) or in pixels"
        name = ""
        numbers_text = text
        if has_name:
            name, equals, numbers_text = text.partition("=")
            name = name.strip()
            if not equals or not re.fullmatch(SHAPE_NAME, name):
                raise UsageError(
                    f"{option} '{text}' does not begin with a name",
                    f"{hint}; a name has letters, digits, - and _",
                )
        try:
            numbers = [float(number) for number in numbers_text.split(",")]
        except ValueError:
            raise UsageError(f"{option} '{text}' is not a list of numbers", hint) from None
        if len(numbers) % 2:
            raise UsageError(f"{option} '{text}': x without y, {len(numbers)} numbers", hint)
        if not all(abs(number) <= MAX_COORDINATE for number in numbers):  # nor is nan
            raise UsageError(f"{option} '{text}': no picture has such a point", hint)
        fractions = all(0 <= number <= 1 for number in numbers)
        if not fractions and not _may_be_pixels(numbers):
            raise UsageError(
                f"{option} '{text}' is neither all fractions nor all pixels", f"{hint}, not both"
            )
        points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return cls(name, points, fractions)

    def __str__(self) -> str:
        numbers = ",".join(f"{x:.12g},{y:.12g}" for x, y in self.points)
        if not self.name:
            return numbers
        return f"{self.name}={numbers}"

    def pixels(self, size: "Size") -> "Points":
        """The points in a picture of (height, width), float32 of (N, 2), each x and y."""
        import numpy as np

        height, width = 1, 1
        if self.fractions:
            height, width = size
        return np.array([(x * width, y * height) for x, y in self.points], np.float32)

    def area(self, size: "Size") -> "Area":
        """Left, top, right and bottom of a region in a picture of (height, width).

        In whole pixels, at least one along each side.

        Raises:
            SourceError: The picture does not reach as far.
        """
        (left, top), (right, bottom) = self.pixels(size).round().astype(int).tolist()
        height, width = size
        if right > width or bottom > height:
            raise SourceError(
                f"the picture has {width}x{height} pixels, and so no region {self}",
                "name the region in fractions of the picture, from 0 to 1, in --region",
            )
        left = min(left, width - 1)
        top = min(top, height - 1)
        return left, top, max(right, left + 1), max(bottom, top + 1)


def _may_be_pixels(numbers: list[float]) -> bool:
    """Whether numbers, of which some are not from 0 to 1, may all be pixels.

    A number between 0 and 1 is then a mistake, as is one that is hardly larger.
    """
    sizes = [abs(number) for number in numbers if number != 0]
    return max(sizes) >= 2 and min(sizes) >= 1


def read_shapes(parse_shape: Callable[[str], Shape], option: str, text: str) -> list[Shape]:
    """The value of an option, or in place of `@FILE` that of each line of a file.

    Empty lines and those that begin with # are left out.
    """
    if not text.startswith("@"):
        return [parse_shape(text)]
    from detcli.storage.files import read_text

    try:
        content = read_text(Path(text[1:]))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{option} {text} cannot be read: {system_reason(error)}", "name a file of text"
        ) from error
    lines = [line.strip() for line in content.splitlines()]
    shape_texts = [line for line in lines if line and not line.startswith("#")]
    if not shape_texts:
        raise UsageError(f"{option} {text} has no line", "write NAME=x,y,... one a line")
    return [parse_shape(shape_text) for shape_text in shape_texts]
