"""Workers that are processes of this machine, and the process itself, see `main`.

The two talk through the worker's standard input and output: a line of JSON, then pickles. A worker
whose input ends ends too: the process that started it is gone.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from detcli.core.device import available_cores
from detcli.errors import UsageError
from detcli.shards.work import Task, WorkRequest
from detcli.shards.workers import Ended, Tell, WorkerEvent, Workers, serve

START = "import sys; sys.path[:] = {path!r}; from detcli.shards.local import main; main()"

END_S = 2.0
"""How long a worker may take to end."""

FEW, PER_CORE = 16, 4
"""How many processes there may be on any machine, and for each core."""

FROM_TERMINALS = {getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)}
"""Signals that a terminal sends to all processes; only the one that was started answers them."""


def open_local(count: int, request: WorkRequest) -> Workers:
    """Processes that share the cores of this machine, and its devices if there are several.

    Args:
        count: How many processes.
        request: What they work; without a number of detectors, each process has as many as its
            share of the cores.

    Raises:
        UsageError: There are far more processes than cores, whose memory might not be there.
    """
    devices, cores = request.config.running.device, available_cores()
    if count > (most := max(FEW, PER_CORE * cores, len(devices))):
        raise UsageError(f"--on local:{count} with {cores} cores", f"use {most} at most")
    share = max(1, cores // count)
    each = request.config.running.workers or share

    def begin(number: int, tell: Tell) -> _Process:
        own = devices[number::count] or (devices[number % len(devices)],)
        return _Process(request.placed(own, each, share), tell)

    return Workers(count, begin)


class _Process:
    """A worker as the process sees it that has started it."""

    def __init__(self, request: WorkRequest, tell: Tell) -> None:
        command = [sys.executable, "-P", "-c", START.format(path=sys.path)]
        with _blocked():
            self._process = subprocess.Popen(  # noqa: S603 - this very Python, and constants
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=_stderr()
            )
        self._tell = tell
        threading.Thread(target=self._listen, daemon=True).start()
        self._write(f"{request.to_json()}\n".encode())

    def send(self, task: Task | None) -> None:
        """Send a task, or None after the last."""
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
        ended = None
        with self._process.stdout as pipe:
            while ended is None:
                try:
                    event: WorkerEvent = pickle.load(pipe)  # noqa: S301 - of a process of ours
                except Exception:  # noqa: BLE001 - a pickle that was cut off raises anything
                    break
                if isinstance(event, Ended):
                    ended = event
                else:
                    self._tell(event)
        code = self._process.wait()
        self._tell(ended or Ended(_cause(code)))


def _stderr() -> int | None:
    """Where our own messages go; descriptor 2 may be what libraries were given in its place."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):  # closed, or an object without a file
        return None


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
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (perhaps out of memory)" if name == "SIGKILL" else name


def main() -> NoReturn:
    """Run as a worker: read the request from standard input, then work tasks until the last."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print does not belong into the pipe
    lock = threading.Lock()
    tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()

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
                tasks.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of our own process
            except Exception:  # noqa: BLE001 - the pipe is closed, at whatever byte
                os._exit(1)

    if not (line := sys.stdin.buffer.readline()):
        os._exit(1)
    threading.Thread(target=read, daemon=True).start()
    serve(line, tasks.get, tell)
    tell(Ended(""))
    sys.stderr.flush()
    os._exit(0)
