"""Squares, bars and lamps at a constant pitch."""

import cv2
import numpy as np

from codes.negatives.base import blank_map, checks, in_squares, random_height
from codes.textures import Lettering, Mask, Random


def chessboard(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Squares of alternating colour, at least five pixels wide: smaller ones blur to grey."""
    cell = int(random.integers(5, max(side // 5, 6) + 1))
    rows = int(random.integers(3, 10))
    columns = max(side // cell, 3)
    return in_squares(checks(rows, columns), cell)


def calibration_board(random: Random, side: int, _lettering: Lettering) -> Mask:
    """What cameras are calibrated with: a chessboard of large squares on a blank sheet."""
    columns = int(random.integers(6, 13))
    rows = int(random.integers(5, 10))
    cell = max(side // (columns + 2), 5)
    margins = random.integers(0, 2 * cell, (2, 2)).tolist()
    return np.pad(in_squares(checks(rows, columns), cell), margins)


def fence(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Slats, blinds, radiators, zebra crossings: bars of a constant pitch, perhaps with rails."""
    pitch = random.uniform(4, max(side / 6, 5))
    bar_share = random.uniform(0.15, 0.85)  # of the pitch
    position_in_pitch = (np.arange(side) / pitch) % 1
    pixel_row = (position_in_pitch < bar_share).astype(np.uint8) * 255
    height = random_height(random, side, min_ratio=0.2)
    ink_map = np.repeat(pixel_row[None], height, axis=0)

    if random.random() < 0.5:
        for y in random.integers(0, len(ink_map), 2).tolist():
            ink_map[y : y + int(pitch)] = 255
    return ink_map


def windows(random: Random, side: int, _lettering: Lettering) -> Mask:
    """A facade: the same window over and over, a few of them lit."""
    ink_map = blank_map(random, side)
    pitch_x, pitch_y = random.uniform(9, max(side / 4, 10), 2).astype(int).tolist()
    window_share = random.uniform(0.4, 0.85)  # of the pitch
    width = int(pitch_x * window_share)
    height = int(pitch_y * window_share)
    for y in range(pitch_y // 4, len(ink_map), pitch_y):
        for x in range(pitch_x // 4, side, pitch_x):
            shade = int(random.choice([255, 200, 120], p=[0.8, 0.1, 0.1]))
            cv2.rectangle(ink_map, (x, y), (x + width, y + height), shade, cv2.FILLED)
    return ink_map


def noise_grid(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Random modules without finder patterns, large enough that their absence is visible."""
    cell = int(random.integers(4, max(side // 8, 5) + 1))
    rows = int(random.integers(5, 25))
    columns = max(side // cell, 5)
    noise = random.random((rows, columns))
    cells = (noise < random.uniform(0.2, 0.8)).astype(np.uint8)
    # The outer columns are half dark, whatever the density.
    cells[:, [0, -1]] = random.integers(0, 2, (rows, 2))
    return in_squares(cells, cell)


def crossword(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Ruled squares, a few of them filled."""
    cell = int(random.integers(6, max(side // 6, 7) + 1))
    count = max(side // cell, 4)
    noise = random.random((count, count))
    cells = (noise < random.uniform(0.1, 0.35)).astype(np.uint8)
    ink_map = in_squares(cells, cell)
    ink_map[::cell] = 255
    ink_map[:, ::cell] = 255
    return ink_map


def dots(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Perforated sheet, halftone, dice: discs on a grid, some of them missing."""
    ink_map = blank_map(random, side)
    pitch = int(random.integers(6, max(side // 5, 7) + 1))
    radius = max(int(pitch * 0.32), 2)
    missing_share = random.uniform(0, 0.3)
    for y in range(pitch // 2, len(ink_map), pitch):
        for x in range(pitch // 2, side, pitch):
            if random.random() > missing_share:
                cv2.circle(ink_map, (x, y), radius, 255, cv2.FILLED, cv2.LINE_AA)
    return ink_map


def lamps(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Lamps in rows on a dark ceiling or facade, with their glow; or fluorescent tubes."""
    light_map = blank_map(random, side)
    pitch_x, pitch_y = random.uniform(10, max(side / 2, 12), 2).astype(int).tolist()
    radius = max(int(min(pitch_x, pitch_y) * random.uniform(0.1, 0.35)), 2)
    half_length = int(random.choice([0, 0, pitch_x // 3]))
    for y in range(pitch_y // 2, len(light_map), pitch_y):
        for x in range(pitch_x // 2, side, pitch_x):
            # A line has round ends, so one of no length is a disc.
            start = (x - half_length, y)
            end = (x + half_length, y)
            cv2.line(light_map, start, end, 255, 2 * radius, cv2.LINE_AA)

    glow = cv2.GaussianBlur(light_map, (0, 0), radius * random.uniform(1, 3))
    soft_lamps = cv2.GaussianBlur(light_map, (0, 0), 0.2 * radius + 0.1)
    return cv2.bitwise_not(cv2.add(soft_lamps, glow))  # ink is mostly darker than paper


def blinds(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Blinds whose slats are shaded from edge to edge, with gaps and strings; some hang upright.

    They are drawn with slats across, as one column of tones that is repeated `side` times.
    """
    height = random_height(random, side, min_ratio=0.4)
    pitch = random.uniform(4, max(side / 9, 5))  # pixels from slat to slat
    gap_share = random.uniform(0, 0.4)  # of the pitch

    # Which slat each row of pixels is on, and how far down on it, from 0 to 1. A random walk makes
    # slats slightly unequal.
    unevenness = np.cumsum(random.normal(0, 0.01, height))
    slat_position = np.arange(height) / pitch + unevenness
    slat_number = slat_position.astype(int).clip(0)
    share_of_slat = slat_position % 1

    slat_tones = random.uniform(0, 110, int(slat_position.max()) + 2) * 0.4  # 0 to 44
    shading = random.uniform(0, 150) * share_of_slat
    is_gap = share_of_slat < gap_share
    row_tones = np.where(is_gap, 255, slat_tones[slat_number] + shading)
    pixel_column = np.clip(row_tones, 0, 255).astype(np.uint8)[:, None]
    ink_map = np.repeat(pixel_column, side, axis=1)

    string_count = int(random.integers(0, 4))
    for x in random.integers(0, side, string_count).tolist():
        tone = int(random.integers(0, 256))
        cv2.line(ink_map, (x, 0), (x, height), tone, max(side // 90, 1))

    hangs_upright = random.random() < 0.4
    if hangs_upright:
        ink_map = ink_map.T
    return np.ascontiguousarray(ink_map)


def maze(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Mazes, circuit boards: each cell has a wall above it or on its left, at random."""
    cell = int(random.integers(5, max(side // 8, 6) + 1))
    count = max(side // cell, 4)
    ink_map = np.zeros((count * cell, count * cell), np.uint8)
    thickness = max(int(cell * random.uniform(0.2, 0.5)), 1)
    for row, column in np.ndindex(count, count):
        top = row * cell
        left = column * cell
        if random.random() < 0.5:
            ink_map[top : top + thickness, left : left + cell + thickness] = 255
        else:
            ink_map[top : top + cell + thickness, left : left + thickness] = 255
    return ink_map
