"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import contextlib
import json
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
from detcli.source.listing import HASH, Name, Names, contains, hash_of, stamp_in
from detcli.source.loading import STDIN
from detcli.source.names import is_live
from detcli.source.sources import SourceEntry, Sources

MAX_SHARD, MIN_SHARD, SHARDS = 1000, 16, 64
"""Most and fewest names in a shard, and the number of shards that a short run is cut into."""

CHANGE_S = 1.0
"""How often at most a run writes down that it works other shards now."""


@frozen
class OpenedRun:
    """A run in shards that workers can now work."""

    manifest: Manifest
    added: int = 0  # names that this call added to the manifest
    repeated: int = 0  # names that the inputs repeat; each counts once
    gone: int = 0  # names in the manifest that the inputs no longer have
    changed: frozenset[bytes] = (
        frozenset()
    )  # hashes of the names whose files have another size or time by now


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
            named = inputs.source or inputs.files_from is not None
            entries = sources.entries() if named else None
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
    """What is left to do, and how many records are left that have an error or are outdated."""
    manifest, selection = opened.manifest, config.shards.shards or ShardSelection()
    mine = range(selection.first - 1, len(manifest), selection.step)
    done = survey(store, manifest, mine)
    merge = Merge(store, manifest) if config.shards.retry_failed else None
    retried = {one: merge.failing(one) for one in done if merge is not None and done[one]}
    left = [one for one in mine if one not in done or one in retried]
    if not config.verbosity.quiet:
        _say_begin(store, opened, len(done), len(mine))
    failed: Counter[str] = Counter()
    for number, failures in done.items():
        if number not in retried:
            failed += failures
    if failed:
        print_line(f"{describe_failures(failed)}; in parts done already")
        print_line("  hint: work them again with --retry-failed", prefix="")
    changed = _say_changed(opened, retried.values())
    return Schedule(store, manifest, left, retried), failed.total() + changed


def _say_changed(opened: OpenedRun, retried: Iterable[Shard]) -> int:
    """Say which files have changed, but for those that are worked now; returns how many."""
    worked = {hash_of(name) for shard in retried for name in shard.names}
    changed = opened.changed - worked
    if not changed:
        return 0
    names = (name for name in opened.manifest.last_names() if hash_of(name) in changed)
    files = "1 file has" if len(changed) == 1 else f"{len(changed)} files have"
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
            ours = [one for one in store.names() if NAME.fullmatch(one) or PART.fullmatch(one)]
            if ours:
                raise UsageError(
                    f"{store} has {min(ours)}, but no {FIRST}",
                    "restore it, or write to another folder; one of an earlier version can be "
                    "merged, but not gone on with",
                )
            if entries is None:
                raise UsageError(
                    f"no inputs given, and {store} has no {FIRST} to go on with",
                    "name pictures or videos, or use --files-from",
                )
            size = shard_size or max(MIN_SHARD, min(MAX_SHARD, -(-len(names) // SHARDS)))
            begun = publish(store, FIRST, {**header, "shard_size": size}, names)
        manifest = Manifest(store)
        size = shard_size or manifest.header["shard_size"]
        manifest.require_same(implied, **{**header, "shard_size": size})
        if entries is None or begun:
            return OpenedRun(manifest, len(names), names.repeated)
        return _go_on(store, manifest, names, extend=extend)


def _go_on(store: Store, manifest: Manifest, names: Names, *, extend: bool) -> OpenedRun:
    """Compare the names with the manifest's, and add the new ones if `extend` says so."""
    added = 0
    while True:
        there = manifest.hashes(names.hash_of)
        new = np.setdiff1d(names.hashes, there, assume_unique=True)
        gone = np.setdiff1d(there, names.hashes, assume_unique=True)
        sides = (("new", new, names), ("gone", gone, manifest.all_names()))
        different = [
            f"{len(hashes)} {what}: {shortened(names.only(hashes, every), len(hashes))}"
            for what, hashes, every in sides
            if len(hashes) and not extend
        ]
        if different:
            raise UsageError(
                f"{store} was begun with other names: {'; '.join(different)}",
                "name the same inputs, or make new ones further shards with --extend",
            )
        if not len(new):
            if extend and len(gone):  # with other stamps; perhaps the names are here
                here = np.fromiter(map(hash_of, names), HASH)
                gone = np.setdiff1d(manifest.hashes(hash_of), here)
            changed = frozenset() if extend else _changed(store, manifest, names)
            return OpenedRun(manifest, added, names.repeated, len(gone), changed)
        added = len(new)
        added_names = names.only(new, names)
        if not publish(store, manifest.next_file, manifest.header, added_names, len(manifest)):
            added = 0  # another process has extended it meanwhile
        manifest = Manifest(store)


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


def _say_begin(store: Store, opened: OpenedRun, done: int, mine: int) -> None:
    """Say what there is to do."""
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
        print_line(f"{store}: {done} of {pluralize(mine, 'shard')} done already")


@contextlib.contextmanager
def _noting(store: Store, schedule: Schedule) -> Iterator[Callable[[], None]]:
    """Write down which shards are being worked when the function is called, if it is time to."""
    for other, time_s in store.times(NOTE).items():
        if time.time() - time_s > 3 * RENEW_S:  # of a run that was killed, or writes it again
            store.note(other)
    name, noted, last_s = f"{NOTE}{os.urandom(8).hex()}.json", list[int](), 0.0

    def renew() -> None:
        nonlocal noted, last_s
        held = schedule.held
        if time.monotonic() - last_s >= (RENEW_S if held == noted else CHANGE_S):
            store.note(name, json.dumps(held).encode())
            noted, last_s = held, time.monotonic()

    try:
        yield renew
    finally:
        if last_s:
            store.note(name)
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
    counts, start_s = Counts(), time.perf_counter()
    records = parts = 0
    interrupted = False

    def status() -> str:
        parts = [pluralize(records, "input")]
        parts += [f"{counts.failed} failed"] * (counts.failed > 0)
        parts += [f"{engine.nodes} nodes"] * (engine.nodes > 1)
        parts += [f"{pluralize(schedule.deaths, 'worker')} died"] * (schedule.deaths > 0)
        return f"shards, {', '.join(parts)}, {records / seconds():.1f}/s"

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
        lines = [*counts.summary(seconds())]
        lines.append(f"wrote {pluralize(parts, 'part')} to {store}")
        if schedule.deaths:
            lines.append(f"replaced {pluralize(schedule.deaths, 'worker')} that died")
        if interrupted:
            lines.append(f"interrupted with {pluralize(left, 'shard')} left")
        for line in () if quiet else lines:
            print_line(line)
        if left and not quiet:
            print_line("  hint: the same command goes on from here", prefix="")
    return counts
