"""Times a run in shards beside `predict` with two workers on the same folder, in turns.

    python tests/benchmarks/shards.py overhead MODEL FOLDER [--rounds 5]
    python tests/benchmarks/shards.py chaos MODEL [--pictures 5000]

`overhead` compares whole commands, and the time from the first record to the last: what a process
takes to start is apart. `chaos` kills a worker every few seconds and the driver twice, and compares
the merged output with one run's, byte for byte.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import psutil

DETCLI = [sys.executable, "-m", "detcli"]


def timed(command: list[str], first: Path) -> tuple[float, float]:
    """Seconds of a command, and those since `first` existed with something in it."""
    start = time.perf_counter()
    process = subprocess.Popen([*DETCLI, *command])
    began = 0.0
    while process.poll() is None:
        if not began and is_begun(first):
            began = time.perf_counter()
        time.sleep(0.005)
    if process.returncode not in {0, 3}:
        raise SystemExit(process.returncode)
    end = time.perf_counter()
    return end - start, end - (began or start)


def is_begun(output: Path) -> bool:
    """Whether there is a record."""
    if output.is_dir():
        return any(output.glob("part-*"))
    return output.exists() and output.stat().st_size > 0


def overhead(model: str, folder: str, rounds: int) -> None:
    """Take turns, and print medians and their ratio."""
    common = ["predict", folder, "-r", "-m", model, "--device", "cpu", "-q"]
    whole: dict[str, list[float]] = {"one": [], "local:2": []}
    steady: dict[str, list[float]] = {"one": [], "local:2": []}
    for number in range(rounds):
        for name in ("one", "local:2") if number % 2 else ("local:2", "one"):
            with tempfile.TemporaryDirectory() as made:
                if name == "one":
                    journal = Path(made, "one.jsonl")  # grows with each record
                    times = timed([*common, "--workers", "2", "--resume", str(journal)], journal)
                else:
                    boxes = Path(made, "boxes")
                    times = timed([*common, "-o", f"{boxes}/", "--on", name], boxes)
            whole[name].append(times[0])
            steady[name].append(times[1])
    for title, seconds in (("whole command", whole), ("after the first record", steady)):
        one, two = (statistics.median(seconds[name]) for name in ("one", "local:2"))
        ratio = statistics.median(
            b / a for a, b in zip(seconds["one"], seconds["local:2"], strict=True)
        )
        print(f"{title}: predict {one:.2f} s, local:2 {two:.2f} s, median ratio {ratio:.3f}")


def chaos(model: str, count: int) -> None:
    """Kill, go on, merge, compare."""
    dice = random.Random(0)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as made:
        folder, boxes = Path(made, "pics"), Path(made, "boxes")
        folder.mkdir()
        noise = np.random.default_rng(0)
        for number in range(count):
            small = noise.integers(0, 255, (12, 16, 3), np.uint8)
            cv2.imwrite(str(folder / f"{number:05}.jpg"), cv2.resize(small, (160, 120)))
        common = ["predict", str(folder), "-m", model, "--device", "cpu", "--max-det", "5"]
        one = Path(made, "one.jsonl")
        subprocess.run([*DETCLI, *common, "-o", str(one)], check=True)
        command = [*DETCLI, *common, "-q", "-o", f"{boxes}/", "--on", "local:2"]
        workers = drivers = 0
        start = time.perf_counter()
        while True:
            driver = psutil.Popen(command)
            life = time.perf_counter()
            share = count * (drivers + 1) // 3
            while driver.poll() is None:
                time.sleep(dice.uniform(4, 10))
                done = len([*boxes.glob("part-*")]) * count // 64
                if drivers < 2 and done > share and time.perf_counter() - life > 10:
                    driver.kill()
                    drivers += 1
                elif driver.is_running() and (children := driver.children()):
                    dice.choice(children).kill()
                    workers += 1
            if driver.wait() != -signal.SIGKILL:
                break
        if driver.returncode != 0:
            raise SystemExit(driver.returncode)
        merged = Path(made, "all.jsonl")
        subprocess.run([*DETCLI, "merge", f"{boxes}/", "-o", str(merged)], check=True)
        same = merged.read_bytes() == one.read_bytes()
        seconds = time.perf_counter() - start
        print(
            f"{count} pictures, {workers} workers and {drivers} drivers killed in {seconds:.0f} s: "
            + ("the same bytes as one run" if same else "OTHER BYTES than one run")
        )
        raise SystemExit(not same)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["overhead", "chaos"])
    parser.add_argument("model")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=5000)
    given = parser.parse_args()
    os.environ.setdefault("DETCLI_CONFIG", os.devnull)
    if given.what == "chaos":
        chaos(given.model, given.pictures)
    elif given.folder is None:
        parser.error("overhead needs a FOLDER")
    else:
        overhead(given.model, given.folder, given.rounds)


if __name__ == "__main__":
    main()
