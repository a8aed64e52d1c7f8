"""Places in a picture that a user names: zones, lines, a region; the point of a box in them."""

import re
from dataclasses import field
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError, system_reason
from detcli.core.files import read_text
from detcli.core.geometry import Boxes, Size, clipped, shown

Points = npt.NDArray[np.float32]  # `(N, 2)` float32, x and y in pixels of the upright picture

NAME = re.compile(r"\w[\w-]{0,39}")
LARGEST = 1e6  # pixels from the corner of a picture, beyond which nothing is


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
        region = cls._parse("--region", text, "X1,Y1,X2,Y2", named=False)
        (left, top), (right, bottom) = region.points[0], region.points[-1]
        if len(region.points) != 2 or not (0 <= left < right and 0 <= top < bottom):
            raise UsageError(
                f"--region '{text}': not a rectangle",
                "write its left, top, right and bottom, as in 0,0.5,1,1 for the lower half",
            )
        return region

    @classmethod
    def _parse(cls, option: str, text: str, form: str, *, named: bool = True) -> Self:
        hint = f"write {form}, in fractions of the picture (all from 0 to 1) or in pixels"
        name, equals, rest = text.partition("=") if named else ("", "", text)
        if named and not (equals and NAME.fullmatch(name.strip())):
            raise UsageError(
                f"{option} '{text}' does not begin with a name",
                f"{hint}; a name has letters, digits, - and _",
            )
        try:
            numbers = [float(part) for part in rest.split(",")]
        except ValueError:
            raise UsageError(f"{option} '{text}' is not a list of numbers", hint) from None
        if len(numbers) % 2:
            raise UsageError(f"{option} '{text}': x without y, {len(numbers)} numbers", hint)
        if not all(abs(number) <= LARGEST for number in numbers):  # nor is nan
            raise UsageError(f"{option} '{text}': no picture has such a point", hint)
        fractions = all(0 <= number <= 1 for number in numbers)
        if not fractions and max(map(abs, numbers)) < 2:
            raise UsageError(
                f"{option} '{text}' has fractions beyond the picture", f"{hint}, not both"
            )
        points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return cls(name.strip(), points, fractions)

    def __str__(self) -> str:
        numbers = [f"{number:.12g}" for point in self.points for number in point]
        return f"{self.name}{'=' * bool(self.name)}{','.join(numbers)}"

    def pixels(self, size: Size) -> Points:
        """The points in a picture of (height, width)."""
        height, width = size if self.fractions else (1, 1)
        return np.array([(x * width, y * height) for x, y in self.points], np.float32)

    def area(self, size: Size) -> tuple[int, int, int, int]:
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
        left, top = min(left, width - 1), min(top, height - 1)
        return left, top, max(right, left + 1), max(bottom, top + 1)


def read_places(option: str, text: str) -> list[str]:
    """The value of an option, or in place of `@FILE` the lines of a file.

    Empty lines and those that begin with # are left out.
    """
    if not text.startswith("@"):
        return [text]
    try:
        lines = read_text(Path(text[1:])).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{option} {text} cannot be read: {system_reason(error)}", "name a file of text"
        ) from error
    found = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"{option} {text} has no line", "write NAME=x,y,... one a line")
    return found


def bottom_centres(boxes: Boxes, size: Size) -> Points:
    """The bottom centre of each box `(N, 4)`, where its object stands: `(N, 2)` x and y in pixels.

    A box that reaches beyond the picture is clipped to it; NaN for boxes outside it.
    """
    x1, _, x2, y2 = clipped(boxes, size).T
    points: Points = np.stack([(x1 + x2) / 2, y2], axis=1)  # (N, 2)
    points[~shown(boxes, size)] = np.nan
    return points


@frozen
class Scene:
    """What pictures show besides boxes, in pixels of the picture."""

    zones: tuple[tuple[str, Points], ...] = ()  # a caption and the `(K, 2)` corners of each
    lines: tuple[tuple[str, Points], ...] = ()  # a caption and the `(2, 2)` ends of each
    # where each track was, `(K, 2)`, the newest last, by its number
    trails: dict[int, Points] = field(default_factory=dict)
