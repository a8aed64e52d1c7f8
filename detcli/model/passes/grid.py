"""The anchor grid: what an export for one picture size holds of it as constants.

A detector looks at the picture at several strides (8, 16, 32). At each there is an anchor for each
cell, row by row; the head has those of all strides one after the other. Exports for one size hold
the centres and strides of all anchors as constants, of which one axis is as long as the head's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

FINEST, COARSEST = 2, 256  # strides that a detector might have
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """The anchors of a picture size.

    Attributes:
        size: Height and width of the picture.
        strides: Pixels of the picture for each cell, finest first.
    """

    size: tuple[int, int]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, size: tuple[int, int], anchors: int) -> Self | None:
        """The grid of a size that has so many anchors; its strides double from one to the next."""
        powers = [1 << power for power in range(FINEST.bit_length() - 1, COARSEST.bit_length())]
        for first in range(len(powers)):
            for last in range(first, len(powers)):
                grid = cls(size, tuple(powers[first : last + 1]))
                if not any(side % powers[last] for side in size) and grid.anchors == anchors:
                    return grid
        return None

    def resized(self, size: tuple[int, int]) -> Self:
        """The same strides on another size."""
        return type(self)(size, self.strides)

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Rows and columns of cells at each stride."""
        height, width = self.size
        return [(height // stride, width // stride) for stride in self.strides]

    @property
    def anchors(self) -> int:
        """How many anchors there are."""
        return sum(rows * columns for rows, columns in self.levels)

    def along(self, axis: int, offset: float) -> Array:
        """The row (axis 0) or column (axis 1) of each anchor's cell, plus an offset: (N,)."""
        return np.concatenate([np.indices(level)[axis].ravel() + offset for level in self.levels])

    def stride_of_each(self) -> Array:
        """The stride of each anchor: (N,)."""
        counts = [rows * columns for rows, columns in self.levels]
        return np.repeat(np.array(self.strides, np.float64), counts)


FIELDS: list[Callable[[Grid], Array]] = [
    lambda grid: grid.stride_of_each(),
    *(
        lambda grid, axis=axis, offset=offset, scaled=scaled: (
            grid.along(axis, offset) * (grid.stride_of_each() if scaled else 1)
        )
        for axis in (0, 1)
        for offset in (0.5, 0)
        for scaled in (False, True)
    ),
]
"""What a row of such a constant may hold: strides, or coordinates of cells in cells or pixels."""


def regenerated(constant: Array, old: Grid, new: Grid) -> Array | None:
    """A constant of one grid as it is for another.

    Args:
        constant: Of the old grid; one axis is as long as it has anchors.
        old: The grid that it belongs to.
        new: The grid to make it for.

    Returns:
        The constant, of the same dtype and axes; None if a row of it is no known field.
    """
    axis = constant.shape.index(old.anchors)
    rows = np.moveaxis(constant, axis, -1)  # (..., N)
    leading = rows.shape[:-1]
    made = []
    for row in rows.reshape(-1, old.anchors):
        field = next((f for f in FIELDS if np.array_equal(row, f(old).astype(row.dtype))), None)
        if field is None:
            return None
        made.append(field(new).astype(constant.dtype))
    return np.ascontiguousarray(np.moveaxis(np.reshape(made, (*leading, new.anchors)), -1, axis))
