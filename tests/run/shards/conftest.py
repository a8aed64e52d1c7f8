"""What tests of runs in shards share: images, and what one run makes of them."""

import random as rng

import cv2
import forked
import pytest
from colour_model import NAMES, image_of

from detcli.run.shards.store import LocalFolder


@pytest.fixture
def store(tmp_path):
    return LocalFolder(tmp_path / "boxes")


@pytest.fixture
def make_shard_images(tmp_path):
    """Write a folder of images, with squares in random places."""

    def make(count, poisoned=()):
        random = rng.Random(count)  # noqa: S311 - no secret
        folder = tmp_path / "pics"
        for number in range(count):
            squares = []
            for _ in range(random.randrange(4)):
                squares.append((random.choice(NAMES), random.randrange(8), random.randrange(8)))
            subfolder = folder
            if number % 5 == 0:
                subfolder = folder / "more"
            subfolder.mkdir(parents=True, exist_ok=True)
            name = f"{number:04}.png"
            if number in poisoned:
                name = f"{number:04}-poison.png"
            cv2.imwrite(str(subfolder / name), image_of(squares, size=(64, 64 + 8 * (number % 3))))
        return folder

    return make


@pytest.fixture
def one_run(make_model):
    """What one run on one machine prints, and the command without its output."""

    def run(folder):
        command = ["predict", folder, "-r", "-m", make_model(), "--conf", "0.5", "-q"]
        completed = forked.run(command + ["--format", "jsonl"])
        assert completed.returncode == 0
        return command, completed.stdout

    return run
