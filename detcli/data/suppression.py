"""Greedy non-maximum suppression whose time follows what has to be compared.

The definition is short: go through the boxes, best first, and keep each box whose intersection over
union with every better box of its class that was kept is at most the threshold. Tests follow it
word by word, and hold this module to it. The same boxes, bit for bit, take fewer comparisons here:

- Boxes are taken in chunks, best first, and each chunk is larger than the one before. Once enough
  boxes are kept, nothing that comes later is looked at.
- A box is compared only with boxes of its own class.
- Pairs of boxes are compared as arrays of limited size, so that memory does not grow with the
  number of pairs.
"""

import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FIRST_CHUNK = 512
GROWTH = 4  # how many times larger the next chunk is
HEAD = 64  # boxes of a chunk that are compared with one another at once
PAIRS_IN_TABLE = 1 << 15
# Pairs of a class, and of all classes, from which a table for each class is faster than a list
MANY_OF_CLASS = 1 << 11
MANY_IN_LIST = 1 << 18


def non_maximum_suppression(
    boxes: Boxes, class_id: Indices, iou_threshold: float, limit: int
) -> Indices:
    """Greedy NMS: drop a box whose IoU with a better, kept box of its class is above a threshold.

    Args:
        boxes: `(N, 4)` x1, y1, x2, y2, best first.
        class_id: `(N,)`, the class of each box, from 0.
        iou_threshold: Boxes that overlap by more are duplicates. It is compared as float32.
        limit: How many boxes to keep at most.

    Returns:
        The indices of the boxes that are kept: `(M,)`, ascending, M <= limit.
    """
    candidates = _BoxesOfClasses(boxes, class_id, iou_threshold)
    survivors = np.empty(0, np.int64)
    start = 0
    chunk_size = FIRST_CHUNK
    while start < len(boxes) and len(survivors) < limit:
        chunk = np.arange(start, min(start + chunk_size, len(boxes)))
        remaining = candidates.without_duplicates(chunk, survivors)
        while len(remaining) and len(survivors) < limit:
            winners = candidates.chosen_greedily(remaining[:HEAD])
            survivors = np.concatenate([survivors, winners])
            remaining = candidates.without_duplicates(remaining[HEAD:], winners)
        start += chunk_size
        chunk_size *= GROWTH
    return survivors[:limit]


class _BoxesOfClasses:
    """The boxes among which suppression chooses; all methods take and give their indices."""

    def __init__(self, boxes: Boxes, class_id: Indices, iou_threshold: float) -> None:
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], np.float32(0))  # 0 for an inverted box
        self._areas = sides[:, 0] * sides[:, 1]  # (N,)
        self._corners = np.ascontiguousarray(boxes.T)  # (4, N), as each row is read by itself
        self._class_id = class_id
        self._class_count = int(class_id.max(initial=0)) + 1
        self._iou_threshold = np.float32(iou_threshold)

    def chosen_greedily(self, candidates: Indices) -> Indices:
        """Which of a few candidates `(C,)`, best first, are kept if there are no others."""
        classes = self._class_id[candidates]
        same_class = classes[:, np.newaxis] == classes[np.newaxis, :]  # (C, C)
        overlaps = self._overlaps(candidates[:, np.newaxis], candidates[np.newaxis, :])
        duplicates = same_class & overlaps
        is_kept = np.ones(len(candidates), bool)
        for position in range(len(candidates)):
            if is_kept[position]:
                is_kept[position + 1 :] &= ~duplicates[position, position + 1 :]
        return candidates[is_kept]

    def without_duplicates(self, candidates: Indices, survivors: Indices) -> Indices:
        """The candidates `(C,)` that are no duplicates of the survivors `(S,)`."""
        survivors_of_class = np.bincount(self._class_id[survivors], minlength=self._class_count)
        pair_count = survivors_of_class[self._class_id[candidates]].sum()
        classes = np.flatnonzero(survivors_of_class)
        if pair_count > min(MANY_OF_CLASS * len(classes), MANY_IN_LIST):
            is_duplicate = self._compared_by_class(candidates, survivors, classes)
        else:
            is_duplicate = self._compared_in_pairs(candidates, survivors, survivors_of_class)
        return candidates[~is_duplicate]

    def _compared_by_class(self, candidates: Indices, survivors: Indices, classes: Indices) -> Mask:
        """Which candidates are duplicates, by a table of each class: `(C,)`."""
        candidate_classes = self._class_id[candidates]
        survivor_classes = self._class_id[survivors]
        is_duplicate = np.zeros(len(candidates), bool)
        for class_id in classes:
            rivals = survivors[survivor_classes == class_id]
            positions = np.flatnonzero(candidate_classes == class_id)
            step = max(1, PAIRS_IN_TABLE // len(rivals))
            for start in range(0, len(positions), step):
                part = positions[start : start + step]
                table = self._overlaps(rivals[:, np.newaxis], candidates[part][np.newaxis, :])
                is_duplicate[part] = table.any(axis=0)
        return is_duplicate

    def _compared_in_pairs(
        self, candidates: Indices, survivors: Indices, survivors_of_class: Indices
    ) -> Mask:
        """Which candidates are duplicates, by a list of all pairs that share a class: `(C,)`."""
        by_class = survivors[np.argsort(self._class_id[survivors], kind="stable")]
        first_of_class = np.cumsum(survivors_of_class) - survivors_of_class  # in `by_class`
        classes = self._class_id[candidates]
        rival_count = survivors_of_class[classes]  # (C,)
        first_pair = np.cumsum(rival_count) - rival_count  # (C,)
        # Example: two candidates with 2 and 3 rivals. position 0 0 1 1 1, number of the rival
        # among those of its class 0 1 0 1 2.
        position = np.repeat(np.arange(len(candidates)), rival_count)
        rival_number = np.arange(len(position)) - first_pair[position]
        rivals = by_class[first_of_class[classes[position]] + rival_number]
        overlaps = self._overlaps(candidates[position], rivals)
        is_duplicate = np.zeros(len(candidates), bool)
        is_duplicate[position[overlaps]] = True
        return is_duplicate

    def _overlaps(self, boxes: Indices, rivals: Indices) -> Mask:
        """Whether the IoU of boxes and their rivals is above the threshold; shapes broadcast."""
        left, top, right, bottom = self._corners
        width = np.minimum(right[boxes], right[rivals]) - np.maximum(left[boxes], left[rivals])
        height = np.minimum(bottom[boxes], bottom[rivals]) - np.maximum(top[boxes], top[rivals])
        intersection = np.maximum(width, np.float32(0)) * np.maximum(height, np.float32(0))
        union = self._areas[boxes] + self._areas[rivals] - intersection
        ratio = np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)
        return np.asarray(ratio > self._iou_threshold)
