"""Opens the sinks that the options ask for."""

import contextlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from detcli.commands.shared.options import Format
from detcli.errors import UsageError
from detcli.files import AtomicFile, StandardOutput
from detcli.sink import Output, Sink
from detcli.source.item import Item

Skip = Callable[[Item], bool]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where records go.

    Attributes:
        form: How records are written.
        output: To which file; None means standard output.
        journal: File that the run goes on with, in place of `output`.
        pictures: Folder for annotated pictures and videos.
        labels: Folder for YOLO labels.
        label_scores: With the score as a sixth column.
        coco: File for COCO results.
        coco_images: COCO file that has the ids of the pictures.
        crops: Folder for a picture of each detection.
        show: In a window.

    Raises:
        UsageError: They do not go together.
    """

    form: Format
    output: Path | None = None
    journal: Path | None = None
    pictures: Path | None = None
    labels: Path | None = None
    label_scores: bool = False
    coco: Path | None = None
    coco_images: Path | None = None
    crops: Path | None = None
    show: bool = False

    def __post_init__(self) -> None:
        if self.journal is not None and self.output is not None:
            raise UsageError("--resume and --output are two places", "leave out --output")
        if self.label_scores and self.labels is None:
            raise UsageError("--save-conf without --save-txt", "say where labels go")
        if self.coco_images is not None and self.coco is None:
            raise UsageError("--coco-images without --save-coco", "say where results go")
        if self.coco is not None and self.journal is not None:
            raise UsageError(
                "--save-coco with --resume would have the results of this run only",
                "make COCO results in a run of its own",
            )
        if self.coco is not None and self.coco == self.output:
            raise UsageError(f"{self.coco} is given twice", "write to two files")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders that are written to."""
        return tuple(one for one in (self.pictures, self.labels, self.crops) if one is not None)

    @property
    def need_pixels(self) -> bool:
        """Whether a sink shows the picture, which then has to be there in full size."""
        return self.pictures is not None or self.crops is not None or self.show

    @property
    def shows_errors(self) -> bool:
        """Whether failures are visible among the results, on a terminal."""
        return self.form is Format.TABLE and self.output is None and self.journal is None


@contextlib.contextmanager
def open_sinks(options: SinkOptions, guard: Container[Path]) -> Iterator[tuple[list[Sink], Skip]]:
    """Open sinks, and finish them however the block ends: what was written is complete.

    Records come after the folders: what a journal has, the folders have. The window comes last,
    as it may end the run.

    Args:
        options: Which.
        guard: Files that are read, and never written over.

    Yields:
        The sinks, and what tells which inputs need no second run.

    Raises:
        UsageError: An output file is one of the inputs.
        OutputError: A file or folder cannot be written, or there is no display.
    """
    for path in (options.output, options.journal, options.coco):
        if path is not None and path in guard:
            raise UsageError(f"{path} is one of the inputs", "write to another file")
    with contextlib.ExitStack() as opening:
        # Only when all of them are open, closing one makes its file visible.
        sinks, skip = _open(options, guard, opening)
        opening.pop_all()
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(sink.close)
        yield sinks, skip


def _open(
    options: SinkOptions, guard: Container[Path], opening: contextlib.ExitStack
) -> tuple[list[Sink], Skip]:
    """Open all of them; what is on the stack undoes it. Each is imported when it is used."""
    windows: list[Sink] = []
    if options.show:
        from detcli.sink.window import WindowSink

        windows.append(WindowSink())
    sinks = _folder_sinks(options, guard)
    if options.coco is not None:
        from detcli.sink.coco import CocoSink, Numbers, NumbersFromFile, NumbersFromNames

        images = options.coco_images
        numbers: Numbers = NumbersFromNames() if images is None else NumbersFromFile(images)
        sinks.append(CocoSink(_file(options.coco, opening), numbers))
    if options.journal is not None:
        from detcli.sink.journal import Journal

        journal = Journal(options.journal)
        opening.callback(journal.close)

        def skip(item: Item) -> bool:
            # The frames of a camera are others each time, whatever their numbers.
            origin = item.origin
            live = origin.clip is not None and origin.clip.live
            return not live and journal.skip(origin.source, origin.frame)

        return [*sinks, journal, *windows], skip
    output = StandardOutput() if options.output is None else _file(options.output, opening)
    return [*sinks, _text_sink(options.form, output), *windows], lambda _: False


def _file(path: Path, opening: contextlib.ExitStack) -> AtomicFile:
    file = AtomicFile(path)
    opening.callback(file.discard)
    return file


def _folder_sinks(options: SinkOptions, guard: Container[Path]) -> list[Sink]:
    """Those that write a file for each input."""
    if not options.folders:
        return []
    from detcli.sink.folder import OutputFolder

    # A run that goes on writes over nothing that an earlier part of it has written.
    keep = options.journal is not None
    sinks: list[Sink] = []
    if options.pictures is not None:
        from detcli.sink.image import ImageSink
        from detcli.sink.video import VideoSink

        folder = OutputFolder(options.pictures, guard, keep=keep)
        sinks += [ImageSink(folder), VideoSink(folder)]
    if options.labels is not None:
        from detcli.sink.yolo import LabelSink

        folder = OutputFolder(options.labels, guard, keep=keep)
        sinks.append(LabelSink(folder, scores=options.label_scores))
    if options.crops is not None:
        from detcli.sink.crops import CropSink

        sinks.append(CropSink(OutputFolder(options.crops, guard, keep=keep)))
    return sinks


def _text_sink(form: Format, file: Output) -> Sink:
    # Each is imported when it is used: rich alone takes 40 ms.
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
