"""Printed matter: text, tables, rulers, music, logos, the marks on packages."""

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.negatives.base import blank_map
from codes.textures import Lettering, Mask, Random


def text_block(random: Random, side: int, lettering: Lettering) -> Mask:
    """Lines of small print or a few large ones."""
    ink_map = blank_map(random, side)
    height = int(np.clip(random.uniform(0.04, 0.3) * side, 5, 60))
    spacing = max(int(height * random.uniform(1.05, 1.8)), 3)
    for y in range(height // 2, len(ink_map) - height, spacing):
        lettering.draw_line(random, ink_map, x=height // 2, y=y, height=height, width=side - height)
    return ink_map


def headline(random: Random, side: int, lettering: Lettering) -> Mask:
    """One or two lines in letters as high as a bar code: brands, headlines, signs."""
    height = int(side * random.uniform(0.15, 0.6)) + 4
    line_count = random.integers(1, 3)
    ink_map = np.zeros((int(height * line_count * 1.15) + 4, side), np.uint8)
    for y in range(2, len(ink_map) - height + 1, int(height * 1.1)):
        lettering.draw_line(random, ink_map, x=2, y=y, height=height, width=side - 4)
    return ink_map


def columns(random: Random, side: int, lettering: Lettering) -> Mask:
    """Narrow columns of dense lines, some of them short: a newspaper, a list, a price board."""
    ink_map = blank_map(random, side)
    count = int(random.integers(2, 7))
    column_width = side // count
    height = int(np.clip(random.uniform(0.03, 0.12) * side, 4, 24))
    for column in range(count):
        spacing = height + int(random.integers(0, 3))
        for y in range(0, len(ink_map) - height, spacing):
            length_share = 1.0
            if random.random() < 0.3:
                length_share = random.uniform(0.4, 1)
            width = int((column_width - height) * length_share)
            left = column * column_width
            lettering.draw_line(random, ink_map, x=left, y=y, height=height, width=width)
    return ink_map


def table(random: Random, side: int, lettering: Lettering) -> Mask:
    """A form, a timetable or a calendar: ruled cells, more than half of them with words."""
    ink_map = blank_map(random, side)
    cell_height = int(random.integers(10, 40))
    cell_width = int(random.integers(15, 100))
    text_height = int(cell_height * 0.7)
    for y in range(0, len(ink_map), cell_height):
        cv2.line(ink_map, (0, y), (side, y), 255, 1)
        for x in range(0, side, cell_width):
            if random.random() < 0.6:
                lettering.draw_line(
                    random, ink_map, x=x + 3, y=y + 2, height=text_height, width=cell_width - 6
                )

    for x in range(0, side, cell_width):
        cv2.line(ink_map, (x, 0), (x, len(ink_map)), 255, 1)
    return ink_map


def ingredients(random: Random, side: int, lettering: Lettering) -> Mask:
    """Small print in a dense block, beside a table of figures."""
    ink_map = blank_map(random, side)
    text_height = int(np.clip(random.uniform(0.025, 0.07) * side, 4, 16))
    block_width = int(side * random.uniform(0.5, 1))
    _draw_dense_text(random, ink_map, lettering, text_height, block_width)
    _draw_figures(random, ink_map, lettering, text_height, block_width)
    return ink_map


def _draw_dense_text(
    random: Random, ink_map: Mask, lettering: Lettering, text_height: int, block_width: int
) -> None:
    """Fill the left of the map, `block_width` pixels, with words close to each other."""
    spacing = max(int(text_height * random.uniform(0.95, 1.25)), 4)
    for y in range(1, len(ink_map) - text_height, spacing):
        x = 1
        while x < block_width - 3 * text_height:
            length = int(random.uniform(3, 25) * text_height)
            width = min(length, block_width - x)
            lettering.draw_line(random, ink_map, x=x, y=y, height=text_height, width=width)
            x += length + text_height // 3


def _draw_figures(
    random: Random, ink_map: Mask, lettering: Lettering, text_height: int, table_left: int
) -> None:
    """Draw lines of a name and a figure, each underlined, to the right of `table_left`."""
    side = ink_map.shape[1]
    name_left = table_left + text_height
    name_width = side - table_left - 6 * text_height
    figure_width = 3 * text_height
    figure_left = side - 4 * text_height
    for y in range(2, len(ink_map) - text_height, int(text_height * 1.5)):
        lettering.draw_line(random, ink_map, x=name_left, y=y, height=text_height, width=name_width)
        lettering.draw_line(
            random, ink_map, x=figure_left, y=y, height=text_height, width=figure_width
        )
        rule_y = y + text_height + 1
        cv2.line(ink_map, (name_left, rule_y), (side - text_height, rule_y), 200, 1)


def emblem(random: Random, side: int, lettering: Lettering) -> Mask:
    """A logo: up to four discs and squares inside each other, black and white by turns, and a name.

    Nested squares alone would resemble the finder pattern of a QR Code.
    """
    ink_map = np.zeros((side, side), np.uint8)
    middle = side // 2
    radius = side * 0.48
    shape_count = int(random.integers(1, 5))
    for shade in (255, 0, 255, 0)[:shape_count]:
        if random.random() < 0.5:
            cv2.circle(ink_map, (middle, middle), int(radius), shade, cv2.FILLED, cv2.LINE_AA)
        else:
            half_side = int(radius * 0.7)  # so that its corners are on the circle
            top_left = (middle - half_side, middle - half_side)
            bottom_right = (middle + half_side, middle + half_side)
            cv2.rectangle(ink_map, top_left, bottom_right, shade, cv2.FILLED)
        radius *= random.uniform(0.5, 0.9)

    name_width = side * 3 // 5
    lettering.draw_line(
        random, ink_map, x=side // 5, y=int(side * 0.4), height=side // 5, width=name_width
    )
    return ink_map


def staves(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Sheet music: five lines at a time, with notes."""
    ink_map = blank_map(random, side)
    gap = int(random.integers(4, 10))  # between two of the five lines
    for top in range(gap * 2, len(ink_map) - gap * 5, gap * 10):
        for line in range(5):
            y = top + line * gap
            cv2.line(ink_map, (0, y), (side, y), 255, 1)
        for x in range(gap, side, int(gap * random.uniform(1.5, 4))):
            y = top + int(random.integers(0, 4 * gap))
            _draw_note(ink_map, x, y, gap)
    return ink_map


def _draw_note(ink_map: Mask, x: int, y: int, gap: int) -> None:
    """Draw a note: its head, an ellipse that rises to the right, and its stem on the right."""
    head_size = (gap * 2 // 3, gap // 2)
    cv2.ellipse(ink_map, (x, y), head_size, -20, 0, 360, 255, cv2.FILLED)
    stem_x = x + gap // 2
    cv2.line(ink_map, (stem_x, y), (stem_x, y - 3 * gap), 255, 1)


def ruler(random: Random, side: int, lettering: Lettering) -> Mask:
    """Marks of three lengths at a constant pitch, with figures at the longest."""
    height = max(int(side * random.uniform(0.1, 0.25)), 14)
    ink_map = np.zeros((height, side), np.uint8)
    pitch = int(random.integers(3, 10))
    for number, x in enumerate(range(2, side, pitch)):
        length = height // 5
        if number % 10 == 0:
            length = height // 2
        elif number % 5 == 0:
            length = height // 3
        cv2.line(ink_map, (x, 0), (x, length), 255, 1)

        if number % 10 == 0:
            figure_y = height * 3 // 5
            lettering.draw_line(
                random, ink_map, x=x, y=figure_y, height=height // 3, width=height // 2
            )
    return ink_map


def marks(random: Random, side: int, lettering: Lettering) -> Mask:
    """A row of marks as on packages and labels in clothes: recycling, washing, bleaching, a name.

    All but the recycling mark may be crossed out.
    """
    count = int(random.integers(1, 6))
    size = max(side // count, 12)
    ink_map = np.zeros((size, size * count), np.uint8)
    thickness = max(int(size * random.uniform(0.03, 0.08)), 1)
    for number in range(count):
        area = ink_map[:, number * size : (number + 1) * size]
        kind = int(random.integers(4))
        if kind == 0:
            _draw_recycling_mark(random, area)
            continue
        if kind == 1:
            _draw_wash_tub(random, area, thickness)
        elif kind == 2:
            _draw_triangle(area, thickness)
        else:
            near, far = _mark_edges(size)
            lettering.draw_line(
                random, area, x=near, y=size // 3, height=size // 2, width=far - near
            )
        if random.random() < 0.4:
            _cross_out(area, thickness)
    return ink_map


def _mark_edges(size: int) -> tuple[int, int]:
    """Where a mark begins and ends in its square, both across and down."""
    return int(size * 0.15), int(size * 0.85)


def _draw_wash_tub(random: Random, area: Mask, thickness: int) -> None:
    """Draw a tub that narrows downwards, open or closed at the top, with a circle in it."""
    size = len(area)
    near, far = _mark_edges(size)
    slope = size // 10
    tub = [(near, near), (near + slope, far), (far - slope, far), (far, near)]
    is_closed = bool(random.random() < 0.5)
    cv2.polylines(area, [np.array(tub)], is_closed, color=255, thickness=thickness)
    cv2.circle(area, (size // 2, size // 2), size // 5, 255, thickness, cv2.LINE_AA)


def _draw_triangle(area: Mask, thickness: int) -> None:
    """Draw the triangle that stands for bleach."""
    size = len(area)
    near, far = _mark_edges(size)
    corners = [(size // 2, near), (far, far), (near, far)]
    cv2.polylines(area, [np.array(corners)], isClosed=True, color=255, thickness=thickness)


def _cross_out(area: Mask, thickness: int) -> None:
    """Draw both diagonals over a mark."""
    near, far = _mark_edges(len(area))
    cv2.line(area, (near, near), (far, far), 255, thickness, cv2.LINE_AA)
    cv2.line(area, (far, near), (near, far), 255, thickness, cv2.LINE_AA)


def _draw_recycling_mark(random: Random, area: Mask) -> None:
    """Draw three arrows that follow each other around a triangle, each bent at a corner.

    Points are complex numbers, x + yj, on a circle of radius 1 around 0. Times 1j, a direction
    turns by 90 degrees. A side of the triangle is 1.73 long.
    """
    size = len(area)
    thickness = max(int(size * random.uniform(0.05, 0.13)), 1)
    corners = np.exp(2j * np.pi * np.arange(3) / 3 - 0.5j * np.pi)  # the first at the top
    next_corners = np.roll(corners, -1)
    previous_corners = np.roll(corners, 1)
    for corner, next_corner, previous_corner in zip(
        corners, next_corners, previous_corners, strict=True
    ):
        # The shaft comes from the previous side, bends near the corner, and follows the next side.
        direction = (next_corner - corner) / abs(next_corner - corner)
        tail = corner + 0.3 * (previous_corner - corner)
        bend = corner + 0.3 * direction
        head_base = next_corner - 0.55 * direction
        shaft = _mark_pixels([tail, bend, head_base], size)
        cv2.polylines(area, [shaft], isClosed=False, color=255, thickness=thickness)

        # The head is a triangle, 0.42 long and twice 0.28 wide.
        half_width = 0.28j * direction
        tip = head_base + 0.42 * direction
        head = _mark_pixels([head_base + half_width, head_base - half_width, tip], size)
        cv2.fillPoly(area, [head], 255, cv2.LINE_AA)


def _mark_pixels(points: list[complex], size: int) -> NDArray[np.int32]:
    """Pixels `[P, 2]`, x and y, of points x + yj of a circle just below the middle of a square."""
    in_square = (np.array(points) * 0.42 + 0.5 + 0.55j) * size
    return np.column_stack([in_square.real, in_square.imag]).astype(np.int32)
