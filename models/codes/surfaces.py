"""Flat things with symbols on them: labels, boxes, screens, sheets, before the camera."""

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.symbols import Symbol
from codes.textures import Cover, Field, Image, Lettering, Random, colour, tinted

MIN_CONTRAST, MIN_FAINT = 70, 18  # grey levels between ink and paper, of most and of faint ones

MARKED = {0, 2}  # classes that are marked into metal, as dots or squares
# What marks three corners of a QR Code, from outside in: half its side in modules, and its ink.
FINDER = ((3.5, 255), (2.5, 0), (1.5, 255))


class Area(NamedTuple):
    """Where a symbol is on a surface: left, top, right, bottom in pixels, without quiet zone."""

    label: int
    box: tuple[float, float, float, float]


class Surface(NamedTuple):
    """A flat thing.

    Attributes:
        image: Its colours, `[H, W, 3]`.
        cover: Where it is opaque, `[H, W]`; None if everywhere.
        areas: The symbols on it.
    """

    picture: Image
    cover: Cover | None
    areas: list[Area]


def inked(random: Random, symbol: Symbol, scale: int, dotted: float = 0.12) -> Cover:
    """A symbol drawn at `scale` pixels for each module, whose ink may have spread or shrunk.

    `dotted` is the probability that large modules of classes that are marked so are dots.
    """
    cells = symbol.cells
    if len(cells) == 1:  # bars
        width = cells.shape[1] * scale
        height = max(int(width / symbol.aspect), 4)
        cover = np.repeat(np.repeat(cells, scale, 1) * np.uint8(255), height, 0)
        if symbol.guards is not None:
            longer = np.repeat(
                np.repeat(symbol.guards, scale, 1) * np.uint8(255), max(height // 10, 1), 0
            )
            cover = np.concatenate([cover, longer])
        return np.ascontiguousarray(cover)
    cover = enlarged(cells, scale)
    if scale >= 4 and symbol.label == 0 and random.random() < 0.2:
        return styled(random, cells, scale)
    if scale >= 4 and symbol.label in MARKED and random.random() < dotted:
        y, x = np.mgrid[:scale, :scale] + 0.5 - scale / 2
        reach = scale * random.uniform(0.42, 0.55)
        dot = (x * x + y * y <= reach * reach).astype(np.uint8)
        return cover * np.tile(dot, cells.shape)
    if scale >= 4 and random.random() < 0.3:
        size = int(random.integers(2, max(scale // 2, 2) + 1))
        kernel = np.ones((size, size), np.uint8)
        cover = (cv2.erode if random.random() < 0.5 else cv2.dilate)(cover, kernel)
    return cover


def styled(random: Random, cells: NDArray[np.uint8], scale: int) -> Cover:
    """A QR Code as generators for advertisements draw it: dots or rounded modules, soft corners."""
    cover = cv2.GaussianBlur(enlarged(cells, scale), (0, 0), scale * random.uniform(0.25, 0.4))
    cover = np.where(cover > 127, 255, 0).astype(np.uint8)
    if random.random() < 0.5:
        radius = int(scale * random.uniform(0.36, 0.5) * 16)
        cover[:] = 0
        for y, x in np.argwhere(cells).tolist():
            middle = (int((x + 0.5) * scale * 16), int((y + 0.5) * scale * 16))
            cv2.circle(cover, middle, radius, 255, cv2.FILLED, cv2.LINE_AA, 4)
    form = random.random()
    for y, x in ((0, 0), (0, len(cells) - 7), (len(cells) - 7, 0)):
        cover[y * scale : (y + 7) * scale, x * scale : (x + 7) * scale] = 0
        middle = (int((x + 3.5) * scale), int((y + 3.5) * scale))
        for reach, shade in FINDER:
            far = reach * scale
            if form < 0.4:
                cv2.circle(cover, middle, int(far), shade, cv2.FILLED, cv2.LINE_AA)
            else:  # a square, whose corners are the ends of thick strokes
                soft = int(far * form * 0.6)
                near = int(far) - soft
                corners = (middle[0] - near, middle[1] - near), (middle[0] + near, middle[1] + near)
                cv2.rectangle(cover, *corners, shade, cv2.FILLED)
                cv2.rectangle(cover, *corners, shade, max(2 * soft, 1))
    return cover


def enlarged(cells: NDArray[np.uint8], scale: int) -> Cover:
    """Cells of 0 and 1 as squares of 0 and 255."""
    size = (cells.shape[1] * scale, cells.shape[0] * scale)
    return cv2.resize(cells * np.uint8(255), size, interpolation=cv2.INTER_NEAREST)


def colours(random: Random) -> tuple[Field, Field]:
    """Paper and ink: mostly black on white, some vivid or faint, one in eight light on dark."""
    part = random.random()
    if part < 0.45:
        paper, ink = colour(random, 205, 255), colour(random, 0, 45)
    elif part < 0.55:  # printed in one bright colour
        paper, ink = colour(random, 215, 255), np.zeros(3, np.float32)
        ink[random.permutation(3)[:2]] = random.uniform((100, 0), (230, 120))
    elif part < 0.9:
        paper, ink = colour(random, 90, 255), colour(random, 0, 120)
        lack = MIN_CONTRAST - float(paper.mean() - ink.mean())
        if lack > 0:
            paper, ink = np.minimum(paper + lack, 255), np.maximum(ink - lack, 0)
    else:
        paper = colour(random, 60, 255)
        ink = np.maximum(paper - np.exp(random.uniform(*np.log((MIN_FAINT, MIN_CONTRAST)))), 0)
    return (ink, paper) if random.random() < 0.125 else (paper, ink)


def label(
    random: Random,
    symbol: Symbol,
    scale: int,
    lettering: Lettering,
    texture: Image,
    room: float,
) -> Surface:
    """A printed label: one symbol, some text, perhaps a frame, on paper or on a material.

    Args:
        random: Random numbers.
        symbol: What is printed.
        scale: Pixels of a module.
        lettering: Lines of text.
        texture: A material.
        room: The most that it reaches beyond the symbol, as a multiple of the symbol's size.
    """
    metal = symbol.label in MARKED and random.random() < 0.22
    cover = inked(random, symbol, scale, 0.6 if metal else 0.12)
    height, width = cover.shape
    share = random.choice([0, 0.3, 0.6, 1, 1.6], p=[0.06, 0.1, 0.14, 0.5, 0.2])
    quiet = max(int(symbol.quiet * scale * share), 1)
    # Beyond the quiet zone: often next to nothing, sometimes a label much larger than the symbol.
    reach = max(height, width) * min(float(random.choice([0, 0.6, 1.6])), room)
    extra = random.random(4) ** 3 * reach
    left, top, right, bottom = (quiet + extra).astype(int)
    if len(symbol.cells) == 1:
        top, bottom = max(top - quiet // 2, 2), bottom + 2
    ink_map = np.zeros((height + top + bottom, width + left + right), np.uint8)
    ink_map[top : top + height, left : left + width] = cover
    box = (left, top, left + width, top + height)
    areas = [Area(symbol.label, box)]
    if metal:
        return Surface(_metal(random, ink_map, scale), None, areas)
    _captions(random, ink_map, (left, top, width, height), quiet, lettering)
    if random.random() < 0.12:
        frame = (ink_map.shape[1] - 2, ink_map.shape[0] - 2)
        cv2.rectangle(ink_map, (1, 1), frame, 255, int(random.integers(1, max(quiet // 2, 2))))
    paper, ink = colours(random)
    image = tinted(ink_map, paper, ink)
    if random.random() < 0.15:  # straight onto cardboard, wood, cloth
        image = _printed(ink_map, texture, paper, ink)
    if symbol.label == 0 and random.random() < 0.15:
        _logo(random, image, lettering, (left, top, width, height))
    return Surface(image, None, areas)


def _metal(random: Random, ink_map: Cover, scale: int) -> Image:
    """Dots peened, or squares etched by laser, into brushed metal: faint, with lit edges."""
    height, width = ink_map.shape
    base = (colour(random, 60, 215).mean() + random.uniform(-8, 8, 3)).astype(np.float32)
    scratches: NDArray[Any] = random.normal(0, 1, (height, max(width // 60, 2))).astype(np.float32)
    scratches = cv2.resize(scratches, (width, height), interpolation=cv2.INTER_LINEAR)
    if random.random() < 0.3:  # cast or blasted, not brushed
        scratches = random.normal(0, 1, (height, width)).astype(np.float32)
    first, last = random.uniform(-25, 25, 2).tolist()
    sheen = np.linspace(first, last, width, dtype=np.float32)
    grey = scratches * random.uniform(2, 14) + sheen
    shift = max(int(scale * random.uniform(0.1, 0.3)), 1)
    lit = cv2.subtract(ink_map, np.roll(ink_map, (shift, shift), (0, 1)))
    dark = cv2.subtract(ink_map, np.roll(ink_map, (-shift, -shift), (0, 1)))
    depth = random.uniform(25, 95) * random.choice([-1, 1], p=[0.6, 0.4])
    relief = random.uniform(0, 70)
    weights = ((ink_map, depth), (lit, relief), (dark, -relief))
    for part, strength in weights:
        grey += part * np.float32(strength / 255)
    return np.clip(grey[..., None] + base, 0, 255).astype(np.uint8)


def _captions(
    random: Random,
    ink_map: Cover,
    place: tuple[int, int, int, int],
    quiet: int,
    lettering: Lettering,
) -> None:
    """Text below and above a symbol, outside of its quiet zone."""
    left, top, width, height = place
    size = int(np.clip(random.uniform(0.06, 0.2) * max(width, height), 6, 40))
    spans = ((top + height + max(quiet // 3, 2), len(ink_map)), (1, top - quiet))
    for start, stop in spans:
        if random.random() < 0.3:
            continue
        indent = int(left * random.random())
        for y in range(start, stop - size, int(size * 1.4)):
            lettering.line(random, ink_map, indent, y, size, ink_map.shape[1] - indent)


def _printed(ink_map: Cover, texture: Image, paper: Field, ink: Field) -> Image:
    """Ink on a material, whose grain stays visible; its mean colour becomes the paper's."""
    height, width = ink_map.shape
    grain = cv2.resize(_grain_on(texture, paper), (width, height), interpolation=cv2.INTER_LINEAR)
    ink_image = np.empty_like(grain)
    ink_image[:] = ink
    cv2.copyTo(ink_image, ink_map, grain)
    return grain


def _grain_on(texture: Image, tint: Field) -> Image:
    """The small texture of a material whose mean colour is `tint`."""
    grain = texture.astype(np.float32)
    return np.clip(tint + (grain - grain.mean((0, 1))) * 0.4, 0, 255).astype(np.uint8)


def _logo(
    random: Random, image: Image, lettering: Lettering, place: tuple[int, int, int, int]
) -> None:
    """A sign in the middle of a QR Code, as far as its error correction allows."""
    left, top, width, height = place
    x, y = left + width // 2, top + height // 2
    reach = int(width * random.uniform(0.08, 0.15))
    disc = random.random() < 0.5
    for far, tint in ((reach, colour(random, 200, 255)), (int(reach * 0.75), colour(random))):
        if disc:
            cv2.circle(image, (x, y), far, tint.tolist(), cv2.FILLED, cv2.LINE_AA)
        else:
            corners = (x - far, y - far), (x + far, y + far)
            cv2.rectangle(image, *corners, tint.tolist(), cv2.FILLED)
    sign = np.zeros((max(reach, 3), max(reach, 3)), np.uint8)
    lettering.line(random, sign, 0, 0, len(sign), len(sign))
    area = image[y - reach // 2 :, x - reach // 2 :][: len(sign), : len(sign)]
    area[sign > 127] = colour(random)


def sheet(random: Random, symbols: list[Symbol], columns: int, scale: int) -> Surface:
    """Rows of symbols on one sheet; markers as on boards, some with black squares (ChArUco)."""
    metal = symbols[0].label == 2 and random.random() < 0.5
    dotted = 0.12 if not metal else float(random.random() < 0.6)
    covers = [inked(random, symbol, scale, dotted) for symbol in symbols]
    quiet = max(symbol.quiet for symbol in symbols) * scale
    board = symbols[0].label == 5  # whose markers are closer to each other
    gap = int(quiet * random.uniform(0.3 if board else 1, 2.5)) + 2
    pitch_x = max(cover.shape[1] for cover in covers) + gap
    pitch_y = max(cover.shape[0] for cover in covers) + gap
    rows = -(-len(covers) // columns)
    checks = board and random.random() < 0.4
    if checks:
        rows = 2 * rows
    ink_map = np.zeros((rows * pitch_y + gap, columns * pitch_x + gap), np.uint8)
    areas: list[Area] = []
    for number, (symbol, cover) in enumerate(zip(symbols, covers, strict=True)):
        row, column = divmod(number, columns)
        if checks:
            row = 2 * row + (column % 2)
            other = gap // 2 + (row ^ 1) * pitch_y, gap // 2 + column * pitch_x
            ink_map[other[0] : other[0] + pitch_y, other[1] : other[1] + pitch_x] = 255
        y, x = gap + row * pitch_y, gap + column * pitch_x
        height, width = cover.shape
        ink_map[y : y + height, x : x + width] = cover
        areas.append(Area(symbol.label, (x, y, x + width, y + height)))
    if metal:
        return Surface(_metal(random, ink_map, scale), None, areas)
    paper, ink = colours(random)
    return Surface(tinted(ink_map, paper, ink), None, areas)


def framed(random: Random, surface: Surface, texture: Image) -> Surface:
    """A surface on something larger: a screen with its bezel, or a cardboard box with tape."""
    height, width = surface.picture.shape[:2]
    left, top, right, bottom = (random.uniform(0.05, 0.8, 4) * max(height, width)).astype(int)
    full = (height + top + bottom, width + left + right)
    if random.random() < 0.4:
        left = right = top = bottom = max(int(0.07 * max(height, width)), 2)
        full = (height + 2 * top, width + 2 * left)
        image = np.empty((*full, 3), np.uint8)
        image[:] = colour(random, 0, 60)
    else:
        material = _grain_on(texture, colour(random, 60, 230))
        image = cv2.resize(material, full[::-1], interpolation=cv2.INTER_LINEAR)
    image[top : top + height, left : left + width] = surface.picture
    areas = [
        area._replace(box=tuple(np.add(area.box, (left, top, left, top)).tolist()))
        for area in surface.areas
    ]
    return Surface(image, None, areas)
