"""Reports of commands: tables for people, JSON for programs.

A report is a frozen dataclass. Its JSON form is its fields after `schema_version`; None stands for
what is unknown or was not measured. A field declared by `report_field` carries its label and unit,
and `report_rows` and `table` lay it out:

    @dataclass(frozen=True, slots=True)
    class Summary:
        p50_s: float = report_field("p50", "s")
        p90_s: float | None = report_field("p90", "s")
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from detcli.config.config import OUTPUT
from detcli.config.option import option
from detcli.core.text import escape_unprintable, is_terminal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


Report = TypeVar("Report", bound="DataclassInstance")


class ReportFormat(StrEnum):
    """How a report is written."""

    TABLE = "table"
    JSON = "json"


REPORT_FORMAT: ReportFormat | None = option(
    None,
    f"--format {'|'.join(ReportFormat)}",
    "Default: table on a terminal and json in a pipe.",
    panel=OUTPUT,
    other_names="f",
    uncertified="it says how a report is written",
)
"""The option of commands that write a report."""


def choose_report_format(requested: ReportFormat | None) -> ReportFormat:
    """The requested format, else what suits standard output."""
    if requested is not None:
        return requested
    return ReportFormat.TABLE if is_terminal(sys.stdout) else ReportFormat.JSON


def require_output(other_results: Sequence[object]) -> None:
    """Refuse a closed standard output before the work begins, unless there are other results.

    Args:
        other_results: The files that the command writes besides its report; None for each that the
            user did not ask for.

    Raises:
        OutputError: The report would be the only result, and goes nowhere.
    """
    from detcli.storage.files import StandardOutput

    if any(other_results):
        return
    StandardOutput()  # raises an error if standard output is closed


def write_report(
    report: Report,
    requested_format: ReportFormat | None,
    render: Callable[[Report], Iterable["RenderableType"]],
    *,
    other_results: Sequence[object] = (),
) -> None:
    """Write a report to standard output, as JSON or as tables for people.

    Where standard output is closed, it is left out if the command has other results.

    Args:
        report: The report.
        requested_format: The value of --format; None for tables on a terminal, and JSON elsewhere.
        render: Makes the tables and lines of a report that rich prints.
        other_results: The other files that the command writes; None for each that the user did not
            ask for.
    """
    from detcli.storage.files import StandardOutput

    if sys.stdout is None and any(other_results):
        return
    output = StandardOutput()
    if choose_report_format(requested_format) is ReportFormat.JSON:
        output.write(encode(report) + "\n")
    else:
        output.write(_rendered(render(report), output.file))
    output.commit()


def _rendered(blocks: Iterable["RenderableType"], file: IO[str]) -> str:
    """Lay out tables and lines as text, with the colours that a file shows, as a terminal does."""
    from rich.console import Console

    console = Console(file=file)
    with console.capture() as text:
        for block in blocks:
            # rich would cut off a string that must not be wrapped, such as a command to copy; with
            # `soft_wrap`, the terminal wraps it.
            console.print(block, soft_wrap=bool(getattr(block, "no_wrap", False)))
    return text.get()


def encode(report: "DataclassInstance") -> str:
    """Encode a report as indented JSON; the version of its schema is 1 unless it sets another."""
    version = getattr(report, "schema_version", 1)
    document = {"schema_version": version, **to_json(report)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)


def to_json(value: Any) -> Any:  # noqa: ANN401 - any field of a report
    """Convert a value of a report to what JSON can hold.

    Dataclasses become objects, sequences and sets become lists, and NaN and infinities None.
    """
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


EMPTY = "-"
"""What tables show for a value that is unknown or was not measured."""


def format_seconds(value: float) -> str:
    """Format a duration in a suitable unit, as in "1.50 s", "12.30 ms" or "120.0 us"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            number = value / size
            if number < 100:
                return f"{number:.2f} {unit}"
            return f"{number:.1f} {unit}"
    return f"{value * 1e9:.0f} ns"


def _format_bytes(value: int) -> str:
    from rich.filesize import decimal

    return decimal(value)


UNITS: dict[str, Callable[[Any], str]] = {
    "": str,
    "s": format_seconds,
    "B": _format_bytes,
    "%": "{:.1%}".format,
    "/s": "{:.1f} images/s".format,
}
"""How a value with each unit is formatted for people; JSON has the bare number."""


def report_field(
    label: str = "",
    unit: str = "",
    form: Callable[[Any], str] | None = None,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as in `field`
) -> Any:  # noqa: ANN401 - as in `field`
    """Declare a field of a report: a dataclass that is shown as a table and saved as JSON.

    Args:
        label: The name of the value in the table. Without a label, only the JSON has the field; but
            a field that is a report itself is shown by the rows of that report.
        unit: The unit that the table writes the value with, a key of UNITS such as "ms".
        form: A function that turns the value into the table's text, in place of a unit.
        default: The default of the dataclass field.

    Returns:
        The field, as `dataclasses.field` returns it.
    """
    to_text = form
    if to_text is None:
        to_text = UNITS[unit]
    return field(default=default, metadata={"label": label, "text": to_text})


def report_rows(
    report: "DataclassInstance | None",
    report_type: type["DataclassInstance"] | None = None,
    prefix: str = "",
) -> Iterator[tuple[str, str]]:
    """Yield the labels and values of a report's fields as strings, in order.

    A field may hold a report itself. Then the fields of that report are yielded in its place, and
    their labels begin with the label of the field. Fields without a label are left out.

    Args:
        report: The report; if it is None, each row shows that the value is missing.
        report_type: Its type, needed if it may be None.
        prefix: The prefix of each label.
    """
    class_with_fields: Any = report_type or type(report)
    for declared_field in fields(class_with_fields):
        metadata = declared_field.metadata
        if not metadata:  # a field that was not declared by `report_field`
            continue

        label = f"{prefix} {metadata['label']}".strip()
        value = None
        if report is not None:
            value = getattr(report, declared_field.name)

        inner_type = _report_type(declared_field.type)
        if inner_type is not None:
            yield from report_rows(value, inner_type, label)
        elif label and value is not None:
            value_to_text = metadata["text"]
            yield label, value_to_text(value)
        elif label:
            yield label, EMPTY


def _report_type(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    """Return the dataclass in the annotation of a field that is a report itself, if it is one.

    `Report` and `Report | None` have one; `tuple[Report, ...]` and other types give None.
    """
    candidates = [annotation]
    if get_origin(annotation) is not tuple:
        candidates += get_args(annotation)
    for candidate in candidates:
        if is_dataclass(candidate):
            return candidate
    return None


def table(reports: "Sequence[DataclassInstance]", title: str | None = None) -> "Table":
    """Lay out reports of one type as a table: a column for each label, a row for each report."""
    from rich.table import Table
    from rich.text import Text

    layout = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    rows = [list(report_rows(report)) for report in reports]
    labels = []
    if rows:
        labels = [label for label, _ in rows[0]]
    for index, label in enumerate(labels):
        if index == 0:
            layout.add_column(label, overflow="fold")
        else:
            layout.add_column(label, justify="right", no_wrap=True, overflow="fold")
    for row in rows:
        layout.add_row(*[Text(escape_unprintable(text)) for _, text in row])
    return layout


def facts_table(facts: Iterable[tuple[str, str]]) -> "Table":
    """Lay out labels and values as a table of two columns."""
    from rich.table import Table
    from rich.text import Text

    layout = Table.grid(padding=(0, 2))
    layout.add_column(style="cyan", no_wrap=True)
    layout.add_column(overflow="fold")
    for label, value in facts:
        layout.add_row(Text(escape_unprintable(label)), Text(escape_unprintable(value)))
    return layout


def styled_line(*texts: tuple[str, str]) -> "Text":
    """Join strings, each with a rich style such as "bold", into one line that is not wrapped."""
    from rich.text import Text

    escaped = [(escape_unprintable(text), style) for text, style in texts]
    return Text.assemble(*escaped, no_wrap=True)
