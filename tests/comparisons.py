"""Pictures with labels and detections, for the evaluator."""

import numpy as np

from detcli.commands.eval.evaluator import Compared, Found
from detcli.commands.eval.objects import Object, Objects


def compared(image_id, labels, detections):
    """Labels are (box, category, what else an Object has), detections (box, category, score)."""
    boxes = np.array([box for box, *_ in detections], np.float64).reshape(-1, 4)
    score = np.array([score for *_, score in detections], np.float64)
    category = np.array([category for _, category, _ in detections], np.int64)
    objects = Objects.of(Object(box, category, **more) for box, category, more in labels)
    return Compared(image_id, objects, Found(boxes, score, category))


def random_pictures(random, count=30, categories=3):
    """Labels, and detections near and far from them; many of the scores are equal."""
    pictures = []
    for number in range(count):
        labels = [_label(random, categories) for _ in range(random.integers(0, 6))]
        near = [
            (tuple(np.array(box) + random.normal(0, 1, 4).clip(-3, 3)), category)
            for box, category, _ in labels
            if random.random() < 0.8
        ]
        far = [_label(random, categories)[:2] for _ in range(random.integers(0, 4))]
        scored = [(one, 1.0) for one in (*near, *near[:1])] + [(one, 0.6) for one in far]
        detections = [(*one, round(random.uniform(0.01, most), 2)) for one, most in scored]
        pictures.append(compared(number, labels, detections))
    return pictures


def _label(random, categories):
    box = (*random.uniform(0, 80, 2), *random.uniform(12, 40, 2))
    return box, int(random.integers(categories)), {"crowd": bool(random.random() < 0.1)}
