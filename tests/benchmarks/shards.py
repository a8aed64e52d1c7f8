"""Times a run in shards beside `predict` with two workers on the same folder, in turns.

    python tests/benchmarks/shards.py overhead MODEL FOLDER [--on local:2 ray] [--rounds 5]
    python tests/benchmarks/shards.py chaos MODEL [--on local:2] [--pictures 5000] [--store]

`overhead` compares whole commands, and what is left of them without the time of the same command on
two pictures, which is the start. `chaos` kills a worker every few seconds and the driver twice, and
compares the merged output with one run's, byte for byte; with `--store`, pictures and parts are on
an S3 server of this machine that answers a tenth of the requests with 503, and cuts a twentieth of
the bodies that it sends. With Ray, RAY_ADDRESS names a cluster of
two cores, which `ray start` has started.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil

DETCLI = [sys.executable, "-m", "detcli"]


def timed(source: str, model: str, kind: str) -> float:
    """Seconds of a whole command."""
    with tempfile.TemporaryDirectory() as made:
        command = [*DETCLI, "predict", source, "-r", "-m", model, "--device", "cpu", "-q"]
        if kind == "predict":
            command += ["--workers", "2", "-o", str(Path(made, "one.jsonl"))]
        else:
            command += ["--on", kind, "-o", f"{made}/boxes/"]
        start = time.perf_counter()
        code = subprocess.run(command, check=False).returncode
        if code not in {0, 3}:
            raise SystemExit(code)
        return time.perf_counter() - start


def overhead(model: str, folder: str, engines: list[str], rounds: int) -> None:
    """Take turns, and print medians and their ratios."""
    kinds = ("predict", *engines)
    whole: dict[str, list[float]] = {kind: [] for kind in kinds}
    steady: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as few:
        for path in sorted(Path(folder).resolve().glob("*.[jp]*g"))[:2]:
            Path(few, path.name).symlink_to(path)
        for number in range(rounds):
            for kind in kinds[:: 1 if number % 2 else -1]:
                start = timed(few, model, kind)
                whole[kind].append(timed(folder, model, kind))
                steady[kind].append(whole[kind][-1] - start)
    for title, seconds in (("whole command", whole), ("less that of two pictures", steady)):
        for kind, taken in seconds.items():
            ratios = [a / b for a, b in zip(taken, seconds["predict"], strict=True)]
            median, ratio = statistics.median(taken), statistics.median(ratios)
            print(f"{title}: {kind} {median:.2f} s, median ratio {ratio:.3f}")


def workers_of(driver: psutil.Popen, engine: str) -> list[psutil.Process]:
    """The processes that work shards."""
    if engine != "ray":
        return driver.children()
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if "ray::Detcli" in " ".join(one.info["cmdline"] or [])]


class Disk:
    """Where pictures and parts are: in a folder."""

    def __init__(self, folder: str) -> None:
        self.pictures, self.boxes = f"{folder}/pics/", f"{folder}/boxes/"
        Path(self.pictures).mkdir()

    def put(self, name: str, content: bytes) -> None:
        Path(self.pictures, name).write_bytes(content)

    def parts(self) -> int:
        return len([*Path(self.boxes).glob("part-*")])

    def fail_often(self) -> None:
        """Do nothing."""


class Store:
    """Where pictures and parts are: on a server."""

    pictures, boxes = "s3://photos/pics/", "s3://photos/boxes/"

    def __init__(self, server: Any) -> None:
        self._server = server
        server.client.create_bucket(Bucket="photos")

    def put(self, name: str, content: bytes) -> None:
        self._server.client.put_object(Bucket="photos", Key=f"pics/{name}", Body=content)

    def parts(self) -> int:
        return sum("part-" in key for key in self._server.keys("boxes/"))

    def fail_often(self) -> None:
        self._server.faults.refuse_each, self._server.faults.cut_each = 10, 20


@contextlib.contextmanager
def opened_store() -> Iterator[Store]:
    """Serve a bucket, which commands find by their variables."""
    sys.path.append(str(Path(__file__).parents[1]))
    import s3_server

    with contextlib.closing(s3_server.S3()) as server:
        os.environ.update(s3_server.environment(server))
        yield Store(server)


def chaos(model: str, count: int, engine: str, *, on_store: bool) -> None:
    """Kill, go on, merge, compare."""
    dice = random.Random(0)  # noqa: S311 - no secret
    with (
        tempfile.TemporaryDirectory() as made,
        opened_store() if on_store else contextlib.nullcontext(Disk(made)) as place,
    ):
        noise = np.random.default_rng(0)
        for number in range(count):
            small = noise.integers(0, 255, (12, 16, 3), np.uint8)
            _, content = cv2.imencode(".jpg", cv2.resize(small, (160, 120)))
            place.put(f"{number:05}.jpg", content.tobytes())
        common = ["predict", place.pictures, "-m", model, "--device", "cpu", "--max-det", "5"]
        one = Path(made, "one.jsonl")
        subprocess.run([*DETCLI, *common, "-o", str(one)], check=True)
        place.fail_often()
        command = [*DETCLI, *common, "-q", "-o", place.boxes, "--on", engine]
        workers = drivers = 0
        start = time.perf_counter()
        while True:
            driver = psutil.Popen(command)
            life = time.perf_counter()
            share = count * (drivers + 1) // 3
            while driver.poll() is None:
                time.sleep(dice.uniform(4, 10))
                done = place.parts() * count // 64
                if drivers < 2 and done > share and time.perf_counter() - life > 10:
                    driver.kill()
                    drivers += 1
                elif driver.is_running() and (found := workers_of(driver, engine)):
                    dice.choice(found).kill()
                    workers += 1
            if driver.wait() != -signal.SIGKILL:
                break
        if driver.returncode != 0:
            raise SystemExit(driver.returncode)
        merged = Path(made, "all.jsonl")
        subprocess.run([*DETCLI, "merge", place.boxes, "-o", str(merged)], check=True)
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
    parser.add_argument("--on", nargs="+", default=["local:2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--store", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("DETCLI_CONFIG", os.devnull)
    if given.what == "chaos":
        chaos(given.model, given.pictures, given.on[0], on_store=given.store)
    elif given.folder is None:
        parser.error("overhead needs a FOLDER")
    else:
        overhead(given.model, given.folder, given.on, given.rounds)


if __name__ == "__main__":
    main()
