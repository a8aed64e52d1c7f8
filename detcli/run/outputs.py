"""Opens the sinks that a run asks for, and closes them so that what was written is complete."""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcli.config.config import Config
from detcli.config.values import Format, Target
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import is_pipe, is_terminal
from detcli.data.columns import OPTIONAL_COLUMNS
from detcli.data.record import SettingsJson
from detcli.model.contract import class_ids
from detcli.sink.protocol import Output, Sink
from detcli.source.loading import Item
from detcli.source.names import has_inputs, is_live
from detcli.storage.files import AppendedFile, AtomicFile, DirectFile, StandardOutput
from detcli.storage.folder import OutputState

if TYPE_CHECKING:
    from detcli.sink.folder import OutputFolder
    from detcli.sink.image import Anonymizer
from detcli.sink.formats import (
    FORMATS,
    choose_format,
    is_special,
    open_record_sink,
    open_target,
    require_file,
)

Skip = Callable[[Item], bool]  # whether a resumed run has the record of an input already


def _skip_nothing(_item: Item) -> bool:
    """Skip no input, in a run that does not resume another one."""
    return False


@frozen
class Destination:
    """Where the records of a run go, which is settled before it begins."""

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
            and FORMATS[self.format].is_appendable
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
    """Choose where the records of a run go.

    Raises:
        UsageError: The format cannot be written there, or cannot have what was asked for.
        DependencyError: The library for the format is missing.
    """
    outputs = config.outputs
    target = outputs.target
    resumed = outputs.resume is not None
    if isinstance(target, Path) and target.is_dir():
        raise UsageError(
            f"--output {target} is a folder, and records go to a file",
            f"name a file in it; annotated pictures go to a folder with --save {target}",
        )
    format_ = choose_format(outputs.format, target)
    if outputs.provenance and not resumed and not FORMATS[format_].has_provenance:
        raise UsageError(
            f"--provenance is not part of the format {format_}",
            "add -o FILE.jsonl, --resume FILE or --format jsonl",
        )
    require_file(format_, target)
    endless = config.inputs.follow or any(is_live(name) for name in config.inputs.source)
    return Destination(
        format=format_,
        target=target,
        resumed=resumed,
        endless=endless,
    )


def open_anonymizer(config: Config, class_names: Sequence[str]) -> "Anonymizer | None":
    """Open what hides the classes of `--blur` in records; None without this option.

    Raises:
        UsageError: The model has no such class, or `--classes` leaves it out.
    """
    outputs = config.outputs
    if not outputs.blur:
        return None
    class_names = tuple(class_names)
    hidden = class_ids(outputs.blur, class_names) or frozenset()
    selected = class_ids(config.settings.classes, class_names)
    if selected is not None and not hidden <= selected:
        missing = ",".join(class_names[class_id] for class_id in sorted(hidden - selected))
        raise UsageError(
            f"--blur {missing} is not among --classes, so it is not detected and cannot be hidden",
            f"add {missing} to --classes",
        )
    from detcli.sink.image import Anonymizer

    return Anonymizer(hidden, outputs.blur_with, outputs.blur_margin)


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
    outputs = config.outputs
    if outputs.report is not None:
        from detcli.page.folder import require_apart

        files = [path for path in outputs.files if isinstance(path, Path)]
        require_apart(outputs.report, [*files, *outputs.folders])
    with contextlib.ExitStack() as undo:
        opener = _SinkOpener(config, guard, before, undo)
        opener.open_images()
        opener.open_labels(class_names)
        opener.open_page(settings)
        opener.open_tables(class_names)
        skip: Skip = _skip_nothing
        if outputs.resume is None:
            opener.open_records(destination)
        else:
            skip = opener.open_journal(settings, implied)
        _check_folders(config, tuple(class_names))
        undo.pop_all()  # closing makes files visible, so it has to wait until all are open
    sinks = [*opener.sinks, *opener.windows]
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(_close, sink)
        yield sinks, skip


def _check_folders(config: Config, class_names: tuple[str, ...]) -> None:
    """Warn of earlier pictures that show what `--blur` hides."""
    outputs = config.outputs
    folders = [outputs.save, outputs.save_crops, outputs.save_dataset]
    if outputs.resume is not None:  # else the page begins anew
        folders.append(outputs.report)
    hidden = class_ids(outputs.blur, class_names) or ()
    hidden_classes = [class_names[class_id] for class_id in sorted(hidden)]
    for folder in dict.fromkeys(folders):  # each once
        if folder is not None:
            from detcli.sink.blurred import check_folder

            check_folder(folder, hidden_classes)


def _close(sink: Sink) -> None:
    """Close a sink, holding signals back meanwhile."""
    with interrupts.held():
        sink.close()


class _SinkOpener:
    """Opens the sinks of a run, one group of options after the other.

    The order is that in which each gets a record: folders before the journal or the records, so
    that what a journal has, the folders have; the window last, as it may end the run.
    """

    def __init__(
        self,
        config: Config,
        guard: Container[Path],
        states_before: Mapping[Path, OutputState],
        undo: contextlib.ExitStack,
    ) -> None:
        self.sinks: list[Sink] = []
        self.windows: list[Sink] = []
        self._config = config
        self._options = config.outputs
        self._guard = guard
        self._states_before = states_before
        self._undo = undo
        self._folders: list[OutputFolder] = []

    def open_images(self) -> None:
        """Open what --show and --save ask for."""
        options = self._options
        if options.show or options.save is not None:
            from detcli.sink.draw import Style

            style = Style(options.line_width, frozenset(options.labels.split(",")))
        if options.show:
            from detcli.sink.window import WindowSink

            self.windows.append(WindowSink(style))
        if options.save is not None:
            from detcli.sink.image import ImageSink
            from detcli.sink.video import VideoSink

            folder = self._open_folder(options.save)
            video_sink = VideoSink(
                folder, style, condensed=options.only_detections, silent=bool(options.blur)
            )
            self.sinks.append(self._with_detections(ImageSink(folder, style)))
            self.sinks.append(self._with_detections(video_sink))

    def open_labels(self, class_names: Sequence[str]) -> None:
        """Open what --save-txt, --save-crops and --save-dataset ask for."""
        options = self._options
        if options.save_txt is not None:
            from detcli.sink.labels import LabelSink

            folder = self._open_folder(options.save_txt)
            self.sinks.append(LabelSink(folder, scores=options.save_conf))
        if options.save_crops is not None:
            from detcli.sink.image import CropSink

            self.sinks.append(CropSink(self._open_folder(options.save_crops)))
        if options.save_dataset is not None:
            from detcli.sink.dataset import DatasetSink

            dataset = DatasetSink(options.save_dataset, class_names)
            self.sinks.append(self._with_detections(dataset))

    def open_page(self, settings: SettingsJson | None) -> None:
        """Open what --report asks for."""
        options = self._options
        if options.report is None:
            return
        from detcli.page.page import Page, PageSink, RunInfo, run_info_of

        about = RunInfo("predict") if settings is None else run_info_of(settings)
        page = Page(
            options.report,
            about,
            self._guard,
            resumed=options.resume is not None,
            linked=options.report_link,
        )
        self._undo.callback(page.discard)
        self.sinks.append(PageSink(page, only_detections=options.only_detections))

    def open_tables(self, class_names: Sequence[str]) -> None:
        """Open what --save-mot and --save-coco ask for."""
        options = self._options
        if options.save_mot is not None:
            from detcli.sink.labels import MotSink

            self.sinks.append(MotSink(self._open_folder(options.save_mot)))
        if options.save_coco is not None:
            from detcli.sink.labels import CocoIds, CocoSink

            coco_ids = CocoIds(options.coco_images)
            coco_ids.require(class_names)
            self.sinks.append(CocoSink(self._open_file(options.save_coco), coco_ids))

    def open_journal(self, settings: SettingsJson | None, implied: Container[str]) -> Skip:
        """Open the file of --resume; returns what tells which inputs it has already."""
        from detcli.sink.journal import Journal

        options = self._options
        assert options.resume is not None  # noqa: S101 - for the type checker
        journal = Journal(
            options.resume,
            settings,
            implied=implied,
            force=options.force,
            videos=options.save,
        )
        self._undo.callback(journal.close)
        self.sinks.append(journal)

        def skip(item: Item) -> bool:
            has_record = journal.skip(item.origin)
            if has_record:
                for folder in self._folders:
                    folder.skip(item.origin)
            return has_record

        return skip

    def open_records(self, destination: Destination) -> None:
        """Open what records are written to."""
        output: Output
        if destination.target is None:
            output = StandardOutput()
        elif destination.appends and isinstance(destination.target, Path):
            output = AppendedFile(destination.target)
        else:
            output = self._open_file(destination.target)
        watched = self._config.watched
        columns = [column.name for column in OPTIONAL_COLUMNS if getattr(watched, column.option)]
        self.sinks.append(open_record_sink(destination.format, output, columns))

    def _open_file(self, path: Target) -> AtomicFile | DirectFile:
        """Open a file that is discarded if opening another sink fails."""
        state = self._states_before.get(path) if isinstance(path, Path) else None
        file = open_target(path, state)
        self._undo.callback(file.discard)
        return file

    def _open_folder(self, path: Path) -> "OutputFolder":
        from detcli.sink.folder import OutputFolder

        roots = self._config.inputs.source
        marked = path == self._options.save and has_inputs(path, roots)
        if marked:
            warnings.warn(
                f"--save {path} has inputs in it: the copies get other names, and later runs of "
                "the folder leave them out; a folder of their own keeps them apart",
                DetcliWarning,
                stacklevel=1,
            )
        resumed = self._options.resume is not None
        folder = OutputFolder(path, self._guard, roots=roots, resumed=resumed, marked=marked)
        self._folders.append(folder)
        return folder

    def _with_detections(self, sink: Sink) -> Sink:
        """A sink of images, which with --only-detections gets only those with detections."""
        if not self._options.only_detections:
            return sink
        from detcli.sink.image import OnlyDetections

        return OnlyDetections(sink)
