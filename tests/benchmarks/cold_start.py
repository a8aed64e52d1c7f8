"""Times whole processes: `detcli predict` on one picture beside another program, taking turns.

    python tests/benchmarks/cold_start.py MODEL PICTURE 'python bare.py MODEL PICTURE' [--runs 15]

Prints medians of wall time and of peak resident memory, and their ratios pair by pair.
"""

import argparse
import os
import shlex
import statistics
import sys
import time
from pathlib import Path


def run(command):
    """Wall seconds and peak resident memory in MB of one run."""
    start = time.perf_counter()
    quiet = os.open(os.devnull, os.O_WRONLY)
    streams = [(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)]
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=streams)
    _, status, usage = os.wait4(child, 0)
    os.close(quiet)
    if status:
        raise SystemExit(f"{shlex.join(command)} failed with status {status}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


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
        run(command)  # fills the prepared-model cache and the file cache
    figures = {name: [] for name in commands}
    for _ in range(arguments.runs):
        for name, command in commands.items():
            figures[name].append(run(command))
    for name, taken in figures.items():
        seconds, memory = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"{name:16} {seconds:6.3f} s  {memory:6.1f} MB")
    pairs = list(zip(*figures.values(), strict=True))
    for index, title in enumerate(("wall time", "peak memory")):
        ratio = statistics.median(ours[index] / other[index] for ours, other in pairs)
        print(f"{title}: {ratio:.2f} times the other's, median of {len(pairs)} pairs")
    for option in ("--help", "--version"):
        seconds = statistics.median(run([program, option])[0] for _ in range(arguments.runs))
        print(f"detcli {option:10} {seconds:6.3f} s")


if __name__ == "__main__":
    main()
