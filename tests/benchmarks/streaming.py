"""Long runs: how soon they start, and whether their memory stays flat.

    python tests/benchmarks/streaming.py start MODEL IMAGE [--count 100000] [--rounds 7]
    python tests/benchmarks/streaming.py memory MODEL INPUT... [--frames 5000]

`start` measures the time to the first record, for one image and for a folder of COUNT images,
in turns. `memory` repeats INPUT, images or videos, and compares resident memory after 500 records
with that at the end.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from in_turns import medians_of, take_turns

COMMAND = [sys.executable, "-m", "detcli", "predict", "-q", "--format", "jsonl"]


def start(source: str, model: Path) -> None:
    """Run until the first record."""
    command = COMMAND + [source, "-m", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()


def measure_start(model: Path, image: Path, count: int, rounds: int) -> None:
    """Compare a large folder with one image."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        original = image
        for number in range(count):
            name_of_it = folder / f"{number:08}.jpg"
            if number % 50_000:  # file systems allow some 65 000 links to a file
                os.link(original, name_of_it)
            else:
                original = name_of_it
                original.write_bytes(image.read_bytes())
        sources = {"one image": str(folder / "00000000.jpg"), f"folder of {count}": name}
        starts = {title: partial(start, source, model) for title, source in sources.items()}
        medians = medians_of(take_turns(starts, rounds=rounds))
    for title, median in medians.items():
        print(f"{title:20} {median:.3f} s to the first record")


def resident(pid: int) -> float:
    """Resident memory in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_memory(model: Path, inputs: list[str], frames: int) -> None:
    """Compare early and late resident memory."""
    command = COMMAND + ["-m", str(model), "--files-from", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        early = late = 0.0
        pending = b""
        for number in range(1, frames + 1):
            if len(pending) < 1 << 16:
                pending += ("\n".join(inputs) + "\n").encode()
            try:
                written = os.write(process.stdin.fileno(), pending[:4096])
                pending = pending[written:]
            except BlockingIOError:
                pass
            process.stdout.readline()
            if number == 500:
                early = resident(process.pid)
        late = resident(process.pid)
        process.kill()
    print(
        f"{early:.0f} MB after 500 records, {late:.0f} MB after {frames}: {late / early - 1:+.1%}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    subparsers = parser.add_subparsers(dest="way", required=True)
    begin = subparsers.add_parser("start")
    begin.add_argument("model", type=Path)
    begin.add_argument("picture", type=Path)
    begin.add_argument("--count", type=int, default=100_000)
    begin.add_argument("--rounds", type=int, default=7)
    memory = subparsers.add_parser("memory")
    memory.add_argument("model", type=Path)
    memory.add_argument("inputs", nargs="+")
    memory.add_argument("--frames", type=int, default=5000)
    options = parser.parse_args()
    if options.way == "start":
        measure_start(options.model, options.picture, options.count, options.rounds)
    else:
        measure_memory(options.model, options.inputs, options.frames)


if __name__ == "__main__":
    main()
