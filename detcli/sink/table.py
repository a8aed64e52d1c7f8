"""One table per picture, for people."""

import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from detcli.record import RecordJson
from detcli.sink import Encodable, Output, TextSink
from detcli.text import printable

UNLIMITED_WIDTH = 10_000


class TableSink(TextSink):
    """The detections of each picture, aligned.

    On a terminal they are coloured, and frames of videos take a line only if something was found.
    """

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._terminal = output.file.isatty()
        # The terminal wraps long names, so that they can be copied whole. Only text is taken from
        # the console, which writes nothing.
        self._console = Console(
            file=io.StringIO(), force_terminal=self._terminal or None, width=UNLIMITED_WIDTH
        )

    def write(self, record: Encodable) -> None:
        """Write one table, or one line if nothing was found."""
        fields = record.to_json()
        eventful = any(fields.get(name) for name in ("error", "warnings", "detections"))
        if self._terminal and not eventful and "frame" in fields:
            return
        with self._console.capture() as text:
            self._console.print(*_parts(fields), sep="\n")
        self._output.write(text.get())


def _parts(fields: RecordJson) -> list[Table | Text]:
    if "error" in fields:
        message = Text(printable(f"{_place(fields)}: {fields['error']['message']}"), style="red")
        if fields["error"]["hint"]:
            message.append(printable(f"  ({fields['error']['hint']})"), style="not red dim")
        return [message]
    size = f"{fields['width']}x{fields['height']}"
    heading = Text(f"{printable(_place(fields))}  {size}", style="bold")
    for warning in fields.get("warnings", ()):
        heading.append(f"  {printable(warning)}", style="not bold yellow")
    if not fields["detections"]:
        return [heading.append("  nothing found", style="not bold dim")]
    table = Table(box=None, pad_edge=False)
    table.add_column("class", style="cyan")
    for column in ("score", "x1", "y1", "x2", "y2"):
        table.add_column(column, justify="right")
    tracked = any("track_id" in found for found in fields["detections"])
    if tracked:
        table.add_column("track", justify="right")
    if "zones" in fields["detections"][0]:
        table.add_column("zones")
    read = "text" in fields["detections"][0]
    if read:
        table.add_column("text")
        table.add_column("symbology", style="dim")
    for found in fields["detections"]:
        box = (f"{side:.1f}" for side in found["box"])
        name, score = Text(printable(found["class_name"])), f"{found['score']:.2f}"
        track = [str(found.get("track_id", ""))] if tracked else []
        zones = [" ".join(found["zones"])] if "zones" in found else []
        text = found.get("text") or ""
        says = [Text(printable(text)), Text(found.get("symbology", ""))] if read else []
        table.add_row(name, score, *box, *track, *zones, *says)
    return [heading, table]


def _place(fields: RecordJson) -> str:
    """Where a picture comes from: the input, and frame and time in a video."""
    parts = [fields["source"]]
    if "frame" in fields:
        parts.append(f"frame {fields['frame']}")
    if "time" in fields:
        parts.append(fields["time"])
    elif "time_s" in fields:
        parts.append(f"{fields['time_s']:.2f} s")
    return "  ".join(parts)
