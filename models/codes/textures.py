"""Procedural backgrounds (grain, boards, weaves, tiles, gradients, text) and lines of text."""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Any: OpenCV annotates its results as arrays of some number type.
Image = NDArray[Any]  # uint8, [H, W, 3]; the order of colours does not matter, all are random
Mask = NDArray[Any]  # uint8, [H, W], 255 where there is ink, or where something is opaque
Field = NDArray[Any]  # float32, [H, W], about 0 to 1
Random = np.random.Generator

LINE_HEIGHT = 64  # pixels of a stored line of text
LINES = 320
LETTERS = np.array(list("aaabcdeeeeefghiiijklmnnnoooprrrssstttuuvwyzABCDEGHKLMNPRSTW"))
FIGURES = np.array(list("0123456789"))


class Lettering:
    """A stock of rendered text lines.

    Args:
        random: Where the words come from.
        fonts: Names or files of `cv2.FontFace` and the weights (100 to 800) to draw each with.
    """

    def __init__(self, random: Random, fonts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        faces = []
        for name, weights in fonts:
            for weight in weights:
                faces.append((cv2.FontFace(name), weight))

        self.lines = []
        for number in range(LINES):
            face, weight = faces[number % len(faces)]
            self.lines.append(_rendered_line(_random_words(random), face, weight))

    def draw_line(
        self, random: Random, ink_map: Mask, *, x: int, y: int, height: int, width: int
    ) -> None:
        """Draw a line of the stock, picked at random, with its top left corner at (x, y).

        The line is cut off after `width` pixels and at the edges of the map. Nothing is drawn if
        less than 2 x 3 pixels would be left of it, or if the corner is outside the map.
        """
        stored_line = self.lines[random.integers(len(self.lines))]
        scale = height / LINE_HEIGHT
        scaled_width = int(stored_line.shape[1] * scale)
        drawn_width = min(width, scaled_width, ink_map.shape[1] - x)
        drawn_height = min(height, ink_map.shape[0] - y)
        if drawn_width < 2 or drawn_height < 3 or x < 0 or y < 0:
            return

        visible_part = stored_line[:, : max(int(drawn_width / scale), 1)]
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        scaled_line = cv2.resize(
            visible_part, (drawn_width, drawn_height), interpolation=interpolation
        )

        area = ink_map[y : y + drawn_height, x : x + drawn_width]
        np.maximum(area, scaled_line, out=area)


def _random_words(random: Random) -> str:
    """One to eleven words or numbers; one line in four is in capitals."""
    count = int(random.integers(1, 12))
    words = []
    for _ in range(count):
        alphabet = FIGURES if random.random() < 0.2 else LETTERS
        words.append("".join(random.choice(alphabet, int(random.integers(1, 10)))))

    text = " ".join(words)
    if random.random() < 0.25:
        text = text.upper()
    return text


def _rendered_line(text: str, face: cv2.FontFace, weight: int) -> Mask:
    """The text as a mask `[LINE_HEIGHT, W]` that ends one pixel after the last letter."""
    font_size = LINE_HEIGHT * 3 // 4
    max_width = font_size * (len(text) + 1)  # as if letters were as wide as they are high
    canvas = np.zeros((LINE_HEIGHT, max_width, 3), np.uint8)
    left_of_baseline = (2, font_size)
    white = (255, 255, 255)
    cv2.putText(
        canvas, text, left_of_baseline, white, face, font_size, weight, cv2.PUT_TEXT_ALIGN_LEFT
    )

    inked_columns = np.flatnonzero(canvas[..., 0].any(0))
    width = 2  # where nothing was drawn
    if len(inked_columns):
        width = inked_columns[-1] + 2
    return np.ascontiguousarray(canvas[:, :width, 0])


def cloud(random: Random, side: int, coarse: float = 4.0, octaves: int = 4) -> Field:
    """Noise summed over octaves, each half as strong as the coarser one before; from 0 to 1.

    `coarse` is the number of noise cells along a side in the coarsest octave.
    """
    field = np.zeros((side, side), np.float32)
    for octave in range(octaves):
        cells = max(int(coarse * 2**octave), 2)
        noise = random.random((min(cells, side), min(cells, side)), np.float32)
        field += cv2.resize(noise, (side, side), interpolation=cv2.INTER_CUBIC) / 2**octave
    return cv2.normalize(field, field, 0, 1, cv2.NORM_MINMAX)


def between(field: Field, first: Field, second: Field) -> Image:
    """An image whose colours run from the first `[3]` (field 0) to the second `[3]` (field 1)."""
    levels = (np.clip(field, 0, 1) * 255).astype(np.uint8)
    return tinted(levels, first, second)


def tinted(levels: Mask, first: Field, second: Field) -> Image:
    """An image whose colours run from the first `[3]` (level 0) to the second `[3]` (level 255)."""
    share_of_second = np.linspace(0, 1, 256)[:, None]  # [256, 1]
    colours = np.clip(first + share_of_second * (second - first), 0, 255)  # [256, 3]
    lookup_table = colours.astype(np.uint8).reshape(1, 256, 3)
    return cv2.LUT(cv2.merge([levels] * 3), lookup_table)


def colour(random: Random, low: float = 0, high: float = 255) -> Field:
    """A colour `[3]`, more often muted than saturated."""
    grey = random.uniform(low, high)
    spread = abs(random.normal(0, 35))
    return np.clip(grey + random.uniform(-spread, spread, 3), 0, 255).astype(np.float32)


def _grain(random: Random, side: int) -> Image:
    """Speckles of two similar colours: plaster, paper, stone."""
    first = colour(random)
    second = colour(random)
    field = cloud(random, side, random.uniform(2, 30), int(random.integers(2, 6)))
    contrast = random.uniform(0.1, 1)
    return between(field, first, first + (second - first) * contrast)


def _boards(random: Random, side: int) -> Image:
    """Wood: rings stretched along the board, with a seam every so often."""
    rings = cloud(random, side, 3, 3)
    rings = cv2.resize(rings[:, : side // 12], (side, side), interpolation=cv2.INTER_LINEAR)
    field = (np.sin(rings * random.uniform(20, 90)) + 1) / 2
    dark = colour(random, 20, 140)
    image = between(field.astype(np.float32), dark, dark + random.uniform(10, 60))

    board_height = int(random.integers(60, 300))
    first_seam = int(random.integers(board_height))
    for y in range(first_seam, side, board_height):
        cv2.line(image, (0, y), (side, y), (dark * 0.5).tolist(), int(random.integers(1, 4)))
    return image


def _weave(random: Random, side: int) -> Image:
    """Cloth of two colours: waves across and along, multiplied or added."""
    y, x = np.mgrid[:side, :side].astype(np.float32)
    pitch = random.uniform(6, 40)
    warp = np.sin(2 * np.pi * x / pitch)
    weft = np.sin(2 * np.pi * y / (pitch * random.uniform(0.5, 2)))
    if random.random() < 0.5:
        threads = warp * weft
    else:
        threads = warp * 0.5 + weft * 0.5
    field = threads / 2 + 0.5
    return between(field, colour(random), colour(random))


def _tiles(random: Random, side: int) -> Image:
    """Tiles of one size and similar shades, in rows or as bricks are laid."""
    joint_colour = colour(random)
    image = np.empty((side, side, 3), np.uint8)
    image[:] = joint_colour

    tile_width, tile_height = random.integers(30, 200, 2).tolist()
    joint = int(random.integers(1, 7))
    base_colour = colour(random)
    spread = random.uniform(0, 40)
    is_brickwork = spread > 20  # so half of the walls, those whose tiles differ more

    for row, y in enumerate(range(0, side, tile_height)):
        shift = 0
        if is_brickwork and row % 2:
            shift = tile_width // 2
        for x in range(-shift, side, tile_width):
            tile_colour = np.clip(base_colour + random.uniform(-spread, spread), 0, 255)
            corner = (x + tile_width - joint, y + tile_height - joint)
            cv2.rectangle(image, (x, y), corner, tile_colour.tolist(), cv2.FILLED)
    return image


def _gradient(random: Random, side: int) -> Image:
    """Two colours that run into each other in some direction."""
    y, x = np.mgrid[:side, :side].astype(np.float32) / side
    angle = random.uniform(0, 2 * np.pi)
    field = np.clip((x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) + 0.5, 0, 1)
    return between(field, colour(random), colour(random))


def _heap(random: Random, side: int) -> Image:
    """Overlapping ellipses and rectangles, like objects scattered on a table."""
    image = _gradient(random, side)
    for _ in range(int(random.integers(15, 90))):
        centre = random.integers(0, side, 2).tolist()
        half_size = random.integers(10, 160, 2)
        fill_colour = colour(random).tolist()
        angle = random.uniform(0, 180)  # degrees

        if random.random() < 0.5:
            cv2.ellipse(
                image,
                centre,
                axes=half_size.tolist(),
                angle=angle,
                startAngle=0,
                endAngle=360,
                color=fill_colour,
                thickness=cv2.FILLED,
                lineType=cv2.LINE_AA,
            )
        else:
            size = (2 * half_size).tolist()
            corners = cv2.boxPoints((centre, size, angle)).astype(np.int32)
            cv2.fillPoly(image, [corners], fill_colour, cv2.LINE_AA)
    return image


def _marble(random: Random, side: int) -> Image:
    """Veins in stone: a sine of noise that is bent by more noise."""
    field = cloud(random, side, 3, 6) * random.uniform(4, 14)
    veins = np.abs(np.sin(field + cloud(random, side, 8, 3) * 3)) ** random.uniform(0.3, 3)
    return between(veins, colour(random), colour(random))


def _gravel(random: Random, side: int) -> Image:
    """Pebbles of similar size and shade on dark ground."""
    image = np.empty((side, side, 3), np.uint8)
    image[:] = colour(random, 0, 90)
    size = random.uniform(4, 25)
    base_colour = colour(random, 60, 220)
    for _ in range(int(min((side / size) ** 2, 2500))):
        centre = random.integers(0, side, 2).tolist()
        axes = (random.uniform(0.5, 1.2, 2) * size).astype(int).tolist()
        pebble_colour = np.clip(base_colour + random.normal(0, 35), 0, 255).tolist()
        angle = random.uniform(0, 180)
        cv2.ellipse(image, centre, axes, angle, 0, 360, pebble_colour, cv2.FILLED)
    return image


def warped(random: Random, image: Image) -> Image:
    """Another view of a photograph: waved, upside down, its colours exchanged or inverted."""
    height, width = image.shape[:2]
    max_shift = random.uniform(0, 0.12) * min(height, width)
    shift_x = _wave_field(random, height, width) * np.float32(max_shift)
    shift_y = _wave_field(random, height, width) * np.float32(max_shift)

    y, x = np.mgrid[:height, :width].astype(np.float32)
    view = cv2.remap(
        image, x + shift_x, y + shift_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )

    if random.random() < 0.3:
        view = view[::-1]
    if random.random() < 0.3:
        view = view[..., random.permutation(3)]
    if random.random() < 0.1:
        view = 255 - view
    return np.ascontiguousarray(view)


def _wave_field(random: Random, height: int, width: int) -> Field:
    """Smooth noise `[height, width]` from -1 to 1."""
    return cv2.resize(cloud(random, 64, 2, 3), (width, height)) * 2 - 1


def collage(random: Random, sources: list[Image], side: int) -> Image:
    """Shapes cut from images over each other, larger ones below: edges of every kind."""
    image = np.ascontiguousarray(sources[random.integers(len(sources))][:side, :side])
    height, width = image.shape[:2]
    # The logarithm is uniform, so that small shapes are as likely as large ones.
    sizes = np.sort(np.exp(random.uniform(np.log(16), np.log(side / 2), 60)))[::-1]

    for size in sizes.astype(int).tolist():
        source = sources[random.integers(len(sources))]
        crop_side = max(int(size * random.uniform(0.4, 1)), 4)
        top = int(random.integers(source.shape[0] - crop_side + 1))
        left = int(random.integers(source.shape[1] - crop_side + 1))
        crop = source[top : top + crop_side, left : left + crop_side]
        patch = cv2.resize(crop, (size, size))

        y = int(random.integers(height - size))
        x = int(random.integers(width - size))
        shape_mask = _ellipse_or_rectangle(random, size)
        cv2.copyTo(patch, shape_mask, image[y : y + size, x : x + size])
    return image


def _ellipse_or_rectangle(random: Random, size: int) -> Mask:
    """A mask `[size, size]` of a rotated shape in its middle, whose corners may be cut off."""
    mask = np.zeros((size, size), np.uint8)
    sides = random.uniform(0.3, 1, 2) * size
    angle = random.uniform(0, 180)
    rotated_box = ((size / 2, size / 2), tuple(sides), angle)
    if random.random() < 0.5:
        cv2.ellipse(mask, rotated_box, 255, cv2.FILLED)
    else:
        cv2.fillConvexPoly(mask, cv2.boxPoints(rotated_box).astype(np.int32), 255)
    return mask


TRAINING: tuple[Callable[[Random, int], Image], ...] = (
    _grain, _boards, _weave, _tiles, _gradient, _heap,
)  # fmt: skip
HELD_OUT: tuple[Callable[[Random, int], Image], ...] = (_marble, _gravel, _heap, _grain)


def page(random: Random, side: int, lettering: Lettering) -> Image:
    """A page of text in one to three columns, with an occasional heading twice as high."""
    paper = colour(random, 170, 255)
    ink = colour(random, 0, 110)
    if random.random() < 0.15:
        paper, ink = ink, paper

    ink_map = np.zeros((side, side), np.uint8)
    columns = int(random.integers(1, 4))
    text_height = int(random.integers(9, 30))
    column_width = side // columns
    for column in range(columns):
        left = column * column_width + text_height // 2
        y = int(random.integers(0, 3 * text_height))
        while y < side:
            is_heading = random.random() < 0.07
            height = 2 * text_height if is_heading else text_height
            width = int(column_width * random.uniform(0.5, 1)) - text_height
            lettering.draw_line(random, ink_map, x=left, y=y, height=height, width=width)

            line_spacing = random.choice([1.3, 1.5, 2.5], p=[0.5, 0.4, 0.1])
            y += int(height * line_spacing)
    return tinted(ink_map, paper, ink)
