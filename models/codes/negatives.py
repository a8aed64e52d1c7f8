"""Lookalikes: flat things that look machine-readable, which a detector must ignore."""

from collections.abc import Callable

import cv2
import numpy as np
import zxingcpp

from codes.surfaces import Surface, colours
from codes.symbols import MIXED, Format, text
from codes.textures import Cover, Lettering, Random, cloud, tinted

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


def headline(random: Random, side: int, lettering: Lettering) -> Cover:
    """A word or two in letters as high as a bar code: brands, headlines, signs."""
    size = int(side * random.uniform(0.15, 0.6)) + 4
    cover = np.zeros((int(size * random.integers(1, 3) * 1.15) + 4, side), np.uint8)
    for y in range(2, len(cover) - size + 1, int(size * 1.1)):
        lettering.line(random, cover, 2, y, size, side - 4)
    return cover


def chessboard(random: Random, side: int, _: Lettering) -> Cover:
    """Squares of alternating colour, at least five pixels wide: smaller ones blur to grey."""
    cell = int(random.integers(5, max(side // 5, 6) + 1))
    rows, columns = int(random.integers(3, 10)), max(side // cell, 3)
    checks = np.indices((rows, columns)).sum(0) % 2
    return np.kron(checks.astype(np.uint8) * 255, np.ones((cell, cell), np.uint8)).astype(np.uint8)


def calibration_board(random: Random, side: int, _: Lettering) -> Cover:
    """What cameras are calibrated with: a chessboard of large squares on a blank sheet."""
    columns, rows = int(random.integers(6, 13)), int(random.integers(5, 10))
    cell = max(side // (columns + 2), 5)
    checks = np.indices((rows, columns)).sum(0) % 2
    board = np.kron(checks, np.ones((cell, cell))).astype(np.uint8) * np.uint8(255)
    return np.pad(board, random.integers(0, 2 * cell, (2, 2)).tolist())


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
    """Symbologies outside the classes: what resembles Han Xin and DotCode."""
    count = int(random.integers(15, 40))
    cells = (random.random((count, count)) < 0.5).astype(np.uint8)
    scale = max(side // count, 2)
    if random.random() < 0.6:  # DotCode: dots on every other place, as on a chessboard
        cells[np.indices(cells.shape).sum(0) % 2 == 0] = 0
        cover = np.kron(cells * np.uint8(255), np.ones((scale, scale), np.uint8))
        return cv2.GaussianBlur(cover, (0, 0), scale * 0.3)
    corner = np.ones((8, 8), np.uint8)  # Han Xin: an angle within an angle in each corner
    corner[:7, :7], corner[:6, :6] = 0, 1
    corner[:4, :4], corner[:3, :3] = 0, 1
    for turn, (y, x) in enumerate(((0, 0), (-8, 0), (-8, -8), (0, -8))):
        cells[y : y + 8 or None, x : x + 8 or None] = np.rot90(corner, turn)
    return np.kron(cells * np.uint8(255), np.ones((scale, scale), np.uint8))


def maxicode(random: Random, side: int, _: Lettering) -> Cover:
    """Rings in a field of hexagons, which resemble Aztec Codes."""
    drawn = zxingcpp.write_barcode_to_image(
        zxingcpp.create_barcode(text(random, MIXED, 10, 60), Format.MaxiCode), scale=4
    )
    cover = np.pad((np.array(drawn) < 128).astype(np.uint8) * np.uint8(255), 8)
    height = max(side * len(cover) // cover.shape[1], 4)
    return cv2.resize(cover, (side, height), interpolation=cv2.INTER_AREA)


def cloth(random: Random, side: int, _: Lettering) -> Cover:
    """Threads in rows that lean left and right in turn, or cross: tweed, wicker, parquet."""
    height = max(int(side * random.uniform(0.5, MAX_HEIGHT_RATIO)), 12)
    pitch, band = random.uniform(4, max(side / 14, 5)), random.uniform(10, max(side / 3, 14))
    y, x = np.mgrid[:height, :side].astype(np.float32)
    lean = np.abs((y / band) % 2 - 1) * np.float32(band * random.uniform(0, 1.5))
    lean += np.float32(pitch / 2) * ((y // band) % 2)
    threads = np.sin((x + lean) * np.float32(2 * np.pi / pitch))
    if random.random() < 0.5:
        threads *= np.sin(y * np.float32(2 * np.pi / (pitch * random.uniform(0.5, 2))))
    worn = cv2.resize(cloud(random, 128, random.uniform(8, 60), 2), (side, height)) * 2 - 1
    shades = 127 + 127 * random.uniform(0.5, 3) * (threads + random.uniform(0.2, 1.5) * worn)
    return np.clip(shades, 0, 255).astype(np.uint8)


def scribble(random: Random, side: int, _: Lettering) -> Cover:
    """Curls and strokes: handwriting, drawings, arabesques, cables, twigs."""
    cover = _blank(random, side)
    height = len(cover)
    for _stroke in range(int(random.integers(1, 12))):
        turns = np.cumsum(random.normal(0, 0.25, 60)) + random.uniform(0, 7)
        step = random.uniform(0.01, 0.05) * side
        course = np.cumsum(np.column_stack([np.cos(turns), np.sin(turns)]) * step, 0)
        course = (course + random.uniform(0, 1, 2) * (side, height)).astype(np.int32)
        thick = max(int(side * random.uniform(0.005, 0.04)), 1)
        cv2.polylines(cover, [course], isClosed=False, color=255, thickness=thick)
    return cover


def dial(random: Random, side: int, lettering: Lettering) -> Cover:
    """A clock, a gauge or a wheel: marks or spokes around a middle, with hands."""
    cover = np.zeros((side, side), np.uint8)
    middle, reach = np.array([side / 2, side / 2]), side * 0.47
    cv2.circle(cover, (side // 2, side // 2), int(reach), 255, max(side // 25, 1), cv2.LINE_AA)
    inner = random.uniform(0.05, 0.9)
    for angle in np.arange(0, 2 * np.pi, 2 * np.pi / random.choice([4, 8, 12, 12, 24, 60])):
        way = np.array([np.sin(angle), -np.cos(angle)]) * reach
        ends = (middle + way * inner).astype(int), (middle + way * 0.95).astype(int)
        cv2.line(cover, ends[0].tolist(), ends[1].tolist(), 255, max(side // 60, 1), cv2.LINE_AA)
    for far in random.uniform(0.2, 0.9, int(random.integers(0, 4))).tolist():
        angle = random.uniform(0, 2 * np.pi)
        end = middle + np.array([np.sin(angle), -np.cos(angle)]) * reach * far
        start = middle.astype(int).tolist()
        cv2.line(cover, start, end.astype(int).tolist(), 255, max(side // 30, 1), cv2.LINE_AA)
    lettering.line(random, cover, side // 3, side * 3 // 5, side // 10 + 3, side // 3)
    return cover


def postal(random: Random, side: int, _: Lettering) -> Cover:
    """Bars of one width and pitch, of two or four heights, as post offices print."""
    count = min(int(random.integers(20, 70)), side // 3)
    pitch = side // count
    high = int(pitch * random.uniform(2.5, 5))
    cover = np.zeros((high, pitch * count), np.uint8)
    tops, ends = ((0, high // 3), (high, high * 2 // 3))
    if random.random() < 0.3:
        tops, ends = (0, high // 2), (high, high)
    for number in range(count):
        top, end = int(random.choice(tops)), int(random.choice(ends))
        cover[top:end, number * pitch : number * pitch + max(pitch * 2 // 5, 1)] = 255
    return np.pad(cover, pitch)


def few_bars(random: Random, side: int, _: Lettering) -> Cover:
    """Two to seven strokes of two widths: Pharmacode, tally marks, flags, pause signs."""
    count = int(random.integers(2, 8))
    wide = max(side // (3 * count), 2)
    widths = [wide * int(random.integers(1, 4)) for _ in range(2 * count)]
    row = np.concatenate(
        [np.full(width, 255 * (number % 2), np.uint8) for number, width in enumerate(widths)]
    )
    return np.repeat(np.pad(row, wide)[None], int(len(row) * random.uniform(0.2, 1.2)) + 4, 0)


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


def remote(random: Random, side: int, lettering: Lettering) -> Cover:
    """A remote control, a telephone or a calculator: rows of buttons, some with a sign."""
    columns, rows = int(random.integers(3, 6)), int(random.integers(5, 13))
    pitch = max(side // rows, 5)
    cover = np.zeros((pitch * rows, pitch * columns), np.uint8)
    reach = int(pitch * random.uniform(0.25, 0.46))
    flat = random.uniform(0.5, 1)
    for row in range(rows):
        if random.random() < 0.12:
            continue
        shade = int(random.choice([255, 255, 170, 90]))
        for column in range(columns):
            x, y = (2 * column + 1) * pitch // 2, (2 * row + 1) * pitch // 2
            if flat > 0.75:
                cv2.circle(cover, (x, y), reach, shade, cv2.FILLED, cv2.LINE_AA)
            else:
                high = int(reach * flat)
                cv2.rectangle(cover, (x - reach, y - high), (x + reach, y + high), shade, -1)
            if pitch > 16 and random.random() < 0.7:
                sign = np.zeros((pitch // 3, pitch // 3), np.uint8)
                lettering.line(random, sign, 0, 0, pitch // 3, pitch // 3)
                area = cover[y - pitch // 6 :, x - pitch // 6 :][: len(sign), : len(sign)]
                area -= np.minimum(sign[: area.shape[0], : area.shape[1]], area)
    return cover


def water(random: Random, side: int, _: Lettering) -> Cover:
    """Ripples, zebra skin, sand: stripes that wander, split and fade."""
    height = max(int(side * random.uniform(0.4, MAX_HEIGHT_RATIO)), 12)
    y = np.arange(height, dtype=np.float32)[:, None]
    wander = cloud(random, 256, random.uniform(2, 10), 3)
    wander = cv2.resize(wander, (side, height), interpolation=cv2.INTER_LINEAR)
    pitch = random.uniform(5, max(side / 8, 6))
    waves = np.sin(2 * np.pi * (y / pitch + wander * random.uniform(1, 9)))
    return np.clip(127 + 127 * waves * random.uniform(0.7, 6), 0, 255).astype(np.uint8)


def sausages(random: Random, side: int, _: Lettering) -> Cover:
    """Long round things side by side, with a wavy stroke on some: food, pens, pipes, fingers."""
    cover = np.zeros((max(int(side * random.uniform(0.3, 0.9)), 16), side), np.uint8)
    x = 0
    while x < side:
        wide = max(int(side * random.uniform(0.04, 0.16)), 4)
        top, end = (len(cover) * random.uniform((0, 0.8), (0.2, 1))).astype(int).tolist()
        middle, shade = x + wide // 2, int(random.integers(90, 256))
        cv2.line(cover, (middle, top + wide // 2), (middle, end - wide // 2), shade, wide)
        if random.random() < 0.4:
            steps = np.arange(top, end, 3)
            bends = middle + np.sin(steps * random.uniform(0.1, 0.6)) * wide * 0.3
            stroke = np.column_stack([bends, steps]).astype(np.int32)
            thick = max(wide // 6, 1)
            cv2.polylines(cover, [stroke], isClosed=False, color=30, thickness=thick)
        x += int(wide * random.uniform(1, 1.6)) + 1
    return cover


def blots(random: Random, side: int, _: Lettering) -> Cover:
    """Islands of one colour in another: marbled covers of books, cow hide, camouflage, flowers."""
    height = max(int(side * random.uniform(0.5, MAX_HEIGHT_RATIO)), 12)
    field = cloud(random, 256, random.uniform(5, 40), int(random.integers(1, 4)))
    shape = cv2.resize(field, (side, height), interpolation=cv2.INTER_LINEAR)
    sharp = random.uniform(8, 40) * (shape - random.uniform(0.35, 0.65))
    return np.clip(128 + 128 * sharp, 0, 255).astype(np.uint8)


def stars(random: Random, side: int, _: Lettering) -> Cover:
    """A night sky, confetti or lamps, or the rows of stars of a flag."""
    cover = _blank(random, side)
    height = len(cover)
    if random.random() < 0.6:
        for x in random.integers(0, side, int(random.integers(20, 300))).tolist():
            place = (x, int(random.integers(height)))
            reach = int(min(random.exponential(1.5), 8))
            cv2.circle(cover, place, reach, int(random.integers(80, 256)), cv2.FILLED, cv2.LINE_AA)
        return cover
    pitch = int(random.integers(9, max(side // 5, 10) + 1))
    angles = np.arange(10) * np.pi / 5
    spokes = np.where(np.arange(10) % 2, 0.18, 0.42) * pitch
    star = np.column_stack([np.sin(angles), -np.cos(angles)]) * spokes[:, None]
    for row, y in enumerate(range(pitch // 2, height, pitch)):
        for x in range(pitch // (1 + row % 2), side, pitch):
            cv2.fillPoly(cover, [(star + np.array([x, y])).astype(np.int32)], 255, cv2.LINE_AA)
    return cover


def halftone(random: Random, side: int, _: Lettering) -> Cover:
    """A printed image: dots on a turned grid whose size follows its shades."""
    height = max(int(side * random.uniform(0.5, MAX_HEIGHT_RATIO)), 12)
    turn, pitch = random.uniform(0, np.pi / 2), random.uniform(3, max(side / 12, 4))
    y, x = np.mgrid[:height, :side].astype(np.float32) * np.float32(np.pi / pitch)
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    grid = np.cos(x * cos + y * sin) * np.cos(y * cos - x * sin)
    shades = cv2.resize(cloud(random, 128, 3, 4), (side, height), interpolation=cv2.INTER_LINEAR)
    return np.clip(127 + 255 * (grid + 1.6 * shades - 0.8), 0, 255).astype(np.uint8)


def columns(random: Random, side: int, lettering: Lettering) -> Cover:
    """Narrow columns of dense lines: a newspaper, a list, a price board, ingredients."""
    cover = _blank(random, side)
    count = int(random.integers(2, 7))
    wide = side // count
    size = int(np.clip(random.uniform(0.03, 0.12) * side, 4, 24))
    for column in range(count):
        for y in range(0, len(cover) - size, size + int(random.integers(0, 3))):
            share = random.uniform(0.4, 1) if random.random() < 0.3 else 1.0
            lettering.line(random, cover, column * wide, y, size, int((wide - size) * share))
    return cover


def almost_qr(random: Random, side: int, _: Lettering) -> Cover:
    """A logo of squares within squares, or a figure of coarse pixels: no code."""
    if random.random() < 0.5:  # a figure, the same left and right
        half = (
            random.random((int(random.integers(6, 12)), int(random.integers(3, 6)))) < 0.5
        ) * 255
        cells = np.concatenate([half, half[:, ::-1]], 1).astype(np.uint8)
        cell = max(side // cells.shape[1], 3)
        return np.pad(np.kron(cells, np.ones((cell, cell), np.uint8)), cell)
    cover = np.zeros((side, side), np.uint8)
    reach = int(side * random.uniform(0.12, 0.23))
    places = [(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)][: int(random.integers(1, 5))]
    for across, down in places:
        x, y = int(across * side), int(down * side)
        for shade, share in ((255, 1.0), (0, random.uniform(0.6, 0.85)), (255, 0.45)):
            far = int(reach * share)
            cv2.rectangle(cover, (x - far, y - far), (x + far, y + far), shade, cv2.FILLED)
    if random.random() < 0.5:
        cv2.circle(cover, (side // 2, side // 2), reach // 2, 255, cv2.FILLED, cv2.LINE_AA)
    return cover


def ingredients(random: Random, side: int, lettering: Lettering) -> Cover:
    """Small print in a dense block, a word of it larger, beside a table of figures."""
    cover = _blank(random, side)
    size = int(np.clip(random.uniform(0.025, 0.07) * side, 4, 16))
    wide = int(side * random.uniform(0.5, 1))
    for y in range(1, len(cover) - size, max(int(size * random.uniform(0.95, 1.25)), 4)):
        x = 1
        while x < wide - 3 * size:
            length = int(random.uniform(3, 25) * size)
            lettering.line(random, cover, x, y, size, min(length, wide - x))
            x += length + size // 3
    for y in range(2, len(cover) - size, int(size * 1.5)):
        lettering.line(random, cover, wide + size, y, size, side - wide - 6 * size)
        lettering.line(random, cover, side - 4 * size, y, size, 3 * size)
        cv2.line(cover, (wide + size, y + size + 1), (side - size, y + size + 1), 200, 1)
    return cover


def marks(random: Random, side: int, lettering: Lettering) -> Cover:
    """A row of signs as on packages and labels in clothes: recycling, washing, ironing, a name."""
    count = int(random.integers(1, 6))
    size = max(side // count, 12)
    cover = np.zeros((size, size * count), np.uint8)
    thick = max(int(size * random.uniform(0.03, 0.08)), 1)
    for number in range(count):
        area = cover[:, number * size : (number + 1) * size]
        part = int(random.integers(4))
        low, high = int(size * 0.15), int(size * 0.85)
        if part == 0:
            _arrows(random, area)
        elif part == 1:  # a tub, a square, a circle, perhaps crossed out
            tub = [(low, low), (low + size // 10, high), (high - size // 10, high), (high, low)]
            cv2.polylines(area, [np.array(tub)], bool(random.random() < 0.5), 255, thick)
            cv2.circle(area, (size // 2, size // 2), size // 5, 255, thick, cv2.LINE_AA)
        elif part == 2:
            corners = [(size // 2, low), (high, high), (low, high)]
            cv2.polylines(area, [np.array(corners)], isClosed=True, color=255, thickness=thick)
        else:
            lettering.line(random, area, low, size // 3, size // 2, high - low)
        if part and random.random() < 0.4:
            cv2.line(area, (low, low), (high, high), 255, thick, cv2.LINE_AA)
            cv2.line(area, (high, low), (low, high), 255, thick, cv2.LINE_AA)
    return cover


def _arrows(random: Random, area: Cover) -> None:
    """Three arrows that follow each other around a triangle."""
    size = len(area)
    thick = max(int(size * random.uniform(0.05, 0.13)), 1)
    turn = np.exp(2j * np.pi * np.arange(3) / 3 - 0.5j * np.pi)  # the corners of the triangle
    for corner, after in zip(turn, np.roll(turn, -1), strict=True):
        way = (after - corner) / abs(after - corner)
        bend, tip = corner + 0.3 * way, after - 0.55 * way
        start = corner + 0.3 * (np.roll(turn, 1)[turn == corner][0] - corner)
        head = [tip + 0.28j * way, tip - 0.28j * way, tip + 0.42 * way]
        for course, closed in (([start, bend, tip], False), (head, True)):
            points = (np.array(course) * 0.42 + 0.5 + 0.55j) * size
            fixed = np.column_stack([points.real, points.imag]).astype(np.int32)
            if closed:
                cv2.fillPoly(area, [fixed], 255, cv2.LINE_AA)
            else:
                cv2.polylines(area, [fixed], isClosed=False, color=255, thickness=thick)


def road_sign(random: Random, side: int, lettering: Lettering) -> Cover:
    """A border around an arrow, a bar or a word: round, or with three, four or eight corners."""
    cover = np.zeros((side, side), np.uint8)
    corners = int(random.choice([3, 4, 4, 8, 60, 60]))
    angles = 2 * np.pi * np.arange(corners) / corners - np.pi / 2
    angles += np.pi / corners * random.integers(2)
    ring = np.column_stack([np.cos(angles), np.sin(angles)])
    rim, field, sign = random.choice([(255, 0, 255), (255, 60, 0), (130, 255, 0), (200, 255, 30)])
    for share, shade in ((0.5, rim), (random.uniform(0.36, 0.46), field)):
        points = (ring * share * side + side / 2).astype(np.int32)
        cv2.fillPoly(cover, [points], int(shade), cv2.LINE_AA)
    middle, far = side // 2, int(side * random.uniform(0.15, 0.27))
    part = random.random()
    if part < 0.35:
        ends = [(middle - far, middle + far), (middle + far, middle), (middle, middle - far)]
        end = ends[int(random.integers(3))]
        start = (middle - far * int(random.integers(2)), middle + far)
        thick = max(side // 14, 1)
        cv2.arrowedLine(cover, start, end, int(sign), thick, cv2.LINE_AA, tipLength=0.45)
    elif part < 0.6:
        high = max(far // 3, 1)
        corner = (middle + far, middle + high)
        cv2.rectangle(cover, (middle - far, middle - high), corner, int(sign), cv2.FILLED)
    else:
        word = np.zeros((max(far, 4), 2 * far + 1), np.uint8)
        lettering.line(random, word, 0, 0, len(word), word.shape[1])
        top, left = middle - len(word) // 2, middle - far
        cover[top : top + len(word), left : left + word.shape[1]][word > 127] = sign
    return cover


def lamps(random: Random, side: int, _: Lettering) -> Cover:
    """Lamps in rows on a dark ceiling or facade, with their glow; or tubes."""
    cover = _blank(random, side)
    pitch_x, pitch_y = random.uniform(10, max(side / 2, 12), 2).astype(int).tolist()
    reach = max(int(min(pitch_x, pitch_y) * random.uniform(0.1, 0.35)), 2)
    long = int(random.choice([0, 0, pitch_x // 3]))
    for y in range(pitch_y // 2, len(cover), pitch_y):
        for x in range(pitch_x // 2, side, pitch_x):
            cv2.line(cover, (x - long, y), (x + long, y), 255, 2 * reach, cv2.LINE_AA)
    glow = cv2.GaussianBlur(cover, (0, 0), reach * random.uniform(1, 3))
    lit = cv2.add(cv2.GaussianBlur(cover, (0, 0), 0.2 * reach + 0.1), glow)
    return cv2.bitwise_not(lit)  # ink is mostly darker than paper


def blinds(random: Random, side: int, _: Lettering) -> Cover:
    """Slats that are shaded from edge to edge, with gaps and strings, across or upright."""
    height = max(int(side * random.uniform(0.4, MAX_HEIGHT_RATIO)), 12)
    pitch, gap = random.uniform(4, max(side / 9, 5)), random.uniform(0, 0.4)
    place = np.arange(height) / pitch + np.cumsum(random.normal(0, 0.01, height))
    inside = place % 1
    tones = random.uniform(0, 110, int(place.max()) + 2)[place.astype(int).clip(0)] * 0.4
    rows = np.where(inside < gap, 255, tones + random.uniform(0, 150) * inside)
    cover = np.repeat(np.clip(rows, 0, 255).astype(np.uint8)[:, None], side, 1)
    for x in random.integers(0, side, int(random.integers(0, 4))).tolist():
        cv2.line(cover, (x, 0), (x, height), int(random.integers(0, 256)), max(side // 90, 1))
    return np.ascontiguousarray(cover.T if random.random() < 0.4 else cover)


def tie(random: Random, side: int, _: Lettering) -> Cover:
    """A tie: stripes that lean, or dots, between two long edges."""
    wide = max(int(side * random.uniform(0.2, 0.35)), 8)
    y, x = np.mgrid[:side, :wide].astype(np.float32)
    pitch = random.uniform(4, max(wide / 2, 5))
    lean = (x + y * random.choice([-1, 1])) / np.float32(pitch)
    stripes = ((lean % 1) < random.uniform(0.1, 0.6)) * np.float32(130)
    stripes += ((lean % 1) < random.uniform(0.05, 0.2)) * np.float32(60)
    if random.random() < 0.25:
        stripes = (np.sin(x * 3 / pitch) * np.sin(y * 3 / pitch) > 0.5) * np.float32(150)
    form = np.array(
        [(0.3, 0), (0.7, 0), (0.6, 0.12), (1, 0.85), (0.5, 1), (0, 0.85), (0.4, 0.12)], float
    )
    mask: Cover = np.zeros((side, wide), np.uint8)
    cv2.fillPoly(mask, [(form * (wide - 1, side - 1)).astype(np.int32)], 255, cv2.LINE_AA)
    return np.where(mask > 127, 70 + stripes, 0).astype(np.uint8)


def leaves(random: Random, side: int, _: Lettering) -> Cover:
    """Twigs with leaves on both sides, pointed or round, with veins: ferns, palms, hedges."""
    cover = _blank(random, side)
    height = len(cover)
    for _twig in range(int(random.integers(3, 16))):
        start, heading = random.uniform(0, 1, 2) * (side, height), random.uniform(0, 2 * np.pi)
        length = side * random.uniform(0.3, 0.9)
        count = int(random.integers(4, 26))
        reach = length / count * random.uniform(1, 4)
        axes = np.array([reach, min(length / count, 0.5 * reach) * random.uniform(0.5, 0.9)])
        shade, angle = int(random.integers(110, 256)), random.uniform(25, 75)
        for step in range(count):
            heading += random.normal(0, 0.04)
            start += np.array([np.cos(heading), np.sin(heading)]) * length / count
            for sign in (-1, 1):
                turn = heading + np.radians(angle) * sign
                end = start + np.array([np.cos(turn), np.sin(turn)]) * reach * (1 - step / count)
                box = (((start + end) / 2).tolist(), (axes * (1 - step / count)).tolist())
                cv2.ellipse(cover, (*box, np.degrees(turn)), shade, cv2.FILLED, cv2.LINE_AA)
                ends = start.astype(int).tolist(), end.astype(int).tolist()
                cv2.line(cover, *ends, shade // 2, max(side // 250, 1), cv2.LINE_AA)
    return cover


def piano(random: Random, side: int, _: Lettering) -> Cover:
    """The keys of a piano: black ones in twos and threes."""
    key = int(random.integers(6, max(side // 8, 7) + 1))
    cover = np.zeros((int(key * random.uniform(3, 6)), side), np.uint8)
    cover[:, ::key] = 255
    for number in range(1, side // key):
        if number % 7 not in {0, 3}:
            x = number * key
            cover[: len(cover) * 3 // 5, max(x - key // 3, 0) : x + key // 3] = 255
    return cover


def bookshelf(random: Random, side: int, lettering: Lettering) -> Cover:
    """Spines of books of different heights and shades, with titles along them."""
    cover = np.full((max(int(side * random.uniform(0.4, 1)), 24), side), 255, np.uint8)
    x = 0
    while x < side:
        wide = int(side * random.uniform(0.03, 0.12)) + 3
        top = int(len(cover) * random.uniform(0, 0.3))
        cover[top:, x : x + wide - 1] = int(random.integers(0, 220))
        title = np.zeros((max(wide * 2 // 3, 3), len(cover) - top), np.uint8)
        lettering.line(random, title, 4, 0, len(title), title.shape[1] - 8)
        area = cover[top:, x + wide // 6 :][:, : len(title)]
        area -= np.minimum(title.T[:, : area.shape[1]], area)
        x += wide
    return cover


def maze(random: Random, side: int, _: Lettering) -> Cover:
    """Walls left and right or up and down of each cell, at random: mazes, circuit boards."""
    cell = int(random.integers(5, max(side // 8, 6) + 1))
    count = max(side // cell, 4)
    cover = np.zeros((count * cell, count * cell), np.uint8)
    thick = max(int(cell * random.uniform(0.2, 0.5)), 1)
    for row, column in np.ndindex(count, count):
        y, x = row * cell, column * cell
        if random.random() < 0.5:
            cover[y : y + thick, x : x + cell + thick] = 255
        else:
            cover[y : y + cell + thick, x : x + thick] = 255
    return cover


# The kinds that are mistaken for symbols most often are repeated.
TRAINING: tuple[Maker, ...] = (
    text_block, text_block, headline, headline, headline, chessboard, fence, fence, fence, fence,
    windows, windows, noise_grid, noise_grid, noise_grid, table, emblem, other_code, other_code,
    other_code, maxicode, maxicode, maxicode, maxicode, staves, dots, keyboard, crossword, ruler,
    remote, water, water, cloth, cloth, scribble, dial, sausages, stars, halftone, columns,
    almost_qr, almost_qr, almost_qr, postal, postal, few_bars, ingredients, marks, road_sign, lamps,
    blinds, tie, leaves, bookshelf, blots,
)  # fmt: skip
# The same with more of what is still mistaken after two cycles, which is two thirds of them.
HARD: tuple[Maker, ...] = (
    *TRAINING, *[chessboard] * 6, *[calibration_board] * 8, *[headline] * 10, *[text_block] * 4,
    *[cloth] * 4, *[fence] * 2, *[noise_grid] * 3, *[few_bars] * 3, *[ingredients] * 6,
    *[marks] * 4, *[road_sign] * 5, *[lamps] * 4, *[blinds] * 5, *[tie] * 4, *[leaves] * 5,
    *[bookshelf] * 5, *[blots] * 6, *[dial] * 5, *[remote] * 5, *[columns] * 3, *[scribble] * 3,
)  # fmt: skip
# Pianos and mazes are never seen in training.
HELD_OUT: tuple[Maker, ...] = (
    text_block, headline, chessboard, fence, windows, noise_grid, emblem, other_code, maxicode,
    keyboard, crossword, remote, halftone, cloth, almost_qr, piano, bookshelf, maze,
)  # fmt: skip
