"""Pictures with labels and detections, for the evaluator."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detcli.commands.eval.evaluator import FOUND, EvaluatedPicture
from detcli.commands.eval.labels import OBJECT


def labelled(*objects):
    """Rows of (box, category, other fields that are not the usual ones)."""
    usual = {"area": np.nan, "crowd": False, "ignored": False}
    rows = [(tuple(box), category, *(usual | more).values()) for box, category, more in objects]
    return np.array(rows, OBJECT)


def compared(image_id, labels, detections):
    """Labels are as in `labelled`, detections (box, category, score)."""
    found = [(tuple(box), category, score) for box, category, score in detections]
    return EvaluatedPicture(image_id, labelled(*labels), np.array(found, FOUND))


def random_pictures(random, count=30, categories=3):
    """Labels, and detections near and far from them; many of the scores are equal.

    Some labels are crowds, ignored, without an area or with one other than the box's; some pictures
    have no labels, and the ids of pictures are in no order.
    """
    pictures = []
    for number in random.permutation(count).tolist():
        labels = [_label(random, categories) for _ in range(random.integers(0, 6))]
        near = [
            (
                np.array(box) + random.normal(0, 1, 4).clip(-3, 3),
                _mostly(random, category, categories),
            )
            for box, category, _ in labels
            if random.random() < 0.8
        ]
        far = [_label(random, categories)[:2] for _ in range(random.integers(0, 4))]
        scored = [(one, 1.0) for one in (*near, *near[:1])] + [(one, 0.6) for one in far]
        detections = [(*one, round(random.uniform(0.01, most), 2)) for one, most in scored]
        pictures.append(compared(number, labels, detections))
    return pictures


def _mostly(random, category, categories):
    return category if random.random() < 0.9 else int(random.integers(categories))


def _label(random, categories):
    box = (*random.uniform(0, 80, 2), *random.uniform(12, 60, 2))
    if random.random() < 0.05:
        box = (*box[:3], float(random.integers(-1, 1)))  # without area
    more = {"crowd": random.random() < 0.1, "ignored": random.random() < 0.1}
    if random.random() < 0.2:
        more["area"] = random.uniform(0, 20_000)
    return box, int(random.integers(categories)), more


def pycocotools(images, categories, annotations, results, **parameters):
    """The evaluator's second opinion, used as its authors use it."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": number} for number in images],
            "categories": [{"id": number} for number in categories],
            # It takes a match with the annotation 0 for a miss.
            "annotations": [one | {"id": place} for place, one in enumerate(annotations, 1)],
        }
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(results) if results else COCO(), "bbox")
        evaluator.params.imgIds, evaluator.params.catIds = sorted(images), list(categories)
        for name, value in parameters.items():
            setattr(evaluator.params, name, value)
        evaluator.evaluate()
        if parameters.get("useCats", 1):
            evaluator.accumulate()
            evaluator.summarize()
    return evaluator


def figures(stats):
    """What it found, where a report has the same."""
    return [None if figure < 0 else pytest.approx(figure, abs=1e-6) for figure in stats]
