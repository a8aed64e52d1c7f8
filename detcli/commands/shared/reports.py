"""Reports of commands: tables for people, JSON for programs.

A report is a frozen dataclass. Its JSON form is its fields after `schema_version`; None stands for
what is unknown or was not measured.
"""

import json
import math
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcli.commands.shared.messages import is_terminal
from detcli.text import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


Report = TypeVar("Report", bound="DataclassInstance")

SCHEMA_VERSION = 1


class ReportFormat(StrEnum):
    """How a report is written."""

    TABLE = "table"
    JSON = "json"


def choose_report_format(wanted: ReportFormat | None) -> ReportFormat:
    """The requested format, else what suits standard output."""
    if wanted is not None:
        return wanted
    return ReportFormat.TABLE if is_terminal(sys.stdout) else ReportFormat.JSON


def write_report(
    report: Report,
    wanted: ReportFormat | None,
    render: Callable[[Report], Iterable["RenderableType"]],
) -> None:
    """Write a report to standard output.

    Args:
        report: A dataclass.
        wanted: The format; None for what suits standard output.
        render: Makes the parts that rich prints for people.
    """
    from detcli.files import StandardOutput

    output = StandardOutput()
    if choose_report_format(wanted) is ReportFormat.JSON:
        output.write(encode(report) + "\n")
    else:
        from rich.console import Console

        console = Console(file=output.file)
        with console.capture() as text:
            for part in render(report):
                # Text that must not be wrapped, such as a command to copy, is not cut off either.
                console.print(part, soft_wrap=bool(getattr(part, "no_wrap", False)))
        output.write(text.get())
    output.commit()


def encode(report: "DataclassInstance") -> str:
    """A report as indented JSON."""
    document = {"schema_version": SCHEMA_VERSION, **to_json(report)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)


def to_json(value: Any) -> Any:  # noqa: ANN401 - any field of a report
    """A value as JSON has it: dataclasses as objects, NaN and infinities as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def facts(rows: Iterable[tuple[str, str]]) -> "Table":
    """A table of two columns: titles and values."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for title, value in rows:
        table.add_row(Text(printable(title)), Text(printable(value)))
    return table


def line(*parts: tuple[str, str]) -> "Text":
    """A line of texts with their styles."""
    from rich.text import Text

    return Text.assemble(*((printable(text), style) for text, style in parts), no_wrap=True)


def processor_name(root: Path = Path("/")) -> str | None:
    """The name of the CPU, such as "AMD EPYC"; None if it is unknown.

    Args:
        root: Root of the file system.
    """
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return found[1].strip()
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - a constant
        return done.stdout.strip() or None
    return platform.processor() or None
