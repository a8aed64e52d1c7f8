"""What tests of commands share: a command line without a process of its own."""

import logging
import os
import subprocess
import warnings
from collections.abc import Callable

import pytest
from typer.testing import CliRunner


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line within the test's process: a second faster than `detcli`."""
    from detcli.app import app

    def run(*arguments: object, cwd: os.PathLike | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        command = [str(argument) for argument in arguments]
        with warnings.catch_warnings():  # the commands choose which warnings to show, and how
            result = CliRunner().invoke(app, command, prog_name="detcli")
        logging.disable(logging.NOTSET)
        return subprocess.CompletedProcess(command, result.exit_code, result.stdout, result.stderr)

    return run
