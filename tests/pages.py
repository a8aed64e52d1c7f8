"""Makes result pages, and reads them back, as a browser does."""

import itertools
import json
import re

import numpy as np
import sample_records

from detcli.data.record import BOX
from detcli.page.page import Conclusion, Page, PagePicture, RunInfo

CLASSES = ("person", "car", "dog")


def box(class_id=0, score=0.5, sides=(10, 10, 50, 40), name=None):
    """A detection."""
    name = CLASSES[class_id] if name is None else name
    return {"class_id": class_id, "class_name": name, "score": score} | dict(
        zip(BOX, map(float, sides), strict=True)
    )


def record(source, *boxes, **more):
    """The record of a picture of 80x60 pixels."""
    made = sample_records.picture(source).to_json()
    return made | {"width": 80, "height": 60, "detections": boxes} | more


def failure(source, message="it is torn", hint="fetch it again"):
    """The record of an input that failed."""
    return sample_records.failure(source, message, hint=hint).to_json()


def grey(size=(60, 80)):
    """A picture."""
    return PagePicture(np.full((*size, 3), 120, np.uint8))


PREDICT, NOTHING = RunInfo("predict", [("conf", "0.25")]), Conclusion()


def make(path, records, about=PREDICT, boxes=None, conclusion=NOTHING):
    """A page of records, whose pictures are all alike."""
    page, shown = Page(path, about), grey()
    for number, one in enumerate(records):
        page.add(one, lambda: shown, boxes and boxes[number])
    page.close(conclusion)
    return path


def runs(folder):
    """What the page says of each run."""
    text = (folder / "data/runs.js").read_text("ascii")
    assert re.fullmatch(r"runs\(1, \[.*\]\);\n", text, re.DOTALL)
    return json.loads(text[len("runs(1, ") : -len(");\n")])


def entries(folder):
    """The records of all chunks that the page loads."""
    return [entry for run in entries_by_run(folder) for entry in run]


def entries_by_run(folder):
    """The records of each run."""
    chunks = itertools.count()
    return [
        [entry for _ in range(run["chunks"]) for entry in chunk(folder, next(chunks))]
        for run in runs(folder)
    ]


def chunk(folder, number):
    """The records of one chunk."""
    for line in (folder / f"data/{number}.js").read_text("ascii").splitlines():
        assert line.startswith("add({"), line
        assert line.endswith("});"), line
        yield json.loads(line[len("add(") : -len(");")])


def shown(folder):
    """The last entry about each source, with the names of classes and the picture itself."""
    found = {}
    for one_run in entries_by_run(folder):
        classes = []
        for entry in one_run:
            classes += [name for _, name, *_ in entry.pop("classes", [])]
            boxes = [[classes[number], *rest] for number, *rest in entry.pop("found", [])]
            name = entry.pop("picture", None)
            picture = name and (folder / f"pictures/{name}.jpg").read_bytes()
            found[entry["source"]] = entry, boxes, picture
    return found


def pictures(folder, *, thumbnails=True):
    """Names of the pictures, each of which has a thumbnail, but for a moment."""
    kinds = [
        sorted(
            path.relative_to(folder / kind).as_posix() for path in (folder / kind).rglob("*.jpg")
        )
        for kind in ("pictures", "thumbnails")
    ]
    assert kinds[0] == kinds[1] or not thumbnails
    return [name.removesuffix(".jpg") for name in kinds[0]]
