"""Works shards: their names go through the pipeline, and their records become parts.

A worker is whatever runs `work`: a process of this machine, or of another one. Shards follow each
other without a pause: while the last pictures of one are detected on, those of the next are read.
"""

import itertools
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from detcli import __version__
from detcli.config.config import Config
from detcli.config.device import Device
from detcli.core import frozen
from detcli.core.errors import DetcliError, OutputError, PlaceError, StoreError
from detcli.data.record import Record, RecordJson, SettingsJson
from detcli.model.file import ModelFile
from detcli.run import open_run
from detcli.run.counts import Counts
from detcli.run.outputs import open_anonymizer
from detcli.run.shards.manifest import FIRST, Shard
from detcli.run.shards.parts import PartWriter
from detcli.run.shards.store import Store, open_store
from detcli.source.listing import to_entry
from detcli.source.loading import Item, of_input
from detcli.source.sources import Sources

PROGRESS_S = 0.5
"""Seconds between a worker's reports of its progress."""


@frozen
class WorkRequest:
    """The orders of a worker."""

    config: Config  # of the run; its device and number of detectors are those of one worker
    model: ModelFile
    set_up: Callable[[Config], object]  # sets up the process
    cores: int | None = None  # how many cores of the CPU are for the worker; None for all

    def placed(self, devices: Sequence[Device], workers: int, cores: int) -> "WorkRequest":
        """The same for one worker: its devices, detectors, cores; names come with the tasks."""
        inputs = replace(self.config.inputs, source=(), files_from=None, null=False)
        runtime = replace(self.config.runtime, device=tuple(devices), workers=workers)
        config = replace(self.config, inputs=inputs, runtime=runtime)
        return replace(self, config=config, cores=cores)


@frozen
class Task:
    """A shard, or a piece of one over which workers died."""

    shard: Shard
    # the name under which its records are published; None for a piece, whose records are sent back
    part: str | None
    start: int  # the first of its names that is worked
    stop: int  # the first that is not

    @classmethod
    def whole(cls, shard: Shard, part: str) -> "Task":
        return cls(shard, part, 0, len(shard.names))

    @property
    def size(self) -> int:
        return self.stop - self.start


@frozen
class Ready:
    """A worker has opened its detectors."""

    node: str  # the name of its machine
    settings: SettingsJson  # what detections depend on
    detcli: str = __version__
    implied: frozenset[str] = frozenset()  # settings that others decide


@frozen
class Progress:
    """The number of records a worker has made since its last report."""

    records: int


@frozen
class Done:
    """A worker has finished a task."""

    task: Task
    counts: Counts  # what became of its inputs
    lines: bytes = b""  # the records of a piece, as JSON Lines


@frozen
class Failed:
    """A worker has given up a task: what it needs cannot be reached, perhaps only for now."""

    task: Task
    error: DetcliError
    mostly: bool  # whether most of the names that it tried have failed


WorkReport = Ready | Progress | Done | Failed


def work(request: WorkRequest, tasks: Iterable[Task], report: Callable[[WorkReport], None]) -> None:
    """Work all tasks.

    They are taken one by one, on another thread, when the names of the one before are read.
    `report` is called from several threads, one at a time.
    """
    store = open_store(str(request.config.outputs.output))
    with open_run(request.config, request.model, cores=request.cores) as run:
        anonymize = open_anonymizer(request.config, run.detector.contract.names)
        watch = run.watcher()
        report(Ready(platform.node(), run.settings(), implied=run.implied_settings))
        with run.sources([]) as sources:
            worker = _Worker(store, sources, report)
            try:
                for detected in run.pipeline().run(worker.items(tasks)):
                    record = watch(detected)
                    if anonymize is not None:
                        record = anonymize(record)
                    worker.add(record)
            finally:
                worker.close()


@dataclass(eq=False, slots=True)
class _OpenTask:
    """A task that is being worked."""

    task: Task
    writer: PartWriter
    counts: Counts = field(default_factory=Counts)
    last: int | None = None  # index of its last record in the pipeline, once that is known
    row: int = 0  # of the last records, how many have an error that may be of their place
    outage: DetcliError | None = None  # why it is given up

    def add(self, record: Record) -> None:
        """Add a record, or give up: an error of the place is not a result."""
        self.counts.add(record)
        error = record.error
        self.row = self.row + 1 if error is not None and error.outage_at else 0
        if error is not None and 0 < error.outage_at <= self.row and self.outage is None:
            self.outage = PlaceError(f"{record.origin.source}: {error}", error.hint)
        if self.outage is None:
            self.writer.add(self._fields(record))

    def _fields(self, record: Record) -> RecordJson:
        """The record in the part.

        The manifest has the stamp of each file, but what --retry-failed works may have another.
        """
        fields = record.to_json()
        in_part = self.task.part is not None
        if self.task.shard.attempt and in_part and record.file_stamp is not None:
            fields["file_stamp"] = record.file_stamp
        return fields


class _Worker:
    """Opens the items of tasks, and sorts the records into the parts of their tasks."""

    def __init__(
        self,
        store: Store,
        sources: Sources,
        report: Callable[[WorkReport], None],
    ) -> None:
        self._store, self._sources, self._report = store, sources, report
        self._open: deque[_OpenTask] = deque()
        self._lock = Lock()
        self._records, self._said_s = 0, time.monotonic()

    def items(self, tasks: Iterable[Task]) -> Iterator[Item]:
        """The items of all tasks; runs on the pipeline's reader."""
        count = 0
        for task in tasks:
            now = _OpenTask(task, PartWriter(task.shard))
            self._open.append(now)
            names = task.shard.names[task.start : task.stop]
            opened = map(self._sources.open, map(to_entry, names))
            numbers = task.shard.numbers[task.start : task.stop]
            items = itertools.chain.from_iterable(map(of_input, opened, numbers))
            waiting = next(items, None)
            if waiting is None:  # videos without frames
                self._open.remove(now)
                self._finish(now)
                continue
            for item in items:
                yield waiting
                count += 1
                waiting = item
                if now.outage is not None:
                    break
            # Set before the last item is handed out, so that its record ends the task.
            now.last = count
            yield waiting
            count += 1

    def add(self, record: Record) -> None:
        """Add a record to its task, and finish the task if it is the last."""
        now = self._open[0]
        now.add(record)
        self._records += 1
        if time.monotonic() - self._said_s >= PROGRESS_S or now.last == record.index:
            self._tell(Progress(self._records))
            self._records, self._said_s = 0, time.monotonic()
        if now.last == record.index:
            self._open.popleft()
            self._finish(now)

    def close(self) -> None:
        for one in [*self._open]:
            one.writer.__exit__()

    def _finish(self, done: _OpenTask) -> None:
        task, counts, lines = done.task, done.counts, b""
        with done.writer as writer:
            try:
                if task.part is None:
                    lines = writer.content()
                elif done.outage is None and self._store.exists(FIRST):
                    writer.publish(self._store, task.part)
                elif done.outage is None:  # it would be made anew where it is not mounted
                    hint = "check its drive; several machines need one that all see, or a bucket"
                    done.outage = PlaceError(f"{self._store} has no {FIRST} here", hint)
                    counts = Counts(failed=1)
            except (OutputError, StoreError) as error:
                done.outage, counts = error, Counts(failed=1)
        if done.outage is None:
            self._tell(Done(task, counts, lines))
        else:
            self._tell(Failed(task, done.outage, counts.failed * 2 > counts.done))

    def _tell(self, report: WorkReport) -> None:
        with self._lock:
            self._report(report)
