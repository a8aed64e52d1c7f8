"""CSV: a row for each detection, and for each input that failed.

Spreadsheets run cells that begin like a formula, and terminals obey control codes. So control codes
are escaped, and such cells get an apostrophe in front, as OWASP advises ("CSV injection").
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from detcli.errors import UsageError
from detcli.files import AppendedFile
from detcli.sink import Encodable, Output, TextSink
from detcli.text import printable

BOX = ("x1", "y1", "x2", "y2")
COLUMNS = [
    *("source", "index", "frame", "time_s", "width", "height"),
    *("class_id", "class_name", "score", *BOX, "error", "time", "warnings"),
]

# With their full-width forms, which some spreadsheets treat alike.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class CsvSink(TextSink):
    """Comma-separated values with a header; a picture without detections or warnings has no row.

    The columns are the same in all runs with the same options; `frame` and `time_s` are empty for
    pictures. A file that is appended to has its header already.

    Raises:
        UsageError: The file that is appended to has other columns.
    """

    def __init__(self, output: Output, optional_columns: Sequence[str] = ()) -> None:
        """Write the header.

        Args:
            output: What is written to.
            optional_columns: The `OPTIONAL_FIELDS` that are wanted.
        """
        super().__init__(output)
        self._columns = [*COLUMNS, *optional_columns]
        header = ",".join(self._columns) + "\n"
        if not isinstance(output, AppendedFile) or not output.first_line:
            output.write(header)
        elif output.first_line != header:
            output.commit()
            raise UsageError(
                f"the columns of {output.path} differ from those of this run",
                "write to another file",
            )

    def write(self, record: Encodable) -> None:
        """Write the rows of a record."""
        fields: dict[str, Any] = {**record.to_json()}
        fields["warnings"] = "; ".join(fields.get("warnings", ()))
        if "error" in fields:
            self._write_rows([fields | {"error": fields["error"]["message"]}])
        elif fields["warnings"] and not fields["detections"]:
            self._write_rows([fields])
        else:
            self._write_rows(
                fields
                | found
                | dict(zip(BOX, found["box"], strict=True))
                | {
                    "zones": " ".join(found.get("zones", ())),
                    "crossed": " ".join(map("{line}:{to}".format_map, found.get("crossed", ()))),
                    "corners": " ".join(f"{x},{y}" for x, y in found.get("corners", ())),
                }
                for found in fields["detections"]
            )

    def _write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        table = [[_safe(row.get(column, "")) for column in self._columns] for row in rows]
        # Some readers split unquoted cells at a semicolon, and the second part may be a formula.
        quote_all = any(";" in str(cell) for row in table for cell in row)
        text = io.StringIO()
        writer = csv.writer(
            text, lineterminator="\n", quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
        )
        writer.writerows(table)
        self._output.write(text.getvalue())


def _safe(cell: str | float) -> str | float:
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
