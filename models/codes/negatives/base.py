"""What a maker of lookalikes is, and what makers share."""

from collections.abc import Callable

import numpy as np

from codes.symbols import Cells
from codes.textures import Lettering, Mask, Random

# Draws a lookalike of this width in pixels, as a mask `[H, W]` that is 255 where there is ink.
Maker = Callable[[Random, int, Lettering], Mask]

MAX_HEIGHT_RATIO = 1.2  # height over width of most lookalikes
MIN_HEIGHT = 12  # pixels


def random_height(random: Random, side: int, min_ratio: float) -> int:
    """A height in pixels from `min_ratio` to `MAX_HEIGHT_RATIO` times the width `side`."""
    return max(int(side * random.uniform(min_ratio, MAX_HEIGHT_RATIO)), MIN_HEIGHT)


def blank_map(random: Random, side: int) -> Mask:
    """A mask without ink, `side` pixels wide and of random height."""
    return np.zeros((random_height(random, side, min_ratio=0.25), side), np.uint8)


def in_squares(cells: Cells, cell: int) -> Mask:
    """Cells of 0 and 1 as squares of 0 and 255, `cell` pixels wide."""
    return np.kron(cells * np.uint8(255), np.ones((cell, cell), np.uint8))


def checks(rows: int, columns: int) -> Cells:
    """A chessboard `[rows, columns]` of 0 and 1, its first cell 0."""
    row, column = np.indices((rows, columns))
    return ((row + column) % 2).astype(np.uint8)


def knock_out_letters(
    random: Random, ink_map: Mask, lettering: Lettering, *, left: int, top: int, size: int
) -> None:
    """Take letters out of the ink of a square, so that they appear in the paper's colour."""
    letters = np.zeros((size, size), np.uint8)
    lettering.draw_line(random, letters, x=0, y=0, height=size, width=size)
    area = ink_map[top : top + size, left : left + size]  # smaller at the edges of the map
    area -= np.minimum(letters[: area.shape[0], : area.shape[1]], area)
