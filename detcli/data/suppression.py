"""Greedy non-maximum suppression whose time follows what has to be compared.

The definition is short: go through the boxes, best first, and keep each box whose intersection over
union with every better box of its class that was kept is at most the threshold. Tests follow it
word by word, and hold this module to it. The same boxes, bit for bit, take fewer comparisons here:

- Boxes are taken in chunks, best first, and each chunk is larger than the previous one. Once enough
  boxes are kept, nothing that comes later is looked at.
- A box is compared only with boxes of its own class.
- Pairs of boxes are compared as arrays of limited size, so that memory does not grow with the
  number of pairs.
"""

import numpy as np
import numpy.typing as npt

from detcli.data.ranges import joined_ranges

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
    survivors = np.empty(0, np.int64)  # the boxes that are kept
    # Boxes come in chunks, each larger than the previous one: the limit may be reached in the
    # first.
    start = 0
    chunk_size = FIRST_CHUNK
    while start < len(boxes) and len(survivors) < limit:
        chunk = np.arange(start, min(start + chunk_size, len(boxes)))
        remaining = candidates.without_duplicates(chunk, survivors)
        # The best few of a chunk are compared with one another; those that survive drop their
        # duplicates from the others.
        while len(remaining) and len(survivors) < limit:
            winners = candidates.chosen_greedily(remaining[:HEAD])
            survivors = np.concatenate([survivors, winners])
            remaining = candidates.without_duplicates(remaining[HEAD:], winners)
        start += chunk_size
        chunk_size *= GROWTH
    return survivors[:limit]


def blend_overlapping(
    boxes: Boxes,
    score: npt.NDArray[np.float32],
    class_id: Indices,
    *,
    iou_threshold: float,
    limit: int,
) -> tuple[Boxes, Indices]:
    """Replace each group of overlapping boxes by their mean, as MediaPipe does for BlazeFace.

    The best box that remains and those of its class whose IoU with it is above a threshold become
    one: the mean of their corners, weighted by their scores. All of them are then taken away, and
    the best box that remains is next.

    Args:
        boxes: `(N, 4)` x1, y1, x2, y2, best first.
        score: `(N,)`, from 0 to 1.
        class_id: `(N,)`, the class of each box, from 0.
        iou_threshold: Boxes that overlap by more are blended. It is compared as float32.
        limit: How many boxes to return at most.

    Returns:
        The blended boxes, `(M, 4)` float32, and the index of the best box of each, `(M,)`.
    """
    candidates = _BoxesOfClasses(boxes, class_id, iou_threshold)
    mean_boxes: list[npt.NDArray[np.float64]] = []
    best_indices: list[int] = []
    remaining = np.arange(len(boxes))
    while len(remaining) and len(best_indices) < limit:
        overlaps_best = candidates.overlapping_first(remaining)  # also true of the best itself
        group = remaining[overlaps_best]
        weights = score[group].astype(np.float64)
        corners = boxes[group].astype(np.float64)
        mean_boxes.append(weights @ corners / weights.sum())
        best_indices.append(int(remaining[0]))
        remaining = remaining[~overlaps_best]
    blended_boxes = np.array(mean_boxes, np.float32).reshape(-1, 4)
    return blended_boxes, np.array(best_indices, np.int64)


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
        """Run non-maximum suppression among a few candidates, in the order from best to worst.

        Args:
            candidates: `(C,)`, indices of boxes, best first.

        Returns:
            The indices of those that no better candidate of their class suppresses, best first.
        """
        classes = self._class_id[candidates]
        same_class = classes[:, np.newaxis] == classes[np.newaxis, :]  # (C, C)
        overlaps = self._overlaps(candidates[:, np.newaxis], candidates[np.newaxis, :])
        duplicates = same_class & overlaps
        is_kept = np.ones(len(candidates), bool)
        for position in range(len(candidates)):
            if is_kept[position]:
                is_kept[position + 1 :] &= ~duplicates[position, position + 1 :]
        return candidates[is_kept]

    def overlapping_first(self, candidates: Indices) -> Mask:
        """Determine which candidates, `(C,)`, are the first, or overlap it and have its class."""
        classes = self._class_id[candidates]
        is_blended = self._overlaps(candidates, candidates[:1]) & (classes == classes[0])
        is_blended[0] = True  # even if it has no area
        return np.asarray(is_blended)

    def without_duplicates(self, candidates: Indices, survivors: Indices) -> Indices:
        """Leave out the candidates that overlap a survivor of their class too much.

        Each candidate is compared with all survivors of its class. Many pairs are compared in a
        table for each class, few in a single list; both find the same duplicates.

        Args:
            candidates: `(C,)`, indices of boxes.
            survivors: `(S,)`, indices of better boxes that are kept.

        Returns:
            The remaining candidates in their order.
        """
        survivor_counts = np.bincount(self._class_id[survivors], minlength=self._class_count)
        pair_count = survivor_counts[self._class_id[candidates]].sum()
        classes = np.flatnonzero(survivor_counts)  # the classes that have survivors

        # Every table takes some time to set up. So tables are faster if there are many pairs for
        # each class, or so many in all that a list of them is slow.
        has_many_for_each_class = pair_count > MANY_OF_CLASS * len(classes)
        has_many_in_all = pair_count > MANY_IN_LIST
        if has_many_for_each_class or has_many_in_all:
            is_duplicate = self._compared_by_class(candidates, survivors, classes)
        else:
            is_duplicate = self._compared_in_pairs(candidates, survivors, survivor_counts)
        return candidates[~is_duplicate]

    def _compared_by_class(self, candidates: Indices, survivors: Indices, classes: Indices) -> Mask:
        """Determine which candidates are duplicates of a survivor, by a table for each class.

        A table has a row for each survivor of the class and a column for each candidate. Candidates
        are processed in groups, so that a table does not become too large.

        Args:
            candidates: `(C,)`, indices of boxes.
            survivors: `(S,)`, indices of boxes.
            classes: The classes that have survivors.

        Returns:
            `(C,)`, true for a duplicate.
        """
        candidate_classes = self._class_id[candidates]
        survivor_classes = self._class_id[survivors]
        is_duplicate = np.zeros(len(candidates), bool)
        for class_id in classes:
            survivors_of_class = survivors[survivor_classes == class_id]
            positions = np.flatnonzero(candidate_classes == class_id)  # in `candidates`
            group_size = max(1, PAIRS_IN_TABLE // len(survivors_of_class))
            for start in range(0, len(positions), group_size):
                group = positions[start : start + group_size]
                table = self._overlaps(
                    survivors_of_class[:, np.newaxis], candidates[group][np.newaxis, :]
                )
                is_duplicate[group] = table.any(axis=0)
        return is_duplicate

    def _compared_in_pairs(
        self, candidates: Indices, survivors: Indices, survivor_counts: Indices
    ) -> Mask:
        """Determine which candidates are duplicates of a survivor, by a list of pairs.

        The list pairs each candidate with all survivors of its class.

        Args:
            candidates: `(C,)`, indices of boxes.
            survivors: `(S,)`, indices of boxes.
            survivor_counts: The number of survivors of each class, by its id.

        Returns:
            `(C,)`, true for a duplicate.
        """
        # Sorted by class, the survivors of each class are a slice of the array.
        by_class = np.argsort(self._class_id[survivors], kind="stable")
        sorted_survivors = survivors[by_class]
        slice_starts = np.cumsum(survivor_counts) - survivor_counts  # by class

        # Each candidate has as many pairs as its class has survivors; there are P pairs in all.
        candidate_classes = self._class_id[candidates]  # (C,)
        pair_counts = survivor_counts[candidate_classes]  # (C,)
        # (P,), positions in `candidates`
        pair_candidates = np.repeat(np.arange(len(candidates)), pair_counts)
        survivor_positions = joined_ranges(slice_starts[candidate_classes], pair_counts)  # (P,)
        pair_survivors = sorted_survivors[survivor_positions]  # (P,), indices of boxes

        overlaps = self._overlaps(candidates[pair_candidates], pair_survivors)
        is_duplicate = np.zeros(len(candidates), bool)
        is_duplicate[pair_candidates[overlaps]] = True
        return is_duplicate

    def _overlaps(self, boxes: Indices, others: Indices) -> Mask:
        """Determine which boxes overlap others by an IoU above the threshold.

        Args:
            boxes: Indices of boxes.
            others: Indices of the boxes to compare them with. The shapes are broadcast, so a column
                and a row of indices are compared in all pairs.
        """
        left, top, right, bottom = self._corners
        width = np.minimum(right[boxes], right[others]) - np.maximum(left[boxes], left[others])
        height = np.minimum(bottom[boxes], bottom[others]) - np.maximum(top[boxes], top[others])
        intersection = np.maximum(width, np.float32(0)) * np.maximum(height, np.float32(0))
        union = self._areas[boxes] + self._areas[others] - intersection
        ratio = np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)
        return np.asarray(ratio > self._iou_threshold)
