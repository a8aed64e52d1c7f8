"""The parts of the check, each in its own process with a time limit."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE = "every kernel was launched, every answer is right"
"""What `launches.py` ends with."""

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

SANITIZERS = {"memcheck": True, "racecheck": True, "synccheck": True, "initcheck": False}
"""Tools of compute-sanitizer, and whether what they find makes the check fail. initcheck also
reports copies of the unused memory behind a result's last row."""

SUMMARY = re.compile(r"SUMMARY: (\d+)[^(\n]*(?:\((\d+) errors?\b)?")
UNSUPPORTED = re.compile(
    r"^=+ .*(?:not supported|Unable to|Internal Sanitizer Error).*$", re.MULTILINE
)


@dataclass
class Part:
    """The outcome of one part.

    Attributes:
        name: Of the part.
        outcome: PASSED, FAILED or NOT_RUN.
        reason: Why, where it is not PASSED.
        seconds: How long it took.
        more: Its findings.
    """

    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


class Runner:
    """Runs commands in sequence until the time is up.

    Attributes:
        folder: Where parts leave files.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self._end = time.monotonic() + seconds
        self._log = folder / "gpu-check.log"
        self._log.unlink(missing_ok=True)

    def left(self) -> float:
        """Seconds left for all parts."""
        return self._end - time.monotonic()

    def run(self, command: list[str], limit: float) -> tuple[int | None, str, float]:
        """Run a command and log its output.

        Returns:
            Its status, None on a timeout; its output; its duration in seconds.
        """
        start = time.monotonic()
        limit = min(limit, self.left())
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its children end with it
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
                status: int | None = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                status = None
        seconds = time.monotonic() - start
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n{output}\n[status {status}, {seconds:.1f} s]\n")
        return status, output, seconds


def run_tests(runner: Runner, limit: float, tests: list[str]) -> Part:
    """The tests with the marker `gpu`."""
    out = runner.folder / "tests.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu.suite", "--out", str(out), *tests]
    status, output, seconds = runner.run(command, limit)
    results = read_lines(out)
    out.unlink(missing_ok=True)
    counts = Counter(result["outcome"] for result in results)
    more = {
        "counts": {outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")},
        "failed": [
            f"{one['test']}: {one['reason']}" for one in results if one["outcome"] == FAILED
        ],
        "skipped": dict(Counter(one["reason"] for one in results if one["outcome"] == "skipped")),
    }
    if status is None:
        last = results[-1]["test"] if results else "none"
        return Part("tests", FAILED, f"out of time; the last was {last}", seconds, more)
    if status == 0 and counts["passed"]:
        return Part("tests", PASSED, "", seconds, more)
    reason = f"{counts['failed']} failed" if counts["failed"] else _last_line(output, status)
    return Part("tests", FAILED, reason, seconds, more)


def run_sanitizer(runner: Runner, limit: float, tool: str) -> Part:
    """One tool of compute-sanitizer over every kernel."""
    program = shutil.which("compute-sanitizer") or _beside_cuda("compute-sanitizer")
    if program is None:
        return Part(tool, NOT_RUN, "compute-sanitizer is not installed")
    options = ["--tool", tool]
    if tool == "memcheck":
        # Packages probe for functions that an older driver lacks; our own calls raise.
        options += ["--report-api-errors", "no"]
    command = [program, *options, sys.executable, "-m", "benchmarks.gpu.launches"]
    status, output, seconds = runner.run(command, limit)
    if status is None:
        return Part(tool, NOT_RUN, f"not done after {seconds:.0f} s", seconds)
    return judge_sanitizer(tool, status, output, seconds)


def judge_sanitizer(tool: str, status: int, output: str, seconds: float) -> Part:
    """The outcome according to a sanitizer's output."""
    summary = SUMMARY.findall(output)
    if not summary or DONE not in output:
        found = UNSUPPORTED.search(output)
        reason = found[0].strip("= \t") if found else _last_line(output, status)
        return Part(tool, NOT_RUN if found else FAILED, reason, seconds)
    findings, errors = summary[-1]  # racecheck tells errors from warnings
    if findings == "0":
        return Part(tool, PASSED, "", seconds)
    fatal = SANITIZERS[tool] and errors != "0"
    return Part(tool, FAILED if fatal else PASSED, f"{findings} findings, see the log", seconds)


def run_section(runner: Runner, limit: float, section: str, options: list[str]) -> Part:
    """One section of the benchmark."""
    out = runner.folder / f"{section}.json"
    command = [sys.executable, "-m", "benchmarks.gpu.bench", section, "--out", str(out), *options]
    status, output, seconds = runner.run(command, limit)
    more = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    for left_over in (out, out.with_suffix(".part")):
        left_over.unlink(missing_ok=True)
    if status == 0:
        return Part(section, PASSED, "", seconds, more)
    if status is None:
        return Part(section, NOT_RUN, f"stopped after {seconds:.0f} s", seconds, more)
    reason = "; ".join(more.get("failed", [])) or _last_line(output, status)
    return Part(section, FAILED, reason, seconds, more)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON Lines file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _beside_cuda(program: str) -> str | None:
    """Path of a program in the CUDA toolkit, which may not be on the PATH."""
    folder = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    places = (folder / "bin" / program, folder / program / program)
    return next((str(path) for path in places if path.is_file()), None)


def _last_line(output: str, status: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"status {status}: {lines[-1][:300] if lines else 'no output'}"
