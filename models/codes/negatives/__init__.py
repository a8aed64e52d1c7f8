"""Lookalikes: flat things that look machine-readable, which a detector must ignore.

- `base`: what a maker of lookalikes is, and what makers share.
- `grids`: chessboards, facades, and other squares and bars at a constant pitch.
- `objects`: keyboards, clocks, road signs, leaves, bookshelves and other objects.
- `other_codes`: symbologies that are not detected, and logos that resemble symbols.
- `patterns`: cloth, water, handwriting and other irregular patterns.
- `printed`: text, tables, rulers, music, logos and other printed matter.
"""

from codes.negatives.base import Maker
from codes.negatives.grids import (
    blinds,
    calibration_board,
    chessboard,
    crossword,
    dots,
    fence,
    lamps,
    maze,
    noise_grid,
    windows,
)
from codes.negatives.objects import (
    bookshelf,
    dial,
    keyboard,
    leaves,
    piano,
    remote,
    road_sign,
    sausages,
    tie,
)
from codes.negatives.other_codes import almost_qr, few_bars, maxicode, other_code, postal
from codes.negatives.patterns import blots, cloth, halftone, scribble, stars, water
from codes.negatives.printed import (
    columns,
    emblem,
    headline,
    ingredients,
    marks,
    ruler,
    staves,
    table,
    text_block,
)
from codes.surfaces import Surface, paper_and_ink
from codes.textures import Lettering, Random, tinted

MIN_SIDE = 24  # pixels


def lookalike(
    random: Random, side: int, lettering: Lettering, makers: tuple[Maker, ...]
) -> Surface:
    """What one of the makers draws, about `side` pixels wide, in colours that symbols have too."""
    maker = makers[random.integers(len(makers))]
    ink_map = maker(random, max(side, MIN_SIDE), lettering)
    paper, ink = paper_and_ink(random)
    return Surface(tinted(ink_map, paper, ink), alpha=None, areas=[])


# The kinds that are mistaken for symbols most often are repeated.
TRAINING: tuple[Maker, ...] = (
    text_block, text_block, headline, headline, headline, chessboard, fence, fence, fence, fence,
    windows, windows, noise_grid, noise_grid, noise_grid, table, emblem, other_code, other_code,
    other_code, maxicode, maxicode, maxicode, maxicode, staves, dots, keyboard, crossword, ruler,
    remote, water, water, cloth, cloth, scribble, dial, sausages, stars, halftone, columns,
    almost_qr, almost_qr, almost_qr, postal, postal, few_bars, ingredients, marks, road_sign, lamps,
    blinds, tie, leaves, bookshelf, blots,
)  # fmt: skip
# What is still mistaken after two cycles of training, and how many entries in `HARD` each gets
# besides those in `TRAINING`. Two thirds of `HARD` are such additional entries.
_STILL_MISTAKEN: tuple[tuple[Maker, int], ...] = (
    (chessboard, 6), (calibration_board, 8), (headline, 10), (text_block, 4), (cloth, 4),
    (fence, 2), (noise_grid, 3), (few_bars, 3), (ingredients, 6), (marks, 4), (road_sign, 5),
    (lamps, 4), (blinds, 5), (tie, 4), (leaves, 5), (bookshelf, 5), (blots, 6), (dial, 5),
    (remote, 5), (columns, 3), (scribble, 3),
)  # fmt: skip


def _with_more_hard_ones() -> tuple[Maker, ...]:
    """The makers of training, followed by repetitions of those in `_STILL_MISTAKEN`."""
    makers = list(TRAINING)
    for maker, times in _STILL_MISTAKEN:
        makers += [maker] * times
    return tuple(makers)


HARD = _with_more_hard_ones()
# Pianos and mazes are never seen in training.
HELD_OUT: tuple[Maker, ...] = (
    text_block, headline, chessboard, fence, windows, noise_grid, emblem, other_code, maxicode,
    keyboard, crossword, remote, halftone, cloth, almost_qr, piano, bookshelf, maze,
)  # fmt: skip
