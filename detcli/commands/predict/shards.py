"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from detcli import __version__
from detcli.cli.messages import fetching, progress, protect_stderr, say, set_verbosity, tell
from detcli.core.config import Config
from detcli.core.errors import UsageError
from detcli.core.text import count
from detcli.core.values import Format, Share
from detcli.run import locate, set_up_process
from detcli.run.counts import Counts
from detcli.run.pipeline import MAX_LOADERS
from detcli.run.shards import open_engine
from detcli.run.shards.manifest import HeaderJson, OpenedRun, begin
from detcli.run.shards.parts import Merge, failures, shown
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import Store, open_store
from detcli.run.shards.work import Progress, WorkRequest
from detcli.run.shards.workers import Workers
from detcli.source.loading import STDIN
from detcli.source.names import is_live
from detcli.source.sources import Sources

SET_UP = "detcli.commands.predict.shards:set_up"
"""What sets up a worker's process, by its name."""


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
    store = open_store(str(config.writing.output))
    with fetching() as show:
        model = locate(config, show)
    with open_engine(WorkRequest(config, model, SET_UP)) as engine:
        ready = engine.ready()
        header: HeaderJson = {
            "detcli": __version__,
            "format": config.writing.format or Format.JSONL,
            "shard_size": 0,
            "settings": ready.settings,
            "inputs": {
                "start_s": inputs.start,
                "end_s": inputs.end,
                "max_pixels": inputs.max_pixels,
                "strict": inputs.strict,
            },
        }
        with Sources(inputs.source, inputs, config.writing.written) as sources:
            named = inputs.source or inputs.files_from is not None
            entries = sources.entries() if named else None
            opened = begin(store, header, entries, shards.shard_size, extend=shards.extend)
        manifest, there = opened.manifest, opened.manifest.parts()
        share = shards.shards or Share()
        mine = range(share.first - 1, len(manifest), share.step)
        done = [shard for shard in mine if shard in there]
        parts = (manifest.part(shard, there[shard]) for shard in done)
        with ThreadPoolExecutor(MAX_LOADERS) as pool:
            failed = dict(zip(done, pool.map(partial(failures, store), parts), strict=True))
        merge = Merge(store, manifest) if shards.retry_failed else None
        retried = {one: merge.failing(one) for one in done if merge is not None and failed[one]}
        schedule = Schedule(
            store, manifest, (one for one in mine if one not in there or one in retried), retried
        )
        earlier = sum((failed[one] for one in done if one not in retried), Counter())
        if not config.messages.quiet:
            _say_begin(store, opened, len(done), len(mine))
        if earlier:
            say(f"{shown(earlier)}; in parts done already")
            say("  hint: work them again with --retry-failed", prefix="")
        counts = _run(engine, schedule, store, quiet=config.messages.quiet)
        counts.failed += earlier.total()
        return counts


def set_up(config: Config) -> None:
    """Set up a worker's process."""
    protect_stderr()
    set_verbosity(quiet=config.messages.quiet, verbose=config.messages.verbose)
    set_up_process()


def _say_begin(store: Store, opened: OpenedRun, done: int, mine: int) -> None:
    """Say what there is to do."""
    if opened.added:
        shards = count(len(opened.manifest), "shard")
        say(f"{store}: {count(opened.added, 'name')} written down, {shards} in all")
        hint = "a / at the end of --output begins a run in shards, of records only"
        say(f"  hint: {hint}; annotated pictures go to a folder with --save", prefix="")
    if opened.repeated:
        say(f"{count(opened.repeated, 'name')} given again, and worked once")
    if opened.gone:
        say(f"{count(opened.gone, 'name')} of the manifest not among the inputs: they stay in it")
    if done:
        say(f"{store}: {done} of {count(mine, 'shard')} done already")


def _run(engine: Workers, schedule: Schedule, store: Store, *, quiet: bool) -> Counts:
    """Work what is left, with progress meanwhile and a summary at the end."""
    counts, start_s = Counts(), time.perf_counter()
    records = parts = 0
    interrupted = False

    def status() -> str:
        details = _details(engine, schedule, counts)
        return f"shards, {count(records, 'input')}{details}, {records / seconds():.1f}/s"

    def seconds() -> float:
        return time.perf_counter() - start_s

    try:
        with progress(
            lambda: schedule.total - schedule.elsewhere, wanted=not quiet, status=status
        ) as advance:
            for event in engine.run(schedule):
                if isinstance(event, Progress):
                    records += event.records
                    continue
                parts += 1
                counts.include(event)
                tell(counts.messages, quiet=quiet)
                advance()
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        left = schedule.total - schedule.elsewhere - parts
        lines = [*counts.summary(seconds())]
        lines.append(f"wrote {count(parts, 'part')} to {store}")
        if schedule.deaths:
            lines.append(f"replaced {count(schedule.deaths, 'worker')} that died")
        if interrupted:
            lines.append(f"interrupted with {count(left, 'shard')} left")
        for line in () if quiet else lines:
            say(line)
        if left and not quiet:
            say("  hint: the same command goes on from here", prefix="")
    return counts


def _details(engine: Workers, schedule: Schedule, counts: Counts) -> str:
    """What the progress bar tells besides, each after a comma."""
    return "".join(
        f", {text}"
        for number, least, text in (
            (counts.failed, 1, f"{counts.failed} failed"),
            (engine.nodes, 2, f"{engine.nodes} nodes"),
            (schedule.deaths, 1, f"{count(schedule.deaths, 'worker')} died"),
        )
        if number >= least
    )
