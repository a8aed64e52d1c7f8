"""Where labels have room on an image: over no other label, and over little of any box."""

import numpy as np
import numpy.typing as npt

from detcli.data.geometry import Boxes, area, intersection_boxes, touching

Corner = tuple[int, int]  # x and y of the top left corner of a label

# Where a label begins along one axis: the edge of the box that it is beside (0 for left or top, 1
# for right or bottom), and its shift from there, in widths or heights of the label.
BEFORE = (0, -1)  # outside, it ends where the box begins
FIRST = (0, 0)  # inside, at the beginning of the box
LAST = (1, -1)  # inside, at the end of the box
AFTER = (1, 0)  # outside, it begins where the box ends
POSITIONS = np.array(
    [
        (FIRST, BEFORE),  # above; best first
        (FIRST, FIRST),  # inside, at the top
        (FIRST, AFTER),  # below
        (BEFORE, FIRST),  # to the left
        (AFTER, FIRST),  # to the right
        (LAST, BEFORE),  # the same from the other end of each edge
        (LAST, FIRST),
        (LAST, AFTER),
        (BEFORE, LAST),
        (AFTER, LAST),
        (FIRST, LAST),  # inside, at the bottom
        (LAST, LAST),
    ],
    np.float32,
)  # (P, 2, 2): for each position, edge and shift along x, and the same along y


class LabelLayout:
    """The labels placed on an image so far; no label leaves it, covers another, or hides a box."""

    def __init__(self, image: tuple[int, int], visible: Boxes, gap: int) -> None:
        """Create a layout without labels.

        Args:
            image: Width and height of the image.
            visible: `(N, 4)`, x1, y1, x2, y2 of the boxes that labels may cover only in part.
            gap: The least distance between labels, in pixels.
        """
        width, height = image
        self._image_size = np.array([width, height], np.float32)
        # Added to x1, y1, x2, y2 of a label, to enlarge it on all sides.
        self._gap = np.array([-gap, -gap, gap, gap], np.float32)

        # The visible boxes as far as they lie in the image, their areas, and how much of each area
        # is covered by labels so far.
        limits = np.array([width, height, width, height], np.float32)  # of x1, y1, x2, y2
        self._visible_boxes = np.clip(visible, 0, limits)
        self._visible_areas = area(self._visible_boxes)
        self._covered_areas = np.zeros(len(visible), np.float32)
        self.taken: Boxes = np.empty((0, 4), np.float32)  # the labels so far, with their gaps

    def place(self, box: Boxes, size: tuple[int, int], cover: float) -> Corner | None:
        """Place a label beside a box, at the first of POSITIONS that has room for it.

        The position is taken from then on, and what the label covers of boxes is counted.

        Args:
            box: `(4,)`, the box, to whose edges the label is placed.
            size: Width and height of the label.
            cover: The share of each visible box that all labels together may cover, from 0 to 1.

        Returns:
            The top left corner of the label; None if no position has room for it.
        """
        label_size = np.array(size, np.float32)
        is_larger_than_image = (label_size > self._image_size).any()
        if is_larger_than_image:
            return None
        candidates = self._candidates(box, label_size)  # (P, 4), a rectangle for each position
        left_top = candidates[:, :2].min(axis=0)
        right_bottom = candidates[:, 2:].max(axis=0)
        surroundings = np.hstack([left_top, right_bottom])  # the rectangle around all candidates

        nearby_boxes = touching(self._visible_boxes, surroundings)  # (M,), indices of visible boxes
        covered_areas = self._covered_areas_with(candidates, nearby_boxes)  # (P, M)
        allowed_areas = cover * self._visible_areas[nearby_boxes]  # (M,)
        hides_no_box = (covered_areas <= allowed_areas).all(axis=1)  # (P,)
        covers_label = self._cover_labels(candidates, surroundings)  # (P,)
        is_free = hides_no_box & ~covers_label
        if not is_free.any():
            return None

        first_free = is_free.argmax()  # as True is greater than False
        self._covered_areas[nearby_boxes] = covered_areas[first_free]
        rectangle = candidates[first_free]
        self.taken = np.vstack([self.taken, rectangle + self._gap])
        left, top, _, _ = rectangle
        return int(left), int(top)

    def _covered_areas_with(self, candidates: Boxes, nearby_boxes: npt.NDArray[np.intp]) -> Boxes:
        """Compute how much of each box would be covered if the next label were at a candidate.

        That is the area that the labels so far cover, and what the next label would add.

        Args:
            candidates: `(P, 4)`, the positions to try for the next label.
            nearby_boxes: `(M,)`, the indices of the boxes that it may cover.

        Returns:
            `(P, M)`, for each candidate the covered area of each box, in pixels.
        """
        boxes = self._visible_boxes[nearby_boxes]  # (M, 4)
        newly_covered = area(intersection_boxes(candidates[:, np.newaxis], boxes))  # (P, M)
        covered_areas: Boxes = self._covered_areas[nearby_boxes] + newly_covered
        return covered_areas

    def _cover_labels(self, candidates: Boxes, enclosing_box: Boxes) -> npt.NDArray[np.bool_]:
        """Determine which rectangles `(P, 4)` in a box `(4,)` cover part of an earlier label."""
        near_labels = self.taken[touching(self.taken, enclosing_box)]
        covered_areas = area(intersection_boxes(candidates[:, np.newaxis], near_labels))  # (P, L)
        return np.asarray((covered_areas > 0).any(axis=1))

    def _candidates(self, box: Boxes, label_size: Boxes) -> Boxes:
        """Return the rectangle of a label at each of POSITIONS, moved into the image if needed.

        A position names an edge of the box along each axis, and the shift of the label from there.
        Above a box, for example, the label begins at the left edge without a shift, and at the top
        edge with a shift of -1 heights.

        Args:
            box: `(4,)`.
            label_size: `(2,)`, width and height of the label.

        Returns:
            `(P, 4)`, x1, y1, x2 and y2 in whole pixels.
        """
        left, top, right, bottom = box
        edges = POSITIONS[..., 0]  # (P, 2), along x and y: 0 for left or top, 1 for right or bottom
        shifts = POSITIONS[..., 1]  # (P, 2), along x and y, in widths and heights of the label
        is_at_right_edge = edges[:, 0] == 1
        is_at_bottom_edge = edges[:, 1] == 1
        edge_x = np.where(is_at_right_edge, right, left)
        edge_y = np.where(is_at_bottom_edge, bottom, top)

        left_top = np.rint(np.stack([edge_x, edge_y], axis=1) + shifts * label_size)
        # the last at which the label is still in the image
        last_left_top = self._image_size - label_size
        left_top = np.clip(left_top, 0, last_left_top)
        return np.hstack([left_top, left_top + label_size])
