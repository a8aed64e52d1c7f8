"""Labelled images for the colour model, in COCO's form and in YOLO's.

The images are black, where the model finds nothing; a square's brightness is its score.
"""

import json
from dataclasses import dataclass, field

import cv2
import numpy as np
from colour_model import CELL, COLOURS, NAMES

from detcli.commands.eval.findings import Findings
from detcli.commands.eval.labels import open_dataset

SIDE = 64


@dataclass
class Scene:
    """One image: squares (colour, column, row, score), and labels (colour, x, y, w, h)."""

    squares: list[tuple[str, int, int, float]] = field(default_factory=list)
    labels: list[tuple[str, float, float, float, float]] = field(default_factory=list)

    @classmethod
    def found(cls, *squares):
        """Squares that are all labelled."""
        labels = []
        for colour, column, row, _ in squares:
            labels.append((colour, CELL * column, CELL * row, CELL, CELL))
        return cls(list(squares), labels)  # type: ignore[arg-type]

    def write(self, path):
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        for colour, column, row, score in self.squares:
            x = column * CELL
            y = row * CELL
            image[y : y + CELL, x : x + CELL] += np.uint8(np.multiply(COLOURS[colour], score))
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image)


def write_coco(folder, scenes, names=NAMES, **fields):
    """Write `images` and `instances.json`; categories are 11, 12, ..., images 1, 2, ...

    `fields` are added to each annotation.
    """
    images = []
    annotations = []
    for number, scene in enumerate(scenes, 1):
        file_name = f"{number:04}.png"
        scene.write(folder / "images" / file_name)
        images.append({"id": number, "file_name": file_name, "width": SIDE, "height": SIDE})
        for colour, x, y, width, height in scene.labels:
            annotation = {
                "id": len(annotations),
                "image_id": number,
                "category_id": 11 + names.index(colour),
                "bbox": [x, y, width, height],
                "area": width * height,
                "iscrowd": 0,
            }
            annotations.append(annotation | fields)
    content = {
        "images": images,
        "categories": [{"id": 11 + index, "name": name} for index, name in enumerate(names)],
        "annotations": annotations,
    }
    return write_json(folder / "instances.json", content)


def write_json(path, content):
    path.write_text(json.dumps(content))
    return path


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    return write_json(path, content)


def drop_labels(content, category_id):
    """Remove the annotations of a category from the content of a COCO file."""
    annotations = []
    for annotation in content["annotations"]:
        if annotation["category_id"] != category_id:
            annotations.append(annotation)
    content["annotations"] = annotations


def write_yolo(folder, scenes, names=NAMES):
    """Write `images/val`, `labels/val` and `data.yaml`."""
    labels = folder / "labels/val"
    labels.mkdir(parents=True)
    for number, scene in enumerate(scenes, 1):
        scene.write(folder / f"images/val/{number:04}.png")
        lines = []
        for colour, x, y, w, h in scene.labels:
            centre_x = (x + w / 2) / SIDE
            centre_y = (y + h / 2) / SIDE
            class_id = names.index(colour)
            lines.append(f"{class_id} {centre_x} {centre_y} {w / SIDE} {h / SIDE}\n")
        (labels / f"{number:04}.txt").write_text("".join(lines))
    path = folder / "data.yaml"
    path.write_text(f"path: .\nval: images/val\nnames: {list(names)}\n")
    return path


def read(path, class_count=3, images=None, split=None):
    """The data, and the findings about it by their kinds."""
    findings = Findings()
    dataset = open_dataset(path, images, split, class_count, findings)
    return dataset, {finding.kind: finding for finding in findings.report()}


def counts(findings):
    """How often each kind was found."""
    return {kind: finding.count for kind, finding in findings.items()}


MIXED = [
    Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.8), ("blue", 6, 6, 0.7)),
    Scene([("red", 1, 1, 0.6)], [("red", 10, 8, 8, 8)]),  # beside its label
    Scene([("red", 2, 2, 0.5)], []),  # a false alarm
    Scene([], [("green", 0, 0, 16, 16)]),  # a miss
    Scene([("green", 5, 5, 0.4)], [("blue", 40, 40, 8, 8)]),  # taken for another
]
"""Hits, a miss, false alarms, a confusion; blue is found once and missed once."""
