"""Scenes: surfaces placed in an image, and the boxes of the visible symbols.

A symbol counts as visible, and is labelled, under these conditions:

- At least half of the symbol is in the image and uncovered, two of its corners are in the
  image, and its visible part is at least 5 pixels wide and high.
- A module is at least 0.7 pixels wide, and at least 0.65 to 0.95 standard deviations of the blur,
  by class; the symbol's longer side is at least 12 pixels long. Nothing smaller or less sharp is
  drawn, so every symbol drawn has a label.

A box is the axis-aligned hull of the visible part of the symbol, without its quiet zone.
"""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes import camera, negatives, surfaces
from codes.assets import Assets
from codes.surfaces import Surface
from codes.symbols import NAMES, Symbol, symbol
from codes.textures import Cover, Image, Random, colour
from codes.view import Bend, Points, Tilt, area_of, bent, blend, clipped, edge_points, fill, moved

MIN_SIDE = 12  # pixels of a symbol's longer side
SMALL, LARGE = 0.65, 1.5  # of the image's shorter side: the longest symbols of a crowd, and alone
MAX_SOURCE = 800  # pixels of a symbol before it is placed
MIN_MODULE, MIN_VISIBLE, MIN_BOX = 0.7, 0.5, 5
# Standard deviations of the blur in a module, by class: wide bars and markers' cells last longest.
MIN_SHARPNESS = (0.9, 0.9, 0.95, 0.65, 0.85, 0.65, 0.9)
WEIGHTS = np.array([0.15, 0.08, 0.18, 0.21, 0.15, 0.10, 0.13])  # of the classes
# By class: share of the smaller symbols that are on a sheet of several, their number, its columns.
SHEETS = {"aruco": (0.35, 24, 5), "data_matrix": (0.3, 24, 6)}
ATTEMPTS = 8
METHODS = (cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_NEAREST)


class Scene(NamedTuple):
    """An image with its labels.

    Attributes:
        image: BGR, `[H, W, 3]`, uint8.
        labels: Class ids, `[G]`, int64.
        boxes: xyxy in pixels, `[G, 4]`, float32.
    """

    picture: Image
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]


class _Seen(NamedTuple):
    """A symbol in the image: its class, its outline and its whole area, outside it too."""

    label: int
    outline: Points
    full: float


def render(
    seed: int, index: int, assets: Assets, height: int, width: int, *, symbols: bool = True
) -> Scene:
    """Render a scene, the same one for the same seed, index, size and assets.

    Args:
        seed: Seed of the series of scenes.
        index: Number in the series.
        assets: What it is made of.
        height: Height of the image.
        width: Width of the image.
        symbols: False for a scene with lookalikes only.
    """
    random = np.random.default_rng([seed, index])
    easel = _Easel(random, assets, height, width)
    count = int(symbols and random.random() < 0.93)
    if count and random.random() < 0.55:
        easel.add_symbol(alone=True)
        count = int(random.integers(0, 3))
    elif count:
        count += int(min(random.exponential(2.6), 11) * min(height * width / 330**2, 1.5))
    empty = not easel.seen and not count
    if empty and random.random() < 0.3:
        easel.add_decoy(alone=True)
    decoys = int(random.integers(1, 6)) if empty else 0
    decoys = decoys or int(random.integers(0, 4) * (random.random() < 0.6))
    for kind in random.permutation([True] * count + [False] * decoys):
        if kind:
            easel.add_symbol()
        else:
            easel.add_decoy()
    if random.random() < 0.15:
        easel.cover_some()
    labels, boxes = easel.labels()
    image = camera.photographed(random, easel.picture, easel.lens)
    if len(boxes) and random.random() < 0.05:
        image = camera.dimmed(random, image, boxes)
    return Scene(image, labels, boxes)


def generated(seed: int, index: int, assets: Assets, side: int) -> Scene:
    """An image of one symbol and next to nothing else, as programs write it.

    Its modules are whole pixels. It may be half as large again as the `side` it is scaled to, where
    its modules are still `MIN_MODULE` pixels wide.
    """
    random = np.random.default_rng([seed, index, 2])
    while True:
        made = symbol(random, str(random.choice(NAMES, p=WEIGHTS)))
        longest = max(made.cells.shape) + 2 * made.quiet
        if longest * MIN_MODULE < side and made.aspect * MIN_BOX < side:
            break
    low = int(np.ceil(MIN_SIDE / max(made.cells.shape)))
    most = max(side / longest * (1 if random.random() < 0.6 else 1.5), low)
    scale = int(low * (most / low) ** np.sqrt(random.random()))
    texture = assets.crop(random, 96, 96)
    surface = surfaces.label(random, made, scale, assets.lettering, texture, 0)
    lens = camera.Optics(0, 0, 0, 1, ideal=True)
    boxes = np.array([area.box for area in surface.areas], np.float32)
    image = camera.photographed(random, surface.picture, lens)
    return Scene(image, np.array([made.label], np.int64), boxes)


class _Easel:
    """An image in the making."""

    def __init__(self, random: Random, assets: Assets, height: int, width: int) -> None:
        self.random = random
        self.assets = assets
        self.picture = assets.crop(random, height, width)
        self.lens = camera.optics(random, min(height, width))
        if random.random() < (0.5 if self.lens.ideal else 0.06):
            self.picture[:] = colour(random, 180, 255)
        self.seen: list[_Seen] = []
        self.taken: Cover = np.zeros((height, width), np.uint8)  # 255 where a symbol is
        self.hidden: Cover = np.zeros((height, width), np.uint8)  # 255 where something covers one

    def add_symbol(self, *, alone: bool = False) -> None:
        """Put a label, a sheet or a screen into the image, if there is room for it.

        `alone` is the symbol that the image is of: large, perhaps larger than the image.
        """
        random = self.random
        tilt = Tilt(random, flat=self.lens.ideal or random.random() < 0.1)
        high = (LARGE if alone else SMALL) * min(self.taken.shape)
        for _ in range(ATTEMPTS):
            name = str(random.choice(NAMES, p=WEIGHTS))
            made = symbol(random, name)
            low = self._least_size(made, tilt)
            if low <= high:
                break
        else:
            return
        columns = max(made.cells.shape)
        if alone:
            size = max(random.uniform(0.15, 1) * high, low)
        else:
            size = float(low * (high / low) ** (random.random() ** 1.3))  # smaller ones more often
            if name == "data_matrix" and random.random() < 0.3:  # on parts, which are seen in rows
                size = max(random.uniform(18, 32), low)
        scale = int(np.clip(np.ceil(1.15 * size / columns), 2, max(MAX_SOURCE // columns, 2)))
        share, most, widest = SHEETS.get(name, (0.1, 8, 3))
        if random.random() < share and size < 130:
            count = int(random.integers(1, most + 1))
            others = [made] * count  # parts of one kind, each marked like the next
            if random.random() < 0.7:
                others = [symbol(random, name) for _ in range(count)]
            others = [other for other in others if self._least_size(other, tilt) <= size]
            side = int(random.integers(1, widest + 1))
            surface = surfaces.sheet(random, [made, *others], side, scale)
        else:
            texture = self.assets.crop(random, 96, 96)
            room = 1.5 * max(self.taken.shape) / size
            surface = surfaces.label(random, made, scale, self.assets.lettering, texture, room)
            if random.random() < 0.15:
                surface = surfaces.framed(random, surface, texture)
        self._place(surface, size / (columns * scale), tilt, alone=alone)

    def _least_size(self, made: Symbol, tilt: Tilt) -> float:
        """The longer side in pixels from which on a symbol can be recognised at all."""
        module = max(MIN_MODULE / self.lens.share, MIN_SHARPNESS[made.label] * self.lens.spread)
        longest = max(made.cells.shape) * module
        thin = (MIN_BOX + 1) * max(made.aspect, 1 / made.aspect)
        return float(max(MIN_SIDE, thin, longest) / tilt.least)

    def add_decoy(self, *, alone: bool = False) -> None:
        """Put something into the image that is not a symbol.

        `alone` is what the image is of: large, perhaps larger than the image.
        """
        random = self.random
        side = min(self.taken.shape)
        low, high = (side / 2, side * LARGE) if alone else (24, 0.9 * side)
        size = float(np.exp(random.uniform(np.log(low), np.log(high))))
        part = random.random()
        if part < 0.15:  # an image in the image
            crop = self.assets.crop(random, int(size), int(size * random.uniform(0.6, 1)) + 4)
            surface = Surface(crop, None, [])
        elif part < 0.35 and self.assets.things:
            surface = self.assets.thing(random, int(size))
        else:
            surface = negatives.negative(
                random, int(size), self.assets.lettering, self.assets.negatives
            )
        self._place(surface, 1.0, Tilt(random, flat=self.lens.ideal), alone=alone)

    def _place(self, surface: Surface, scale: float, tilt: Tilt, *, alone: bool = False) -> None:
        """Find a place where no symbol is covered and draw the surface there."""
        random = self.random
        height, width = self.taken.shape
        tall, wide = surface.picture.shape[:2]
        bend = Bend(random, wide, tall) if random.random() < 0.15 and not self.lens.ideal else None
        aim = surface.areas[0].box if surface.areas else (0, 0, wide, tall)
        middle = ((aim[0] + aim[2]) / 2, (aim[1] + aim[3]) / 2)
        least = MIN_VISIBLE + 0.02 if alone else 0.999 if random.random() < 0.6 else 0.55
        reach = float(np.hypot(wide, tall)) / 2
        margin = 0.2 if alone else 0.0  # of the image, without the middle of a symbol in it
        for _ in range(ATTEMPTS):
            spot = random.uniform(margin, 1 - margin, 2) * (width, height)
            matrix = tilt.matrix(middle, scale, spot, reach)
            quad = moved(matrix, np.array([(0, 0), (wide, 0), (wide, tall), (0, tall)], float))
            outlines = [moved(matrix, bent(bend, edge_points(area.box))) for area in surface.areas]
            if self._fits(quad, outlines, least):
                self._draw(surface, matrix, bend, quad)
                for area, outline in zip(surface.areas, outlines, strict=True):
                    if self._visible(outline) > 0:
                        seen = _Seen(area.label, outline, area_of(outline))
                        self.seen.append(seen)
                        fill(self.taken, outline)
                return

    def _fits(self, quad: Points, outlines: list[Points], least: float) -> bool:
        """Whether no symbol gets covered, and each new one is clearly visible or not at all."""
        shares = [self._visible(outline) for outline in outlines]
        if shares and (not max(shares) or any(0 < share < least for share in shares)):
            return False
        shade = np.zeros_like(self.taken)
        fill(shade, quad)
        return not cv2.countNonZero(cv2.bitwise_and(shade, self.taken))

    def _visible(self, outline: Points) -> float:
        """Share of an outline's area that is inside the image; little without two corners."""
        height, width = self.taken.shape
        inside = clipped(outline, width, height)
        if len(inside) < 3:
            return 0.0
        corners = outline[:: len(outline) // 4]
        shown = ((corners >= 0) & (corners <= (width, height))).all(1).sum()
        share = area_of(inside) / max(area_of(outline), 1e-6)
        return share if shown >= 2 else min(share, MIN_VISIBLE / 2)

    def _draw(self, surface: Surface, matrix: Points, bend: Bend | None, quad: Points) -> None:
        """Warp a surface into the image, only where it will be."""
        height, width = self.taken.shape
        x0, y0 = np.maximum(np.floor(quad.min(0)).astype(int) - 1, 0)
        x1, y1 = np.minimum(np.ceil(quad.max(0)).astype(int) + 2, (width, height))
        if x1 <= x0 or y1 <= y0:
            return
        source, cover = surface.picture, surface.cover
        if cover is None:
            cover = np.full(source.shape[:2], 255, np.uint8)
        if bend is not None:
            source, cover = bend.applied(source), bend.applied(cover)
        shrink = np.sqrt(max(area_of(quad), 1.0) / (source.shape[0] * source.shape[1]))
        method = METHODS[self.random.choice(3, p=[0.75, 0.13, 0.12])]
        if shrink < 0.8 and method != cv2.INTER_NEAREST:  # linear sampling would skip source pixels
            source = cv2.GaussianBlur(source, (0, 0), 0.35 / shrink)
        local = np.array([[1, 0, -x0], [0, 1, -y0], [0, 0, 1]], float) @ matrix
        size = (int(x1 - x0), int(y1 - y0))
        warped = cv2.warpPerspective(
            source, local, size, flags=method, borderMode=cv2.BORDER_REPLICATE
        )
        alpha = cv2.warpPerspective(cover, local, size, flags=cv2.INTER_LINEAR)
        part = self.picture[y0:y1, x0:x1]
        if self.random.random() < 0.3:  # a soft shadow on what is below
            dark = cv2.GaussianBlur(np.roll(alpha, 3, (0, 1)), (0, 0), 3) // 3
            part[:] = cv2.multiply(part, cv2.merge([255 - dark] * 3), scale=1 / 255)
        part[:] = blend(part, warped, alpha)

    def cover_some(self) -> None:
        """Lay fingers, tape or stickers over up to half of some symbols."""
        random = self.random
        for seen in self.seen:
            if random.random() < 0.5:
                continue
            middle = seen.outline[random.integers(len(seen.outline))]
            reach = np.sqrt(seen.full) * random.uniform(0.1, 0.45)
            shade = np.zeros_like(self.hidden)
            axes = (reach * random.uniform(0.4, 1.6, 2)).tolist()
            box = (middle.tolist(), axes, random.uniform(0, 180))
            if random.random() < 0.5:
                cv2.ellipse(shade, box, 255, cv2.FILLED)
            else:
                cv2.fillConvexPoly(shade, cv2.boxPoints(box).astype(np.int32), 255)
            both = cv2.bitwise_or(shade, self.hidden)
            if all(self._uncovered(other, both) > MIN_VISIBLE for other in self.seen):
                self.hidden = both
                self.picture[shade > 0] = colour(random).astype(np.uint8)

    def _uncovered(self, seen: _Seen, hidden: Cover) -> float:
        own = np.zeros_like(hidden)
        fill(own, seen.outline)
        return cv2.countNonZero(cv2.subtract(own, hidden)) / max(seen.full, 1e-6)

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Class ids `[G]` and boxes `[G, 4]` of what is visible."""
        height, width = self.taken.shape
        labels, boxes = [], []
        for seen in self.seen:
            inside = np.clip(clipped(seen.outline, width, height), 0, (width, height))
            box = [*inside.min(0), *inside.max(0)]
            own = np.zeros_like(self.hidden)
            fill(own, seen.outline)
            if cv2.countNonZero(cv2.bitwise_and(own, self.hidden)):
                x, y, wide, tall = cv2.boundingRect(cv2.subtract(own, self.hidden))
                box = [max(box[0], x), max(box[1], y), min(box[2], x + wide), min(box[3], y + tall)]
            if min(box[2] - box[0], box[3] - box[1]) >= MIN_BOX:
                labels.append(seen.label)
                boxes.append(box)
        return np.array(labels, np.int64), np.array(boxes, np.float32).reshape(-1, 4)
