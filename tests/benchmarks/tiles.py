"""Tiles beside SAHI, in turns: recall, precision and time on mosaics of labelled images.

    python tests/benchmarks/tiles.py MODEL COCO_FOLDER --sahi PYTHON [--scale 1] [--rounds 3]
        [--device cpu openvino openvino:half]

MODEL ends in `[1, 300, 6]` and takes a static square; COCO_FOLDER has `images` and
`instances.json`; PYTHON is the interpreter of an environment with `sahi` and `onnxruntime`, where
`tiles_sahi.py` runs. Both sides get the same pixels, model, tiles and confidence, and use all
cores; what is timed is from the decoded image to the merged rows. A mosaic has 8 by 4 images,
each scaled and in a cell of 640 pixels' width, with grey around.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from detcli import Detector, DeviceOptions, Settings, Tiling
from detcli.config.device import available_cores

COLUMNS, ROWS, CELL = 8, 4, 640
CONF, IOU = 0.25, 0.5

Row = tuple[str, list[float], float]  # class, x1 y1 x2 y2, score


def mosaics(folder: Path, out: Path, scale: float) -> list[tuple[Path, list[Row]]]:
    """Mosaics as PNG, and the boxes of their objects; crowds are left out."""
    data = json.loads((folder / "instances.json").read_text())
    names = {entry["id"]: entry["name"] for entry in data["categories"]}
    objects = defaultdict(list)
    for entry in data["annotations"]:
        if not entry["iscrowd"]:
            objects[entry["image_id"]].append((names[entry["category_id"]], entry["bbox"]))
    cell, per_mosaic = round(CELL * scale), COLUMNS * ROWS
    written = []
    for first in range(0, len(data["images"]), per_mosaic):
        canvas = np.full((ROWS * cell, COLUMNS * cell, 3), 114, np.uint8)
        rows: list[Row] = []
        for cell_number, image in enumerate(data["images"][first : first + per_mosaic]):
            pixels = cv2.imread(str(folder / "images" / image["file_name"]))
            pixels = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            top, left = cell_number // COLUMNS * cell, cell_number % COLUMNS * cell
            canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels[
                :cell, :cell
            ]
            for name, (x, y, width, height) in objects[image["id"]]:
                box = np.array([x, y, x + width, y + height]) * scale + [left, top, left, top]
                rows.append((name, box.tolist(), 1.0))
        written.append((out / f"{first}.png", rows))
        cv2.imwrite(str(written[-1][0]), canvas)
    return written


def hits(detections: Sequence[Row], objects: Sequence[Row]) -> int:
    """How many known objects are found, the best detections first, each for one object."""
    left = list(objects)
    count = 0
    for name, box, _ in sorted(detections, key=lambda row: -row[2]):
        best_iou, best_index = 0.0, -1
        for index, (kind, object_box, _) in enumerate(left):
            if kind == name:
                object_iou = iou(box, object_box)
                if object_iou >= best_iou:  # of equals, the last
                    best_iou, best_index = object_iou, index
        if best_iou >= IOU:
            del left[best_index]
            count += 1
    return count


def iou(left: Sequence[float], right: Sequence[float]) -> float:
    """Intersection over union."""
    width = min(left[2], right[2]) - max(left[0], right[0])
    height = min(left[3], right[3]) - max(left[1], right[1])
    common = max(0.0, width) * max(0.0, height)
    left_area = (left[2] - left[0]) * (left[3] - left[1])
    right_area = (right[2] - right[0]) * (right[3] - right[1])
    return common / (left_area + right_area - common) if common else 0.0


class Ours:
    """detcli in this process."""

    def __init__(self, model: Path, device: str, tiling: Tiling) -> None:
        name = device.removesuffix(":half")
        # Workers as predict has them.
        options = DeviceOptions(workers=available_cores(), half=name != device)
        self._detector = Detector(
            model, name, settings=Settings(conf=CONF, tile=tiling), options=options
        )

    def __call__(self, path: Path) -> tuple[float, list[Row]]:
        image = cv2.imread(str(path))
        start = time.perf_counter()
        detections = self._detector(image)
        seconds = time.perf_counter() - start
        rows: list[Row] = []
        for box, score, _, name in detections:
            rows.append((name, box.tolist(), score))
        return seconds, rows


class Theirs:
    """SAHI in a process of its own."""

    def __init__(self, python: str, model: Path, tiling: Tiling) -> None:
        names = json.dumps(Detector(model, "cpu").contract.names)
        script = Path(__file__).with_name("tiles_sahi.py")
        command = [python, script, model, names, str(tiling.size), str(tiling.overlap), str(CONF)]
        self._process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, path: Path) -> tuple[float, list[Row]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(path, file=self._process.stdin, flush=True)
        seconds, rows = json.loads(self._process.stdout.readline())
        return seconds, rows

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sahi", required=True, metavar="PYTHON")
    parser.add_argument("--tile", default="640", type=Tiling.parse)
    parser.add_argument("--device", default=["cpu"], nargs="+")
    parser.add_argument("--scale", default=1.0, type=float)
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        written = mosaics(options.data, Path(folder), options.scale)
        theirs = Theirs(options.sahi, options.model, options.tile)
        ours = {name: Ours(options.model, name, options.tile) for name in options.device}
        sides = {**ours, "SAHI": theirs}
        for side in sides.values():
            side(written[0][0])  # type: ignore[operator]  # warm
        object_count = 0
        for _, objects in written:
            object_count += len(objects)
        seconds: dict[str, list[float]] = defaultdict(list)
        counts: dict[str, tuple[int, int]] = {}
        for turn in range(options.rounds):
            for name in sorted(sides, reverse=bool(turn % 2)):
                turn_seconds = 0.0
                right, all_rows = 0, 0
                for path, objects in written:
                    image_seconds, detections = sides[name](path)  # type: ignore[operator]
                    turn_seconds += image_seconds
                    right += hits(detections, objects)
                    all_rows += len(detections)
                seconds[name].append(turn_seconds)
                counts[name] = right, all_rows
        theirs.close()
    size = f"{COLUMNS * round(CELL * options.scale)}x{ROWS * round(CELL * options.scale)}"
    print(f"{len(written)} mosaics of {size}, {object_count} objects, tile {options.tile}, "
          f"{available_cores()} cores, {options.rounds} rounds in turns")  # fmt: skip
    for name in sides:
        right, all_rows = counts[name]
        print(f"{name:13} recall {right / object_count:.4f}  precision {right / all_rows:.4f}  "
              f"{statistics.median(seconds[name]):.2f} s ({min(seconds[name]):.2f} "
              f"to {max(seconds[name]):.2f})")  # fmt: skip
    for name in ours:
        ratio = np.median(np.divide(seconds[name], seconds["SAHI"]))
        print(f"detcli, {name}, takes {ratio:.2f} of SAHI's time")


if __name__ == "__main__":
    main()
