"""Ends a command before and after each system call that changes a file, and runs it again.

ptrace stops every thread of the command, and of the processes that it starts, at each call that
makes, writes, truncates, renames, links, removes or syncs a file below a folder; a seccomp filter
lets all other calls pass at full speed. What a kill would leave behind is what is on the disk at
that moment: the folder is copied at every point of one run, and the command is run again in each
copy that differs from those before. At some of the points a run is killed in fact. Linux on x86-64
only. The command runs in a fork of a process that has its imports.
"""

import contextlib
import ctypes
import importlib.util
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

import thinning
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


def names_by_number():
    """The names of the system calls that are traced."""
    names = {}
    for calls in (BY_DESCRIPTOR, BY_PATH, BY_PATH_IN_FOLDER):
        names |= {number: name for name, number in calls.items()}
    for name, (number, _) in OPENING.items():
        names[number] = name
    return names


NAMES = names_by_number()
PLACES = {"symlink": 1, "symlinkat": 2, "copy_file_range": 2}  # of what is changed, where not 0

IMPORTED = ["detcli.model.hub", "huggingface_hub.file_download", "httpx2"]
"""What `models pull` imports when it runs: once for all runs."""
if importlib.util.find_spec("truststore"):  # httpx2 2.0 does without
    IMPORTED.append("truststore")

CONT, TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 7, 0, 24, 0x4200, 0x420E
OPTIONS = (
    0x1 | 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
)  # good stops, fork, vfork, clone, seccomp, exitkill
SECCOMP_EVENT, ALLOW, TRACE = 7, 0x7FFF0000, 0x7FF00000
WALL = 0x40000000

KILL = object()
"""What `at_point` returns to have the command killed there."""

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
    for calls in (BY_DESCRIPTOR, BY_PATH, BY_PATH_IN_FOLDER):
        for number in calls.values():
            program += [(equal, 0, 1, number), (end, 0, 0, TRACE)]
    return program + [(end, 0, 0, ALLOW)]


def install_filter():
    code = b""
    for operation, if_true, if_false, operand in filter_program():
        code += struct.pack("HBBI", operation, if_true, if_false, operand)
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
    numbers = struct.unpack_from("<7Q", info, 24)
    name = NAMES[numbers[0]]
    arguments = numbers[1:]
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
    """Follows a child and all its threads.

    Attributes:
        points: What was reached: each call twice, before and after it.
    """

    def __init__(self, child, watched, at_point):
        self.points = []
        self._child, self._watched, self._at_point = child, watched, at_point
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
        """Let a thread run to its next stop; one that changes a file, to the end of that call."""
        deliver = 0
        if event == SECCOMP_EVENT:
            name, path = changed(thread)
            if path.startswith(self._watched):
                what = f"{name} {path[len(self._watched) :]}"
                if not self._reach(f"before {what}") or not self._finish_call(thread):
                    return
                self._reach(f"after {what}")
        elif not event and (thread in self._known or number != signal.SIGSTOP):
            deliver = number
        self._known.add(thread)
        request(CONT, thread, deliver)

    def _finish_call(self, thread):
        """Let a thread finish its call while no other begins one; False if it has ended instead."""
        deliver = 0
        while True:
            request(SYSCALL, thread, deliver)
            _, status = os.waitpid(thread, WALL)
            if not os.WIFSTOPPED(status):
                return False
            deliver = os.WSTOPSIG(status)
            if deliver == signal.SIGTRAP | 0x80:  # the call has returned
                return True

    def _reach(self, point):
        """Add a point; False if the child was killed there."""
        self.points.append(point)
        if self._at_point(len(self.points) - 1) is KILL:
            os.kill(self._child, signal.SIGKILL)
            return False
        return True


def run(command, watched="", at_point=None):
    """Run a command in a fork; returns its exit code, and points that it reached.

    They are calls below the folder `watched`. `at_point` is called at each with its number, and may
    return KILL.
    """
    child = os.fork()
    if not child:
        _child(command, traced=bool(watched))
    if not watched:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), []
    os.waitpid(child, WALL)
    request(SETOPTIONS, child, OPTIONS)
    tracer = Tracer(child, watched, at_point)
    return tracer.run(), tracer.points


def _child(command, *, traced):
    """Become the command."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = ["detcli"] + list(command)
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
    """What was found: the points, how many runs were killed and begun again, what was wrong."""

    points: list[str]
    killed: int = 0
    begun_again: int = 0
    problems: list[str] = field(default_factory=list)

    def note_problems(self, point, problems):
        for problem in problems:
            self.problems.append(f"{point}: {problem}")


POINTS_BETWEEN = 1 if thinning.RUNS_WHOLE else 9
"""How far apart the points of pretended kills are; odd, as every other is after a call."""


def examine(scenario, folder, kill_every=None, points_between=POINTS_BETWEEN):
    """Run a command again from states that a kill could leave, or kill it at every nth point.

    A process of its own does it.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(
        target=_examine,
        args=(scenario, folder, kill_every, points_between, dict(os.environ), sender),
    )
    process.start()
    sender.close()
    try:
        outcome = receiver.recv()
    finally:
        process.join()
    assert isinstance(outcome, Outcome), outcome
    if kill_every is None and points_between > 1:
        thinning.note(
            "points of a kill", len(outcome.points) // points_between, len(outcome.points)
        )
    if kill_every is not None and not thinning.RUNS_WHOLE:
        thinning.note("points of a real kill", outcome.killed, len(outcome.points) // 31 + 1)
    return outcome


def _examine(scenario, folder, kill_every, points_between, environment, sender):
    import traceback

    try:
        os.environ.clear()
        os.environ.update(environment | scenario.environment)
        for name in IMPORTED:  # they read the environment
            importlib.import_module(name)
        scenario.sabotage()
        sender.send(Examination(scenario, folder).run(kill_every, points_between))
    except BaseException:  # noqa: BLE001 - sent to the test
        sender.send(traceback.format_exc())


class Examination:
    """A scenario's runs, all in the same folder, and the folder as they leave it."""

    def __init__(self, scenario, folder):
        self._scenario, self._folder = scenario, folder
        self._here = folder / "here"

    def run(self, kill_every, points_between):
        """Examine points so far apart, or really kill at every nth; returns the Outcome."""
        before, after = self._folder / "before", self._folder / "after"
        before.mkdir(parents=True)
        self._scenario.prepare(before)
        self._begin(before)

        def keep_for_later(number):
            if not kill_every and number % points_between == 0:
                self._keep(number)

        code, points = self._traced(keep_for_later)
        assert code == self._scenario.code, f"exit code {code}, {points}"
        expected = self._scenario.state(self._here)
        self._keep("after")
        outcome, known = Outcome(points), set()
        for number in range(0, len(points), kill_every or points_between):
            point = points[number]
            if kill_every:
                self._begin(before)
                code, reached = self._traced(
                    lambda at, number=number: KILL if at == number else None
                )
                outcome.killed += code == -signal.SIGKILL
                point = reached[-1]
                self._keep("killed")
            left = self._folder / ("killed" if kill_every else str(number))
            torn = self._scenario.torn(before, after, left)
            outcome.note_problems(point, torn)
            if (content := _content(left)) not in known:
                known.add(content)
                self._begin(left)
                outcome.begun_again += 1
                outcome.note_problems(point, self._finish(expected))
        return outcome

    def _begin(self, state):
        """Change to a copy of a folder."""
        os.chdir(self._folder)
        _copy(state, self._here)
        os.chdir(self._here)

    def _keep(self, name):
        """Keep a copy of the folder as it is."""
        _copy(self._here, self._folder / str(name))

    def _traced(self, at_point):
        return run(self._scenario.command, f"{self._here}/", at_point)

    def _finish(self, expected):
        """Run the command to its end; what is wrong then."""
        code, _ = run(self._scenario.command)
        if code != self._scenario.code:
            return [f"then exit code {code}"]
        state = self._scenario.state(self._here)
        return [] if state == expected else [f"then {state} instead of {expected}"]


def _copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


def _content(folder):
    """Everything below a folder: names with bytes, with where a link leads, or None."""
    entries = []
    for path in sorted(folder.rglob("*")):
        content = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = path.read_bytes()
        entries.append((str(path.relative_to(folder)), content))
    return tuple(entries)
