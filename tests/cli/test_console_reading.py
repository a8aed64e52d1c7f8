"""The bar that shows how far the records of an earlier run are read."""

import os
import pty
import subprocess
import sys

import terminals

from detcli.cli.console import reading_progress

READING = """
import time
from detcli.cli.console import reading_progress, set_verbosity

set_verbosity(quiet=False, verbose=0)
with reading_progress() as show:
    show(20_000, 0.5)
    time.sleep(0.3)
"""


def test_there_is_no_bar_where_stderr_is_no_terminal():
    with reading_progress() as show:
        assert show is None


def test_a_terminal_shows_how_many_records_were_read():
    terminal, stderr = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", READING], stderr=stderr, env=environment)
    os.close(stderr)
    screen = terminals.read_all(terminal).decode()
    assert process.wait() == 0
    assert "reading 20,000 records" in screen
