"""Cold starts: whole `detcli predict` processes, timed to their first record and to their end."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from detcli.cli.console import process_error
from detcli.cli.defaults import FILE_VARIABLE
from detcli.commands.bench.report import ColdStart
from detcli.config.config import Config
from detcli.config.option import arguments_of
from detcli.core.packages import python_executable
from detcli.source.decode import BUILT_IN

PREDICTED = (
    "model",
    "device",
    "imgsz",
    "nms",
    "box_format",
    "preprocess",
    "gpu_mem_limit",
    "boxes_only",
    "half",
    "cuda_graph",
    "fast_cores",
)
"""Options that a cold start has from the Config."""


def predict_command(config: Config, image: Path) -> list[str]:
    """Build the command line of `detcli predict` for one image, with the options to measure."""
    python = python_executable("a cold start", "leave it out: --cold-starts 0")
    command = [python, "-m", "detcli", "predict", "--quiet", "--format", "jsonl"]
    command += arguments_of(config, PREDICTED)
    command += ["--", str(image)]
    return command


def measure_cold_start(config: Config, count: int) -> ColdStart | None:
    """Measure how long whole processes of `detcli predict` take for the built-in image.

    A first run, which is not counted, fills the caches of detcli and of the file system, and
    compiles the GPU's kernels. To be called while this process is small: Linux counts the memory of
    a parent towards the peak of the processes that it starts.

    Args:
        config: The model and the device, as options of predict.
        count: How many processes to measure.

    Returns:
        The medians; None if `count` is 0.
    """
    if not count:
        return None
    command = predict_command(config, BUILT_IN)
    run_process(command)
    runs = [run_process(command) for _ in range(count)]
    peaks = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
    peak_memory_bytes = None
    if peaks:
        peak_memory_bytes = int(statistics.median(peaks))
    return ColdStart(
        processes=count,
        first_record_s=statistics.median(run.first_record_s for run in runs),
        whole_process_s=statistics.median(run.whole_process_s for run in runs),
        peak_memory_bytes=peak_memory_bytes,
    )


def run_process(command: Sequence[str]) -> ColdStart:
    """Run a command to its end, and measure how long it takes and how much memory it uses.

    Returns:
        The figures of this one process: the times to the first line of its output and to its end,
        and its peak memory, which is None on Windows.

    Raises:
        DetcliError: The command failed, with the error that it printed.
    """
    # The user's file of defaults is left out, so that measurements can be compared.
    environment = os.environ | {FILE_VARIABLE: os.devnull}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        start = time.perf_counter()
        with subprocess.Popen(  # noqa: S603 - detcli itself, or a benchmark's peer
            command, stdout=subprocess.PIPE, stderr=stderr, env=environment
        ) as process:
            output = cast("IO[bytes]", process.stdout)  # not None, as it is a pipe
            try:
                output.readline()
                first_record_s = time.perf_counter() - start
                output.read()  # the other lines, which only have to leave the pipe
                peak_memory_bytes = _wait_for_end(process)
            except BaseException:
                process.kill()
                raise
        whole_process_s = time.perf_counter() - start

        if process.returncode:
            stderr.seek(0)
            raise process_error(process.returncode, stderr.read())

    return ColdStart(
        processes=1,
        first_record_s=first_record_s,
        whole_process_s=whole_process_s,
        peak_memory_bytes=peak_memory_bytes,
    )


def _wait_for_end(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait until a process ends, and return its peak memory in bytes; on Windows None at once."""
    if sys.platform == "win32":
        return None
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    bytes_per_unit = 1024  # Linux gives the peak in KiB
    if sys.platform == "darwin":
        bytes_per_unit = 1
    return usage.ru_maxrss * bytes_per_unit
