"""Reads result pages back, as a browser does."""

import itertools
import json
import re


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
