"""Opens the sinks that the options ask for; each is imported only when it is used.

A format of records needs nothing here, but a row of `Format` in core/values.py.
"""

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.commands.shared.formats import (
    choose_format,
    is_special,
    open_record_sink,
    open_target,
    require_file,
)
from detcli.commands.shared.messages import is_pipe, is_terminal
from detcli.commands.shared.progress import count
from detcli.core.config import Config, Writing
from detcli.core.values import Format, Target
from detcli.errors import UsageError
from detcli.files import AppendedFile, AtomicFile, DirectFile, StandardOutput
from detcli.interrupts import interrupts
from detcli.record import OPTIONAL_FIELDS, Record, SettingsJson
from detcli.settings import class_ids
from detcli.sink import Output, Sink
from detcli.source.loading import Item
from detcli.source.names import is_live

if TYPE_CHECKING:
    from detcli.sink.folder import OutputFolder

Skip = Callable[[Item], bool]
"""Whether a resumed run has the record of an input already."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where records go, as it was settled when the run begins.

    Attributes:
        format: Of the records.
        target: What they are written to; None for standard output.
        resumed: Whether they go to the file of --resume instead.
        endless: Whether the run may never end, so that they are added to a file where the format
            allows it.
    """

    format: Format
    target: "Target | None" = None
    resumed: bool = False
    endless: bool = False

    @property
    def show_errors(self) -> bool:
        """Whether failures are visible among the results, on a terminal."""
        return self.format is Format.TABLE and self.target is None and not self.resumed

    @property
    def appends(self) -> bool:
        """Whether records are added to what is in `target`."""
        return (
            self.endless
            and isinstance(self.target, Path)
            and self.format.traits.appendable
            and not is_special(self.target)
        )

    @property
    def on_terminal(self) -> bool:
        """Whether records go to a terminal, where they show the run's progress.

        Or into a pipe, as what reads it probably prints to the terminal: `detcli ... | jq`.
        """
        if self.resumed:
            return False
        if self.target is None:
            return is_terminal(sys.stdout) or is_pipe(sys.stdout)
        if not isinstance(self.target, Path):
            return False
        if self.target.is_fifo():
            return True
        return self.target.is_char_device() and str(self.target) != os.devnull


def choose_destination(config: Config) -> Destination:
    """Where the records of a run go.

    Raises:
        UsageError: The format cannot be written there, or cannot have what was asked for.
        DependencyError: The library for the format is missing.
    """
    writing = config.writing
    target, resumed = writing.target, writing.resume is not None
    chosen = choose_format(writing.format, target)
    if writing.provenance and not resumed and not chosen.traits.has_provenance:
        raise UsageError(
            f"--provenance is not part of the format {chosen}",
            "add -o FILE.jsonl, --resume FILE or --format jsonl",
        )
    require_file(chosen, target)
    return Destination(chosen, target, resumed, any(map(is_live, config.inputs.source)))


class OutputSummary:
    """Counts what a run has written, for the lines at its end."""

    def __init__(self, writing: Writing, destination: Destination) -> None:
        """Note which files exist before the run."""
        self._writing, self._destination = writing, destination
        self._replaced = {
            path
            for path in (destination.target, writing.save_coco)
            if isinstance(path, Path) and path.is_file()
        }
        self._files: Counter[Path] = Counter()  # by folder
        self._videos: set[Path] = set()  # and tracks, which each of their frames names

    def add(self, record: Record) -> None:
        """Count the files of a record."""
        for path in record.saved:
            if path.suffix == ".mp4" or path.parent == self._writing.save_mot:
                if path in self._videos:
                    continue
                self._videos.add(path)
            folders = filter(path.is_relative_to, self._writing.folders)
            self._files.update(sorted(folders, key=lambda folder: len(folder.parts))[-1:])

    def lines(self, done: int, skipped: int) -> Iterator[str]:
        """A line for each file and folder.

        Args:
            done: Number of records.
            skipped: Number of inputs that the journal had already.
        """
        writing, records = self._writing, count(done, "record")
        target = self._destination.target
        if writing.resume is not None:
            known = f"; it had {count(skipped, 'input')} already" if skipped else ""
            yield f"added {records} to {writing.resume}{known}"
        if target is not None and self._destination.appends:
            yield f"added {records} to {target}"
        elif target is not None and not is_special(target):
            yield f"wrote {records} to {target}{self._instead_of(target)}"
        if writing.save_coco is not None and not is_special(writing.save_coco):
            again = self._instead_of(writing.save_coco)
            yield f"wrote COCO results to {writing.save_coco}{again}"
        for folder in dict.fromkeys(writing.folders):
            yield f"wrote {count(self._files[folder], 'file')} to {folder}"
        if writing.report is not None:
            yield f"wrote a page of {records}: {writing.report / 'index.html'}"

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
def open_sinks(
    config: Config,
    destination: Destination,
    guard: Container[Path],
    settings: SettingsJson | None = None,
    class_names: Sequence[str] = (),
) -> Iterator[tuple[list[Sink], Skip]]:
    """Open sinks, and close them however the block ends: what was written is complete.

    Records come after the folders: what a journal has, the folders have. The window comes last,
    as it may end the run.

    Args:
        config: What is written.
        destination: Where records go.
        guard: Input files, which are never written over.
        settings: What the detections depend on, for a journal and a page.
        class_names: The model's classes, for a dataset.

    Yields:
        The sinks, and a function that tells which inputs to skip.

    Raises:
        UsageError: An output is in the folder of the page, or a class cannot be hidden.
        OutputError: A file or folder cannot be written, or there is no display.
    """
    writing = config.writing
    hidden = hidden_classes(writing.blur, config.settings.classes, tuple(class_names))
    if writing.report is not None:
        from detcli.sink.page.folder import require_apart

        written = (path for path in writing.files if isinstance(path, Path))
        require_apart(writing.report, (*written, *writing.folders))
    with contextlib.ExitStack() as undo:
        sinks, skip = _open(config, destination, guard, settings, class_names, undo=undo)
        undo.pop_all()  # closing makes files visible, so it has to wait until all are open
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(_close, sink)
        if hidden:
            from detcli.sink.image import PrivateSinks

            sinks = [PrivateSinks(sinks, hidden, writing.blur_with)]
        yield sinks, skip


def _close(sink: Sink) -> None:
    """Close a sink, holding signals back meanwhile."""
    with interrupts.held():
        sink.close()


def _open(  # noqa: C901, PLR0913, PLR0915 - one branch an option
    config: Config,
    destination: Destination,
    guard: Container[Path],
    settings: SettingsJson | None,
    class_names: Sequence[str],
    *,
    undo: contextlib.ExitStack,
) -> tuple[list[Sink], Skip]:
    """Open all sinks; after an error, the stack undoes what was opened."""
    writing = config.writing

    def open_file(path: Target) -> AtomicFile | DirectFile:
        file = open_target(path)
        undo.callback(file.discard)
        return file

    def make_folder(path: Path) -> "OutputFolder":
        from detcli.sink.folder import OutputFolder

        roots, resumed = config.inputs.source, writing.resume is not None
        folder = OutputFolder(path, guard, roots=roots, resumed=resumed)
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
        if not writing.only_detections:
            return sink
        from detcli.sink.image import OnlyDetections

        return OnlyDetections(sink)

    folders: list[OutputFolder] = []
    sinks: list[Sink] = []
    windows: list[Sink] = []
    if writing.show or writing.save is not None:
        from detcli.sink.draw import Style

        style = Style(writing.line_width, frozenset(writing.labels.split(",")))
    if writing.show:
        from detcli.sink.window import WindowSink

        windows.append(WindowSink(style))
    if writing.save is not None:
        from detcli.sink.image import ImageSink
        from detcli.sink.video import VideoSink

        folder = make_folder(writing.save)
        video = VideoSink(
            folder, style, condensed=writing.only_detections, silent=bool(writing.blur)
        )
        sinks += [keeper(ImageSink(folder, style)), keeper(video)]
    if writing.save_txt is not None:
        from detcli.sink.labels import LabelSink

        sinks.append(LabelSink(make_folder(writing.save_txt), scores=writing.save_conf))
    if writing.save_crops is not None:
        from detcli.sink.image import CropSink

        sinks.append(CropSink(make_folder(writing.save_crops)))
    if writing.save_dataset is not None:
        from detcli.sink.labels import DatasetSink

        sinks.append(keeper(DatasetSink(writing.save_dataset, class_names)))
    if writing.report is not None:
        from detcli.commands.shared.page import about_run
        from detcli.sink.page import PageSink

        about = about_run("predict", settings)
        resumed = writing.resume is not None
        page = PageSink(
            writing.report,
            about,
            guard,
            resumed=resumed,
            only_detections=writing.only_detections,
        )
        undo.callback(page.discard)
        sinks.append(page)
    if writing.save_mot is not None:
        from detcli.sink.labels import MotSink

        sinks.append(MotSink(make_folder(writing.save_mot)))
    if writing.save_coco is not None:
        from detcli.sink.labels import CocoIds, CocoIdsFromFile, CocoSink

        images = writing.coco_images
        ids = CocoIds() if images is None else CocoIdsFromFile(images)
        sinks.append(CocoSink(open_file(writing.save_coco), ids))
    if writing.resume is not None:
        from detcli.sink.journal import Journal

        journal = Journal(writing.resume, settings, force=writing.force, videos=writing.save)
        undo.callback(journal.close)
        return [*sinks, journal, *windows], skip
    watched = config.watched
    added = {
        "track": watched.track,
        "zones": watched.zone,
        "lines": watched.line,
        "read": watched.read,
    }
    optional = [column for column, setting in OPTIONAL_FIELDS.items() if added[setting]]
    output: Output = StandardOutput()
    if destination.appends and isinstance(destination.target, Path):
        output = AppendedFile(destination.target)
    elif destination.target is not None:
        output = open_file(destination.target)
    records: Sink = open_record_sink(destination.format, output, optional)
    return [*sinks, records, *windows], lambda _: False
