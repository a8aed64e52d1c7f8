"""Flat things with symbols on them: labels, boxes, screens, sheets, before the camera."""

from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.symbols import ARUCO, DATA_MATRIX, QR_CODE, Cells, Symbol
from codes.textures import Field, Image, Lettering, Mask, Random, colour, tinted

MIN_CONTRAST, MIN_FAINT = 70, 18  # grey levels between ink and paper, of most and of faint ones

MARKED = {QR_CODE, DATA_MATRIX}  # classes that are marked into metal, as dots or squares
MIN_STYLED_SCALE = 4  # pixels a module from which on modules may be dots, round or spread
DOTTED_SHARE = 0.12  # of the large symbols of `MARKED` on paper, how many consist of dots
DOTTED_METAL_SHARE = 0.6  # the same of those on metal
STYLED_SHARE = 0.2  # of the large QR Codes, how many are drawn as in advertisements
SPREAD_SHARE = 0.3  # of the other large symbols, how many have ink that has spread or shrunk
LIGHT_ON_DARK_SHARE = 0.125
FINDER_SIDE = 7  # modules
# What marks three corners of a QR Code, from outside in: half its side in modules, and its ink.
FINDER = ((3.5, 255), (2.5, 0), (1.5, 255))


class Area(NamedTuple):
    """Where a symbol is on a surface: left, top, right, bottom in pixels, without quiet zone."""

    label: int
    box: tuple[float, float, float, float]


class Rectangle(NamedTuple):
    """A part of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


class Surface(NamedTuple):
    """A flat thing.

    Attributes:
        image: Its colours, `[H, W, 3]`.
        alpha: Where it is opaque, `[H, W]`; None if everywhere.
        areas: The symbols on it.
    """

    image: Image
    alpha: Mask | None
    areas: list[Area]


def inked(random: Random, symbol: Symbol, scale: int, dotted_share: float = DOTTED_SHARE) -> Mask:
    """A symbol in ink; some large ones are styled or dotted, or their ink has spread or shrunk.

    Linear codes, and symbols of less than `MIN_STYLED_SCALE` pixels a module, are always plain.

    Args:
        random: Where the choices come from.
        symbol: What to draw.
        scale: Pixels of a module.
        dotted_share: Probability that a large symbol of `MARKED`, unless it is styled, consists of
            dots.
    """
    if symbol.is_bars:
        return _inked_bars(symbol, scale)

    ink_map = enlarged(symbol.cells, scale)
    if scale < MIN_STYLED_SCALE:
        return ink_map
    if symbol.label == QR_CODE and random.random() < STYLED_SHARE:
        return styled(random, symbol.cells, scale)
    if symbol.label in MARKED and random.random() < dotted_share:
        return ink_map * _dot_in_each_module(random, symbol.cells, scale)
    if random.random() < SPREAD_SHARE:
        size = int(random.integers(2, max(scale // 2, 2) + 1))
        kernel = np.ones((size, size), np.uint8)
        if random.random() < 0.5:
            ink_map = cv2.erode(ink_map, kernel)
        else:
            ink_map = cv2.dilate(ink_map, kernel)
    return ink_map


def _inked_bars(symbol: Symbol, scale: int) -> Mask:
    """A linear code of the symbol's aspect; guard bars, if it has any, reach a tenth lower."""
    width = symbol.cells.shape[1] * scale
    height = max(int(width / symbol.aspect), 4)
    ink_map = _repeated_row(symbol.cells, scale, height)
    if symbol.guards is not None:
        guards = _repeated_row(symbol.guards, scale, max(height // 10, 1))
        ink_map = np.concatenate([ink_map, guards])
    return np.ascontiguousarray(ink_map)


def _repeated_row(row: Cells, scale: int, height: int) -> Mask:
    """Bars `[height, columns * scale]` of one row of cells `[1, columns]`."""
    pixel_row = np.repeat(row, scale, axis=1) * np.uint8(255)
    return np.repeat(pixel_row, height, axis=0)


def _dot_in_each_module(random: Random, cells: Cells, scale: int) -> Mask:
    """1 on a disc in the middle of each module, else 0."""
    y, x = np.mgrid[:scale, :scale] + 0.5 - scale / 2
    radius = scale * random.uniform(0.42, 0.55)
    disc = (x * x + y * y <= radius * radius).astype(np.uint8)
    return np.tile(disc, cells.shape)


def styled(random: Random, cells: Cells, scale: int) -> Mask:
    """A QR Code as in advertisements: dots or modules with round corners, and soft finder patterns.

    Args:
        random: Where the choices come from.
        cells: The code's modules, `[rows, rows]`, 1 where dark.
        scale: Pixels of a module.
    """
    softness = scale * random.uniform(0.25, 0.4)
    if random.random() < 0.5:
        ink_map: Mask = np.zeros((len(cells) * scale, len(cells) * scale), np.uint8)
        _draw_dots(random, ink_map, cells, scale)
    else:
        ink_map = _with_round_corners(cells, scale, softness)

    roundness = random.random()
    last = len(cells) - FINDER_SIDE  # where the finder patterns on the right and below begin
    for row, column in ((0, 0), (0, last), (last, 0)):
        _draw_finder(ink_map, row, column, scale, roundness=roundness)
    return ink_map


def _with_round_corners(cells: Cells, scale: int, softness: float) -> Mask:
    """Cells whose corners are round: blurred by `softness` pixels, then ink where half is dark."""
    blurred = cv2.GaussianBlur(enlarged(cells, scale), (0, 0), softness)
    return np.where(blurred > 127, 255, 0).astype(np.uint8)


def _draw_dots(random: Random, ink_map: Mask, cells: Cells, scale: int) -> None:
    """Draw a disc for each dark module."""
    sixteenths = 16  # `shift=4` makes OpenCV take positions in sixteenths of a pixel
    radius = int(scale * random.uniform(0.36, 0.5) * sixteenths)
    for row, column in np.argwhere(cells).tolist():
        x = int((column + 0.5) * scale * sixteenths)
        y = int((row + 0.5) * scale * sixteenths)
        cv2.circle(ink_map, (x, y), radius, 255, cv2.FILLED, cv2.LINE_AA, shift=4)


def _draw_finder(ink_map: Mask, row: int, column: int, scale: int, *, roundness: float) -> None:
    """Draw a finder pattern of circles (`roundness` below 0.4), or of squares with round corners.

    The larger `roundness`, the rounder the corners of the squares.
    """
    top, left = row * scale, column * scale
    side = FINDER_SIDE * scale
    ink_map[top : top + side, left : left + side] = 0

    x = int((column + FINDER_SIDE / 2) * scale)
    y = int((row + FINDER_SIDE / 2) * scale)
    for half_side_in_modules, shade in FINDER:
        half_side = half_side_in_modules * scale
        if roundness < 0.4:
            cv2.circle(ink_map, (x, y), int(half_side), shade, cv2.FILLED, cv2.LINE_AA)
            continue
        # A smaller square with a thick border: OpenCV rounds the corners of thick lines.
        corner_radius = int(half_side * roundness * 0.6)
        inner = int(half_side) - corner_radius
        top_left = (x - inner, y - inner)
        bottom_right = (x + inner, y + inner)
        cv2.rectangle(ink_map, top_left, bottom_right, shade, cv2.FILLED)
        cv2.rectangle(ink_map, top_left, bottom_right, shade, max(2 * corner_radius, 1))


def enlarged(cells: Cells, scale: int) -> Mask:
    """Cells of 0 and 1 as squares of 0 and 255."""
    size = (cells.shape[1] * scale, cells.shape[0] * scale)
    return cv2.resize(cells * np.uint8(255), size, interpolation=cv2.INTER_NEAREST)


def paper_and_ink(random: Random) -> tuple[Field, Field]:
    """The colours of paper and of ink, both `[3]`; one time in eight they are exchanged.

    Most are black on white, some are vivid, and some faint.
    """
    choice = random.random()
    if choice < 0.45:
        paper = colour(random, 205, 255)
        ink = colour(random, 0, 45)
    elif choice < 0.55:
        paper, ink = _bright_ink_on_white(random)
    elif choice < 0.9:
        paper, ink = _any_colours(random)
    else:
        paper, ink = _faint_ink(random)

    if random.random() < LIGHT_ON_DARK_SHARE:
        return ink, paper
    return paper, ink


def _bright_ink_on_white(random: Random) -> tuple[Field, Field]:
    """White paper and one bright ink: a strong channel, a weaker one, and one that is 0."""
    paper = colour(random, 215, 255)
    ink = np.zeros(3, np.float32)
    levels = random.uniform((100, 0), (230, 120))  # 100 to 230, and 0 to 120
    two_channels = random.permutation(3)[:2]
    ink[two_channels] = levels
    return paper, ink


def _any_colours(random: Random) -> tuple[Field, Field]:
    """Paper and ink of any colours, moved apart where their contrast is below `MIN_CONTRAST`."""
    paper = colour(random, 90, 255)
    ink = colour(random, 0, 120)
    missing_contrast = MIN_CONTRAST - float(paper.mean() - ink.mean())
    if missing_contrast > 0:
        paper = np.minimum(paper + missing_contrast, 255)
        ink = np.maximum(ink - missing_contrast, 0)
    return paper, ink


def _faint_ink(random: Random) -> tuple[Field, Field]:
    """Paper of any shade, and ink that is a little darker: faint contrasts are more frequent."""
    paper = colour(random, 60, 255)
    low, high = np.log((MIN_FAINT, MIN_CONTRAST))
    contrast = np.exp(random.uniform(low, high))
    ink = np.maximum(paper - contrast, 0)
    return paper, ink


def label(
    random: Random,
    symbol: Symbol,
    scale: int,
    lettering: Lettering,
    texture: Image,
    room: float,
) -> Surface:
    """A printed label: one symbol, some text, perhaps a frame, on paper or on a material.

    Symbols of `MARKED` may be marked into metal instead, then without text.

    Args:
        random: Where all choices come from.
        symbol: What is printed.
        scale: Pixels of a module.
        lettering: Lines of text.
        texture: A material.
        room: The most that it reaches beyond the symbol, as a multiple of the symbol's size.
    """
    is_metal = symbol.label in MARKED and random.random() < 0.22
    dotted_share = DOTTED_METAL_SHARE if is_metal else DOTTED_SHARE
    symbol_ink = inked(random, symbol, scale, dotted_share)
    height, width = symbol_ink.shape

    quiet_share = random.choice([0, 0.3, 0.6, 1, 1.6], p=[0.06, 0.1, 0.14, 0.5, 0.2])
    quiet = max(int(symbol.quiet * scale * quiet_share), 1)
    # Beyond the quiet zone: often next to nothing, sometimes a label much larger than the symbol.
    max_margin = max(height, width) * min(float(random.choice([0, 0.6, 1.6])), room)
    margins = random.random(4) ** 3 * max_margin
    left, top, right, bottom = (quiet + margins).astype(int)
    if symbol.is_bars:  # which need a quiet zone only beside them
        top = max(top - quiet // 2, 2)
        bottom = bottom + 2

    ink_map = np.zeros((height + top + bottom, width + left + right), np.uint8)
    ink_map[top : top + height, left : left + width] = symbol_ink
    areas = [Area(symbol.label, (left, top, left + width, top + height))]
    if is_metal:
        return Surface(_metal(random, ink_map, scale), None, areas)

    symbol_box = Rectangle(left, top, width, height)
    image = _printed_label(random, ink_map, symbol_box, quiet, lettering, texture)
    if symbol.label == QR_CODE and random.random() < 0.15:
        _draw_logo(random, image, lettering, symbol_box)
    return Surface(image, None, areas)


def _printed_label(
    random: Random,
    ink_map: Mask,
    symbol_box: Rectangle,
    quiet: int,
    lettering: Lettering,
    texture: Image,
) -> Image:
    """The image of a label; captions and perhaps a frame are added to its `ink_map`."""
    _draw_captions(random, ink_map, symbol_box, quiet, lettering)
    if random.random() < 0.12:
        height, width = ink_map.shape
        thickness = int(random.integers(1, max(quiet // 2, 2)))
        cv2.rectangle(ink_map, (1, 1), (width - 2, height - 2), 255, thickness)

    paper, ink = paper_and_ink(random)
    if random.random() < 0.15:  # straight onto cardboard, wood, cloth
        return _printed_on(texture, ink_map, paper, ink)
    return tinted(ink_map, paper, ink)


def _metal(random: Random, ink_map: Mask, scale: int) -> Image:
    """Metal with marks that were punched or etched into it: faint, and lit from the upper left.

    Args:
        random: Where the choices come from.
        ink_map: 255 where the metal is marked, `[H, W]`.
        scale: Pixels of a module, to which the lit edges of marks are proportional.
    """
    height, width = ink_map.shape
    base_colour = colour(random, 60, 215).mean() + random.uniform(-8, 8, 3)
    grey = _metal_grain(random, height, width)

    # A mark's edges on the upper left are lit, and those on the lower right are dark.
    edge_width = max(int(scale * random.uniform(0.1, 0.3)), 1)
    moved_down_right = np.roll(ink_map, (edge_width, edge_width), axis=(0, 1))
    moved_up_left = np.roll(ink_map, (-edge_width, -edge_width), axis=(0, 1))
    lit_edges = cv2.subtract(ink_map, moved_down_right)
    dark_edges = cv2.subtract(ink_map, moved_up_left)

    # Grey levels: marks are lighter than the metal, or more rarely darker.
    mark_strength = random.uniform(25, 95) * random.choice([-1, 1], p=[0.6, 0.4])
    edge_strength = random.uniform(0, 70)
    grey += ink_map * np.float32(mark_strength / 255)
    grey += lit_edges * np.float32(edge_strength / 255)
    grey += dark_edges * np.float32(-edge_strength / 255)
    return np.clip(grey[..., None] + base_colour.astype(np.float32), 0, 255).astype(np.uint8)


def _metal_grain(random: Random, height: int, width: int) -> NDArray[Any]:
    """Grey levels `[H, W]` around 0: scratches or grains, and a sheen from side to side."""
    # Noise of few columns becomes long scratches when it is stretched.
    noise: NDArray[Any] = random.normal(0, 1, (height, max(width // 60, 2))).astype(np.float32)
    if random.random() < 0.3:  # cast or blasted, not brushed
        grain = random.normal(0, 1, (height, width)).astype(np.float32)
    else:
        grain = cv2.resize(noise, (width, height), interpolation=cv2.INTER_LINEAR)

    first, last = random.uniform(-25, 25, 2).tolist()
    sheen = np.linspace(first, last, width, dtype=np.float32)
    grey: NDArray[Any] = grain * random.uniform(2, 14) + sheen
    return grey


def _draw_captions(
    random: Random, ink_map: Mask, symbol_box: Rectangle, quiet: int, lettering: Lettering
) -> None:
    """Draw text below and above a symbol; below, it may reach into the quiet zone."""
    left, top, width, height = symbol_box
    text_height = int(np.clip(random.uniform(0.06, 0.2) * max(width, height), 6, 40))
    below = (top + height + max(quiet // 3, 2), len(ink_map))
    above = (1, top - quiet)
    for first_y, end_y in (below, above):
        if random.random() < 0.3:
            continue
        indent = int(left * random.random())
        max_width = ink_map.shape[1] - indent
        for y in range(first_y, end_y - text_height, int(text_height * 1.4)):
            lettering.draw_line(random, ink_map, x=indent, y=y, height=text_height, width=max_width)


def _printed_on(texture: Image, ink_map: Mask, paper: Field, ink: Field) -> Image:
    """Ink on a material, whose grain stays visible; its mean colour becomes the paper's."""
    height, width = ink_map.shape
    material = _with_mean_colour(texture, paper)
    image = cv2.resize(material, (width, height), interpolation=cv2.INTER_LINEAR)
    ink_image = np.empty_like(image)
    ink_image[:] = ink
    cv2.copyTo(ink_image, ink_map, image)
    return image


def _with_mean_colour(texture: Image, mean_colour: Field) -> Image:
    """A material of this mean colour, with its contrasts reduced to 40%."""
    grain = texture.astype(np.float32)
    deviation = grain - grain.mean((0, 1))
    return np.clip(mean_colour + deviation * 0.4, 0, 255).astype(np.uint8)


def _draw_logo(random: Random, image: Image, lettering: Lettering, symbol_box: Rectangle) -> None:
    """Draw a disc or a square with letters over the middle of a QR Code.

    It hides at most a tenth of the modules, which error correction mostly makes up for.
    """
    x = symbol_box.left + symbol_box.width // 2
    y = symbol_box.top + symbol_box.height // 2
    half_side = int(symbol_box.width * random.uniform(0.08, 0.15))
    is_disc = random.random() < 0.5
    border_colour = colour(random, 200, 255).tolist()
    fill_colour = colour(random).tolist()
    layers = ((half_side, border_colour), (int(half_side * 0.75), fill_colour))
    for reach, layer_colour in layers:  # from the middle to the edge
        if is_disc:
            cv2.circle(image, (x, y), reach, layer_colour, cv2.FILLED, cv2.LINE_AA)
        else:
            top_left = (x - reach, y - reach)
            bottom_right = (x + reach, y + reach)
            cv2.rectangle(image, top_left, bottom_right, layer_colour, cv2.FILLED)

    # The letters are in a square half as wide as the logo.
    letters_side = max(half_side, 3)
    letters = np.zeros((letters_side, letters_side), np.uint8)
    lettering.draw_line(random, letters, x=0, y=0, height=letters_side, width=letters_side)
    letters_left = x - half_side // 2
    letters_top = y - half_side // 2
    area = image[
        letters_top : letters_top + letters_side, letters_left : letters_left + letters_side
    ]
    area[letters > 127] = colour(random)


def sheet(random: Random, symbols: list[Symbol], columns: int, scale: int) -> Surface:
    """A sheet with rows of symbols of one class.

    Markers may have black squares between them, as on a ChArUco board. Data Matrix symbols may be
    marked into metal, all of them dotted or none.

    Args:
        random: Where the choices come from.
        symbols: What is on it, from left to right and then down.
        columns: Symbols in a row.
        scale: Pixels of a module.
    """
    is_metal = symbols[0].label == DATA_MATRIX and random.random() < 0.5
    dotted_share = DOTTED_SHARE
    if is_metal:
        are_dotted = random.random() < DOTTED_METAL_SHARE
        dotted_share = 1.0 if are_dotted else 0.0
    ink_maps = [inked(random, symbol, scale, dotted_share) for symbol in symbols]

    quiet = max(symbol.quiet for symbol in symbols) * scale
    is_board = symbols[0].label == ARUCO
    min_gap = 0.3 if is_board else 1  # of the quiet zone: a board's markers are closer together
    gap = int(quiet * random.uniform(min_gap, 2.5)) + 2
    has_black_squares = is_board and random.random() < 0.4

    ink_map, boxes = _laid_out(ink_maps, columns, gap, has_black_squares=has_black_squares)
    areas = []
    for symbol, box in zip(symbols, boxes, strict=True):
        right = box.left + box.width
        bottom = box.top + box.height
        areas.append(Area(symbol.label, (box.left, box.top, right, bottom)))

    if is_metal:
        return Surface(_metal(random, ink_map, scale), None, areas)
    paper, ink = paper_and_ink(random)
    return Surface(tinted(ink_map, paper, ink), None, areas)


def _laid_out(
    ink_maps: list[Mask], columns: int, gap: int, *, has_black_squares: bool
) -> tuple[Mask, list[Rectangle]]:
    """Lay symbols on a grid, from left to right and then down.

    With black squares, a row of symbols takes two rows of the grid, in which symbols and squares
    alternate as on a chessboard. Four symbols and four squares in four columns:

        symbol  square  symbol  square
        square  symbol  square  symbol

    Args:
        ink_maps: The symbols in ink.
        columns: Symbols in a row.
        gap: Pixels between two symbols, and around all of them.
        has_black_squares: Whether squares are between the symbols.

    Returns:
        The ink of the sheet, and where each symbol is on it.
    """
    pitch_x = max(ink_map.shape[1] for ink_map in ink_maps) + gap
    pitch_y = max(ink_map.shape[0] for ink_map in ink_maps) + gap
    symbol_rows = (len(ink_maps) + columns - 1) // columns
    grid_rows = symbol_rows
    if has_black_squares:
        grid_rows = 2 * symbol_rows
    sheet_ink = np.zeros((grid_rows * pitch_y + gap, columns * pitch_x + gap), np.uint8)

    boxes = []
    for number, ink_map in enumerate(ink_maps):
        symbol_row, column = divmod(number, columns)
        grid_row = symbol_row
        if has_black_squares:
            is_odd_column = column % 2
            grid_row = 2 * symbol_row + is_odd_column
            square_row = 2 * symbol_row + 1 - is_odd_column
            # A square fills its cell of the grid, which begins half a gap before a symbol would.
            square_y = gap // 2 + square_row * pitch_y
            square_x = gap // 2 + column * pitch_x
            sheet_ink[square_y : square_y + pitch_y, square_x : square_x + pitch_x] = 255

        y = gap + grid_row * pitch_y
        x = gap + column * pitch_x
        height, width = ink_map.shape
        sheet_ink[y : y + height, x : x + width] = ink_map
        boxes.append(Rectangle(x, y, width, height))
    return sheet_ink, boxes


def framed(random: Random, surface: Surface, texture: Image) -> Surface:
    """A surface on something larger: a screen with its bezel, or a cardboard box."""
    height, width = surface.image.shape[:2]
    longer_side = max(height, width)
    margins = (random.uniform(0.05, 0.8, 4) * longer_side).astype(int)
    if random.random() < 0.4:
        bezel = max(int(0.07 * longer_side), 2)
        left, top = bezel, bezel
        image = np.empty((height + 2 * bezel, width + 2 * bezel, 3), np.uint8)
        image[:] = colour(random, 0, 60)
    else:
        left, top, right, bottom = margins
        material = _with_mean_colour(texture, colour(random, 60, 230))
        size = (width + left + right, height + top + bottom)
        image = cv2.resize(material, size, interpolation=cv2.INTER_LINEAR)
    image[top : top + height, left : left + width] = surface.image

    areas = []
    for area in surface.areas:
        shifted_box = np.add(area.box, (left, top, left, top))
        areas.append(area._replace(box=tuple(shifted_box.tolist())))
    return Surface(image, None, areas)
