"""Times a run in shards beside `predict` with two workers on the same folder, in turns.

    python tests/benchmarks/shards.py overhead MODEL FOLDER [--on local:2 ray] [--rounds 5]
    python tests/benchmarks/shards.py chaos MODEL [--on local:2] [--pictures 5000] [--store]

`overhead` compares whole commands, and what is left of them without the time of the same command on
two images, which is the start. With Ray, RAY_ADDRESS names a cluster of two cores, which
`ray start` has started.

`chaos` kills workers and drivers, stops workers for a while, lets images
and parts be out of reach for a moment and for long, and exchanges the model; then it compares the
merged output with one run's, byte for byte. On a disk, the folder of images is away; with
`--store`, images and parts are on an S3 server of this machine whose credentials expire, which
answers a twentieth of the requests with 503, and cuts a twentieth of the bodies that it sends. With
Ray, it starts a cluster of two nodes, and kills one.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil

DETCLI = [sys.executable, "-m", "detcli"]


def timed(source: str, model: str, kind: str) -> float:
    """Seconds of a whole command."""
    with tempfile.TemporaryDirectory() as folder:
        command = DETCLI + ["predict", source, "-r", "-m", model, "--device", "cpu", "-q"]
        if kind == "predict":
            command += ["--workers", "2", "-o", str(Path(folder, "one.jsonl"))]
        else:
            command += ["--on", kind, "-o", f"{folder}/boxes/"]
        start = time.perf_counter()
        code = subprocess.run(command, check=False).returncode
        if code not in {0, 3}:
            raise SystemExit(code)
        return time.perf_counter() - start


def overhead(model: str, folder: str, engines: list[str], rounds: int) -> None:
    """Take turns, and print medians and their ratios."""
    kinds = ["predict"] + engines
    totals: dict[str, list[float]] = {}
    steady: dict[str, list[float]] = {}
    for kind in kinds:
        totals[kind] = []
        steady[kind] = []
    with tempfile.TemporaryDirectory() as few:
        for path in sorted(Path(folder).resolve().glob("*.[jp]*g"))[:2]:
            Path(few, path.name).symlink_to(path)
        for number in range(rounds):
            for kind in kinds[:: 1 if number % 2 else -1]:
                start = timed(few, model, kind)
                totals[kind].append(timed(folder, model, kind))
                steady[kind].append(totals[kind][-1] - start)
    for title, seconds in (("whole command", totals), ("less that of two images", steady)):
        for kind, samples in seconds.items():
            median = statistics.median(samples)
            ratio = np.median(np.divide(samples, seconds["predict"]))
            print(f"{title}: {kind} {median:.2f} s, median ratio {ratio:.3f}")


def workers_of(driver: psutil.Popen, engine: str) -> list[psutil.Process]:
    """The processes that are workers of a run."""
    if engine != "ray":
        return driver.children()
    workers = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if "ray::Detcli" in command:
            workers.append(process)
    return workers


class Disk:
    """Where images and parts are: in a folder."""

    def __init__(self, folder: str) -> None:
        self.images, self.boxes = f"{folder}/pics/", f"{folder}/boxes/"
        self._away = Path(folder, "away")
        Path(self.images).mkdir()

    def put(self, name: str, content: bytes) -> None:
        Path(self.images, name).write_bytes(content)

    def parts(self) -> int:
        return len(list(Path(self.boxes).glob("part-*")))

    def fail_often(self) -> None:
        """Do nothing."""

    def fail(self) -> None:
        Path(self.images).rename(self._away)

    def mend(self) -> None:
        self._away.rename(self.images)


class Store:
    """Where images and parts are: on a server."""

    images, boxes = "s3://photos/pics/", "s3://photos/boxes/"

    def __init__(self, server: Any) -> None:
        self._server = server
        server.client.create_bucket(Bucket="photos")

    def put(self, name: str, content: bytes) -> None:
        self._server.client.put_object(Bucket="photos", Key=f"pics/{name}", Body=content)

    def parts(self) -> int:
        return sum("part-" in key for key in self._server.keys("boxes/"))

    def fail_often(self) -> None:
        self._server.faults.refuse_each, self._server.faults.cut_each = 20, 20

    def fail(self) -> None:
        self._server.faults.status = ("403 Forbidden", "ExpiredToken")

    def mend(self) -> None:
        self._server.faults.status = ()


@contextlib.contextmanager
def opened_store() -> Iterator[Store]:
    """Serve a bucket, which commands find by their variables."""
    sys.path.append(str(Path(__file__).parents[1]))
    import s3_server

    with contextlib.closing(s3_server.S3()) as server:
        os.environ.update(s3_server.environment(server))
        yield Store(server)


class Cluster:
    """Two nodes of Ray on this machine, with a core each; the second may be replaced."""

    def __init__(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        settings = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        os.environ.update(settings, RAY_ADDRESS=f"127.0.0.1:{port}")
        self._nodes = [self._start("--head", f"--port={port}", "--include-dashboard=false")]
        while not self._answers(port):
            time.sleep(0.2)
        self._nodes.append(self._start(f"--address=127.0.0.1:{port}"))

    @staticmethod
    def _start(*options: str) -> psutil.Popen:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
        command += ["--object-store-memory=100000000"] + list(options)
        return psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def lose_a_node(self) -> None:
        self._end(self._nodes.pop())
        self._nodes.append(self._start(f"--address={os.environ['RAY_ADDRESS']}"))

    @staticmethod
    def _end(node: psutil.Popen) -> None:
        for process in node.children(recursive=True) + [node]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()

    def close(self) -> None:
        for node in self._nodes[::-1]:
            self._end(node)


OTHER = b"\x72\x06\x0a\x01a\x12\x01b"
"""A field of metadata more makes a file another model."""

PAUSE_S, OUT_S = 15, 10
"""How long workers are stopped, and how long a short outage is."""


class Chaos:
    """A run in shards, and what befalls it."""

    def __init__(self, files: Disk | Store, model: Path, engine: str, cluster: Any) -> None:
        self._place, self._model, self._engine, self._cluster = files, model, engine, cluster
        self._dice = random.Random(0)  # noqa: S311 - no secret
        self.left = ["worker"] * 4 + ["driver"] * 2 + ["pause"] * 2 + ["outage", "gone", "model"]
        self.left += ["node"] * bool(cluster)
        self._dice.shuffle(self.left)
        self.befell: Counter[str] = Counter()
        self.codes: Counter[int] = Counter()

    def run(self, command: list[str]) -> None:
        """Run until the command has done all, again and again."""
        while True:
            driver, before = psutil.Popen(command), self._place.parts()
            while driver.poll() is None:
                if self.left and self._place.parts() > before:
                    self._strike(self.left.pop(), driver, command)
                    before = self._place.parts()
                time.sleep(0.1)
            self.codes[driver.wait()] += 1
            if driver.returncode == 0:
                break
            if driver.returncode not in {-signal.SIGKILL, 5}:
                raise SystemExit(f"exit code {driver.returncode}")

    def _strike(self, kind: str, driver: psutil.Popen, command: list[str]) -> None:
        workers = workers_of(driver, self._engine)
        self.befell[kind] += 1
        if kind == "driver":
            driver.kill()
        elif kind == "worker" and workers:
            self._dice.choice(workers).kill()
        elif kind == "pause" and workers:
            worker = self._dice.choice(workers)
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.suspend()
                time.sleep(PAUSE_S)
                worker.resume()
        elif kind in {"outage", "gone"}:
            self._place.fail()
            if kind == "outage":
                time.sleep(OUT_S)
            elif driver.wait() != 5:  # after three attempts
                raise SystemExit(f"exit code {driver.returncode} where nothing can be read")
            self._place.mend()
        elif kind == "model":
            content = self._model.read_bytes()
            self._model.write_bytes(content + OTHER)
            driver.kill()
            if (code := subprocess.run(command, check=False).returncode) != 2:
                raise SystemExit(f"exit code {code} with another model")
            self._model.write_bytes(content)
        elif kind == "node":
            self._cluster.lose_a_node()


def chaos(model: str, count: int, engine: str, *, on_store: bool) -> None:
    """Kill, go on, merge, compare."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        files: Disk | Store = Disk(folder)
        if on_store:
            files = stack.enter_context(opened_store())
        cluster = stack.enter_context(contextlib.closing(Cluster())) if engine == "ray" else None
        noise = np.random.default_rng(0)
        for number in range(count):
            small = noise.integers(0, 255, (12, 16, 3), np.uint8)
            _, content = cv2.imencode(".jpg", cv2.resize(small, (160, 120)))
            files.put(f"{number:05}.jpg", content.tobytes())
        ours = Path(shutil.copy(model, folder))
        ours.chmod(0o600)
        common = ["predict", files.images, "-m", str(ours), "--device", "cpu"]
        common += ["--conf", "0.001", "--max-det", "5"]
        reference, merged = Path(folder, "one.jsonl"), Path(folder, "all.jsonl")
        subprocess.run(DETCLI + common + ["-o", str(reference)], check=True)
        files.fail_often()
        start = time.perf_counter()
        run = Chaos(files, ours, engine, cluster)
        run.run(DETCLI + common + ["-q", "-o", files.boxes, "--on", engine])
        subprocess.run(DETCLI + ["merge", files.boxes, "-o", str(merged)], check=True)
        is_same = merged.read_bytes() == reference.read_bytes()
        print(f"{count} images in {time.perf_counter() - start:.0f} s: {dict(run.befell)}")
        print(f"not reached: {run.left}; exit codes of the runs: {dict(run.codes)}")
        print("the same bytes as one run" if is_same else "OTHER BYTES than one run")
        raise SystemExit(not is_same)


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
    options = parser.parse_args()
    os.environ.setdefault("DETCLI_CONFIG", os.devnull)
    if options.what == "chaos":
        chaos(options.model, options.pictures, options.on[0], on_store=options.store)
    elif options.folder is None:
        parser.error("overhead needs a FOLDER")
    else:
        overhead(options.model, options.folder, options.on, options.rounds)


if __name__ == "__main__":
    main()
