"""Workers: each replaced when it dies, and the processes of this machine that are some, see `main`.

They ask for a task whenever they could read on, so that the next one is there before it is needed.
A process talks through its standard input and output, in pickles. One whose input ends ends too:
the process that started it is gone.
"""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, Self, cast

from detcli.config.device import available_cores
from detcli.core import frozen
from detcli.core.errors import DetcliError, DetcliWarning, StoreError, UsageError, as_error
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
"""After this time, a worker is named that has work and gives no sign of life."""

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
"""What a worker tells; an error is one that another worker would have too, and ends the run."""

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


Begin = Callable[[int, Tell, Collection[str]], ShardWorker | None]
"""Starts the worker of a number, avoiding these nodes; returns None if no other is left."""


class Workers(contextlib.AbstractContextManager["Workers"]):
    """The workers of an engine, each replaced when it dies; leaving the context ends them."""

    def __init__(self, count: int, begin: Begin) -> None:
        """Prepare; the first worker starts with the context, the others in `run`."""
        self._count = count
        self._begin = begin
        self._events: queue.SimpleQueue[tuple[int, WorkerEvent]] = queue.SimpleQueue()
        self._reported_silent: set[int] = set()
        self._workers: dict[int, ShardWorker] = {}
        self._waiting: set[int] = set()  # for a task
        self._warnings: set[str] = set()
        self._nodes: dict[int, str] = {}
        self._outages: Counter[int] = Counter()  # how many in a row each worker met
        self._proven = False  # whether any worker has done anything
        # How often in a row each was lost without a shard, on each node.
        self._losses: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._silent: dict[int, RunningTime] = {}

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
        """Wait until a worker has opened its detectors."""
        while True:
            number, event = self._next()
            if isinstance(event, Ready):
                return event
            if isinstance(event, Ended):
                self._losses[number][event.node] += 1
                self._replace(number, event, "none has started")

    def run(self, schedule: Schedule) -> Iterator[Progress | Counts]:
        """Work all shards of a schedule; yields progress, and the counts of each shard."""
        for number in range(1, min(self._count, schedule.total)):
            self._start(number)
        while not schedule.over or self._nodes:  # those that have not begun are not needed
            for number in sorted(self._waiting):
                self._give(number, schedule)
            number, event = self._next(POLL_S)
            self._report_silent(schedule)
            if isinstance(event, Progress):
                yield event
                continue
            counts = self._settle(number, event, schedule)
            if counts is not None:
                yield counts

    def _settle(self, number: int, event: WorkerEvent | None, schedule: Schedule) -> Counts | None:
        """Deal with an event; returns a shard's counts, if that has completed it."""
        match event:
            case Ready():
                schedule.manifest.require_same(
                    event.implied, settings=event.settings, detcli=event.detcli
                )
            case Done():
                self._proven = True
                self._outages.pop(number, None)
                self._losses.pop(number, None)
                return schedule.done(number, event)
            case Failed(task, error, have_most_failed):
                schedule.failed(number, task)
                self._add_outage(number, error, is_final=have_most_failed and not self._proven)
            case Ended(""):
                del self._workers[number]
            case Ended(cause):
                self._waiting.discard(number)
                if schedule.holds(number):
                    self._losses.pop(number, None)
                else:
                    self._losses[number][event.node] += 1
                counts = schedule.died(number, cause)
                self._replace(number, event, "the last one had no shard in hand")
                return counts
        return None

    def _replace(self, number: int, ended: Ended, when: str) -> None:
        """Start another worker, if one can be had; raises an InferenceError if none is left."""
        del self._workers[number]
        self._start(number)
        if not self._workers:
            raise repeated_deaths_error(ended.cause, when)

    def _report_silent(self, schedule: Schedule) -> None:
        """Name workers that have work and give no sign of life."""
        for number in self._nodes.keys() & self._workers.keys():
            silent_s = self._silent[number].seconds()
            if not (schedule.holds(number) or schedule.over):
                self._silent[number] = RunningTime()
            elif silent_s > SILENT_S and number not in self._reported_silent:
                self._reported_silent.add(number)
                log.warning(
                    "a worker on %s has given no sign of life for %.0f s; if its process is "
                    "killed, another one takes its place",
                    self._nodes[number],
                    silent_s,
                )

    @property
    def nodes(self) -> int:
        """On how many machines there are workers now."""
        return len(set(self._nodes.values()))

    def _give(self, number: int, schedule: Schedule) -> None:
        """Give a worker that waits its next task, if there is one."""
        try:
            task = schedule.next(number)
        except StoreError as error:
            self._add_outage(number, error, is_final=not self._proven)
            return
        if task is not None or schedule.over:
            self._waiting.remove(number)
            self._workers[number].send(task)

    def _add_outage(self, number: int, error: DetcliError, *, is_final: bool) -> None:
        """Note that a worker could not reach what it needs; raises the error if it is the last."""
        self._outages[number] += 1
        if is_final or self._outages[number] == ATTEMPTS:
            raise error
        log.warning("%s; trying again", error)

    def _next(self, timeout_s: float | None = None) -> tuple[int, WorkerEvent | None]:
        """Wait for the next event of any worker, None if there is none in time.

        Those that concern the engine alone are dealt with.
        """
        try:
            number, event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return -1, None
        self._silent[number] = RunningTime()
        self._reported_silent.discard(number)
        match event:
            case Ready(node):
                self._nodes[number] = node
            case Ended():
                self._nodes.pop(number, None)
            case More():
                self._waiting.add(number)
            case DetcliWarning() if str(event) not in self._warnings:
                self._warnings.add(str(event))
                warnings.warn(event, stacklevel=2)
            case DetcliError():
                raise event
        return number, event

    def _start(self, number: int) -> None:
        lost_on = [node for node, losses in self._losses[number].items() if losses >= STARTS]
        with interrupts.held():
            worker = self._begin(number, self._tell(number), lost_on)
            if worker is not None:
                self._workers[number] = worker

    def _tell(self, number: int) -> Tell:
        """Make what takes the events of the worker of this number."""
        return lambda event: self._events.put((number, event))


def serve(take: Callable[[], Any], tell: Tell, folder: Path | None = None) -> None:
    """Work tasks until the last, or until it cannot go on.

    `take` returns the request, then tasks, and None after the last; the model's file is where the
    request says, or in a folder.
    """

    def tasks() -> Iterator[Task]:
        while True:
            tell(More())
            task = take()
            if task is None:
                return
            yield task

    def warn(*details: Any, **_: Any) -> None:  # noqa: ANN401 - as showwarning
        if isinstance(details[0], DetcliWarning):
            tell(details[0])

    try:
        request: WorkRequest = take()
        if folder is not None:
            path = folder / request.model.path.name
            request = replace(request, model=replace(request.model, path=path))
        request.set_up(request.config)
        warnings.showwarning = warn
        work(request, tasks(), tell)
    except BaseException as error:  # noqa: BLE001 - raised again where it was started
        tell(as_error(error))


START = "import sys; sys.path[:] = {path!r}; from detcli.run.shards.workers import main; main()"

END_S = 2.0
"""How long a worker may take to end."""

MAX_PROCESSES = 16
"""How many processes there may be on any machine."""

MAX_PROCESSES_PER_CORE = 4
"""How many there may be for each core, if that is more."""


def open_local(count: int, request: WorkRequest) -> Workers:
    """Processes that share the cores of this machine, and its devices if there are several."""
    devices = request.config.runtime.device
    cores = available_cores()
    limit = max(MAX_PROCESSES, MAX_PROCESSES_PER_CORE * cores, len(devices))
    if count > limit:
        raise UsageError(f"--on local:{count} with {cores} cores", f"use {limit} at most")
    cores_each = max(1, cores // count)
    detectors_each = request.config.runtime.workers or cores_each

    def begin(number: int, tell: Tell, lost_on: Collection[str]) -> _Process | None:
        if lost_on:
            return None
        # The devices are dealt out in turn; with more processes than devices, some share one.
        devices_of_process = devices[number::count]
        if not devices_of_process:
            devices_of_process = (devices[number % len(devices)],)
        return _Process(request.placed(devices_of_process, detectors_each, cores_each), tell)

    return Workers(count, begin)


class _Process:
    """A worker as the process sees it that has started it."""

    def __init__(self, request: WorkRequest, tell: Tell) -> None:
        from detcli.core.packages import own_python

        command = [own_python("--on local"), "-P", "-c", START.format(path=sys.path)]
        # In a group of its own: signals of terminals are for the process that was started.
        self._process = subprocess.Popen(  # noqa: S603 - this very Python, and constants
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_stderr(),
            process_group=0 if os.name == "posix" else None,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._tell = tell
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        threading.Thread(target=self._listen, daemon=True).start()
        self.send(request)

    def send(self, task: WorkRequest | Task | None) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the other thread tells
            self._stdin.write(pickle.dumps(task))
            self._stdin.flush()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        """Wait until it has ended, for a moment; then kill it."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the system
                self._process.wait(END_S)

    def _listen(self) -> None:
        """Pass on what the process tells, until it ends."""
        event: WorkerEvent | None = None
        # A pickle that was cut off raises anything.
        with self._stdout as pipe, contextlib.suppress(Exception):
            while not isinstance(event := pickle.load(pipe), Ended):  # noqa: S301 - of ours
                self._tell(event)
        code = self._process.wait()
        if not isinstance(event, Ended):
            event = Ended(_cause(code))
        self._tell(event)


def _stderr() -> int | None:
    """Where our own messages go; descriptor 2 may be what libraries were given in its place."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):  # closed, or an object without a file
        return None


def _cause(code: int) -> str:
    """What a process's exit code tells."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"{name} (perhaps out of memory)"
    return name


def main() -> NoReturn:
    """Run as a worker: take what is sent through standard input, until the last task."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print does not belong into the pipe
    lock = threading.Lock()
    sent: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def tell(event: WorkerEvent) -> None:
        try:
            with lock:
                pickle.dump(event, pipe)
                pipe.flush()
        except OSError:  # the process that has started this one is gone
            os._exit(1)

    def read() -> None:
        while True:
            try:
                sent.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of our own process
            except Exception:  # noqa: BLE001 - the pipe is closed, at whatever byte
                os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    serve(sent.get, tell)
    tell(Ended(""))
    sys.stderr.flush()
    os._exit(0)
