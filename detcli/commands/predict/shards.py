"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
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
from detcli.core import frozen
from detcli.core.errors import StoreError, UsageError
from detcli.core.text import pluralize
from detcli.run import locate, set_up_process
from detcli.run.counts import Counts
from detcli.run.shards import open_engine
from detcli.run.shards.manifest import (
    FIRST,
    NAME,
    PART,
    HeaderJson,
    Manifest,
    Shard,
    publish,
    shortened,
)
from detcli.run.shards.parts import Merge, describe_failures, survey
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import NOTE, RENEW_S, Store, noted_shards, open_store
from detcli.run.shards.work import Progress, WorkRequest
from detcli.run.shards.workers import Workers
from detcli.source.listing import HASH, Hashes, Name, Names, contains, hash_of, stamp_in
from detcli.source.loading import STDIN
from detcli.source.names import is_live
from detcli.source.sources import SourceEntry, Sources

MAX_SHARD_SIZE = 1000
"""The most names in a shard, unless --shard-size says another number."""

MIN_SHARD_SIZE = 16
"""The fewest."""

SHARDS_OF_SHORT_RUN = 64
"""The number of shards that a run is cut into, if their sizes are between these."""

CHANGE_S = 1.0
"""How often at most a run writes down that it works other shards now."""


@frozen
class OpenedRun:
    """A run in shards that workers can now work."""

    manifest: Manifest
    added: int = 0  # names that this call added to the manifest
    repeated: int = 0  # names that the inputs repeat; each counts once
    gone: int = 0  # names in the manifest that the inputs no longer have
    # Hashes of the names whose files have another size or time by now.
    changed: frozenset[bytes] = frozenset()


def predict_shards(config: Config) -> Counts:
    """Work what is left of a run in shards.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was published stays.
        UsageError: The folder belongs to another run, or an input cannot be worked elsewhere.
        DetcliError: The run cannot go on.
    """
    inputs, shards = config.inputs, config.shards
    for name in inputs.source:
        if name == STDIN or is_live(name):
            raise UsageError(
                f"{name} cannot be cut into shards: it can be read only once",
                "leave out the / at the end of --output",
            )
    store = open_store(str(config.outputs.output))
    with download_progress() as show:
        model = locate(config, show)
    with open_engine(WorkRequest(config, model, set_up)) as engine:
        ready = engine.ready()
        header: HeaderJson = {
            "detcli": __version__,
            "format": Format.JSONL,
            "shard_size": 0,
            "settings": ready.settings,
            "inputs": {
                "start_s": inputs.start,
                "end_s": inputs.end,
                "max_pixels": inputs.max_pixels,
                "strict": inputs.strict,
                "lenient": inputs.lenient,
            },
        }
        with Sources(inputs.source, inputs, config.outputs.written) as sources:
            entries = None
            if inputs.source or inputs.files_from is not None:
                entries = sources.entries()
            opened = begin(
                store,
                header,
                entries,
                shards.shard_size,
                implied=ready.implied,
                extend=shards.extend,
            )
        schedule, failed = _plan(store, opened, config)
        counts = _run(engine, schedule, store, quiet=config.verbosity.quiet)
        counts.failed += failed
        return counts


def _plan(store: Store, opened: OpenedRun, config: Config) -> tuple[Schedule, int]:
    """Plan what is left to do, and count the records left that have an error or are outdated."""
    manifest = opened.manifest
    selection = config.shards.shards or ShardSelection()
    selected = range(selection.first - 1, len(manifest), selection.step)
    failures_by_shard = survey(store, manifest, selected)  # of those that are done
    retried: dict[int, Shard] = {}
    if config.shards.retry_failed:
        merge = Merge(store, manifest)
        for number, failures in failures_by_shard.items():
            if failures:
                retried[number] = merge.failing(number)
    remaining = [
        number for number in selected if number not in failures_by_shard or number in retried
    ]
    if not config.verbosity.quiet:
        _report_begin(store, opened, len(failures_by_shard), len(selected))
    failed: Counter[str] = Counter()
    for number, failures in failures_by_shard.items():
        if number not in retried:
            failed += failures
    if failed:
        print_line(f"{describe_failures(failed)}; in parts done already")
        print_line("  hint: work them again with --retry-failed", prefix="")
    changed = _report_changed(opened, retried.values())
    return Schedule(store, manifest, remaining, retried), failed.total() + changed


def _report_changed(opened: OpenedRun, retried: Iterable[Shard]) -> int:
    """Report which files have changed, but for those that are worked now; returns how many."""
    changed = set(opened.changed)
    for shard in retried:
        changed.difference_update(hash_of(name) for name in shard.names)
    if not changed:
        return 0
    names = (name for name in opened.manifest.last_names() if hash_of(name) in changed)
    if len(changed) == 1:
        files = "1 file has"
    else:
        files = f"{len(changed)} files have"
    print_line(f"{files} changed since written down: {shortened(names, len(changed))}")
    print_line("  hint: work them as they are now, in further shards, with --extend", prefix="")
    return len(changed)


def begin(
    store: Store,
    header: HeaderJson,
    entries: Iterable[SourceEntry] | None,
    shard_size: int | None = None,
    *,
    implied: Container[str] = (),
    extend: bool = False,
) -> OpenedRun:
    """Write the manifest, or compare the existing one with what would be written now.

    Args:
        store: Where manifest and parts are.
        header: The settings; its shard size is set here.
        entries: What the sources stand for; None to take the manifest's names.
        shard_size: Names in a shard; None for the manifest's, or what suits the number of names.
        implied: Settings that others decide, which are not compared.
        extend: Whether names that the manifest lacks become further shards.

    Raises:
        UsageError: The manifest was made with other settings or names; or there are parts without
            a manifest; or there are neither inputs nor a manifest.
        StoreError: The store cannot be read.
        OutputError: The manifest cannot be written.
    """
    with Names(entries or (), stamped=extend) as names:
        begun = False
        if not store.exists(FIRST):
            _require_no_parts(store)
            if entries is None:
                raise UsageError(
                    f"no inputs given, and {store} has no {FIRST} to go on with",
                    "name pictures or videos, or use --files-from",
                )
            size = shard_size or _default_shard_size(len(names))
            begun = publish(store, FIRST, {**header, "shard_size": size}, names)
        manifest = Manifest(store)
        size = shard_size or manifest.header["shard_size"]
        manifest.require_same(implied, **{**header, "shard_size": size})
        if entries is None or begun:
            return OpenedRun(manifest, len(names), names.repeated)
        return _go_on(store, manifest, names, extend=extend)


def _require_no_parts(store: Store) -> None:
    """Refuse a folder that has files of a run but no manifest."""
    files_of_run = []
    for name in store.names():
        if NAME.fullmatch(name) or PART.fullmatch(name):
            files_of_run.append(name)
    if files_of_run:
        raise UsageError(
            f"{store} has {min(files_of_run)}, but no {FIRST}",
            "restore it, or write to another folder; one of an earlier version can be "
            "merged, but not gone on with",
        )


def _default_shard_size(name_count: int) -> int:
    """Choose how many inputs each shard gets, from the number of inputs in the run."""
    size = math.ceil(name_count / SHARDS_OF_SHORT_RUN)
    return max(MIN_SHARD_SIZE, min(MAX_SHARD_SIZE, size))


def _go_on(store: Store, manifest: Manifest, names: Names, *, extend: bool) -> OpenedRun:
    """Compare the names with the manifest's, and add the new ones if `extend` says so."""
    added = 0
    while True:
        manifest_hashes = manifest.hashes(names.hash_of)
        new = np.setdiff1d(names.hashes, manifest_hashes, assume_unique=True)
        gone = np.setdiff1d(manifest_hashes, names.hashes, assume_unique=True)
        if not extend:
            _require_same_names(store, manifest, names, new, gone)
        if len(new) == 0:
            if extend and len(gone):  # with other stamps; perhaps the names are here
                input_hashes = np.fromiter((hash_of(name) for name in names), HASH)
                gone = np.setdiff1d(manifest.hashes(hash_of), input_hashes)
            changed: frozenset[bytes] = frozenset()
            if not extend:
                changed = _changed(store, manifest, names)
            return OpenedRun(manifest, added, names.repeated, len(gone), changed)
        added = len(new)
        added_names = names.only(new, names)
        if not publish(store, manifest.next_file, manifest.header, added_names, len(manifest)):
            added = 0  # another process has extended it meanwhile
        manifest = Manifest(store)


def _require_same_names(
    store: Store, manifest: Manifest, names: Names, new: Hashes, gone: Hashes
) -> None:
    """Refuse names that the manifest lacks, and a manifest with other names, by their hashes."""
    differences = []
    if len(new):
        examples = shortened(names.only(new, names), len(new))
        differences.append(f"{len(new)} new: {examples}")
    if len(gone):
        examples = shortened(names.only(gone, manifest.all_names()), len(gone))
        differences.append(f"{len(gone)} gone: {examples}")
    if differences:
        raise UsageError(
            f"{store} was begun with other names: {'; '.join(differences)}",
            "name the same inputs, or make new ones further shards with --extend",
        )


def _changed(store: Store, manifest: Manifest, names: Iterable[Name]) -> frozenset[bytes]:
    """Hashes of the names whose files have changed since their records were made.

    A name without a stamp, as of an address or of a file that is missing, here or in the manifest,
    has nothing to compare.
    """
    stamped = partial(hash_of, stamped=True)
    recorded = manifest.hashes(stamped)
    candidates: list[Name] = []
    for name in names:
        if stamp_in(name) is None or contains(recorded, hash_of(name)):
            continue
        if not contains(recorded, stamped(name)):
            candidates.append(name)
    if not candidates:
        return frozenset()
    retried = Merge(store, manifest).retried()
    changed = set()
    for name in candidates:
        name_hash = hash_of(name)
        if name_hash in retried and retried[name_hash] in {None, stamp_in(name)}:
            continue
        changed.add(name_hash)
    return frozenset(changed)


def set_up(config: Config) -> None:
    """Set up a worker's process."""
    protect_stderr()
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    set_up_process()


def _report_begin(store: Store, opened: OpenedRun, done: int, selected: int) -> None:
    """Report what there is to do, of the shards that this run has selected."""
    if opened.added:
        shards = pluralize(len(opened.manifest), "shard")
        print_line(f"{store}: {pluralize(opened.added, 'name')} written down, {shards} in all")
        hint = "a / at the end of --output begins a run in shards, of records only"
        print_line(f"  hint: {hint}; annotated pictures go to a folder with --save", prefix="")
    if opened.repeated:
        print_line(f"{pluralize(opened.repeated, 'name')} given again, and worked once")
    if opened.gone:
        names = pluralize(opened.gone, "name")
        print_line(f"{names} of the manifest not among the inputs: they stay in it")
    if done:
        print_line(f"{store}: {done} of {pluralize(selected, 'shard')} done already")


class _Note:
    """A file that says which shards a run is working, for `detcli status`."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._name = f"{NOTE}{os.urandom(8).hex()}.json"
        self._shards: list[int] = []  # as they were last written
        self._written_s = 0.0  # when that was; 0 for never

    def renew(self) -> None:
        """Write the shards that are being worked now, if it is time to."""
        shards = self._schedule.held
        interval_s = CHANGE_S
        if shards == self._shards:
            interval_s = RENEW_S
        if time.monotonic() - self._written_s >= interval_s:
            self._store.note(self._name, json.dumps(shards).encode())
            self._shards = shards
            self._written_s = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if it was written."""
        if self._written_s:
            self._store.note(self._name)


@contextlib.contextmanager
def _noting(store: Store, schedule: Schedule) -> Iterator[Callable[[], None]]:
    """Write down which shards are being worked when the function is called, if it is time to."""
    for other, time_s in store.times(NOTE).items():
        if time.time() - time_s > 3 * RENEW_S:  # of a run that was killed, or writes it again
            store.note(other)
    note = _Note(store, schedule)
    try:
        yield note.renew
    finally:
        note.remove()
    _remove_done_notes(store, schedule.manifest)


def _remove_done_notes(store: Store, manifest: Manifest) -> None:
    """Remove what killed runs wrote down: of shards that are all done by now, or long ago.

    A run that lives is at work on others, or about to remove its own.
    """
    with contextlib.suppress(StoreError):  # it is only tidied up
        done = manifest.parts().keys()
        for name, time_s in store.times(NOTE).items():
            shards = noted_shards(store, name)
            is_old = time.time() - time_s > 3 * RENEW_S
            if is_old or (shards and done >= shards):
                store.note(name)


def _run(engine: Workers, schedule: Schedule, store: Store, *, quiet: bool) -> Counts:
    """Work what is left, with progress meanwhile and a summary at the end."""
    counts = Counts()
    start_s = time.perf_counter()
    records = 0
    parts = 0
    interrupted = False

    def status() -> str:
        facts = ["shards", pluralize(records, "input")]
        if counts.failed:
            facts.append(f"{counts.failed} failed")
        if engine.nodes > 1:
            facts.append(f"{engine.nodes} nodes")
        if schedule.deaths:
            facts.append(f"{pluralize(schedule.deaths, 'worker')} died")
        facts.append(f"{records / seconds():.1f}/s")
        return ", ".join(facts)

    def seconds() -> float:
        return time.perf_counter() - start_s

    try:
        with (
            _noting(store, schedule) as renew,
            progress(
                lambda: schedule.total - schedule.elsewhere, enabled=not quiet, status=status
            ) as advance,
        ):
            for event in engine.run(schedule):
                renew()
                if isinstance(event, Progress):
                    records += event.records
                    continue
                parts += 1
                counts.include(event)
                print_new_messages(counts, quiet=quiet)
                advance()
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        left = schedule.total - schedule.elsewhere - parts
        print_message_counts(counts)
        lines = list(counts.summary(seconds()))
        lines.append(f"wrote {pluralize(parts, 'part')} to {store}")
        if schedule.deaths:
            lines.append(f"replaced {pluralize(schedule.deaths, 'worker')} that died")
        if interrupted:
            lines.append(f"interrupted with {pluralize(left, 'shard')} left")
        if not quiet:
            for line in lines:
                print_line(line)
            if left:
                print_line("  hint: the same command goes on from here", prefix="")
    return counts
