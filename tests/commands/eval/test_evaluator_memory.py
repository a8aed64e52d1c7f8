"""Many images are compared some at a time: with equal results, and in little memory."""

import tracemalloc

import numpy as np
import pytest

from detcli.commands.eval import evaluator
from detcli.commands.eval.evaluator import DETECTION, EvaluatedImage, Evaluator
from detcli.commands.eval.labels import OBJECT

CLASSES = (0, 1, 2)


def random_rows(random, dtype, count):
    rows = np.zeros(count, dtype)
    rows["box"] = random.uniform(1, 30, (count, 4)).round()
    rows["category"] = random.integers(0, len(CLASSES), count)
    return rows


def random_images(random, count, detections):
    """Images with up to three objects, some of them crowds or to be ignored, or with nothing."""
    images = []
    for number in range(count):
        objects = random_rows(random, OBJECT, int(random.integers(0, 4)))
        objects["area"] = np.nan
        objects["crowd"] = random.random(len(objects)) < 0.1
        objects["ignored"] = objects["crowd"] | (random.random(len(objects)) < 0.1)
        rows = random_rows(random, DETECTION, int(random.integers(0, detections + 1)))
        rows["score"] = random.random(len(rows)).round(2)
        hits = min(len(objects), len(rows))
        rows["box"][:hits] = objects["box"][:hits]
        images.append(EvaluatedImage(1000 - number, objects, rows))
    return images


def results_of(images, images_at_once, monkeypatch):
    monkeypatch.setattr(evaluator, "IMAGES_AT_ONCE", images_at_once)
    compared = Evaluator(images, CLASSES)
    overall, by_category = compared.score()
    metrics = []
    boxes = []
    columns = []
    for score in [overall] + list(by_category.values()):
        metrics.append(score.metrics)
        boxes.append(score.curve.boxes)
        for column in score.curve[:3]:
            columns.append(column.tolist())

    return {
        "metrics": metrics,
        "boxes": boxes,
        "curves": columns,
        "confusions": [compared.confusions(conf) for conf in (0.001, 0.5, 0.99, 1)],
        "outcomes": compared.outcomes(0.3),
    }


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40])
@pytest.mark.parametrize("images_at_once", [1, 2, 7])
def test_some_at_a_time_are_as_all_at_once(random, monkeypatch, count, images_at_once):
    images = random_images(random, count, detections=8)
    at_once = results_of(images, 10_000, monkeypatch)
    assert results_of(images, images_at_once, monkeypatch) == at_once


@pytest.mark.slow
def test_memory_grows_with_the_boxes_alone(random):
    """What the evaluator says of each match takes ten times as much, and soon goes again."""
    images = random_images(random, 4_000, detections=40)
    detections = sum(len(image.detections) for image in images)
    compared = Evaluator(images, CLASSES)
    tracemalloc.start()
    try:
        compared.score()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 350 * detections
