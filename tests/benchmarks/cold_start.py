"""Times whole processes: `detcli predict` on one image beside another program, in turns.

    python tests/benchmarks/cold_start.py MODEL IMAGE 'python bare.py MODEL IMAGE' [--runs 15]

Prints medians of wall time and peak resident memory, and the median ratios with their intervals.
"""

import argparse
import shlex
import statistics
import sys
from pathlib import Path

import numpy as np

from detcli.commands.bench.cold_start import run_process
from detcli.commands.bench.sampling import interval


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("picture")
    parser.add_argument("other", help="the command to compare with")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    program = str(Path(sys.executable).with_name("detcli"))
    ours = [program, "predict", arguments.picture, "-m", arguments.model]
    commands = {"detcli predict": ours, "the other": shlex.split(arguments.other)}
    for command in commands.values():
        run_process(command)  # fills the prepared-model cache and the file cache
    rounds = [
        {name: run_process(command) for name, command in commands.items()}
        for _ in range(arguments.runs)
    ]
    for name in commands:
        seconds = statistics.median(runs[name].whole_process_s for runs in rounds)
        memory = statistics.median(runs[name].peak_memory_bytes for runs in rounds) / (1 << 20)
        print(f"{name:16} {seconds:6.3f} s  {memory:6.1f} MB")
    for title, field in (("wall time", "whole_process_s"), ("peak memory", "peak_memory_bytes")):
        ratios = [
            getattr(runs["detcli predict"], field) / getattr(runs["the other"], field)
            for runs in rounds
        ]
        found = interval(np.median, ratios)
        between = f", 95% interval {found.low:.2f} to {found.high:.2f}" if found else ""
        print(f"{title}: {statistics.median(ratios):.2f} times the other's{between}")
    for option in ("--help", "--version"):
        runs = [run_process([program, option]) for _ in range(arguments.runs)]
        print(f"detcli {option:10} {statistics.median(run.whole_process_s for run in runs):6.3f} s")


if __name__ == "__main__":
    main()
