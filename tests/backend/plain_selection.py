# mypy: disable-error-code=arg-type
"""The selection written slowly and plainly, and options for it."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from detcli.backend.postprocess import SelectionOptions


def options(confidence=-math.inf, max_det=300, class_ids=None, nms_iou=None):
    return SelectionOptions(confidence, max_det, class_ids, nms_iou)


def plain_select(head, options):
    """The steps, one loop at a time; rows are (anchor, class id, score)."""
    classes = sorted(options.class_ids if options.class_ids is not None else range(len(head) - 4))
    scores = {}
    for anchor in range(head.shape[1]):
        for class_id in classes:
            score = head[4 + class_id, anchor]
            if score > np.float32(confidence_of(class_id, options)):
                scores[anchor, class_id] = float(score)
    # 1. anchor score = maximum over the classes whose scores count
    best = {}
    for (anchor, _), score in scores.items():
        best[anchor] = max(score, best.get(anchor, -math.inf))
    # 2. the max_det best anchors; of equals, the lower
    anchors = sorted(best, key=lambda anchor: (-best[anchor], anchor))[: options.max_det]
    # 3. the max_det best of their scores; of equals, the lower position
    rows = []
    for anchor in anchors:
        for class_id in classes:
            if (anchor, class_id) in scores:
                rows.append((anchor, class_id, scores[anchor, class_id]))
    rows.sort(key=lambda row: -row[2])  # which leaves equals in their order
    return rows[: options.max_det]


def confidence_of(class_id, options):
    """What the scores of a class must be strictly above."""
    if options.conf_thresholds is None:
        return options.conf
    return options.conf_thresholds[class_id]


def plain_select_with_nms(head, options):
    """Greedy suppression one box at a time, of each anchor's best class that counts, or of all."""
    everything = plain_select(head, replace(options, max_det=10**6, nms_iou=None))
    candidates = everything
    if not options.suppresses_every_class:
        best = {}
        for anchor, class_id, score in everything:
            if anchor not in best or (-score, class_id) < (-best[anchor][2], best[anchor][1]):
                best[anchor] = (anchor, class_id, score)
        candidates = list(best.values())
    selected = []
    for row in sorted(candidates, key=lambda row: (-row[2], row[0], row[1])):
        anchor, class_id, _ = row
        is_suppressed = False
        for rival_anchor, rival_class_id, _ in selected:
            if options.class_agnostic or rival_class_id == class_id:
                iou = plain_iou(head[:4, rival_anchor], head[:4, anchor])
                if not iou <= options.nms_iou:  # an IoU of NaN suppresses, too
                    is_suppressed = True
        if not is_suppressed:
            selected.append(row)
    return selected[: options.max_det]


def plain_iou(box, other_box):
    width = min(box[2], other_box[2]) - max(box[0], other_box[0])
    height = min(box[3], other_box[3]) - max(box[1], other_box[1])
    shared = max(width, 0) * max(height, 0)
    area = (box[2] - box[0]) * (box[3] - box[1]) + (other_box[2] - other_box[0]) * (
        other_box[3] - other_box[1]
    )
    return shared / (area - shared)


BY_CLASS = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.3, 0.5, 1.0]), min_size=5, max_size=5)


def with_conf_thresholds(selection_options, confidences, classes):
    """The options with these confidences for the first classes."""
    return selection_options.with_conf_thresholds(np.float32(confidences[:classes]))
