"""Kills a command before and after each system call that changes a file.

ptrace stops every thread of the command, and of the processes that it starts, at each call that
makes, writes, truncates, renames, links, removes or syncs a file below a folder; a seccomp filter
lets all other calls pass at full speed. Linux on x86-64 only. The command runs in a fork of a
process that has its imports.
"""

import contextlib
import ctypes
import importlib
import os
import platform
import runpy
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from forked import CONTEXT

USABLE = sys.platform == "linux" and platform.machine() == "x86_64"

BY_DESCRIPTOR = {
    "write": 1,
    "pwrite64": 18,
    "writev": 20,
    "sendfile": 40,
    "fsync": 74,
    "fdatasync": 75,
    "ftruncate": 77,
    "fchmod": 91,
    "sync_file_range": 277,
    "fallocate": 285,
    "pwritev": 296,
    "syncfs": 306,
    "copy_file_range": 326,
    "pwritev2": 328,
}
BY_PATH = {
    "truncate": 76,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "chmod": 90,
    "creat": 85,
}
BY_PATH_IN_FOLDER = {
    "mkdirat": 258,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "symlinkat": 266,
    "fchmodat": 268,
    "renameat2": 316,
}
OPENING = {"open": (2, 1), "openat": (257, 2)}  # number and place of the flags
NAMES = {
    number: name
    for calls in (
        BY_DESCRIPTOR,
        BY_PATH,
        BY_PATH_IN_FOLDER,
        {n: c for n, (c, _) in OPENING.items()},
    )
    for name, number in calls.items()
}
PLACES = {"symlink": 1, "symlinkat": 2, "copy_file_range": 2}  # of what is changed, where not 0

IMPORTED = [
    *(
        "detcli.commands.convert.run",
        "detcli.commands.predict.sinks",
        "detcli.commands.shared.setup",
    ),
    *("detcli.backend.cpu", "detcli.model.editing", "detcli.model.recognise", "detcli.sink.coco"),
    *("detcli.sink.csv", "detcli.sink.image", "detcli.sink.journal", "detcli.sink.video"),
    *("detcli.sink.yolo", "detcli.source.sources", "detcli.source.video", "huggingface_hub"),
]
"""What commands import when they run: once for all runs."""

CONT, TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 7, 0, 24, 0x4200, 0x420E
OPTIONS = (
    0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
)  # good stops, fork, vfork, clone, seccomp, exitkill
SECCOMP_EVENT, ALLOW, TRACE = 7, 0x7FFF0000, 0x7FF00000
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
libc.ptrace.restype = ctypes.c_long


def filter_program():
    """A BPF program: trace these calls, and files that are opened to be made or cut."""
    load, equal, any_set, end = 0x20, 0x15, 0x45, 0x06
    program = [(load, 0, 0, 0)]
    for number, place in OPENING.values():
        flags = 16 + 8 * place
        program += [(equal, 0, 4, number), (load, 0, 0, flags)]
        program += [
            (any_set, 0, 1, os.O_CREAT | os.O_TRUNC),
            (end, 0, 0, TRACE),
            (end, 0, 0, ALLOW),
        ]
    for number in [*BY_DESCRIPTOR.values(), *BY_PATH.values(), *BY_PATH_IN_FOLDER.values()]:
        program += [(equal, 0, 1, number), (end, 0, 0, TRACE)]
    return [*program, (end, 0, 0, ALLOW)]


def install_filter():
    code = b"".join(struct.pack("HBBI", *line) for line in filter_program())
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0


def request(kind, thread, data=0):
    with contextlib.suppress(ProcessLookupError):  # killed meanwhile
        if libc.ptrace(kind, thread, 0, data) < 0 and ctypes.get_errno() != 3:
            raise OSError(ctypes.get_errno(), "ptrace")


def changed(thread):
    """The name of a stopped call, and the file that it changes."""
    info = ctypes.create_string_buffer(88)
    if libc.ptrace(GET_SYSCALL_INFO, thread, 88, ctypes.cast(info, ctypes.c_void_p)) < 0:
        return "", ""
    number, *arguments = struct.unpack_from("<7Q", info, 24)
    name = NAMES[number]
    place = PLACES.get(name, 0)

    def of_descriptor(value):
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/{thread}/fd/{value}").readlink())
        return ""

    if name in BY_DESCRIPTOR:
        return name, of_descriptor(arguments[place])
    base = str(Path(f"/proc/{thread}/cwd").readlink())
    if name in BY_PATH_IN_FOLDER or name == "openat":
        place = max(place, 1)
        folder = ctypes.c_int(arguments[place - 1]).value
        base = base if folder == -100 else of_descriptor(folder)
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(arguments[place])
        path = memory.read(4096 - arguments[place] % 4096)
        if b"\0" not in path:
            path += memory.read(4096)
    return name, str(Path(base, os.fsdecode(path.partition(b"\0")[0])))


class Tracer:
    """Follows a child and all its threads; kills it at a point.

    Attributes:
        points: What was reached: each call twice, before and after it.
    """

    def __init__(self, child, watched, kill_at):
        self.points = []
        self._child, self._watched, self._kill_at = child, watched, kill_at
        self._inside = {}  # what comes after the call that a thread is in
        self._known = {child}

    def run(self):
        """Let the child run; returns its exit code."""
        code = None
        request(CONT, self._child)
        with contextlib.suppress(ChildProcessError):  # all have ended
            while True:
                thread, status = os.waitpid(-1, WALL)
                if os.WIFSTOPPED(status):
                    self._go_on(thread, (status >> 8) & 0xFF, status >> 16)
                elif thread == self._child:
                    code = os.waitstatus_to_exitcode(status)
        return code

    def _go_on(self, thread, number, event):
        """Let a thread run to its next stop."""
        how, deliver = CONT, 0
        if event == SECCOMP_EVENT:
            name, path = changed(thread)
            if path.startswith(self._watched):
                what = f"{name} {path[len(self._watched) :]}"
                self._reach(f"before {what}")
                self._inside[thread] = f"after {what}"
                how = SYSCALL
        elif number == signal.SIGTRAP | 0x80:  # the call has returned
            if thread in self._inside:
                self._reach(self._inside.pop(thread))
        elif not event and (thread in self._known or number != signal.SIGSTOP):
            deliver = number
        self._known.add(thread)
        request(how, thread, deliver)

    def _reach(self, point):
        if len(self.points) == self._kill_at:
            os.kill(self._child, signal.SIGKILL)
        self.points.append(point)


def run(command, watched, kill_at=None):
    """Run a command in a fork, and kill it at a point; returns its exit code and the points."""
    child = os.fork()
    if not child:
        _child(command, traced=bool(watched))
    if not watched:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), []
    os.waitpid(child, WALL)
    request(SETOPTIONS, child, OPTIONS)
    tracer = Tracer(child, watched, kill_at)
    return tracer.run(), tracer.points


def _child(command, *, traced):
    """Become the command."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["detcli", *command]
        if traced:
            libc.ptrace(TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            install_filter()
        runpy.run_module("detcli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    finally:
        os._exit(code)


@dataclass
class Scenario:
    """A command that is killed, and run again.

    Attributes:
        command: Its arguments; it runs in a folder of its own.
        prepare: Fills the folder.
        state: What has to be the same after a kill and another run: any value.
        torn: What is wrong right after a kill, compared with the folders before and after a run.
        code: The exit code of a run.
        environment: Changes of the environment.
        sabotage: Breaks a promise in the process that runs the command, to see it noticed.
    """

    command: list[str]
    prepare: Callable[[Path], None]
    state: Callable[[Path], object]
    torn: Callable[[Path, Path, Path], list[str]]
    code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    sabotage: Callable[[], object] = int


@dataclass
class Outcome:
    """What kills did: the points, how many runs were killed, and what was wrong."""

    points: list[str]
    killed: int = 0
    problems: list[str] = field(default_factory=list)


def examine(scenario, folder, every=1):
    """Kill a command at every, or every nth, point; a process of its own does it."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(
        target=_examine, args=(scenario, folder, every, dict(os.environ), sender)
    )
    process.start()
    sender.close()
    try:
        outcome = receiver.recv()
    finally:
        process.join()
    assert isinstance(outcome, Outcome), outcome
    return outcome


def _examine(scenario, folder, every, environment, sender):
    import traceback

    for name in IMPORTED:
        importlib.import_module(name)
    scenario.sabotage()
    try:
        os.environ.clear()
        os.environ.update(environment | scenario.environment)
        sender.send(_kill_everywhere(scenario, folder, every))
    except BaseException:  # noqa: BLE001 - sent to the test
        sender.send(traceback.format_exc())


def _kill_everywhere(scenario, folder, every):
    before, after, here = folder / "before", folder / "after", folder / "here"
    before.mkdir(parents=True)
    scenario.prepare(before)

    def begin():
        os.chdir(folder)
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(before, here, symlinks=True)
        os.chdir(here)

    begin()
    code, points = run(scenario.command, f"{here}/")
    assert code == scenario.code, f"exit code {code}, {points}"
    expected = scenario.state(here)
    shutil.copytree(here, after, symlinks=True)
    outcome = Outcome(points)
    for point in range(0, len(points), every):
        begin()
        code, reached = run(scenario.command, f"{here}/", point)
        outcome.killed += code == -signal.SIGKILL
        at = f"killed {reached[-1] if reached else ''}"
        outcome.problems += [f"{at}: {problem}" for problem in scenario.torn(before, after, here)]
        code, _ = run(scenario.command, "")
        if code != scenario.code:
            outcome.problems.append(f"{at}: then exit code {code}")
        elif (state := scenario.state(here)) != expected:
            outcome.problems.append(f"{at}: then {state} instead of {expected}")
    return outcome
