"""Opens the sinks that the options ask for; each is imported only when it is used.

A format of records needs nothing here, but a row of `Format` in commands/shared/formats.py.
"""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.commands.predict.options import LABEL_PARTS
from detcli.commands.shared.formats import (
    Format,
    Target,
    is_special,
    open_record_sink,
    open_target,
    require_file,
)
from detcli.commands.shared.messages import is_pipe, is_terminal
from detcli.commands.shared.options import Hiding
from detcli.commands.shared.progress import count
from detcli.errors import UsageError
from detcli.files import AppendedFile, AtomicFile, DirectFile, StandardOutput
from detcli.interrupts import interrupts
from detcli.record import OPTIONAL_FIELDS, Record, SettingsJson
from detcli.settings import class_ids
from detcli.sink import Output, Sink
from detcli.source.item import Item
from detcli.watch.options import WatchOptions

if TYPE_CHECKING:
    from detcli.sink.folder import OutputFolder

Skip = Callable[[Item], bool]
"""Whether a resumed run has the record of an input already."""


def _are_same(one: "Target | None", other: "Target | None") -> bool:
    """Whether two paths lead to the same place."""
    if not isinstance(one, Path) or not isinstance(other, Path):
        return False
    return os.path.realpath(one) == os.path.realpath(other)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where records go.

    Raises:
        UsageError: The options contradict each other.
        DependencyError: The library for the format is missing.
    """

    format: Format
    watch: WatchOptions = field(default_factory=WatchOptions)  # what records have besides boxes
    output: "Target | None" = None  # for records; None for standard output
    append: bool = False  # add to that file, as the run may never end; not if it is JSON or Parquet
    journal: Path | None = None  # file that an earlier run began, instead of `output`
    force: bool = False  # continue it even if it was made with other settings
    pictures: Path | None = None  # folder for annotated pictures and videos
    line_width: int | None = None  # of boxes in these and in the window; None for the default
    label_parts: frozenset[str] = frozenset(LABEL_PARTS)  # what labels in them say
    labels: Path | None = None  # folder for YOLO labels
    label_scores: bool = False  # add the score to each label as a sixth column
    crops: Path | None = None  # folder for a picture of each detection
    dataset: Path | None = None  # folder for a dataset in YOLO's layout
    mot: Path | None = None  # folder for tracks in MOTChallenge's format
    coco: Path | None = None  # file for COCO results
    coco_images: Path | None = None  # instances.json with the ids of pictures and categories
    report: Path | None = None  # folder for a page to look at
    provenance: bool = False  # records say what made them
    show: bool = False  # in a window
    only_detections: bool = False  # keep no pictures without any
    blur: tuple[str, ...] = ()  # classes to hide in pictures, by name or id
    blur_with: Hiding = Hiding.BLUR

    def __post_init__(self) -> None:
        if self.force and self.journal is None:
            raise UsageError("--force needs --resume", "leave it out: -o replaces its file")
        if self.label_scores and self.labels is None:
            raise UsageError("--save-conf needs --save-txt", "name a folder for labels")
        if self.coco_images is not None and self.coco is None:
            raise UsageError("--coco-images needs --save-coco", "name a file for results")
        if self.coco is not None and self.journal is not None:
            raise UsageError(
                "--save-coco with --resume would hold the results of this run only",
                "write COCO results in a separate run",
            )
        if self.mot is not None and self.watch.track is None:
            raise UsageError("--save-mot needs --track", "add --track bytetrack")
        if _are_same(self.mot, self.labels):
            raise UsageError(
                f"--save-mot and --save-txt would write files of the same names to {self.mot}",
                "name two folders",
            )
        if self.mot is not None and self.journal is not None:
            raise UsageError(
                "--save-mot with --resume would hold the tracks of this run only",
                "write them in a separate run",
            )
        if self.provenance and self.journal is None and not self.format.traits.has_provenance:
            raise UsageError(
                f"--provenance is not part of the format {self.format}",
                "add -o FILE.jsonl, --resume FILE or --format jsonl",
            )
        if _are_same(self.coco, self.output):
            raise UsageError(f"{self.coco} is given twice", "write to two files")
        require_file(self.format, self.output)

    @property
    def files(self) -> "tuple[Target | None, ...]":
        """Files of results; None for those that are not wanted."""
        return (self.output, self.journal, self.coco)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of files that records name."""
        return tuple(filter(None, (self.pictures, self.labels, self.crops, self.dataset, self.mot)))

    @property
    def written(self) -> tuple[Path, ...]:
        """All folders that the run writes to."""
        return (*self.folders, *filter(None, [self.report]))

    @property
    def need_pixels(self) -> bool:
        """Whether a sink shows pictures, which then have to be decoded in full size."""
        return self.show or any((self.pictures, self.crops, self.dataset, self.report))

    @property
    def needs_settings(self) -> bool:
        """Whether a sink says what the detections depend on."""
        return self.provenance or self.journal is not None or self.report is not None

    @property
    def show_errors(self) -> bool:
        """Whether failures are visible among the results, on a terminal."""
        return self.format is Format.TABLE and self.output is None and self.journal is None

    @property
    def appends(self) -> bool:
        """Whether records are added to what is in `output`."""
        return (
            self.append
            and isinstance(self.output, Path)
            and self.format.traits.appendable
            and not is_special(self.output)
        )

    @property
    def on_terminal(self) -> bool:
        """Whether records go to a terminal, where they show the run's progress.

        Or into a pipe, as what reads it probably prints to the terminal: `detcli ... | jq`.
        """
        if self.journal is not None:
            return False
        if self.output is None:
            return is_terminal(sys.stdout) or is_pipe(sys.stdout)
        if not isinstance(self.output, Path):
            return False
        if self.output.is_fifo():
            return True
        return self.output.is_char_device() and str(self.output) != os.devnull


class OutputSummary:
    """Counts what a run has written, for the lines at its end."""

    def __init__(self, options: SinkOptions) -> None:
        """Note which files exist before the run."""
        self._options = options
        self._replaced = {
            path
            for path in (options.output, options.coco)
            if isinstance(path, Path) and path.is_file()
        }
        self._files: Counter[Path] = Counter()  # by folder
        self._videos: set[Path] = set()  # and tracks, which each of their frames names

    def add(self, record: Record) -> None:
        """Count the files of a record."""
        for path in record.saved:
            if path.suffix == ".mp4" or path.parent == self._options.mot:
                if path in self._videos:
                    continue
                self._videos.add(path)
            folders = filter(path.is_relative_to, self._options.folders)
            self._files.update(sorted(folders, key=lambda folder: len(folder.parts))[-1:])

    def lines(self, done: int, skipped: int) -> Iterator[str]:
        """A line for each file and folder.

        Args:
            done: Number of records.
            skipped: Number of inputs that the journal had already.
        """
        options, records = self._options, count(done, "record")
        if options.journal is not None:
            known = f"; it had {count(skipped, 'input')} already" if skipped else ""
            yield f"added {records} to {options.journal}{known}"
        if options.output is not None and options.appends:
            yield f"added {records} to {options.output}"
        elif options.output is not None and not is_special(options.output):
            yield f"wrote {records} to {options.output}{self._instead_of(options.output)}"
        if options.coco is not None and not is_special(options.coco):
            yield f"wrote COCO results to {options.coco}{self._instead_of(options.coco)}"
        for folder in dict.fromkeys(options.folders):
            yield f"wrote {count(self._files[folder], 'file')} to {folder}"
        if options.report is not None:
            yield f"wrote a page of {records}: {options.report / 'index.html'}"

    def _instead_of(self, path: Target) -> str:
        return ", in place of the file that was there" if path in self._replaced else ""


def hidden_classes(
    hidden: Iterable[str], kept: Iterable[str | int], names: tuple[str, ...]
) -> frozenset[int]:
    """Ids of the classes to hide in pictures, which --classes must include.

    Args:
        hidden: Of `--blur`, by name or id.
        kept: Of `--classes`; empty means all.
        names: Those of the model.

    Raises:
        UsageError: The model has no such class, or `--classes` leaves it out.
    """
    wanted, looked_for = class_ids(hidden, names) or frozenset(), class_ids(kept, names)
    if looked_for is not None and not wanted <= looked_for:
        missing = ",".join(names[class_id] for class_id in sorted(wanted - looked_for))
        raise UsageError(
            f"--blur {missing} is not among --classes, so it is not detected and cannot be hidden",
            f"add {missing} to --classes",
        )
    return wanted


@contextlib.contextmanager
def open_sinks(  # noqa: PLR0913 - what sinks are opened with
    options: SinkOptions,
    guard: Container[Path],
    settings: SettingsJson | None = None,
    class_names: Sequence[str] = (),
    hidden: frozenset[int] = frozenset(),
    *,
    roots: Sequence[str] = (),
) -> Iterator[tuple[list[Sink], Skip]]:
    """Open sinks, and close them however the block ends: what was written is complete.

    Records come after the folders: what a journal has, the folders have. The window comes last,
    as it may end the run.

    Args:
        options: Which sinks.
        guard: Input files, which are never written over.
        settings: What the detections depend on, for a journal and a page.
        class_names: The model's classes, for a dataset.
        hidden: Ids of the classes to hide in pictures.
        roots: Folders and patterns that are searched for inputs.

    Yields:
        The sinks, and a function that tells which inputs to skip.

    Raises:
        UsageError: An output is in the folder of the page.
        OutputError: A file or folder cannot be written, or there is no display.
    """
    if options.report is not None:
        from detcli.sink.page.folder import require_apart

        written = (path for path in options.files if isinstance(path, Path))
        require_apart(options.report, (*written, *options.folders))
    with contextlib.ExitStack() as undo:
        sinks, skip = _open(options, guard, settings, class_names, undo, roots=roots)
        undo.pop_all()  # closing makes files visible, so it has to wait until all are open
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(_close, sink)
        if hidden:
            from detcli.sink.image import PrivateSinks

            sinks = [PrivateSinks(sinks, hidden, options.blur_with)]
        yield sinks, skip


def _close(sink: Sink) -> None:
    """Close a sink, holding signals back meanwhile."""
    with interrupts.held():
        sink.close()


def _open(  # noqa: C901, PLR0913, PLR0915 - one branch an option
    options: SinkOptions,
    guard: Container[Path],
    settings: SettingsJson | None,
    class_names: Sequence[str],
    undo: contextlib.ExitStack,
    *,
    roots: Sequence[str],
) -> tuple[list[Sink], Skip]:
    """Open all sinks; after an error, the stack undoes what was opened."""

    def open_file(path: Target) -> AtomicFile | DirectFile:
        file = open_target(path)
        undo.callback(file.discard)
        return file

    def make_folder(path: Path) -> "OutputFolder":
        from detcli.sink.folder import OutputFolder

        folder = OutputFolder(path, guard, roots=roots, resumed=options.journal is not None)
        folders.append(folder)
        return folder

    def skip(item: Item) -> bool:
        known = journal.skip(item.origin)
        if known:
            for folder in folders:
                folder.skip(item.origin)
        return known

    def keeper(sink: Sink) -> Sink:
        """A sink of pictures; with --only-detections, it gets only those with detections."""
        if not options.only_detections:
            return sink
        from detcli.sink.image import OnlyDetections

        return OnlyDetections(sink)

    folders: list[OutputFolder] = []
    sinks: list[Sink] = []
    windows: list[Sink] = []
    if options.show or options.pictures is not None:
        from detcli.sink.draw import Style

        style = Style(options.line_width, options.label_parts)
    if options.show:
        from detcli.sink.window import WindowSink

        windows.append(WindowSink(style))
    if options.pictures is not None:
        from detcli.sink.image import ImageSink
        from detcli.sink.video import VideoSink

        folder = make_folder(options.pictures)
        video = VideoSink(
            folder, style, condensed=options.only_detections, silent=bool(options.blur)
        )
        sinks += [keeper(ImageSink(folder, style)), keeper(video)]
    if options.labels is not None:
        from detcli.sink.labels import LabelSink

        sinks.append(LabelSink(make_folder(options.labels), scores=options.label_scores))
    if options.crops is not None:
        from detcli.sink.image import CropSink

        sinks.append(CropSink(make_folder(options.crops)))
    if options.dataset is not None:
        from detcli.sink.labels import DatasetSink

        sinks.append(keeper(DatasetSink(options.dataset, class_names)))
    if options.report is not None:
        from detcli.commands.shared.page import about_run
        from detcli.sink.page.page import PageSink

        about = about_run("predict", settings)
        resumed = options.journal is not None
        page = PageSink(
            options.report,
            about,
            guard,
            resumed=resumed,
            only_detections=options.only_detections,
        )
        undo.callback(page.discard)
        sinks.append(page)
    if options.mot is not None:
        from detcli.sink.labels import MotSink

        sinks.append(MotSink(make_folder(options.mot)))
    if options.coco is not None:
        from detcli.sink.labels import CocoIds, CocoIdsFromFile, CocoSink

        images = options.coco_images
        ids = CocoIds() if images is None else CocoIdsFromFile(images)
        sinks.append(CocoSink(open_file(options.coco), ids))
    if options.journal is not None:
        from detcli.sink.journal import Journal

        journal = Journal(options.journal, settings, force=options.force, videos=options.pictures)
        undo.callback(journal.close)
        return [*sinks, journal, *windows], skip
    optional = [
        column for column, setting in OPTIONAL_FIELDS.items() if getattr(options.watch, setting)
    ]
    records: Sink = open_record_sink(options.format, _open_output(options, open_file), optional)
    return [*sinks, records, *windows], lambda _: False


def _open_output(
    options: SinkOptions, open_file: Callable[[Target], AtomicFile | DirectFile]
) -> Output:
    """What records are written to."""
    if options.output is None:
        return StandardOutput()
    if options.appends and isinstance(options.output, Path):
        return AppendedFile(options.output)
    return open_file(options.output)
