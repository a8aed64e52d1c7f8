"""Labelled pictures for the colour model, in COCO's form and in YOLO's.

The pictures are black, where the model finds nothing; a square's brightness is its score.
"""

import json
from dataclasses import dataclass, field

import cv2
import numpy as np
from colour_model import CELL, COLOURS, NAMES

from detcli.commands.eval.labels import Findings, open_dataset

SIDE = 64


@dataclass
class Scene:
    """One picture: squares (colour, column, row, score), and labels (colour, x, y, w, h)."""

    squares: list[tuple[str, int, int, float]] = field(default_factory=list)
    labels: list[tuple[str, float, float, float, float]] = field(default_factory=list)

    @classmethod
    def found(cls, *squares):
        """Squares that are all labelled."""
        labels = [(colour, CELL * column, CELL * row, CELL, CELL)
                  for colour, column, row, _ in squares]  # fmt: skip
        return cls(list(squares), labels)  # type: ignore[arg-type]

    def write(self, path):
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        for colour, column, row, score in self.squares:
            x, y = column * CELL, row * CELL
            image[y : y + CELL, x : x + CELL] += np.uint8(np.multiply(COLOURS[colour], score))
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image)


def write_coco(folder, scenes, names=NAMES, **more):
    """Write `images` and `instances.json`; categories are 11, 12, ..., pictures 1, 2, ...

    `more` adds to each annotation.
    """
    annotations = []
    for number, scene in enumerate(scenes, 1):
        scene.write(folder / f"images/{number:04}.png")
        for colour, *box in scene.labels:
            category = 11 + names.index(colour)
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": category,
                 "bbox": box, "area": box[2] * box[3], "iscrowd": 0} | more
            )  # fmt: skip
    content = {
        "images": [{"id": number, "file_name": f"{number:04}.png", "width": SIDE, "height": SIDE}
                   for number in range(1, len(scenes) + 1)],
        "categories": [{"id": 11 + index, "name": name} for index, name in enumerate(names)],
        "annotations": annotations,
    }  # fmt: skip
    return write_json(folder / "instances.json", content)


def write_json(path, content):
    path.write_text(json.dumps(content))
    return path


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    return write_json(path, content)


def write_yolo(folder, scenes, names=NAMES):
    """Write `images/val`, `labels/val` and `data.yaml`."""
    labels = folder / "labels/val"
    labels.mkdir(parents=True)
    for number, scene in enumerate(scenes, 1):
        scene.write(folder / f"images/val/{number:04}.png")
        lines = []
        for colour, x, y, w, h in scene.labels:
            numbers = (x + w / 2) / SIDE, (y + h / 2) / SIDE, w / SIDE, h / SIDE
            lines.append(f"{names.index(colour)} {' '.join(map(str, numbers))}\n")
        (labels / f"{number:04}.txt").write_text("".join(lines))
    path = folder / "data.yaml"
    path.write_text(f"path: .\nval: images/val\nnames: {list(names)}\n")
    return path


def read(path, class_count=3, images=None, split=None):
    """The data, and what was found in it by its kind."""
    findings = Findings()
    dataset = open_dataset(path, images, split, class_count, findings)
    return dataset, {one.kind: one for one in findings.report()}


def counts(found):
    return {kind: one.count for kind, one in found.items()}


MIXED = [
    Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.8), ("blue", 6, 6, 0.7)),
    Scene([("red", 1, 1, 0.6)], [("red", 10, 8, 8, 8)]),  # beside its label
    Scene([("red", 2, 2, 0.5)], []),  # a false alarm
    Scene([], [("green", 0, 0, 16, 16)]),  # a miss
    Scene([("green", 5, 5, 0.4)], [("blue", 40, 40, 8, 8)]),  # taken for another
]
"""Hits, a miss, false alarms, a confusion; blue is found once and missed once."""
