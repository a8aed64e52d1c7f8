"""CSV: a row for each detection, and for each input that failed."""

import csv
import io
from collections.abc import Iterable
from typing import Any

from detcli.record import Record
from detcli.sink import Output, TextSink

BOX = ("x1", "y1", "x2", "y2")
COLUMNS = [
    *("source", "index", "frame", "time_s", "width", "height"),
    *("class_id", "class_name", "score", *BOX, "error", "time", "warnings"),
]


class CsvSink(TextSink):
    """Comma-separated values with a header; a picture without detections or warnings has no row.

    The columns are always the same; `frame` and `time_s` are empty for pictures.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._write_rows([dict(zip(COLUMNS, COLUMNS, strict=True))])

    def write(self, record: Record) -> None:
        """Write the rows of a record."""
        fields: dict[str, Any] = {**record.to_json(), "warnings": "; ".join(record.warnings)}
        if "error" in fields:
            self._write_rows([fields | {"error": fields["error"]["message"]}])
        elif record.warnings and not fields["detections"]:
            self._write_rows([fields])
        else:
            self._write_rows(
                fields | found | dict(zip(BOX, found["box"], strict=True))
                for found in fields["detections"]
            )

    def _write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        table = [[row.get(column, "") for column in COLUMNS] for row in rows]
        # The csv module leaves a lone carriage return unquoted, which readers do not accept.
        quote_all = any("\r" in str(cell) for row in table for cell in row)
        text = io.StringIO()
        writer = csv.writer(
            text, lineterminator="\n", quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
        )
        writer.writerows(table)
        self._output.write(text.getvalue())
