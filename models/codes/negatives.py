"""Lookalikes: flat things that look machine-readable, which a detector must ignore."""

from collections.abc import Callable

import cv2
import numpy as np
import zxingcpp

from codes.surfaces import Surface, colours
from codes.symbols import MIXED, Format, text, written
from codes.textures import Cover, Lettering, Random, tinted

Maker = Callable[[Random, int, Lettering], Cover]

MAX_HEIGHT_RATIO = 1.2


def negative(random: Random, side: int, lettering: Lettering, kinds: tuple[Maker, ...]) -> Surface:
    """One of these, about `side` pixels wide, in colours that symbols have too."""
    maker = kinds[random.integers(len(kinds))]
    cover = maker(random, max(side, 24), lettering)
    paper, ink = colours(random)
    return Surface(tinted(cover, paper, ink), None, [])


def _blank(random: Random, side: int) -> Cover:
    return np.zeros((max(int(side * random.uniform(0.25, MAX_HEIGHT_RATIO)), 12), side), np.uint8)


def text_block(random: Random, side: int, lettering: Lettering) -> Cover:
    """Lines of small print or a few large ones."""
    cover = _blank(random, side)
    size = int(np.clip(random.uniform(0.04, 0.3) * side, 5, 60))
    for y in range(size // 2, len(cover) - size, max(int(size * random.uniform(1.05, 1.8)), 3)):
        lettering.line(random, cover, size // 2, y, size, side - size)
    return cover


def chessboard(random: Random, side: int, _: Lettering) -> Cover:
    """Squares of alternating colour, at least five pixels wide: smaller ones blur to grey."""
    cell = int(random.integers(5, max(side // 5, 6) + 1))
    rows, columns = int(random.integers(3, 10)), max(side // cell, 3)
    checks = np.indices((rows, columns)).sum(0) % 2
    return np.kron(checks.astype(np.uint8) * 255, np.ones((cell, cell), np.uint8)).astype(np.uint8)


def fence(random: Random, side: int, _: Lettering) -> Cover:
    """Slats, blinds, radiators, zebra crossings: bars of a constant pitch."""
    pitch = random.uniform(4, max(side / 6, 5))
    share = random.uniform(0.15, 0.85)
    row = (((np.arange(side) / pitch) % 1) < share).astype(np.uint8) * 255
    cover = np.repeat(row[None], max(int(side * random.uniform(0.2, MAX_HEIGHT_RATIO)), 12), 0)
    if random.random() < 0.5:
        for y in random.integers(0, len(cover), 2).tolist():
            cover[y : y + int(pitch)] = 255
    return cover


def windows(random: Random, side: int, _: Lettering) -> Cover:
    """A facade: the same window over and over, a few of them lit."""
    cover = _blank(random, side)
    pitch_x, pitch_y = random.uniform(9, max(side / 4, 10), 2).astype(int).tolist()
    share = random.uniform(0.4, 0.85)
    for y in range(pitch_y // 4, len(cover), pitch_y):
        for x in range(pitch_x // 4, side, pitch_x):
            shade = int(random.choice([255, 200, 120], p=[0.8, 0.1, 0.1]))
            corner = (x + int(pitch_x * share), y + int(pitch_y * share))
            cv2.rectangle(cover, (x, y), corner, shade, cv2.FILLED)
    return cover


def keyboard(random: Random, side: int, lettering: Lettering) -> Cover:
    """Rows of keys, each row shifted, with a sign on each key."""
    key = int(np.clip(side / random.uniform(8, 15), 6, 60))
    cover = np.zeros((key * 5, side), np.uint8)
    for row in range(5):
        for x in range(int(row * key * 0.3) - key, side, key):
            corner = (x + key - 2, (row + 1) * key - 3)
            cv2.rectangle(cover, (x + 1, row * key + 1), corner, 230, cv2.FILLED)
            if key > 12:
                sign = np.zeros((key // 2, key // 2), np.uint8)
                lettering.line(random, sign, 0, 0, key // 2, key // 2)
                left, top = max(x + key // 4, 0), row * key + key // 5
                area = cover[top : top + key // 2, left : left + key // 2]
                area -= np.minimum(sign[: area.shape[0], : area.shape[1]], area)
    return cover


def noise_grid(random: Random, side: int, _: Lettering) -> Cover:
    """Random modules without finder patterns, large enough that their absence is visible."""
    cell = int(random.integers(4, max(side // 8, 5) + 1))
    rows, columns = int(random.integers(5, 25)), max(side // cell, 5)
    cells = (random.random((rows, columns)) < random.uniform(0.2, 0.8)).astype(np.uint8)
    cells[:, [0, -1]] = random.integers(0, 2, (rows, 2))
    return np.kron(cells * np.uint8(255), np.ones((cell, cell), np.uint8))


def table(random: Random, side: int, lettering: Lettering) -> Cover:
    """A form, a timetable or a calendar: ruled cells with a word in some."""
    cover = _blank(random, side)
    high, wide = int(random.integers(10, 40)), int(random.integers(15, 100))
    for y in range(0, len(cover), high):
        cv2.line(cover, (0, y), (side, y), 255, 1)
        for x in range(0, side, wide):
            if random.random() < 0.6:
                lettering.line(random, cover, x + 3, y + 2, int(high * 0.7), wide - 6)
    for x in range(0, side, wide):
        cv2.line(cover, (x, 0), (x, len(cover)), 255, 1)
    return cover


def emblem(random: Random, side: int, lettering: Lettering) -> Cover:
    """Rings, squares and a name: a logo; nested squares, but no finder patterns."""
    cover = np.zeros((side, side), np.uint8)
    middle = (side // 2, side // 2)
    reach = side * 0.48
    for shade in (255, 0, 255, 0)[: int(random.integers(1, 5))]:
        if random.random() < 0.5:
            cv2.circle(cover, middle, int(reach), shade, cv2.FILLED, cv2.LINE_AA)
        else:
            corner = (middle[0] + int(reach * 0.7), middle[1] + int(reach * 0.7))
            opposite = (middle[0] - int(reach * 0.7), middle[1] - int(reach * 0.7))
            cv2.rectangle(cover, opposite, corner, shade, cv2.FILLED)
        reach *= random.uniform(0.5, 0.9)
    lettering.line(random, cover, side // 5, int(side * 0.4), side // 5, side * 3 // 5)
    return cover


def other_code(random: Random, side: int, _: Lettering) -> Cover:
    """Symbologies outside the six classes: Aztec and MaxiCode."""
    if random.random() < 0.7:
        cells = written(text(random, MIXED, 4, 60), Format.Aztec)
        scale = max(side // cells.shape[1], 2)
    else:
        drawn = zxingcpp.write_barcode_to_image(
            zxingcpp.create_barcode(text(random, MIXED, 10, 60), Format.MaxiCode), scale=1
        )
        cells, scale = (np.array(drawn) < 128).astype(np.uint8), 1
    cells = np.pad(cells, 2 if scale > 1 else 8)
    return np.kron(cells * np.uint8(255), np.ones((scale, scale), np.uint8))


def staves(random: Random, side: int, _: Lettering) -> Cover:
    """Sheet music: five lines at a time, with notes."""
    cover = _blank(random, side)
    gap = int(random.integers(4, 10))
    for top in range(gap * 2, len(cover) - gap * 5, gap * 10):
        for line in range(5):
            cv2.line(cover, (0, top + line * gap), (side, top + line * gap), 255, 1)
        for x in range(gap, side, int(gap * random.uniform(1.5, 4))):
            y = top + int(random.integers(0, 4 * gap))
            cv2.ellipse(cover, (x, y), (gap * 2 // 3, gap // 2), -20, 0, 360, 255, cv2.FILLED)
            cv2.line(cover, (x + gap // 2, y), (x + gap // 2, y - 3 * gap), 255, 1)
    return cover


def crossword(random: Random, side: int, _: Lettering) -> Cover:
    """Ruled squares of which a few are filled."""
    cell = int(random.integers(6, max(side // 6, 7) + 1))
    count = max(side // cell, 4)
    cells = (random.random((count, count)) < random.uniform(0.1, 0.35)).astype(np.uint8)
    cover = np.kron(cells * np.uint8(255), np.ones((cell, cell), np.uint8))
    cover[::cell] = 255
    cover[:, ::cell] = 255
    return cover


def ruler(random: Random, side: int, lettering: Lettering) -> Cover:
    """Marks of three lengths at a constant pitch, with figures."""
    high = max(int(side * random.uniform(0.1, 0.25)), 14)
    cover = np.zeros((high, side), np.uint8)
    pitch = int(random.integers(3, 10))
    for number, x in enumerate(range(2, side, pitch)):
        length = high // (2 if number % 10 == 0 else 3 if number % 5 == 0 else 5)
        cv2.line(cover, (x, 0), (x, length), 255, 1)
        if number % 10 == 0:
            lettering.line(random, cover, x, high * 3 // 5, high // 3, high // 2)
    return cover


def dots(random: Random, side: int, _: Lettering) -> Cover:
    """Perforated sheet, halftone, dice: discs on a grid."""
    cover = _blank(random, side)
    pitch = int(random.integers(6, max(side // 5, 7) + 1))
    missing = random.uniform(0, 0.3)
    for y in range(pitch // 2, len(cover), pitch):
        for x in range(pitch // 2, side, pitch):
            if random.random() > missing:
                cv2.circle(cover, (x, y), max(int(pitch * 0.32), 2), 255, cv2.FILLED, cv2.LINE_AA)
    return cover


TRAINING: tuple[Maker, ...] = (
    text_block, text_block, chessboard, fence, windows, noise_grid, table, emblem, other_code,
    staves, dots,
)  # fmt: skip
# Keyboards, crosswords and rulers are never seen in training.
HELD_OUT: tuple[Maker, ...] = (
    text_block, chessboard, fence, windows, noise_grid, emblem, other_code, keyboard, crossword,
    ruler,
)  # fmt: skip
