"""Cold start: whole processes, from their start to the first record and to their end."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from detcli.commands.bench.inputs import BUILT_IN
from detcli.commands.bench.report import ColdStart
from detcli.commands.bench.request import Request
from detcli.errors import (
    CheckError,
    DetcliError,
    DeviceError,
    InputError,
    ModelError,
    UsageError,
)


def predict_command(request: Request, picture: Path) -> list[str]:
    """`detcli predict` on one picture, as the request would run it."""
    quiet = ("--quiet", "--format", "jsonl")
    return [*_detcli("predict"), str(picture), *_shared(request), *quiet]


def bench_command(request: Request) -> list[str]:
    """`detcli bench` that measures this request and prints its report as JSON."""
    options = {
        "--mode": request.mode,
        "--batch": request.batch,
        "--workers": request.workers,
        "--seconds": request.seconds,
        "--cold-starts": request.cold_starts,
        "--format": "json",
    }
    return [*_detcli("bench"), *_shared(request), *_given(options), "--", *request.sources]


def _detcli(command: str) -> tuple[str, ...]:
    return sys.executable, "-m", "detcli", command


def _shared(request: Request) -> Iterator[str]:
    """Options that both commands have."""
    settings, options = request.settings, request.options
    yield from _given(
        {
            "--model": request.model,
            "--device": request.device,
            "--imgsz": settings.imgsz,
            "--nms": settings.nms,
            "--box-format": settings.box_format,
            "--gpu-mem-limit": options.gpu_mem_limit,
        }
    )
    if options.half:
        yield "--half"
    if options.cuda_graph is not None:
        yield "--cuda-graph" if options.cuda_graph else "--no-cuda-graph"


def _given(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if value is not None:
            yield from (name, str(value))


KINDS = {
    kind.exit_code: kind for kind in (UsageError, InputError, ModelError, DeviceError, CheckError)
}


def measure_cold_start(request: Request) -> ColdStart | None:
    """Start `detcli predict` on the built-in picture, as often as was asked for.

    One more start before fills the caches of detcli and of the file system, and compiles what a
    GPU needs; it is not counted. To be called before this process has taken much memory: Linux
    counts what a process had when it started another for the peak of the other.

    Raises:
        DetcliError: The command fails; the message is its own.
    """
    if not request.cold_starts:
        return None
    command = predict_command(request, BUILT_IN)
    runs = [_run(command) for _ in range(request.cold_starts + 1)][1:]
    first, whole, memory = zip(*runs, strict=True)
    known = [peak for peak in memory if peak is not None]
    return ColdStart(
        processes=len(runs),
        first_record_s=statistics.median(first),
        whole_process_s=statistics.median(whole),
        peak_memory_bytes=int(statistics.median(known)) if known else None,
    )


def _run(command: list[str]) -> tuple[float, float, int | None]:
    """Seconds to the first record, seconds to the end, peak memory in bytes."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - this very Python
            command, stdout=subprocess.PIPE, stderr=complaints
        ) as process:
            output = cast("IO[bytes]", process.stdout)
            try:
                output.readline()
                first = time.perf_counter() - start
                output.read()
                peak = _wait(process)
            except BaseException:
                process.kill()
                raise
        whole = time.perf_counter() - start
        if process.returncode:
            complaints.seek(0)
            raise failure(process.returncode, complaints.read())
    return first, whole, peak


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait for the end; returns the most memory that it took, where the system tells."""
    if sys.platform == "win32":
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024


def failure(exit_code: int, complaint: str) -> DetcliError:
    """What a command of detcli that failed has said, as an error with its exit code."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    said = [line.removeprefix("detcli: ") for line in lines if line.startswith("detcli: ")]
    hints = [line.strip().removeprefix("hint: ") for line in lines if line.startswith("  hint: ")]
    told = said[-1] if said else (lines[-1] if lines else f"it ended with status {exit_code}")
    kind = KINDS.get(exit_code, DetcliError)
    return kind(told, hints[-1] if hints else "")
