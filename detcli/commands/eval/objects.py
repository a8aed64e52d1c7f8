"""The objects of one picture, as its labels tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Box = tuple[float, float, float, float]
"""x, y, width, height."""


@dataclass(frozen=True, slots=True)
class Object:
    """One of them, see `Objects`."""

    box: Box
    category: int
    area: float = np.nan
    crowd: bool = False
    ignored: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Objects:
    """Parallel arrays; row i of each describes the same object.

    Attributes:
        boxes: `(N, 4)` float64: x, y of the top left corner, width, height; in pixels of the
            picture, the origin at its top left corner, or in fractions of its sides.
        category: `(N,)` int64, an index into the data's categories.
        area: `(N,)` float64, in square pixels; NaN stands for that of the box.
        crowd: `(N,)` bool, one box around many objects.
        ignored: `(N,)` bool, neither to be found nor a false alarm.
    """

    boxes: npt.NDArray[np.float64]
    category: npt.NDArray[np.int64]
    area: npt.NDArray[np.float64]
    crowd: npt.NDArray[np.bool_]
    ignored: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, objects: Iterable[Object]) -> Self:
        """Gather objects."""
        rows = list(objects)
        return cls(
            np.array([row.box for row in rows], np.float64).reshape(-1, 4),
            np.array([row.category for row in rows], np.int64),
            np.array([row.area for row in rows], np.float64),
            np.array([row.crowd for row in rows], np.bool_),
            np.array([row.ignored for row in rows], np.bool_),
        )

    def __len__(self) -> int:
        return len(self.category)

    def in_pixels(self, size: tuple[int, int]) -> Self:
        """The same, of boxes in fractions of a picture of (height, width)."""
        height, width = size
        return type(self)(
            self.boxes * np.array([width, height, width, height], np.float64),
            *(self.category, self.area, self.crowd, self.ignored),
        )

    def __getitem__(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Those that a mask `(N,)` has."""
        return type(self)(
            *(self.boxes[chosen], self.category[chosen], self.area[chosen]),
            *(self.crowd[chosen], self.ignored[chosen]),
        )
