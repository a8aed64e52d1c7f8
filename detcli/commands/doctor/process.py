"""Asks in a process of its own what may crash or never answer: that is a finding too."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from detcli.commands.doctor.privacy import scrub

PATIENCE_S = 120
NO_PYTHON = "Python does not start"

# What it prints last is one JSON object; what libraries print before it does not matter.
FRAME = """
import contextlib, json, sys
sys.path[:] = {path!r}
with contextlib.suppress(ImportError):  # Windows has no such files
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves nothing in this folder
try:
    answer = {{"value": {expression}}}
except BaseException as error:
    while error.__cause__ is not None:
        error = error.__cause__
    answer = {{"error": str(error) or type(error).__name__}}
sys.stdout.write("\\n" + json.dumps(answer) + "\\n")
sys.stdout.flush()
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a question.

    Attributes:
        value: The answer, as far as JSON holds it.
        error: Why there is none; None where there is one.
    """

    value: Any = None
    error: str | None = None


def load(module: str, attribute: str) -> Outcome:
    """Import a module and look for something in it, which an empty folder does not have."""
    return evaluate(f"[__import__({module!r}).{attribute}, None][1]")


def call(module: str, function: str, *arguments: str) -> Outcome:
    """Call a function of a module."""
    return evaluate(f"__import__({module!r}, fromlist=['it']).{function}(*{arguments!r})")


def evaluate(expression: str) -> Outcome:
    """Evaluate an expression in a process that looks for modules where this one does.

    It has no cache, so that nothing of what is tried there stays.

    Args:
        expression: Python; its value must be one that JSON can hold.
    """
    code = FRAME.format(path=sys.path, expression=expression)
    nowhere = {"DETCLI_CACHE_DIR": os.devnull}  # no folder, and none can be made in it
    try:
        done = subprocess.run(  # noqa: S603 - this very Python, and constants
            [sys.executable, "-P", "-c", code],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            env={"ORT_DISABLE_TELEMETRY": "1", **os.environ, **nowhere},
        )
    except subprocess.TimeoutExpired:
        return Outcome(error=f"no answer within {PATIENCE_S} s")
    except OSError as error:
        return Outcome(error=f"{NO_PYTHON}: {error.strerror}")
    if done.returncode < 0:
        return Outcome(error=f"it crashed ({_signal_name(-done.returncode)})")
    try:
        answer = json.loads(done.stdout.rstrip("\n").rpartition("\n")[2])
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2]
        return Outcome(error=scrub(said) or f"it ended with {done.returncode}")
    if "error" in answer:
        return Outcome(error=scrub(answer["error"].strip().partition("\n")[0]))
    return Outcome(value=answer["value"])


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    if name == "SIGILL":
        return "SIGILL: it was built for a newer CPU than this one"
    return name
