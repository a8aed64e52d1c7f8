"""Opens the sinks that a run asks for, and closes them so that what was written is complete."""

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcli.config.config import Config
from detcli.config.outputs import Outputs
from detcli.config.rerun import command_to_rerun
from detcli.config.values import Target
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.interrupts import interrupts
from detcli.data.columns import DETECTED_COLUMNS
from detcli.data.record import Origin, SettingsJson
from detcli.model.contract import class_ids
from detcli.run.destination import Destination
from detcli.sink.formats import open_record_sink, open_target
from detcli.sink.protocol import Output, RunDescription, Sink
from detcli.source.loading import Item
from detcli.source.names import has_inputs
from detcli.storage.files import AppendedFile, AtomicFile, DirectFile, StandardOutput
from detcli.storage.folder import OutputState

if TYPE_CHECKING:
    from detcli.sink.folder import OutputFolder
    from detcli.sink.image import Anonymizer
    from detcli.sink.journal import ShowReading

Skip = Callable[[Item], bool]  # whether a resumed run already has the record of an input
SkipFile = Callable[[str], bool]  # the same for an image file, by its path


def _skip_nothing(_item: Item) -> bool:
    """Skip no input, in a run that does not resume another one."""
    return False


def open_anonymizer(config: Config, class_names: Sequence[str]) -> "Anonymizer | None":
    """Make the function that hides the classes of `--blur` in the images of records.

    Args:
        config: All options of the run.
        class_names: The model's classes.

    Returns:
        The anonymizer, which takes a record and returns it with a changed image; None unless
        `--blur` is set.

    Raises:
        UsageError: The model has no such class, or `--classes` leaves it out.
    """
    outputs = config.outputs
    if not outputs.blur:
        return None

    hidden_ids = class_ids(outputs.blur, tuple(class_names)) or frozenset()
    detected_ids = class_ids(config.settings.classes, tuple(class_names))  # None for all classes
    if detected_ids is not None and not hidden_ids <= detected_ids:
        undetected_ids = sorted(hidden_ids - detected_ids)
        undetected = ",".join(class_names[class_id] for class_id in undetected_ids)
        raise UsageError(
            f"--blur {undetected} is not among --classes, so it is not detected and cannot be "
            "hidden",
            f"add {undetected} to --classes",
        )

    from detcli.sink.image import Anonymizer

    return Anonymizer(hidden_ids, outputs.blur_with, outputs.blur_margin)


NOTHING_KNOWN: Mapping[Path, OutputState] = {}
"""No states of files from before the run: each file is examined when it is opened."""


class OpenSinks(NamedTuple):
    """The sinks of a run, and what the file of --resume says about its inputs."""

    sinks: list[Sink]
    skip: Skip  # returns whether to skip an input, as an earlier run has its record
    # the same for the path of an image file, see `Journal.skip_file`; None if there was no such run
    skip_file: SkipFile | None


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
    show_reading: "ShowReading | None" = None,
) -> Iterator[OpenSinks]:
    """Open the sinks that a run writes to, and close them when the block ends.

    A sink takes each record and writes it, or what it shows, somewhere. Closing completes what was
    written, even after an error in the block. If one sink cannot be opened, those before it are
    discarded, so that nothing is left of them.

    The sinks that write to folders get each record before the journal of `--resume`: so what the
    journal has, the folders have. The window comes last, as it may end the run.

    Args:
        config: All options of the run.
        destination: Where records go.
        guard: Input files, which are never written over.
        settings: What the detections depend on, for a journal and a page.
        class_names: The model's classes, for a dataset.
        before: The states of files when the run began.
        implied: Settings that others decide, which a journal does not compare.
        show_reading: Shows the progress of reading a large journal.

    Raises:
        UsageError: An output is in the folder of the page.
        OutputError: A file or folder cannot be written, or no display is available.
    """
    _require_page_apart(config.outputs)
    with contextlib.ExitStack() as undo:
        opener = _SinkOpener(config, guard, before, undo)
        opener.open_images()
        opener.open_labels(class_names)
        opener.open_page(settings)
        opener.open_tables(class_names)
        skip: Skip = _skip_nothing
        skip_file: SkipFile | None = None
        if config.outputs.resume is None:
            description = RunDescription(settings or {}, class_names, config.outputs.base)
            opener.open_records(destination, description)
        else:
            skip, skip_file = opener.open_journal(settings, implied, show_reading)
        _warn_of_visible_classes(config, tuple(class_names))
        undo.pop_all()  # closing makes files visible, so it has to wait until all are open
    sinks = [*opener.sinks, *opener.windows]
    with contextlib.ExitStack() as stack:
        for sink in sinks:
            stack.callback(_close, sink)
        yield OpenSinks(sinks, skip, skip_file)


def _require_page_apart(outputs: Outputs) -> None:
    """Refuse outputs in the folder of the page of `--report`, which holds nothing else.

    Raises:
        UsageError: There is one.
    """
    if outputs.report is not None:
        from detcli.page.folder import require_apart

        files = [path for path in outputs.files if isinstance(path, Path)]
        require_apart(outputs.report, [*files, *outputs.folders])


def _warn_of_visible_classes(config: Config, class_names: tuple[str, ...]) -> None:
    """Warn of images from earlier runs, in the output folders, that show what `--blur` hides.

    Args:
        config: All options of the run.
        class_names: The model's classes.
    """
    outputs = config.outputs
    folders = [outputs.save, outputs.save_crops, outputs.save_dataset]
    if outputs.resume is not None:  # otherwise the page starts again, without earlier images
        folders.append(outputs.report)
    hidden_ids = class_ids(outputs.blur, class_names) or ()
    hidden_classes = [class_names[class_id] for class_id in sorted(hidden_ids)]
    for folder in dict.fromkeys(folders):  # each once, although several options may name it
        if folder is not None:
            from detcli.sink.blurred import note_hidden_classes

            note_hidden_classes(folder, hidden_classes)


def _close(sink: Sink) -> None:
    """Close a sink; signals such as Ctrl-C are held back until what it wrote is complete."""
    with interrupts.held():
        sink.close()


class _SinkOpener:
    """Opens the sinks of a run, one group of options after the other.

    The methods are called in the order in which the sinks get a record, see `open_sinks`.

    Attributes:
        sinks: The sinks that have been opened so far, without windows.
        windows: The windows that have been opened so far.
    """

    def __init__(
        self,
        config: Config,
        guard: Container[Path],
        states_before: Mapping[Path, OutputState],
        undo: contextlib.ExitStack,
    ) -> None:
        """Prepare to open sinks.

        Args:
            config: All options of the run.
            guard: Input files, which are never written over.
            states_before: The states of files when the run began.
            undo: Gets a callback for each sink that discards it, if another cannot be opened.
        """
        self.sinks: list[Sink] = []
        self.windows: list[Sink] = []  # apart, as they come after all other sinks

        self._config = config
        self._options = config.outputs
        self._guard = guard
        self._states_before = states_before
        self._undo = undo

        # What has been opened so far and the journal has to know: the folders, which skip inputs
        # that it has, and the method that puts the page on the disk, which it calls before each
        # sync.
        self._folders: list[OutputFolder] = []
        self._sync_page: Callable[[], None] | None = None

    def open_images(self) -> None:
        """Open the window of --show, and the folder of annotated images and videos of --save.

        With --gif, the first seconds of each video are written as a GIF, too.

        With --only-detections, videos have only frames with detections. With --blur they have no
        sound, as a voice may reveal who is hidden.
        """
        options = self._options
        if not options.show and options.save is None:
            return
        from detcli.sink.draw import Style

        style = Style(options.line_width, frozenset(options.labels.split(",")))
        if options.show:
            from detcli.sink.window import WindowSink

            self.windows.append(self._without_repeats(WindowSink(style)))  # with all frames
        if options.save is None:
            return

        from detcli.sink.image import ImageSink
        from detcli.sink.video import VideoSink

        folder = self._open_folder(options.save)
        is_condensed = options.only_detections
        is_silent = bool(options.blur)
        video_sink = VideoSink(folder, style, condensed=is_condensed, silent=is_silent)
        self._add(self._with_detections(ImageSink(folder, style)))
        self._add(self._with_detections(video_sink))
        if options.gif is not None:
            from detcli.sink.gif import GifSink

            gif_sink = GifSink(folder, options.gif, style, condensed=is_condensed)
            self._add(self._with_detections(gif_sink))

    def open_labels(self, class_names: Sequence[str]) -> None:
        """Open the folders for training: --save-txt (labels), --save-crops, and --save-dataset.

        --only-detections concerns the dataset alone: an image without detections has no crops, and
        its empty file of labels says that nothing is on it.

        Args:
            class_names: The model's classes, which a dataset lists.
        """
        options = self._options
        if options.save_txt is not None:
            from detcli.sink.labels import LabelSink

            label_folder = self._open_folder(options.save_txt)
            self._add(LabelSink(label_folder, scores=options.save_conf))

        if options.save_crops is not None:
            from detcli.sink.image import CropShape, CropSink

            crop_folder = self._open_folder(options.save_crops)
            crop_shape = CropShape(options.crop_margin, options.crop_square)
            self._add(CropSink(crop_folder, crop_shape))

        if options.save_dataset is not None:
            from detcli.sink.dataset import DatasetSink

            dataset_sink = DatasetSink(options.save_dataset, class_names)
            self._add(self._with_detections(dataset_sink))

    def open_page(self, settings: SettingsJson | None) -> None:
        """Open the page of --report, which shows the results in a browser.

        If another sink cannot be opened, the page is discarded. With --resume, `open_journal` comes
        later. The journal then puts the page on the disk each time before its records.

        Args:
            settings: What the detections depend on, which the page shows; None if that is not
                known.
        """
        options = self._options
        if options.report is None:
            return

        from detcli.page.page import Page, PageSink
        from detcli.page.run_info import RunInfo, run_info_of

        run_info = RunInfo("predict")
        if settings is not None:
            run_info = run_info_of(settings, command_to_rerun(self._config))
        page = Page(
            options.report,
            run_info,
            self._guard,
            resumed=options.resume is not None,
            linked=options.report_link,  # shows images where they are, without copies
        )
        self._undo.callback(page.discard)
        self._sync_page = page.sync  # for `open_journal`
        self.sinks.append(PageSink(page, only_detections=options.only_detections))

    def open_tables(self, class_names: Sequence[str]) -> None:
        """Open the folder of --save-mot, with tables of tracks, and the JSON file of --save-coco.

        Args:
            class_names: The model's classes. For --save-coco, at least one of them must be a
                category of the data set.
        """
        options = self._options
        if options.save_mot is not None:
            from detcli.sink.labels import MotSink

            self._add(MotSink(self._open_folder(options.save_mot)))
        if options.save_coco is not None:
            from detcli.sink.labels import CocoIds, CocoSink

            coco_ids = CocoIds(options.coco_images)
            coco_ids.require(class_names)
            self._add(CocoSink(self._open_file(options.save_coco), coco_ids))

    def open_journal(
        self,
        settings: SettingsJson | None,
        implied: Container[str],
        show_reading: "ShowReading | None",
    ) -> tuple[Skip, SkipFile]:
        """Open the journal: the file of --resume, with the records of an earlier run.

        Args:
            settings: What the detections depend on; those of the earlier run must be the same.
            implied: Settings that others decide, which are not compared.
            show_reading: Shows the progress of reading a large journal.

        Returns:
            Two functions that return whether the journal already has the record of an input: one
            takes any input, the other only the path of an image file, see `Journal.skip_file`. If
            it does, the output folders also record that they have the files of the input.
        """
        from detcli.sink.journal import Journal

        options = self._options
        assert options.resume is not None  # noqa: S101 - for the type checker
        journal = Journal(
            options.resume,
            settings,
            implied=implied,
            force=options.force,
            videos=options.save,
            show=show_reading,
            before_sync=self._sync_page,
        )
        self._undo.callback(journal.close)
        self.sinks.append(journal)

        def skip_recorded(item: Item) -> bool:
            has_record = journal.skip(item.origin)
            if has_record:
                self._skip_in_folders(item.origin)
            return has_record

        def skip_recorded_file(path: str) -> bool:
            has_record = journal.skip_file(path)
            if has_record and self._folders:
                self._skip_in_folders(Origin(path, Path(path)))
            return has_record

        return skip_recorded, skip_recorded_file

    def _skip_in_folders(self, origin: Origin) -> None:
        """Record in the output folders that they already have the files of an input."""
        for folder in self._folders:
            folder.skip(origin)

    def open_records(self, destination: Destination, run: RunDescription) -> None:
        """Open the file, object or standard output that records are written to.

        Options such as --track add columns to them.

        Args:
            destination: Where records go, and in which format.
            run: What the run is known by, for formats that say what made their records.
        """
        output: Output
        if destination.target is None:
            output = StandardOutput()
        elif destination.appends and isinstance(destination.target, Path):
            output = AppendedFile(destination.target)
        else:
            output = self._open_file(destination.target)
        columns = self._optional_columns()
        sink = open_record_sink(destination.format, output, columns, run, self._options.burst)
        self.sinks.append(sink)

    def _optional_columns(self) -> list[str]:
        """List the columns of detections that options add, in the order of the format."""
        columns = []
        for column in DETECTED_COLUMNS:
            if hasattr(self._config.watched, column.option):
                option_value = getattr(self._config.watched, column.option)
            else:
                option_value = getattr(self._options, column.option)
            if option_value:
                columns.append(column.name)
        return columns

    def _open_file(self, path: Target) -> AtomicFile | DirectFile:
        """Open a file to write to, which is discarded if another sink cannot be opened."""
        state = None
        if isinstance(path, Path):
            state = self._states_before.get(path)
        file = open_target(path, state)
        self._undo.callback(file.discard)
        return file

    def _open_folder(self, path: Path) -> "OutputFolder":
        """Open a folder to write files to, which are named after the inputs, and remember it.

        If --save names a folder of inputs, annotated copies lie beside their originals. So they get
        different names, by which later runs recognise that they are not inputs, and a warning says
        so.
        """
        from detcli.sink.folder import OutputFolder

        sources = self._config.inputs.source
        is_beside_inputs = path == self._options.save and has_inputs(path, sources)
        if is_beside_inputs:
            warnings.warn(
                f"--save {path} has inputs in it: the copies get other names, and later runs of "
                "the folder leave them out; a folder of their own keeps them apart",
                DetcliWarning,
                stacklevel=1,
            )
        folder = OutputFolder(
            path,
            self._guard,
            roots=sources,
            resumed=self._options.resume is not None,
            has_inputs=is_beside_inputs,
        )
        self._folders.append(folder)
        return folder

    def _add(self, sink: Sink) -> None:
        """Add a sink of images, labels or tables, which gets no repeats that marks drop."""
        self.sinks.append(self._without_repeats(sink))

    def _without_repeats(self, sink: Sink) -> Sink:
        """Return the sink; with --apply, it gets no repeats that marks drop."""
        if self._options.apply is None:
            return sink
        from detcli.sink.image import WithoutRepeats

        return WithoutRepeats(sink)

    def _with_detections(self, sink: Sink) -> Sink:
        """Return the sink; with --only-detections, it gets only images that have detections."""
        if not self._options.only_detections:
            return sink
        from detcli.sink.image import OnlyDetections

        return OnlyDetections(sink)
