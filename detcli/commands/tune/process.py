"""A command of detcli in a process of its own, whose report is read."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from detcli.cli.console import process_error
from detcli.cli.defaults import FILE_VARIABLE
from detcli.core.errors import CheckError, InputError
from detcli.core.packages import python_executable
from detcli.core.text import shell_line

log = logging.getLogger(__name__)

CODES_AFTER_REPORT = {InputError.exit_code, CheckError.exit_code}
"""Exit codes that may come after all the work, such as that of an image that cannot be read."""


def run_detcli(
    name: str,
    options: Sequence[str],
    arguments: Sequence[str] = (),
    timeout_s: float | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """Run a command of detcli, and read its report from standard output.

    Args:
        name: The name of the command.
        options: Its options.
        arguments: Its arguments.
        timeout_s: How many seconds it may take; None for no limit.

    Returns:
        The report as JSON; None from predict, whose records go to a file.

    Raises:
        subprocess.TimeoutExpired: It took too long.
        DetcliError: The command failed; this is the error that it has printed.
    """
    python = python_executable("tune")
    prints_report = name != "predict"
    command = [name, "--quiet"]
    if prints_report:
        command += ["--format", "json"]
    command += options
    if arguments:
        command += ["--", *arguments]
    log.info("%s", shell_line(["detcli", *command]))

    process = _run_process([python, "-m", "detcli", *command], timeout_s)
    exit_code = process.returncode
    is_complete = exit_code == 0
    if exit_code in CODES_AFTER_REPORT:
        # With these codes the command may have done all its work, or have failed before. If it has
        # printed its report, it has done its work. predict prints none, so its code is trusted.
        is_complete = bool(process.stdout) or not prints_report
    if not is_complete:
        raise process_error(exit_code, process.stderr)

    if not prints_report:
        return None
    return json.loads(process.stdout)


def _run_process(
    command: Sequence[str], timeout_s: float | None
) -> "subprocess.CompletedProcess[str]":
    """Run a process to its end, and read what it writes to standard output and standard error.

    It and its children are killed if it takes too long, or at an interrupt.

    Raises:
        subprocess.TimeoutExpired: It took too long.
    """
    try:
        with subprocess.Popen(  # noqa: S603 - detcli itself
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # The user's defaults are not measured.
            env={**os.environ, FILE_VARIABLE: os.devnull},
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            finally:
                _kill_group(process)
    except KeyboardInterrupt:  # perhaps before Popen had returned
        _kill_children()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _kill_children() -> None:
    """Kill all processes that this process has started, and those that they have started."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process that still runs, and those that it has started."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
