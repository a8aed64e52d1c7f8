"""Makes a month of a camera-trap project, and times what people do with it.

    python tests/benchmarks/camera_project.py OUT [--images 30000]

OUT/card has 40 sites, whose cameras number their images alike: IMG_0001.JPG is in each of them.
A camera takes three images a burst, a second apart; a tenth of the bursts show an animal, and a few
a person. A rock that the model takes for a rock is in most images of each site. One file of a
hundred is cut off, empty, or no image. Each image has the time of its EXIF. The model tells pure
colours, so that the truth is known: OUT/truth.csv. Each command is run as typed, in OUT, and it is
printed what it took: seconds of a clock and of processors, memory at its peak, and what it wrote.
"""

import argparse
import csv
import datetime as dt
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

import colour_model

SITES = 40
BURST_IMAGES = 3
ANIMAL_SHARE = 0.1
PERSON_SHARE = 0.02
ROCK_SHARE = 0.8
DAMAGED_SHARE = 0.01
SQUARE = 32  # pixels of the image, of which the model sees a quarter
COLUMNS, ROWS = 8, 6
BEGIN = dt.datetime(2026, 11, 1, 6, 0, 0)  # noqa: DTZ001 - cameras know no time zone
EXIF_IFD = 0x8769
TAKEN, TAKEN_FRACTION = 0x9003, 0x9291
SHOWN_LINES = 2
CLASS_NAMES = {0: "animal", 1: "person", 2: "rock"}
CHANNEL = {"animal": 0, "person": 1, "rock": 2}  # of RGB

PREDICT = "detcli predict card -r -m model.onnx --device cpu --conf 0.001"
COMMANDS = (
    f"{PREDICT} --burst 60s -o boxes.jsonl",
    f"{PREDICT} --base card --format megadetector -o boxes.json",
    "detcli merge boxes.jsonl --format parquet -o boxes.parquet",
    "detcli merge boxes.jsonl --format csv -o boxes.csv",
    "detcli count boxes.jsonl --by folder,class --conf 0.3 --format csv",
    "detcli count boxes.parquet --by day,class --conf 0.3 --format csv",
    "detcli count boxes.csv --by burst --conf 0.3 --format csv",
    "detcli sort boxes.jsonl --by 'animal>=0.3,person>=0.3' -o sorted",
    "detcli sort -o sorted --undo",
    "detcli report boxes.jsonl --repeated -o repeated",
    "detcli report boxes.jsonl --only-detections --sample 1000 -o sample",
    "detcli report boxes.jsonl -o report",
    "detcli promise deal boxes.jsonl --classes animal --lost 5% --seed 7 -o review",
    "detcli promise check review labels-truth.jsonl",
    "detcli promise verify review/promise.json boxes.jsonl",
    "detcli promise split review -o promised --how list",
)


@dataclass
class Burst:
    """What a camera sees for three images.

    Attributes:
        strengths: The score of each class that is seen, as the model will give it.
        cells: Column and row of each class.
    """

    strengths: dict[str, float]
    cells: dict[str, tuple[int, int]]


def draw_burst(random: np.random.Generator, rock_cell: tuple[int, int]) -> Burst:
    """Draw what a burst shows.

    Args:
        random: Draws.
        rock_cell: Where the rock of the site is.
    """
    strengths = {"animal": float(random.beta(0.5, 30))}
    if random.random() < ANIMAL_SHARE:
        strengths["animal"] = float(random.beta(6, 2))
    if random.random() < PERSON_SHARE:
        strengths["person"] = float(random.beta(6, 2))
    if random.random() < ROCK_SHARE:
        strengths["rock"] = 0.6
    cells = {}
    for name in strengths:
        cells[name] = (int(random.integers(COLUMNS)), int(random.integers(ROWS)))
    cells["rock"] = rock_cell
    return Burst(strengths, cells)


def draw_image(burst: Burst) -> Image.Image:
    """Draw an image of a burst: a square of one colour for each class, on black."""
    pixels = np.zeros((ROWS * SQUARE, COLUMNS * SQUARE, 3), np.uint8)
    for name, strength in burst.strengths.items():
        column, row = burst.cells[name]
        top, left = row * SQUARE, column * SQUARE
        square = pixels[top : top + SQUARE, left : left + SQUARE]
        square[..., CHANNEL[name]] = round(255 * strength)
    return Image.fromarray(pixels)


def save_image(image: Image.Image, path: Path, time_taken: dt.datetime) -> None:
    """Save an image as a camera does, with the time in its EXIF."""
    exif = Image.Exif()
    times = exif.get_ifd(EXIF_IFD)
    times[TAKEN] = time_taken.strftime("%Y:%m:%d %H:%M:%S")
    times[TAKEN_FRACTION] = f"{time_taken.microsecond // 10_000:02}"
    image.save(path, quality=92, exif=exif)


def damage(path: Path, random: np.random.Generator) -> None:
    """Cut a file off, empty it, or fill it with zeros, as cards do."""
    data = path.read_bytes()
    kind = int(random.integers(3))
    if kind == 0:
        path.write_bytes(data[: len(data) // 2])
    elif kind == 1:
        path.write_bytes(b"")
    else:
        path.write_bytes(bytes(len(data)))


def write_site(site: int, folder: Path, image_count: int) -> list[tuple[str, float]]:
    """Write the images of a site.

    Args:
        site: Its number, which decides what its camera sees.
        folder: The folder of the card.
        image_count: How many images to write.

    Returns:
        The name of each image below the card, and its strongest animal.
    """
    random = np.random.default_rng(site)
    rock_cell = (int(random.integers(COLUMNS)), int(random.integers(ROWS)))
    site_folder = folder / f"site{site:02}" / "100EK113"
    site_folder.mkdir(parents=True)
    time_taken = BEGIN
    truth = []
    for number in range(image_count):
        if number % BURST_IMAGES == 0:
            burst = draw_burst(random, rock_cell)
            time_taken += dt.timedelta(minutes=float(random.uniform(2, 200)))
        time_taken += dt.timedelta(seconds=1)
        path = site_folder / f"IMG_{number + 1:04}.JPG"
        save_image(draw_image(burst), path, time_taken)
        if random.random() < DAMAGED_SHARE:
            damage(path, random)
        truth.append((path.relative_to(folder).as_posix(), burst.strengths["animal"]))
    return truth


def write_project(folder: Path, image_count: int) -> None:
    """Write the card, the truth and the model."""
    truth = []
    for site in range(SITES):
        truth += write_site(site, folder / "card", image_count // SITES)
    with (folder / "truth.csv").open("w", newline="") as file:
        csv.writer(file).writerows(truth)
    onnx.save(colour_model.build(metadata={"names": str(CLASS_NAMES)}), folder / "model.onnx")


def write_labels(folder: Path) -> None:
    """Answer all that was dealt with the truth, in place of a person."""
    with (folder / "truth.csv").open(newline="") as file:
        strengths = {name: float(strength) for name, strength in csv.reader(file)}
    lines = []
    for line in (folder / "review" / "images.jsonl").read_text().splitlines():
        source = json.loads(line)["source"]
        name = source.removeprefix("card/")
        shows_animal = strengths[name] > 0.3
        label = {"source": source, "animal": int(shows_animal), "who": "truth", "pass": 1}
        lines.append(json.dumps({**label, "at": "2026-11-29T12:00:00Z", "seconds": 1}))
    (folder / "labels-truth.jsonl").write_text("\n".join(lines) + "\n")


def run(command: str, folder: Path) -> None:
    """Run a command in a folder, and print what it took, and the end of what it said."""
    program = [sys.executable, "-m"] + shlex.split(command)
    bytes_before = size_of(folder)
    start = time.perf_counter()
    with (folder / "stdout.txt").open("wb") as stdout, (folder / "stderr.txt").open("wb") as stderr:
        process = subprocess.Popen(program, cwd=folder, stdout=stdout, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    processor_s = usage.ru_utime + usage.ru_stime
    written_mb = (size_of(folder) - bytes_before) / 1e6
    print(
        f"{seconds:7.1f} s {processor_s:7.1f} s of processors {usage.ru_maxrss / 1000:6.0f} MB "
        f"{written_mb:8.1f} MB written, exit code {process.returncode}: {command}"
    )
    for name in ("stdout.txt", "stderr.txt"):
        lines = (folder / name).read_text(errors="replace").splitlines()
        for line in lines[-SHOWN_LINES:]:
            print(f"        {line}")
        (folder / name).unlink()


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder, those with several hard links once."""
    size_by_file = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            size_by_file[status.st_ino] = status.st_size
    return sum(size_by_file.values())


def main() -> None:
    """Write the project, and run the commands in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=30_000)
    arguments = parser.parse_args()
    folder = arguments.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    write_project(folder, arguments.images)
    print(f"{time.perf_counter() - start:7.1f} s to write {arguments.images:,} images")
    for command in COMMANDS:
        if "labels-truth.jsonl" in command:
            write_labels(folder)
        run(command, folder)


if __name__ == "__main__":
    main()
