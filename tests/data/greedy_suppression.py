"""Non-maximum suppression as its definition says it: slow, and what the fast one is held to."""

import numpy as np
import numpy.typing as npt

Box = npt.NDArray[np.float32]  # (4,) x1, y1, x2, y2


def greedy_suppression(
    boxes: npt.NDArray[np.float32],
    class_id: npt.NDArray[np.int64],
    iou_threshold: float,
    limit: int,
) -> list[int]:
    """Keep each box `(N, 4)` that overlaps no better, kept box of its class too much."""
    selected: list[int] = []
    for index in range(len(boxes)):
        if len(selected) == limit:
            break
        is_suppressed = False
        for better in selected:
            if class_id[better] == class_id[index]:
                overlap = intersection_over_union(boxes[better], boxes[index])
                if overlap > np.float32(iou_threshold):
                    is_suppressed = True
        if not is_suppressed:
            selected.append(index)
    return selected


def weighted_suppression(
    boxes: npt.NDArray[np.float32],
    score: npt.NDArray[np.float32],
    class_id: npt.NDArray[np.int64],
    iou_threshold: float,
) -> list[tuple[int, npt.NDArray[np.float64]]]:
    """Blend boxes `(N, 4)`, best first, as MediaPipe's NonMaxSuppressionCalculator does.

    Returns:
        The index of the best box of each blend, and the mean of its boxes, weighted by score.
    """
    remaining = list(range(len(boxes)))
    blends = []
    while remaining:
        best = remaining[0]
        group = [best]
        unmerged = []
        for index in remaining[1:]:
            overlap = intersection_over_union(boxes[best], boxes[index])
            if class_id[index] == class_id[best] and overlap > np.float32(iou_threshold):
                group.append(index)
            else:
                unmerged.append(index)
        total_score = 0.0
        total = np.zeros(4)
        for index in group:
            total_score += float(score[index])
            total += boxes[index].astype(np.float64) * float(score[index])
        blends.append((best, total / total_score))
        remaining = unmerged
    return blends


def intersection_over_union(first: Box, second: Box) -> np.float32:
    """In float32, as everything that is compared with a threshold."""
    width = np.minimum(first[2], second[2]) - np.maximum(first[0], second[0])
    height = np.minimum(first[3], second[3]) - np.maximum(first[1], second[1])
    intersection = np.maximum(width, np.float32(0)) * np.maximum(height, np.float32(0))
    union = area(first) + area(second) - intersection
    return np.float32(intersection / union) if union > 0 else np.float32(0)


def area(box: Box) -> np.float32:
    """In square pixels; none for a box whose corners are swapped."""
    width = np.maximum(box[2] - box[0], np.float32(0))
    height = np.maximum(box[3] - box[1], np.float32(0))
    return np.float32(width * height)
