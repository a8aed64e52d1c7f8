"""Libraries that fail in every way, each in a separate process."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detcli.commands.doctor import process
from detcli.commands.doctor.packages import REQUIRED
from detcli.commands.doctor.process import Outcome, evaluate, load


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that is found first on the path, and load it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code, name="odd_library"):
        (tmp_path / f"{name}.py").write_text(code)
        return load(name, "__name__")

    return write


def test_a_module_that_loads(module):
    assert module("") == Outcome()


def test_an_empty_folder_lacks_the_attribute(tmp_path, monkeypatch):
    """As left behind by a package that had overwritten another's files."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_folder/capi").mkdir(parents=True)
    assert "has no attribute 'Session'" in load("odd_folder", "Session").error


def test_a_missing_module():
    assert load("no_such_module", "x").error == "No module named 'no_such_module'"


def test_the_first_cause_is_reported_without_folders(module):
    said = "/home/zaphod/lib/libGL.so.1: cannot open shared object file"
    code = f"try:\n  raise OSError('{said}')\nexcept OSError as e:\n  raise ImportError('x') from e"
    assert module(code).error == "libGL.so.1: cannot open shared object file"


def test_an_error_without_a_message(module):
    assert module("raise KeyboardInterrupt").error == "KeyboardInterrupt"


def test_output_of_the_module_is_ignored(module):
    assert module("print('{\"error\": 1}', end='')") == Outcome()


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSEGV, "crashed with SIGSEGV"),
        (signal.SIGILL, "crashed with SIGILL: it was built for a newer CPU"),
    ],
)
def test_a_crash(module, number, said):
    assert module(f"import os\nos.kill(os.getpid(), {int(number)})").error == said


def test_crashes_leave_no_core_file():
    resource = pytest.importorskip("resource")
    core = f"__import__('resource').getrlimit({resource.RLIMIT_CORE})"
    assert evaluate(core).value == [0, 0]


def test_a_process_that_exits(module):
    code = "import os, sys\nsys.stderr.write('first\\ngiving up\\n')\nsys.stderr.flush()\n"
    assert module(f"{code}os._exit(3)").error == "giving up"
    assert module("import os\nos._exit(3)").error == "exited with code 3"


def test_a_library_that_hangs(monkeypatch):
    monkeypatch.setattr(process, "TIMEOUT_S", 0.2)
    assert evaluate("__import__('time').sleep(60)").error == "no answer within 0.2 s"


def test_a_python_that_does_not_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert load("json", "loads").error == "Python does not start: No such file or directory"


def test_the_process_has_no_cache_and_no_telemetry(monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    found = evaluate("dict(__import__('os').environ)").value
    assert found["ORT_DISABLE_TELEMETRY"] == "1"
    assert not Path(found["DETCLI_CACHE_DIR"]).is_dir()


def test_a_signal_without_a_name(monkeypatch):
    done = subprocess.CompletedProcess([], -200, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_kwargs: done)
    assert load("json", "loads").error == "crashed with signal 200"


def test_the_required_modules_have_their_attributes():
    for name, attribute in REQUIRED.items():
        assert hasattr(importlib.import_module(name), attribute)
    assert load("onnx", REQUIRED["onnx"]) == Outcome()
