"""Rows of boxes as detections, and the comparison of two such rows."""

import numpy as np

from detcli.compare.detections import (
    DetectionsReport,
    ImageReport,
    Rules,
    Tolerance,
    Totals,
    compare,
    image_report,
)
from detcli.data.detections import Detections
from detcli.data.record import Origin

TOLERANCE = Tolerance(score=0.02, corner=1.0, boxes=0.0, tensor=0.1)
RULES = Rules(conf=0.25, least_iou=0.5, max_det=300, tolerance=TOLERANCE)


def boxes_in_row(rows: list) -> Detections:
    """From (column, score) or (column, score, shift): boxes of 40 pixels, 100 apart."""
    boxes = []
    scores = []
    for row in rows:
        column, score = row[:2]
        shift = row[2] if len(row) == 3 else 0
        left = 100 * column + shift
        boxes.append([left, 0, left + 40, 40])
        scores.append(score)
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.zeros(len(rows), np.int64),
        ("person",),
    )


def report_on(left: list, right: list, name: str = "a.jpg") -> ImageReport:
    compared = compare(boxes_in_row(left), boxes_in_row(right), RULES)
    return image_report(Origin(name), compared, RULES)


def summarise(images: list[ImageReport]) -> DetectionsReport:
    totals = Totals(RULES)
    for image in images:
        totals.add(image)
    return totals.report(images)
