"""One run: sends inputs through the pipeline into the sinks, and reports on it."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from detcli.commands.predict.options import check_conditions, parse_condition
from detcli.commands.predict.sinks import (
    OutputSummary,
    SinkOptions,
    Skip,
    hidden_classes,
    open_sinks,
)
from detcli.commands.shared.messages import say
from detcli.commands.shared.progress import Tally, count, progress
from detcli.commands.shared.setup import RunOptions
from detcli.detector import Detector, settings_json
from detcli.interrupts import interrupts
from detcli.model.zoo import LocatedModel
from detcli.pipeline import Pipeline
from detcli.record import AddedJson, Record, SettingsJson
from detcli.settings import class_ids
from detcli.sink import Sink, Stopped
from detcli.source.item import Item, SourceOptions
from detcli.source.sources import InputGuard, Sources
from detcli.timing import Stage
from detcli.watch import Watcher

RecordStep = Callable[[Record], Record]
"""Adds something to each record."""

WRITE_LIMIT_S = 2.0
"""How long an interrupt waits until a record is written whole; a pipe's reader may have stopped."""


def predict_here(  # noqa: PLR0913 - what a run consists of
    run: RunOptions,
    names: list[str],
    source_options: SourceOptions,
    sink_options: SinkOptions,
    *,
    conditions: Sequence[str],
    fast_decode: bool,
    quiet: bool,
    one_picture: bool,
) -> Tally:
    """Run in this process, and write to sinks.

    Args:
        run: Which model runs where.
        names: What the user named.
        source_options: How it is read.
        sink_options: Where records go.
        conditions: Of --fail-if.
        fast_decode: Whether large JPEGs may be decoded at reduced size.
        quiet: Print nothing.
        one_picture: Whether a bar would have nothing to show.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
        UsageError: An output file is one of the inputs.
        CheckError: A condition holds.
        DetcliError: The run failed.
    """
    source_options = replace(source_options, written=sink_options.written)
    decode = source_options.decode
    located = run.find_model()
    files = [located.path, *filter(None, (run.settings.names, sink_options.coco_images))]
    guard = InputGuard([*names, *map(str, files)], source_options)
    guard.refuse(sink_options.files)
    with run.open_detector(located) as detector:
        watch = sink_options.watch.above(detector.least_conf)
        names_of = detector.contract.names
        kept = class_ids(run.settings.classes, names_of)
        left_out = set() if kept is None else {*names_of} - {names_of[one] for one in kept}
        parsed = [parse_condition(text, names_of, watch.places, left_out) for text in conditions]
        hidden = hidden_classes(sink_options.blur, run.settings.classes, names_of)
        decode = replace(decode, allocate=detector.allocate)
        if fast_decode and not (sink_options.need_pixels or watch.read):
            decode = replace(decode, fast_for=detector.fast_for)
        source_options = replace(source_options, decode=decode)
        settings = None
        if sink_options.needs_settings:
            settings = settings_json(
                detector,
                located,
                run.settings,
                half=run.device_options.half,
                fast_decode=source_options.decode.fast_for is not None,
                stride=source_options.stride,
                zones=watch.written_zones,
                lines=watch.written_lines,
                track=watch.written_track,
                read=watch.read,
            )
        pipeline = run.open_pipeline(detector, decode.timeout_s)
        add: RecordStep = Watcher(watch)
        if sink_options.provenance:
            add = _in_turn(add, _provenance(run, detector, located, settings, sink_options))
        with Sources(names, source_options) as sources:
            bar = not (quiet or sink_options.on_terminal or one_picture)
            opening = open_sinks(
                sink_options, guard, settings, detector.contract.names, hidden, roots=names
            )
            tally = detect(pipeline, sources, add, opening, sink_options, quiet=quiet, bar=bar)
        if watch.track is not None and tally.done and not tally.numbered and not quiet:
            say("nothing was tracked: only the frames of videos and streams have tracks")
    check_conditions(parsed, tally.found, tally.places)
    return tally


def detect(  # noqa: PLR0913 - what a run consists of
    pipeline: Pipeline,
    sources: Sources,
    add: RecordStep,
    opening: AbstractContextManager[tuple[list[Sink], Skip]],
    options: SinkOptions,
    *,
    quiet: bool,
    bar: bool,
) -> Tally:
    """Run, and print what was done, found and written.

    Args:
        pipeline: Makes records from items.
        sources: The items.
        add: Adds to each record.
        opening: Opens the sinks, see `open_sinks`.
        options: Where records go.
        quiet: Print nothing.
        bar: Show progress, if stderr is a terminal.

    Returns:
        The counts.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was written is complete.
        DetcliError: The run failed.
    """
    tally = Tally(quiet=quiet, errors_shown=options.show_errors)
    summary = OutputSummary(options)

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
        if interrupted and not options.append:  # where that is how a run ends
            _report_interrupt(tally.done, total(), options.journal)
    if interrupted:
        raise KeyboardInterrupt
    return tally


def _in_turn(first: RecordStep, second: RecordStep) -> RecordStep:
    return lambda record: second(first(record))


def _provenance(
    run: RunOptions,
    detector: Detector,
    model: LocatedModel,
    settings: SettingsJson | None,
    options: SinkOptions,
) -> RecordStep:
    """The provenance that records carry: what made them."""
    from detcli.commands.shared.provenance import Provenance, describe_run
    from detcli.commands.shared.sides import precision_in  # loads onnx
    from detcli.model.loading import ModelFile

    file = ModelFile.read(model.path, run.settings.box_format, run.settings.preprocess)
    precision = precision_in(file.model, detector.where, half=run.device_options.half)
    added: AddedJson = {
        "provenance": describe_run([detector.where, *run.devices[1:]], str(precision))
    }
    if settings is not None and options.journal is None:  # which writes them itself
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
