"""What all tests share: a cache of their own, small models, and the real ones where they are."""

import atexit
import functools
import gc
import logging
import os
import random as chances
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import browser
import colour_model
import cv2
import forked
import hub_server
import hypothesis
import numpy as np
import optional
import patient_threads  # noqa: F401
import pytest
import thinning
import warm
from typer.testing import CliRunner

if TYPE_CHECKING:
    import s3_server
    from backend.cuda.libcuda import FakeDriver
    from backend.cuda.shim import Shim
    from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent
SHARED = TESTS.parents[1] / "shared"

# Nothing of the user's Hugging Face account is read, and nothing is fetched from anywhere. The
# library reads these when it is imported, which test files do.
for name in list(os.environ):
    if name.startswith(("HF_", "HUGGINGFACE_")):
        del os.environ[name]
os.environ["HF_HOME"] = str(Path(__file__).with_name("no-such-folder"))
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # where nobody listens
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

# As the command line sets it: the process that is forked for each command has loaded OpenCV.
os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = "200000000"

# Nor of accounts for object stores, nor of what the caller sets for detcli.
for name in list(os.environ):
    if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "DETCLI_")):
        del os.environ[name]

# No test asserts a time, and a busy machine makes any example slow.
# CI tries the same examples each time, so that a change is judged by itself; at night, and wherever
# somebody can act on them, new ones are looked for.
hypothesis.settings.register_profile(
    "detcli",
    deadline=None,
    max_examples=100 if thinning.RUNS_WHOLE else 25,
    derandomize=thinning.IN_CI and not thinning.RUNS_AT_NIGHT,
)
hypothesis.settings.load_profile("detcli")


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores: a third of a worker's time, it waits for what tests wait for."""
    cores = os.cpu_count() or 1
    return cores + cores // 2


SLOW = "pytest.mark.slow"
"""What a file whose tests `make quick` leaves out has in its `pytestmark`."""


def is_slow(path: Path) -> bool:
    """Whether a test file marks itself slow; read, not imported, as that takes long as well.

    A file where some tests are marked, each by a decorator, has others that are quick.
    """
    if not path.match("test_*.py"):
        return False
    text = path.read_text(encoding="utf-8")
    return SLOW in text.replace(f"@{SLOW}", "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the slow files where they are left out."""
    if config.option.markexpr == "not slow" and collection_path.is_relative_to(TESTS):
        return is_slow(collection_path) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of slow files, so that no worker ends with one alone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker tell what it thinned."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["thinned"] = thinning.to_report()


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_testnodedown(node: "WorkerController") -> None:
    """Hear what a worker thinned; one that crashed tells nothing."""
    thinning.add_report(getattr(node, "workeroutput", {}).get("thinned", []))


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Say why tests were skipped, a line for each reason with the files' common folder; and what
    was thinned.
    """
    files: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        files.setdefault(reason, []).append(report.nodeid.partition("::")[0])
    for reason, places in sorted(files.items(), key=lambda item: -len(item[1])):
        where = os.path.commonpath(places) or "everywhere"
        terminalreporter.write_line(f"SKIPPED [{len(places)}] {where}: {reason}")
    for line in thinning.summary():
        terminalreporter.write_line(line)


def pytest_collection() -> None:
    """Keep the garbage collector from looking through all modules and tests again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on it looks through what the tests make, and through nothing that was there."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python find them when it ends: libraries report what is left then as leaked.

    pytest itself looks for garbage before, in vain. A worker has no end that anybody sees.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Nothing waits for the disk; tests about that replace `os.fsync` themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from the user's cache and defaults, nor written to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DETCLI_CONFIG", os.devnull)
        patch.delenv("DETCLI_MODEL", raising=False)
        patch.setenv("DETCLI_DEVICE", "cpu")  # what is tested, unless a test says otherwise
        patch.setenv("DETCLI_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def _answers_to_doctor() -> Callable[..., object]:
    """What `detcli doctor` asks processes about this machine, each question once."""
    from detcli.commands.doctor import examine

    return functools.cache(examine.ask)


@pytest.fixture
def doctor_asks_once(
    _answers_to_doctor: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions that take a process each are asked once for all tests that use this."""
    from detcli.commands.doctor import examine

    monkeypatch.setattr(examine, "ask", _answers_to_doctor)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Heights and widths of the images that the CPU's backend makes arrays for."""
    from detcli.backend.cpu import CpuBackend
    from detcli.data.geometry import new_image

    sizes = []
    note = lambda _, size: sizes.append(size) or new_image(size)  # noqa: E731
    monkeypatch.setattr(CpuBackend, "allocate", note)
    return sizes


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A Hugging Face hub for this test alone, with an empty cache for what it sends."""
    import huggingface_hub

    with hub_server.serve() as hub:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
        huggingface_hub.close_session()


@pytest.fixture(scope="session")
def shim(pytestconfig: pytest.Config) -> "Shim":
    """The package's kernels; what was built stays in pytest's cache for the next run."""
    from backend.cuda.shim import Shim, kernel_sources

    return Shim(kernel_sources(), pytestconfig.cache.mkdir("shim"))


def order_of_each_launch(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Draws whether threads run in reverse, the same for a test each time it runs.

    What lacks a barrier shows in one of the two orders; test_barriers.py runs its cases in both.
    """
    chance = chances.Random(request.node.nodeid)  # noqa: S311
    return lambda: bool(chance.getrandbits(1))


@pytest.fixture(scope="session")
def _driver_on_the_cpu(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> "FakeDriver":
    optional.require("cuda.core")
    from backend.cuda.libcuda import FakeDriver

    shim = request.getfixturevalue("shim")  # not before: it takes a compiler half a minute
    return FakeDriver(shim, pytestconfig.cache.mkdir("shim"))


@pytest.fixture
def driver(
    _driver_on_the_cpu: "FakeDriver",
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> "Iterator[FakeDriver]":
    """A driver without a GPU, whose streams are late."""
    # The compiler needs seconds for each file, and tests whether it runs are elsewhere.
    monkeypatch.setenv("DETCLI_CACHE_DIR", str(pytestconfig.cache.mkdir("cubins")))
    _driver_on_the_cpu.start(reverse=order_of_each_launch(request))
    yield _driver_on_the_cpu
    _driver_on_the_cpu.stop()


@pytest.fixture(scope="session")
def _s3() -> "Iterator[s3_server.S3]":
    for module in ("moto", "flask", "flask_cors", "botocore", "obstore"):
        optional.require(module)
    import s3_server

    server = s3_server.S3()
    yield server
    server.close()


@pytest.fixture
def s3(_s3: "s3_server.S3", monkeypatch: pytest.MonkeyPatch) -> "Iterator[s3_server.S3]":
    """An empty S3 server, which the variables name."""
    import s3_server

    for name, value in s3_server.environment(_s3).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("detcli.storage.objects.FIRST_WAIT_S", 0.01)
    _s3.reset()
    yield _s3
    _s3.reset()


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a colour model, see `colour_model.build`, and return its path."""

    def make(name: str = "colours.onnx", tail: str = "body", **options: object) -> Path:
        options.setdefault("metadata", {"names": str(dict(enumerate(colour_model.NAMES)))})
        path = tmp_path / name
        path.write_bytes(colour_model.build(tail, **options).SerializeToString())
        return path

    return make


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., Path]:
    """Write an image, see `colour_model.picture`, and return its path."""

    def make(name: str, *squares: tuple[str, int, int], size: tuple[int, int] = (64, 64)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded, data = cv2.imencode(path.suffix, colour_model.image_of(squares, size=size))
        assert encoded
        path.write_bytes(data.tobytes())
        return path

    return make


@pytest.fixture
def detcli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own; a list stands for its words.

    It is a fork that finds most imports done, unless other streams are given, or another place to
    find modules and libraries.
    """

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        environment = options.get("env", os.environ)
        has_only_fork_options = options.keys() <= {"input", "cwd", "text", "timeout", "env"}
        if has_only_fork_options and forked.can_run_in_fork(environment):
            return forked.run(arguments, **options)
        command = [sys.executable, "-m", "detcli"] + forked.words_of(arguments)
        options = {"capture_output": True, "text": True, "timeout": 60} | options
        if isinstance(options.get("input"), bytes):
            options["text"] = False
        return subprocess.run(command, check=False, **options)  # type: ignore[call-overload]

    return run


@pytest.fixture(scope="session")
def warm_detcli(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with a `detcli` that starts fast, for tests whose shells start it often."""
    if sys.platform != "linux":
        return Path(sys.executable).parent
    folder = tmp_path_factory.mktemp("warm")
    warm.start(folder)
    return folder


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """Path of a file in ../shared; the test is skipped where it is not there."""

    def path(name: str) -> Path:
        if not SHARED.exists():
            pytest.skip("../shared is not there")
        if not (SHARED / name).exists():
            pytest.skip(f"../shared/{name} is not there")
        return SHARED / name

    return path


@pytest.fixture
def random() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line within the test's process: a second faster than `detcli`.

    A list among the arguments stands for its words.
    """
    from detcli.cli.app import app

    def run(*arguments: object, cwd: os.PathLike | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        command = forked.words_of(arguments)
        with warnings.catch_warnings():  # the commands choose which warnings to show, and how
            result = CliRunner().invoke(app, command, prog_name="detcli")
        logging.disable(logging.NOTSET)
        return subprocess.CompletedProcess(command, result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[browser.Browser]":
    """One browser for all tests that need one, as it takes seconds to start."""
    browser.require()
    with browser.chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
