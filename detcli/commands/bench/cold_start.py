"""Cold start: whole processes, from their start to the first record and to their end."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from detcli.commands.bench.report import ColdStart
from detcli.commands.bench.request import BenchRequest
from detcli.commands.shared.defaults_file import FILE_VARIABLE
from detcli.errors import CheckError, DetcliError, DeviceError, InputError, ModelError, UsageError
from detcli.source.decode import BUILT_IN

DETCLI = (sys.executable, "-m", "detcli")


def predict_command(request: BenchRequest, picture: Path) -> list[str]:
    """Command line of `detcli predict` for one picture, with the options of the request."""
    return _command("predict", request, [str(picture)], quiet=True, format="jsonl")


def _command(name: str, request: BenchRequest, sources: Sequence[str], **own: Any) -> list[str]:  # noqa: ANN401 - values of options
    run, command = request.run, [*DETCLI, name]
    shared = {
        "model": run.model,
        "device": run.devices[0],
        "imgsz": run.settings.imgsz,
        "nms": run.settings.nms,
        "box_format": run.settings.box_format,
        "preprocess": run.settings.preprocess,
        "gpu_mem_limit": run.device_options.gpu_mem_limit,
        "boxes_only": run.settings.boxes_only or None,
        "half": run.device_options.half or None,
        "cuda_graph": run.device_options.cuda_graph,
    }
    for option, value in (shared | own).items():
        title = option.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{title}" if value else f"--no-{title}")
        elif value is not None:
            command += [f"--{title}", str(value)]
    return [*command, "--", *sources]


ERROR_TYPES = {
    kind.exit_code: kind for kind in (UsageError, InputError, ModelError, DeviceError, CheckError)
}


def measure_cold_start(request: BenchRequest) -> ColdStart | None:
    """Run `detcli predict` on the built-in picture as often as the request asks for.

    A first run, which is not counted, fills the caches of detcli and of the file system, and
    compiles the GPU's kernels. To be called while this process is small: Linux counts the memory of
    a parent towards the peak of the processes that it starts.

    Raises:
        DetcliError: The command failed; the message is its own.
    """
    if not request.cold_starts:
        return None
    command = predict_command(request, BUILT_IN)
    runs = [run_process(command) for _ in range(request.cold_starts + 1)][1:]
    peaks = [run.peak_memory for run in runs if run.peak_memory is not None]
    return ColdStart(
        processes=len(runs),
        first_record_s=statistics.median(run.first_line_s for run in runs),
        whole_process_s=statistics.median(run.whole_s for run in runs),
        peak_memory_bytes=int(statistics.median(peaks)) if peaks else None,
    )


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """Seconds from a process's start to its first line of output and to its end.

    `peak_memory` is its peak resident bytes; None on Windows.
    """

    first_line_s: float
    whole_s: float
    peak_memory: int | None


def run_process(command: Sequence[str]) -> ProcessRun:
    """Run a command to its end.

    Raises:
        DetcliError: The command failed; the message is the end of its stderr.
    """
    environment = {**os.environ, FILE_VARIABLE: os.devnull}  # the user's defaults are not measured
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - detcli itself, or a benchmark's peer
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment
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
            stderr.seek(0)
            raise process_error(process.returncode, stderr.read())
    return ProcessRun(first, whole, peak)


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait for a process to end; returns its peak memory where the system reports it."""
    if sys.platform == "win32":
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024


def process_error(exit_code: int, stderr: str) -> DetcliError:
    """The error of a detcli process, from its exit code and its stderr."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("detcli: ") for line in lines if line.startswith("detcli: ")]
    hints = [line.strip().removeprefix("hint: ") for line in lines if line.startswith("  hint: ")]
    message = errors[-1] if errors else (lines[-1] if lines else f"exited with status {exit_code}")
    kind = ERROR_TYPES.get(exit_code, DetcliError)
    return kind(message, hints[-1] if hints else "")
