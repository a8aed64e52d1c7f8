"""Zones, lines and regions: how they are read from text, and where they are in an image."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from detcli.config.typed import convert_fields
from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError, system_reason

if TYPE_CHECKING:
    from detcli.data.geometry import Area, Points, Size

SHAPE_NAME = r"\w[\w-]{0,39}"  # of a zone or a line
MAX_COORDINATE = 1e6  # pixels from the corner of an image, beyond which nothing is


@frozen
class Shape:
    """A zone or a line, which have a name, or a region, which has none.

    Attributes:
        name: Letters, digits, hyphens and underscores; empty for a region.
        points: x and y of the corners of a zone, of the two ends of a line, or of the top left and
            the bottom right corner of a region.
        fractions: Whether the points are fractions of the image's width and height; else they
            are pixels.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    fractions: bool

    def __post_init__(self) -> None:
        """Convert the values to the types of the fields."""
        convert_fields(self)

    @classmethod
    def zone(cls, text: str) -> Self:
        """Read `NAME=x,y,x,y,x,y`: a polygon, whose last corner is joined to its first."""
        zone = cls._parse("--zone", text, "NAME=x,y,x,y,x,y with three corners or more")
        import numpy as np  # `--help` does without

        corners = np.array(zone.points)
        # The vectors from the first corner to the others span a plane, unless all corners are on
        # one line or there are only two.
        vectors = corners[1:] - corners[0]
        if np.linalg.matrix_rank(vectors) < 2:
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
        """Parse the text of --zone, --line or --region, as in `door=0.1,0.4,0.5,0.4,0.5,1`.

        Args:
            option: The flag that errors name.
            text: What was typed.
            form: How to write it, for the hint.
            has_name: Whether a name and "=" precede the points.

        Raises:
            UsageError: It is not a list of points with a name.
        """
        hint = f"write {form}, in fractions of the image (all from 0 to 1) or in pixels"
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
        # Written so that it refuses NaN too, which compares as False with everything.
        if not all(abs(number) <= MAX_COORDINATE for number in numbers):
            raise UsageError(f"{option} '{text}': no image has such a point", hint)
        are_fractions = all(0 <= number <= 1 for number in numbers)
        if not are_fractions and not _may_be_pixels(numbers):
            raise UsageError(
                f"{option} '{text}' is neither all fractions nor all pixels", f"{hint}, not both"
            )
        x_coordinates = numbers[::2]
        y_coordinates = numbers[1::2]
        points = tuple(zip(x_coordinates, y_coordinates, strict=True))
        return cls(name, points, are_fractions)

    def __str__(self) -> str:
        numbers = ",".join(f"{x:.12g},{y:.12g}" for x, y in self.points)
        if not self.name:
            return numbers
        return f"{self.name}={numbers}"

    def pixels(self, size: "Size") -> "Points":
        """Convert the points to pixels of one image.

        Args:
            size: Height and width of the image in pixels.

        Returns:
            float32 of shape (N, 2): x and y of each point.
        """
        import numpy as np

        x_scale, y_scale = 1, 1
        if self.fractions:
            y_scale, x_scale = size
        return np.array([(x * x_scale, y * y_scale) for x, y in self.points], np.float32)

    def area(self, size: "Size") -> "Area":
        """Convert a region to whole pixels of one image.

        Args:
            size: Height and width of the image in pixels.

        Returns:
            Left, top, right and bottom; the area has at least one pixel along each side.

        Raises:
            SourceError: The image does not reach as far.
        """
        (left, top), (right, bottom) = self.pixels(size).round().astype(int).tolist()
        height, width = size
        if right > width or bottom > height:
            raise SourceError(
                f"the image has {width}x{height} pixels, and so no region {self}",
                "name the region in fractions of the image, from 0 to 1, in --region",
            )
        # A region of less than a pixel, after rounding, becomes the pixel that it is in.
        left = min(left, width - 1)
        top = min(top, height - 1)
        right = max(right, left + 1)
        bottom = max(bottom, top + 1)
        return left, top, right, bottom


def _may_be_pixels(numbers: list[float]) -> bool:
    """Whether coordinates that are not all fractions can all be pixels.

    Pixels are whole in practice. So a number between 0 and 1 among them is a fraction that was
    mixed in by mistake; and if none reaches 2, such as 1.2, they were probably meant as fractions.
    """
    magnitudes = [abs(number) for number in numbers if number != 0]
    return max(magnitudes) >= 2 and min(magnitudes) >= 1


def read_shapes(parse_shape: Callable[[str], Shape], option: str, text: str) -> list[Shape]:
    """Parse the value of --zone or --line: one shape, or `@FILE` for a file with one in each line.

    Empty lines of the file and those that begin with # are left out.

    Args:
        parse_shape: Parses the text of one shape.
        option: The flag, for error messages.
        text: What was typed.

    Raises:
        UsageError: The file cannot be read or has no shapes, or a text is not a shape.
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
