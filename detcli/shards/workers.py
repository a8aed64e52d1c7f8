"""Workers: what an engine's processes or actors have in common, on both sides.

They ask for a task whenever they could read on, so that the next one is there before it is needed.
"""

import contextlib
import queue
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from detcli.errors import DetcliError, DetcliWarning
from detcli.interrupts import interrupts
from detcli.shards.schedule import STARTS, NoTask, Schedule, repeated_deaths_error
from detcli.shards.work import Counts, Done, Progress, Ready, Task, WorkReport, WorkRequest, work
from detcli.source.loading import as_error


@dataclass(frozen=True, slots=True)
class More:
    """A worker wants a task."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A worker warns."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed with an error that another worker would have too."""

    error: DetcliError


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker has ended."""

    cause: str  # what ended it; empty if it had nothing left to do


WorkerEvent = WorkReport | More | Warned | Failed | Ended

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


class Workers(contextlib.AbstractContextManager["Workers"]):
    """The workers of an engine, each replaced when it dies; leaving the context ends them."""

    def __init__(self, count: int, begin: Callable[[int, Tell], ShardWorker]) -> None:
        """Prepare; the first worker starts with the context, the others in `run`.

        Args:
            count: Number of workers at most; no more than there are shards.
            begin: Starts a worker, given its number and what takes its events.
        """
        self._count, self._begin = count, begin
        self._events: queue.SimpleQueue[tuple[int, WorkerEvent]] = queue.SimpleQueue()
        self._workers: dict[int, ShardWorker] = {}
        self._waiting: set[int] = set()  # for a task
        self._warnings: set[str] = set()
        self._nodes: dict[int, str] = {}

    def __enter__(self) -> Self:
        try:
            self._start(0)
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
        """Wait until a worker has opened its detectors.

        Raises:
            DetcliError: They cannot be opened.
        """
        deaths = 0
        while True:
            number, event = self._next()
            match event:
                case Ready():
                    return event
                case Ended(cause):
                    deaths += 1
                    if deaths == STARTS:
                        raise repeated_deaths_error(cause, "none has started")
                    self._start(number)

    def run(self, schedule: Schedule, listen: Callable[[Progress | Counts], None]) -> None:
        """Work all shards of a schedule.

        Args:
            schedule: What there is to do.
            listen: Called with each worker's progress, and with what became of the inputs of each
                shard.

        Raises:
            DetcliError: No worker can go on.
        """
        for number in range(1, min(self._count, schedule.total)):
            self._start(number)
        over = False
        while not over or self._nodes:  # those that have not begun by then are not needed
            over = self._hand_out(schedule) or over
            number, event = self._next()
            counts = None
            match event:
                case Progress():
                    listen(event)
                case Done():
                    counts = schedule.done(number, event)
                case Ended(cause):
                    del self._workers[number]
                    self._waiting.discard(number)
                    if cause:
                        counts = schedule.died(number, cause)
                        self._start(number)
            if counts is not None:
                listen(counts)

    @property
    def nodes(self) -> int:
        """On how many machines there are workers now."""
        return len({*self._nodes.values()})

    def _hand_out(self, schedule: Schedule) -> bool:
        """Give tasks to those that wait, as far as there are any; True if nothing is left."""
        over = False
        for number in sorted(self._waiting):
            task = schedule.next(number)
            if task is not NoTask.WAIT:
                self._waiting.remove(number)
                over = over or task is NoTask.END
                self._workers[number].send(None if task is NoTask.END else task)
        return over

    def _next(self) -> tuple[int, WorkerEvent]:
        """The next event of any worker; those that concern the engine alone are dealt with."""
        number, event = self._events.get()
        match event:
            case Ready(node):
                self._nodes[number] = node
            case Ended():
                self._nodes.pop(number, None)
            case More():
                self._waiting.add(number)
            case Warned(text) if text not in self._warnings:
                self._warnings.add(text)
                warnings.warn(text, DetcliWarning, stacklevel=2)
            case Failed(error):
                raise error
        return number, event

    def _start(self, number: int) -> None:
        with interrupts.held():
            self._workers[number] = self._begin(
                number, lambda event: self._events.put((number, event))
            )


def serve(
    start: str | bytes,
    take: Callable[[], Task | None],
    tell: Tell,
    model: Path | None = None,
) -> None:
    """Run as a worker: work tasks until the last, or until it cannot go on.

    Args:
        start: A `WorkRequest`, as JSON.
        take: Waits for the next task; returns None after the last.
        tell: Takes events.
        model: Where the model's file is on this machine, if it is elsewhere.
    """

    def tasks() -> Iterator[Task]:
        while True:
            tell(More())
            if (task := take()) is None:
                return
            yield task

    def warn(*details: Any, **_: Any) -> None:  # noqa: ANN401 - as showwarning
        if isinstance(details[0], DetcliWarning):
            tell(Warned(str(details[0])))

    try:
        request = WorkRequest.from_json(start)
        if model is not None:
            request = replace(request, model=replace(request.model, path=model))
        module, _, function = request.set_up.partition(":")
        getattr(import_module(module), function)(request.config)
        warnings.showwarning = warn
        work(request, tasks(), tell)
    except BaseException as error:  # noqa: BLE001 - raised again where it was started
        tell(Failed(as_error(error)))
