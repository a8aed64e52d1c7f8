"""Polygons of --ignore: how they are read from text, and for which sources they are."""

import re
from fnmatch import fnmatchcase
from typing import Self

from detcli.config.shapes import SHAPE_NAME, Coordinates, Zone, as_points, parse_points
from detcli.core import frozen
from detcli.core.errors import UsageError

ANY_FOLDERS = "**"
"""The part of a pattern that stands for any number of folders, including none."""


@frozen
class IgnoredZone(Zone):
    """A polygon to ignore, in all images or in those whose source matches a pattern.

        IgnoredZone("site7/**", [(0, 0.9), (1, 0.9), (1, 1), (0, 1)])

    As a string it is `site7/**=0,0.9,1,0.9,1,1,0,1`, and `0,0.9,1,0.9,1,1,0,1` for all images. What
    is before the numbers is the attribute `name`: a pattern if it has any character that a name of
    a zone may not have, such as a slash or an asterisk; else a name, which has no meaning.
    """

    def __init__(self, pattern: str, points: Coordinates, *, fractions: bool | None = None) -> None:
        """Make a polygon from its corners.

        Args:
            pattern: The pattern of the sources, or a name; empty for all images.
            points: x and y of each corner.
            fractions: Whether they are fractions of the image's width and height; by default, they
                are if all are from 0 to 1.

        Raises:
            UsageError: The points are not those of a polygon.
        """
        subject = f"the ignored polygon {pattern!r}"
        self._initialise(
            subject, pattern, as_points("ignored polygon", points), fractions=fractions
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --ignore, as in `0,0.9,1,0.9,1,1,0,1` or `site7/**=0,0.9,...`.

        The corners follow the last `=`, so that a pattern may have an `=` as well.

        Raises:
            UsageError: It is not a list of corners, or it begins with the `=`.
        """
        subject = f"--ignore '{text}'"
        pattern, equals, numbers_text = text.rpartition("=")
        pattern = pattern.strip()
        if equals and not pattern:
            raise UsageError(
                f"{subject} begins with =", "leave out the =, or write site7/**=X,Y,..."
            )
        points = parse_points(subject, cls._hint(), numbers_text)
        # `__init__` is not called, since its errors would not quote the text.
        zone = object.__new__(cls)
        zone._initialise(subject, pattern, points)
        return zone

    @property
    def pattern(self) -> str:
        """The pattern of the sources that it is for; empty if it is for all."""
        is_name = re.fullmatch(SHAPE_NAME, self.name)
        if is_name:
            return ""
        return self.name


def pattern_of(zone: Zone) -> str:
    """Return the pattern of the sources that an ignored zone is for; empty if it is for all."""
    if isinstance(zone, IgnoredZone):
        return zone.pattern
    return ""


def matches(source: str, pattern: str) -> bool:
    """Return whether a source, as records name it, matches a pattern.

    A pattern may begin at any folder of the source, and has to reach to the end of the source:

    - `*` stands for any characters except `/`, and `?` for one of them.
    - `[ab]` stands for an a or a b.
    - `**` between slashes stands for any number of folders, including none.
    - A slash at the end stands for everything in the folder.

    Args:
        source: A path with slashes, or an address.
        pattern: The pattern; an empty one matches every source.

    Examples:
        >>> matches("photos/site7/a.jpg", "site7/**"), matches("photos/site77/a.jpg", "site7/**")
        (True, False)
        >>> matches("photos/site7/a.jpg", "site7/*.png"), matches("site7/x/y/a.jpg", "site7/")
        (False, True)
    """
    if not pattern:
        return True
    if pattern.endswith("/"):
        pattern += ANY_FOLDERS
    names = source.split("/")
    name_count = len(names)

    # The pattern is compared part by part. `positions` are the indices of the names that the next
    # part may be compared with; the index `name_count` means that no name is left. As the pattern
    # may begin at any folder, the first part may be compared with each name.
    # For the names a/b/c.jpg and the pattern b/*, the positions are {0, 1, 2, 3}, {2} and {3}.
    positions = set(range(name_count + 1))
    for part in pattern.split("/"):
        if not positions:
            return False
        if part == ANY_FOLDERS:
            positions = set(range(min(positions), name_count + 1))
            continue

        next_positions = set()
        for position in positions:
            is_name_left = position < name_count
            if is_name_left and fnmatchcase(names[position], part):
                next_positions.add(position + 1)
        positions = next_positions

    return name_count in positions  # the pattern has to reach to the end of the source
