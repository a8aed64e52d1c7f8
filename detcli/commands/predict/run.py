"""One run: sends inputs through the pipeline into the sinks, and reports on it."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.cli.command import DECIDING
from detcli.cli.console import (
    download_progress,
    progress,
    reading_progress,
)
from detcli.cli.defaults import TUNED, defaults_file
from detcli.commands.predict.summary import RunSummary, report_end
from detcli.config.config import Config
from detcli.config.option import arguments_of, options_of
from detcli.core.errors import ModelError, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import shell_line
from detcli.core.timing import Stage
from detcli.data.record import Record, SettingsJson
from detcli.model.contract import class_ids
from detcli.model.zoo import find
from detcli.run import Run, is_one_image, locate, open_run
from detcli.run.conditions import Condition, check_conditions, parse_condition
from detcli.run.counts import Counts
from detcli.run.destination import choose_destination
from detcli.run.model_settings import prepare_for
from detcli.run.outputs import (
    NOTHING_KNOWN,
    OpenSinks,
    open_anonymizer,
    open_sinks,
)
from detcli.sink.formats import FORMATS
from detcli.sink.protocol import Stopped
from detcli.source.guard import InputGuard
from detcli.source.loading import RECORDED, Item
from detcli.source.names import is_live
from detcli.source.sources import Sources
from detcli.storage.folder import OutputState

if TYPE_CHECKING:
    from detcli.model.file import ModelFile
    from detcli.run.marks import Marks

log = logging.getLogger(__name__)

WRITE_LIMIT_S = 2.0
"""How long an interrupt waits until a record is written whole; a pipe's reader may have stopped."""


def predict_tuned(
    config: Config,
    value_sources: Mapping[str, str],
    tables: Mapping[str, Any],
    states_before: Mapping[Path, OutputState],
) -> Counts:
    """Run on all inputs in this process, with the options that `detcli tune` found fastest.

    A run in shards does not use these options, as its shards may run on other machines.

    Args:
        config: The options of the run.
        value_sources: The options that the user has set, and where each value comes from. Tuned
            options do not replace them.
        tables: The tables that `detcli tune --write` wrote into the user's file of defaults; empty
            if there are none.
        states_before: The states of the output files when the command began, to notice if another
            process writes to one of them meanwhile.

    Raises:
        UsageError: An option is wrong. With --resume, the hint also says how to run without the
            tuned options.
        DetcliError: An error of `use_tuned` or `predict_here`.
    """
    tuned_config = config
    if tables:
        tuned_config = use_tuned(config, value_sources, tables)
    try:
        return predict_here(tuned_config, states_before)
    except UsageError as error:
        uses_tuned_options = tuned_config is not config
        if uses_tuned_options and config.outputs.resume:
            # If the earlier run did not use the tuned options, its file can only be continued
            # without them.
            error.hint += f"; --device auto does without {defaults_file()}, from detcli tune"
        raise


def predict_here(
    config: Config, states_before: Mapping[Path, OutputState] = NOTHING_KNOWN
) -> Counts:
    """Detect objects in all inputs of a run, in this process, and write records, images and labels.

    Args:
        config: The options of the run.
        states_before: The states of the output files when the command began, to notice if another
            process writes to one of them meanwhile.

    Returns:
        Counts of the records that were written.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
        UsageError: An output file is one of the inputs.
        CheckError: A condition of --fail-if holds.
        DetcliError: The run failed.
    """
    destination = choose_destination(config)
    outputs = config.outputs
    with download_progress() as show:
        model = locate(config, show)
    guard = _guard_inputs(config, model.path)
    guard.refuse(outputs.files)
    marks = None
    if outputs.apply is not None:
        from detcli.run.marks import Marks

        marks = Marks(outputs.apply)
    with open_run(config, model) as run:
        conditions = _parse_conditions(run)
        settings = None
        if outputs.need_identity or FORMATS[destination.format].describes_run:
            settings = run.settings()
        summary = RunSummary(config, destination)
        finisher = _RecordFinisher(run, marks, summary)
        if outputs.provenance:
            finisher.add_provenance(model.path, settings)
        with run.sources() as sources:
            opening = _open_outputs(run, summary, guard, settings, states_before)
            try:
                _detect(run, sources, finisher.finish, opening, summary)
            except BrokenPipeError:
                check_conditions(conditions, summary.counts, complete=summary.complete)
                raise
    if summary.complete and not summary.skipped:
        for pattern in finisher.unmatched_patterns:
            log.warning("--ignore %s: no input fits this pattern", pattern)
    check_conditions(conditions, summary.counts, complete=summary.complete)
    if marks is not None and summary.complete:
        marks.require_fit()
    return summary.counts


@contextlib.contextmanager
def _open_outputs(
    run: Run,
    summary: RunSummary,
    guard: InputGuard,
    settings: SettingsJson | None,
    states_before: Mapping[Path, OutputState],
) -> Iterator[OpenSinks]:
    """Open the outputs of a run, and close them at the end of the context.

    With --resume, the records of an earlier run are read first. A progress bar shows how many have
    been read.

    Args:
        run: The open model and its options.
        summary: Is told when the outputs are open, as its clock for images starts then.
        guard: Input files, which are never written over.
        settings: What the detections depend on, for a resume file and an HTML report.
        states_before: The states of the output files when the command began, to notice if another
            process writes to one of them meanwhile.
    """
    with contextlib.ExitStack() as stack:
        # The bar ends when the outputs are open, while the stack keeps them open for the block.
        with reading_progress() as show_reading:
            sinks = open_sinks(
                run.config,
                summary.destination,
                guard,
                settings,
                run.detector.contract.names,
                states_before,
                implied=run.implied_settings,
                show_reading=show_reading,
            )
            open_outputs = stack.enter_context(sinks)
        summary.begin_images()
        yield open_outputs


def _guard_inputs(config: Config, model_path: Path) -> InputGuard:
    """Collect the files that the run reads, so that no output replaces one of them."""
    outputs = config.outputs
    paths = [str(model_path)]
    for path in (config.settings.names, outputs.coco_images, outputs.apply):
        if path:
            paths.append(str(path))
    return InputGuard([*config.inputs.source, *paths], config.inputs, outputs.written)


def _parse_conditions(run: Run) -> list[Condition]:
    """Parse the conditions of --fail-if, which name classes of the model, zones and lines."""
    config = run.config
    class_names = run.detector.contract.names
    zones_and_lines = run.watched.zones_and_lines
    # A condition on a class that --classes leaves out could never hold, and is refused.
    excluded_names: set[str] = set()
    selected_ids = class_ids(config.settings.classes, class_names)
    if selected_ids is not None:
        selected_names = {class_names[class_id] for class_id in selected_ids}
        excluded_names = set(class_names) - selected_names

    conditions = []
    for text in config.outputs.fail_if:
        condition = parse_condition(text, class_names, zones_and_lines, excluded_names)
        conditions.append(condition)
    return conditions


class _RecordFinisher:
    """Completes the record of each image between the detector and the files.

    It leaves out what is to be ignored, adds tracks, zones and provenance, hides the classes of
    --blur in the image, and leaves out the detections that a person has marked as wrong, in the
    file of --apply.
    """

    def __init__(self, run: Run, marks: "Marks | None", summary: RunSummary) -> None:
        """Set up the steps of `finish`; one that the options do not ask for is None.

        Provenance is not set up here: `add_provenance` adds this step.

        Args:
            run: The open model and the options.
            marks: The marks of --apply, if any.
            summary: Gets counts of what --blur has hidden, and of what it may have missed.
        """
        contract = run.detector.contract

        # The steps, in their order.
        self._watcher = run.watcher()  # tracks, zones, crossed lines and texts
        self._provenance: Callable[[Record], Record] | None = None
        self._anonymizer = open_anonymizer(run.config, contract.names)  # of --blur
        self._marks = marks  # corrections by a person

        self._run = run
        self._summary = summary
        # How many detections an image has at most. One with this many may show more objects, which
        # were not detected, so that --blur does not hide them.
        self._max_detections = run.config.settings.max_det
        if contract.max_detections:
            self._max_detections = min(self._max_detections, contract.max_detections)

    @property
    def unmatched_patterns(self) -> list[str]:
        """The patterns of --ignore that no source has matched so far."""
        return self._watcher.unmatched_patterns

    def add_provenance(self, model_path: Path, settings: SettingsJson | None) -> None:
        """Have records state what made them: versions, the model's precision, the device."""
        self._provenance = _provenance_step(self._run, model_path, settings)

    def finish(self, record: Record) -> Record | None:
        """Take a record through all steps; None if the marks of --apply drop all of it.

        The marks come last, so what they drop is blurred in the image all the same.
        """
        record = self._watcher(record)
        if self._provenance is not None:
            record = self._provenance(record)
        if self._anonymizer is not None:
            record = self._anonymizer(record)
        corrected: Record | None = record
        if self._marks is not None:
            corrected = self._marks.applied(record)
        if corrected is not None:
            self._count_hidden(record, corrected)
        return corrected

    def _count_hidden(self, record: Record, corrected: Record) -> None:
        """Count for the summary two things that a user of --blur has to know about an image.

        An image with as many detections as --max-det admits may show objects that are not blurred.
        And a detection that a mark drops is blurred in the image all the same.

        Args:
            record: The record with all detections.
            corrected: The record without the detections that marks drop.
        """
        if self._anonymizer is None or record.detections is None:
            return
        if len(record.detections) >= self._max_detections:
            self._summary.at_max_det += 1
        blurred_count = self._anonymizer.count(record.detections)
        remaining_count = self._anonymizer.count(corrected.detections)
        self._summary.hidden_boxes_dropped += blurred_count - remaining_count


def _detect(
    run: Run,
    sources: Sources,
    finish_record: Callable[[Record], Record | None],
    opening: AbstractContextManager[OpenSinks],
    summary: RunSummary,
) -> None:
    """Send all inputs through the detector, write the records, and print what was done.

    Args:
        run: The open model and its options.
        sources: The inputs.
        finish_record: Completes a record before it is written; None if it is not to be written.
        opening: Opens the sinks, which write the records, and closes them at the end.
        summary: Counts the records, and words what is printed.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
    """
    config = run.config
    pipeline = run.pipeline()
    is_silent = config.verbosity.quiet or summary.destination.on_terminal
    has_bar = not (is_silent or is_one_image(config))

    def skip(item: Item) -> bool:
        has_record = item is RECORDED or open_outputs.skip(item)
        if not has_record:
            return False
        summary.skipped += 1
        sources.progress.expect(-1)
        return True

    interrupted = False
    try:
        with (
            contextlib.suppress(Stopped),  # the user closed the window
            opening as open_outputs,
            progress(
                lambda: sources.progress.total, enabled=has_bar, status=summary.status
            ) as advance,
        ):
            sources.skip_file = open_outputs.skip_file
            for detected in pipeline.run(sources, skip):
                record = finish_record(detected)
                if record is None:
                    continue
                # An interrupt waits until all sinks have the record.
                with interrupts.held(WRITE_LIMIT_S):
                    try:
                        with pipeline.times.stage(Stage.WRITE):
                            for sink in open_outputs.sinks:
                                sink.write(record)
                    finally:  # including the one after which the reader or the user stopped
                        summary.add(record)
                advance(record.origin.source)
            summary.complete = True
    except KeyboardInterrupt:
        interrupted = True
    report_end(config, summary, sources, pipeline.times, interrupted=interrupted)
    if interrupted:
        raise KeyboardInterrupt


TUNED_OPTIONS = ("model", "device", "half", "batch", "workers", "fast_cores")
"""The options that a table of `detcli tune` may set."""


def use_tuned(
    config: Config, value_sources: Mapping[str, str], tables: Mapping[str, Any]
) -> Config:
    """Return the options with those that `detcli tune` has found fastest for the model here.

    If the user has set --device or another option of `DECIDING`, the measurements of tune do not
    apply, so none of its values is used. A --batch, --workers or --fast-cores of the user only
    replaces tune's value.

    Args:
        config: The options of the run.
        value_sources: The options that the user has set, and where each value comes from.
        tables: The tables that `detcli tune --write` wrote into the user's file of defaults:
            values of options by the model's hash, the name of the machine and the kind of run.

    Returns:
        These options; as they are if nothing was tuned, the user has set an option of `DECIDING`,
        or the tuned model is gone.

    Raises:
        UsageError: A table sets an option that tune does not write.
    """
    name = config.runtime.model
    try:
        model = find(name, fetch=False)
    except ModelError:  # it is not on this disk, so it was not tuned here either
        return config
    table = _tuned_table(config, model, tables)
    if table is None:
        log.info("nothing was tuned for %s on this machine", name)
        return config

    options = options_of(Config)
    for option_name in DECIDING:
        if option_name in value_sources:
            log.info("what was tuned for %s gives way to %s", name, options[option_name].flag)
            return config

    values = _parse_tuned(table)
    if "model" in values and not os.path.exists(values["model"]):  # noqa: PTH110 - raises nothing
        log.warning("%s, tuned for %s, is gone: run detcli tune --write", values["model"], name)
        return config

    for option_name in ("batch", "workers", "fast_cores"):
        if option_name in value_sources:
            values.pop(option_name, None)
    tuned = replace(config, runtime=replace(config.runtime, **values))
    log.info("tuned for %s on this machine: %s", name, shell_line(arguments_of(tuned, values)))
    return tuned


def _parse_tuned(table: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the values of options that `detcli tune` wrote into a file, which may have changed.

    Raises:
        UsageError: The table sets an option that is not tuned, or a value that its option does not
            take.
    """
    for option_name in table:
        if option_name not in TUNED_OPTIONS:
            reason = f"{defaults_file()}: [{TUNED}] sets '{option_name}'"
            raise UsageError(reason, "run detcli tune --write again")
    options = options_of(Config)
    return {name: options[name].parse_value(raw_value) for name, raw_value in table.items()}


def _tuned_table(
    config: Config, model: "ModelFile", tables: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Look up what was tuned for a model, this machine and this kind of run, if anything was.

    Args:
        config: The options of the run.
        model: The model, on this disk.
        tables: Values of options, in tables of tables: `tables[model_hash][machine][kind_of_run]`.

    Returns:
        The table of values by option; None if a key is missing, or the file has no table there.
    """
    from detcli.run.machine import machine_name  # slow to import; only runs with tables need it

    model_hash = prepare_for(model, config.settings).sha256
    table: Any = tables
    for key in (model_hash, machine_name(), _kind_of_run(config)):
        if not isinstance(table, Mapping):
            return None
        table = table.get(key)
    if not isinstance(table, Mapping):
        return None
    return table


def _kind_of_run(config: Config) -> str:
    """Name the kind of run as the tables of `detcli tune` do.

    Returns:
        "one" for live sources, whose frames come one by one; "start" for a single image, where
        the time to start matters; "many" for anything else.
    """
    if any(is_live(source) for source in config.inputs.source):
        return "one"
    if is_one_image(config):
        return "start"
    return "many"


def _provenance_step(
    run: Run, model_path: Path, settings: SettingsJson | None
) -> Callable[[Record], Record]:
    """Prepare the function that adds to records the versions, hardware and precision of the run.

    `--provenance` asks for them.

    Args:
        run: The open model and its devices.
        model_path: The model's file.
        settings: What the detections depend on, such as the confidence. They are added as well,
            unless a resume file is written, which has them already.

    Returns:
        A function that takes a record and returns it with its provenance.
    """
    from detcli.model.file import ModelFile  # loads onnx
    from detcli.model.precision import precision_in
    from detcli.run.machine import Provenance, describe_run

    config = run.config
    model_file = ModelFile.read(model_path, config.settings.box_format, config.settings.preprocess)
    precision = precision_in(model_file.model, run.detector.parsed_device, half=config.runtime.half)
    provenance = describe_run(run.devices, str(precision))
    has_resume_file = config.outputs.resume is not None
    if settings is None or has_resume_file:
        return Provenance({"provenance": provenance})
    return Provenance({"settings": settings, "provenance": provenance})
