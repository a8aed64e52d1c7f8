"""Objects that are mistaken for symbols: keyboards, clocks, road signs, leaves, bookshelves."""

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.negatives.base import blank_map, knock_out_letters
from codes.textures import Lettering, Mask, Random


def keyboard(random: Random, side: int, lettering: Lettering) -> Mask:
    """Rows of keys, each row shifted, with a letter on each key that is large enough."""
    key = int(np.clip(side / random.uniform(8, 15), 6, 60))
    ink_map = np.zeros((key * 5, side), np.uint8)
    for row in range(5):
        top = row * key
        shift = int(row * key * 0.3)
        for left in range(shift - key, side, key):
            top_left = (left + 1, top + 1)
            bottom_right = (left + key - 2, top + key - 3)
            cv2.rectangle(ink_map, top_left, bottom_right, 230, cv2.FILLED)
            if key > 12:
                knock_out_letters(
                    random,
                    ink_map,
                    lettering,
                    left=max(left + key // 4, 0),
                    top=top + key // 5,
                    size=key // 2,
                )
    return ink_map


def dial(random: Random, side: int, lettering: Lettering) -> Mask:
    """A clock, a gauge or a wheel: marks or spokes around a middle, with hands."""
    ink_map = np.zeros((side, side), np.uint8)
    radius = side * 0.47
    middle = (side // 2, side // 2)
    cv2.circle(ink_map, middle, int(radius), 255, max(side // 25, 1), cv2.LINE_AA)

    mark_start = random.uniform(0.05, 0.9)  # small for the spokes of a wheel
    mark_count = random.choice([4, 8, 12, 12, 24, 60])  # spokes, hours, minutes
    for angle in np.arange(0, 2 * np.pi, 2 * np.pi / mark_count):
        start = _point_on_dial(side, angle, radius, mark_start)
        end = _point_on_dial(side, angle, radius, 0.95)
        cv2.line(ink_map, start, end, 255, max(side // 60, 1), cv2.LINE_AA)

    hand_count = int(random.integers(0, 4))
    for length in random.uniform(0.2, 0.9, hand_count).tolist():
        angle = random.uniform(0, 2 * np.pi)
        end = _point_on_dial(side, angle, radius, length)
        cv2.line(ink_map, middle, end, 255, max(side // 30, 1), cv2.LINE_AA)

    height = side // 10 + 3
    lettering.draw_line(
        random, ink_map, x=side // 3, y=side * 3 // 5, height=height, width=side // 3
    )
    return ink_map


def _point_on_dial(side: int, angle: float, radius: float, share: float) -> list[int]:
    """The pixel at an angle, clockwise from the top, and a share of the dial's radius."""
    middle = np.array([side / 2, side / 2])
    offset = np.array([np.sin(angle), -np.cos(angle)]) * radius * share
    point: list[int] = (middle + offset).astype(int).tolist()
    return point


def remote(random: Random, side: int, lettering: Lettering) -> Mask:
    """A remote control, a telephone or a calculator: rows of buttons, some with a letter."""
    columns = int(random.integers(3, 6))
    rows = int(random.integers(5, 13))
    pitch = max(side // rows, 5)
    ink_map = np.zeros((pitch * rows, pitch * columns), np.uint8)

    half_width = int(pitch * random.uniform(0.25, 0.46))
    aspect = random.uniform(0.5, 1)  # height over width
    is_round = aspect > 0.75
    half_height = int(half_width * aspect)
    for row in range(rows):
        if random.random() < 0.12:
            continue
        shade = int(random.choice([255, 255, 170, 90]))
        y = (2 * row + 1) * pitch // 2
        for column in range(columns):
            x = (2 * column + 1) * pitch // 2
            if is_round:
                cv2.circle(ink_map, (x, y), half_width, shade, cv2.FILLED, cv2.LINE_AA)
            else:
                top_left = (x - half_width, y - half_height)
                bottom_right = (x + half_width, y + half_height)
                cv2.rectangle(ink_map, top_left, bottom_right, shade, cv2.FILLED)
            if pitch > 16 and random.random() < 0.7:
                knock_out_letters(
                    random,
                    ink_map,
                    lettering,
                    left=x - pitch // 6,
                    top=y - pitch // 6,
                    size=pitch // 3,
                )
    return ink_map


def sausages(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Sausages, pens, pipes, fingers side by side: long and round, some with a wavy stroke."""
    ink_map = np.zeros((max(int(side * random.uniform(0.3, 0.9)), 16), side), np.uint8)
    left = 0
    while left < side:
        width = max(int(side * random.uniform(0.04, 0.16)), 4)
        # From somewhere in the highest fifth to somewhere in the lowest fifth.
        ends = len(ink_map) * random.uniform((0, 0.8), (0.2, 1))
        top, bottom = ends.astype(int).tolist()
        middle = left + width // 2
        shade = int(random.integers(90, 256))
        # Lines have round ends, half as long as the line is wide.
        start = (middle, top + width // 2)
        end = (middle, bottom - width // 2)
        cv2.line(ink_map, start, end, shade, width)

        if random.random() < 0.4:
            y = np.arange(top, bottom, 3)
            x = middle + np.sin(y * random.uniform(0.1, 0.6)) * width * 0.3
            stroke = np.column_stack([x, y]).astype(np.int32)
            thickness = max(width // 6, 1)
            cv2.polylines(ink_map, [stroke], isClosed=False, color=30, thickness=thickness)

        left += int(width * random.uniform(1, 1.6)) + 1
    return ink_map


def road_sign(random: Random, side: int, lettering: Lettering) -> Mask:
    """A sign with a border around an arrow, a bar or a word.

    It is round, or has three, four or eight corners.
    """
    ink_map = np.zeros((side, side), np.uint8)
    corner_count = int(random.choice([3, 4, 4, 8, 60, 60]))  # with 60 corners it is round
    angles = 2 * np.pi * np.arange(corner_count) / corner_count - np.pi / 2
    angles += np.pi / corner_count * random.integers(2)  # a corner or an edge at the top
    outline = np.column_stack([np.cos(angles), np.sin(angles)])

    # The ink of the border, of the field inside it, and of the figure on the field.
    shades = random.choice([(255, 0, 255), (255, 60, 0), (130, 255, 0), (200, 255, 30)])
    border_shade, field_shade, figure_shade = shades.tolist()
    # Radii as shares of the side: the sign fills the square.
    border_radius = 0.5
    field_radius = random.uniform(0.36, 0.46)
    for radius, shade in ((border_radius, border_shade), (field_radius, field_shade)):
        points = (outline * radius * side + side / 2).astype(np.int32)
        cv2.fillPoly(ink_map, [points], shade, cv2.LINE_AA)

    half_width = int(side * random.uniform(0.15, 0.27))
    choice = random.random()
    if choice < 0.35:
        _draw_sign_arrow(random, ink_map, half_width, figure_shade)
    elif choice < 0.6:
        _draw_sign_bar(ink_map, half_width, figure_shade)
    else:
        _draw_sign_word(random, ink_map, lettering, half_width, figure_shade)
    return ink_map


def _draw_sign_bar(sign: Mask, half_width: int, shade: int) -> None:
    """Draw a bar across the middle of a sign, a third as high as it is wide."""
    middle = len(sign) // 2
    half_height = max(half_width // 3, 1)
    top_left = (middle - half_width, middle - half_height)
    bottom_right = (middle + half_width, middle + half_height)
    cv2.rectangle(sign, top_left, bottom_right, shade, cv2.FILLED)


def _draw_sign_arrow(random: Random, sign: Mask, half_width: int, shade: int) -> None:
    """Draw an arrow to the lower left, the right or the top of a sign.

    It starts at the bottom, in the middle or on the left.
    """
    middle = len(sign) // 2
    left = middle - half_width
    right = middle + half_width
    top = middle - half_width
    bottom = middle + half_width

    ends = [(left, bottom), (right, middle), (middle, top)]
    end = ends[int(random.integers(3))]
    starts_on_left = int(random.integers(2))
    start = (middle - half_width * starts_on_left, bottom)
    thickness = max(len(sign) // 14, 1)
    cv2.arrowedLine(sign, start, end, shade, thickness, cv2.LINE_AA, tipLength=0.45)


def _draw_sign_word(
    random: Random, sign: Mask, lettering: Lettering, half_width: int, shade: int
) -> None:
    """Draw a word in the middle of a sign."""
    height = max(half_width, 4)
    width = 2 * half_width + 1
    word = np.zeros((height, width), np.uint8)
    lettering.draw_line(random, word, x=0, y=0, height=height, width=width)

    middle = len(sign) // 2
    top = middle - height // 2
    left = middle - half_width
    area = sign[top : top + height, left : left + width]
    area[word > 127] = shade


def tie(random: Random, side: int, _lettering: Lettering) -> Mask:
    """A tie: slanted stripes, or dots, between two long edges."""
    width = max(int(side * random.uniform(0.2, 0.35)), 8)
    y, x = np.mgrid[:side, :width].astype(np.float32)
    pitch = random.uniform(4, max(width / 2, 5))

    # Ink of broad stripes, and more of it on narrow ones at their edges; both fall to the left or
    # to the right.
    slant = random.choice([-1, 1])
    position_in_pitch = ((x + y * slant) / np.float32(pitch)) % 1
    pattern = (position_in_pitch < random.uniform(0.1, 0.6)) * np.float32(130)
    pattern += (position_in_pitch < random.uniform(0.05, 0.2)) * np.float32(60)
    if random.random() < 0.25:  # dots in place of the stripes
        is_dot = np.sin(x * 3 / pitch) * np.sin(y * 3 / pitch) > 0.5
        pattern = is_dot * np.float32(150)

    # x and y as shares of the width and the height, clockwise: the top of the knot, its narrow
    # lower end, the blade, which widens, its point at the bottom, and back up on the left.
    outline = np.array(
        [(0.3, 0), (0.7, 0), (0.6, 0.12), (1, 0.85), (0.5, 1), (0, 0.85), (0.4, 0.12)], float
    )
    mask: Mask = np.zeros((side, width), np.uint8)
    points = (outline * (width - 1, side - 1)).astype(np.int32)
    cv2.fillPoly(mask, [points], 255, cv2.LINE_AA)

    cloth_ink = 70
    return np.where(mask > 127, cloth_ink + pattern, 0).astype(np.uint8)


def leaves(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Twigs with leaves on both sides, pointed or round, with veins: ferns, palms, hedges."""
    ink_map = blank_map(random, side)
    for _twig in range(int(random.integers(3, 16))):
        _draw_twig(random, ink_map)
    return ink_map


def _draw_twig(random: Random, ink_map: Mask) -> None:
    """Draw pairs of leaves along a slightly bent line; they get smaller towards its tip."""
    height, side = ink_map.shape
    position = random.uniform(0, 1, 2) * (side, height)
    heading = random.uniform(0, 2 * np.pi)
    twig_length = side * random.uniform(0.3, 0.9)
    pair_count = int(random.integers(4, 26))
    spacing = twig_length / pair_count
    max_length = spacing * random.uniform(1, 4)
    max_width = min(spacing, 0.5 * max_length) * random.uniform(0.5, 0.9)
    max_size = np.array([max_length, max_width])
    shade = int(random.integers(110, 256))
    leaf_angle = np.radians(random.uniform(25, 75))  # from the twig

    for pair in range(pair_count):
        heading += random.normal(0, 0.04)
        position += np.array([np.cos(heading), np.sin(heading)]) * twig_length / pair_count
        taper = 1 - pair / pair_count
        for side_of_twig in (-1, 1):
            direction = heading + leaf_angle * side_of_twig
            tip = position + np.array([np.cos(direction), np.sin(direction)]) * max_length * taper
            _draw_leaf(ink_map, position, tip, max_size * taper, np.degrees(direction), shade)


def _draw_leaf(
    ink_map: Mask,
    base: NDArray[np.float64],
    tip: NDArray[np.float64],
    size: NDArray[np.float64],
    angle: float,
    shade: int,
) -> None:
    """Draw an ellipse with a vein of half its shade.

    Args:
        ink_map: Where to draw.
        base: x and y of its stalk.
        tip: x and y of the other end.
        size: Its length, which is the distance from base to tip, and its width, in pixels.
        angle: Its direction in degrees.
        shade: Its ink, from 0 to 255.
    """
    middle = (base + tip) / 2
    rotated_box = (middle.tolist(), size.tolist(), angle)
    cv2.ellipse(ink_map, rotated_box, shade, cv2.FILLED, cv2.LINE_AA)

    vein_start = base.astype(int).tolist()
    vein_end = tip.astype(int).tolist()
    vein_thickness = max(ink_map.shape[1] // 250, 1)
    cv2.line(ink_map, vein_start, vein_end, shade // 2, vein_thickness, cv2.LINE_AA)


def piano(random: Random, side: int, _lettering: Lettering) -> Mask:
    """The keys of a piano: black ones in twos and threes."""
    key_width = int(random.integers(6, max(side // 8, 7) + 1))  # of a white key
    height = int(key_width * random.uniform(3, 6))
    ink_map = np.zeros((height, side), np.uint8)
    ink_map[:, ::key_width] = 255  # the lines between white keys

    black_key_height = height * 3 // 5
    half_black_key = key_width // 3
    for number in range(1, side // key_width):
        if number % 7 in {0, 3}:  # between B and C, and between E and F
            continue
        x = number * key_width
        ink_map[:black_key_height, max(x - half_black_key, 0) : x + half_black_key] = 255
    return ink_map


def bookshelf(random: Random, side: int, lettering: Lettering) -> Mask:
    """Spines of books of different heights and shades, with titles along them."""
    height = max(int(side * random.uniform(0.4, 1)), 24)
    ink_map = np.full((height, side), 255, np.uint8)
    left = 0
    while left < side:
        width = int(side * random.uniform(0.03, 0.12)) + 3
        top = int(height * random.uniform(0, 0.3))
        ink_map[top:, left : left + width - 1] = int(random.integers(0, 220))

        # The title is drawn across a strip of two thirds of the spine's width, as long as the
        # spine, with four pixels free at both ends. Transposed, the strip runs down the spine.
        title_height = max(width * 2 // 3, 3)
        title = np.zeros((title_height, height - top), np.uint8)
        title_width = title.shape[1] - 8
        lettering.draw_line(random, title, x=4, y=0, height=title_height, width=title_width)

        # Its letters are taken out of the ink; the last spine may reach beyond the edge.
        title_left = left + width // 6
        area = ink_map[top:, title_left : title_left + title_height]
        letters = title.T[:, : area.shape[1]]
        area -= np.minimum(letters, area)
        left += width
    return ink_map
