"""Records of many images with a known truth, reviews of them, and a reviewer who answers."""

import copy
import json
import random

import cv2
import json_lines
import numpy as np
from json_lines import column_of, text_of
from saved_records import box, error, record

FAILED_EVERY = 50
"""One of so many images is torn."""


DEAL = ["boxes.jsonl", "--classes", "animal", "--lost", "10%", "--expect", "30%", "--seed", "7"]


class Promise:
    """The command, typed in a folder."""

    def __init__(self, invoke, folder):
        self.invoke = invoke
        self.folder = folder
        self.review = folder / "review"

    def __call__(self, *words, code=0, says=""):
        completed = self.invoke("promise", words, cwd=self.folder)
        assert completed.returncode == code, completed.stderr + completed.stdout
        assert "Traceback" not in completed.stderr
        assert says in completed.stderr + completed.stdout, completed.stderr + completed.stdout
        return completed

    def deal(self, *words, code=0, says=""):
        return self("deal", DEAL, "-o", "review", words, code=code, says=says)

    def check(self, *words, code=0, says=""):
        return self("check", "review", words, code=code, says=says)

    def promise(self):
        return json.loads((self.review / "promise.json").read_text())


class Card:
    """A memory card in a folder: images, their records in boxes.jsonl, and what they show."""

    def __init__(self, folder, count=1000, share=0.3, *, seed=1, failed_every=FAILED_EVERY):
        self.folder = folder
        self.records = []
        self.animals = {}  # whether each image shows one, by name
        chance = random.Random(seed)  # noqa: S311
        for number in range(count):
            name = f"card/site{number % 3}/{number:05}.jpg"
            if failed_every and number % failed_every == 1:
                self.records.append(error(name))
                continue
            shows_animal = chance.random() < share
            self.animals[name] = shows_animal
            self.records.append(record(name, *boxes_of(chance, shows_animal=shows_animal)))
        self.write()

    def write(self, name="boxes.jsonl"):
        text = text_of(self.records)
        (self.folder / name).write_text(text, encoding="utf-8")

    def copy_to(self, folder):
        """The same card in another folder, without images, with records that may be changed."""
        card = copy.copy(self)
        card.folder = folder
        card.write()
        card.records = json_lines.lines((folder / "boxes.jsonl").read_text(encoding="utf-8"))
        return card

    def write_images(self):
        """Write the images: all of them are the same small one."""
        _, jpeg = cv2.imencode(".jpg", np.full((40, 400, 3), 90, np.uint8))
        for name in self.animals:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg.tobytes())


def boxes_of(chance, *, shows_animal):
    """The boxes of an image: mostly of a high score if it shows an animal."""
    if shows_animal:
        score = chance.betavariate(6, 2)
    elif chance.random() < 0.5:
        return []
    else:
        score = chance.betavariate(0.5, 30)
    return [box(max(round(score, 6), 0.001), name="animal")]


def label(source, animal, *, who="anna", second=0, pass_=1):
    """A line of labels.jsonl."""
    at = f"2026-11-28T15:{second // 60 % 60:02}:{second % 60:02}Z"
    answer = {"source": source, "animal": animal, "who": who, "at": at, "seconds": 1.2}
    return answer | {"pass": pass_, "boxes_seen": False}


def dealt(review):
    """The names of the units below in the order of the draw."""
    return json_lines.lines((review / "deal.txt").read_text())


def deck_of(review):
    return json.loads((review / "deck.json").read_text())


def looked_at(review, rounds):
    """The names of all units that are looked at in the first rounds."""
    images = json_lines.lines((review / "images.jsonl").read_text())
    count = sum(deck_of(review)["plan"][:rounds])
    later = set(dealt(review)[count:])
    names = []
    for name in column_of(images, "source"):
        if name not in later:
            names.append(name)
    return names


def write_labels(path, labels):
    path.write_text(text_of(labels), encoding="utf-8")


def answer(review, animals, rounds=1, **options):
    """Write labels-anna.jsonl beside a review, with the truth about all units of the rounds."""
    labels = []
    for number, name in enumerate(looked_at(review, rounds)):
        labels.append(label(name, int(animals[name]), second=number, **options))
    path = review.parent / "labels-anna.jsonl"
    write_labels(path, labels)
    return path
