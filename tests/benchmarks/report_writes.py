"""Runs a command of detcli, and prints its time, its syncs and the files that it left.

    python tests/benchmarks/report_writes.py [--sync-ms 5] OUT COMMAND ...

as in `report_writes.py page report boxes.jsonl -o page`. OUT is the file or folder that the command
writes. With --sync-ms each sync takes so much longer, as on a network disk. The package is the one
that Python finds: PYTHONPATH and `python -P` name another checkout, to compare the two in turns.
"""

import argparse
import os
import runpy
import sys
import time
from pathlib import Path


class CountedSync:
    """Takes the place of `os.fsync`."""

    def __init__(self, pause_s: float) -> None:
        self.count = 0
        self._pause_s = pause_s
        self._fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        """Count, wait and sync."""
        self.count += 1
        if self._pause_s > 0:
            time.sleep(self._pause_s)
        self._fsync(descriptor)


def main() -> None:
    """Run the command in this process, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync-ms", type=float, default=0.0)
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    counted_sync = CountedSync(arguments.sync_ms / 1000)
    os.fsync = counted_sync
    sys.argv = ["detcli"] + arguments.command
    start = time.perf_counter()
    try:
        runpy.run_module("detcli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        exit_code = end.code
    seconds = time.perf_counter() - start
    times = os.times()
    processor_s = times.user + times.system
    file_count = sum(path.is_file() for path in arguments.out.rglob("*"))
    print(
        f"{seconds:.1f} s, {processor_s:.1f} s of processors, {counted_sync.count} syncs, "
        f"{file_count} files, exit code {exit_code or 0}"
    )


if __name__ == "__main__":
    main()
