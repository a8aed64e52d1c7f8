"""The command `merge`: the parts of a run in shards become one file."""

from typing import TYPE_CHECKING

from detcli.cli.command import command
from detcli.cli.console import print_line, progress, set_verbosity
from detcli.config.config import OUTPUT, Config, Verbosity
from detcli.config.option import REQUIRED, option
from detcli.config.values import is_folder, read_target
from detcli.core.errors import CheckError, InputError, UsageError
from detcli.core.interrupts import interrupts
from detcli.core.text import pluralize
from detcli.storage.files import AtomicFile, DirectFile, StandardOutput

if TYPE_CHECKING:
    from detcli.config.values import Format, Target
    from detcli.run.shards.manifest import Manifest
    from detcli.run.shards.parts import Merge
    from detcli.sink.protocol import Output, RecordSink


@command("format", "base", "burst", Verbosity, examples="""
detcli merge boxes/ -o all.jsonl
detcli merge boxes/ --burst 60s -o all.csv
detcli merge boxes/ --format megadetector --base pics -o timelapse.json
""")  # fmt: skip
def merge(
    config: Config,
    folder: str = option(REQUIRED, "FOLDER/", "What was given to predict --output."),
    output: str | None = option(
        None,
        "-o, --output FILE",
        "Write records to this file; - is standard output.",
        panel=OUTPUT,
    ),
) -> None:
    """Merge the parts of a sharded run.

    The output is what one run on one machine writes. Each name of the run's manifest is there once;
    what is missing or damaged is listed, nothing is written, and the exit code is 6. It is 3 if
    records are errors.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    from detcli.run.shards.manifest import Manifest  # these load NumPy: --help does without
    from detcli.run.shards.parts import Merge, describe_failures
    from detcli.run.shards.store import open_store
    from detcli.sink.bursts import BurstSink
    from detcli.sink.formats import open_target

    if not folder:
        raise UsageError("no folder given", "name what was given to predict --output")
    target, record_format = _choose_output(config, output)

    store = open_store(folder)
    manifest = Manifest(store)
    merging = Merge(store, manifest)
    _require_whole(merging, manifest)
    file: StandardOutput | AtomicFile | DirectFile
    if target is None:
        file = StandardOutput()
    else:
        file = open_target(target)
    reports_progress = target is not None and not config.verbosity.quiet
    try:
        sink = _open_sink(config, manifest, record_format, file)
        _copy(merging, manifest, sink, show_progress=reports_progress)
        if isinstance(sink, BurstSink):
            sink.pass_on()
    except BaseException:
        if not isinstance(file, StandardOutput):
            file.discard()
        raise
    with interrupts.held():
        sink.close()

    if reports_progress:
        records = pluralize(merging.count, "record")
        print_line(f"wrote {records} of {pluralize(len(manifest), 'part')} to {target}")
    if merging.failed:
        hint = "work them again with --retry-failed, added to the command that made the parts"
        raise InputError(describe_failures(merging.failed), hint)


def _choose_output(config: Config, output: str | None) -> "tuple[Target | None, Format]":
    """Choose where the records of all parts go, and in which format.

    Args:
        config: The format that was asked for, and what it needs.
        output: What `--output` names; None or "-" for standard output.

    Returns:
        The file or object, None for standard output; and the format.

    Raises:
        UsageError: The output cannot have this format, or has a name that the run uses.
    """
    from detcli.sink.formats import choose_format, require_bursts, require_file

    if is_folder(output):
        raise UsageError(f"--output {output} is a folder", "name a file or an object")
    target = read_target(output)
    record_format = choose_format(config.outputs.format, target)
    require_file(record_format, target, config.outputs.base)
    if config.outputs.burst is not None:
        require_bursts(record_format)
    if target is not None:
        _refuse_name_of_run(target)
    return target, record_format


def _open_sink(
    config: Config, manifest: "Manifest", record_format: "Format", output: "Output"
) -> "RecordSink":
    """Open the sink that writes the records of a run in shards to an output.

    Args:
        config: What `--base` and `--burst` say.
        manifest: The manifest of the run, which names its settings and the model's classes.
        record_format: The format of the output.
        output: The open output.
    """
    from detcli.data.columns import OPTIONAL_COLUMNS
    from detcli.run.shards.manifest import class_names_of
    from detcli.sink.formats import open_record_sink
    from detcli.sink.protocol import RunDescription

    settings = manifest.header["settings"]
    columns = [column.name for column in OPTIONAL_COLUMNS if settings.get(column.setting)]
    run = RunDescription(settings, class_names_of(manifest.header), config.outputs.base)
    return open_record_sink(record_format, output, columns, run, config.outputs.burst)


def _refuse_name_of_run(target: "Target") -> None:
    """Refuse an output with the name of a manifest or of a part of a run in shards.

    In the folder of the run, such a file would be taken for one of the run's own.

    Raises:
        UsageError: The name is one of these.
    """
    from detcli.run.shards.manifest import NAME, PART

    name = str(target).rpartition("/")[2]
    if NAME.fullmatch(name) or PART.fullmatch(name):
        raise UsageError(
            f"--output {target} has the name of a manifest or a part", "choose another name"
        )


def _copy(
    merging: "Merge", manifest: "Manifest", sink: "RecordSink", *, show_progress: bool
) -> None:
    """Write the records of all parts of the run to the output.

    A record that the sink cannot write may be the consequence of a damaged part, but whether a part
    is damaged is only known when it was read to its end. So after the first such error, the
    remaining records are still read but not written. At the end the damaged parts are reported or,
    if there are none, that error.

    Args:
        merging: Yields the records of the parts, and collects what is wrong with parts.
        manifest: The manifest of the run, with the number of names.
        sink: Writes the records.
        show_progress: Whether to show a progress bar.

    Raises:
        CheckError: Parts are damaged. Any other error is that of the sink.
    """
    from detcli.run.shards.parts import DAMAGE
    from detcli.sink.protocol import Stored

    first_error: Exception | None = None
    with progress(lambda: manifest.names, enabled=show_progress) as advance:
        for record in merging:
            try:
                if first_error is None:
                    sink.write(Stored(record))
            except DAMAGE as error:
                first_error = error
            advance(record["source"])
    _require_whole(merging, manifest)
    if first_error is not None:
        raise first_error


def _require_whole(merging: "Merge", manifest: "Manifest") -> None:
    """Check that no part of the run is missing or damaged, and print each that is.

    Args:
        merging: Reads the parts, and collects what is wrong with those read so far.
        manifest: The manifest of the run, with the number of parts.

    Raises:
        CheckError: Parts are missing or damaged; it says how many.
    """
    faults = merging.faults
    for fault in faults:
        print_line(f"{fault.part}: {fault.reason}")
    if not faults:
        return
    hint = "run the command that made the parts again; it makes only the missing ones"
    if not all(fault.missing for fault in faults):
        hint = f"remove the damaged parts, then {hint}"
    parts = f"{len(faults)} of {pluralize(len(manifest), 'part')}"
    name_count = sum(fault.names for fault in faults)
    names = pluralize(name_count, "name")
    raise CheckError(f"{parts}, with {names}, missing or damaged", hint)
