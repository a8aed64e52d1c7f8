"""Values of options that are more than a number or a name: what they are, and how they are read.

Each reads itself from text, with `parse` or a function below, and writes itself with `str`.
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from detcli.config.typed import settle_fields
from detcli.core import frozen
from detcli.core.errors import SourceError, UsageError, system_reason
from detcli.core.text import OBJECT_SCHEMES, looks_like_address, public_name

if TYPE_CHECKING:
    from detcli.data.geometry import Area, Points, Size
    from detcli.storage.objects import Address


class BoxFormat(StrEnum):
    """What the four numbers of a box mean."""

    XYXY = "xyxy"
    CXCYWH = "cxcywh"


class BenchMode(StrEnum):
    """One batch after the other, or all stages in parallel."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


BLUR_MARGIN = 0.1
"""Part of a box's sides that is hidden beyond it, as boxes may be a little too small."""


class Hiding(StrEnum):
    """How the classes of `--blur` are hidden: a key of `sink.image.WAYS`."""

    BLUR = "blur"
    PIXELATE = "pixelate"
    FILL = "fill"


class Format(StrEnum):
    """A format of records; what each can do and which sink writes it is in `sink/formats.py`."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    LABELSTUDIO = "labelstudio"


SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}
"""The suffixes of --output that choose a format."""


class Tracker(StrEnum):
    """A tracker of Roboflow's `trackers`."""

    BYTETRACK = "bytetrack"
    BOTSORT = "botsort"
    OCSORT = "ocsort"


@frozen
class Tracking:
    """How objects are followed.

    Scores from `conf` on begin a track; lower ones can only go on with one, and not with `ocsort`.
    None stands for the confidence of the run.
    """

    tracker: Tracker
    conf: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bytetrack` or `bytetrack,conf=0.5`."""
        name, comma, rest = map(str.strip, text.partition(","))
        if name not in [*Tracker]:
            raise UsageError(f"--track {text}: no tracker '{name}'", f"write {', '.join(Tracker)}")
        hint = f"write {name},conf=0.5, from 0 to 1"
        found = _numbers("--track", rest, hint) if comma else {}
        if not (found.keys() <= {"conf"} and 0 <= found.get("conf", 0) <= 1):
            raise UsageError(f"--track {text}: '{rest}' is not a confidence", hint)
        return cls(Tracker(name), found.get("conf"))

    def __str__(self) -> str:
        return self.tracker if self.conf is None else f"{self.tracker},conf={self.conf:.12g}"


@frozen
class ShardEngine:
    """What works the shards of a run: processes here, or actors of Ray."""

    kind: str  # local or ray
    count: int = 0  # of local processes
    address: str | None = None  # of a Ray cluster

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `local:4`, `ray` or `ray://HOST:PORT`."""
        kind, _, rest = text.partition(":")
        if kind == "local" and re.fullmatch("0*[1-9][0-9]{0,5}", rest):
            return cls(kind, int(rest))
        if text == "ray" or re.fullmatch(r"ray://[^/]+:[0-9]{1,5}", text):
            return cls(kind, address=text if rest else None)
        raise UsageError(
            f"--on {text} names nothing to run on",
            "use local:N for N processes here, ray, or ray://HOST:10001",
        )

    def __str__(self) -> str:
        return f"local:{self.count}" if self.count else self.address or self.kind


@frozen
class Actors:
    """How many actors of Ray there are to begin with, and at most."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `4` or `1..32`."""
        found = re.fullmatch(r"([0-9]{1,6})(?:\.\.([0-9]{1,6}))?", text, re.ASCII)
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not max(least, 1) <= most:
            hint = "write 4 for four, 1..32 to begin with one and go up to 32"
            raise UsageError(f"--actors {text} is not a number of actors", hint)
        return cls(least, most)

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"


@frozen
class ShardSelection:
    """Every `step`-th shard, from the `first` on, counted from 1."""

    first: int = 1
    step: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3/8`: the third of eight."""
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text, re.ASCII)
        first, step = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= first <= step:
            hint = "write 1/8 for the first of eight tasks, and 8/8 for the last"
            raise UsageError(f"--shards {text} is not a share", hint)
        return cls(first, step)

    def __str__(self) -> str:
        return f"{self.first}/{self.step}"


@frozen
class Tolerance:
    """How far two sides may differ and still agree; a value out of range raises UsageError."""

    score: float  # of the two of a pair
    corner: float  # of a pair, in pixels of the picture
    boxes: float  # share of boxes that may be missing, extra, or in a pair that differs by more
    tensor: float  # as a share of the largest magnitude

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < float("inf") or (one.name == "boxes" and value > 1):
                raise UsageError(
                    f"--tolerance: {one.name} is {value}",
                    "give 0 or more; boxes is a share, as in 1% or 0.01",
                )


def _numbers(option: str, text: str, hint: str, percent: str = "") -> dict[str, float]:
    """Read `0.25,person=0.5,boxes=1%` by name, which an entry may lack; some take 1% as 0.01."""
    if looks_like_address(text):  # whose parts an error would show
        raise UsageError(f"{option} {public_name(text)} is an address, and it takes numbers", hint)
    found: dict[str, float] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, number = map(str.strip, entry.rpartition("="))
        try:
            plain = number.removesuffix(percent)
            value = float(plain) / (1 if plain == number else 100)
        except ValueError:
            raise UsageError(f"{option} '{text}': '{number}' is not a number", hint) from None
        if name in found:
            what = f"for {name}" if name else "without a name"
            raise UsageError(f"{option} '{text}' has two numbers {what}", hint)
        found[name] = value
    if not found:
        raise UsageError(f"{option} '{text}' is an empty list", hint)
    return found


def parse_conf(text: str) -> dict[str, Any]:
    """Read `0.25,person=0.5`: the confidence of all classes, if given, and of single ones."""
    conf_by_name = _numbers("--conf", text, "write 0.25, or 0.25,person=0.5")
    conf = conf_by_name.pop("", None)
    return {"conf": conf, "class_conf": tuple(conf_by_name.items())}


def parse_tolerance(text: str) -> dict[str, float]:
    """Read "score=0.02,corner=2,boxes=1%" by name."""
    known = [field.name for field in fields(Tolerance)]
    hint = f"write NAME=NUMBER for any of {', '.join(known)}, as in {known[0]}=0.01"
    found = _numbers("--tolerance", text, hint, "%")
    if unknown := [name for name in found if name not in known]:
        raise UsageError(f"--tolerance '{text}': '{unknown[0]}' is unknown", hint)
    return found


_BYTES = {"": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _BYTES |= {_letter: 2 ** (10 * _power), f"{_letter}ib": 2 ** (10 * _power)}
    _BYTES[f"{_letter}b"] = 10 ** (3 * _power)


_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}


def parse_size(text: str) -> int:
    """Read a number of bytes: `2GiB`, `512 MiB`, `1.5g`, `4000000000`.

    KiB or K and so on count in steps of 1024, KB and so on in steps of 1000.
    """
    return int(_measure(text, _BYTES, "a size", "write 2GiB, 512MiB, or a number of bytes"))


def parse_duration(text: str) -> float:
    """Read a time, in seconds: `1s`, `0.5s`, `200ms`, `2min`, `1h`, or a number of seconds."""
    return _measure(text, _SECONDS, "a time", "write 1s, 0.5s, 2min, or a number of seconds")


def _measure(text: str, units: Mapping[str, float], what: str, hint: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    if parts is None or parts[2].lower() not in units:
        raise UsageError(f"'{text}' is not {what}", hint)
    return float(parts[1]) * units[parts[2].lower()]


def parse_labels(text: str) -> str:
    """Read the parts of the labels in pictures: `name,score`, one of them, or `none`."""
    parts = {part.strip() for part in text.split(",")}
    if parts != {"none"} and not parts <= {"name", "score"}:
        raise UsageError(
            f"--labels '{text}' has a part other than name and score",
            "write name,score or one of them, or none",
        )
    return ",".join(sorted(parts))


MAX_OVERLAP = 0.9


@frozen
class Tiling:
    """How a picture is cut into tiles.

    Attributes:
        size: Side of a tile in pixels of the picture.
        overlap: The least part of a tile's side that it shares with the next.
        crowd: The least number of detections in the whole picture for it to be cut; 0 to cut all.

    Raises:
        UsageError: A value is out of range.
    """

    size: int
    overlap: float = 0.2
    crowd: int = 0

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.size < 1:
            raise UsageError(f"{self.size} is not a size in pixels", "use 640")
        if not 0 <= self.overlap <= MAX_OVERLAP:
            raise UsageError(
                f"the overlap must be between 0 and {MAX_OVERLAP}, not {self.overlap:g}",
                f"write {self.size},overlap=0.2",
            )
        if self.crowd < 0:
            raise UsageError(f"the crowd is {self.crowd} detections", "use 0, to cut all, or more")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `640`, `640,overlap=0.2` or `640,crowd=10`."""
        found = re.fullmatch(
            r"\s*([0-9]{1,9})\s*(?:,\s*overlap\s*=\s*(-?[0-9]*\.?[0-9]+)\s*)?"
            r"(?:,\s*crowd\s*=\s*([0-9]{1,9})\s*)?",
            text,
            re.ASCII,
        )
        if found is None:
            raise UsageError(
                f"--tile '{text}' is not SIZE, SIZE,overlap=SHARE or SIZE,crowd=COUNT",
                "write 640, 640,overlap=0.2 or 640,crowd=10",
            )
        return cls(int(found[1]), float(found[2] or 0.2), int(found[3] or 0))

    def __str__(self) -> str:
        return f"{self.size},overlap={self.overlap:.12g}" + f",crowd={self.crowd}" * bool(
            self.crowd
        )

    def areas(self, size: "Size") -> "list[Area]":
        """What is looked at in a picture of (height, width): its tiles row by row, then the whole.

        All tiles are equally large and the distances between them equal, to the pixel. A picture
        that fits into one tile is looked at once.

        Examples:
            >>> Tiling(640).areas((480, 1000))
            [(0, 0, 640, 480), (360, 0, 1000, 480), (0, 0, 1000, 480)]
        """
        height, width = size
        tiles = [
            (left, top, min(left + self.size, width), min(top + self.size, height))
            for top, left in itertools.product(self._starts(height), self._starts(width))
        ]
        return [*tiles, (0, 0, width, height)] if len(tiles) > 1 else tiles

    def _starts(self, length: int) -> list[int]:
        """Where tiles begin along a side of the picture."""
        room = max(0, length - self.size)
        steps = math.ceil(room / max(1, int(self.size * (1 - self.overlap))))
        return [round(step * room / steps) for step in range(steps + 1)] if steps else [0]


NAME = r"\w[\w-]{0,39}"  # of a place
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
        if named and not (equals and re.fullmatch(NAME, name.strip())):
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
        sizes = {*map(abs, numbers)}
        if not fractions and (max(sizes) < 2 or min(sizes - {0}) < 1):
            what = "is neither all fractions nor all pixels"
            raise UsageError(f"{option} '{text}' {what}", f"{hint}, not both")
        points = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return cls(name.strip(), points, fractions)

    def __str__(self) -> str:
        numbers = [f"{number:.12g}" for point in self.points for number in point]
        return f"{self.name}{'=' * bool(self.name)}{','.join(numbers)}"

    def pixels(self, size: "Size") -> "Points":
        """The points in a picture of (height, width)."""
        import numpy as np

        height, width = size if self.fractions else (1, 1)
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
        left, top = min(left, width - 1), min(top, height - 1)
        return left, top, max(right, left + 1), max(bottom, top + 1)


def read_shapes(read: Callable[[str], Shape], option: str, text: str) -> list[Shape]:
    """The value of an option, or in place of `@FILE` that of each line of a file.

    Empty lines and those that begin with # are left out.
    """
    if not text.startswith("@"):
        return [read(text)]
    from detcli.storage.files import read_text

    try:
        lines = read_text(Path(text[1:])).splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{option} {text} cannot be read: {system_reason(error)}", "name a file of text"
        ) from error
    found = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    if not found:
        raise UsageError(f"{option} {text} has no line", "write NAME=x,y,... one a line")
    return [*map(read, found)]


def parse_writable(text: str) -> Path:
    """Read a path that is written to: on a disk, not in a store or on standard output."""
    if text == "-":
        raise ValueError("cannot write to standard output", "name a place on a disk, not -")
    # In a `Path`, an address leaves one slash.
    if text.startswith(tuple(scheme[:-1] for scheme in OBJECT_SCHEMES)):
        raise ValueError(
            "cannot write to an object store",
            "name a place on a disk; records can go there, with --output",
        )
    if looks_like_address(text):
        raise ValueError("cannot write to an address", "name a place on a disk")
    return Path(text)


Target: TypeAlias = "Path | Address"  # what records are written to: a file, or an object in a store


def read_target(output: str | None) -> "Target | None":
    """The value of `--output`; None for standard output."""
    if output is None or output == "-":
        return None
    from detcli.core.text import is_object
    from detcli.storage.objects import Address, ObjectError

    if not is_object(output):
        if looks_like_address(output):
            raise UsageError(
                f"--output {public_name(output)} is an address that nothing can be written to",
                "name a file on a disk, or an object as in s3://bucket/a.jsonl",
            )
        return Path(output)
    try:
        address = Address.parse(output)
    except ObjectError as error:
        raise UsageError(f"--output {public_name(output)}: {error}", error.hint) from None
    if public_name(output) != output:
        raise UsageError(
            f"--output {public_name(output)}: the signature would become part of the object's name",
            "name the object alone; credentials belong into the environment",
        )
    if not address.key:
        raise UsageError(f"--output {output} names no object", "write it as in s3://bucket/a.jsonl")
    return address


def is_folder(output: str | None) -> bool:
    """Whether what records are written to is named as a folder, of a run in shards."""
    return output is not None and output.endswith(("/", os.sep))
