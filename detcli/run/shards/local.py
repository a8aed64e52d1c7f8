"""Workers that are processes of this machine: how they are started, and what each of them runs.

A process gets tasks through its standard input and sends events through its standard output, in
pickles. One whose input ends ends too: the process that started it is gone.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import IO, Any, BinaryIO, NoReturn, cast

from detcli.config.device import Device, available_cores
from detcli.core.errors import UsageError
from detcli.run.shards.work import Task, WorkRequest
from detcli.run.shards.workers import Ended, Tell, WorkerEvent, Workers, serve

START = "import sys; sys.path[:] = {path!r}; from detcli.run.shards.local import main; main()"

END_S = 2.0
"""Seconds that a process has to end by itself before it is killed.

By then its input is closed, at which it ends at once; one that needs seconds hangs.
"""

MAX_PROCESSES = 16
"""How many processes --on local may start on any machine, however few cores it has.

Each process loads the model, so that too many would fill the memory.
"""

MAX_PROCESSES_PER_CORE = 4
"""How many processes --on local may start for each core, where that is more than MAX_PROCESSES."""


def open_local(count: int, request: WorkRequest) -> Workers:
    """Prepare workers that are processes of this machine, for `--on local:COUNT`.

    They share the cores of the machine, and the devices of --device if it names several. A
    process that is lost again and again is not replaced: there is no other node to try.

    Args:
        count: How many processes to start.
        request: What each is to do; its device and its share of the cores are filled in here.

    Raises:
        UsageError: The machine is too small for this many.
    """
    devices = request.config.runtime.device
    cores = available_cores()
    limit = max(MAX_PROCESSES, MAX_PROCESSES_PER_CORE * cores, len(devices))
    if count > limit:
        raise UsageError(f"--on local:{count} with {cores} cores", f"use {limit} at most")
    cores_each = max(1, cores // count)
    detectors_each = request.config.runtime.workers or cores_each

    def start_process(index: int, tell: Tell, lost_on: Collection[str]) -> _Process | None:
        """Start the process with this index; None if it was lost repeatedly on this machine."""
        if lost_on:
            return None
        devices_of_process = _devices_of_process(devices, process_index=index, process_count=count)
        return _Process(request.placed(devices_of_process, detectors_each, cores_each), tell)

    return Workers(count, start_process)


def _devices_of_process(
    devices: Sequence[Device], *, process_index: int, process_count: int
) -> Sequence[Device]:
    """Return the devices that one of several processes uses; they are dealt out like cards.

    If there are more processes than devices, some of them share a device.

    Args:
        devices: All devices.
        process_index: The index of the process, from 0.
        process_count: How many processes there are.
    """
    if process_count > len(devices):
        return (devices[process_index % len(devices)],)
    return devices[process_index::process_count]


class _Process:
    """A worker that is a process of this machine, as seen from the process that started it."""

    def __init__(self, request: WorkRequest, tell: Tell) -> None:
        """Start the process, send it its request, and pass on its events from a thread."""
        from detcli.core.packages import python_executable

        # START gives it this process's `sys.path`; -P keeps Python from adding the current folder.
        python = python_executable("--on local")
        command = [python, "-P", "-c", START.format(path=sys.path)]

        # The process is in a new process group: Ctrl+C in a terminal is for the process that the
        # user has started, which ends the workers itself.
        process_group = None
        if os.name == "posix":
            process_group = 0  # a new one
        creation_flags = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # only Windows has it

        self._process = subprocess.Popen(  # noqa: S603 - this very Python, and constants
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_stderr(),
            process_group=process_group,
            creationflags=creation_flags,
        )
        self._tell = tell
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        threading.Thread(target=self._listen, daemon=True).start()
        self.send(request)

    def send(self, task: WorkRequest | Task | None) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the other thread reports
            self._stdin.write(pickle.dumps(task))
            self._stdin.flush()

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        """Give the process END_S to end by itself; kill it if it has not ended by then."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the system
                self._process.wait(END_S)

    def _listen(self) -> None:
        """Read the events that the process writes, and pass them on; `Ended` is the last.

        A process that dies cannot say so: then `Ended` is made here from its exit code. This runs
        on a thread, and any error ends the reading: a truncated pickle may raise errors of any
        class, and nobody would catch one from `_tell`.
        """
        ended: Ended | None = None
        with self._stdout as pipe, contextlib.suppress(Exception):
            while ended is None:
                event: WorkerEvent = pickle.load(pipe)  # noqa: S301 - written by our process
                if isinstance(event, Ended):
                    ended = event
                else:
                    self._tell(event)

        exit_code = self._process.wait()
        if ended is None:
            ended = Ended(_cause(exit_code))
        self._tell(ended)


def _stderr() -> int | None:
    """Find the file descriptor that detcli's messages go to, for the processes to share.

    It need not be 2, which may be redirected to keep the output of libraries away. None if there
    is none: then the processes inherit descriptor 2.
    """
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):  # closed, or an object without a file
        return None


def _cause(code: int) -> str:
    """Explain why a process has died, from its exit code; negative codes are signal numbers."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return f"{name} (perhaps out of memory)"
    return name


def _reserve_stdout() -> BinaryIO:
    """Reserve standard output for the events of a worker, and return it.

    What libraries print to descriptor 1 goes to standard error from now on.
    """
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def main() -> NoReturn:
    """Run this process as a worker, which reads tasks from standard input and writes events.

    Both are pickles; the events go to what standard output was at the start. The process ends
    after the last task, or when the process that has started it is gone.
    """
    tell = partial(_write_event, _reserve_stdout(), threading.Lock())
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()  # the request, then tasks
    threading.Thread(target=_read_input, args=(received,), daemon=True).start()
    serve(received.get, tell)
    tell(Ended(""))
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads, such as the one that reads


def _write_event(pipe: BinaryIO, lock: threading.Lock, event: WorkerEvent) -> None:
    """Write an event for the process that has started this one; end this one if that is gone.

    Args:
        pipe: Where events are written.
        lock: Held while one is written, as several threads have events.
        event: The event.
    """
    try:
        with lock:
            pickle.dump(event, pipe)
            pipe.flush()
    except OSError:  # nobody reads the pipe any more
        os._exit(1)


def _read_input(received: "queue.SimpleQueue[Any]") -> NoReturn:
    """Put what comes on standard input into a queue; end this process when the input ends.

    This is what the reading thread of a worker runs.
    """
    while True:
        try:
            received.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of our own process
        except Exception:  # noqa: BLE001 - the pipe is closed, at whatever byte
            os._exit(1)
