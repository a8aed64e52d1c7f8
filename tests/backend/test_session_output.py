"""Nothing that a library prints reaches standard output, whichever way it prints."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, os, sys
from detcli.backend.libraries import stdout_to_stderr

libc = ctypes.CDLL(None)
libc.printf(b"1 C before\\n")
print("2 Python before")
with stdout_to_stderr():
    libc.printf(b"3 C inside\\n")
    print("4 Python inside")
    if sys.stderr:
        os.write(1, b"5 system call inside\\n")
libc.printf(b"6 C after\\n")
print("7 Python after")
"""


def run(shell):
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", SCRIPT]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="the script loads the C library of Unix")
def test_each_way_of_printing():
    """Into a pipe, where both buffers are large and an unflushed one is written too late."""
    finished = run('exec "$@"')
    assert finished.returncode == 0, finished.stderr
    assert [line[0] for line in sorted(finished.stdout.splitlines())] == ["1", "2", "6", "7"]
    assert [line[0] for line in sorted(finished.stderr.splitlines())] == ["3", "4", "5"]


@pytest.mark.skipif(sys.platform == "win32", reason="a Unix shell closes them")
@pytest.mark.parametrize(
    ("closed", "stdout"),
    [("2>&-", ["1", "2", "6", "7"]), (">&-", []), (">&- 2>&-", []), ("<&- >&-", [])],
)
def test_with_a_descriptor_closed(closed, stdout):
    finished = run(f'exec "$@" {closed}')
    assert finished.returncode == 0, finished.stderr
    assert [line[0] for line in sorted(finished.stdout.splitlines())] == stdout
