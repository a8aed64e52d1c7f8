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

Body = NDArray[Any]  # float32, [B, 4 + K, N]: xyxy in pixels of the input, then scores
# float64, [D, 6]: xyxy in pixels of the image, score, class id; the best first.
Detections = NDArray[np.float64]
SCORE, CLASS = 4, 5  # columns of `Detections`, after the four of the box
Predict = Callable[[NDArray[Any]], Body]  # of images: float32, [B, 3, H, W]
Figures = dict[str, Any]

SEED = 1_000_003
IMGSZ = 640
# Heights and widths, in turn; the last are padded to 640 x 640.
SHAPES = ((640, 640), (480, 640), (640, 480), (240, 320), (200, 200))
IMAGES, NEGATIVES = 1000, 400
MAX_DETECTIONS = 100  # detections per image, as in COCO
RECOMMENDED = np.array([CONFS[name] for name in NAMES])  # confidences, by class
CONFIDENCE = 0.5  # where precision and recall are counted, and false alarms once more
IOU_THRESHOLD = 0.5  # of a true positive
AGREEMENT_IMAGES = 200  # how many images are also turned and halved
MIN_HALVED_SIDE = 60  # pixels of the symbols that count in halved images
DUPLICATE_IOU = 0.7  # above it, two detections are of one symbol
SHARED = Path(__file__).parents[3] / "shared" / "data"


def held_out(count: int, *, symbols: bool = True) -> Iterator[Scene]:
    """The first held-out scenes; without symbols, the first of the hard negatives."""
    assets = held_out_assets(SEED)
    for index in range(count):
        height, width = SHAPES[index % len(SHAPES)]
        yield render(SEED + (not symbols), index, assets, height, width, symbols=symbols)


def instances(scenes: list[Scene]) -> dict[str, Any]:
    """Scenes as COCO's `instances.json`, before letterboxing; image 7 is `000007.jpg`."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, scene in enumerate(scenes):
        height, width = scene.image.shape[:2]
        name = f"{number:06}.jpg"
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        for label, (x1, y1, x2, y2) in zip(
            scene.labels.tolist(), scene.boxes.tolist(), strict=True
        ):
            box_width = x2 - x1
            box_height = y2 - y1
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": label,
                    "bbox": [x1, y1, box_width, box_height],
                    "area": box_width * box_height,
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


def detections(scene: Scene, predict: Predict) -> Detections:
    """The model's best detections, run on the letterboxed image, in pixels of the scene's image."""
    height, width = scene.image.shape[:2]
    scale = min(IMGSZ / max(height, width), 1)  # as `letterboxed` computes it
    left = (IMGSZ - round(width * scale)) // 2
    top = (IMGSZ - round(height * scale)) // 2
    batch = collated([letterboxed(scene, IMGSZ)])
    images = batch.images.numpy().astype(np.float32) / 255  # [1, 3, 640, 640]

    body = predict(images)[0]  # [4 + K, N]
    all_boxes = body[:4]
    all_scores = body[4:]  # [K, N]
    best = np.argsort(-all_scores, axis=None, kind="stable")[:MAX_DETECTIONS]
    label_ids, anchor_ids = np.unravel_index(best, all_scores.shape)
    scores = all_scores[label_ids, anchor_ids]

    boxes = (all_boxes[:, anchor_ids].T - np.array([left, top, left, top])) / scale
    boxes = np.clip(boxes, 0, [width, height, width, height])
    return np.column_stack([boxes, scores, label_ids]).astype(np.float64)


class Sample(NamedTuple):
    """A real image.

    Attributes:
        path: Its file.
        label: The class that it shows; or `none:NAME` if it shows something else called NAME, and
            `other:NAME` if it is not to count.
        kind: Whether it is a photo or clean.
    """

    path: Path
    label: str
    kind: str


def samples(folder: Path, count: int) -> list[Sample]:
    """`count` images of a folder with `labels.tsv`, the same ones for the same count; 0: all."""
    all_samples = []
    for line in (folder / "labels.tsv").read_text().splitlines()[1:]:
        name, label, kind = line.split("\t")[:3]
        all_samples.append(Sample(folder / name, label, kind))

    order = np.random.default_rng(SEED).permutation(len(all_samples))
    if count:
        order = order[:count]
    return [all_samples[number] for number in order]


def detections_in_file(path: Path, predict: Predict) -> Detections:
    """Detections on the image of a file, as `detections`.

    Raises:
        FileNotFoundError: The file is missing, or is not an image.
    """
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise FileNotFoundError(f"{path} is not an image")
    no_labels = np.zeros(0, int)
    no_boxes = np.zeros((0, 4), np.float32)
    return detections(Scene(image, no_labels, no_boxes), predict)


def measure_samples(predict: Predict, folder: Path, count: int) -> Figures:
    """Recall and false alarms on real images: whether the class is detected anywhere in an image.

    Detections count from the recommended confidence of their class on. In an image labelled
    `none:NAME`, all detections are false alarms except those of a class called NAME, if the model
    has one; the image then counts for recall too. Images labelled `other:NAME` are left out.

    Args:
        predict: The model.
        folder: Images with `labels.tsv`.
        count: How many of them to take; 0 for all.
    """
    hits: dict[str, list[bool]] = {}  # by kind of image, and by class as well
    alarm_counts: dict[str, list[int]] = {}  # by what the image shows
    for sample in samples(folder, count):
        group, _, name = sample.label.rpartition(":")  # the group is empty for a class
        if group == "other":
            continue
        confident = _confident(detections_in_file(sample.path, predict))
        detected_names = [NAMES[int(label)] for label in confident[:, CLASS]]
        if name in NAMES:
            is_hit = name in detected_names
            hits.setdefault(sample.kind, []).append(is_hit)
            hits.setdefault(name, []).append(is_hit)
        if group == "none":
            alarm_count = len(detected_names) - detected_names.count(name)
            alarm_counts.setdefault(name, []).append(alarm_count)
    return {
        "recall": _means(hits),
        "false_alarms": _means(alarm_counts),
        "pictures": {key: len(hits[key]) for key in sorted(hits)},
        "negatives": {key: len(alarm_counts[key]) for key in sorted(alarm_counts)},
    }


def _means(values: dict[str, list[Any]]) -> dict[str, float]:
    """The mean of each list, in the order of the keys."""
    return {key: float(np.mean(values[key])) for key in sorted(values)}


def measure_images_without_symbols(predict: Predict, folder: Path) -> Figures:
    """Mean number of false alarms in the JPEGs of a folder, none of which has symbols.

    They are counted at the recommended confidences of the classes, and at `CONFIDENCE` for all.
    """
    recommended_alarms = 0
    confidence_alarms = 0
    paths = sorted(folder.glob("*.jpg"))
    for path in paths:
        image_detections = detections_in_file(path, predict)
        recommended_alarms += len(_confident(image_detections))
        confidence_alarms += int((image_detections[:, SCORE] >= CONFIDENCE).sum())
    return {
        "false_alarms": recommended_alarms / len(paths),
        f"false_alarms_at_{CONFIDENCE}": confidence_alarms / len(paths),
    }


def _confident(image_detections: Detections) -> Detections:
    """The detections whose score is at least the recommended confidence of their class."""
    label_ids = image_detections[:, CLASS].astype(int)
    return image_detections[image_detections[:, SCORE] >= RECOMMENDED[label_ids]]


def duplicates(detections_by_image: list[Detections]) -> float:
    """Share of the detections at the recommended confidences that class-agnostic NMS would drop."""
    total = 0
    dropped = 0
    for image_detections in detections_by_image:
        confident = _confident(image_detections)
        surviving_boxes: list[NDArray[np.float64]] = []
        for detection in confident:
            box = detection[:4]
            if all(_overlap(other, box) <= DUPLICATE_IOU for other in surviving_boxes):
                surviving_boxes.append(box)
        total += len(confident)
        dropped += len(confident) - len(surviving_boxes)
    return dropped / max(total, 1)


def agreement(predict: Predict, scenes: list[Scene]) -> Figures:
    """How much a symbol's score changes when its image is turned by 90 degrees or halved in size.

    A symbol counts if its score is at least `CONFIDENCE` in the image or in the view. In the halved
    view, its longer side must also have at least `MIN_HALVED_SIDE` pixels.

    Returns:
        For each view, the share of these symbols that have such a score in both, and the mean
        difference of both scores; NaN if no symbol counts.
    """
    turned_pairs: list[tuple[float, float]] = []  # scores in the image and in the view
    halved_pairs: list[tuple[float, float]] = []
    for scene in scenes:
        scores = _best_scores(scene, predict)

        turned_by_90 = turned(scene, swap=True, flip=True)
        turned_scores = _best_scores(turned_by_90, predict)
        turned_pairs += zip(scores, turned_scores, strict=True)

        halved = _halved(scene)
        halved_scores = _best_scores(halved, predict)
        longer_sides = (halved.boxes[:, 2:] - halved.boxes[:, :2]).max(1, initial=0)
        for side, score, halved_score in zip(longer_sides, scores, halved_scores, strict=True):
            if side >= MIN_HALVED_SIDE:
                halved_pairs.append((score, halved_score))
    return {"turned": _agreement_figures(turned_pairs), "halved": _agreement_figures(halved_pairs)}


def _halved(scene: Scene) -> Scene:
    """The scene at half of its width and height."""
    image = cv2.resize(scene.image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return scene._replace(image=image, boxes=scene.boxes / 2)  # type: ignore[arg-type]


def _agreement_figures(score_pairs: list[tuple[float, float]]) -> Figures:
    """The share of symbols detected twice among those detected, and the mean score difference.

    Args:
        score_pairs: The scores of each symbol in an image and in a view of it. It is detected where
            its score is at least `CONFIDENCE`.
    """
    detected_pairs = [pair for pair in score_pairs if max(pair) >= CONFIDENCE]
    scores = np.array(detected_pairs).reshape(-1, 2)
    return {
        "both": float((scores >= CONFIDENCE).all(1).mean()),
        "difference": float(np.abs(scores[:, 0] - scores[:, 1]).mean()),
    }


def _best_scores(scene: Scene, predict: Predict) -> list[float]:
    """The highest score by which each symbol is detected, as its class; 0 for those that are not.

    A detection counts if its box overlaps the symbol's by `IOU_THRESHOLD` or more.
    """
    image_detections = detections(scene, predict)
    best_scores = []
    for symbol_label, symbol_box in zip(scene.labels, scene.boxes, strict=True):
        best = 0.0
        for detection in image_detections:
            is_same_class = detection[CLASS] == symbol_label
            if is_same_class and _overlap(symbol_box, detection[:4]) >= IOU_THRESHOLD:
                best = max(best, float(detection[SCORE]))
        best_scores.append(best)
    return best_scores


def measure(predict: Predict, image_count: int, negative_count: int) -> dict[str, Any]:
    """Render the held-out images, run the model on them, and compute the model card's figures.

    Args:
        predict: The model.
        image_count: How many images to render.
        negative_count: How many images without symbols to render, for false alarms.
    """
    scenes = list(held_out(image_count))
    detections_by_image = [detections(scene, predict) for scene in scenes]
    report = average_precision(instances(scenes), detections_by_image)
    report |= at_confidence(scenes, detections_by_image)
    report["duplicates"] = duplicates(detections_by_image)
    report["agreement"] = agreement(predict, scenes[:AGREEMENT_IMAGES])

    alarm_count = 0
    for scene in held_out(negative_count, symbols=False):
        scores = detections(scene, predict)[:, SCORE]
        alarm_count += int((scores >= CONFIDENCE).sum())
    report["false_alarms_per_negative"] = alarm_count / max(negative_count, 1)
    report["pictures"] = image_count
    report["negatives"] = negative_count
    return report


def average_precision(
    truth: dict[str, Any], detections_by_image: list[Detections]
) -> dict[str, Any]:
    """COCO's average precision, overall, by class and by size.

    Args:
        truth: The labels as COCO's `instances.json`, whose images are numbered from 0.
        detections_by_image: The detections on each of its images, in order.
    """
    precision_by_limit = _precision_table(truth, _coco_results(detections_by_image))
    # The last axis has three limits of detections an image; 2 is the highest, 100.
    precision = precision_by_limit[..., 2]  # [IoU, recall, class, size]
    all_sizes = precision[..., 0]
    at_iou_50 = 0
    at_iou_75 = 5  # the thresholds are 0.5, 0.55 and so on

    by_size = {}
    for size_number, size in enumerate(("small", "medium", "large"), start=1):  # 0 is all sizes
        size_precision = precision[..., size_number]
        by_size[size] = {
            "mAP50-95": _mean(size_precision),
            "mAP50": _mean(size_precision[at_iou_50]),
        }

    by_class = {}
    for label, name in enumerate(NAMES):
        class_precision = all_sizes[:, :, label]
        by_class[name] = {
            "AP50-95": _mean(class_precision),
            "AP50": _mean(class_precision[at_iou_50]),
        }

    return {
        "mAP50-95": _mean(all_sizes),
        "mAP50": _mean(all_sizes[at_iou_50]),
        "mAP75": _mean(all_sizes[at_iou_75]),
        "by_size": by_size,
        "by_class": by_class,
    }


def _coco_results(detections_by_image: list[Detections]) -> list[dict[str, Any]]:
    """Detections as COCO's results, for the images that `instances` numbers."""
    results = []
    for number, image_detections in enumerate(detections_by_image):
        for x1, y1, x2, y2, score, label in image_detections.tolist():
            results.append(
                {
                    "image_id": number,
                    "category_id": int(label),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "score": score,
                }
            )
    return results


def _precision_table(truth: dict[str, Any], results: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Precision `[IoU, recall, class, size, limit of detections]`; -1 where nothing is labelled."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints
        coco = COCO()
        coco.dataset = truth
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    precision: NDArray[np.float64] = evaluation.eval["precision"]
    return precision


def _mean(precision: NDArray[np.float64]) -> float | None:
    """The mean of the entries that are not -1; None if all are."""
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else None


def at_confidence(scenes: list[Scene], detections_by_image: list[Detections]) -> dict[str, Any]:
    """Precision and recall of each class at one confidence, and the confusion matrix.

    The matrix has a row for each true class and a column for each detected one, and a last row and
    column for none: what is detected where there is no symbol, and the symbols that are missed.
    """
    none = len(NAMES)
    confusion = np.zeros((none + 1, none + 1), int)
    for scene, image_detections in zip(scenes, detections_by_image, strict=True):
        confident = image_detections[image_detections[:, SCORE] >= CONFIDENCE]
        unmatched = list(range(len(scene.labels)))
        for detection in confident:
            match = _best_match(detection[:4], scene.boxes, unmatched)
            true_class = none
            if match is not None:
                unmatched.remove(match)
                true_class = int(scene.labels[match])
            confusion[true_class, int(detection[CLASS])] += 1
        for number in unmatched:
            confusion[scene.labels[number], none] += 1

    hits = np.diag(confusion)[:none]
    return {
        "confidence": CONFIDENCE,
        "precision": _shares(hits, confusion[:, :none].sum(0)),
        "recall": _shares(hits, confusion[:none].sum(1)),
        "confusion": confusion.tolist(),
    }


def _best_match(
    box: NDArray[np.float64], symbol_boxes: NDArray[np.float32], unmatched: list[int]
) -> int | None:
    """The unmatched symbol that a box overlaps most; None if no overlap is large enough."""
    overlaps = [_overlap(symbol_boxes[number], box) for number in unmatched]
    if not overlaps or max(overlaps) < IOU_THRESHOLD:
        return None
    return unmatched[int(np.argmax(overlaps))]


def _shares(hits: NDArray[np.int64], totals: NDArray[np.int64]) -> dict[str, float]:
    """Hits over totals by the name of the class, 0 where the total is 0."""
    shares = {}
    for name, hit_count, total in zip(NAMES, hits, totals, strict=True):
        shares[name] = float(hit_count / max(total, 1))
    return shares


def _overlap(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Intersection over union of two boxes, xyxy."""
    near = np.maximum(first[:2], second[:2])
    far = np.minimum(first[2:], second[2:])
    shared = float(np.prod(np.clip(far - near, 0, None)))
    areas = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2]))
    return shared / max(areas - shared, 1e-9)


def write_data_set(folder: Path, count: int) -> None:
    """Write the held-out images and their `instances.json`, for `detcli eval`."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    scenes = list(held_out(count))
    truth = instances(scenes)
    for entry, scene in zip(truth["images"], scenes, strict=True):
        path = folder / "images" / entry["file_name"]
        cv2.imwrite(str(path), scene.image, [cv2.IMWRITE_JPEG_QUALITY, 95])
    (folder / "instances.json").write_text(json.dumps(truth))


def main() -> None:
    """Measure the model of the command line and print JSON; or write the held-out images.

    A folder of real images that does not exist is passed over, as not everyone has them.
    """
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
    arguments = parser.parse_args()

    if arguments.write:
        write_data_set(arguments.write, arguments.pictures)
        return

    predict = predictor(arguments.model)
    report = {}
    if arguments.pictures:
        report = measure(predict, arguments.pictures, arguments.negatives)
    if arguments.photographs.is_dir():
        report["photographs"] = measure_samples(predict, arguments.photographs, arguments.sample)
    if arguments.others.is_dir():
        report["others"] = measure_images_without_symbols(predict, arguments.others)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
