"""Sinks: where records go, one file per format; this file opens those that a run asks for.

records     text.py, parquet.py; journal.py with --resume
pictures    image.py, window.py; draw.py: how
videos      video.py, h264.py
labels      labels.py: of other programs, and datasets
page/       what --report writes
folder.py   folders of files with unique names; claims.py: of runs at the same time
blurred.py  folders that show what is to be hidden
protocol.py what all of them are

Each is imported only when it is used. A format of records needs nothing here, but a row of
`Format`, where the values of options are.
"""

import contextlib
import os
import stat
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.config.config import Config
from detcli.config.values import SUFFIXES, Format, Target
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import is_pipe, is_terminal
from detcli.data.record import OPTIONAL_FIELDS, SettingsJson
from detcli.model.contract import class_ids
from detcli.sink.protocol import Output, RecordSink, Sink
from detcli.source.loading import Item
from detcli.source.names import has_inputs, is_live
from detcli.storage.files import (
    AppendedFile,
    AtomicFile,
    DirectFile,
    OutputState,
    StandardOutput,
    open_output,
)

if TYPE_CHECKING:
    from detcli.sink.folder import OutputFolder
    from detcli.sink.image import Anonymizer

Skip = Callable[[Item], bool]  # whether a resumed run has the record of an input already


@frozen
class Destination:
    """Where records go, as it was settled when the run begins."""

    format: Format
    target: "Target | None" = None  # None for standard output
    resumed: bool = False  # they go to the file of --resume instead
    endless: bool = False  # the run may never end: they are added to a file, if the format can

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
    if isinstance(target, Path) and target.is_dir():
        raise UsageError(
            f"--output {target} is a folder, and records go to a file",
            f"name a file in it; annotated pictures go to a folder with --save {target}",
        )
    chosen = choose_format(writing.format, target)
    if writing.provenance and not resumed and not chosen.traits.has_provenance:
        raise UsageError(
            f"--provenance is not part of the format {chosen}",
            "add -o FILE.jsonl, --resume FILE or --format jsonl",
        )
    require_file(chosen, target)
    endless = config.inputs.follow or any(map(is_live, config.inputs.source))
    return Destination(chosen, target, resumed, endless)


def open_anonymizer(config: Config, class_names: Sequence[str]) -> "Anonymizer | None":
    """What hides the classes of `--blur` in records; None without this option.

    Raises:
        UsageError: The model has no such class, or `--classes` leaves it out.
    """
    writing = config.writing
    if not writing.blur:
        return None
    class_names = tuple(class_names)
    hidden = class_ids(writing.blur, class_names) or frozenset()
    selected = class_ids(config.settings.classes, class_names)
    if selected is not None and not hidden <= selected:
        missing = ",".join(class_names[class_id] for class_id in sorted(hidden - selected))
        raise UsageError(
            f"--blur {missing} is not among --classes, so it is not detected and cannot be hidden",
            f"add {missing} to --classes",
        )
    from detcli.sink.image import Anonymizer

    return Anonymizer(hidden, writing.blur_with, writing.blur_margin)


NOTHING_KNOWN: Mapping[Path, OutputState] = {}
"""No states of files: what a name has when it is opened is what was there before."""


@contextlib.contextmanager
def open_sinks(
    config: Config,
    destination: Destination,
    guard: Container[Path],
    settings: SettingsJson | None = None,
    class_names: Sequence[str] = (),
    before: Mapping[Path, OutputState] = NOTHING_KNOWN,
    *,
    implied: Container[str] = (),
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
        before: The states of files when the run began.
        implied: Settings that others decide, which a journal does not compare.

    Yields:
        The sinks, and a function that tells which inputs to skip.

    Raises:
        UsageError: An output is in the folder of the page.
        OutputError: A file or folder cannot be written, or no display is available.
    """
    writing = config.writing
    if writing.report is not None:
        from detcli.page.folder import require_apart

        written = (path for path in writing.files if isinstance(path, Path))
        require_apart(writing.report, (*written, *writing.folders))
    with contextlib.ExitStack() as undo:
        sinks, skip = _open(
            config,
            destination,
            guard,
            settings,
            class_names,
            before,
            implied=implied,
            undo=undo,
        )
        _check_folders(config, tuple(class_names))
        undo.pop_all()  # closing makes files visible, so it has to wait until all are open
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(_close, sink)
        yield sinks, skip


def _check_folders(config: Config, class_names: tuple[str, ...]) -> None:
    """Warn of earlier pictures that show what `--blur` hides."""
    writing = config.writing
    folders = [writing.save, writing.save_crops, writing.save_dataset]
    if writing.resume is not None:  # else the page begins anew
        folders.append(writing.report)
    hidden = class_ids(writing.blur, class_names) or ()
    hidden_classes = [class_names[class_id] for class_id in sorted(hidden)]
    wanted = dict.fromkeys(folder for folder in folders if folder is not None)
    if wanted:
        from detcli.sink.blurred import check_folder

        for folder in wanted:
            check_folder(folder, hidden_classes)


def _close(sink: Sink) -> None:
    """Close a sink, holding signals back meanwhile."""
    with interrupts.held():
        sink.close()


def _open(  # noqa: C901, PLR0915 - one branch an option
    config: Config,
    destination: Destination,
    guard: Container[Path],
    settings: SettingsJson | None,
    class_names: Sequence[str],
    before: Mapping[Path, OutputState],
    *,
    implied: Container[str],
    undo: contextlib.ExitStack,
) -> tuple[list[Sink], Skip]:
    """Open all sinks; after an error, the stack undoes what was opened."""
    writing = config.writing

    def open_file(path: Target) -> AtomicFile | DirectFile:
        state = before.get(path) if isinstance(path, Path) else None
        file = open_target(path, state)
        undo.callback(file.discard)
        return file

    def make_folder(path: Path) -> "OutputFolder":
        from detcli.sink.folder import OutputFolder

        roots, resumed = config.inputs.source, writing.resume is not None
        marked = path == writing.save and has_inputs(path, roots)
        if marked:
            warnings.warn(
                f"--save {path} has inputs in it: the copies get other names, and later runs of "
                "the folder leave them out; a folder of their own keeps them apart",
                DetcliWarning,
                stacklevel=1,
            )
        folder = OutputFolder(path, guard, roots=roots, resumed=resumed, marked=marked)
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
        from detcli.page.page import About, Page, PageSink, about_run

        about = About("predict") if settings is None else about_run(settings)
        resumed = writing.resume is not None
        page = Page(writing.report, about, guard, resumed=resumed, linked=writing.report_link)
        undo.callback(page.discard)
        sinks.append(PageSink(page, only_detections=writing.only_detections))
    if writing.save_mot is not None:
        from detcli.sink.labels import MotSink

        sinks.append(MotSink(make_folder(writing.save_mot)))
    if writing.save_coco is not None:
        from detcli.sink.labels import CocoIds, CocoSink

        ids = CocoIds(writing.coco_images)
        ids.require(class_names)
        sinks.append(CocoSink(open_file(writing.save_coco), ids))
    if writing.resume is not None:
        from detcli.sink.journal import Journal

        journal = Journal(
            writing.resume,
            settings,
            implied=implied,
            force=writing.force,
            videos=writing.save,
        )
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
    output: Output
    if destination.target is None:
        output = StandardOutput()
    elif destination.appends and isinstance(destination.target, Path):
        output = AppendedFile(destination.target)
    else:
        output = open_file(destination.target)
    records: Sink = open_record_sink(destination.format, output, optional)
    return [*sinks, records, *windows], lambda _: False


def open_target(target: Target, before: OutputState | None = None) -> AtomicFile | DirectFile:
    """Open what records are written to; `before` is the state of its name when the run began.

    Raises:
        OutputError: It cannot be written.
    """
    if isinstance(target, Path):
        return open_output(target, before)
    from detcli.storage.objects import ObjectFile

    return ObjectFile(target)


def choose_format(wanted: Format | None, output: "Target | None") -> Format:
    """The requested format, else the one of the file's suffix, else what suits standard output.

    Raises:
        UsageError: The suffix is unknown.
    """
    if wanted is not None:
        return wanted
    if output is None:
        return Format.TABLE if is_terminal(sys.stdout) else Format.JSONL
    suffix = output.suffix.lower()
    if suffix and suffix not in SUFFIXES and not is_special(output):
        raise UsageError(
            f"--output {output}: the suffix {output.suffix} names no format",
            f"use {', '.join(SUFFIXES)}, or say which with --format; --save-txt writes YOLO labels",
        )
    return SUFFIXES.get(suffix, Format.JSONL)


def is_special(path: Target) -> bool:
    """Whether a name is that of a device or a pipe, which may be called anything."""
    try:
        return isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # nothing has this name
        return False


def require_file(chosen: Format, output: "Target | None") -> None:
    """Refuse standard output for a format that needs a file.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: It is standard output.
    """
    if chosen.traits.needs_file:
        if output is None:
            raise UsageError(f"--format {chosen} needs --output", "name a file for it")
        _sink_class(chosen)  # its library may be missing: say so at once


def open_record_sink(chosen: Format, output: Output, optional_columns: Sequence[str]) -> RecordSink:
    """What writes records in a format.

    Args:
        chosen: The format.
        output: What is written to.
        optional_columns: Columns that options add, in formats that have such columns.

    Raises:
        DependencyError: The library for the format is missing.
        UsageError: A file that is added to has other columns.
    """
    make = _sink_class(chosen)
    return make(output, optional_columns) if chosen.traits.flat else make(output)


def _sink_class(chosen: Format) -> Callable[..., RecordSink]:
    module, _, name = chosen.traits.sink.rpartition(".")
    made: Callable[..., RecordSink] = getattr(import_module(module), name)
    return made
