"""Values of options: the format of records, and the conditions of `--fail-if`."""

import re
import stat
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path

from detcli.commands.shared.messages import is_terminal
from detcli.errors import CheckError, UsageError


class Format(StrEnum):
    """A format of records; the suffix of --output can choose it too."""

    TABLE = "table"
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


def choose_format(wanted: Format | None, output: Path | None) -> Format:
    """The requested format, else the one of the file's suffix, else what suits standard output.

    Raises:
        UsageError: The suffix is unknown.
    """
    if wanted is not None:
        return wanted
    if output is None:
        return Format.TABLE if is_terminal(sys.stdout) else Format.JSONL
    suffix = output.suffix.lower()
    if suffix and suffix not in SUFFIXES and not is_special(output):
        raise UsageError(
            f"--output {output}: the suffix {output.suffix} names no format",
            f"use {', '.join(SUFFIXES)}, or say which with --format; --save-txt writes YOLO labels",
        )
    return SUFFIXES.get(suffix, Format.JSONL)


def is_special(path: Path) -> bool:
    """Whether a name is that of a device or a pipe, which may be called anything."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing has this name
        return False


LABEL_PARTS = ("name", "score")


def parse_labels(text: str) -> frozenset[str]:
    """Read what the labels in pictures say: `name,score`, either, or `none`.

    Raises:
        UsageError: The text names something else.
    """
    parts = frozenset(part.strip() for part in text.split(","))
    if parts == {"none"}:
        return frozenset()
    if not parts <= {*LABEL_PARTS}:
        raise UsageError(f"--labels '{text}' is not a list of name and score", "or write none")
    return parts


OPERATORS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
GRAMMAR = r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<count>\d+)\s*"

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
    match = re.fullmatch(GRAMMAR, text)
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
