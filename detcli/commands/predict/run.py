"""One run: sends inputs through the pipeline into the sinks, and reports on it."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from detcli.commands.predict.options import check_conditions, parse_condition
from detcli.commands.predict.sinks import (
    Destination,
    OutputSummary,
    Skip,
    choose_destination,
    open_sinks,
)
from detcli.commands.shared.messages import say
from detcli.commands.shared.progress import Tally, count, fetching, progress
from detcli.core.config import Config
from detcli.interrupts import interrupts
from detcli.record import AddedJson, Record, SettingsJson
from detcli.run import Run, is_one_picture, locate, open_run, source_options
from detcli.settings import class_ids
from detcli.sink import Sink, Stopped
from detcli.source.loading import Item
from detcli.source.sources import InputGuard, Sources
from detcli.timing import Stage

RecordStep = Callable[[Record], Record]
"""Adds something to each record."""

WRITE_LIMIT_S = 2.0
"""How long an interrupt waits until a record is written whole; a pipe's reader may have stopped."""


def predict_here(config: Config) -> Tally:
    """Run in this process, and write to sinks.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
        UsageError: An output file is one of the inputs.
        CheckError: A condition holds.
        DetcliError: The run failed.
    """
    destination, writing, quiet = choose_destination(config), config.writing, config.messages.quiet
    with fetching() as show:
        model = locate(config, show)
    files = [model.path, *filter(None, (config.settings.names, writing.coco_images))]
    guard = InputGuard([*config.inputs.source, *map(str, files)], source_options(config))
    guard.refuse(writing.files)
    with open_run(config, model) as run:
        names, places = run.detector.contract.names, run.watched.places
        kept = class_ids(config.settings.classes, names)
        left_out = set() if kept is None else {*names} - {names[one] for one in kept}
        conditions = [parse_condition(text, names, places, left_out) for text in writing.fail_if]
        settings = run.settings() if writing.need_identity else None
        add: RecordStep = run.watcher()
        if writing.provenance:
            add = _in_turn(add, _provenance(run, settings))
        with run.sources() as sources:
            opening = open_sinks(config, destination, guard, settings, names)
            tally = _detect(run, sources, add, opening, destination)
        if run.watched.track is not None and tally.done and not tally.numbered and not quiet:
            say("nothing was tracked: only the frames of videos and streams have tracks")
    check_conditions(conditions, tally.found, tally.places)
    return tally


def _detect(
    run: Run,
    sources: Sources,
    add: RecordStep,
    opening: AbstractContextManager[tuple[list[Sink], Skip]],
    destination: Destination,
) -> Tally:
    """Run, and print what was done, found and written."""
    config, pipeline = run.config, run.pipeline()
    quiet = config.messages.quiet
    bar = not (quiet or destination.on_terminal or is_one_picture(config))
    tally = Tally(quiet=quiet, errors_shown=destination.show_errors)
    summary = OutputSummary(config.writing, destination)

    def skip(item: Item) -> bool:
        known = has_record(item)
        tally.skipped += known
        return known

    def total() -> int | None:
        known = sources.progress.total
        return None if known is None else known - tally.skipped

    interrupted = False
    try:
        with (
            contextlib.suppress(Stopped),  # the user closed the window
            opening as (sinks, has_record),
            progress(total, wanted=bar, status=tally.status) as advance,
        ):
            for record in map(add, pipeline.run(sources, skip)):
                with interrupts.held(WRITE_LIMIT_S):
                    with pipeline.times.stage(Stage.WRITE):
                        for sink in sinks:
                            sink.write(record)
                    summary.add(record)
                    tally.add(record)
                advance(record.origin.source)
    except KeyboardInterrupt:
        interrupted = True
    if not quiet and not (interrupted and tally.done == 0):
        dropped = sources.progress.dropped
        tally.summarise(pipeline.times, dropped.total())
        tally.list_streams(dropped)
        for line in summary.lines(tally.done, tally.skipped):
            say(line)
        if interrupted and not destination.endless:  # where that is how a run ends
            _report_interrupt(tally.done, total(), config.writing.resume)
    if interrupted:
        raise KeyboardInterrupt
    return tally


def _in_turn(first: RecordStep, second: RecordStep) -> RecordStep:
    return lambda record: second(first(record))


def _provenance(run: Run, settings: SettingsJson | None) -> RecordStep:
    """The provenance that records carry: what made them."""
    from detcli.commands.shared.provenance import Provenance, describe_run
    from detcli.commands.shared.sides import precision_in  # loads onnx
    from detcli.model.file import ModelFile

    config = run.config
    file = ModelFile.read(run.model.path, config.settings.box_format, config.settings.preprocess)
    precision = precision_in(file.model, run.detector.where, half=config.running.half)
    added: AddedJson = {"provenance": describe_run(run.devices, str(precision))}
    if settings is not None and config.writing.resume is None:  # the journal writes them itself
        added = {"settings": settings, **added}
    return Provenance(added)


def _report_interrupt(done: int, total: int | None, journal: Path | None) -> None:
    """Say how far an interrupted run got, and how to continue it."""
    inputs = count(done, "input") if total is None else f"{done} of {count(total, 'input')}"
    say(f"interrupted after {inputs}")
    if journal is None:
        hint = "with --resume FILE, the same command would go on where it stopped"
    else:
        hint = "the same command goes on from here"
    say(f"  hint: {hint}", prefix="")
