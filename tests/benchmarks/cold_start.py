"""Times whole processes: `detcli predict` on one image beside another program, in turns.

    python tests/benchmarks/cold_start.py MODEL IMAGE 'python bare.py MODEL IMAGE' [--runs 15]
        [--device cpu]

Prints medians of wall time, processor time and peak resident memory, and the median ratios with
their intervals. On a busy machine the ratio of processor times tells more than that of wall times.
"""

import argparse
import resource
import shlex
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detcli.commands.bench.cold_start import run_process
from detcli.commands.bench.sampling import interval


class Cost(NamedTuple):
    """What one whole process takes."""

    wall_s: float
    processor_s: float  # in user mode and in the kernel
    memory_mb: float


def measure(command):
    """Run a command to its end, and return its cost."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_process(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user_s = after.ru_utime - before.ru_utime
    kernel_s = after.ru_stime - before.ru_stime
    return Cost(run.whole_process_s, user_s + kernel_s, run.peak_memory_bytes / (1 << 20))


def print_ratio(title, field, rounds):
    """Print how many times as much of something detcli takes, with an interval of 95%."""
    ratios = []
    for costs in rounds:
        ratios.append(getattr(costs["detcli predict"], field) / getattr(costs["the other"], field))
    between = ""
    limits = interval(np.median, ratios)
    if limits:
        between = f", 95% interval {limits.low:.2f} to {limits.high:.2f}"
    print(f"{title}: {statistics.median(ratios):.2f} times the other's{between}")


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("picture")
    parser.add_argument("other", help="the command to compare with")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    program = str(Path(sys.executable).with_name("detcli"))
    predict = [program, "predict", arguments.picture, "-m", arguments.model]
    predict += ["--device", arguments.device]
    commands = {"detcli predict": predict, "the other": shlex.split(arguments.other)}
    for command in commands.values():
        run_process(command)  # fills the prepared-model cache and the file cache
    rounds = []
    for _ in range(arguments.runs):
        costs = {name: measure(command) for name, command in commands.items()}
        rounds.append(costs)
    for name in commands:
        costs_of_command = [costs[name] for costs in rounds]
        wall_s, processor_s, memory_mb = np.median(costs_of_command, axis=0)
        print(f"{name:16} {wall_s:6.3f} s  processor {processor_s:6.3f} s  {memory_mb:6.1f} MB")
    print_ratio("wall time", "wall_s", rounds)
    print_ratio("processor time", "processor_s", rounds)
    print_ratio("peak memory", "memory_mb", rounds)
    for option in ("--help", "--version"):
        seconds = []
        for _ in range(arguments.runs):
            seconds.append(run_process([program, option]).whole_process_s)
        print(f"detcli {option:10} {statistics.median(seconds):6.3f} s")


if __name__ == "__main__":
    main()
