"""Checks the CUDA backend on this machine's GPU, then times it: `make gpu-check`.

    PYTHONPATH=.:tests python -m benchmarks.gpu --out build/gpu-check

Writes gpu-check.json, gpu-check.md and gpu-check.log after each part, and continues when a part
fails. Exits with 1 if a check failed, with 5 if no GPU can be used.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import DONE, PROVIDER_OPTIONS, report
from benchmarks.gpu.report import FAILED, NOT_RUN, PASSED, Part

ROOT = Path(__file__).parents[3]

SANITIZERS = {"memcheck": 90, "racecheck": 90, "synccheck": 30, "initcheck": 30}
CHECKS = {"launches": 120, "graphs": 120}
BENCHMARKS = {
    "selection": 150,
    "letterbox": 90,
    "nms": 60,
    "network": 150,
    "end_to_end": 300,
    "top_k": 90,
}
WITH_A_MODEL = ("network", "end_to_end")
TESTS = 240
COUNTERS = 120
PART_LIMIT = 540
MIN_SECONDS = 15
"""Seconds. A part takes PART_LIMIT at most, so that it fits into ten minutes by itself. None starts
with less than MIN_SECONDS left. Cases of a benchmark that do not fit any more are left out, and
what was measured until then is kept."""

HARMLESS = {"initcheck"}
"""Does not fail the check: it also reports copies of the unused memory behind the last row."""

SUMMARY = re.compile(r"SUMMARY: (\d+)[^(\n]*(?:\((\d+) errors?\b)?")
UNSUPPORTED = re.compile(
    r"^=+ .*(?:not supported|Unable to|Internal Sanitizer Error).*$", re.MULTILINE
)


def look(seconds: float = 120) -> tuple[dict[str, Any], str]:
    """Describe the machine, in another process so that no context stays on the GPU.

    Returns:
        The machine, and why its GPU cannot be used; one of the two is empty.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.devices"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer for {seconds:.0f} s"
    if process.returncode:
        return {}, process.stderr.strip().rpartition("\n")[2]
    return json.loads(process.stdout.splitlines()[-1]), ""


class Runner:
    """Runs commands in sequence until the time is up; the parts' files go to `folder`."""

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


def run_tests(runner: Runner, limit: float, name: str, tests: list[str]) -> Part:
    """The tests with the marker `gpu`.

    Warnings are not errors here: they depend on versions, which other tests check. A file that
    cannot be collected because a package is missing does not stop the others.
    """
    out = runner.folder / "tests.jsonl"
    command = [
        "env",
        f"RESULTS={out}",
        "WHOLE_SUITE=1",  # see tests/thinning.py
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "benchmarks.gpu.recorder",
    ]
    command += ["-m", "gpu", "-q", "-W", "default", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--continue-on-collection-errors", "--tb=short", "--no-header"]
    command += ["--import-mode=importlib", "-c", str(ROOT / "pyproject.toml")] + tests
    status, output, seconds = runner.run(command, limit)
    # A line is incomplete where the process ended while it was written.
    lines = out.read_text(encoding="utf-8").split("\n")[:-1] if out.exists() else []
    out.unlink(missing_ok=True)
    results = [json.loads(line) for line in lines]
    counts = Counter(result["outcome"] for result in results)
    failures = []
    skip_reasons: Counter[str] = Counter()
    for result in results:
        if result["outcome"] == FAILED:
            failures.append(f"{result['test']}: {result['reason']}")
        elif result["outcome"] == "skipped":
            skip_reasons[result["reason"]] += 1
    figures = {
        "counts": {
            "passed": counts["passed"],
            "failed": counts["failed"],
            "skipped": counts["skipped"],
        },
        "failed": failures,
        "skipped": dict(skip_reasons),
    }
    if status == 0 and counts["passed"]:
        return Part(name, PASSED, "", seconds, figures)
    if status is None:
        reason = f"out of time; the last was {results[-1]['test'] if results else 'none'}"
    elif counts["failed"]:
        reason = f"{counts['failed']} failed"
    else:
        reason = _last_line(output, status)
    return Part(name, FAILED, reason, seconds, figures)


def run_sanitizer(runner: Runner, limit: float, tool: str) -> Part:
    """One tool of compute-sanitizer over every kernel."""
    program = find_program("compute-sanitizer") or sanitizer_of_wheel(runner.folder)
    if program is None:
        return Part(tool, NOT_RUN, "compute-sanitizer is not installed")
    options = ["--tool", tool]
    if tool == "memcheck":
        # Packages probe for functions that an older driver lacks; our own calls raise.
        options += ["--report-api-errors", "no"]
    command = [program] + options + [sys.executable, "-m", "benchmarks.gpu.launches"]
    status, output, seconds = runner.run(command, limit)
    if status is None:
        return Part(tool, NOT_RUN, f"not done after {seconds:.0f} s", seconds)
    return judge_sanitizer(tool, status, output, seconds)


def judge_sanitizer(tool: str, status: int, output: str, seconds: float) -> Part:
    """The outcome according to a sanitizer's output."""
    summary = SUMMARY.findall(output)
    if not summary or DONE not in output:
        complaint = UNSUPPORTED.search(output)
        reason = complaint[0].strip("= \t") if complaint else _last_line(output, status)
        return Part(tool, NOT_RUN if complaint else FAILED, reason, seconds)
    findings, errors = summary[-1]  # racecheck tells errors from warnings
    if findings == "0":
        return Part(tool, PASSED, "", seconds)
    fatal = tool not in HARMLESS and errors != "0"
    return Part(tool, FAILED if fatal else PASSED, f"{findings} findings, see the log", seconds)


def run_section(runner: Runner, limit: float, section: str, options: list[str]) -> Part:
    """One section of the benchmark."""
    out = runner.folder / f"{section}.json"
    command = [sys.executable, "-m", "benchmarks.gpu.bench", section]
    command += ["--out", str(out)] + options
    status, output, seconds = runner.run(command, limit)
    figures = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    out.unlink(missing_ok=True)
    out.with_suffix(".part").unlink(missing_ok=True)
    if status == 0:
        return Part(section, PASSED, "", seconds, figures)
    if status is None:
        return Part(section, NOT_RUN, f"stopped after {seconds:.0f} s", seconds, figures)
    reason = "; ".join(figures.get("failed", [])) or _last_line(output, status)
    return Part(section, FAILED, reason, seconds, figures)


def find_program(program: str) -> str | None:
    """Path of a program, on the PATH or in the CUDA toolkit."""
    path = shutil.which(program)
    if path is not None:
        return path
    folder = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for candidate in (folder / "bin" / program, folder / program / program):
        if candidate.is_file():
            return str(candidate)
    return None


def sanitizer_of_wheel(folder: Path) -> str | None:
    """Path of the compute-sanitizer of NVIDIA's wheel, if that is installed.

    The one for CUDA 12 comes without the right to be executed, and looks for its libraries beside
    itself, where the wheel does not put them; so all of it is copied to a folder.
    """
    programs = []
    for packages in sys.path:
        programs += Path(packages).glob("nvidia/*/compute-sanitizer/compute-sanitizer")
        programs += Path(packages).glob("nvidia/*/bin/compute-sanitizer")
    if not programs:
        return None
    program = programs[0]
    copies = folder / "sanitizer"
    if not (copies / program.name).exists():
        copies.mkdir(exist_ok=True)
        libraries = list(program.parent.parent.glob("lib/*.so"))
        for file in list(program.parent.glob("*")) + libraries:
            if file.is_file():
                shutil.copy(file, copies)
        (copies / program.name).chmod(0o755)
    return str(copies / program.name)


def run_check(runner: Runner, limit: float, name: str, options: list[str]) -> Part:
    """A program of ours that prints DONE, or what is wrong."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}"] + options
    status, output, seconds = runner.run(command, limit)
    if status is None:
        return Part(name, NOT_RUN, f"not done after {seconds:.0f} s", seconds)
    right = status == 0 and DONE in output
    return Part(
        name, PASSED if right else FAILED, "" if right else _last_line(output, status), seconds
    )


def run_profiler(runner: Runner, limit: float) -> Part:
    """The hardware counters of every kernel, in a file of the folder."""
    name = "counters"
    out = runner.folder / f"{name}.txt"
    program = find_program("ncu")
    if program is None:
        return Part(name, NOT_RUN, "ncu is not installed")
    options = ["--set=basic", "--clock-control=none", f"--log-file={out}"]
    command = [program] + options + [sys.executable, "-m", "benchmarks.gpu.launches"]
    status, output, seconds = runner.run(command, limit)
    if status != 0:
        why = f"not done after {seconds:.0f} s" if status is None else _last_line(output, status)
        return Part(name, NOT_RUN, why, seconds)
    return Part(name, PASSED, f"see {out.name}", seconds)


def _last_line(output: str, status: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"status {status}: {lines[-1][:300] if lines else 'no output'}"


@dataclass(frozen=True)
class Step:
    """A part of the check that is yet to run."""

    name: str
    limit_s: float
    run: Callable[[Runner, float], Part]  # with at most this many seconds


def steps_of(arguments: argparse.Namespace) -> list[Step]:
    """List all parts in the order of their value: ten minutes tell whether the answers are right.

    The first is the order of shapes with which ONNX Runtime before 1.30 replays CUDA graphs
    wrongly: full batches, a short one, full batches.

    Args:
        arguments: The command line.
    """
    network = ["--images"] + arguments.images
    for name, value in (("--model", arguments.model), ("--model-fp16", arguments.model_fp16)):
        network += [name, value] if value else []
    model = [arguments.model] if arguments.model else []

    steps = [
        _check_step("graphs", model + arguments.images),
        _check_step("launches", []),
        _sanitizer_step("memcheck"),
        _sanitizer_step("racecheck"),
        _sanitizer_step("synccheck"),
    ]
    steps.append(
        Step(
            "tests", TESTS, lambda runner, limit: run_tests(runner, limit, "tests", arguments.tests)
        )
    )
    for section, seconds in BENCHMARKS.items():
        limit_s = seconds
        options = ["--quick"] if arguments.quick else []
        if section in WITH_A_MODEL:
            options += network
        if section == "network" and arguments.provider_options:
            options.append("--provider-options")
            limit_s *= 1 + len(PROVIDER_OPTIONS)
        steps.append(_section_step(section, min(limit_s, PART_LIMIT), options))
    steps.append(Step("counters", COUNTERS, run_profiler))
    steps.append(_sanitizer_step("initcheck"))
    return steps


def _check_step(name: str, options: list[str]) -> Step:
    return Step(name, CHECKS[name], lambda runner, limit: run_check(runner, limit, name, options))


def _sanitizer_step(tool: str) -> Step:
    return Step(tool, SANITIZERS[tool], lambda runner, limit: run_sanitizer(runner, limit, tool))


def _section_step(section: str, limit_s: float, options: list[str]) -> Step:
    return Step(
        section, limit_s, lambda runner, limit: run_section(runner, limit, section, options)
    )


def run_all(runner: Runner, steps: list[Step]) -> Iterator[Part]:
    """Run parts one after the other, except those for which too little time is left."""
    for step in steps:
        if runner.left() < MIN_SECONDS:
            yield Part(step.name, NOT_RUN, "no time was left")
        else:
            yield step.run(runner, step.limit_s)


def main() -> int:
    """Check, time, report."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="a folder")
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples")
    parser.add_argument("--minutes", type=float, default=28.0, help="after which no part starts")
    parser.add_argument("--model", default="", help="an ONNX file, for the section network")
    parser.add_argument("--model-fp16", default="", help="the same in float16")
    parser.add_argument("--images", nargs="*", default=["detcli/pictures"], help="images for it")
    parser.add_argument(
        "--provider-options",
        action="store_true",
        help=f"measure the network with {', '.join(PROVIDER_OPTIONS)} too, each for itself",
    )
    parser.add_argument("--tests", nargs="*", default=["tests/backend"], help="for pytest")
    parser.add_argument(
        "--only", action="append", metavar="PART", help="run this part alone; may be given again"
    )
    arguments = parser.parse_args()
    steps = steps_of(arguments)
    if arguments.only:
        names = [step.name for step in steps]
        for name in arguments.only:
            if name not in names:
                parser.error(f"no part is named {name}; they are {', '.join(names)}")
        steps = [step for step in steps if step.name in arguments.only]
    machine, reason = look()
    if reason:
        print(f"gpu-check needs an NVIDIA GPU: {reason}", file=sys.stderr)
        return 5
    arguments.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(arguments.out, 60 * arguments.minutes)
    parts: list[Part] = []
    exit_code = 0
    for part in run_all(runner, steps):
        parts.append(part)
        print(f"{part.name}: {part.outcome} {part.reason}".rstrip(), flush=True)
        report.write(arguments.out, report.build(machine, parts))
        if part.outcome == FAILED:
            exit_code = 1
    print((arguments.out / "gpu-check.md").read_text(encoding="utf-8"))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
