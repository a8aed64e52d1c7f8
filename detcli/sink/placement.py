"""Where labels go: beside their box, over no other label and no small box."""

import numpy as np
import numpy.typing as npt

Rectangles = npt.NDArray[np.float32]
"""`(..., 4)`: left, top, right, bottom in pixels."""

Floats = npt.NDArray[np.float32]

# The place of a label relative to its box, best first. Each row has two pairs, for x and for y: the
# side of the box (0 for left or top, 1 for right or bottom), and the shift from there, in sizes of
# the label.
PLACES = np.array(
    [
        [(0, 0), (0, -1)],  # above
        [(0, 0), (0, 0)],  # inside, at the top
        [(0, 0), (1, 0)],  # below
        [(0, -1), (0, 0)],  # to the left
        [(1, 0), (0, 0)],  # to the right
        [(1, -1), (0, -1)],  # the same from the other end of each side
        [(1, -1), (0, 0)],
        [(1, -1), (1, 0)],
        [(0, -1), (1, -1)],
        [(1, 0), (1, -1)],
        [(0, 0), (1, -1)],  # inside, at the bottom
        [(1, -1), (1, -1)],
    ],
    np.float32,
)


class LabelLayout:
    """Labels on a picture: none leaves it or covers another, and boxes stay visible."""

    def __init__(self, picture: tuple[int, int], visible: Rectangles, gap: int) -> None:
        """Begin without labels.

        Args:
            picture: Width and height.
            visible: `(M, 4)`, boxes that labels may hide only in part.
            gap: Least distance between labels, in pixels.
        """
        self._room = np.array(picture, np.float32)
        self._visible = np.clip(visible, 0, np.tile(self._room, 2))
        self._areas = _area(self._visible)
        self._hidden = np.zeros(len(visible), np.float32)  # by the labels so far
        self._gap = np.array([-gap, -gap, gap, gap], np.float32)
        self.taken: Rectangles = np.empty((0, 4), np.float32)

    def place(self, box: Rectangles, size: tuple[int, int], cover: float) -> tuple[int, int] | None:
        """Place a label in the first place that is free.

        Args:
            box: `(4,)`, the box that the label belongs to.
            size: Width and height of the label.
            cover: The part of each box that all labels together may cover, from 0 to 1.
        """
        extent = np.array(size, np.float32)
        if (extent > self._room).any():
            return None
        sides = box.reshape(2, 2)[PLACES[..., 0].astype(int), [0, 1]]  # (P, 2)
        corners = np.clip(np.rint(sides + PLACES[..., 1] * extent), 0, self._room - extent)
        candidates = np.hstack([corners, corners + extent])  # (P, 4)
        around = np.hstack([candidates[:, :2].min(axis=0), candidates[:, 2:].max(axis=0)])
        near = _touch(self._visible, around)  # (M',)
        hidden = self._hidden[near] + _shared_area(candidates, self._visible[near])  # (P, M')
        free = (hidden <= cover * self._areas[near]).all(axis=1)
        others = self.taken[_touch(self.taken, around)]
        free &= ~(_shared_area(candidates, others) > 0).any(axis=1)
        if not free.any():
            return None
        chosen = free.argmax()
        self._hidden[near] = hidden[chosen]
        self.taken = np.vstack([self.taken, candidates[chosen] + self._gap])
        left, top = corners[chosen]
        return int(left), int(top)


def _area(rectangles: Rectangles) -> Floats:
    sides = np.maximum(0, rectangles[..., 2:] - rectangles[..., :2])
    area: Floats = sides[..., 0] * sides[..., 1]
    return area


def _touch(rectangles: Rectangles, one: Rectangles) -> npt.NDArray[np.intp]:
    """The rows of rectangles that touch one."""
    touching = (rectangles[:, :2] <= one[2:]) & (rectangles[:, 2:] >= one[:2])
    return np.flatnonzero(touching[:, 0] & touching[:, 1])


def _shared_area(some: Rectangles, others: Rectangles) -> Floats:
    """Area that each of `some` shares with each of `others`, in square pixels: `(P, M)`."""
    low = np.maximum(some[:, None, :2], others[:, :2])
    high = np.minimum(some[:, None, 2:], others[:, 2:])
    return _area(np.concatenate([low, high], axis=-1))
