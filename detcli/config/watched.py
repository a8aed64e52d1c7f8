"""Watched: options for what is determined about detections, besides their boxes."""

# Not `from __future__ import annotations`: options read their types.
from collections import Counter
from collections.abc import Iterable

from detcli.config.ignored import IgnoredZone
from detcli.config.option import option
from detcli.config.shapes import Line, Zone, read_shapes
from detcli.config.typed import convert_fields
from detcli.config.values import Tracker, Tracking
from detcli.core import frozen
from detcli.core.errors import UsageError


def _read_zones(text: str) -> list[Zone]:
    return read_shapes(Zone.parse, "--zone", text)


def _read_lines(text: str) -> list[Line]:
    return read_shapes(Line.parse, "--line", text)


def _read_ignored(text: str) -> list[Zone]:
    zones: list[Zone] = []
    zones += read_shapes(IgnoredZone.parse, "--ignore", text)
    return zones


ZonesOrTexts = str | Zone | Iterable[str | Zone]
LinesOrTexts = str | Line | Iterable[str | Line]
"""What programs may give as zones and lines: one or several, or command-line strings."""


def _either_name(name: str, value: object, option_name: str, option_value: object) -> object:
    """Return the value of a parameter of `Watched` that has two names, such as zones and zone.

    Args:
        name: Its name in programs, such as "zones".
        value: The argument by that name; an empty tuple if there is none.
        option_name: The name of its option on the command line, such as "zone".
        option_value: The argument by that name; an empty tuple if there is none.

    Raises:
        UsageError: There are arguments by both names.
    """
    if _is_empty_tuple(value):
        return option_value
    if _is_empty_tuple(option_value):
        return value
    raise UsageError(f"{name} and {option_name} are the same, and both are given", f"use {name}")


def _is_empty_tuple(value: object) -> bool:
    """Whether a value is the default of zones and lines; a list or an array may have no bool."""
    return isinstance(value, tuple) and not value


@frozen
class Watched:
    """What is determined about detections, besides their boxes.

    Attributes:
        read: Whether the text of QR Codes, bar codes and other symbols is read.
        track: The tracker that follows objects through a video, and the lowest score that begins a
            track; None for no tracks.
        zones: Polygons, with x and y of the corners in fractions of the image or in pixels: each
            detection names those in which the middle of its lower side is.
        lines: Lines, with x and y of both ends as for `zones`: each detection names those that its
            track has crossed since the previous frame; they need `track`.
        ignore: Polygons to ignore: detections in them are left out of records, before tracks and
            zones. As a string, one is `site7/**=0,0.9,1,0.9,1,1,0,1` if it is only for the sources
            that match a pattern.
        ignore_share: A detection is ignored if at least this share of its box's area, from 0.01 to
            1, is in one of the polygons; None: if the middle of its lower side is.
        zone: The same as `zones`, by the name of the option.
        line: The same as `lines`, by the name of the option.
        zones_and_lines: The names of zones, of lines, and of both directions across these, as in
            "gate left", which `Detections.zones_and_lines()` yields.

    Zones, lines and the tracker may be strings as on the command line, including `@FILE` with one
    per line:

        Watched(track="bytetrack,conf=0.5", zones=["door=0.1,0.4,0.5,0.4,0.5,1"])

    Raises:
        UsageError: A value has the wrong type, or two zones or lines have the same name.
    """

    read: bool = option(
        False,
        "--read",
        "Read the text of QR Codes, bar codes and other symbols; best with --model codes.",
    )
    zone: tuple[Zone, ...] = option(
        (),
        "--zone NAME=X,Y,...|@FILE",
        "Report which detections lie in a polygon: door=0.1,0.4,0.5,0.4,0.5,1 in fractions of the "
        "image, or in pixels; @FILE has one a line.",
        parse=_read_zones,
    )
    track: Tracking | None = option(
        None,
        "--track TRACKER",
        "Follow objects through videos and streams, with bytetrack, botsort or ocsort; "
        "bytetrack,conf=0.5 begins tracks from this score on; default: that of --conf.",
        common=True,
    )
    line: tuple[Line, ...] = option(
        (),
        "--line NAME=X1,Y1,X2,Y2|@FILE",
        "Report which tracks cross a line, and towards which side.",
        parse=_read_lines,
        needs={"track": "add --track bytetrack: what crosses a line moves"},
    )

    ignore: tuple[Zone, ...] = option(
        (),
        "--ignore X,Y,...|@FILE",
        "Leave out what is detected in a polygon, in fractions of the image, or in pixels: "
        "0,0.9,1,0.9,1,1,0,1 everywhere, 'site7/**=0,0.9,...' in the folder site7; @FILE has one "
        "a line.",
        parse=_read_ignored,
        excludes={
            "blur": (
                "--blur with --ignore would leave what is ignored as it is",
                "leave out --ignore: --zone says what is where",
            )
        },
        other_names="mask exclude",
    )
    ignore_share: float | None = option(
        None,
        "--ignore-share SHARE",
        "Ignore a box if at least this share of its area, as in 0.5, is in the polygon; default: "
        "if the middle of its lower side is.",
        range=(0.01, 1),
        needs={"ignore": "name what to ignore: --ignore X,Y,..."},
    )

    def __init__(
        self,
        *,
        read: bool = False,
        zones: "ZonesOrTexts" = (),
        track: Tracking | Tracker | str | None = None,
        lines: "LinesOrTexts" = (),
        ignore: "ZonesOrTexts" = (),
        ignore_share: float | None = None,
        zone: "ZonesOrTexts" = (),
        line: "LinesOrTexts" = (),
    ) -> None:
        """Set the attributes, and check them.

        Zones may be named `zones`, or `zone` as the option is, but not both; so may lines.

        Raises:
            UsageError: A value has the wrong type, an argument is given by both of its names,
                or two zones or lines have the same name.
        """
        values = {
            "read": read,
            "zone": _either_name("zones", zones, "zone", zone),
            "track": track,
            "line": _either_name("lines", lines, "line", line),
            "ignore": ignore,
            "ignore_share": ignore_share,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # as the class is frozen
        convert_fields(self)
        self._require_unique_names()

    def _require_unique_names(self) -> None:
        """Refuse zones and lines that share a name."""
        count_by_name = Counter(shape.name for shape in (*self.zone, *self.line))
        for name, count in count_by_name.items():
            if count > 1:
                raise UsageError(
                    f"the zone or line {name} is given twice", "give each another name"
                )

    @property
    def zones(self) -> tuple[Zone, ...]:
        """The zones, by the name that is not the option's."""
        return self.zone

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines, by the name that is not the option's."""
        return self.line

    @property
    def zones_and_lines(self) -> list[str]:
        """The names of zones, of lines, and of both directions across these: "door left"."""
        zone_names = [zone.name for zone in self.zone]
        line_names = [line.name for line in self.line]
        crossing_names = []
        for line_name in line_names:
            crossing_names += [f"{line_name} left", f"{line_name} right"]
        return zone_names + line_names + crossing_names
