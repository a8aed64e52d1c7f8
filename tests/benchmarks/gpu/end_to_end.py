"""Folders of JPEG files to records by `detcli predict`, and who holds the interpreter meanwhile.

The rate is that of the images behind the first 32, so that starting does not count. The share of
the interpreter is from py-spy, where that is installed: the part of the time in which a thread held
Python's lock, in a run of its own, as py-spy slows a run down.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2

SIZES = {"VGA": (640, 480), "1080p": (1920, 1080)}  # width and height
DISTINCT_IMAGES = 16
STARTING_IMAGES = 32
QUICK_COUNT = 256
FULL_COUNT = 2048
JPEG_QUALITY = 90
SAMPLES_PER_SECOND = 200
TIMEOUT_S = 120

# A stack of py-spy in its raw format: "thread (TID): NAME;FRAME;...;FRAME SAMPLES".
STACK = re.compile(r"thread \(\d+\)(?:: (?P<thread>[^;]*?))?(?:;.*)? (?P<samples>\d+)")
# Python's name of a thread without one of its own: "Thread-4 (run)", after what it calls.
NUMBERED_THREAD = re.compile(r"Thread-\d+ \((?P<function>.*)\)")


def end_to_end_records(
    device: str, models: dict[str, Path], images: Sequence[Path], counts: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield a record for each size of image and each model.

    Args:
        device: The value of `--device`.
        models: Files by the names of their types.
        images: Images, or folders of them, which are scaled to each size.
        counts: How many images the shorter and the longer run have.
    """
    if not models:
        reason = "no model was given: MODEL=path/to/yolov10n.onnx"
        yield {"case": "a real model", "ways": [{"way": "detcli", "missing": reason}]}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        for size_name, size in SIZES.items():
            for model_name, model in models.items():
                case_folder = Path(folder) / f"{size_name}-{model_name}"
                few = write_images(case_folder / "few", images, size, counts[0])
                many = write_images(case_folder / "many", images, size, counts[1])
                way = _measured(device, model, few, many, counts[1] - counts[0])
                yield {"case": f"{size_name} JPEG, {model_name}", "ways": [way]}
                shutil.rmtree(case_folder)


def write_images(folder: Path, images: Sequence[Path], size: tuple[int, int], count: int) -> Path:
    """Fill a folder with JPEG files of a size; a few that differ, again and again.

    Args:
        folder: The folder, which does not exist yet.
        images: Images or folders of them; those that OpenCV does not read are left out.
        size: Width and height.
        count: The number of files.

    Returns:
        The folder.
    """
    files: list[Path] = []
    for path in images:
        files.extend(sorted(path.iterdir()) if path.is_dir() else [path])
    readable = []
    for file in files[:DISTINCT_IMAGES]:
        image = cv2.imread(str(file))
        if image is not None:
            readable.append(image)
    folder.mkdir(parents=True)
    for number in range(count):
        file = folder / f"{number:06}.jpg"
        if number < len(readable):
            quality = (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY)
            cv2.imwrite(str(file), cv2.resize(readable[number], size), quality)
        else:
            shutil.copy(folder / f"{number % len(readable):06}.jpg", file)
    return folder


def _measured(
    device: str, model: Path, few: Path, many: Path, further_images: int
) -> dict[str, Any]:
    """Run predict on a folder with few images and on one with many, and compare the times.

    Returns:
        The way of a case: images a second, and the share of the interpreter by thread; or the error
        of the run that failed.
    """
    way: dict[str, Any] = {"way": "detcli"}
    try:
        _run(_predict(device, model, few))  # compiles and plans what is cached then
        short_s = _run(_predict(device, model, few))
        long_s = _run(_predict(device, model, many))
        way["images_a_second"] = further_images / (long_s - short_s)
        way["interpreter"] = interpreter_shares(_predict(device, model, many))
    except subprocess.CalledProcessError as error:
        way["error"] = f"status {error.returncode}"
        for line in error.stderr.splitlines():
            if line.startswith("detcli: error: "):
                way["error"] = line
    except subprocess.TimeoutExpired:
        way["error"] = f"not done after {TIMEOUT_S} s"
    return way


def _predict(device: str, model: Path, folder: Path) -> list[str]:
    """Return the command that detects in a folder and writes records beside it."""
    command = [sys.executable, "-m", "detcli", "predict", str(folder)]
    command += ["--model", str(model), "--device", device]
    return command + ["-o", str(folder.with_suffix(".jsonl"))]


def _run(command: list[str]) -> float:
    """Run a command, and return how many seconds that took.

    Raises:
        subprocess.CalledProcessError: It failed.
        subprocess.TimeoutExpired: It took longer than TIMEOUT_S.
    """
    start_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    return time.perf_counter() - start_s


def interpreter_shares(command: list[str]) -> dict[str, float]:
    """Run a command under py-spy, and return the share of the time that threads held the lock.

    Returns:
        Shares from 0 to 1 by the names of threads; empty where py-spy is not installed.
    """
    program = shutil.which("py-spy")
    if program is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        out = Path(folder) / "stacks.txt"
        profiler = [program, "record", "--gil", "--threads", "--format", "raw"]
        profiler += ["--rate", str(SAMPLES_PER_SECOND), "--output", str(out), "--"]
        seconds = _run(profiler + command)
        return shares_of(out.read_text(encoding="utf-8"), seconds * SAMPLES_PER_SECOND)


def shares_of(stacks: str, sample_count: float) -> dict[str, float]:
    """Read the share of samples that each thread has from py-spy's raw format.

    Args:
        stacks: The lines that py-spy wrote, each a stack and how often it was seen.
        sample_count: How many samples were taken, those where no thread held the lock included.

    Returns:
        Shares by the names of threads, the largest first. Threads that call the same function are
        one; "starting" is the time before Python's threads had names.
    """
    samples: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack = STACK.fullmatch(line)
        if stack is None:
            continue
        thread = stack["thread"] or "starting"
        numbered = NUMBERED_THREAD.fullmatch(thread)
        if numbered is not None:
            thread = numbered["function"]
        samples[thread] += int(stack["samples"])
    return {thread: count / sample_count for thread, count in samples.most_common()}
