"""The options that only `detcli predict` has, and the conditions of `--fail-if`."""

import operator
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detcli.errors import CheckError, UsageError


class Format(StrEnum):
    """A format of records; the suffix of --output can choose it too."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The requested format, else the one of the file's suffix, else what suits standard output."""
    if wanted is not None:
        return wanted
    if output is not None:
        suffix = output.suffix.lower().removeprefix(".")
        return Format(suffix) if suffix in list(Format) else Format.JSONL
    return Format.TABLE if sys.stdout and sys.stdout.isatty() else Format.JSONL


SourcesOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="Pictures, videos, folders, quoted glob patterns, camera:N, rtsp:// or http:// "
        "streams; - reads a picture or a stream of JPEGs from stdin.",
        show_default=False,
    ),
]
FilesFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-", help="Read names of pictures and videos from this file, one per line."
    ),
]
NullOption = Annotated[
    bool,
    typer.Option("--null", "-0", help="Names in --files-from end with NUL instead of a newline."),
]
VideoStrideOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Process every Nth frame of a video.")
]
StartOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Start at this time in a video.")
]
EndOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Stop at this time in a video.")
]
FastDecodeOption = Annotated[
    bool,
    typer.Option(
        "--fast-decode", help="Decode large JPEGs at reduced size; boxes may differ slightly."
    ),
]
ConfidenceOption = Annotated[
    str,
    typer.Option(
        metavar="SCORE", help="Keep scores above this; 0.25,person=0.5 sets single classes."
    ),
]
MaxDetOption = Annotated[
    int, typer.Option(metavar="N", help="Keep at most N detections per picture.")
]
ClassesOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Keep only these classes, by name or id: person,car or 0,2."),
]
OutputFormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="|".join(Format),
        help="Default: by the suffix of --output, else table on a terminal and jsonl in a pipe.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write records to this file."),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Append JSON Lines to this file, and skip inputs that are already in it.",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write annotated pictures and videos to this folder."),
]
SaveTextOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write YOLO labels to this folder.")
]
SaveConfidenceOption = Annotated[
    bool, typer.Option("--save-conf", help="Add the score to each label as a sixth column.")
]
CocoImagesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="COCO instances.json with the ids of pictures and categories."
    ),
]
SaveCropsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write each detection as a picture, in one folder per class."),
]
ShowOption = Annotated[bool, typer.Option("--show", help="Show annotated pictures in a window.")]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION", help="Exit with 6 if this holds at the end: 'person>0', 'any==0'."
    ),
]

OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
GRAMMAR = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*")

ANY = "any"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition such as person>0, on the detections of a class or of any class."""

    name: str
    sign: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.count}"


def parse_condition(text: str, names: Sequence[str]) -> Condition:
    """Read a condition.

    Args:
        text: The condition, such as "person>0".
        names: The model's classes.

    Raises:
        UsageError: The text is not a condition, or the model has no such class.
    """
    match = GRAMMAR.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--fail-if '{text}' is not a condition",
            "write CLASS>N or any>N; < >= <= == != work too",
        )
    name = match["name"]
    if name != ANY and name not in names:
        raise UsageError(
            f"--fail-if '{text}': the model has no class '{name}'",
            "name one of its classes, or any",
        )
    return Condition(name, match["sign"], int(match["count"]))


def check_conditions(conditions: Sequence[Condition], found: Counter[str]) -> None:
    """Check the conditions on the whole run.

    Raises:
        CheckError: At least one condition holds.
    """
    held = []
    for condition in conditions:
        count = found.total() if condition.name == ANY else found[condition.name]
        if OPERATORS[condition.sign](count, condition.count):
            held.append(f"{condition} ({count} found)")
    if held:
        raise CheckError(f"--fail-if holds: {', '.join(held)}")
