"""CSV: a row for each detection and for each input that failed."""

import csv
import io

from detcli.record import Record
from detcli.sink import Output

COLUMNS = (
    "source index frame time_s width height class_id class_name score x1 y1 x2 y2 error".split()
)


class CsvSink:
    """Comma-separated values with a header; a picture without detections has no row.

    The columns are always the same; `frame` and `time_s` are empty for pictures.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._write_rows([COLUMNS])

    def write(self, record: Record) -> None:
        """Write the rows of a record."""
        fields = record.to_json()
        head = [fields.get(column, "") for column in ("source", "index", "frame", "time_s")]
        if "error" in fields:
            self._write_rows([[*head, *[""] * 9, fields["error"]["message"]]])
            return
        self._write_rows(
            [
                [
                    *(*head, fields["width"], fields["height"]),
                    *(found["class_id"], found["class_name"], found["score"], *found["box"], ""),
                ]
                for found in fields["detections"]
            ]
        )

    def close(self) -> None:
        """Make the file visible."""
        self._output.commit()

    def _write_rows(self, rows: list[list[str]]) -> None:
        text = io.StringIO()
        # The csv module leaves a lone carriage return unquoted, which no reader takes.
        odd = any("\r" in str(cell) for row in rows for cell in row)
        writer = csv.writer(
            text, lineterminator="\n", quoting=csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL
        )
        writer.writerows(rows)
        self._output.write(text.getvalue())
