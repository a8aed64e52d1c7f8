"""Zones, lines and regions: how they are read from text, and where they are in an image."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from detcli.config.typed import describe_value
from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError, system_reason

if TYPE_CHECKING:
    from detcli.data.geometry import Area, Points, Size

SHAPE_NAME = r"\w[\w-]{0,39}"  # of a zone or a line
MAX_COORDINATE = 1e6  # pixels from the corner of an image, beyond which there is nothing

Coordinates = Iterable[Sequence[float]]
"""x and y of each point."""

AnyShape = TypeVar("AnyShape")


@frozen
class Shape:
    """A zone, a line or a region: points in an image.

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

    _has_name = True  # whether shapes of the class have one

    def __init__(self, name: str, points: Coordinates, *, fractions: bool | None = None) -> None:
        """Make a shape of its points.

        Args:
            name: Letters, digits, hyphens and underscores.
            points: x and y of each point.
            fractions: Whether they are fractions of the image's width and height; by default, they
                are if all are from 0 to 1.

        Raises:
            UsageError: The name or the points do not suit a shape of this class.
        """
        kind = type(self).__name__.lower()
        point_list = as_points(kind, points)
        if fractions is not None and not isinstance(fractions, bool):
            raise UsageError(
                f"fractions of the {kind} is {describe_value(fractions)}", "give True or False"
            )
        subject = f"{kind} {name!r}"
        _require_name(subject, self._hint(), name)
        self._initialise(subject, name, point_list, fractions=fractions)

    def _initialise(
        self,
        subject: str,
        name: str,
        points: Sequence[tuple[float, float]],
        *,
        fractions: bool | None = None,
    ) -> None:
        """Set the attributes of a new shape, and check them.

        `__init__` and `parse` share this. `__post_init__` would not do, as it has no parameter for
        the name of the shape in errors.

        Args:
            subject: How errors refer to the shape: "zone 'door'", or "--zone 'door=0,0'" with what
                was typed.
            name: Its name.
            points: x and y of each point.
            fractions: Whether they are fractions of the image's width and height. None to infer it
                from the coordinates: they are fractions if all are from 0 to 1.

        Raises:
            UsageError: The points do not suit a shape of this class.
        """
        coordinates: list[float] = []
        for x, y in points:
            coordinates += [x, y]
        hint = self._hint()
        _require_coordinates(subject, hint, coordinates)
        if fractions is None:
            fractions = _are_fractions(subject, hint, coordinates)

        # The class is frozen, so that plain assignments would fail.
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "points", tuple(points))
        object.__setattr__(self, "fractions", fractions)
        self._check(subject)

    def _check(self, subject: str) -> None:
        """Refuse points that do not suit a shape of this class; errors call it `subject`."""

    @classmethod
    def _hint(cls) -> str:
        """Describe how a shape of this class is written as a string."""
        form = FORMS[cls.__name__]
        return f"write {form}, in fractions of the image (all from 0 to 1) or in pixels"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --zone, --line or --region, as in `door=0.1,0.4,0.5,0.4,0.5,1`.

        Raises:
            UsageError: It is not a list of points that suits this class, with a name if it has one.
        """
        subject = f"--{cls.__name__.lower()} '{text}'"
        hint = cls._hint()

        name = ""
        numbers_text = text
        if cls._has_name:
            before_equals, equals, numbers_text = text.partition("=")
            if equals:
                name = before_equals.strip()
            _require_name(subject, hint, name)

        points = parse_points(subject, hint, numbers_text)
        # `__init__` is not called, since its errors would not quote the text.
        shape = object.__new__(cls)
        shape._initialise(subject, name, points)
        return shape

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

        x_scale = 1
        y_scale = 1
        if self.fractions:
            y_scale, x_scale = size
        return np.array([(x * x_scale, y * y_scale) for x, y in self.points], np.float32)


@frozen
class Zone(Shape):
    """A polygon with a name, in which detections are; its last corner is joined to its first.

        Zone("door", [(0.1, 0.4), (0.5, 0.4), (0.5, 1)])

    As a string it is `door=0.1,0.4,0.5,0.4,0.5,1`.
    """

    __init__ = Shape.__init__

    def _check(self, subject: str) -> None:
        """Refuse corners that enclose nothing."""
        import numpy as np  # `--help` does without

        corners = np.array(self.points)
        # The vectors from the first corner to the others span a plane, unless all corners are on
        # one line or there are only two.
        vectors = corners[1:] - corners[0]
        if len(vectors) < 2 or np.linalg.matrix_rank(vectors) < 2:
            raise UsageError(
                f"{subject}: its corners enclose nothing",
                "name three or more that are not on one line",
            )


@frozen
class Line(Shape):
    """A line with a name, from one end to the other, which tracks cross.

        Line("gate", [(0, 0.5), (1, 0.5)])

    As a string it is `gate=0,0.5,1,0.5`.
    """

    __init__ = Shape.__init__

    def _check(self, subject: str) -> None:
        """Refuse ends that are not two different points."""
        if len(self.points) != 2 or self.points[0] == self.points[1]:
            raise UsageError(f"{subject}: not two different points", "write it as NAME=x1,y1,x2,y2")


@frozen
class Region(Shape):
    """A rectangle of an image, the only part that is searched.

        Region(0, 0.5, 1, 1)

    As a string it is `0,0.5,1,1`, the lower half.
    """

    _has_name = False

    def __init__(
        self,
        left: float,
        top: float,
        right: float,
        bottom: float,
        *,
        fractions: bool | None = None,
    ) -> None:
        """Make a region of its edges.

        Args:
            left: x of the left edge.
            top: y of the upper edge.
            right: x of the right edge.
            bottom: y of the lower edge.
            fractions: Whether they are fractions of the image's width and height, else pixels; by
                default, they are if all are from 0 to 1.

        Raises:
            UsageError: It is not a rectangle.
        """
        points = as_points("region", [(left, top), (right, bottom)])
        self._initialise("the region", "", points, fractions=fractions)

    def _check(self, subject: str) -> None:
        """Refuse points that are not two corners of a rectangle."""
        left, top = self.points[0]
        right, bottom = self.points[-1]
        is_rectangle = 0 <= left < right and 0 <= top < bottom
        if len(self.points) != 2 or not is_rectangle:
            raise UsageError(
                f"{subject}: not a rectangle",
                "write its left, top, right and bottom, as in 0,0.5,1,1 for the lower half",
            )

    def area(self, size: "Size") -> "Area":
        """Convert a region to whole pixels of one image.

        Args:
            size: Height and width of the image in pixels.

        Returns:
            Left, top, right and bottom; the area has at least one pixel along each side.

        Raises:
            SourceError: The image does not reach that far.
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


FORMS = {
    "Zone": "NAME=x,y,x,y,x,y with three corners or more",
    "Line": "NAME=x1,y1,x2,y2",
    "Region": "X1,Y1,X2,Y2",
    "IgnoredZone": "X,Y,X,Y,X,Y or PATTERN=X,Y,X,Y,X,Y with three corners or more",
}
"""How each shape is written as a string, for hints."""


def _require_name(subject: str, hint: str, name: object) -> None:
    """Refuse a name that a zone or a line cannot have.

    Args:
        subject: How errors refer to the shape.
        hint: How the shape is written.
        name: The name; empty if there is none.

    Raises:
        UsageError: It has characters that a name may not have, or none at all.
    """
    if not isinstance(name, str) or not re.fullmatch(SHAPE_NAME, name):
        hint += "; a name has letters, digits, - and _"
        raise UsageError(f"{subject} does not begin with a name", hint)


def as_points(kind: str, points: Coordinates) -> list[tuple[float, float]]:
    """Convert the points of a shape to pairs of numbers.

    Args:
        kind: How errors refer to the shape, such as "zone".
        points: Pairs, or an array `(N, 2)`.

    Raises:
        UsageError: They are not.
    """
    pairs: list[tuple[float, float]] = []
    try:
        for x, y in points:
            pairs.append((float(x), float(y)))
    except (TypeError, ValueError):
        hint = "give x and y of each, as in [(0, 0.5), (1, 0.5)]"
        raise UsageError(f"the points of the {kind} are {describe_value(points)}", hint) from None
    return pairs


def parse_points(subject: str, hint: str, text: str) -> list[tuple[float, float]]:
    """Parse the numbers of a shape, x and y of each point.

    Args:
        subject: How errors refer to the shape.
        hint: How it is written.
        text: The numbers, with commas between them.

    Raises:
        UsageError: They are not numbers, or the last x has no y.
    """
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        raise UsageError(f"{subject} is not a list of numbers", hint) from None
    if len(numbers) % 2:
        raise UsageError(f"{subject}: x without y, {len(numbers)} numbers", hint)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _require_coordinates(subject: str, hint: str, coordinates: list[float]) -> None:
    """Refuse coordinates that no image has, and a shape without any.

    Args:
        subject: How errors refer to the shape.
        hint: How it is written.
        coordinates: x and y of all points.
    """
    # Written so that it refuses NaN too, which compares as False with everything.
    are_possible = all(abs(number) <= MAX_COORDINATE for number in coordinates)
    if not coordinates or not are_possible:
        raise UsageError(f"{subject}: no image has such a point", hint)


def _are_fractions(subject: str, hint: str, coordinates: list[float]) -> bool:
    """Whether coordinates look like fractions of the image, rather than pixels.

    Args:
        subject: How errors refer to the shape.
        hint: How the shape is written, such as "write it as NAME=x1,y1,x2,y2 in pixels or
            fractions"; the error adds "not both".
        coordinates: x and y of all points.

    Raises:
        UsageError: Fractions and pixels seem to be mixed, as in 0.1,200.
    """
    if all(0 <= number <= 1 for number in coordinates):
        return True
    if not _may_be_pixels(coordinates):
        raise UsageError(f"{subject} is neither all fractions nor all pixels", f"{hint}, not both")
    return False


def _may_be_pixels(numbers: list[float]) -> bool:
    """Whether coordinates that are not all fractions can all be pixels.

    Pixels are whole in practice. So a number between 0 and 1 among them is a fraction that was
    mixed in by mistake; and if none reaches 2, such as 1.2, they were probably meant as fractions.
    """
    magnitudes = [abs(number) for number in numbers if number != 0]
    return max(magnitudes) >= 2 and min(magnitudes) >= 1


def read_shapes(parse_shape: Callable[[str], AnyShape], option: str, text: str) -> list[AnyShape]:
    """Parse the value of --zone or --line: one shape, or `@FILE` for a file with one per line.

    Empty lines of the file and those that begin with # are left out.

    Args:
        parse_shape: Parses the string of one shape.
        option: The flag, for error messages.
        text: What was typed.

    Raises:
        UsageError: The file cannot be read or has no shapes, or a string is not a shape.
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
