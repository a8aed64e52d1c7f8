"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from detcli import __version__
from detcli.cli.console import (
    download_progress,
    print_line,
    print_message_counts,
    print_new_messages,
    progress,
    protect_stderr,
    set_verbosity,
)
from detcli.config.config import Config
from detcli.config.values import Format, ShardSelection
from detcli.core import Fields, frozen
from detcli.core.errors import StoreError, UsageError
from detcli.core.text import escape_surrogates, pluralize
from detcli.run import locate, set_up_process
from detcli.run.counts import Counts
from detcli.run.shards import open_engine
from detcli.run.shards.manifest import (
    FIRST_MANIFEST,
    MANIFEST_NAME,
    PART_NAME,
    HeaderJson,
    Manifest,
    Shard,
    publish,
    shortened,
)
from detcli.run.shards.parts import Merge, count_failures, describe_failures
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import (
    MAX_NOTE_AGE_S,
    NOTE,
    RENEW_S,
    Store,
    noted_shards,
    open_store,
)
from detcli.run.shards.work import Progress, Ready, WorkRequest
from detcli.run.shards.workers import Workers
from detcli.source.listing import HASH, Hashes, Name, Names, contains, hash_of, stamp_in
from detcli.source.loading import STDIN
from detcli.source.names import is_live
from detcli.source.sources import SourceEntry, Sources

MAX_SHARD_SIZE = 1000
"""The most names in a shard, unless --shard-size says another number."""

MIN_SHARD_SIZE = 16
"""The fewest names in a shard, unless --shard-size says another number."""

SHARDS_OF_SHORT_RUN = 64
"""The number of shards that a run is cut into, if their sizes are between these."""

CHANGE_S = 1.0
"""How often at most a run writes its note anew because it processes other shards than before."""


@frozen
class OpenedRun:
    """A run in shards whose manifest exists, and how the inputs compare with the manifest."""

    manifest: Manifest
    added: int = 0  # names that this call added to the manifest
    repeated: int = 0  # names that the inputs repeat; each counts once
    gone: int = 0  # names in the manifest that the inputs no longer have
    # Hashes of the names whose files have another size or time by now.
    changed: frozenset[bytes] = frozenset()


def predict_shards(config: Config) -> Counts:
    """Detect in the inputs of those shards of a run that are not done yet.

    A run in shards writes to a folder: a manifest with all the names, and one part file for each
    shard, which is a group of names. The manifest is written now, or compared with that of an
    earlier call, which this one continues.

    Returns:
        Counts of what this call did. `failed` includes the records with an error in parts that
        were done before, and files that have changed since their records were written.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was published stays.
        UsageError: The folder belongs to another run, or an input cannot be processed elsewhere.
        DetcliError: The run cannot go on.
    """
    for name in config.inputs.source:
        if name == STDIN or is_live(name):
            raise UsageError(
                f"{name} cannot be cut into shards: it can be read only once",
                "leave out the / at the end of --output",
            )
    store = open_store(str(config.outputs.output))
    with download_progress() as show:
        model = locate(config, show)
    with open_engine(WorkRequest(config, model, set_up)) as engine:
        opened = _open_run(store, config, engine.ready())
        plan = _plan_schedule(store, opened, config)
        counts = _work_shards(engine, plan.schedule, store, quiet=config.verbosity.quiet)
        counts.failed += plan.failed_before
        return counts


def _open_run(store: Store, config: Config, ready: Ready) -> OpenedRun:
    """List the inputs and write the run's manifest, or compare them with the existing manifest.

    Args:
        store: The folder of the run.
        config: The options of this call.
        ready: What the first worker reports after it has opened the model: its settings and the
            names of its classes.
    """
    inputs = config.inputs
    header: HeaderJson = {
        "detcli": __version__,
        "format": Format.JSONL,
        "shard_size": 0,  # `begin_or_join` fills it in
        "settings": ready.settings,
        "inputs": {
            "start_s": inputs.start,
            "end_s": inputs.end,
            "max_pixels": inputs.max_pixels,
            "strict": inputs.strict,
            "lenient": inputs.lenient,
        },
        "class_names": escape_surrogates([*ready.class_names]),
    }
    with Sources(inputs.source, inputs, config.outputs.written) as sources:
        entries = None  # without inputs, the names come from the manifest
        if inputs.source or inputs.files_from is not None:
            entries = sources.entries()
        return begin_or_join(
            store,
            header,
            entries,
            config.shards.shard_size,
            implied=ready.implied,
            extend=config.shards.extend,
        )


@frozen
class _Plan:
    """What one call of predict does in a sharded run."""

    schedule: Schedule
    # Failed inputs in parts that are done, and files that have changed since their records were
    # written; without those that this call processes again.
    failed_before: int


def _plan_schedule(store: Store, opened: OpenedRun, config: Config) -> _Plan:
    """Choose the shards that this call processes, and print what is done already.

    These are the shards selected by `--shards` that have no part file yet. With `--retry-failed`,
    the shards whose part has records with an error are added; only their failed names are processed
    again.
    """
    manifest = opened.manifest
    selection = config.shards.shards or ShardSelection()
    selected = range(selection.first - 1, len(manifest), selection.step)
    # Only shards that are done are keys; a shard without failures has an empty counter.
    failures_by_shard = count_failures(store, manifest, selected)
    retried: dict[int, Shard] = {}
    if config.shards.retry_failed:
        retried = _shards_to_retry(store, manifest, failures_by_shard)

    shards_to_work = []
    for number in selected:
        is_done = number in failures_by_shard
        if not is_done or number in retried:
            shards_to_work.append(number)
    schedule = Schedule(store, manifest, shards_to_work, retried)

    remaining_failures: Counter[str] = Counter()
    for number, failures in failures_by_shard.items():
        if number not in retried:
            remaining_failures += failures
    changed_hashes = _changed_without_retried(opened.changed, retried.values())

    if not config.verbosity.quiet:
        _report_inputs_and_progress(
            store,
            opened,
            done_count=len(failures_by_shard),
            selected_count=len(selected),
        )
    if remaining_failures:
        print_line(f"{describe_failures(remaining_failures)}; in parts done already")
        print_line("add --retry-failed to process them again", prefix="  ", label="hint:")
    if changed_hashes:
        _report_changed_files(manifest, changed_hashes)
    failed_before = remaining_failures.total() + len(changed_hashes)
    return _Plan(schedule, failed_before)


def _shards_to_retry(
    store: Store, manifest: Manifest, failures_by_shard: Mapping[int, Counter[str]]
) -> dict[int, Shard]:
    """Collect the shards with failures, by number; each has only the names that failed.

    Args:
        store: The folder of the run.
        manifest: The manifest of the run.
        failures_by_shard: For each shard that is done, its number of errors of each kind.
    """
    merge = Merge(store, manifest)
    shards = {}
    for number, failures in failures_by_shard.items():
        if failures:
            shards[number] = merge.retry_shard(number)
    return shards


def _changed_without_retried(
    changed_hashes: frozenset[bytes], retried_shards: Iterable[Shard]
) -> set[bytes]:
    """Return the hashes of the names whose files have changed, without those that are retried.

    A name that is retried is processed as its file is now, so its change does no harm.
    """
    remaining_hashes = set(changed_hashes)
    for shard in retried_shards:
        for name in shard.names:
            remaining_hashes.discard(hash_of(name))
    return remaining_hashes


def _report_changed_files(manifest: Manifest, changed_hashes: set[bytes]) -> None:
    """Print which input files have changed since the manifest was written.

    Args:
        manifest: The manifest of the run.
        changed_hashes: The hashes of the names of these files; at least one.
    """
    count = len(changed_hashes)
    files = f"{count} files have changed since they were listed"
    if count == 1:
        files = "1 file has changed since it was listed"
    # A generator, as there may be millions of names, and only a few examples are shown.
    names = (name for name in manifest.last_names() if hash_of(name) in changed_hashes)
    print_line(f"{files}: {shortened(names, count)}")
    print_line(
        "add --extend to process them as they are now, in further shards",
        prefix="  ",
        label="hint:",
    )


def begin_or_join(
    store: Store,
    header: HeaderJson,
    entries: Iterable[SourceEntry] | None,
    shard_size: int | None = None,
    *,
    implied: Container[str] = (),
    extend: bool = False,
) -> OpenedRun:
    """Write the manifest of a run in shards, or check that the existing one fits the inputs.

    The manifest is the file with the settings of the run and the names of all its inputs. If it
    exists, an earlier call or another process has begun the run, and this call joins in.

    Args:
        store: The folder with the manifest and the parts.
        header: The settings of the run; its shard size is filled in here.
        entries: The inputs as the sources list them; None to take the manifest's names.
        shard_size: Names in a shard; None for the manifest's, or what suits the number of names.
        implied: Names of settings that follow from other settings, which are not compared.
        extend: Whether names that the manifest lacks become further shards.

    Raises:
        UsageError: The manifest was made with other settings or names; or there are parts without
            a manifest; or there are neither inputs nor a manifest.
        StoreError: The store cannot be read.
        OutputError: The manifest cannot be written.
    """
    with Names(entries or (), stamped=extend) as names:
        is_new_run = False
        if not store.exists(FIRST_MANIFEST):
            _require_no_parts(store)
            if entries is None:
                raise UsageError(
                    f"no inputs given, and {store} has no {FIRST_MANIFEST} to continue from",
                    "name images or videos, or use --files-from",
                )
            size = shard_size or _default_shard_size(len(names))
            is_new_run = publish(store, FIRST_MANIFEST, {**header, "shard_size": size}, names)

        manifest = Manifest(store)
        size = shard_size or manifest.header["shard_size"]
        compared_fields: Fields = {**header, "shard_size": size}
        # Manifests of earlier versions have no names of classes, which the model decides anyway.
        compared_fields.pop("class_names", None)
        manifest.require_same(implied, **compared_fields)

        if entries is None or is_new_run:
            return OpenedRun(manifest, added=len(names), repeated=names.repeated)
        if extend:
            return _extend_manifest(store, manifest, names)
        return _compare_with_manifest(store, manifest, names)


def _require_no_parts(store: Store) -> None:
    """Refuse a folder that has files of a run in shards, but not the first manifest of the run.

    Such files are parts, which hold the records, and the manifests that --extend adds.

    Raises:
        UsageError: The folder has such a file.
    """
    files_of_run = []
    for name in store.names():
        if MANIFEST_NAME.fullmatch(name) or PART_NAME.fullmatch(name):
            files_of_run.append(name)
    if files_of_run:
        example = min(files_of_run)  # the same in each call, as a store lists names in any order
        raise UsageError(
            f"{store} has {example}, but no {FIRST_MANIFEST}",
            "restore it, or write to another folder; a run of an earlier version can be "
            "merged, but not continued",
        )


def _default_shard_size(name_count: int) -> int:
    """Choose how many inputs each shard gets, from the number of inputs in the run."""
    size = math.ceil(name_count / SHARDS_OF_SHORT_RUN)
    return max(MIN_SHARD_SIZE, min(MAX_SHARD_SIZE, size))


def _extend_manifest(store: Store, manifest: Manifest, names: Names) -> OpenedRun:
    """Add the inputs that the manifest lacks to the run, as shards of a further manifest.

    Names are compared by their hashes. Here a hash also covers the stamp of the name's file, which
    is its size and time of change, so a file that has changed counts as new.

    Args:
        store: The folder of the run.
        manifest: Its manifest so far.
        names: The names of the inputs.
    """
    added_count = 0
    manifest_hashes = manifest.hashes(names.hash_of)
    new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)
    while len(new_hashes):
        new_names = names.only(new_hashes, names)
        is_published = publish(store, manifest.next_file, manifest.header, new_names, len(manifest))
        if is_published:
            added_count = len(new_hashes)
        # Otherwise another process, which also extends the run, was first. Either way the manifest
        # is read again, and compared until it lacks nothing.
        manifest = Manifest(store)
        manifest_hashes = manifest.hashes(names.hash_of)
        new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)

    gone_hashes = _hashes_in_first_only(manifest_hashes, names.hashes)
    if len(gone_hashes):
        # A changed file is among these with its earlier stamp, though its name is not gone. So the
        # names are compared again, now by hashes that do not cover stamps.
        input_hashes = np.fromiter((hash_of(name) for name in names), HASH)
        gone_hashes = np.setdiff1d(manifest.hashes(hash_of), input_hashes)
    return OpenedRun(manifest, added=added_count, repeated=names.repeated, gone=len(gone_hashes))


def _hashes_in_first_only(first: Hashes, second: Hashes) -> Hashes:
    """Return the hashes of the first array that the second lacks; each array has no duplicates."""
    return np.setdiff1d(first, second, assume_unique=True)


def _compare_with_manifest(store: Store, manifest: Manifest, names: Names) -> OpenedRun:
    """Continue a run whose manifest has the same names as the inputs.

    Raises:
        UsageError: The inputs have other names than the manifest.
    """
    manifest_hashes = manifest.hashes(names.hash_of)
    new_hashes = _hashes_in_first_only(names.hashes, manifest_hashes)
    gone_hashes = _hashes_in_first_only(manifest_hashes, names.hashes)

    differences = []
    if len(new_hashes):
        examples = shortened(names.only(new_hashes, names), len(new_hashes))
        differences.append(f"{len(new_hashes)} new: {examples}")
    if len(gone_hashes):
        examples = shortened(names.only(gone_hashes, manifest.all_names()), len(gone_hashes))
        differences.append(f"{len(gone_hashes)} gone: {examples}")
    if differences:
        raise UsageError(
            f"{store} was begun with other inputs: {'; '.join(differences)}",
            "name the same inputs, or add the new ones as further shards with --extend",
        )
    changed_hashes = _find_changed_files(store, manifest, names)
    return OpenedRun(manifest, repeated=names.repeated, changed=changed_hashes)


def _find_changed_files(
    store: Store, manifest: Manifest, names: Iterable[Name]
) -> frozenset[bytes]:
    """Find the inputs whose files have changed since the run detected in them.

    A name may have a stamp, which is the size and the time of change of its file. The manifest has
    the stamp that a file had when the manifest was written. A name that has no stamp now or had
    none then, such as an address, cannot be compared, and counts as unchanged.

    Returns:
        Hashes of the names, without their stamps.
    """
    hash_with_stamp = partial(hash_of, stamped=True)
    manifest_hashes = manifest.hashes(hash_with_stamp)
    differing_names: list[Name] = []
    for name in names:
        if stamp_in(name) is None:
            continue
        # The manifest's hash of a name covers no stamp if the name had none then.
        had_no_stamp = contains(manifest_hashes, hash_of(name))
        is_unchanged = had_no_stamp or contains(manifest_hashes, hash_with_stamp(name))
        if not is_unchanged:
            differing_names.append(name)
    if not differing_names:
        return frozenset()

    # If --retry-failed has processed a name again, the stamp that its file had then counts instead.
    retry_stamps = Merge(store, manifest).stamps_of_retried_inputs()
    changed_hashes = set()
    for name in differing_names:
        name_hash = hash_of(name)
        if name_hash in retry_stamps:
            retry_stamp = retry_stamps[name_hash]
            if retry_stamp is None or retry_stamp == stamp_in(name):
                continue
        changed_hashes.add(name_hash)
    return frozenset(changed_hashes)


def set_up(config: Config) -> None:
    """Prepare the process of a worker: standard error, log level, and the libraries it loads."""
    protect_stderr()
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    set_up_process()


def _report_inputs_and_progress(
    store: Store, opened: OpenedRun, *, done_count: int, selected_count: int
) -> None:
    """Print how the inputs differ from the manifest, and how many shards are done already.

    Args:
        store: The folder of the run.
        opened: The run. Names that this call has added to its manifest are "listed".
        done_count: How many of the selected shards have a part file.
        selected_count: How many shards --shards selects.
    """
    if opened.added:
        total_shards = pluralize(len(opened.manifest), "shard")
        print_line(f"{store}: listed {pluralize(opened.added, 'input')}, {total_shards} in all")
        # Newcomers type the / because they expect a folder of annotated images.
        hint = "a / at the end of --output begins a run in shards, of records only"
        print_line(
            f"{hint}; annotated images go to a folder with --save", prefix="  ", label="hint:"
        )
    if opened.repeated:
        print_line(
            f"{pluralize(opened.repeated, 'name')} given again: each input is processed once"
        )
    if opened.gone:
        names = pluralize(opened.gone, "name")
        print_line(f"{names} of the manifest not among the inputs: they stay in it")
    if done_count:
        selected_shards = pluralize(selected_count, "shard")
        print_line(f"{store}: {done_count} of {selected_shards} done already")


class _WorkingNote:
    """A small file in the run's folder that lists the shards this process is working on now.

    `detcli status` reads it. A process that is killed leaves its note behind; a note that was not
    written anew for MAX_NOTE_AGE_S counts as left behind.
    """

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._file_name = f"{NOTE}{os.urandom(8).hex()}.json"
        self._written_shards: list[int] = []
        self._written_s = 0.0  # on the monotonic clock; 0 if never

    def renew(self) -> None:
        """Write the list of shards anew if it has changed or the file is getting old."""
        shards = self._schedule.held
        interval_s = CHANGE_S
        if shards == self._written_shards:
            interval_s = RENEW_S
        if time.monotonic() - self._written_s >= interval_s:
            self._store.write_note(self._file_name, json.dumps(shards).encode())
            self._written_shards = shards
            self._written_s = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if it was written."""
        if self._written_s:
            self._store.remove_note(self._file_name)


@contextlib.contextmanager
def _working_note(store: Store, schedule: Schedule) -> Iterator[_WorkingNote]:
    """Keep a note in the run's folder of the shards that this process is working on.

    A note is a small file. Notes of other processes that were killed are removed: at the beginning
    those that are too old, and after all work also those whose shards are done.
    """
    for file_name, written_s in store.times(NOTE).items():
        if _is_left_behind(written_s):
            store.remove_note(file_name)
    note = _WorkingNote(store, schedule)
    try:
        yield note
    finally:
        note.remove()
    _remove_finished_notes(store, schedule.manifest)


def _is_left_behind(written_s: float) -> bool:
    """Tell from the time when a note was written whether its process is gone.

    A process that is alive writes its note anew more often.
    """
    return time.time() - written_s > MAX_NOTE_AGE_S


def _remove_finished_notes(store: Store, manifest: Manifest) -> None:
    """Remove the notes of other processes that are left behind, or whose shards are all done.

    A process whose shards are done was probably killed: if it were alive, it would be processing
    other shards by now, or be about to remove the note itself.
    """
    # The run is complete, so notes that cannot be read do no harm and may stay.
    with contextlib.suppress(StoreError):
        done_shards = set(manifest.last_attempts())
        for file_name, written_s in store.times(NOTE).items():
            shards = noted_shards(store, file_name)
            is_done = bool(shards) and shards.issubset(done_shards)
            if is_done or _is_left_behind(written_s):
                store.remove_note(file_name)


class _RunReport:
    """Counts what the workers of a run in shards have done, and prints it."""

    def __init__(self, engine: Workers, schedule: Schedule, store: Store) -> None:
        self._engine = engine
        self._schedule = schedule
        self._store = store
        self._start_s = time.perf_counter()
        self.counts = Counts()
        self.record_count = 0  # also those of shards that are not finished
        self.part_count = 0

    @property
    def shard_count(self) -> int:
        """How many shards this process has to work, without those that other processes took."""
        return self._schedule.total - self._schedule.elsewhere

    def status(self) -> str:
        """Return the inputs, failures, nodes, deaths of workers and rate, for a progress bar."""
        facts = ["shards", pluralize(self.record_count, "input")]
        if self.counts.failed:
            facts.append(f"{self.counts.failed} failed")
        if self._engine.nodes > 1:
            facts.append(f"{self._engine.nodes} nodes")
        if self._schedule.deaths:
            facts.append(f"{pluralize(self._schedule.deaths, 'worker')} died")
        facts.append(f"{self.record_count / self._elapsed_s():.1f}/s")
        return ", ".join(facts)

    def print_summary(self, *, interrupted: bool, quiet: bool) -> None:
        """Print what was done and how many shards remain.

        With --quiet, only the counts of errors and warnings that were left out are printed.
        """
        print_message_counts(self.counts)
        if quiet:
            return
        for line in self.counts.summary(self._elapsed_s()):
            print_line(line)
        print_line(f"wrote {pluralize(self.part_count, 'part')} to {self._store}")
        if self._schedule.deaths:
            print_line(f"replaced {pluralize(self._schedule.deaths, 'worker')} that died")
        remaining_count = self.shard_count - self.part_count
        if interrupted:
            print_line(f"interrupted with {pluralize(remaining_count, 'shard')} left")
        if remaining_count:
            print_line("the same command goes on from here", prefix="  ", label="hint:")

    def _elapsed_s(self) -> float:
        return time.perf_counter() - self._start_s


def _work_shards(engine: Workers, schedule: Schedule, store: Store, *, quiet: bool) -> Counts:
    """Let the workers detect in the scheduled shards, and show progress and, at the end, a summary.

    Meanwhile a note in the run's folder says which shards this process is working on, for
    `detcli status`. It is renewed at each event, as the shards change and an old note is ignored.

    Raises:
        KeyboardInterrupt: The run was interrupted; the summary says how many shards are left.
    """
    report = _RunReport(engine, schedule, store)
    interrupted = False
    try:
        with (
            _working_note(store, schedule) as note,
            progress(
                lambda: report.shard_count, enabled=not quiet, status=report.status
            ) as advance,
        ):
            for event in engine.run(schedule):
                note.renew()
                if isinstance(event, Progress):
                    report.record_count += event.records
                else:  # a shard is finished, and the event has its counts
                    report.part_count += 1
                    report.counts.include(event)
                    print_new_messages(report.counts, quiet=quiet)
                    advance()
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        report.print_summary(interrupted=interrupted, quiet=quiet)
    return report.counts
