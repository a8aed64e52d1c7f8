"""Opens the sinks that the options ask for."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from detcli.cli.formats import Format
from detcli.errors import UsageError
from detcli.files import AtomicFile, StandardOutput
from detcli.sink import Sink
from detcli.stream.source import InputGuard


@contextlib.contextmanager
def open_sinks(
    inputs: Sequence[str], form: Format, output: Path | None, save: Path | None
) -> Iterator[list[Sink]]:
    """Open sinks, and finish them however the block ends: what was written is complete.

    Args:
        inputs: Names of whatever is read, which is never written over: pictures, the model.
        form: How records are written.
        output: Where; None means standard output.
        save: Folder for annotated pictures, if they are wanted.

    Raises:
        UsageError: The output file is one of the inputs.
        OutputError: A file or folder cannot be written.
    """
    # A guard looks at every input: only where there is something to guard them from.
    guard = InputGuard(inputs if output or save else [])
    if output is not None and output in guard:
        raise UsageError(f"--output {output} is one of the inputs", "name another file")
    with contextlib.ExitStack() as stack:
        sinks: list[Sink] = []
        if save is not None:
            from detcli.sink.image import ImageSink  # only when asked for

            sinks.append(ImageSink(save, guard))
        sinks.append(_text_sink(form, output))
        for sink in sinks:
            stack.callback(sink.close)
        yield sinks


def _text_sink(form: Format, output: Path | None) -> Sink:
    # Each format is imported when it is used: rich alone takes 40 ms.
    file = AtomicFile(output) if output is not None else StandardOutput()
    match form:
        case Format.TABLE:
            from detcli.sink.table import TableSink

            return TableSink(file)
        case Format.CSV:
            from detcli.sink.csv import CsvSink

            return CsvSink(file)
        case Format.JSON:
            from detcli.sink.json import JsonSink

            return JsonSink(file)
        case Format.JSONL:
            from detcli.sink.json import JsonLinesSink

            return JsonLinesSink(file)
