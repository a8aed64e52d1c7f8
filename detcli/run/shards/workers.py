"""Workers: the pool that gives them tasks and replaces each that dies, and what each of them runs.

They ask for a task whenever they could read on, so that the next one has arrived before it is
needed.
"""

import contextlib
import logging
import queue
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

from detcli.core import frozen
from detcli.core.errors import DetcliError, DetcliWarning, StoreError, as_error
from detcli.core.interrupts import interrupts
from detcli.core.timing import POLL_S, RunningTime
from detcli.run.counts import Counts
from detcli.run.shards.schedule import STARTS, Schedule, repeated_deaths_error
from detcli.run.shards.work import (
    Done,
    Failed,
    Progress,
    Ready,
    Task,
    WorkReport,
    WorkRequest,
    work,
)

log = logging.getLogger(__name__)

SILENT_S = 120.0
"""Seconds after which a warning names a worker that has a task but sends nothing."""

ATTEMPTS = 3
"""How often in a row a worker may fail to reach what it needs before the run ends."""


@frozen
class More:
    """A worker wants a task."""


@frozen
class Ended:
    """A worker has ended."""

    cause: str  # what ended it; empty if it had nothing left to do
    node: str = ""  # where it was, if the engine has more than one


WorkerEvent = WorkReport | More | DetcliWarning | DetcliError | Ended
"""What a worker reports; an error is one that other workers would have too, and ends the run."""


@frozen
class _Message:
    """An event, and the index of the worker that sent it."""

    index: int
    event: WorkerEvent


Tell = Callable[[WorkerEvent], None]
"""Takes the events of a worker, from any thread."""


class ShardWorker(Protocol):
    """A worker, as seen from the process that started it."""

    def send(self, task: Task | None) -> None:
        """Send a task, or None after the last."""

    def release(self) -> None:
        """Let the worker end by itself."""

    def end(self) -> None:
        """Wait a moment for the worker to end, then kill it."""


StartWorker = Callable[[int, Tell, Collection[str]], ShardWorker | None]
"""Starts the worker with an index on a node that is not among those named; None if none is left."""


class Workers(contextlib.AbstractContextManager["Workers"]):
    """The workers of an engine, each replaced when it dies; leaving the context ends them."""

    def __init__(self, count: int, start_worker: StartWorker) -> None:
        """Prepare to run workers; none is started yet.

        The first one is started when the context is entered, and the others in `run`. A worker has
        an index, from 0. Everything here is stored by that index. A worker that replaces a dead one
        takes over its index.

        Args:
            count: The maximum number of workers to start.
            start_worker: Starts the worker with the given index.
        """
        self._count = count
        self._start_worker = start_worker
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()  # of all workers
        self._shown_warnings: set[str] = set()  # their messages
        self._has_finished_task = False  # whether any worker has; if not, an outage may be final

        self._workers: dict[int, ShardWorker] = {}
        self._waiting: set[int] = set()  # the workers that have asked for a task
        self._nodes: dict[int, str] = {}  # the machines of the workers that are ready

        # How often in a row a worker could not reach the store, or what else it needs.
        self._outages_in_a_row: Counter[int] = Counter()
        # How often in a row a worker died while it held no shard, on each machine.
        self._losses_by_node: defaultdict[int, Counter[str]] = defaultdict(Counter)

        # For the warning of `_report_silent`, and the workers that it has already named.
        self._time_since_event: dict[int, RunningTime] = {}
        self._reported_as_silent: set[int] = set()

    def __enter__(self) -> Self:
        try:
            self._start_unless_lost(0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts.held():
            for worker in self._workers.values():
                worker.release()
            for worker in self._workers.values():
                worker.end()

    def ready(self) -> Ready:
        """Wait until the first worker has opened its detectors, and return what it then reports.

        If it dies first, another one is started in its place.
        """
        while True:
            message = self._next_message()
            if message is None:
                continue
            if isinstance(message.event, Ready):
                return message.event
            if isinstance(message.event, Ended):
                self._losses_by_node[message.index][message.event.node] += 1
                self._replace_worker(message.index, message.event, "none has started")

    def run(self, schedule: Schedule) -> Iterator[Progress | Counts]:
        """Let the workers do all tasks of a schedule, until the last worker has ended.

        Args:
            schedule: Chooses which task, some of the run's inputs, a worker gets next.

        Yields:
            A `Progress` whenever a worker reports how many records it has made, and the `Counts` of
            each shard that is complete: what became of its inputs.
        """
        for index in range(1, min(self._count, schedule.total)):  # worker 0 already runs
            self._start_unless_lost(index)

        # At the end, all workers that have begun (those in `_nodes`) are waited for; others have
        # no work that could be lost.
        while not schedule.over or self._nodes:
            for index in sorted(self._waiting):
                self._give_task(index, schedule)
            message = self._next_message(POLL_S)
            self._report_silent(schedule)
            if message is None:
                continue
            if isinstance(message.event, Progress):
                yield message.event
                continue
            counts = self._handle_event(message.index, message.event, schedule)
            if counts is not None:
                yield counts

    def _handle_event(self, index: int, event: WorkerEvent, schedule: Schedule) -> Counts | None:
        """Tell the schedule what a worker has done, and replace a worker that has died.

        When a task is finished, the worker's outages in a row and its losses without a task count
        from zero again.

        Args:
            index: The index of the worker.
            event: The event that the worker has sent.
            schedule: Which worker has which shard.

        Returns:
            The counts of a shard, if a finished task or a death has completed it; else None.
        """
        match event:
            case Ready():
                # Its machine may have a different version of detcli, or other defaults of settings.
                schedule.manifest.require_same(
                    event.implied, settings=event.settings, detcli=event.detcli
                )
            case Done():
                self._has_finished_task = True
                self._outages_in_a_row.pop(index, None)
                self._losses_by_node.pop(index, None)
                return schedule.done(index, event)
            case Failed(task, error, have_most_failed):
                schedule.failed(index, task)
                is_hopeless = have_most_failed and not self._has_finished_task
                self._add_outage(index, error, is_final=is_hopeless)
            case Ended(cause=""):  # as usual, when nothing is left to do
                del self._workers[index]
            case Ended():  # it has died
                return self._settle_death(index, event, schedule)
        return None

    def _settle_death(self, index: int, ended: Ended, schedule: Schedule) -> Counts | None:
        """Put the tasks of a worker that has died back into the schedule, and replace it.

        If it held no task, no input can be the cause. Then its machine is blamed: after some such
        losses in a row, no worker with its index is started there any more.

        Returns:
            The counts of a shard, if it is complete now: the schedule may have given up its last
            input, over which workers have died again and again.
        """
        self._waiting.discard(index)
        if schedule.holds(index):
            self._losses_by_node.pop(index, None)
        else:
            self._losses_by_node[index][ended.node] += 1
        counts = schedule.died(index, ended.cause)
        self._replace_worker(index, ended, "the last one had no shard in hand")
        return counts

    def _replace_worker(self, index: int, ended: Ended, circumstances: str) -> None:
        """Start another worker in place of one that has died.

        Args:
            index: The index of the worker, which the new one inherits.
            ended: The event that reported the death, with its cause.
            circumstances: A clause for the message of the error, such as "none has started".

        Raises:
            InferenceError: No worker is left, as workers died again and again.
        """
        del self._workers[index]
        self._start_unless_lost(index)  # starts none if the worker was lost too often on every node
        if not self._workers:
            raise repeated_deaths_error(ended.cause, circumstances)

    def _report_silent(self, schedule: Schedule) -> None:
        """Warn, once for each, of workers that have been silent for longer than SILENT_S seconds.

        A worker with a task sends its progress, and at the end of the run each worker sends that it
        ends. At other times a worker has nothing to send, and is not called silent.
        """
        for index in self._nodes.keys() & self._workers.keys():
            has_nothing_to_tell = not schedule.holds(index) and not schedule.over
            if has_nothing_to_tell:
                self._time_since_event[index] = RunningTime()
                continue

            silent_s = self._time_since_event[index].seconds()
            if silent_s > SILENT_S and index not in self._reported_as_silent:
                self._reported_as_silent.add(index)
                log.warning(
                    "a worker on %s has given no sign of life for %.0f s; if its process is "
                    "killed, another one takes its place",
                    self._nodes[index],
                    silent_s,
                )

    @property
    def nodes(self) -> int:
        """The number of machines that workers run on now."""
        return len(set(self._nodes.values()))

    def _give_task(self, index: int, schedule: Schedule) -> None:
        """Send the next task to a worker that has asked for one; send None if all tasks are done.

        If not all tasks are done, but the worker may get none of them for now, nothing is sent, and
        the worker keeps waiting. The same applies if the store cannot be read for now.

        Raises:
            DetcliError: The store cannot be read, and trying again would not help.
        """
        try:
            task = schedule.next_task(index)
        except StoreError as error:
            self._add_outage(index, error, is_final=not self._has_finished_task)
            return

        has_to_keep_waiting = task is None and not schedule.over
        if not has_to_keep_waiting:
            self._waiting.remove(index)
            self._workers[index].send(task)

    def _add_outage(self, index: int, error: DetcliError, *, is_final: bool) -> None:
        """Count that a worker could not reach what it needs, such as the output folder.

        Args:
            index: The index of the worker.
            error: What it could not reach.
            is_final: Whether to raise the error at once, as trying again would not help.

        Raises:
            DetcliError: The error, if it is final or the worker's ATTEMPTS are used up.
        """
        self._outages_in_a_row[index] += 1
        if is_final or self._outages_in_a_row[index] == ATTEMPTS:
            raise error
        log.warning("%s; trying again", error)

    def _next_message(self, timeout_s: float | None = None) -> _Message | None:
        """Wait for the next event of any worker, and update what is known about that worker.

        Args:
            timeout_s: How long to wait; None to wait indefinitely.

        Returns:
            The event with the index of its worker; None if there is none in time.

        Raises:
            DetcliError: A worker has sent an error that all workers would have.
        """
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        # A worker that sends anything is alive: the time for the warning starts again.
        self._time_since_event[message.index] = RunningTime()
        self._reported_as_silent.discard(message.index)
        self._update_worker(message.index, message.event)
        return message

    def _update_worker(self, index: int, event: WorkerEvent) -> None:
        """Record where a worker runs and whether it waits for a task, if its event says so.

        A warning is shown, unless one with the same message has been. Other events, such as
        progress and the end of a task, are left to the caller.

        Args:
            index: The index of the worker.
            event: What it has sent.

        Raises:
            DetcliError: The event is an error that all workers would have.
        """
        match event:
            case Ready(node):
                self._nodes[index] = node
            case Ended():
                self._nodes.pop(index, None)
            case More():
                self._waiting.add(index)
            case DetcliWarning() if str(event) not in self._shown_warnings:
                self._shown_warnings.add(str(event))
                warnings.warn(event, stacklevel=3)
            case DetcliError():
                raise event

    def _start_unless_lost(self, index: int) -> None:
        """Start the worker with this index on a node where it was not lost STARTS times in a row.

        If there is no such node, none is started.
        """
        losses_by_node = self._losses_by_node[index]
        lost_on = [node for node, losses in losses_by_node.items() if losses >= STARTS]
        with interrupts.held():
            worker = self._start_worker(index, self._tell(index), lost_on)
            if worker is not None:
                self._workers[index] = worker

    def _tell(self, index: int) -> Tell:
        """Make the function that queues the events of one worker with its index."""
        return lambda event: self._messages.put(_Message(index, event))


def serve(receive: Callable[[], Any], tell: Tell, folder: Path | None = None) -> None:
    """Run a worker: process the tasks that the engine sends, until the last or until an error.

    The engine is the process that has started the worker. It also gets the worker's warnings and
    errors, as events, to show and to raise them.

    Args:
        receive: Waits for what the engine sends next, and returns it: first the `WorkRequest`. Then
            this asks for tasks: each time it has sent the event `More()`, it receives a `Task`, or
            None after the last task.
        tell: Sends an event to the engine.
        folder: Where the model's file is on this machine; None if it is where the request says.
    """
    try:
        request: WorkRequest = receive()
        if folder is not None:
            local_model = replace(request.model, path=folder / request.model.path.name)
            request = replace(request, model=local_model)

        set_up_process = request.set_up
        set_up_process(request.config)
        _forward_warnings(tell)
        work(request, _tasks_on_request(receive, tell), tell)
    except BaseException as error:  # noqa: BLE001 - raised again where it was started
        tell(as_error(error))


def _tasks_on_request(receive: Callable[[], Task | None], tell: Tell) -> Iterator[Task]:
    """Ask for tasks with the event `More()`, and yield each; ends when None comes for a task."""
    while True:
        tell(More())
        task = receive()
        if task is None:
            return
        yield task


def _forward_warnings(tell: Tell) -> None:
    """Send detcli's warnings to the engine, which shows them; drop those of libraries."""

    def forward(message: Warning | str, *_: object, **__: object) -> None:
        if isinstance(message, DetcliWarning):
            tell(message)

    warnings.showwarning = forward
