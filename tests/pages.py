"""Makes result pages, and reads them back, as a browser does."""

import base64
import itertools
import json
import re

import numpy as np
import sample_records

from detcli.data.record import BOX
from detcli.page.page import Conclusion, Page, PageImage
from detcli.page.run_info import RunInfo

CLASSES = ("person", "car", "dog")


def box(class_id=0, score=0.5, sides=(10, 10, 50, 40), name=None):
    """A detection."""
    if name is None:
        name = CLASSES[class_id]
    detection = {"class_id": class_id, "class_name": name, "score": score}
    for key, edge in zip(BOX, sides, strict=True):
        detection[key] = float(edge)
    return detection


def record_of(source, boxes=(), **more_fields):
    """The record of an image of 80x60 pixels, with the boxes as its detections."""
    fields = sample_records.image(source).to_json()
    return fields | {"width": 80, "height": 60, "detections": boxes} | more_fields


def record(source, *boxes):
    """`record_of` with the boxes as arguments, as a benchmark calls it."""
    return record_of(source, boxes)


def failure(source, message="it is torn", hint="fetch it again"):
    """The record of an input that failed."""
    return sample_records.failure(source, message, hint=hint).to_json()


def grey(size=(60, 80)):
    """An image."""
    return PageImage(np.full(size + (3,), 120, np.uint8))


PREDICT = RunInfo("predict", [("conf", "0.25")])
NOTHING = Conclusion()


def make(path, records, about=PREDICT, boxes=None, conclusion=NOTHING):
    """A page of records, whose images are all alike."""
    page = Page(path, about)
    image = grey()
    for number, fields in enumerate(records):
        page.add(fields, lambda: image, boxes and boxes[number])
    page.close(conclusion)
    return path


def runs(folder):
    """What the page says of each run."""
    text = (folder / "data/runs.js").read_text("ascii")
    assert re.fullmatch(r"runs\(2, \[.*\]\);\n", text, re.DOTALL)
    return json.loads(text[len("runs(2, ") : -len(");\n")])


def entries(folder):
    """The records of all chunks that the page loads."""
    return list(itertools.chain.from_iterable(entries_by_run(folder)))


def entries_by_run(folder):
    """The records of each run."""
    chunk_numbers = itertools.count()
    entries_of_runs = []
    for run in runs(folder):
        entries_of_run = []
        for _ in range(run["chunks"]):
            entries_of_run += chunk(folder, next(chunk_numbers))
        entries_of_runs.append(entries_of_run)
    return entries_of_runs


def chunk(folder, number):
    """The records of one chunk."""
    for line in (folder / f"data/{number}.js").read_text("ascii").splitlines():
        assert line.startswith("add({"), line
        assert line.endswith("});"), line
        yield json.loads(line[len("add(") : -len(");")])


def kinds_of_boxes(run, entry):
    """The kind of each box of an entry, as its run names it."""
    kinds = []
    for row in entry["found"]:
        kind_number = row[6]
        kinds.append(run["kinds"][kind_number][0])
    return kinds


def shown(folder):
    """The last entry about each source, with the names of classes and the image itself."""
    entries_of_sources = {}
    for entries_of_run in entries_by_run(folder):
        classes = []
        for entry in entries_of_run:
            for _, class_name, *_ in entry.pop("classes", []):
                classes.append(class_name)
            boxes = []
            for class_number, *fields_of_box in entry.pop("found", []):
                boxes.append([classes[class_number]] + fields_of_box)
            name = entry.pop("picture", None)
            image = name and (folder / f"pictures/{name}.jpg").read_bytes()
            entries_of_sources[entry["source"]] = entry, boxes, image
    return entries_of_sources


def images(folder, *, thumbnails=True):
    """Names of the images, each of which has a thumbnail, but for a moment.

    Images of a long video that were dropped have their thumbnails still.
    """
    names = [name.removesuffix(".jpg") for name in jpegs(folder / "pictures")]
    if thumbnails:
        assert packed_thumbnails(folder).keys() >= set(names)
    return names


def packed_thumbnails(folder):
    """The thumbnails of all packs, as JPEG, by the names of their images."""
    thumbnails = {}
    for pack in (folder / "thumbnails").rglob("*.js"):
        for line in pack.read_text("ascii").splitlines():
            match = re.fullmatch(r'thumbnail\("([0-9/]+)", "([A-Za-z0-9+/=]+)"\);', line)
            assert match, line
            name, jpeg_base64 = match.groups()
            assert pack == folder / "thumbnails" / f"{name.rpartition('/')[0]}.js"
            thumbnails[name] = base64.b64decode(jpeg_base64)
    return thumbnails


def jpegs(folder):
    """The names of all JPEGs in a folder and its folders, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
