"""Runs the tests of a module on changes of it, and only the tests that execute the changed lines.

A process collects the tests of a module once. It forks for every run, so that no run leaves
anything to the next. The first run has all tests of the unchanged module and notes which lines each
of them executes. A changed function gets its new code in the fork, where everything refers to it
already; if lines changed that are executed while the tests are collected, the tests are collected
anew.
"""

import ast
import gc
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Self

import pytest

HEADS = [
    "tests/model/heads",
    "tests/model/test_adapt.py",
    "tests/model/test_recognise.py",
    "tests/model/test_recognise_heads.py",
    "tests/model/test_refusals.py",
]
MORE_TESTS = {
    "heads": HEADS,
    "parts": ["tests/commands/test_merge.py"],
    "sink/inputs_to_repeat": ["tests/sink/test_journal.py", "tests/sink/test_journal_resume.py"],
    "sink/journal": ["tests/sink/test_inputs_to_repeat.py"],
}
"""Tests of modules beside those of their names, by a part of the module's name."""

MEMORY = 8 << 30
"""Bytes that a run may allocate: some mutants never stop."""

COLLECTION_LIMIT_S = 120
MEASUREMENT_LIMIT_S = 1800

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["cv2", "numpy", "onnx", "onnxruntime", "pytest"])

STARTS_A_PROCESS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
"""Audit events; a request to a fork server is a connection to a Unix socket."""


class Change(NamedTuple):
    """The bytes from `start` to `end` of a source are replaced by a text."""

    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class Request(NamedTuple):
    """What a run does.

    Attributes:
        tests: Their names, in this order.
        limit_s: After this time the run is killed.
        runs_others: Whether all other tests follow.
        function: Name and first line of a function that gets its code of the file on disk.
        notes_lines: Whether the run notes what each test executes.
    """

    tests: list[str]
    limit_s: float
    runs_others: bool = False
    function: tuple[str, int] | None = None
    notes_lines: bool = False


@dataclass
class Notes:
    """What a run noted of its tests.

    Attributes:
        lines: Of the module, by the test that executes them; under "" those of the collection and
            of fixtures that several tests share.
        seconds: By test.
        starting: Tests that start processes, which execute lines that are not noted.
    """

    lines: dict[str, set[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)


class Answer(NamedTuple):
    """How a run ended.

    Attributes:
        passed: Whether all tests passed in time.
        failed_test: The first that failed, if the run came to its end.
        notes: What it noted.
    """

    passed: bool
    failed_test: str | None = None
    notes: Notes | None = None


class Room:
    """A copy of the repository whose files may be changed."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "copy"
        unused = shutil.ignore_patterns(".*", "build", "dist")
        shutil.copytree(root, self.folder, ignore=unused)
        (folder / "shared").symlink_to(root.parent / "shared")

    def path(self, module: str) -> Path:
        return self.folder / "detcli" / f"{module}.py"

    def write(self, module: str, source: bytes) -> None:
        """Replace a module, and drop its compiled code, which may be as new and as long."""
        path = self.path(module)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_bytes(source)


class Recorder:
    """Notes the lines of a file that each test executes, and which tests start processes."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.notes = Notes()
        self.is_active = False
        self.test = ""
        self.executed: set[int] = set()
        sys.addaudithook(self.hear)

    def start(self) -> None:
        self.is_active = True
        self.enter("")
        threading.settrace(self.trace_call)
        sys.settrace(self.trace_call)

    def stop(self) -> None:
        self.is_active = False
        sys.settrace(None)
        threading.settrace(None)

    def enter(self, test: str) -> None:
        """From now on, lines are those of another test."""
        self.test = test
        self.executed = self.notes.lines.setdefault(test, set())

    def trace_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.executed.add(frame.f_lineno)
        return self.trace_line

    def trace_line(self, frame: FrameType, _event: str, _argument: object) -> Any:
        self.executed.add(frame.f_lineno)
        return self.trace_line

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a test that starts a process, as an audit hook."""
        if not self.is_active:
            return
        asks_a_server = event == "socket.connect" and isinstance(arguments[1], str | bytes)
        if event in STARTS_A_PROCESS or asks_a_server:
            self.notes.starting.add(self.test)


class Server:
    """A plugin of pytest: after the collection it forks a process for every request."""

    def __init__(self, connection: Connection, module_path: Path) -> None:
        self.connection = connection
        self.module_path = module_path
        self.recorder = Recorder(module_path)
        self.answer_path = module_path.with_suffix(".answer")
        self.failed_test: str | None = None

    def pytest_configure(self) -> None:
        """Let Hypothesis try the same examples in each run, and stop at the first that fails."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants",
            settings.default,
            derandomize=True,
            max_examples=100,
            phases=[Phase.explicit, Phase.generate],  # without a search for a smaller example
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Return in forks only, where pytest then runs the tests."""
        self.recorder.stop()
        if session.testsfailed:  # while they were collected
            os._exit(1)
        self.connection.send(self.recorder.notes.lines[""])
        while True:
            request: Request = self.connection.recv()
            self.answer_path.unlink(missing_ok=True)
            process = os.fork()
            if process == 0:
                self.prepare_run(session, request)
                return
            exit_code = wait_for(process, request.limit_s)
            self.connection.send(self.read_answer(exit_code))

    def prepare_run(self, session: pytest.Session, request: Request) -> None:
        """Let a fork run some tests."""
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if request.function is not None:
            name, line = request.function
            replace_function(self.module_path, name, line)
        positions = {test: position for position, test in enumerate(request.tests)}
        if not request.runs_others:
            requested_items = []
            for item in session.items:
                if item.nodeid in positions:
                    requested_items.append(item)
            session.items = requested_items
        session.items.sort(key=lambda item: positions.get(item.nodeid, len(positions)))
        if request.notes_lines:
            self.recorder.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.recorder.enter(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """What several tests share is executed for all of them, though in one."""
        test = self.recorder.test
        if fixturedef.scope != "function":
            self.recorder.enter("")
        try:
            return (yield)
        finally:
            self.recorder.enter(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self.recorder.notes.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
        if report.failed and self.failed_test is None:
            self.failed_test = report.nodeid

    def write_answer(self) -> None:
        """Tell the process that forked this one what it noted."""
        notes = self.recorder.notes
        lines = {test: sorted(executed) for test, executed in notes.lines.items()}
        starting = sorted(notes.starting)
        answer = [self.failed_test, lines, notes.seconds, starting]
        self.answer_path.write_text(json.dumps(answer), encoding="utf-8")

    def read_answer(self, exit_code: int) -> Answer:
        if not self.answer_path.exists():
            return Answer(passed=False)
        answer = json.loads(self.answer_path.read_text(encoding="utf-8"))
        failed_test, sorted_lines, seconds, starting = answer
        lines = {test: set(executed) for test, executed in sorted_lines.items()}
        notes = Notes(lines, seconds, set(starting))
        return Answer(passed=exit_code == 0, failed_test=failed_test, notes=notes)


def wait_for(process: int, limit_s: float) -> int:
    """The exit code of a child; one that needs too long is killed, with its own children."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def replace_function(path: Path, name: str, line: int) -> None:
    """Give a function of a module, wherever it is referred to, its code of the file on disk."""
    code = code_of(path.read_bytes(), str(path), name, line)
    gc.unfreeze()  # what is frozen is not listed
    for function in gc.get_objects():
        if not isinstance(function, FunctionType):
            continue
        current = function.__code__
        is_in_module = current.co_filename == code.co_filename
        if is_in_module and (current.co_name, current.co_firstlineno) == (name, line):
            function.__code__ = code
    gc.freeze()


def code_of(source: bytes, path: str, name: str, line: int) -> CodeType:
    """The code of a function, by its name and first line."""
    candidates = [compile(source, path, "exec", dont_inherit=True)]
    while candidates:
        candidate = candidates.pop()
        if (candidate.co_name, candidate.co_firstlineno) == (name, line):
            return candidate
        for value in candidate.co_consts:
            if isinstance(value, CodeType):
                candidates.append(value)
    raise LookupError(name)


def serve(folder: Path, module: str, connection: Connection) -> None:
    """In a process of its own: collect the tests of a module, and run them as asked."""
    os.setsid()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
    os.environ.pop("CI", None)  # what runs in part at home runs in part here
    sys.dont_write_bytecode = True
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options.append(f"--basetemp={folder.parent / 'temporary'}")
    if "heads" not in module:
        options += ["-m", "not slow"]
    server = Server(connection, folder / "detcli" / f"{module}.py")
    server.recorder.start()
    exit_code = pytest.main(options + list(tests_of(module)), plugins=[server])
    server.recorder.stop()
    server.write_answer()
    os._exit(exit_code)


def tests_of(module: str) -> list[str]:
    """The files with the tests of a module."""
    folder = Path("tests", module).parent
    name = Path(module).name
    paths = list(folder.glob(f"test_{name}.py")) + list(folder.glob(f"test_{name}_*.py"))
    tests = [str(path) for path in sorted(paths)]
    for part, more in MORE_TESTS.items():
        if part in module:
            tests += more
    return tests


class CollectionError(Exception):
    """The tests of a module cannot be collected."""


class Collection:
    """A process that has collected the tests of a module as the room has it."""

    def __init__(self, room: Room, module: str) -> None:
        self.connection, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=serve, args=(room.folder, module, theirs))
        self.process.start()
        theirs.close()
        try:
            self.lines: set[int] = self.receive(COLLECTION_LIMIT_S)
        except (EOFError, TimeoutError):
            self.close()
            raise CollectionError(module) from None

    def receive(self, limit_s: float) -> Any:
        if not self.connection.poll(limit_s):
            raise TimeoutError
        return self.connection.recv()

    def run(self, request: Request) -> Answer:
        """Run tests in a fork."""
        self.connection.send(request)
        return self.receive(request.limit_s + COLLECTION_LIMIT_S)

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


class ModuleTests:
    """The tests of a module, which can be run on changes of it."""

    def __init__(self, room: Room, module: str, source: bytes) -> None:
        self.room = room
        self.module = module
        self.source = source
        self.tree = ast.parse(source)
        self.collection = Collection(room, module)
        request = Request([], MEASUREMENT_LIMIT_S, runs_others=True, notes_lines=True)
        answer = self.collection.run(request)
        if not answer.passed or answer.notes is None:
            self.collection.close()
            raise RuntimeError(f"the tests of {module} fail as it is: {answer.failed_test}")
        self.notes = answer.notes
        self.killers: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.collection.close()

    def kill(self, change: Change) -> bool:
        """Whether a test fails on a change of the module."""
        source = change.apply(self.source)
        line = self.source[: change.start].count(b"\n") + 1
        statement, function = self.enclosing(line)
        lines = header(statement)
        tests = self.choose(lines)
        if not tests:
            return False
        seconds = 0.0
        for test in tests:
            seconds += self.notes.seconds.get(test, 0)
        limit_s = 20 + 5 * seconds
        self.room.write(self.module, source)
        if function is not None and self.is_replaceable(function, source):
            request = Request(tests, limit_s, function=(function.name, first_line(function)))
            answer = self.collection.run(request)
        else:
            # Names of tests may follow from what was changed, so all are run that there are now.
            answer = self.run_collected_anew(Request(tests, limit_s, runs_others=True))
        self.room.write(self.module, self.source)
        if answer.failed_test is not None:
            self.note_killer(answer.failed_test)
        return not answer.passed

    def run_collected_anew(self, request: Request) -> Answer:
        """Run tests in a process that collects them with the changed module."""
        try:
            collection = Collection(self.room, self.module)
        except CollectionError:
            return Answer(passed=False)
        try:
            return collection.run(request)
        except (EOFError, TimeoutError):
            return Answer(passed=False)
        finally:
            collection.close()

    def choose(self, lines: range) -> list[str]:
        """The tests that execute some of these lines: those that killed first, then the fastest."""
        shared = self.notes.lines[""] | self.collection.lines
        all_tests_run_these = not shared.isdisjoint(lines)
        tests = []
        for test, executed in self.notes.lines.items():
            if not test:  # what all tests share
                continue
            runs_these = test in self.notes.starting or not executed.isdisjoint(lines)
            if all_tests_run_these or runs_these:
                tests.append(test)

        def rank(test: str) -> tuple[bool, bool, float]:
            is_other = test not in self.killers
            return is_other, test in self.notes.starting, self.notes.seconds.get(test, 0)

        return sorted(tests, key=rank)

    def is_replaceable(self, function: ast.FunctionDef, source: bytes) -> bool:
        """Whether a function can get other code: nothing ran it while the tests were collected."""
        last_line = function.end_lineno or function.lineno
        if not self.collection.lines.isdisjoint(range(function.body[0].lineno, last_line + 1)):
            return False
        name, line = function.name, first_line(function)
        try:
            changed = code_of(source, "", name, line)
        except SyntaxError:
            return False
        return changed.co_freevars == code_of(self.source, "", name, line).co_freevars

    def note_killer(self, test: str) -> None:
        """A test that fails on a change has to pass without it, alone as well."""
        if test in self.killers:
            return
        answer = self.collection.run(Request([test], 60 + 5 * self.notes.seconds.get(test, 0)))
        if not answer.passed:
            raise RuntimeError(f"{test} passes after others only")
        self.killers.add(test)

    def enclosing(self, line: int) -> tuple[ast.stmt, ast.FunctionDef | None]:
        """The innermost statement at a line, and the outermost function whose body it is in."""
        statement: ast.stmt = self.tree.body[0]
        function = None
        body = self.tree.body
        while body:
            inner_statement = statement_at(line, body)
            if inner_statement is None:
                break
            if function is None and isinstance(statement, ast.FunctionDef):
                function = statement
            statement = inner_statement
            body = substatements(statement)
        return statement, function


def statement_at(line: int, body: list[ast.stmt]) -> ast.stmt | None:
    """The statement of a body that a line belongs to."""
    for statement in body:
        if first_line(statement) <= line <= (statement.end_lineno or 0):
            return statement
    return None


def substatements(statement: ast.AST) -> list[ast.stmt]:
    """The statements that are part of a statement."""
    parts: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            parts.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            parts += substatements(child)
    return parts


def header(statement: ast.stmt) -> range:
    """The lines of a statement, without those of statements in it."""
    start = first_line(statement)
    parts = substatements(statement)
    if not parts:
        return range(start, (statement.end_lineno or start) + 1)
    return range(start, max(start + 1, first_line(parts[0])))


def first_line(statement: ast.stmt) -> int:
    """The line of a statement's first decorator, else its own."""
    line = statement.lineno
    for decorator in getattr(statement, "decorator_list", []):
        line = min(line, decorator.lineno)
    return line
