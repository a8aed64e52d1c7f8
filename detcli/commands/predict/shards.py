"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping

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
from detcli.commands.predict.shards_begin import OpenedRun, begin_or_join
from detcli.commands.predict.shards_notes import working_note
from detcli.config.config import Config
from detcli.config.values import Format, ShardSelection
from detcli.core import frozen
from detcli.core.errors import UsageError
from detcli.core.text import escape_surrogates, pluralize
from detcli.run import locate, set_up_process
from detcli.run.counts import Counts
from detcli.run.shards import open_engine
from detcli.run.shards.manifest import HeaderJson, Manifest, Shard, shortened
from detcli.run.shards.parts import Merge, count_failures, describe_failures
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import Store, open_store
from detcli.run.shards.work import Progress, Ready, WorkRequest
from detcli.run.shards.workers import Workers
from detcli.source.listing import hash_of
from detcli.source.loading import STDIN
from detcli.source.names import is_live
from detcli.source.sources import Sources


def predict_shards(config: Config) -> Counts:
    """Process the shards of a run that are not done yet.

    A run in shards writes to a folder: a manifest with the names of all inputs, and a part file for
    each shard, which is a group of names. The manifest is written now, or compared with that of an
    earlier call, which this one continues. Workers, which are other processes, do the work.

    Returns:
        Counts of what this call did. `failed` includes the records with an error in parts that
        were done before, and files that have changed since their records were written.

    Raises:
        KeyboardInterrupt: The run was interrupted; what was published stays.
        UsageError: The folder belongs to a different run, or an input can be read only once, as
            standard input and live sources can.
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
        plan = _plan_run(store, opened, config)
        if not config.verbosity.quiet:
            _report_inputs_and_progress(
                store,
                opened,
                done_count=len(plan.failures_by_shard),
                selected_count=plan.selected_count,
            )
        _report_earlier_failures(opened.manifest, plan)
        schedule = plan.schedule
        failed_before = plan.failed_before
        del plan  # it has a counter for each shard that is done
        counts = _process_shards(engine, schedule, store, quiet=config.verbosity.quiet)
        counts.failed += failed_before
        return counts


def _open_run(store: Store, config: Config, ready: Ready) -> OpenedRun:
    """List the inputs and write the run's manifest, or compare them with the existing manifest.

    Without inputs, the run goes on with the names in the manifest.

    Args:
        store: The folder of the run.
        config: The options of this call.
        ready: What the first worker reports after it has opened the model: the names of its
            classes; the settings that detections depend on; and which of these are `implied`, as
            they follow from others.
    """
    inputs = config.inputs
    header: HeaderJson = {
        "detcli": __version__,
        "format": Format.JSONL,
        "shard_size": 0,  # filled in by `begin_or_join`, which counts the names
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
        entries = None
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
    selected_count: int  # the shards that --shards selects
    # The shards among them that are done, each with its errors by kind.
    failures_by_shard: dict[int, Counter[str]]
    # What this call does not process again: errors in parts that are done, and files that have
    # changed since their records were written, by the hashes of their names.
    remaining_failures: Counter[str]
    changed_hashes: set[bytes]

    @property
    def failed_before(self) -> int:
        """How many inputs have failed or changed before this call, and are not processed again."""
        return self.remaining_failures.total() + len(self.changed_hashes)


def _plan_run(store: Store, opened: OpenedRun, config: Config) -> _Plan:
    """Choose the shards that this call processes.

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

    shards_to_process = []
    for number in selected:
        is_done = number in failures_by_shard
        if not is_done or number in retried:
            shards_to_process.append(number)

    remaining_failures: Counter[str] = Counter()
    for number, failures in failures_by_shard.items():
        if number not in retried:
            remaining_failures += failures

    return _Plan(
        schedule=Schedule(store, manifest, shards_to_process, retried),
        selected_count=len(selected),
        failures_by_shard=failures_by_shard,
        remaining_failures=remaining_failures,
        changed_hashes=_changed_and_not_retried(opened.changed, retried.values()),
    )


def _report_earlier_failures(manifest: Manifest, plan: _Plan) -> None:
    """Print which inputs failed or changed before this call, and are not processed again."""
    if plan.remaining_failures:
        print_line(f"{describe_failures(plan.remaining_failures)}; in parts done already")
        print_line("add --retry-failed to process them again", prefix="  ", label="hint:")
    if plan.changed_hashes:
        _report_changed_files(manifest, plan.changed_hashes)


def _shards_to_retry(
    store: Store, manifest: Manifest, failures_by_shard: Mapping[int, Counter[str]]
) -> dict[int, Shard]:
    """Collect the shards with failures, by index; each has only the names that failed.

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


def _changed_and_not_retried(
    changed_hashes: frozenset[bytes], retried_shards: Iterable[Shard]
) -> set[bytes]:
    """Select the changed files that are not processed again, by the hashes of their names.

    A name that is retried is processed as its file is now, so its change does no harm.

    Args:
        changed_hashes: The hashes of the names of all files that have changed.
        retried_shards: The shards of this call that have the failed names of an earlier one.
    """
    hashes_not_retried = set(changed_hashes)
    for shard in retried_shards:
        for name in shard.names:
            hashes_not_retried.discard(hash_of(name))
    return hashes_not_retried


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


class _RunReport:
    """Counts what the workers of a run in shards have done, and prints it."""

    def __init__(self, engine: Workers, schedule: Schedule, store: Store) -> None:
        self._engine = engine
        self._schedule = schedule
        self._store = store
        self._start_s = time.perf_counter()
        self.counts = Counts()
        self.record_count = 0  # including those of unfinished shards
        self.part_count = 0

    @property
    def shard_count(self) -> int:
        """The number of shards for this process, without those that other processes took."""
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


def _process_shards(engine: Workers, schedule: Schedule, store: Store, *, quiet: bool) -> Counts:
    """Let the workers process the scheduled shards, and show progress and, at the end, a summary.

    Meanwhile a note in the run's folder says which shards this process is working on, for
    `detcli status`. It is renewed at each event, as the shards change and an old note is ignored.

    Raises:
        KeyboardInterrupt: The run was interrupted; the summary says how many shards are left.
    """
    report = _RunReport(engine, schedule, store)
    interrupted = False
    try:
        with (
            working_note(store, schedule) as note,
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
