"""The command `merge`: the parts of a run in shards, or the records of a file, become one file."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.cli.command import command
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.config.config import INPUT, OUTPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import is_folder, parse_writable, read_target
from detcli.core.errors import CheckError, InputError, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import is_object, pluralize
from detcli.storage.files import AtomicFile, DirectFile, StandardOutput

if TYPE_CHECKING:
    from detcli.config.values import Format, Target
    from detcli.data.record import RecordJson
    from detcli.page.find_images import Finder
    from detcli.run.classified import Classified
    from detcli.run.marks import Marks
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge
    from detcli.sink.protocol import RecordSink, RunDescription


@command("format", "base", "burst", "apply", Verbosity, examples="""
detcli merge boxes/ -o all.jsonl
detcli merge boxes/ --burst 60s -o all.csv
detcli merge boxes/ --format megadetector --base pics -o timelapse.json
detcli merge timelapse.json -o boxes.csv
detcli merge boxes.jsonl --classified species.csv -o species.jsonl
detcli merge boxes.jsonl --apply marks.json -o corrected.jsonl
""")  # fmt: skip
def merge(
    config: Config,
    folder: str = option(
        REQUIRED,
        "FOLDER/|FILE",
        "What was given to predict --output, or a file of records or of MegaDetector's results.",
    ),
    output: str | None = option(
        None,
        "-o, --output FILE",
        "Write records to this file; - is standard output.",
        panel=OUTPUT,
    ),
    images: Path | None = option(
        None,
        "--images FOLDER",
        "Where the images are now, for a FILE that lacks their sizes; default: where it says, or "
        "beside it.",
        panel=INPUT,
        parse=parse_writable,
    ),
    classified: Path | None = option(
        None,
        "--classified FILE.csv",
        "Add what another network says of the crops: columns crop, or source and box or track, "
        "then class and score.",
        panel=INPUT,
        parse=parse_writable,
    ),
) -> None:
    """Merge the parts of a sharded run, or write a file of records in a different format.

    The output is what one run on one machine writes. Each name of the run's manifest is there once;
    what is missing or damaged is listed, nothing is written, and the exit code is 6. It is 3 if
    records are errors.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    from detcli.run.shards.parts import describe_failures  # these load NumPy: --help does without
    from detcli.sink.formats import check_format_options, choose_format, require_bursts

    if not folder:
        raise UsageError("no folder given", "name the folder that was given to predict --output")
    if not is_object(folder) and not os.path.exists(folder):  # noqa: PTH110 - raises nothing
        raise UsageError(
            f"there is no file or folder {folder}",
            "name the records of predict, or the folder that was given to predict --output",
        )
    if is_folder(output):
        raise UsageError(f"--output {output} is a folder", "name a file or an object")
    if images is not None and not images.is_dir():
        raise UsageError(f"--images {images} is not a folder", "name one, or leave the option out")
    target = read_target(output)  # None for standard output
    record_format = choose_format(config.outputs.format, target)
    check_format_options(record_format, target, config.outputs.base)
    burst_gap_s = config.outputs.burst
    if burst_gap_s is not None:
        require_bursts(record_format)
    if target is not None:
        _refuse_name_of_run(target)

    with _open_classified(classified, target) as answers:
        if Path(folder).is_file():
            failed = _convert_file(config, folder, images, target, record_format, answers)
            hint = "their inputs failed; run predict on them again"
        else:
            failed = _merge_parts(config, folder, target, record_format, answers)
            hint = "add --retry-failed to the command that made the parts, to process them again"
        if answers is not None:
            for sentence in answers.unused():
                print_line(sentence)
            answers.require_fit()
    if failed:
        raise InputError(describe_failures(failed), hint)


@contextmanager
def _open_classified(path: Path | None, target: "Target | None") -> "Iterator[Classified | None]":
    """Read the file of --classified, and yield what adds it to records; None if it is not set.

    Raises:
        UsageError: It cannot be used, or is the output.
    """
    if path is None:
        yield None
        return
    from detcli.run.classified import Classified
    from detcli.source.guard import InputGuard

    InputGuard([str(path)]).refuse([target])
    with closing(Classified(path)) as answers:
        yield answers


def _merge_parts(
    config: Config,
    folder: str,
    target: "Target | None",
    record_format: "Format",
    answers: "Classified | None",
) -> Counter[str]:
    """Merge the parts of a run in shards.

    Args:
        config: The options of the command.
        folder: The folder of the run.
        target: The file or object to write; None for standard output.
        record_format: The format to write.
        answers: Adds what another network says to records; None if nothing does.

    Returns:
        How many records are errors, by their kind.

    Raises:
        CheckError: Parts are missing or damaged.
    """
    from detcli.data.columns import CLASSIFIED_COLUMNS, DETECTED_COLUMNS
    from detcli.run.shards.manifest import Manifest, class_names_of
    from detcli.run.shards.parts import Merge
    from detcli.run.shards.store import open_store
    from detcli.sink.protocol import RunDescription

    store = open_store(folder)
    manifest = Manifest(store)
    merging = Merge(store, manifest)
    _require_whole(merging, manifest)

    settings = manifest.header["settings"]
    optional_columns = []
    for column in DETECTED_COLUMNS:
        if column.setting is not None and settings.get(column.setting):
            optional_columns.append(column.name)
    marks = _read_marks(config)
    if marks is not None and marks.dropped_groups:
        optional_columns.append("repeated")
    if answers is not None:
        optional_columns += CLASSIFIED_COLUMNS
    run = RunDescription(settings, class_names_of(manifest.header), config.outputs.base)
    burst_gap_s = config.outputs.burst
    reports_progress = target is not None and not config.verbosity.quiet
    with _open_output(target, record_format, optional_columns, run, burst_gap_s) as sink:
        _copy_records(merging, manifest, sink, answers, marks, show_progress=reports_progress)

    if reports_progress:
        records = pluralize(merging.count, "record")
        parts = pluralize(len(manifest), "part")
        print_line(f"wrote {records} of {parts} to {target}{_effect_of(marks)}")
    return merging.failed


def _convert_file(
    config: Config,
    name: str,
    images: Path | None,
    target: "Target | None",
    record_format: "Format",
    answers: "Classified | None",
) -> Counter[str]:
    """Write the records of a file in a different format.

    Args:
        config: The options of the command.
        name: The file of records, or of MegaDetector's results.
        images: The folder of the images, if their sizes are not in the file; None for where the
            file says.
        target: The file or object to write; None for standard output.
        record_format: The format to write.
        answers: Adds what another network says to records; None if nothing does.

    Returns:
        How many records are errors, by their kind.
    """
    from detcli.page.find_images import Finder
    from detcli.run.saved import read_records
    from detcli.run.shards.parts import count_error
    from detcli.sink.formats import FORMATS
    from detcli.sink.protocol import RunDescription, Stored
    from detcli.source.guard import InputGuard

    marks = _read_marks(config)
    inputs = [name]
    if config.outputs.apply is not None:
        inputs.append(str(config.outputs.apply))
    InputGuard(inputs).refuse([target])
    failed: Counter[str] = Counter()
    record_count = 0
    reports_progress = target is not None and not config.verbosity.quiet
    with closing(Finder(images, config.inputs)) as finder:
        optional_columns: Sequence[str] = ()
        if FORMATS[record_format].has_detection_rows:
            optional_columns = _optional_columns(
                name,
                finder,
                marks,
                classified=answers is not None,
                keeps_bursts=config.outputs.burst is None,
            )
        run = RunDescription(_settings_of(name, finder), (), config.outputs.base)
        with (
            _open_output(
                target, record_format, optional_columns, run, config.outputs.burst
            ) as sink,
            progress(lambda: None, enabled=reports_progress) as advance,
        ):
            for record in read_records(name, finder):
                advance(record["source"])
                corrected = _add_answers_and_apply_marks(record, answers, marks)
                if corrected is None:
                    continue
                corrected["index"] = record_count
                sink.write(Stored(corrected))
                count_error(corrected, failed)
                record_count += 1
            if marks is not None:
                marks.require_fit()
    if reports_progress:
        records = pluralize(record_count, "record")
        print_line(f"wrote {records} to {target}{_effect_of(marks)}")
    return failed


def _effect_of(marks: "Marks | None") -> str:
    """Return the end of the sentence on the written records: what the marks changed, if any did."""
    if marks is None:
        return ""
    return marks.effect


def _read_marks(config: Config) -> "Marks | None":
    """Read the marks of --apply; None if it is not set.

    Raises:
        UsageError: The file cannot be read, or holds something else.
    """
    if config.outputs.apply is None:
        return None
    from detcli.run.marks import Marks

    return Marks(config.outputs.apply)


def _add_answers_and_apply_marks(
    record: "RecordJson", answers: "Classified | None", marks: "Marks | None"
) -> "RecordJson | None":
    """Add the answers of another network to a record, and correct it by marks.

    Answers name boxes by their number in the record, so they come first.

    Returns:
        The record; None if marks drop all of it.
    """
    if answers is not None:
        answers.add(record)
    if marks is None:
        return record
    return marks.corrected(record)


def _optional_columns(
    name: str, finder: "Finder", marks: "Marks | None", *, classified: bool, keeps_bursts: bool
) -> list[str]:
    """List the optional columns that a table of the records in a file needs.

    A table needs its columns before the first row, so this reads all records of the file.

    Args:
        name: The file of records.
        finder: Finds images where the file lacks their sizes.
        marks: What a person has marked, which may add the ids of repeats; None unless --apply is
            set.
        classified: Whether the fields of --classified are added.
        keeps_bursts: Whether the burst ids in the records are kept. Otherwise `--burst` numbers the
            bursts again, and the output adds these columns itself.
    """
    from detcli.data.columns import CLASSIFIED_COLUMNS, OPTIONAL_COLUMNS
    from detcli.data.record import BURST_COLUMNS
    from detcli.run.saved import read_records

    possible_columns = [column.name for column in OPTIONAL_COLUMNS]
    if keeps_bursts:
        possible_columns += BURST_COLUMNS

    present_fields: set[str] = set()
    if classified:
        present_fields.update(CLASSIFIED_COLUMNS)
    for record in read_records(name, finder):
        present_fields.update(record)
        for detection in record.get("detections", ()):
            present_fields.update(detection)
    if marks is not None and marks.dropped_groups:
        present_fields.add("repeated")
    return [column for column in possible_columns if column in present_fields]


def _settings_of(name: str, finder: "Finder") -> dict[str, Any]:
    """Return the settings in the first record of a file; empty if it has none."""
    from detcli.run.saved import read_records

    for record in read_records(name, finder):
        return {**record.get("settings", {})}
    return {}


@contextmanager
def _open_output(
    target: "Target | None",
    record_format: "Format",
    optional_columns: Sequence[str],
    run: "RunDescription",
    burst_gap_s: float | None,
) -> "Iterator[RecordSink]":
    """Open the sink that records are written to.

    When the block ends without an error, the output is completed, and a file appears under its
    name. After an error, or an interrupt, the file is discarded.

    Args:
        target: The file or object; None for standard output.
        record_format: The format.
        optional_columns: The names of columns that options add, for formats with a row for each
            detection.
        run: What made the records, for formats that say so.
        burst_gap_s: How many seconds the photographs of a burst are apart at most; None unless
            `--burst` is set.
    """
    from detcli.sink.bursts import BurstSink
    from detcli.sink.formats import open_record_sink, open_target

    file: StandardOutput | AtomicFile | DirectFile
    if target is None:
        file = StandardOutput()
    else:
        file = open_target(target)
    try:
        sink = open_record_sink(record_format, file, optional_columns, run, burst_gap_s)
        yield sink
        if isinstance(sink, BurstSink):
            # Its records wait until all bursts are known. They are written here, where Ctrl-C still
            # ends the command, and not by `close`.
            sink.pass_on()
    except BaseException:  # even after Ctrl-C
        if not isinstance(file, StandardOutput):
            file.discard()
        raise
    with interrupts.held():  # Ctrl-C waits until the file is complete
        sink.close()


def _refuse_name_of_run(target: "Target") -> None:
    """Refuse an output with the name of a manifest or of a part of a run in shards.

    In the folder of a run, the output would be taken for a file of that run.

    Raises:
        UsageError: The name is one of these.
    """
    from detcli.run.shards.manifest import MANIFEST_NAME, PART_NAME

    name = str(target).rpartition("/")[2]
    if MANIFEST_NAME.fullmatch(name) or PART_NAME.fullmatch(name):
        raise UsageError(
            f"--output {target} has the name of a manifest or a part", "choose another name"
        )


def _copy_records(
    merging: "Merge",
    manifest: "Manifest",
    sink: "RecordSink",
    answers: "Classified | None",
    marks: "Marks | None",
    *,
    show_progress: bool,
) -> None:
    """Write the records of all parts of the run to the output.

    If a record cannot be corrected or written, its part may be damaged, which only shows when the
    part has been read to its end. So after the first such error, the remaining records are still
    read and corrected, but no longer written. At the end the damaged parts are reported; if there
    are none, the first such error is raised.

    Args:
        merging: Yields the records of the parts, and collects what is wrong with parts.
        manifest: The manifest of the run, with the number of names.
        sink: Writes the records.
        answers: Adds what another network says to records; None if nothing does.
        marks: What a person has marked as wrong; None unless --apply is set.
        show_progress: Whether to show a progress bar.

    Raises:
        CheckError: Parts are missing or damaged. Any other error is that of a record, the sink or
            the marks.
    """
    from detcli.run.shards.parts import DAMAGE
    from detcli.sink.protocol import Stored

    record_error: Exception | None = None
    with progress(lambda: manifest.name_count, enabled=show_progress) as advance:
        for record in merging:
            try:
                corrected = _add_answers_and_apply_marks(record, answers, marks)
                if record_error is None and corrected is not None:
                    sink.write(Stored(corrected))
            except DAMAGE as error:  # what a record with damaged fields may cause
                if record_error is None:
                    record_error = error
            advance(record["source"])

    _require_whole(merging, manifest)
    if record_error is not None:
        raise record_error
    if marks is not None:
        marks.require_fit()


def _require_whole(merging: "Merge", manifest: "Manifest") -> None:
    """Check that no part of the run is missing or damaged, and print each that is.

    Args:
        merging: Reads the parts, which are files of records, and knows what is wrong with those
            that were read so far.
        manifest: The manifest of the run, with the number of parts.

    Raises:
        CheckError: Parts are missing or damaged; it says how many.
    """
    faults = merging.faults
    if not faults:
        return
    for fault in faults:
        print_line(f"{fault.part}: {fault.reason}")

    parts = f"{len(faults)} of {pluralize(len(manifest), 'part')}"
    name_count = sum(fault.names for fault in faults)
    names = pluralize(name_count, "name")
    hint = "run the command that made the parts again; it makes only the missing ones"
    are_some_damaged = not all(fault.missing for fault in faults)
    if are_some_damaged:
        hint = f"remove the damaged parts, then {hint}"
    raise CheckError(f"{parts}, with {names}, missing or damaged", hint)
