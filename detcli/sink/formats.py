"""The formats of records: what each can do, which sink writes it, and which one a run gets."""

import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from detcli.config.values import FORMAT_OF_SUFFIX, Format, Target
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import closest, is_terminal
from detcli.data.record import BURST_COLUMNS
from detcli.sink.protocol import Output, RecordSink, RunDescription
from detcli.storage.files import AtomicFile, DirectFile, open_output
from detcli.storage.folder import OutputState

SinkClass = Callable[..., RecordSink]

UNKNOWN_RUN = RunDescription()
"""A run about which only its records are known."""


@frozen
class FormatSpec:
    """What a format of records can do, and what writes it."""

    load_sink: Callable[[], SinkClass]  # imports the class that writes it, made of an `Output`
    is_appendable: bool = False  # complete after each record, so that more can be added to a file
    has_provenance: bool = False  # its records can say what made them
    # a row for each detection, with columns that only some options add; its class takes these, too
    has_detection_rows: bool = False
    needs_file: bool = False  # it cannot be written to standard output
    # it says what made its records, and names files relative to a folder; its class takes a
    # `RunDescription`, too
    describes_run: bool = False
    takes_streams: bool = True  # whether records of cameras and streams can be written


# The classes are imported when they are used: --help does without, and libraries may be missing.


def _load_table() -> SinkClass:
    from detcli.sink.text import TableSink

    return TableSink


def _load_json_lines() -> SinkClass:
    from detcli.sink.text import JsonLinesSink

    return JsonLinesSink


def _load_json() -> SinkClass:
    from detcli.sink.text import JsonSink

    return JsonSink


def _load_csv() -> SinkClass:
    from detcli.sink.text import CsvSink

    return CsvSink


def _load_parquet() -> SinkClass:
    from detcli.sink.parquet import ParquetSink

    return ParquetSink


def _load_label_studio() -> SinkClass:
    from detcli.sink.labels import LabelStudioSink

    return LabelStudioSink


def _load_megadetector() -> SinkClass:
    from detcli.sink.megadetector import MegaDetectorSink

    return MegaDetectorSink


FORMATS = {
    Format.TABLE: FormatSpec(_load_table, is_appendable=True),
    Format.JSONL: FormatSpec(_load_json_lines, is_appendable=True, has_provenance=True),
    Format.JSON: FormatSpec(_load_json, has_provenance=True),
    Format.CSV: FormatSpec(_load_csv, is_appendable=True, has_detection_rows=True),
    Format.PARQUET: FormatSpec(_load_parquet, has_detection_rows=True, needs_file=True),
    Format.LABELSTUDIO: FormatSpec(_load_label_studio),
    Format.MEGADETECTOR: FormatSpec(_load_megadetector, describes_run=True, takes_streams=False),
}
"""Every format of records. A new one is named in `config/values.py`, with its suffixes."""


def open_target(target: Target, before: OutputState | None = None) -> AtomicFile | DirectFile:
    """Open the file, device or object in a store that records are written to.

    Args:
        target: Its path or address.
        before: The size and time that a file of this path had when the run began; a file that was
            changed since is not replaced. None to replace any.

    Raises:
        OutputError: It cannot be written.
    """
    if isinstance(target, Path):
        return open_output(target, before)
    from detcli.storage.objects import ObjectFile

    return ObjectFile(target)


def choose_format(requested: Format | None, output: "Target | None") -> Format:
    """Choose the format of records: as requested, or by the file's suffix.

    Args:
        requested: The format that the user requested; None if none.
        output: The file that is written to; None for standard output, which gets a table on a
            terminal and JSON Lines elsewhere.

    Raises:
        UsageError: The suffix is unknown.
    """
    if requested is not None:
        return requested
    if output is None:
        if is_terminal(sys.stdout):
            return Format.TABLE
        return Format.JSONL

    suffix = output.suffix.lower()
    if suffix and suffix not in FORMAT_OF_SUFFIX and not is_special(output):
        question = ""
        similar_suffix = closest(suffix, FORMAT_OF_SUFFIX)
        if similar_suffix:
            stem = str(output).removesuffix(output.suffix)
            question = f"did you mean {stem}{similar_suffix}? "
        raise UsageError(
            f"--output {output}: the suffix {output.suffix} names no format",
            f"{question}use {', '.join(FORMAT_OF_SUFFIX)}, or say which with --format; "
            "--save-txt writes YOLO labels",
        )
    return FORMAT_OF_SUFFIX.get(suffix, Format.JSONL)


def is_special(path: Target) -> bool:
    """Return whether a path is that of a device or a pipe, whose name has no suffix to go by."""
    try:
        return isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing has this name
        return False


def check_format_options(
    record_format: Format, output: "Target | None", base: str | None = None
) -> None:
    """Refuse options that do not go with a format of records, before anything is written.

    These are --base with a format that does not name files relative to a folder, and no --output
    with one that needs a file. The library of such a format is loaded, to see whether it is
    installed.

    Args:
        record_format: The format.
        output: The file that is written to; None for standard output.
        base: The value of --base; None if it is not set.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: An option does not go with the format.
    """
    properties = FORMATS[record_format]
    if base is not None and not properties.describes_run:
        raise UsageError(
            f"--base is not used by the format {record_format}",
            "leave it out, or add --format megadetector",
        )

    if properties.needs_file:
        if output is None:
            raise UsageError(f"--format {record_format} needs --output", "name a file for it")
        properties.load_sink()  # this raises at once if its library is missing


def require_bursts(record_format: Format) -> None:
    """Refuse --burst for a format that does not have all fields of records.

    Raises:
        UsageError: The format does not have them.
    """
    properties = FORMATS[record_format]
    if not (properties.has_detection_rows or properties.has_provenance):
        raise UsageError(
            f"--burst is not part of the format {record_format}",
            "add -o FILE.jsonl or FILE.csv, or --format jsonl",
        )


def open_record_sink(
    record_format: Format,
    output: Output,
    optional_columns: Sequence[str],
    run: RunDescription = UNKNOWN_RUN,
    burst_gap_s: float | None = None,
) -> RecordSink:
    """Make the sink that writes records in a format to an open output.

    Args:
        record_format: The format.
        output: The open output.
        optional_columns: The names of columns that options add; formats that do not write a row
            for each detection have no columns.
        run: What is known about the run that makes the records, for formats that say so.
        burst_gap_s: The maximum number of seconds between the photographs of a burst; None if
            records do not say which photographs form a burst.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: A file that is appended to has different columns.
    """
    properties = FORMATS[record_format]
    sink_class = properties.load_sink()
    if properties.has_detection_rows:
        columns = list(optional_columns)
        if burst_gap_s is not None:
            columns += BURST_COLUMNS
        sink = sink_class(output, columns)
    elif properties.describes_run:
        sink = sink_class(output, run)
    else:
        sink = sink_class(output)
    if burst_gap_s is None:
        return sink
    from detcli.sink.bursts import BurstSink

    return BurstSink(sink, burst_gap_s)  # passes all records on at the end
