"""Symbologies that are not detected, and logos and figures that resemble symbols."""

import cv2
import numpy as np
import zxingcpp

from codes.negatives.base import in_squares
from codes.symbols import MIXED, Cells, Format, text
from codes.textures import Lettering, Mask, Random


def other_code(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Modules that look like DotCode or Han Xin."""
    count = int(random.integers(15, 40))
    cells = (random.random((count, count)) < 0.5).astype(np.uint8)
    scale = max(side // count, 2)
    if random.random() < 0.6:
        return _like_dotcode(cells, scale)
    return _like_han_xin(cells, scale)


def _like_dotcode(cells: Cells, scale: int) -> Mask:
    """Round dots on every other cell only, as on the squares of one colour of a chessboard."""
    row, column = np.indices(cells.shape)
    cells[(row + column) % 2 == 0] = 0
    return cv2.GaussianBlur(in_squares(cells, scale), (0, 0), scale * 0.3)


def _like_han_xin(cells: Cells, scale: int) -> Mask:
    """Square modules, with an angle within an angle in each corner."""
    pattern = np.ones((8, 8), np.uint8)
    for size, shade in ((7, 0), (6, 1), (4, 0), (3, 1)):
        pattern[:size, :size] = shade

    last = len(cells) - len(pattern)
    counter_clockwise = ((0, 0), (last, 0), (last, last), (0, last))
    for quarter_turns, (y, x) in enumerate(counter_clockwise):
        cells[y : y + 8, x : x + 8] = np.rot90(pattern, quarter_turns)
    return in_squares(cells, scale)


def maxicode(random: Random, side: int, _lettering: Lettering) -> Mask:
    """MaxiCode: rings in a field of hexagons, which resemble Aztec Codes."""
    barcode = zxingcpp.create_barcode(text(random, MIXED, 10, 60), Format.MaxiCode)
    image = np.array(zxingcpp.write_barcode_to_image(barcode, scale=4))
    ink_map = np.pad((image < 128).astype(np.uint8) * np.uint8(255), 8)
    height = max(side * ink_map.shape[0] // ink_map.shape[1], 4)
    return cv2.resize(ink_map, (side, height), interpolation=cv2.INTER_AREA)


def postal(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Bars of one width and pitch, as post offices print: of four heights or of two.

    With four, a bar may go up, down, both or neither from the middle; with two, it starts at the
    top or in the middle.
    """
    count = min(int(random.integers(20, 70)), side // 3)
    pitch = side // count
    height = int(pitch * random.uniform(2.5, 5))
    ink_map = np.zeros((height, pitch * count), np.uint8)

    tops = (0, height // 3)
    bottoms = (height, height * 2 // 3)
    if random.random() < 0.3:  # two heights
        tops = (0, height // 2)
        bottoms = (height, height)

    bar_width = max(pitch * 2 // 5, 1)
    for left in range(0, pitch * count, pitch):
        top = int(random.choice(tops))
        bottom = int(random.choice(bottoms))
        ink_map[top:bottom, left : left + bar_width] = 255
    return np.pad(ink_map, pitch)


def few_bars(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Two to seven strokes of one to three widths: Pharmacode, tally marks, flags, pause signs."""
    count = int(random.integers(2, 8))
    module = max(side // (3 * count), 2)
    stripes = []
    for number in range(2 * count):  # a gap, a stroke, a gap, a stroke ...
        width = module * int(random.integers(1, 4))
        shade = 255 * (number % 2)
        stripes.append(np.full(width, shade, np.uint8))

    pixel_row = np.concatenate(stripes)
    height = int(len(pixel_row) * random.uniform(0.2, 1.2)) + 4
    return np.repeat(np.pad(pixel_row, module)[None], height, axis=0)


def almost_qr(random: Random, side: int, _lettering: Lettering) -> Mask:
    """A logo of squares within squares, or a figure of coarse pixels."""
    if random.random() < 0.5:
        return _mirrored_figure(random, side)
    return _nested_squares(random, side)


def _mirrored_figure(random: Random, side: int) -> Mask:
    """Coarse random pixels, the same on the left and on the right, as in generated avatars."""
    rows = int(random.integers(6, 12))
    columns = int(random.integers(3, 6))
    left_half = (random.random((rows, columns)) < 0.5).astype(np.uint8)
    cells = np.concatenate([left_half, left_half[:, ::-1]], axis=1)
    cell = max(side // cells.shape[1], 3)
    return np.pad(in_squares(cells, cell), cell)


def _nested_squares(random: Random, side: int) -> Mask:
    """One to four finder patterns in the quarters of a square, perhaps around a disc."""
    ink_map = np.zeros((side, side), np.uint8)
    half_side = int(side * random.uniform(0.12, 0.23))
    count = int(random.integers(1, 5))
    middles = [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)]  # shares of the side
    for x_share, y_share in middles[:count]:
        x = int(x_share * side)
        y = int(y_share * side)
        gap_share = random.uniform(0.6, 0.85)  # how far the white square inside the border reaches
        for share, shade in ((1.0, 255), (gap_share, 0), (0.45, 255)):
            reach = int(half_side * share)
            top_left = (x - reach, y - reach)
            bottom_right = (x + reach, y + reach)
            cv2.rectangle(ink_map, top_left, bottom_right, shade, cv2.FILLED)

    if random.random() < 0.5:
        middle = (side // 2, side // 2)
        cv2.circle(ink_map, middle, half_side // 2, 255, cv2.FILLED, cv2.LINE_AA)
    return ink_map
