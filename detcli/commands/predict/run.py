"""One run: sends inputs through the pipeline into the sinks, and reports on it."""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from detcli.cli.command import DECIDING
from detcli.cli.console import (
    download_progress,
    print_line,
    print_message_counts,
    print_new_messages,
    progress,
)
from detcli.cli.defaults import TUNED, defaults_file
from detcli.config.config import Config
from detcli.config.option import arguments_of, options_of, values_of
from detcli.config.values import Format, Target
from detcli.core.errors import ModelError, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import pluralize, shell_line
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import AddedJson, Record, SettingsJson
from detcli.model.contract import class_ids
from detcli.model.zoo import find
from detcli.run import Run, is_one_picture, locate, open_run
from detcli.run.conditions import check_conditions, parse_condition
from detcli.run.counts import Counts
from detcli.run.model_settings import prepare_for
from detcli.run.outputs import (
    NOTHING_KNOWN,
    Destination,
    Skip,
    choose_destination,
    open_anonymizer,
    open_sinks,
)
from detcli.sink.formats import FORMATS, is_special
from detcli.sink.protocol import Sink, Stopped
from detcli.source.guard import InputGuard
from detcli.source.loading import Item
from detcli.source.names import is_live
from detcli.source.sources import Sources
from detcli.storage.folder import OutputState

log = logging.getLogger(__name__)

WRITE_LIMIT_S = 2.0
"""How long an interrupt waits until a record is written whole; a pipe's reader may have stopped."""


def predict_here(config: Config, before: Mapping[Path, OutputState] = NOTHING_KNOWN) -> Counts:
    """Run in this process, and write to sinks; `before` are the states of files at the start.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
        UsageError: An output file is one of the inputs.
        CheckError: A condition holds.
        DetcliError: The run failed.
    """
    destination = choose_destination(config)
    outputs = config.outputs
    with download_progress() as show:
        model = locate(config, show)
    guard = _guard_of_inputs(config, model.path)
    guard.refuse(outputs.files)
    marks = None
    if outputs.apply is not None:
        from detcli.run.marks import Marks

        marks = Marks(outputs.apply)
    with open_run(config, model) as run:
        names = run.detector.contract.names
        left_out = _classes_left_out(config, names)
        conditions = [
            parse_condition(text, names, run.watched.zones_and_lines, left_out)
            for text in outputs.fail_if
        ]
        settings = None
        if outputs.need_identity:
            settings = run.settings()
        steps: list[Callable[[Record], Record]] = [run.watcher()]
        if outputs.provenance:
            steps.append(_provenance(run, model.path, settings))

        anonymize = open_anonymizer(config, names)
        if anonymize is not None:
            steps.append(anonymize)
        summary = _Summary(config, destination)
        max_det = min(config.settings.max_det, run.detector.contract.max_detections or sys.maxsize)

        def add(record: Record) -> Record | None:
            for step in steps:
                record = step(record)
            corrected: Record | None = record
            if marks is not None:
                corrected = marks.applied(record)
            if anonymize is not None and record.detections is not None and corrected is not None:
                if len(record.detections) >= max_det:
                    summary.at_max_det += 1
                remaining_boxes = anonymize.count(corrected.detections)
                summary.hidden_boxes_dropped += anonymize.count(record.detections) - remaining_boxes
            return corrected

        with run.sources() as sources:
            opening = open_sinks(
                config,
                destination,
                guard,
                settings,
                names,
                before,
                implied=run.implied_settings,
            )
            try:
                _detect(run, sources, add, opening, summary)
            except BrokenPipeError:
                check_conditions(conditions, summary.counts, complete=summary.complete)
                raise
    check_conditions(conditions, summary.counts, complete=summary.complete)
    if marks is not None and summary.complete:
        marks.require_fit()
    return summary.counts


def _guard_of_inputs(config: Config, model_path: Path) -> InputGuard:
    """Make what keeps outputs from replacing inputs, and other files that the run reads."""
    outputs = config.outputs
    paths = [str(model_path)]
    for path in (config.settings.names, outputs.coco_images, outputs.apply):
        if path:
            paths.append(str(path))
    return InputGuard([*config.inputs.source, *paths], config.inputs, outputs.written)


def _classes_left_out(config: Config, names: tuple[str, ...]) -> set[str]:
    """The classes that --classes leaves out."""
    selected_ids = class_ids(config.settings.classes, names)
    if selected_ids is None:
        return set()
    return set(names) - {names[class_id] for class_id in selected_ids}


def _detect(
    run: Run,
    sources: Sources,
    add: Callable[[Record], Record | None],
    opening: AbstractContextManager[tuple[list[Sink], Skip]],
    summary: "_Summary",
) -> None:
    """Run, and print what was done, found and written."""
    config = run.config
    pipeline = run.pipeline()
    destination = summary.destination
    quiet = config.verbosity.quiet
    has_bar = not (quiet or destination.on_terminal or is_one_picture(config))

    def skip(item: Item) -> bool:
        if not has_record(item):
            return False
        summary.skipped += 1
        sources.progress.expect(-1)
        return True

    interrupted = False
    try:
        with (
            contextlib.suppress(Stopped),  # the user closed the window
            opening as (sinks, has_record),
            progress(
                lambda: sources.progress.total, enabled=has_bar, status=summary.status
            ) as advance,
        ):
            for detected in pipeline.run(sources, skip):
                record = add(detected)
                if record is None:
                    continue
                with interrupts.held(WRITE_LIMIT_S):
                    try:
                        with pipeline.times.stage(Stage.WRITE):
                            for sink in sinks:
                                sink.write(record)
                    finally:  # also the one after which the reader or the user had seen enough
                        summary.add(record)
                advance(record.origin.source)
            summary.complete = True
    except KeyboardInterrupt:
        interrupted = True
    print_message_counts(summary.counts)
    done = summary.counts.input_count
    if not quiet and (done or not interrupted):
        for line in summary.lines(pipeline.times, sources.progress.dropped):
            print_line(line)
    if interrupted:
        if done and not quiet and not destination.endless:  # where that is how a run ends
            _report_interrupt(done, sources.progress.total, config, destination)
        raise KeyboardInterrupt


SETS = ("model", "device", "half", "batch", "workers")
"""The options that a table sets."""


def use_tuned(
    config: Config, value_sources: Mapping[str, str], tables: Mapping[str, Any]
) -> Config:
    """Return a Config with what is fastest for its model here, as far as options are not given.

    Args:
        config: Of the run.
        value_sources: The options that are given, and where each value comes from.
        tables: What `detcli tune --write` wrote, by model, machine and kind of run.

    Raises:
        UsageError: A table has something that no option takes.
    """
    from detcli.run.machine import machine_name  # runs without a table do without it

    try:
        named = find(config.runtime.model, fetch=False)
    except ModelError:  # which may have to be fetched
        return config
    options = options_of(Config)
    name = config.runtime.model
    table: Any = tables
    for key in (prepare_for(named, config.settings).sha256, machine_name(), _kind_of_run(config)):
        table = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping):
        log.info("nothing was tuned for %s on this machine", name)
        return config
    for option in DECIDING:
        if option in value_sources:
            log.info("what was tuned for %s gives way to %s", name, options[option].flag)
            return config
    unknown = set(table) - set(SETS)
    if unknown:
        what = f"{defaults_file()}: [{TUNED}] sets '{unknown.pop()}'"
        raise UsageError(what, "run detcli tune --write again")
    values = {option: options[option].parse_value(value) for option, value in table.items()}
    if "model" in values and not Path(values["model"]).exists():
        log.warning("%s, tuned for %s, is gone: run detcli tune --write", values["model"], name)
        return config
    for option in {"batch", "workers"} & value_sources.keys():
        values.pop(option, None)
    tuned = replace(config, runtime=replace(config.runtime, **values))
    log.info("tuned for %s on this machine: %s", name, shell_line(arguments_of(tuned, values)))
    return tuned


def _kind_of_run(config: Config) -> str:
    """The kind of run that a table was tuned for."""
    if any(is_live(source) for source in config.inputs.source):
        return "one"
    if is_one_picture(config):
        return "start"
    return "many"


class _Summary:
    """What is said of a run while it goes on, and at its end."""

    def __init__(self, config: Config, destination: Destination) -> None:
        """Note which files exist before the run."""
        self.counts = Counts()
        self.complete = False  # whether all inputs were read
        self.skipped = 0  # inputs of which the journal has the records
        self.hidden_boxes_dropped = 0  # boxes of classes of --blur that marks dropped
        self.at_max_det = 0  # pictures that --blur may show parts of, as --max-det left out boxes
        self._rows = 0  # of the records, in a format whose rows are detections
        self._numbered = 0  # frames of videos and streams
        self._tracks = config.watched.track is not None
        self._start_s = time.perf_counter()
        self.destination = destination
        self._outputs = config.outputs
        self._quiet = config.verbosity.quiet
        self._stages = config.verbosity.verbose > 0
        self._replaced: set[Path] = set()
        for path in (destination.target, config.outputs.save_coco):
            if isinstance(path, Path) and path.is_file():
                self._replaced.add(path)
        self._files: Counter[Path] = Counter()  # by folder
        self._videos: set[Path] = set()  # and tracks, which each of their frames names
        # of each live source: its frames, and the times of the first and the last
        self._streams: dict[str, tuple[int, float, float]] = {}

    def add(self, record: Record) -> None:
        """Count a record and its files, and say what was wrong."""
        origin = record.origin
        self.counts.add(record)
        self._rows += max(1, len(record.detections or ()))
        if self.destination.show_errors:
            self.counts.messages.clear()
        print_new_messages(self.counts, quiet=self._quiet)
        if origin.frame is not None:
            self._numbered += 1
        if origin.time is not None and origin.time_s is not None:
            frames, first_s, _ = self._streams.get(origin.source, (0, origin.time_s, 0.0))
            self._streams[origin.source] = (frames + 1, first_s, origin.time_s)
        for path in record.saved:
            if path.suffix == ".mp4" or path.parent == self._outputs.save_mot:
                if path in self._videos:
                    continue
                self._videos.add(path)
            self._count_file(path)

    def _count_file(self, path: Path) -> None:
        """Count a file that was written, in the innermost folder that it is in."""
        folders = [folder for folder in self._outputs.folders if path.is_relative_to(folder)]
        folders.sort(key=lambda folder: len(folder.parts))
        if folders:
            self._files[folders[-1]] += 1

    def status(self) -> str:
        """Detections, failures and rate, for a progress bar."""
        parts = [pluralize(self.counts.detections_by_class.total(), "detection")]
        if self.counts.failed:
            parts.append(f"{self.counts.failed} failed")
        rate = self.counts.input_count / (time.perf_counter() - self._start_s)
        parts.append(f"{rate:.1f}/s")
        return ", ".join(parts)

    def lines(self, times: StageTimes, dropped: Counter[str]) -> Iterator[str]:
        """Yield what was done, found and written."""
        seconds = time.perf_counter() - self._start_s
        frames_left_out = dropped.total()
        yield from self.counts.summary(
            seconds, self.skipped, frames_left_out, times, stages=self._stages
        )
        if len(dropped) > 1:
            for source, number in dropped.items():
                yield f"{source}: {self._stream(source, number)}"
        yield from self._lines_about_files()
        if self.hidden_boxes_dropped:
            detections = pluralize(self.hidden_boxes_dropped, "detection")
            yield f"{detections} dropped by marks, and blurred in the pictures all the same"
        if self.at_max_det:
            pictures = pluralize(self.at_max_det, "picture")
            yield (
                f"{pictures} with as many detections as --max-det admits: what it left out is not "
                "blurred; raise it"
            )
        if self._tracks and self.counts.input_count and not self._numbered:
            yield "nothing was tracked: only the frames of videos and streams have tracks"

    def _lines_about_files(self) -> Iterator[str]:
        """Yield what was written to which files and folders."""
        outputs = self._outputs
        target = self.destination.target
        records = pluralize(self.counts.input_count, "record")
        rows = ""
        if FORMATS[self.destination.format].has_detection_rows:
            rows = f"{pluralize(self._rows, 'row')} of "

        if outputs.resume is not None:
            addition = ""
            if self.skipped:
                addition = f"; it had {pluralize(self.skipped, 'input')} already"
            yield f"added {records} to {outputs.resume}{addition}"
        if target is not None:
            if self.destination.appends:
                yield f"added {rows}{records} to {target}"
            elif not is_special(target):
                yield self._line_about_file(rows + records, target)
        if outputs.save_coco is not None and not is_special(outputs.save_coco):
            yield self._line_about_file("COCO results", outputs.save_coco)
        for folder in dict.fromkeys(outputs.folders):
            yield f"wrote {pluralize(self._files[folder], 'file')} to {folder}"
        if outputs.report is not None:
            yield f"wrote {records} to the page {outputs.report / 'index.html'}"

    def _line_about_file(self, content: str, path: Target) -> str:
        """Say what was written to a file, and whether there was one before."""
        line = f"wrote {content} to {path}"
        if path in self._replaced:
            line += ", in place of the file that was there"
        return line

    def _stream(self, source: str, dropped: int) -> str:
        """Describe the frames of a live source, their rate, and how many were dropped."""
        frames, first_s, last_s = self._streams.get(source, (0, 0.0, 0.0))
        parts = [pluralize(frames, "frame")]
        if last_s > first_s:
            parts.append(f"{(frames - 1) / (last_s - first_s):.1f}/s")
        if dropped:
            parts.append(f"{dropped} dropped")
        return ", ".join(parts)


def _provenance(run: Run, path: Path, settings: SettingsJson | None) -> Callable[[Record], Record]:
    """Make the step that adds the provenance to records: what made them."""
    from detcli.model.file import ModelFile  # loads onnx
    from detcli.model.precision import precision_in
    from detcli.run.machine import Provenance, describe_run

    config = run.config
    file = ModelFile.read(path, config.settings.box_format, config.settings.preprocess)
    precision = precision_in(file.model, run.detector.where, half=config.runtime.half)
    provenance = describe_run(run.devices, str(precision))
    fields: AddedJson = {"provenance": provenance}
    if settings is not None and config.outputs.resume is None:  # the journal writes them itself
        fields = {"settings": settings, "provenance": provenance}
    return Provenance(fields)


def _report_interrupt(
    done: int, total: int | None, config: Config, destination: Destination
) -> None:
    """Say how far an interrupted run got, and how to continue it."""
    if total is None:
        inputs = pluralize(done, "input")
    else:
        inputs = f"{done} of {pluralize(total, 'input')}"
    print_line(f"interrupted after {inputs}")
    hint = "the same command goes on from here"
    if config.outputs.resume is None:
        hint = _hint_to_resume(config, destination)
    print_line(f"  hint: {hint}", prefix="")


def _hint_to_resume(config: Config, destination: Destination) -> str:
    """How to go on with an interrupted run that has no journal, or with the next one."""
    options = options_of(Config)
    values = values_of(config)
    refused_flags = []
    for name in [*options["resume"].excludes, "format"]:
        if values[name] != options[name].default:
            refused_flags.append(options[name].flag)
    place = ""
    if refused_flags:
        place = f" in place of {' and '.join(refused_flags)}"
    target = destination.target
    if isinstance(target, Path) and destination.format is Format.JSONL and not is_special(target):
        return f"with --resume {target}{place}, the same command goes on from here"
    return f"this run cannot be continued; one with --resume NEW.jsonl{place} can"
