"""Measure a model on the held-out images: `python -m codes.evaluate codes.onnx`.

Their seeds, photographs, fonts, textures and lookalikes are not those of training. pycocotools
computes average precision; false alarms are counted on images without any symbol. Where folders
of real images are given or found, it measures on these too.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from codes.assets import held_out_assets
from codes.data import collated, letterboxed, turned
from codes.export import CONFS, Deployed, trained
from codes.scene import Scene, render
from codes.symbols import NAMES

Body = NDArray[Any]  # float32, [B, 4 + K, N]
Predict = Callable[[NDArray[Any]], Body]  # of images: float32, [B, 3, H, W]
Figures = dict[str, Any]

SEED = 1_000_003
IMGSZ = 640
# Heights and widths, in turn; the last are padded to 640 x 640.
SHAPES = ((640, 640), (480, 640), (640, 480), (240, 320), (200, 200))
IMAGES, NEGATIVES = 1000, 400
MAX_DETECTIONS = 100  # detections per image, as in COCO
LEAST = np.array([CONFS[name] for name in NAMES])  # the recommended confidences, by class
CONFIDENCE = 0.5  # where precision and recall are counted, and false alarms once more
IOU_THRESHOLD = 0.5  # of a true positive
VIEWED, HALVED = 200, 60  # images that are also turned and halved; pixels of symbols that count
DUPLICATE = 0.7  # IoU of two detections of one symbol
SHARED = Path(__file__).parents[3] / "shared" / "data"


def held_out(count: int, *, symbols: bool = True) -> Iterator[Scene]:
    """The first held-out scenes; without symbols, the first of the hard negatives."""
    assets = held_out_assets(SEED)
    for index in range(count):
        height, width = SHAPES[index % len(SHAPES)]
        yield render(SEED + (not symbols), index, assets, height, width, symbols=symbols)


def instances(scenes: list[Scene]) -> dict[str, Any]:
    """Scenes as COCO's `instances.json`, before letterboxing; image i is `000i.jpg`."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, scene in enumerate(scenes):
        height, width = scene.picture.shape[:2]
        name = f"{number:06}.jpg"
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        for label, box in zip(scene.labels.tolist(), scene.boxes.tolist(), strict=True):
            wide, tall = box[2] - box[0], box[3] - box[1]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label,
                    "bbox": [box[0], box[1], wide, tall],
                    "area": wide * tall,
                    "iscrowd": 0,
                }
            )
    categories = [{"id": label, "name": name} for label, name in enumerate(NAMES)]
    return {"images": images, "annotations": annotations, "categories": categories}


def predictor(path: Path) -> Predict:
    """A function that runs a checkpoint or an ONNX file on images `[1, 3, 640, 640]`."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda images: session.run(None, {session.get_inputs()[0].name: images})[0]
    network = Deployed(trained(path))

    def run(images: NDArray[Any]) -> Body:
        with torch.inference_mode():
            return network(torch.from_numpy(images)).numpy()

    return run


def detections(scene: Scene, predict: Predict) -> NDArray[np.float64]:
    """Detections `[D, 6]` in pixels of the scene: xyxy, score, class id; the best first."""
    height, width = scene.picture.shape[:2]
    gain = min(IMGSZ / max(height, width), 1)
    margins = [(IMGSZ - round(side * gain)) // 2 for side in (width, height)]
    images = collated([letterboxed(scene, IMGSZ)]).pictures.numpy().astype(np.float32) / 255
    body = predict(images)[0]  # [4 + K, N]
    best = np.argsort(-body[4:], axis=None, kind="stable")[:MAX_DETECTIONS]
    label, anchor = np.unravel_index(best, body[4:].shape)
    boxes = (body[:4, anchor].T - np.tile(margins, 2)) / gain
    boxes = np.clip(boxes, 0, [width, height, width, height])
    scores = body[4:][label, anchor]
    return np.column_stack([boxes, scores, label]).astype(np.float64)


class Sample(NamedTuple):
    """A real image: its file, what it shows, and whether it is a photo or clean."""

    path: Path
    label: str
    kind: str


def samples(folder: Path, count: int) -> list[Sample]:
    """`count` images of a folder with `labels.tsv`, the same ones for the same count; 0: all."""
    lines = (folder / "labels.tsv").read_text().splitlines()[1:]
    found = [
        Sample(folder / row[0], row[1], row[2]) for row in (line.split("\t") for line in lines)
    ]
    order = np.random.default_rng(SEED).permutation(len(found))
    return [found[place] for place in order[: count or None]]


def real(path: Path, predict: Predict) -> NDArray[np.float64]:
    """Detections on the image of a file, as `detections`."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise FileNotFoundError(f"{path} is not an image")
    return detections(Scene(image, np.zeros(0, int), np.zeros((0, 4), np.float32)), predict)


def on_samples(predict: Predict, folder: Path, count: int) -> Figures:
    """Recall of the right class anywhere in the image, and false alarms, at `LEAST`.

    In an image labelled `none:NAME`, all detections are false alarms except those of a class
    called NAME, if the model has one; such an image then counts for recall too. `other:` is left
    out.
    """
    hits: dict[str, list[bool]] = {}
    alarms: dict[str, list[int]] = {}
    for sample in samples(folder, count):
        group, _, name = sample.label.rpartition(":")
        if group == "other":
            continue
        rows = real(sample.path, predict)
        names = [NAMES[int(label)] for label in _confident(rows)[:, 5]]
        if name in NAMES:
            for key in (sample.kind, name):
                hits.setdefault(key, []).append(name in names)
        if group == "none":
            alarms.setdefault(name, []).append(sum(other != name for other in names))
    return {
        "recall": {key: float(np.mean(of)) for key, of in sorted(hits.items())},
        "false_alarms": {key: float(np.mean(of)) for key, of in sorted(alarms.items())},
        "pictures": {key: len(of) for key, of in sorted(hits.items())},
        "negatives": {key: len(of) for key, of in sorted(alarms.items())},
    }


def on_others(predict: Predict, folder: Path) -> Figures:
    """False alarms for each image of a folder where nothing is to be found."""
    rows = [real(path, predict) for path in sorted(folder.glob("*.jpg"))]
    return {
        "false_alarms": sum(len(_confident(own)) for own in rows) / len(rows),
        f"false_alarms_at_{CONFIDENCE}": sum(int((own[:, 4] >= CONFIDENCE).sum()) for own in rows)
        / len(rows),
    }


def _confident(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The detections `(N, 6)` from the recommended confidence of their class on."""
    return rows[rows[:, 4] >= LEAST[rows[:, 5].astype(int)]]


def duplicates(found: list[NDArray[np.float64]]) -> float:
    """Share of the detections from `LEAST` on that NMS at `DUPLICATE` would drop."""
    total = dropped = 0
    for rows in map(_confident, found):
        kept: list[NDArray[np.float64]] = []
        for row in rows:
            if all(_overlap(other[:4], row[:4]) <= DUPLICATE for other in kept):
                kept.append(row)
        total += len(rows)
        dropped += len(rows) - len(kept)
    return dropped / max(total, 1)


def agreement(predict: Predict, scenes: list[Scene]) -> Figures:
    """How alike symbols score that are turned by 90 degrees or half as large.

    Returns:
        For each view, of the symbols found from `CONFIDENCE` on in the image or in the view, the
        share found in both, and the mean difference of their scores. In the view of half the size,
        only symbols count whose longer side has at least `HALVED` pixels there.
    """
    pairs: dict[str, list[tuple[float, float]]] = {"turned": [], "halved": []}
    for scene in scenes:
        small = cv2.resize(scene.picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        halved = scene._replace(picture=small, boxes=scene.boxes / 2)  # type: ignore[arg-type]
        own = _scores(scene, predict)
        turn = _scores(turned(scene, swap=True, flip=True), predict)
        half = _scores(halved, predict)
        sides = (halved.boxes[:, 2:] - halved.boxes[:, :2]).max(1, initial=0)
        pairs["turned"] += zip(own, turn, strict=True)
        large = sides >= HALVED
        pairs["halved"] += zip(np.array(own)[large], np.array(half)[large], strict=True)
    figures: Figures = {}
    for view, of in pairs.items():
        found = np.array([pair for pair in of if max(pair) >= CONFIDENCE]).reshape(-1, 2)
        figures[view] = {
            "both": float((found >= CONFIDENCE).all(1).mean()),
            "difference": float(np.abs(found[:, 0] - found[:, 1]).mean()),
        }
    return figures


def _scores(scene: Scene, predict: Predict) -> list[float]:
    """The best score of each symbol, by a detection of its class with enough overlap; or 0."""
    rows = detections(scene, predict)
    return [
        max(
            (
                float(row[4])
                for row in rows
                if row[5] == label and _overlap(box, row[:4]) >= IOU_THRESHOLD
            ),
            default=0.0,
        )
        for label, box in zip(scene.labels, scene.boxes, strict=True)
    ]


def measure(predict: Predict, images: int, negatives: int) -> dict[str, Any]:
    """Every figure of the model card."""
    scenes = list(held_out(images))
    found = [detections(scene, predict) for scene in scenes]
    report = average_precision(instances(scenes), found)
    report |= at_confidence(scenes, found)
    report["duplicates"] = duplicates(found)
    report["agreement"] = agreement(predict, scenes[:VIEWED])
    alarms = [
        int((detections(scene, predict)[:, 4] >= CONFIDENCE).sum())
        for scene in held_out(negatives, symbols=False)
    ]
    report["false_alarms_per_negative"] = sum(alarms) / max(negatives, 1)
    report["pictures"], report["negatives"] = images, negatives
    return report


def average_precision(truth: dict[str, Any], found: list[NDArray[np.float64]]) -> dict[str, Any]:
    """COCO's average precision, overall, by class and by size."""
    results = [
        {
            "image_id": number,
            "category_id": int(label),
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "score": score,
        }
        for number, rows in enumerate(found)
        for x0, y0, x1, y1, score, label in rows.tolist()
    ]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    table = evaluation.eval["precision"]  # [IoU, recall, class, area, most]
    sizes = ("all", "small", "medium", "large")

    def mean(part: NDArray[np.float64]) -> float | None:
        known = part[part > -1]
        return float(known.mean()) if known.size else None

    return {
        "mAP50-95": mean(table[:, :, :, 0, 2]),
        "mAP50": mean(table[0, :, :, 0, 2]),
        "mAP75": mean(table[5, :, :, 0, 2]),
        "by_size": {
            size: {"mAP50-95": mean(table[:, :, :, i, 2]), "mAP50": mean(table[0, :, :, i, 2])}
            for i, size in enumerate(sizes)
            if i
        },
        "by_class": {
            name: {"AP50-95": mean(table[:, :, i, 0, 2]), "AP50": mean(table[0, :, i, 0, 2])}
            for i, name in enumerate(NAMES)
        },
    }


def at_confidence(scenes: list[Scene], found: list[NDArray[np.float64]]) -> dict[str, Any]:
    """Precision and recall of each class at one confidence, and the confusion matrix."""
    classes = len(NAMES)
    confusion = np.zeros((classes + 1, classes + 1), int)  # [truth, found]; last: none
    for scene, rows in zip(scenes, found, strict=True):
        kept = rows[rows[:, 4] >= CONFIDENCE]
        free = list(range(len(scene.labels)))
        for row in kept:
            overlaps = [_overlap(scene.boxes[item], row[:4]) for item in free]
            if overlaps and max(overlaps) >= IOU_THRESHOLD:
                truth = int(scene.labels[free.pop(int(np.argmax(overlaps)))])
            else:
                truth = classes
            confusion[truth, int(row[5])] += 1
        for item in free:
            confusion[scene.labels[item], classes] += 1
    hits = np.diag(confusion)[:classes]
    return {
        "confidence": CONFIDENCE,
        "precision": _shares(hits, confusion[:, :classes].sum(0)),
        "recall": _shares(hits, confusion[:classes].sum(1)),
        "confusion": confusion.tolist(),
    }


def _shares(hits: NDArray[np.int64], of: NDArray[np.int64]) -> dict[str, float]:
    return {
        name: float(hit / max(count, 1)) for name, hit, count in zip(NAMES, hits, of, strict=True)
    }


def _overlap(first: NDArray[Any], second: NDArray[Any]) -> float:
    near, far = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = float(np.prod(np.clip(far - near, 0, None)))
    both = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]))
    return shared / max(both - shared, 1e-9)


def write(folder: Path, count: int) -> None:
    """Write the held-out images and their `instances.json`, for `detcli eval`."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    scenes = list(held_out(count))
    truth = instances(scenes)
    for entry, scene in zip(truth["images"], scenes, strict=True):
        path = folder / "images" / entry["file_name"]
        cv2.imwrite(str(path), scene.picture, [cv2.IMWRITE_JPEG_QUALITY, 95])
    (folder / "instances.json").write_text(json.dumps(truth))


def main() -> None:
    """Measure the model of the command line and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="codes.onnx or a checkpoint")
    parser.add_argument("--pictures", type=int, default=IMAGES)
    parser.add_argument("--negatives", type=int, default=NEGATIVES)
    parser.add_argument(
        "--photographs", type=Path, default=SHARED / "codes-photos", help="folder of labels.tsv"
    )
    parser.add_argument("--sample", type=int, default=0, help="photographs to take (default: all)")
    parser.add_argument(
        "--others", type=Path, default=SHARED / "coco128" / "images", help="without symbols"
    )
    parser.add_argument("--write", type=Path, help="only write the images, as a COCO data set")
    given = parser.parse_args()
    if given.write:
        write(given.write, given.pictures)
        return
    predict = predictor(given.model)
    report = measure(predict, given.pictures, given.negatives) if given.pictures else {}
    if given.photographs.is_dir():
        report["photographs"] = on_samples(predict, given.photographs, given.sample)
    if given.others.is_dir():
        report["others"] = on_others(predict, given.others)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
