"""Workers that are processes of this machine, and the process itself, see `main`.

The two talk in pickles, through the worker's standard input and output. A worker whose input ends
ends too: the process that started it is gone.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Self

from detcli.backend.device import Device, available_cores
from detcli.errors import DetcliError, DetcliWarning
from detcli.interrupts import interrupts
from detcli.shards.schedule import STARTS, Rest, Schedule, futile
from detcli.shards.work import Counts, Done, Job, Place, Progress, Ready, Report, Task, work
from detcli.source.loading import as_error

START = "import sys; sys.path[:] = {path!r}; from detcli.shards.local import main; main()"

END_S = 2.0
"""How long a worker may take to end."""

FROM_TERMINALS = {getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)}
"""Signals that a terminal sends to all processes; only the one that was started answers them."""


@dataclass(frozen=True, slots=True)
class More:
    """A worker wants a task."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A worker warns."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker cannot go on, and another one could not either."""

    error: DetcliError


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is gone.

    Attributes:
        cause: What has ended it; empty if it had nothing left to do.
    """

    cause: str


Event = Report | More | Warned | Failed | Ended


class Local(contextlib.AbstractContextManager["Local"]):
    """Processes that share the cores of this machine, and its devices if there are several."""

    def __init__(
        self,
        count: int,
        job: Job,
        devices: tuple[Device, ...],
        detectors: int | None,
        set_up: Callable[[], None],
    ) -> None:
        """Prepare; the processes start with the context.

        Args:
            count: How many processes.
            job: What they work.
            devices: Of the machine.
            detectors: How many each process runs on the CPU; None for its share of the cores.
            set_up: Called first in each process; can be pickled.
        """
        each = detectors or max(1, available_cores() // count)
        options = replace(job.device_options, workers=count * each)
        places = [
            Place(devices[number::count] or (devices[number % len(devices)],), each)
            for number in range(count)
        ]
        job = replace(job, device_options=options)
        self._starts = [pickle.dumps((set_up, job, place)) for place in places]
        self._events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._processes: dict[int, _Process] = {}
        self._waiting: set[int] = set()  # for a task
        self._warnings: set[str] = set()

    def __enter__(self) -> Self:
        try:
            for number in range(len(self._starts)):
                self._start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts.held():
            for process in self._processes.values():
                process.release()
            for process in self._processes.values():
                process.end()

    def ready(self) -> Ready:
        """Wait until a worker has opened its detectors, see `ShardEngine.ready`."""
        deaths = 0
        while True:
            number, event = self._next()
            match event:
                case Ready():
                    return event
                case Ended(cause):
                    deaths += 1
                    if deaths == STARTS:
                        raise futile(cause, "none has started")
                    self._start(number)

    def run(self, schedule: Schedule, listen: Callable[[Progress | Counts], None]) -> None:
        """Work all shards of a schedule, see `ShardEngine.run`."""
        while self._processes:
            self._hand_out(schedule)
            number, event = self._next()
            counts = None
            match event:
                case Progress():
                    listen(event)
                case Done():
                    counts = schedule.done(number, event)
                case Ended(cause):
                    del self._processes[number]
                    self._waiting.discard(number)
                    if cause:
                        counts = schedule.died(number, cause)
                        self._start(number)
            if counts is not None:
                listen(counts)

    def _hand_out(self, schedule: Schedule) -> None:
        """Give tasks to those that wait, as far as there are any for them."""
        for number in sorted(self._waiting):
            task = schedule.next(number)
            if task is not Rest.WAIT:
                self._waiting.remove(number)
                self._processes[number].send(None if task is Rest.END else task)

    def _next(self) -> tuple[int, Event]:
        """The next event of any worker; those that concern the engine alone are dealt with."""
        number, event = self._events.get()
        match event:
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
            process = _Process(
                self._starts[number], lambda event: self._events.put((number, event))
            )
            self._processes[number] = process


class _Process:
    """A worker as the process sees it that has started it."""

    def __init__(self, start: bytes, tell: Callable[[Event], None]) -> None:
        command = [sys.executable, "-P", "-c", START.format(path=sys.path)]
        with _blocked():
            self._process = subprocess.Popen(  # noqa: S603 - this very Python, and constants
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        self._tell = tell
        threading.Thread(target=self._listen, daemon=True).start()
        self._write(start)

    def send(self, task: Task | None) -> None:
        """Send a task; None means that there are no more."""
        self._write(pickle.dumps(task))

    def release(self) -> None:
        """Let it end."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        """Wait until it has ended, for a moment; then kill it."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, which the other thread tells
            self._stdin.write(data)
            self._stdin.flush()

    @property
    def _stdin(self) -> Any:  # noqa: ANN401 - a pipe
        return self._process.stdin

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        with self._process.stdout as pipe:
            while True:
                try:
                    event: Event = pickle.load(pipe)  # noqa: S301 - of a process of ours
                except Exception:  # noqa: BLE001 - a pickle that was cut off raises anything
                    break
                self._tell(event)
        code = self._process.wait()
        self._tell(Ended(_cause(code)))


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals of terminals; a process that is started meanwhile never gets them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FROM_TERMINALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cause(code: int) -> str:
    """What a process's exit code tells."""
    if code >= 0:
        return f"exit code {code}" if code else ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (perhaps out of memory)" if name == "SIGKILL" else name


class _Starter:
    """The process that has started a worker, as the worker sees it."""

    def __init__(self) -> None:
        self._pipe = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what libraries print does not belong into the pipe
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()

    def tell(self, event: Event) -> None:
        """Send an event, from any thread."""
        try:
            with self._lock:
                pickle.dump(event, self._pipe)
                self._pipe.flush()
        except OSError:  # it is gone
            os._exit(1)

    def tasks(self) -> Iterator[Task]:
        """Ask for tasks until there are no more."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self.tell(More())
            if (task := self._tasks.get()) is None:
                return
            yield task

    def warn(self, *details: Any, **_: Any) -> None:  # noqa: ANN401 - as showwarning
        """Pass a warning on, in place of `warnings.showwarning`."""
        if isinstance(details[0], DetcliWarning):
            self.tell(Warned(str(details[0])))

    def _read(self) -> None:
        while True:
            try:
                self._tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of our own process
            except Exception:  # noqa: BLE001 - the pipe is closed, at whatever byte
                os._exit(1)


def main() -> NoReturn:
    """Be a worker: read what to do from standard input, and work tasks until there are no more."""
    starter = _Starter()
    try:
        set_up, job, place = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
        set_up()
        warnings.showwarning = starter.warn
        work(job, place, starter.tasks(), starter.tell)
    except BaseException as error:  # noqa: BLE001 - raised again where it was started
        starter.tell(Failed(as_error(error)))
    sys.stderr.flush()
    os._exit(0)
