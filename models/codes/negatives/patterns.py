"""Irregular patterns: cloth, water, handwriting, stars, printed shades."""

import cv2
import numpy as np

from codes.negatives.base import blank_map, random_height
from codes.textures import Lettering, Mask, Random, cloud


def cloth(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Threads in bands that lean left and right in turn, or cross: tweed, wicker, parquet.

    A wave across the image makes the threads. It is shifted sideways from row to row.
    """
    height = random_height(random, side, min_ratio=0.5)
    pitch = random.uniform(4, max(side / 14, 5))  # pixels from thread to thread
    band_height = random.uniform(10, max(side / 3, 14))
    y, x = np.mgrid[:height, :side].astype(np.float32)

    # The shift grows down one band and shrinks down the next, which makes a zigzag. Every other
    # band is shifted by half a pitch besides.
    band = y / band_height
    zigzag = np.abs(band % 2 - 1)  # 1 at even band edges, 0 at odd ones
    shift = zigzag * np.float32(band_height * random.uniform(0, 1.5))
    shift += np.float32(pitch / 2) * ((y // band_height) % 2)

    threads = np.sin((x + shift) * np.float32(2 * np.pi / pitch))  # from -1 to 1
    has_crossing_threads = random.random() < 0.5
    if has_crossing_threads:
        pitch_y = pitch * random.uniform(0.5, 2)
        threads *= np.sin(y * np.float32(2 * np.pi / pitch_y))

    noise = cloud(random, 128, coarse=random.uniform(8, 60), octaves=2)
    wear = cv2.resize(noise, (side, height)) * 2 - 1  # from -1 to 1
    contrast = 127 * random.uniform(0.5, 3)
    levels = 127 + contrast * (threads + random.uniform(0.2, 1.5) * wear)
    return np.clip(levels, 0, 255).astype(np.uint8)


def water(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Ripples, zebra skin, sand: stripes that wander, split and fade."""
    height = random_height(random, side, min_ratio=0.4)
    y = np.arange(height, dtype=np.float32)[:, None]
    noise = cloud(random, 256, coarse=random.uniform(2, 10), octaves=3)
    wander = cv2.resize(noise, (side, height), interpolation=cv2.INTER_LINEAR)
    pitch = random.uniform(5, max(side / 8, 6))
    waves = np.sin(2 * np.pi * (y / pitch + wander * random.uniform(1, 9)))
    return np.clip(127 + 127 * waves * random.uniform(0.7, 6), 0, 255).astype(np.uint8)


def blots(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Islands of one colour in another: marbled covers of books, cow hide, camouflage, flowers."""
    height = random_height(random, side, min_ratio=0.5)
    coarse = random.uniform(5, 40)
    noise = cloud(random, 256, coarse=coarse, octaves=int(random.integers(1, 4)))
    landscape = cv2.resize(noise, (side, height), interpolation=cv2.INTER_LINEAR)
    steepness = random.uniform(8, 40)  # of the islands' edges
    sea_level = random.uniform(0.35, 0.65)
    elevation = steepness * (landscape - sea_level)
    return np.clip(128 + 128 * elevation, 0, 255).astype(np.uint8)


def scribble(random: Random, side: int, _lettering: Lettering) -> Mask:
    """Curls and strokes: handwriting, drawings, arabesques, cables, twigs."""
    ink_map = blank_map(random, side)
    for _stroke in range(int(random.integers(1, 12))):
        # The pen takes 60 steps of one length, and turns a little at each.
        turns = random.normal(0, 0.25, 60)
        headings = np.cumsum(turns) + random.uniform(0, 7)
        step_length = random.uniform(0.01, 0.05) * side
        steps = np.column_stack([np.cos(headings), np.sin(headings)]) * step_length
        start = random.uniform(0, 1, 2) * (side, len(ink_map))
        points = (np.cumsum(steps, axis=0) + start).astype(np.int32)

        thickness = max(int(side * random.uniform(0.005, 0.04)), 1)
        cv2.polylines(ink_map, [points], isClosed=False, color=255, thickness=thickness)
    return ink_map


def stars(random: Random, side: int, _lettering: Lettering) -> Mask:
    """A night sky, confetti or lamps, or the rows of stars of a flag."""
    ink_map = blank_map(random, side)
    if random.random() < 0.6:
        _draw_night_sky(random, ink_map)
    else:
        _draw_rows_of_stars(random, ink_map)
    return ink_map


def _draw_night_sky(random: Random, ink_map: Mask) -> None:
    """Draw discs of different brightness anywhere, most of them tiny."""
    height, side = ink_map.shape
    count = int(random.integers(20, 300))
    for x in random.integers(0, side, count).tolist():
        y = int(random.integers(height))
        radius = int(min(random.exponential(1.5), 8))
        brightness = int(random.integers(80, 256))
        cv2.circle(ink_map, (x, y), radius, brightness, cv2.FILLED, cv2.LINE_AA)


def _draw_rows_of_stars(random: Random, ink_map: Mask) -> None:
    """Draw stars with five points, every other row shifted by half a pitch."""
    height, side = ink_map.shape
    pitch = int(random.integers(9, max(side // 5, 10) + 1))
    # Ten corners, by turns outer and inner ones, the first at the top.
    angles = np.arange(10) * np.pi / 5
    radii = np.where(np.arange(10) % 2, 0.18, 0.42) * pitch
    star = np.column_stack([np.sin(angles), -np.cos(angles)]) * radii[:, None]

    for row, y in enumerate(range(pitch // 2, height, pitch)):
        first_x = pitch
        if row % 2:
            first_x = pitch // 2
        for x in range(first_x, side, pitch):
            points = (star + np.array([x, y])).astype(np.int32)
            cv2.fillPoly(ink_map, [points], 255, cv2.LINE_AA)


def halftone(random: Random, side: int, _lettering: Lettering) -> Mask:
    """A printed image: dots on a turned grid, larger where the image is darker."""
    height = random_height(random, side, min_ratio=0.5)
    angle = random.uniform(0, np.pi / 2)
    pitch = random.uniform(3, max(side / 12, 4))  # half a wavelength, in pixels
    y, x = np.mgrid[:height, :side].astype(np.float32) * np.float32(np.pi / pitch)

    # Two waves at right angles, multiplied: peaks and troughs in turn, like a chessboard.
    cos_angle = np.float32(np.cos(angle))
    sin_angle = np.float32(np.sin(angle))
    waves = np.cos(x * cos_angle + y * sin_angle) * np.cos(y * cos_angle - x * sin_angle)

    noise = cloud(random, 128, coarse=3, octaves=4)
    shades = cv2.resize(noise, (side, height), interpolation=cv2.INTER_LINEAR)  # from 0 to 1
    # There is ink where this is above 0. A shade raises or lowers the waves by up to 0.8: where
    # they are higher, more of each peak is above 0, so that the dot is larger.
    raised_waves = waves + 1.6 * shades - 0.8
    return np.clip(127 + 255 * raised_waves, 0, 255).astype(np.uint8)
