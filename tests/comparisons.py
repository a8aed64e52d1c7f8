"""Images with labels and detections, for the evaluator."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detcli.commands.eval.evaluator import DETECTION, EvaluatedImage
from detcli.commands.eval.labels import OBJECT


def labelled(objects):
    """The labels of an image as the evaluator takes them.

    Args:
        objects: Tuples of box, category, and the fields "area", "crowd" and "ignored" as far as
            they are not the usual ones.
    """
    rows = []
    for box, category, unusual_fields in objects:
        fields = {"area": np.nan, "crowd": False, "ignored": False} | unusual_fields
        row = (tuple(box), category, fields["area"], fields["crowd"], fields["ignored"])
        rows.append(row)
    return np.array(rows, OBJECT)


def compared(image_id, labels, detections):
    """An image with labels as in `labelled`, and detections as (box, category, score)."""
    rows = []
    for box, category, score in detections:
        rows.append((tuple(box), category, score))
    return EvaluatedImage(image_id, labelled(labels), np.array(rows, DETECTION))


def random_images(random, count=30, categories=3):
    """Labels, and detections near and far from them; many of the scores are equal.

    Some labels are crowds, ignored, without an area or with one other than the box's; some images
    have no labels, and the ids of images are in no order.
    """
    images = []
    for image_id in random.permutation(count).tolist():
        labels = _random_labels(random, categories, fewer_than=6)
        near = _detections_near(random, labels, categories)
        far = _random_labels(random, categories, fewer_than=4)

        detections = []
        for box, category in near + near[:1]:
            detections.append((box, category, _random_score(random, highest=1.0)))
        for box, category, _ in far:
            detections.append((box, category, _random_score(random, highest=0.6)))
        images.append(compared(image_id, labels, detections))
    return images


def _random_labels(random, categories, *, fewer_than):
    labels = []
    for _ in range(random.integers(0, fewer_than)):
        labels.append(_random_label(random, categories))
    return labels


def _random_label(random, categories):
    box = list(random.uniform(0, 80, 2)) + list(random.uniform(12, 60, 2))
    if random.random() < 0.05:
        box[3] = float(random.integers(-1, 1))  # without area
    is_crowd = random.random() < 0.1
    is_ignored = random.random() < 0.1
    fields = {"crowd": is_crowd, "ignored": is_ignored}
    if random.random() < 0.2:
        fields["area"] = random.uniform(0, 20_000)
    return tuple(box), int(random.integers(categories)), fields


def _detections_near(random, labels, categories):
    """Box and category of detections that are a little off four in five of the labels."""
    detections = []
    for box, category, _ in labels:
        if random.random() < 0.8:
            offsets = random.normal(0, 1, 4).clip(-3, 3)
            detections.append((np.array(box) + offsets, _mostly(random, category, categories)))
    return detections


def _mostly(random, category, categories):
    """The category nine times in ten, otherwise any."""
    if random.random() < 0.9:
        return category
    return int(random.integers(categories))


def _random_score(random, *, highest):
    return round(random.uniform(0.01, highest), 2)


def pycocotools(images, categories, annotations, results, **parameters):
    """The evaluator's second opinion, used as its authors use it."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": image_id} for image_id in images],
            "categories": [{"id": category_id} for category_id in categories],
            "annotations": _numbered(annotations),
        }
        truth.createIndex()

        if results:
            detections = truth.loadRes(results)
        else:
            detections = COCO()
        evaluator = COCOeval(truth, detections, "bbox")
        evaluator.params.imgIds = sorted(images)
        evaluator.params.catIds = list(categories)
        for name, value in parameters.items():
            setattr(evaluator.params, name, value)

        evaluator.evaluate()
        if parameters.get("useCats", 1):
            evaluator.accumulate()
            evaluator.summarize()
    return evaluator


def _numbered(annotations):
    """Annotations with ids from 1: pycocotools takes a match with the annotation 0 for a miss."""
    numbered = []
    for annotation_id, annotation in enumerate(annotations, start=1):
        numbered.append(annotation | {"id": annotation_id})
    return numbered


def figures(stats):
    """The figures of pycocotools as a report has them: None where there is none."""
    expected = []
    for figure in stats:
        if figure < 0:
            expected.append(None)
        else:
            expected.append(pytest.approx(figure, abs=1e-6))
    return expected
