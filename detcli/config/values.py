"""Values of options that are more than a number or a name: what they are, and how they are parsed.

Each reads itself from text, with `parse` or a function below, and writes itself with `str`.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from detcli.config.typed import convert_fields
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import OBJECT_SCHEMES, closest, looks_like_address, public_name

if TYPE_CHECKING:
    from detcli.data.geometry import Area, Size
    from detcli.storage.objects import Address


class BoxFormat(StrEnum):
    """What the four numbers of a box mean."""

    XYXY = "xyxy"
    CXCYWH = "cxcywh"


class BenchMode(StrEnum):
    """One batch after the other, or all stages in parallel."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"


MAX_PROCESSES = 1024  # of --on local:N; processes beyond the number of cores only wait

BLUR_MARGIN = 0.1
"""Fraction of a box's sides that is hidden beyond it, as boxes may be a little too small."""


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
    MEGADETECTOR = "megadetector"


FORMAT_OF_SUFFIX = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}
"""The suffixes of --output that choose a format."""


@frozen
class Sampling:
    """How many records a sample has, and the seed that decides which."""

    size: int
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --sample: `200` or `200,seed=7`."""
        match = re.fullmatch(r"0*([1-9][0-9]{0,6})(?:,\s*seed\s*=\s*([0-9]{1,9}))?", text, re.ASCII)
        if match is None:
            raise UsageError(
                f"--sample {text} is not N or N,seed=SEED", "write 200, or 200,seed=7 for others"
            )
        size, seed = match.groups()
        return cls(int(size), int(seed or 0))

    def __str__(self) -> str:
        return f"{self.size},seed={self.seed}"


MAX_MARGIN = 100_000
"""The largest margin of a crop, in percent or pixels; no image is larger."""


@frozen
class CropMargin:
    """How far a crop reaches beyond each side of its box."""

    size: float
    in_percent: bool  # of the box's width or height; else in pixels

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --crop-margin: `10%` or `16px`.

        Raises:
            UsageError: It has an unknown unit or none, or is negative or too large.
        """
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(%|px)", text.strip(), re.ASCII)
        if match is None or float(match[1]) > MAX_MARGIN:
            raise UsageError(
                f"--crop-margin {text} is not a margin",
                "write 10% for a tenth of the box's width and height, or 16px for pixels",
            )
        return cls(float(match[1]), in_percent=match[2] == "%")

    def __str__(self) -> str:
        unit = "%" if self.in_percent else "px"
        return f"{self.size:.12g}{unit}"


class Tracker(StrEnum):
    """A tracker of Roboflow's `trackers`."""

    BYTETRACK = "bytetrack"
    BOTSORT = "botsort"
    OCSORT = "ocsort"


@frozen
class Tracking:
    """How objects are followed.

    Detections with at least the score `conf` begin a track; lower ones can only continue one, and
    not with `ocsort`. None stands for the confidence of the run.
    """

    tracker: Tracker
    _: KW_ONLY
    conf: float | None = None

    if TYPE_CHECKING:  # programs may give the name of a tracker

        def __init__(self, tracker: Tracker | str, *, conf: float | None = None) -> None: ...

    def __post_init__(self) -> None:
        """Convert the values to the types of the fields, and refuse those out of range."""
        convert_fields(self)
        if self.conf is not None and not 0 <= self.conf <= 1:
            raise UsageError(f"conf is {self.conf}", "use a confidence between 0 and 1")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --track: `bytetrack`, or `bytetrack,conf=0.5`."""
        name, comma, settings_text = text.partition(",")
        name = name.strip()
        settings_text = settings_text.strip()
        if name not in list(Tracker):
            question = ""
            similar_name = closest(name, Tracker)
            if similar_name:
                question = f"did you mean {similar_name}? "
            hint = f"{question}write {', '.join(Tracker)}"
            raise UsageError(f"--track {text}: no tracker '{name}'", hint)
        if not comma:
            return cls(Tracker(name))

        hint = f"write {name},conf=0.5, from 0 to 1"
        numbers = _parse_numbers("--track", settings_text, hint)
        conf = numbers.get("conf", 0)
        if numbers.keys() != {"conf"} or not 0 <= conf <= 1:
            raise UsageError(f"--track {text}: '{settings_text}' is not a confidence", hint)
        return cls(Tracker(name), conf=conf)

    def __str__(self) -> str:
        if self.conf is None:
            return self.tracker
        return f"{self.tracker},conf={self.conf:.12g}"


@frozen
class ShardEngine:
    """What runs the shards of a run: processes here, or actors of Ray."""

    kind: str  # local or ray
    count: int = 0  # of local processes
    address: str | None = None  # of a Ray cluster

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --on: `local:4`, `ray` or `ray://HOST:PORT`."""
        local_count = re.fullmatch("local:0*([1-9][0-9]*)", text)
        if local_count is not None:
            # Python refuses to parse numbers of thousands of digits; six are already too many.
            count = int(local_count[1][:6])
            if count > MAX_PROCESSES:
                raise UsageError(
                    f"--on {text} asks for more than {MAX_PROCESSES} processes",
                    f"give local:N with N up to {MAX_PROCESSES}; "
                    "processes beyond the number of cores only wait",
                )
            return cls("local", count)
        if text == "ray":
            return cls("ray")
        if re.fullmatch(r"ray://[^/]+:[0-9]{1,5}", text):
            return cls("ray", address=text)
        raise UsageError(
            f"--on {text} names nothing to run on",
            "use local:N for N processes here, ray, or ray://HOST:10001",
        )

    def __str__(self) -> str:
        if self.count:
            return f"local:{self.count}"
        return self.address or self.kind


@frozen
class ShardSelection:
    """Every `step`-th shard, starting with the `first`, counted from 1."""

    first: int = 1
    step: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the value of --shards: `3/8` is every eighth shard, starting with the third."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text, re.ASCII)
        if match is not None:
            first = int(match[1])
            step = int(match[2])
            if 1 <= first <= step:
                return cls(first, step)
        raise UsageError(
            f"--shards {text} is not a share",
            "write 1/8 for the first of eight tasks, and 8/8 for the last",
        )

    def __str__(self) -> str:
        return f"{self.first}/{self.step}"


@frozen
class Tolerance:
    """How far two sides may differ and still agree; a value out of range raises UsageError."""

    score: float  # of the two of a pair
    corner: float  # of a pair, in pixels of the image
    boxes: float  # share of boxes that may be missing, extra, or in a pair that differs by more
    tensor: float  # as a share of the largest magnitude

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_too_large = field.name == "boxes" and value > 1
            if not 0 <= value < math.inf or is_too_large:
                raise UsageError(
                    f"--tolerance: {field.name} is {value}",
                    "give 0 or more; boxes is a share, as in 1% or 0.01",
                )


def _parse_numbers(
    option: str, text: str, hint: str, *, allow_percent: bool = False
) -> dict[str, float]:
    """Parse a list of numbers with names, such as `0.25,person=0.5`.

    Args:
        option: The flag, for error messages.
        text: What was typed.
        hint: How to write it, for error messages.
        allow_percent: Take "1%" as 0.01.

    Returns:
        The numbers by name: {"": 0.25, "person": 0.5}. A number without a name has the name "".

    Raises:
        UsageError: An entry is not a number, a name comes twice, or the list is empty.
    """
    if looks_like_address(text):  # parts of it would appear in an error
        raise UsageError(
            f"{option} {public_name(text)} is an address, but the option takes numbers", hint
        )
    numbers: dict[str, float] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        name, _, number_text = entry.rpartition("=")
        name = name.strip()
        number_text = number_text.strip()
        try:
            number = _parse_number(number_text, allow_percent=allow_percent)
        except ValueError:
            raise UsageError(f"{option} '{text}': '{number_text}' is not a number", hint) from None
        if name in numbers:
            subject = f"for {name}" if name else "without a name"
            raise UsageError(f"{option} '{text}' has two numbers {subject}", hint)
        numbers[name] = number
    if not numbers:
        raise UsageError(f"{option} '{text}' is an empty list", hint)
    return numbers


def _parse_number(text: str, *, allow_percent: bool) -> float:
    """Parse a number, or a percentage such as "1%" as 0.01; raises ValueError for the rest."""
    if allow_percent and text.endswith("%"):
        return float(text.removesuffix("%")) / 100
    return float(text)


def parse_conf(text: str) -> dict[str, Any]:
    """Parse the value of --conf, such as `0.25,person=0.5`.

    Returns:
        The values of two fields of Settings: `conf`, the confidence of all classes, None if there
        is none; and `class_conf`, pairs of a class and its confidence.
    """
    conf_by_name = _parse_numbers("--conf", text, "write 0.25, or 0.25,person=0.5")
    conf = conf_by_name.pop("", None)
    return {"conf": conf, "class_conf": tuple(conf_by_name.items())}


def parse_tolerance(text: str) -> dict[str, float]:
    """Parse the value of --tolerance: "score=0.02,boxes=1%" is {"score": 0.02, "boxes": 0.01}."""
    field_names = [field.name for field in fields(Tolerance)]
    hint = f"write NAME=NUMBER for any of {', '.join(field_names)}, as in {field_names[0]}=0.01"
    numbers = _parse_numbers("--tolerance", text, hint, allow_percent=True)
    for name in numbers:
        if name not in field_names:
            raise UsageError(f"--tolerance '{text}': '{name}' is unknown", hint)
    return numbers


BYTES = {
    "": 1,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
"""Bytes of each unit of a size, in lower case."""

SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600}
"""Seconds of each unit of a time."""


def parse_size(text: str) -> int:
    """Parse a size in bytes: `2GiB`, `512 MiB`, `1.5g`, `4000000000`.

    KiB or K and so on count in steps of 1024, KB and so on in steps of 1000.
    """
    hint = "write 2GiB, 512MiB, or a number of bytes"
    return int(_parse_quantity(text, BYTES, quantity="a size", hint=hint))


def parse_duration(text: str) -> float:
    """Parse a time, in seconds: `1s`, `0.5s`, `200ms`, `2min`, `1h`, or a number of seconds."""
    hint = "write 1s, 0.5s, 2min, or a number of seconds"
    return _parse_quantity(text, SECONDS, quantity="a time", hint=hint)


def _parse_quantity(text: str, units: Mapping[str, float], *, quantity: str, hint: str) -> float:
    """Parse a number with a unit.

    Args:
        text: What was typed, as in "512 MiB".
        units: How much each unit stands for, in lower case; "" for a number without a unit.
        quantity: What the text should be, for the error message.
        hint: How to write it.

    Returns:
        The number multiplied by its unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None or match[2].lower() not in units:
        raise UsageError(f"'{text}' is not {quantity}", hint)
    number = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(number):
        raise UsageError(f"'{text}' is not {quantity}: it is too large", hint)
    return number


def parse_labels(text: str) -> str:
    """Read the parts of the labels in images: `name,score`, one of them, or `none`."""
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
    """How a large image is cut into tiles, in which small objects are detected too.

    Attributes:
        size: Side of a tile in pixels of the image.
        overlap: The minimum fraction of a tile's side that it shares with the next.
        crowd: Detection first runs on the whole image, which is only cut into tiles if it has at
            least this many detections; 0 to cut every image.

    Raises:
        UsageError: A value is out of range.
    """

    size: int
    _: KW_ONLY
    overlap: float = 0.2
    crowd: int = 0

    def __post_init__(self) -> None:
        """Convert the values to the types of the fields, and refuse those out of range."""
        convert_fields(self)
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
        """Parse the value of --tile: `640`, `640,overlap=0.2` or `640,crowd=10`."""
        # At most nine digits, since Python refuses to parse numbers of thousands.
        size_pattern = r"\s*([0-9]{1,9})\s*"
        overlap_pattern = r"(?:,\s*overlap\s*=\s*(-?[0-9]*\.?[0-9]+)\s*)?"
        crowd_pattern = r"(?:,\s*crowd\s*=\s*([0-9]{1,9})\s*)?"
        match = re.fullmatch(size_pattern + overlap_pattern + crowd_pattern, text, re.ASCII)
        if match is None:
            raise UsageError(
                f"--tile '{text}' is not SIZE, SIZE,overlap=SHARE or SIZE,crowd=COUNT",
                "write 640, 640,overlap=0.2 or 640,crowd=10",
            )
        size, overlap, crowd = match.groups()
        return cls(int(size), overlap=float(overlap or 0.2), crowd=int(crowd or 0))

    def __str__(self) -> str:
        text = f"{self.size},overlap={self.overlap:.12g}"
        if self.crowd:
            text += f",crowd={self.crowd}"
        return text

    def areas(self, size: "Size") -> "list[Area]":
        """List the areas of an image for detection: its tiles row by row, then the whole image.

        All tiles have the same size, and the distances between them are equal to within a pixel. An
        image that fits into one tile has only that one area.

        Args:
            size: Height and width of the image in pixels.

        Returns:
            Left, top, right and bottom of each area.

        Examples:
            >>> Tiling(640).areas((480, 1000))
            [(0, 0, 640, 480), (360, 0, 1000, 480), (0, 0, 1000, 480)]
        """
        height, width = size
        areas = []
        for top in self._tile_starts(height):
            for left in self._tile_starts(width):
                right = min(left + self.size, width)
                bottom = min(top + self.size, height)
                areas.append((left, top, right, bottom))
        if len(areas) > 1:
            areas.append((0, 0, width, height))
        return areas

    def _tile_starts(self, length: int) -> list[int]:
        """Compute where the tiles begin along one side of the image.

        There are as few tiles as the overlap allows, and they are spread evenly: with tiles of 640
        pixels and an overlap of 0.2, a side of 1500 pixels has tiles at 0, 430 and 860.

        Args:
            length: Length of the side in pixels.
        """
        last_start = max(0, length - self.size)
        if last_start == 0:
            return [0]
        max_distance = max(1, int(self.size * (1 - self.overlap)))
        step_count = math.ceil(last_start / max_distance)
        return [round(step * last_start / step_count) for step in range(step_count + 1)]


def parse_writable(text: str) -> Path:
    """Parse the path of an output that has to be on a disk, such as that of --save.

    Raises:
        ValueError: It names an object in a store, an address, or standard output; with the message
            and its hint.
    """
    if text == "-":
        raise ValueError("cannot write to standard output", "name a place on a disk, not -")
    # The text may come from a `Path`, which turns s3://bucket into s3:/bucket.
    schemes_with_one_slash = tuple(scheme[:-1] for scheme in OBJECT_SCHEMES)
    if text.startswith(schemes_with_one_slash):
        raise ValueError(
            "cannot write to an object store",
            "name a place on a disk; records can go there, with --output",
        )
    if looks_like_address(text):
        raise ValueError("cannot write to an address", "name a place on a disk")
    return Path(text)


Target: TypeAlias = "Path | Address"  # what records are written to: a file, or an object in a store


def read_target(output: str | None) -> "Target | None":
    """Convert the text of `--output` to the file or the object that records are written to.

    Returns:
        A path, or the address of an object such as s3://bucket/a.jsonl; None for standard output.

    Raises:
        UsageError: It is the address of something that cannot be written to, or has no name in it.
    """
    if output is None or output == "-":
        return None
    from detcli.core.text import is_object

    if is_object(output):
        return _object_address(output)
    if looks_like_address(output):
        raise UsageError(
            f"--output {public_name(output)} is an address that nothing can be written to",
            "name a file on a disk, or an object as in s3://bucket/a.jsonl",
        )
    return Path(output)


def _object_address(output: str) -> "Address":
    """Parse the address of an object in a store, such as s3://bucket/a.jsonl.

    Raises:
        UsageError: It is not that of one object, or holds credentials.
    """
    from detcli.storage.object_errors import ObjectError
    from detcli.storage.objects import Address

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
    """Whether `--output` names a folder, into which a run in shards writes its parts."""
    return output is not None and output.endswith(("/", os.sep))
