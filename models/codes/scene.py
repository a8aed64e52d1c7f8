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
from codes.textures import Image, Mask, Random, colour
from codes.view import (
    Bend,
    Homography,
    Points,
    Tilt,
    area_of,
    bent,
    blend,
    clipped,
    edge_points,
    fill,
    moved,
)

MIN_SIDE = 12  # pixels of a symbol's longer side
# The longest that a symbol may be, as a share of the image's shorter side: among others, and in a
# close-up, which may reach beyond the image.
MAX_CROWD_SHARE, MAX_CLOSE_UP_SHARE = 0.65, 1.5
MAX_SOURCE = 800  # pixels of a symbol before it is placed
MIN_MODULE, MIN_VISIBLE, MIN_BOX = 0.7, 0.5, 5
# Standard deviations of the blur in a module, by class: wide bars and markers' cells last longest.
MIN_SHARPNESS = (0.9, 0.9, 0.95, 0.65, 0.85, 0.65, 0.9)
WEIGHTS = np.array([0.15, 0.08, 0.18, 0.21, 0.15, 0.10, 0.13])  # of the classes
MAX_SHEET_SYMBOL = 130  # pixels; larger symbols are never on a sheet of several
MATERIAL_SIDE = 96  # pixels of the texture that a label may be printed on
ATTEMPTS = 8
INTERPOLATIONS = (cv2.INTER_LINEAR, cv2.INTER_CUBIC, cv2.INTER_NEAREST)

# How likely each of these is.
SYMBOLS_CHANCE = 0.93  # that there are symbols in an image that may have some
CLOSE_UP_CHANCE = 0.55  # that an image with symbols is a close-up of one
LARGE_DECOY_CHANCE = 0.3  # that an image without symbols is a close-up of a decoy
COVER_CHANCE = 0.15  # that things lie on parts of symbols
DIM_CHANCE = 0.05  # that an image with symbols is so dark that they are barely visible
PICTURE_CHANCE, CUTOUT_CHANCE = 0.15, 0.2  # that a decoy is a picture, or an object cut out
BEND_CHANCE = 0.15  # that a surface is bent around a cylinder
SHADOW_CHANCE = 0.3  # that a surface casts a shadow
FRAME_CHANCE = 0.15  # that a label is on a box or on a screen


class SheetRule(NamedTuple):
    """How often symbols of a class are on a sheet of several, and how large that is.

    Attributes:
        share: Probability that a small enough symbol is on a sheet.
        max_others: The most symbols besides the first.
        max_columns: The most columns.
    """

    share: float
    max_others: int
    max_columns: int


SHEETS = {"aruco": SheetRule(0.35, 24, 5), "data_matrix": SheetRule(0.3, 24, 6)}
OTHER_SHEETS = SheetRule(0.1, 8, 3)


class Scene(NamedTuple):
    """An image with its labels.

    Attributes:
        image: BGR, `[H, W, 3]`, uint8.
        labels: Class ids, `[G]`, int64.
        boxes: xyxy in pixels, `[G, 4]`, float32.
    """

    image: Image
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]


class _PlacedSymbol(NamedTuple):
    """A symbol in the image.

    Attributes:
        label: Class id.
        outline: Points around the whole symbol, even where it reaches beyond the image.
        area: Pixels inside the outline.
    """

    label: int
    outline: Points
    area: float


def render(
    seed: int, index: int, assets: Assets, height: int, width: int, *, symbols: bool = True
) -> Scene:
    """Render a scene, the same one for the same seed, index, size and assets.

    Args:
        seed: Seed of the series of scenes.
        index: Number in the series.
        assets: Backgrounds, lookalikes and text that it is composed of.
        height: Height of the image.
        width: Width of the image.
        symbols: False for a scene with lookalikes only.
    """
    random = np.random.default_rng([seed, index])
    easel = _Easel(random, assets, height, width)

    symbol_count = 0
    if symbols and random.random() < SYMBOLS_CHANCE:
        if random.random() < CLOSE_UP_CHANCE:
            easel.add_symbol(close_up=True)
            symbol_count = int(random.integers(0, 3))  # smaller ones around it
        else:
            symbol_count = _crowd_size(random, height, width)

    is_empty = not easel.placed and symbol_count == 0
    if is_empty and random.random() < LARGE_DECOY_CHANCE:
        easel.add_decoy(close_up=True)
    decoy_count = _decoy_count(random, is_empty=is_empty)

    for is_symbol in random.permutation([True] * symbol_count + [False] * decoy_count):
        if is_symbol:
            easel.add_symbol()
        else:
            easel.add_decoy()
    if random.random() < COVER_CHANCE:
        easel.cover_some()

    labels, boxes = easel.labels()
    image = camera.photographed(random, easel.image, easel.lens)
    if len(boxes) and random.random() < DIM_CHANCE:
        image = camera.dimmed(random, image, boxes)
    return Scene(image, labels, boxes)


def _crowd_size(random: Random, height: int, width: int) -> int:
    """How many symbols an image without a close-up has: one or more, on large images more."""
    further = min(random.exponential(2.6), 11)
    area_factor = min(height * width / 330**2, 1.5)
    return 1 + int(further * area_factor)


def _decoy_count(random: Random, *, is_empty: bool) -> int:
    """How many decoys to add: one to five where there is no symbol, else none to three."""
    if is_empty:
        return int(random.integers(1, 6))
    count = int(random.integers(0, 4))
    return count if random.random() < 0.6 else 0


def generated(seed: int, index: int, assets: Assets, side: int) -> Scene:
    """An image of one symbol with little around it, as programs write it.

    Each module is a whole number of pixels. The image may be up to 1.5 times as large as `side`:
    the caller scales it down to fit, and modules are still `MIN_MODULE` pixels wide after that.
    """
    random = np.random.default_rng([seed, index, 2])  # the 2 sets it apart from other series
    while True:
        main_symbol = symbol(random, str(random.choice(NAMES, p=WEIGHTS)))
        modules = max(main_symbol.cells.shape)
        modules_with_quiet = modules + 2 * main_symbol.quiet
        modules_fit = modules_with_quiet * MIN_MODULE < side
        # A symbol as wide as the image is `side / aspect` pixels high.
        is_high_enough = main_symbol.aspect * MIN_BOX < side
        if modules_fit and is_high_enough:
            break

    # Pixels of a module: from the fewest allowed to the most that fit, larger ones more often.
    min_scale = int(np.ceil(MIN_SIDE / modules))
    max_scale = side / modules_with_quiet
    may_exceed_side = random.random() >= 0.6
    if may_exceed_side:
        max_scale *= 1.5
    max_scale = max(max_scale, min_scale)
    scale = int(min_scale * (max_scale / min_scale) ** np.sqrt(random.random()))

    texture = assets.crop(random, MATERIAL_SIDE, MATERIAL_SIDE)
    surface = surfaces.label(random, main_symbol, scale, assets.lettering, texture, room=0)
    boxes = np.array([area.box for area in surface.areas], np.float32)
    image = camera.photographed(random, surface.image, camera.IDEAL_OPTICS)
    return Scene(image, np.array([main_symbol.label], np.int64), boxes)


class _Easel:
    """An image in the making.

    Attributes:
        image: The image, `[H, W, 3]`, before the camera's effects.
        lens: How sharp it will be.
        placed: The symbols in it.
        taken: 255 where a symbol is, `[H, W]`.
        hidden: 255 where something covers a symbol, `[H, W]`.
    """

    def __init__(self, random: Random, assets: Assets, height: int, width: int) -> None:
        """Begin an image with a background, and choose how sharp it will be."""
        self.random = random
        self.assets = assets
        self.image = assets.crop(random, height, width)
        self.lens = camera.optics(random, min(height, width))
        plain_share = 0.5 if self.lens.ideal else 0.06
        if random.random() < plain_share:
            self.image[:] = colour(random, 180, 255)
        self.placed: list[_PlacedSymbol] = []
        self.taken: Mask = np.zeros((height, width), np.uint8)
        self.hidden: Mask = np.zeros((height, width), np.uint8)

    def add_symbol(self, *, close_up: bool = False) -> None:
        """Put a label, a sheet or a screen with symbols into the image, if there is room for it.

        Args:
            close_up: Whether the image is mainly of this symbol, which is then large and may reach
                beyond the image.
        """
        random = self.random
        tilt = Tilt(random, flat=self.lens.ideal or random.random() < 0.1)
        max_share = MAX_CROWD_SHARE
        if close_up:
            max_share = MAX_CLOSE_UP_SHARE
        max_size = max_share * min(self.taken.shape)

        for _ in range(ATTEMPTS):
            name = str(random.choice(NAMES, p=WEIGHTS))
            new_symbol = symbol(random, name)
            min_size = self._min_size(new_symbol, tilt)
            if min_size <= max_size:
                break
        else:  # to be recognised, each would have to be larger than the image allows
            return

        size = self._choose_size(name, min_size, max_size, close_up=close_up)
        modules = max(new_symbol.cells.shape)
        max_scale = max(MAX_SOURCE // modules, 2)
        # A little finer than it will be in the image.
        scale = int(np.clip(np.ceil(1.15 * size / modules), 2, max_scale))
        surface = self._surface_with(new_symbol, name, size, scale, tilt)
        self._place(surface, scale=size / (modules * scale), tilt=tilt, close_up=close_up)

    def _min_size(self, new_symbol: Symbol, tilt: Tilt) -> float:
        """The shortest that a symbol's longer side can be, in pixels, to be recognised at all."""
        min_module = max(
            MIN_MODULE / self.lens.stored_scale, MIN_SHARPNESS[new_symbol.label] * self.lens.spread
        )
        size_for_modules = max(new_symbol.cells.shape) * min_module
        elongation = max(new_symbol.aspect, 1 / new_symbol.aspect)
        size_for_short_side = (MIN_BOX + 1) * elongation
        return float(max(MIN_SIDE, size_for_short_side, size_for_modules) / tilt.shrinkage)

    def _choose_size(self, name: str, min_size: float, max_size: float, *, close_up: bool) -> float:
        """The length of a symbol's longer side in pixels, before the tilt shortens it."""
        random = self.random
        if close_up:
            return max(random.uniform(0.15, 1) * max_size, min_size)
        exponent = random.random() ** 1.3  # smaller ones more often
        size = float(min_size * (max_size / min_size) ** exponent)
        if name == "data_matrix" and random.random() < 0.3:
            # As small as on parts of machines, many of which are in one image.
            size = max(random.uniform(18, 32), min_size)
        return size

    def _surface_with(
        self, new_symbol: Symbol, name: str, size: float, scale: int, tilt: Tilt
    ) -> Surface:
        """A label with a symbol, perhaps on a box or a screen; or a sheet of several symbols.

        Args:
            new_symbol: The symbol; on a sheet, all others are of its class.
            name: Its class.
            size: Its longer side in the image, in pixels.
            scale: Pixels of a module on the surface.
            tilt: How the surface will be turned.
        """
        random = self.random
        rule = SHEETS.get(name, OTHER_SHEETS)
        is_on_sheet = random.random() < rule.share and size < MAX_SHEET_SYMBOL
        if is_on_sheet:
            symbols = self._symbols_of_sheet(new_symbol, name, size, tilt, rule)
            columns = int(random.integers(1, rule.max_columns + 1))
            return surfaces.sheet(random, symbols, columns, scale)

        texture = self.assets.crop(random, MATERIAL_SIDE, MATERIAL_SIDE)
        # So that a label reaches at most 1.5 times the image's longer side beyond its symbol.
        room = 1.5 * max(self.taken.shape) / size
        surface = surfaces.label(random, new_symbol, scale, self.assets.lettering, texture, room)
        if random.random() < FRAME_CHANCE:
            surface = surfaces.framed(random, surface, texture)
        return surface

    def _symbols_of_sheet(
        self, new_symbol: Symbol, name: str, size: float, tilt: Tilt, rule: SheetRule
    ) -> list[Symbol]:
        """A symbol and the others on its sheet: copies of it, or new ones of its class.

        New ones that could not be recognised at this size are left out.
        """
        random = self.random
        count = int(random.integers(1, rule.max_others + 1))
        others = [new_symbol] * count  # as on parts of one kind, which are all marked alike
        if random.random() < 0.7:
            others = [symbol(random, name) for _ in range(count)]

        symbols = [new_symbol]
        for other in others:
            if self._min_size(other, tilt) <= size:
                symbols.append(other)
        return symbols

    def add_decoy(self, *, close_up: bool = False) -> None:
        """Put a picture, an object or a lookalike, which is not a symbol, into the image.

        Args:
            close_up: Whether the image is mainly of this decoy, which is then large and may reach
                beyond the image.
        """
        random = self.random
        side = min(self.taken.shape)
        if close_up:
            min_size, max_size = side / 2, side * MAX_CLOSE_UP_SHARE
        else:
            min_size, max_size = 24, 0.9 * side
        size = float(np.exp(random.uniform(np.log(min_size), np.log(max_size))))

        choice = random.random()
        if choice < PICTURE_CHANCE:
            width = int(size * random.uniform(0.6, 1)) + 4
            crop = self.assets.crop(random, int(size), width)
            surface = Surface(crop, alpha=None, areas=[])
        elif choice < PICTURE_CHANCE + CUTOUT_CHANCE and self.assets.cutouts:
            surface = self.assets.cutout(random, int(size))
        else:
            surface = negatives.lookalike(
                random, int(size), self.assets.lettering, self.assets.negatives
            )
        tilt = Tilt(random, flat=self.lens.ideal)
        self._place(surface, scale=1.0, tilt=tilt, close_up=close_up)

    def _place(self, surface: Surface, scale: float, tilt: Tilt, *, close_up: bool) -> None:
        """Draw a surface where it covers no symbol, and note the symbols on it as placed.

        Nothing is drawn if none of a few random positions fits.

        Args:
            surface: What to draw.
            scale: Pixels in the image for a pixel of the surface.
            tilt: How the surface is turned.
            close_up: Whether the image is mainly of this surface. It then lies around the middle,
                and the image's edges may cut off almost half of its symbol.
        """
        random = self.random
        height, width = self.taken.shape
        surface_height, surface_width = surface.image.shape[:2]
        bend = None
        if random.random() < BEND_CHANCE and not self.lens.ideal:
            bend = Bend(random, surface_width, surface_height)

        # A position is where the middle of the first symbol lies, or of a surface without symbols.
        left, top, right, bottom = (0.0, 0.0, float(surface_width), float(surface_height))
        if surface.areas:
            left, top, right, bottom = surface.areas[0].box
        middle = ((left + right) / 2, (top + bottom) / 2)
        extent = float(np.hypot(surface_width, surface_height)) / 2
        min_visible = self._choose_min_visible(close_up=close_up)
        margin = 0.0  # a share of the image's width and height
        if close_up:
            margin = 0.2

        corners = np.array(
            [(0, 0), (surface_width, 0), (surface_width, surface_height), (0, surface_height)],
            float,
        )
        for _ in range(ATTEMPTS):
            target = random.uniform(margin, 1 - margin, 2) * (width, height)
            homography = tilt.homography(middle, scale, target, extent)
            quad = moved(homography, corners)
            symbol_outlines = []
            for area in surface.areas:
                symbol_outlines.append(moved(homography, bent(bend, edge_points(area.box))))
            if self._fits(quad, symbol_outlines, min_visible):
                self._draw(surface, homography, bend, quad)
                self._note_placed(surface, symbol_outlines)
                return

    def _choose_min_visible(self, *, close_up: bool) -> float:
        """Share of each symbol that has to be inside the image: most symbols are whole."""
        if close_up:
            return MIN_VISIBLE + 0.02  # a little more, as it may lose some to a cover
        if self.random.random() < 0.6:
            return 0.999
        return 0.55

    def _note_placed(self, surface: Surface, outlines: list[Points]) -> None:
        """Add the visible symbols of a surface to what is placed, and take their space."""
        for area, outline in zip(surface.areas, outlines, strict=True):
            if self._visible_share(outline) > 0:
                self.placed.append(_PlacedSymbol(area.label, outline, area_of(outline)))
                fill(self.taken, outline)

    def _fits(self, quad: Points, outlines: list[Points], min_visible: float) -> bool:
        """Whether no symbol gets covered, and each new one is clearly visible or not at all."""
        shares = [self._visible_share(outline) for outline in outlines]
        if shares:
            none_is_visible = max(shares) == 0
            some_are_unclear = any(0 < share < min_visible for share in shares)
            if none_is_visible or some_are_unclear:
                return False
        surface_mask = np.zeros_like(self.taken)
        fill(surface_mask, quad)
        return not cv2.countNonZero(cv2.bitwise_and(surface_mask, self.taken))

    def _visible_share(self, outline: Points) -> float:
        """Share of an outline's area that is inside the image.

        If fewer than two corners are inside, it is at most `MIN_VISIBLE / 2`, which is too little
        for a label.

        Args:
            outline: Points `[P, 2]` of four sides in turn, as many on each, the first at a corner.
        """
        height, width = self.taken.shape
        inside = clipped(outline, width, height)
        if len(inside) < 3:
            return 0.0
        share = area_of(inside) / max(area_of(outline), 1e-6)

        points_per_side = len(outline) // 4
        corners = outline[::points_per_side]
        is_corner_inside = ((corners >= 0) & (corners <= (width, height))).all(1)
        if is_corner_inside.sum() >= 2:
            return share
        return min(share, MIN_VISIBLE / 2)

    def _draw(
        self, surface: Surface, homography: Homography, bend: Bend | None, quad: Points
    ) -> None:
        """Draw a surface into the image, sometimes with a soft shadow on what is below it.

        Only the rectangle around `quad` is computed.

        Args:
            surface: The surface.
            homography: From the surface's pixels to the image's.
            bend: The cylinder that it is bent around before that; None if it is flat.
            quad: The surface's corners in the image, `[4, 2]`.
        """
        height, width = self.taken.shape
        x1, y1 = np.maximum(np.floor(quad.min(0)).astype(int) - 1, 0)
        x2, y2 = np.minimum(np.ceil(quad.max(0)).astype(int) + 2, (width, height))
        if x2 <= x1 or y2 <= y1:
            return

        to_rectangle = np.array([[1, 0, -x1], [0, 1, -y1], [0, 0, 1]], float) @ homography
        size = (int(x2 - x1), int(y2 - y1))
        warped, alpha = self._warped(surface, to_rectangle, bend, size, drawn_area=area_of(quad))

        rectangle = self.image[y1:y2, x1:x2]
        if self.random.random() < SHADOW_CHANCE:
            moved_alpha = np.roll(alpha, 3, (0, 1))  # three pixels down and to the right
            shadow = cv2.GaussianBlur(moved_alpha, (0, 0), 3) // 3  # it takes a third of the light
            rectangle[:] = cv2.multiply(rectangle, cv2.merge([255 - shadow] * 3), scale=1 / 255)
        rectangle[:] = blend(rectangle, warped, alpha)

    def _warped(
        self,
        surface: Surface,
        homography: Homography,
        bend: Bend | None,
        size: tuple[int, int],
        drawn_area: float,
    ) -> tuple[Image, Mask]:
        """The colours `[H, W, 3]` and the alpha `[H, W]` of a surface, bent and in perspective.

        Args:
            surface: The surface.
            homography: From the surface's pixels to those of the result.
            bend: The cylinder that it is bent around; None if it is flat.
            size: Width and height of the result.
            drawn_area: Area of the whole surface in the image, in pixels, even beyond the result.
        """
        source = surface.image
        source_alpha = surface.alpha
        if source_alpha is None:
            source_alpha = np.full(source.shape[:2], 255, np.uint8)
        if bend is not None:
            source = bend.applied(source)
            source_alpha = bend.applied(source_alpha)

        interpolation = INTERPOLATIONS[self.random.choice(3, p=[0.75, 0.13, 0.12])]
        scale = np.sqrt(max(drawn_area, 1.0) / (source.shape[0] * source.shape[1]))
        if scale < 0.8 and interpolation != cv2.INTER_NEAREST:
            # Where it gets smaller, linear sampling would skip source pixels.
            source = cv2.GaussianBlur(source, (0, 0), 0.35 / scale)

        warped = cv2.warpPerspective(
            source, homography, size, flags=interpolation, borderMode=cv2.BORDER_REPLICATE
        )
        alpha = cv2.warpPerspective(source_alpha, homography, size, flags=cv2.INTER_LINEAR)
        return warped, alpha

    def cover_some(self) -> None:
        """Lay fingers, tape or stickers over parts of some symbols.

        Whatever would leave less than `MIN_VISIBLE` of any symbol is not laid down.
        """
        random = self.random
        for placed in self.placed:
            if random.random() < 0.5:
                continue
            centre = placed.outline[random.integers(len(placed.outline))]
            reach = np.sqrt(placed.area) * random.uniform(0.1, 0.45)
            axes = (reach * random.uniform(0.4, 1.6, 2)).tolist()
            rotated_box = (centre.tolist(), axes, random.uniform(0, 180))
            cover = np.zeros_like(self.hidden)
            if random.random() < 0.5:
                cv2.ellipse(cover, rotated_box, 255, cv2.FILLED)
            else:
                cv2.fillConvexPoly(cover, cv2.boxPoints(rotated_box).astype(np.int32), 255)

            hidden = cv2.bitwise_or(cover, self.hidden)
            if all(self._uncovered_share(other, hidden) > MIN_VISIBLE for other in self.placed):
                self.hidden = hidden
                self.image[cover > 0] = colour(random).astype(np.uint8)

    def _uncovered_share(self, placed: _PlacedSymbol, hidden: Mask) -> float:
        """Share of a symbol's area that is inside the image and not hidden."""
        symbol_mask = np.zeros_like(hidden)
        fill(symbol_mask, placed.outline)
        return cv2.countNonZero(cv2.subtract(symbol_mask, hidden)) / max(placed.area, 1e-6)

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Class ids `[G]`, and boxes `[G, 4]` around the visible parts, of the symbols.

        Symbols whose visible part is less than `MIN_BOX` pixels wide or high are left out.
        """
        labels = []
        boxes = []
        for placed in self.placed:
            left, top, right, bottom = self._visible_box(placed)
            if min(right - left, bottom - top) >= MIN_BOX:
                labels.append(placed.label)
                boxes.append((left, top, right, bottom))
        return np.array(labels, np.int64), np.array(boxes, np.float32).reshape(-1, 4)

    def _visible_box(self, placed: _PlacedSymbol) -> tuple[float, float, float, float]:
        """The bounding box of what is inside the image and not hidden: left, top, right, bottom."""
        height, width = self.taken.shape
        inside = np.clip(clipped(placed.outline, width, height), 0, (width, height))
        left, top = inside.min(0)
        right, bottom = inside.max(0)

        symbol_mask = np.zeros_like(self.hidden)
        fill(symbol_mask, placed.outline)
        if cv2.countNonZero(cv2.bitwise_and(symbol_mask, self.hidden)):
            uncovered = cv2.subtract(symbol_mask, self.hidden)
            x, y, box_width, box_height = cv2.boundingRect(uncovered)
            left = max(left, x)
            top = max(top, y)
            right = min(right, x + box_width)
            bottom = min(bottom, y + box_height)
        return left, top, right, bottom
