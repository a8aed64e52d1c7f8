"""A run in shards: `detcli predict SOURCE... -o FOLDER/`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from detcli import __version__
from detcli.cli.messages import fetching, progress, protect_stderr, say, set_verbosity, tell
from detcli.core.config import Config
from detcli.core.errors import UsageError
from detcli.core.objects import is_object
from detcli.core.text import count
from detcli.core.values import Format, Share
from detcli.run import locate, set_up_process, source_options
from detcli.run.counts import Counts
from detcli.run.shards import open_engine
from detcli.run.shards.manifest import HeaderJson, Manifest, OpenedRun, begin, source_of
from detcli.run.shards.schedule import Schedule
from detcli.run.shards.store import Store, open_store
from detcli.run.shards.work import Progress, WorkRequest
from detcli.run.shards.workers import Workers
from detcli.source.loading import STDIN
from detcli.source.names import identity, is_address, is_live
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
    inputs, shards, quiet = config.inputs, config.shards, config.messages.quiet
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
        header = HeaderJson(
            detcli=__version__,
            format=config.writing.format or Format.JSONL,
            shard_size=0,
            settings=ready.settings,
            inputs={
                "start_s": inputs.start,
                "end_s": inputs.end,
                "max_pixels": inputs.max_pixels,
                "strict": inputs.strict,
            },
        )
        with Sources(inputs.source, source_options(config)) as sources:
            named = inputs.source or inputs.files_from is not None
            opened = begin(
                store,
                header,
                sources.entries() if named else None,
                shard_size=shards.shard_size,
                extend=shards.extend,
            )
        if not named:
            _require_here(store, opened.manifest)
        there = opened.manifest.parts()
        share = shards.shards or Share()
        mine = range(share.first - 1, len(opened.manifest), share.step)
        schedule = Schedule(store, opened.manifest, (shard for shard in mine if shard not in there))
        if not quiet:
            _say_begin(store, opened, schedule.total, len(mine))
        shown = _Progress(schedule, store, engine, quiet=quiet)
        with shown.listening() as listen:
            engine.run(schedule, listen)
    return shown.counts


def _require_here(store: Store, manifest: Manifest) -> None:
    """Refuse to go on in another folder than that in which the run began.

    Relative names stand for nothing there, and each would get an error for its record, for good.
    """
    names = manifest.shard(0).names if len(manifest) else ()
    if names and all(isinstance(name, str) and _is_lost(name) for name in names):
        raise UsageError(
            f"{source_of(names[0])}, like all names of the first shard of {store}, is not here",
            "go on in the folder where the run began; a run with absolute names goes on anywhere",
        )


def _is_lost(name: str) -> bool:
    """Whether a name is the relative one of a file that does not exist."""
    if is_address(name) or is_object(name) or Path(name).is_absolute():
        return False
    return identity(name) is None


def set_up(config: Config) -> None:
    """Set up a worker's process."""
    protect_stderr()
    set_verbosity(quiet=config.messages.quiet, verbose=config.messages.verbose)
    set_up_process()


def _say_begin(store: Store, opened: OpenedRun, left: int, mine: int) -> None:
    """Say what there is to do."""
    if opened.added:
        shards = count(len(opened.manifest), "shard")
        say(f"{store}: {count(opened.added, 'name')} written down, {shards} in all")
    if opened.repeated:
        say(f"{count(opened.repeated, 'name')} given again, and worked once")
    if opened.gone:
        say(f"{count(opened.gone, 'name')} of the manifest not among the inputs: they stay in it")
    if left < mine:
        say(f"{store}: {mine - left} of {count(mine, 'shard')} done already")


class _Progress:
    """What a run shows while it goes on, and says at its end."""

    def __init__(self, schedule: Schedule, store: Store, workers: Workers, *, quiet: bool) -> None:
        self.counts = Counts()
        self._workers = workers
        self._schedule, self._store, self._quiet = schedule, store, quiet
        self._start_s = time.perf_counter()
        self._records = self._shards = 0

    @contextmanager
    def listening(self) -> Iterator[Callable[[Progress | Counts], None]]:
        """Show progress while the block runs, and sum up; yields what takes workers' reports."""
        interrupted = False
        schedule = self._schedule
        try:
            with progress(
                lambda: schedule.total - schedule.elsewhere,
                wanted=not self._quiet,
                status=self._status,
            ) as advance:

                def listen(event: Progress | Counts) -> None:
                    if isinstance(event, Progress):
                        self._records += event.records
                        return
                    self._shards += 1
                    self.counts.include(event)
                    tell(self.counts.messages, quiet=self._quiet)
                    advance()

                yield listen
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            if not self._quiet:
                self._summarise(interrupted=interrupted)

    def _status(self) -> str:
        parts = [f"shards, {count(self._records, 'input')}"]
        if self.counts.failed:
            parts.append(f"{self.counts.failed} failed")
        if self._workers.nodes > 1:
            parts.append(f"{self._workers.nodes} nodes")
        if self._schedule.deaths:
            parts.append(f"{count(self._schedule.deaths, 'worker')} died")
        rate = self._records / (time.perf_counter() - self._start_s)
        return ", ".join([*parts, f"{rate:.1f}/s"])

    def _summarise(self, *, interrupted: bool) -> None:
        for line in self.counts.summary(time.perf_counter() - self._start_s):
            say(line)
        say(f"wrote {count(self._shards, 'part')} to {self._store}")
        if self._schedule.deaths:
            say(f"replaced {count(self._schedule.deaths, 'worker')} that died")
        left = self._schedule.total - self._schedule.elsewhere - self._shards
        if interrupted:
            say(f"interrupted with {count(left, 'shard')} left")
        if left:
            say("  hint: the same command goes on from here", prefix="")
