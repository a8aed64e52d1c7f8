"""Procedural backgrounds (grain, boards, weaves, tiles, gradients, text) and lines of text."""

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# Any: OpenCV annotates its results as arrays of some number type.
Image = NDArray[Any]  # uint8, [H, W, 3]; the order of colours does not matter, all are random
Cover = NDArray[Any]  # uint8, [H, W], 255 where there is ink
Field = NDArray[Any]  # float32, [H, W], about 0 to 1
Random = np.random.Generator

LINE_HEIGHT = 64  # pixels of a stored line of text
LINES = 320
LETTERS = np.array(list("aaabcdeeeeefghiiijklmnnnoooprrrssstttuuvwyzABCDEGHKLMNPRSTW"))
FIGURES = np.array(list("0123456789"))


class Lettering:
    """A store of text lines.

    Args:
        random: Where the words come from.
        fonts: Names or files of `cv2.FontFace` and the weights (100 to 800) to draw each with.
    """

    def __init__(self, random: Random, fonts: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
        faces = [(cv2.FontFace(name), weight) for name, weights in fonts for weight in weights]
        self.lines = []
        for number in range(LINES):
            face, weight = faces[number % len(faces)]
            self.lines.append(_drawn(_words(random), face, weight))

    def line(self, random: Random, cover: Cover, x: int, y: int, height: int, width: int) -> None:
        """Draw a line of text into a cover, its top left at (x, y), cut at `width` pixels."""
        stored = self.lines[random.integers(len(self.lines))]
        scale = height / LINE_HEIGHT
        width = min(width, int(stored.shape[1] * scale), cover.shape[1] - x)
        height = min(height, cover.shape[0] - y)
        if width < 2 or height < 3 or x < 0 or y < 0:
            return
        source = stored[:, : max(int(width / scale), 1)]
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        area = cover[y : y + height, x : x + width]
        np.maximum(area, cv2.resize(source, (width, height), interpolation=method), out=area)


def _words(random: Random) -> str:
    count = int(random.integers(1, 12))
    words = []
    for _ in range(count):
        alphabet = FIGURES if random.random() < 0.2 else LETTERS
        words.append("".join(random.choice(alphabet, int(random.integers(1, 10)))))
    text = " ".join(words)
    return text.upper() if random.random() < 0.25 else text


def _drawn(text: str, face: cv2.FontFace, weight: int) -> Cover:
    size = LINE_HEIGHT * 3 // 4
    cover = np.zeros((LINE_HEIGHT, size * len(text) + size, 3), np.uint8)
    end, _ = cv2.putText(
        cover, text, (2, size), (255, 255, 255), face, size, weight, cv2.PUT_TEXT_ALIGN_LEFT
    )
    del end
    columns = np.flatnonzero(cover[..., 0].any(0))
    return np.ascontiguousarray(cover[:, : columns[-1] + 2 if len(columns) else 2, 0])


def cloud(random: Random, side: int, coarse: float = 4.0, octaves: int = 4) -> Field:
    """Noise summed over octaves, each half as strong as the coarser one before; from 0 to 1."""
    field = np.zeros((side, side), np.float32)
    for octave in range(octaves):
        cells = max(int(coarse * 2**octave), 2)
        layer = random.random((min(cells, side), min(cells, side)), np.float32)
        field += cv2.resize(layer, (side, side), interpolation=cv2.INTER_CUBIC) / 2**octave
    return cv2.normalize(field, field, 0, 1, cv2.NORM_MINMAX)


def between(field: Field, first: Field, second: Field) -> Image:
    """Colours between two, `[3]` each, by a field from 0 to 1."""
    return tinted((np.clip(field, 0, 1) * 255).astype(np.uint8), first, second)


def tinted(levels: Cover, first: Field, second: Field) -> Image:
    """Colours between two, `[3]` each, by levels `[H, W]` from 0 to 255."""
    share = np.linspace(0, 1, 256)[:, None]  # [256, 1]
    steps = np.clip(first + share * (second - first), 0, 255).astype(np.uint8)  # [256, 3]
    return cv2.LUT(cv2.merge([levels] * 3), steps.reshape(1, 256, 3))


def colour(random: Random, low: float = 0, high: float = 255) -> Field:
    """A colour `[3]`, more often muted than saturated."""
    grey = random.uniform(low, high)
    spread = abs(random.normal(0, 35))
    return np.clip(grey + random.uniform(-spread, spread, 3), 0, 255).astype(np.float32)


def _grain(random: Random, side: int) -> Image:
    first, second = colour(random), colour(random)
    field = cloud(random, side, random.uniform(2, 30), int(random.integers(2, 6)))
    return between(field, first, first + (second - first) * random.uniform(0.1, 1))


def _boards(random: Random, side: int) -> Image:
    """Wood: rings stretched along the board, with a seam every so often."""
    rings = cloud(random, side, 3, 3)
    rings = cv2.resize(rings[:, : side // 12], (side, side), interpolation=cv2.INTER_LINEAR)
    field = (np.sin(rings * random.uniform(20, 90)) + 1) / 2
    dark = colour(random, 20, 140)
    image = between(field.astype(np.float32), dark, dark + random.uniform(10, 60))
    seam = int(random.integers(60, 300))
    for y in range(int(random.integers(seam)), side, seam):
        cv2.line(image, (0, y), (side, y), (dark * 0.5).tolist(), int(random.integers(1, 4)))
    return image


def _weave(random: Random, side: int) -> Image:
    y, x = np.mgrid[:side, :side].astype(np.float32)
    pitch = random.uniform(6, 40)
    warp = np.sin(2 * np.pi * x / pitch)
    weft = np.sin(2 * np.pi * y / (pitch * random.uniform(0.5, 2)))
    field = (warp * weft if random.random() < 0.5 else warp * 0.5 + weft * 0.5) / 2 + 0.5
    return between(field, colour(random), colour(random))


def _tiles(random: Random, side: int) -> Image:
    joint = colour(random)
    image = np.empty((side, side, 3), np.uint8)
    image[:] = joint
    width, height = random.integers(30, 200, 2)
    gap = int(random.integers(1, 7))
    base, spread = colour(random), random.uniform(0, 40)
    for row, y in enumerate(range(0, side, int(height))):
        shift = int(width) // 2 if row % 2 and spread > 20 else 0
        for x in range(-shift, side, int(width)):
            tint = np.clip(base + random.uniform(-spread, spread), 0, 255).tolist()
            corner = (x + int(width) - gap, y + int(height) - gap)
            cv2.rectangle(image, (x, y), corner, tint, cv2.FILLED)
    return image


def _gradient(random: Random, side: int) -> Image:
    y, x = np.mgrid[:side, :side].astype(np.float32) / side
    angle = random.uniform(0, 2 * np.pi)
    field = np.clip((x - 0.5) * np.cos(angle) + (y - 0.5) * np.sin(angle) + 0.5, 0, 1)
    return between(field, colour(random), colour(random))


def _heap(random: Random, side: int) -> Image:
    """Overlapping shapes, like things scattered on a table."""
    image = _gradient(random, side)
    for _ in range(int(random.integers(15, 90))):
        centre = random.integers(0, side, 2).tolist()
        axes = random.integers(10, 160, 2)
        tint = colour(random).tolist()
        turn = random.uniform(0, 180)
        if random.random() < 0.5:
            cv2.ellipse(image, centre, axes.tolist(), turn, 0, 360, tint, cv2.FILLED, cv2.LINE_AA)
        else:
            corners = cv2.boxPoints((centre, (2 * axes).tolist(), turn)).astype(np.int32)
            cv2.fillPoly(image, [corners], tint, cv2.LINE_AA)
    return image


def _marble(random: Random, side: int) -> Image:
    field = cloud(random, side, 3, 6) * random.uniform(4, 14)
    veins = np.abs(np.sin(field + cloud(random, side, 8, 3) * 3)) ** random.uniform(0.3, 3)
    return between(veins, colour(random), colour(random))


def _gravel(random: Random, side: int) -> Image:
    image = np.empty((side, side, 3), np.uint8)
    image[:] = colour(random, 0, 90)
    size = random.uniform(4, 25)
    base = colour(random, 60, 220)
    for _ in range(int(min((side / size) ** 2, 2500))):
        centre = random.integers(0, side, 2).tolist()
        axes = (random.uniform(0.5, 1.2, 2) * size).astype(int).tolist()
        tint = np.clip(base + random.normal(0, 35), 0, 255).tolist()
        cv2.ellipse(image, centre, axes, random.uniform(0, 180), 0, 360, tint, cv2.FILLED)
    return image


def warped(random: Random, image: Image) -> Image:
    """Another view of a photograph: waved, upside down, its colours exchanged or inverted."""
    height, width = image.shape[:2]
    reach = random.uniform(0, 0.12) * min(height, width)
    shift = [cv2.resize(cloud(random, 64, 2, 3), (width, height)) * 2 - 1 for _ in range(2)]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    out = cv2.remap(
        image,
        x + shift[0] * np.float32(reach),
        y + shift[1] * np.float32(reach),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    out = out[::-1] if random.random() < 0.3 else out
    out = out[..., random.permutation(3)] if random.random() < 0.3 else out
    return np.ascontiguousarray(255 - out if random.random() < 0.1 else out)


def collage(random: Random, parts: list[Image], side: int) -> Image:
    """Shapes cut from images over each other, larger ones below: edges of every kind."""
    image = np.ascontiguousarray(parts[random.integers(len(parts))][:side, :side])
    height, width = image.shape[:2]
    for size in np.sort(np.exp(random.uniform(np.log(16), np.log(side / 2), 60)))[::-1].astype(int):
        part = parts[random.integers(len(parts))]
        zoom = random.uniform(0.4, 1)
        cut = max(int(size * zoom), 4)
        top, left = (int(random.integers(have - cut + 1)) for have in part.shape[:2])
        patch = cv2.resize(part[top : top + cut, left : left + cut], (int(size), int(size)))
        y, x = int(random.integers(height - size)), int(random.integers(width - size))
        mask = np.zeros((size, size), np.uint8)
        box = (
            (size / 2, size / 2),
            tuple(random.uniform(0.3, 1, 2) * size),
            random.uniform(0, 180),
        )
        if random.random() < 0.5:
            cv2.ellipse(mask, box, 255, cv2.FILLED)
        else:
            cv2.fillConvexPoly(mask, cv2.boxPoints(box).astype(np.int32), 255)
        cv2.copyTo(patch, mask, image[y : y + size, x : x + size])
    return image


TRAINING: tuple[Callable[[Random, int], Image], ...] = (
    _grain, _boards, _weave, _tiles, _gradient, _heap,
)  # fmt: skip
HELD_OUT: tuple[Callable[[Random, int], Image], ...] = (_marble, _gravel, _heap, _grain)


def page(random: Random, side: int, lettering: Lettering) -> Image:
    """A page of text in one or more columns, with headings and an occasional rule."""
    paper, ink = colour(random, 170, 255), colour(random, 0, 110)
    if random.random() < 0.15:
        paper, ink = ink, paper
    cover = np.zeros((side, side), np.uint8)
    columns = int(random.integers(1, 4))
    size = int(random.integers(9, 30))
    width = side // columns
    for column in range(columns):
        y = int(random.integers(0, 3 * size))
        while y < side:
            head = random.random() < 0.07
            height = size * (2 if head else 1)
            left = column * width + size // 2
            lettering.line(
                random, cover, left, y, height, int(width * random.uniform(0.5, 1)) - size
            )
            y += int(height * random.choice([1.3, 1.5, 2.5], p=[0.5, 0.4, 0.1]))
    return tinted(cover, paper, ink)
