"""Detections in a row, and what a comparison says about two such rows."""

import numpy as np

from detcli.commands.verify.compare import Rules, judge, picture_report
from detcli.commands.verify.report import PictureReport
from detcli.commands.verify.tolerance import Tolerance
from detcli.detections import Detections
from detcli.record import Origin
from detcli.source.item import Item

TOLERANCE = Tolerance(score=0.02, corner=1.0, boxes=0.0, tensor=0.1)
RULES = Rules(conf=0.25, least_iou=0.5, max_det=300, tolerance=TOLERANCE)


def found(*rows: tuple[float, ...]) -> Detections:
    """From (column, score) or (column, score, shift): boxes of 40 pixels, 100 apart."""
    table = [(*row, 0.0)[:3] for row in rows]
    boxes = [[100 * c + s, 0, 100 * c + 40 + s, 40] for c, _, s in table]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in table], np.float32),
        np.zeros(len(table), np.int64),
        ("person",),
    )


def report_on(left: list, right: list, name: str = "a.jpg") -> PictureReport:
    left, right = found(*left), found(*right)
    item = Item(Origin(name), lambda: None)
    return picture_report(item, left, right, judge(left, right, RULES), RULES)
