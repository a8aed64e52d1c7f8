"""Processes shards: their names go through the pipeline, and their records become parts.

A worker is whatever runs `work`: a process of this machine, or of another one. Shards follow each
other without a pause: while the last images of one are processed, those of the next are read.
"""

import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

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
from detcli.run.shards.manifest import FIRST_MANIFEST, Shard
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
        """Copy the request for one worker, with its devices, detectors and cores.

        The sources of the run are left out, as their names come with the tasks.
        """
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
    start: int  # the first of its names to process
    stop: int  # the first name after them

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
    class_names: tuple[str, ...] = ()  # of the model


@frozen
class Progress:
    """The number of records that a worker has made since its last report."""

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
    """Run detection on the images of each task and publish its records, until no task is left.

    A run in shards is shared by several processes, the workers. This is all that one of them does.

    Args:
        request: The settings of the run, the model, and how many cores to use.
        tasks: Shards of the run's inputs, or pieces of shards. The next one is taken, on another
            thread, when all images of the previous one have been read.
        report: Is called with what the run has to know: first that the worker is ready, then its
            progress and the end of each task. The calls come from several threads, but never two
            at a time.
    """
    store = open_store(str(request.config.outputs.output))
    with open_run(request.config, request.model, cores=request.cores) as run:
        class_names = run.detector.contract.names
        add_tracks_and_zones = run.watcher()
        hide_classes = open_anonymizer(request.config, class_names)  # for --blur; else None
        ready = Ready(
            node=platform.node(),
            settings=run.settings(),
            implied=run.implied_settings,
            class_names=tuple(class_names),
        )
        report(ready)

        no_names: list[str] = []  # the names of the inputs come with the tasks
        with run.sources(no_names) as sources:
            worker = _Worker(store, sources, report)
            try:
                for record in run.pipeline().run(worker.items(tasks)):
                    complete_record = add_tracks_and_zones(record)
                    if hide_classes is not None:
                        complete_record = hide_classes(complete_record)
                    worker.add(complete_record)
            finally:
                worker.close()


@dataclass(eq=False, slots=True)
class _OpenTask:
    """A task that is being processed."""

    task: Task
    writer: PartWriter
    counts: Counts = field(default_factory=Counts)
    last_index: int | None = None  # index of its last record in the pipeline, once that is known
    outage_errors_in_a_row: int = 0  # among the latest records, errors that may mean an outage
    outage: DetcliError | None = None  # why the task is given up

    def add(self, record: Record) -> None:
        """Add a record to the part, or give the task up: from then on nothing is added."""
        self.counts.add(record)
        self._count_outage_errors(record)
        if self.outage is None:
            self.writer.add(self._fields(record))

    def _count_outage_errors(self, record: Record) -> None:
        """Count the errors in a row that may mean an outage; set `outage` if there are too many.

        A single file that is missing is a result. But if one after the other is missing, the drive
        or the server that has them is probably gone, and the task is given up. Each class of errors
        has a number in a row that means an outage, `outage_at`; it is 0 for errors that never do.

        Args:
            record: The record that has just been made, with its error if it has one.
        """
        error = record.error
        if error is None or error.outage_at == 0:
            self.outage_errors_in_a_row = 0
            return

        self.outage_errors_in_a_row += 1
        if self.outage is None and self.outage_errors_in_a_row >= error.outage_at:
            self.outage = PlaceError(f"{record.origin.source}: {error}", error.hint)

    def _fields(self, record: Record) -> RecordJson:
        """Return the fields that a record has in the part.

        The stamp of a file shows whether the file has changed since. The manifest has it, so parts
        leave it out; but a file that --retry-failed reads again may have a different one by now.
        """
        fields = record.to_json()
        in_part = self.task.part is not None
        if self.task.shard.attempt and in_part and record.file_stamp is not None:
            fields["file_stamp"] = record.file_stamp
        return fields


class _TaskItem(NamedTuple):
    """An item of a task."""

    item: Item
    is_last: bool


class _Worker:
    """Opens the items of tasks, and sorts the records into the parts of their tasks."""

    def __init__(
        self,
        store: Store,
        sources: Sources,
        report: Callable[[WorkReport], None],
    ) -> None:
        """Prepare to process tasks.

        Args:
            store: Where parts are published.
            sources: Opens the inputs that a task names.
            report: Is called with what the run has to know, from one thread at a time.
        """
        self._store = store
        self._sources = sources
        self._report = report
        self._open_tasks: deque[_OpenTask] = deque()  # in the order of their records
        self._lock = Lock()  # held while something is reported
        self._unreported_records = 0
        self._reported_s = time.monotonic()  # when progress was last reported

    def items(self, tasks: Iterable[Task]) -> Iterator[Item]:
        """Yield the items of all tasks, the images and frames of videos, to the pipeline.

        The pipeline reads ahead: on its reader thread it takes items from here, while the records
        of earlier items come to `add` on another thread. As soon as an item is yielded, `add` may
        get its record. So a task has to be in `_open_tasks` before its first item is yielded, and
        its `last_index` has to be set before its last item is.
        """
        next_index = 0  # counts the items of all tasks; a record has the index of its item
        for task in tasks:
            open_task = _OpenTask(task, PartWriter(task.shard))
            self._open_tasks.append(open_task)

            has_items = False
            for task_item in self._items_until_outage(open_task):
                has_items = True
                if task_item.is_last:
                    open_task.last_index = next_index
                next_index += 1
                yield task_item.item

            # A task of videos without frames has no items, and so no record that would end it.
            if not has_items:
                self._open_tasks.remove(open_task)
                self._finish_task(open_task)

    def _items_until_outage(self, open_task: _OpenTask) -> Iterator[_TaskItem]:
        """Yield the items of a task, each with whether it is the last.

        An item is held back until the next one has arrived, as only then is it known not to be the
        last. If the task is given up meanwhile, the item that is held back becomes the last.
        """
        items = self._items_of(open_task.task)
        held_back = next(items, None)
        if held_back is None:
            return
        for item in items:
            yield _TaskItem(held_back, is_last=False)
            held_back = item
            if open_task.outage is not None:
                break
        yield _TaskItem(held_back, is_last=True)

    def _items_of(self, task: Task) -> Iterator[Item]:
        """Open the names of a task one after the other, and yield their items."""
        names = task.shard.names[task.start : task.stop]
        numbers = task.shard.numbers[task.start : task.stop]
        for name, number in zip(names, numbers, strict=True):
            yield from of_input(self._sources.open(to_entry(name)), number)

    def add(self, record: Record) -> None:
        """Add a record to its task, report the progress, and finish the task if it is the last.

        Records come in the order of the tasks, so it belongs to the task that was opened first.
        """
        open_task = self._open_tasks[0]
        open_task.add(record)
        self._unreported_records += 1
        is_last = open_task.last_index == record.index
        is_report_due = time.monotonic() - self._reported_s >= PROGRESS_S
        if is_last or is_report_due:
            self._tell(Progress(self._unreported_records))
            self._unreported_records = 0
            self._reported_s = time.monotonic()
        if is_last:
            self._open_tasks.popleft()
            self._finish_task(open_task)

    def close(self) -> None:
        """Close the files of the tasks that are not finished."""
        for open_task in list(self._open_tasks):
            open_task.writer.__exit__()

    def _finish_task(self, open_task: _OpenTask) -> None:
        """Publish the records of a task as its file, and report that it is done or has failed.

        The task of a whole shard has the name of that file as `part`. A piece of a shard has no
        file, so `part` is None: its records are sent back with the report, as JSON Lines.
        """
        task = open_task.task
        counts = open_task.counts
        lines_to_send_back = b""
        with open_task.writer as writer:
            try:
                if task.part is None:
                    lines_to_send_back = writer.content()
                elif open_task.outage is None:
                    self._publish(writer, task.part)
            except (OutputError, StoreError, PlaceError) as error:
                open_task.outage = error
                # Nothing is published, so it is reported that most inputs have failed.
                counts = Counts(failed=1)

        if open_task.outage is None:
            self._tell(Done(task, counts, lines_to_send_back))
        else:
            have_most_failed = counts.failed > counts.input_count / 2
            self._tell(Failed(task, open_task.outage, have_most_failed))

    def _publish(self, writer: PartWriter, part: str) -> None:
        """Publish a part, unless the folder is missing: it would be created again."""
        if not self._store.exists(FIRST_MANIFEST):  # it is not mounted
            raise PlaceError(
                f"{self._store} has no {FIRST_MANIFEST} here",
                "check its drive; several machines need one that all see, or a bucket",
            )
        writer.publish(self._store, part)

    def _tell(self, report: WorkReport) -> None:
        """Report, from one thread at a time."""
        with self._lock:
            self._report(report)
