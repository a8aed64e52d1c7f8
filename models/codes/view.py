"""How surfaces are placed in an image: rotated, in perspective, bent around a cylinder."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.textures import Cover, Image, Random

Points = NDArray[Any]  # float64, [P, 2], x and y


class Tilt:
    """How a surface is turned towards the camera; `least` is the strongest foreshortening.

    Args:
        random: Random numbers.
        flat: Whether it is scanned or drawn: square to the image, or upside down.
    """

    def __init__(self, random: Random, *, flat: bool = False) -> None:
        part = random.random()
        self.roll = float(np.radians(random.normal(0, 5)))
        if flat:
            self.roll = np.pi / 2 * random.choice(4, p=[0.7, 0.1, 0.1, 0.1])
        elif part > 0.6:
            self.roll = random.uniform(0, 2 * np.pi)
        elif part > 0.45:
            self.roll += np.pi / 2 * random.integers(1, 4)
        elif part > 0.33:  # as bar codes are held: askew, but not on purpose
            self.roll += np.radians(random.uniform(10, 25) * random.choice([-1, 1]))
        steep = random.choice([25, 50, 70], p=[0.6, 0.25, 0.15])
        steep = random.uniform(-steep, steep, 2) * (random.random(2) if steep < 70 else [1, 0.3])
        if random.random() < 0.05:
            steep[0] = random.uniform(65, 80) * random.choice([-1, 1])
        steep = steep if random.random() < 0.5 else steep[::-1]
        self.pitch, self.yaw = np.radians(steep * (not flat))
        self.least = float(np.cos(self.pitch) * np.cos(self.yaw)) * (1 if flat else 0.9)
        self.distance = random.uniform(1.5, 5)

    def matrix(
        self, middle: tuple[float, float], scale: float, spot: Points, reach: float
    ) -> Points:
        """The homography `[3, 3]` that takes `middle` of a surface to `spot` in the image.

        `reach` is how far the surface extends from there at most, in its own pixels.
        """
        cos, sin = np.cos, np.sin
        a, b, c = self.roll, self.yaw, self.pitch
        roll = np.array([[cos(a), -sin(a), 0], [sin(a), cos(a), 0], [0, 0, 1]])
        yaw = np.array([[cos(b), 0, sin(b)], [0, 1, 0], [-sin(b), 0, cos(b)]])
        pitch = np.array([[1, 0, 0], [0, cos(c), -sin(c)], [0, sin(c), cos(c)]])
        turn = yaw @ pitch @ roll
        focal = self.distance * max(400, reach * scale)  # nothing comes near the camera
        plane = np.column_stack([turn[:, 0] * scale, turn[:, 1] * scale, (0, 0, focal)])
        lens = np.array([[focal, 0, spot[0]], [0, focal, spot[1]], [0, 0, 1]])
        shift = np.array([[1, 0, -middle[0]], [0, 1, -middle[1]], [0, 0, 1]])
        return lens @ plane @ shift


class Bend:
    """A surface around a cylinder: columns crowd towards both sides, rows sag."""

    def __init__(self, random: Random, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.half = random.uniform(0.3, 1.0)  # half of the visible arc, in radians
        self.sag = random.uniform(-0.1, 0.1) * height

    def forward(self, points: Points) -> Points:
        """Where points `[P, 2]` of the flat surface come to lie."""
        angle = (points[:, 0] / self.width * 2 - 1) * self.half
        x = (np.sin(angle) / np.sin(self.half) + 1) / 2 * self.width
        drop = self.sag * (np.cos(angle) - np.cos(self.half)) / (1 - np.cos(self.half))
        return np.column_stack([x, points[:, 1] + drop])

    def applied(self, image: Image) -> Image:
        """The bent image, of the same size: the overhang is cut off, and paper fills the gaps."""
        place = np.arange(self.width, dtype=np.float32) / self.width * 2 - 1
        angle = np.arcsin(np.clip(place * np.sin(self.half), -1, 1))
        source_x = ((angle / self.half + 1) / 2 * self.width).astype(np.float32)
        drop = self.sag * (np.cos(angle) - np.cos(self.half)) / (1 - np.cos(self.half))
        map_x = np.repeat(source_x[None], self.height, 0)
        map_y = np.arange(self.height, dtype=np.float32)[:, None] - drop[None].astype(np.float32)
        return cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def bent(bend: Bend | None, points: Points) -> Points:
    """Points of a surface that may be bent."""
    return points if bend is None else bend.forward(points)


def edge_points(box: tuple[float, float, float, float]) -> Points:
    """Points around a box, nine on each side: enough to follow a bend."""
    left, top, right, bottom = box
    share = np.linspace(0, 1, 9)[:-1]
    rest = np.zeros(8)
    x = np.concatenate([share, rest + 1, 1 - share, rest]) * (right - left) + left
    y = np.concatenate([rest, share, rest + 1, 1 - share]) * (bottom - top) + top
    return np.column_stack([x, y])


def moved(matrix: Points, points: Points) -> Points:
    """Points `[P, 2]` through a homography.

    Pixel (0, 0) is centred at (0, 0) for OpenCV's warp, at (0.5, 0.5) for boxes: a box that
    starts where a pixel starts must come out where the warped pixel starts.
    """
    flat = np.column_stack([points - 0.5, np.ones(len(points))]) @ matrix.T
    moved: Points = flat[:, :2] / flat[:, 2:] + 0.5
    return moved


def area_of(outline: Points) -> float:
    """The area inside an outline (shoelace formula)."""
    x, y = outline.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def clipped(outline: Points, width: float, height: float) -> Points:
    """The part of an outline inside the image (Sutherland and Hodgman); may be empty."""
    points = outline
    if outline.min() >= 0 and (outline.max(0) <= (width, height)).all():
        return outline
    for axis, bound, sign in ((0, 0, 1), (0, width, -1), (1, 0, 1), (1, height, -1)):
        if not len(points):
            break
        depth = (points[:, axis] - bound) * sign
        following, depths = np.roll(points, -1, 0), np.roll(depth, -1)
        inside, crossing = depth >= 0, (depth >= 0) != (depths >= 0)
        share = depth / np.where(crossing, depth - depths, 1)  # of the way to the next point
        crossings = points + (following - points) * share[:, None]
        points = np.stack([points, crossings], 1)[np.stack([inside, crossing], 1)]
    return points


def fill(mask: Cover, outline: Points) -> None:
    """Set the inside of an outline to 255, to a sixteenth of a pixel."""
    fixed = np.clip(np.round((outline - 0.5) * 16), -(2**20), 2**20).astype(np.int32)
    cv2.fillPoly(mask, [fixed], 255, shift=4)


def blend(under: Image, over: Image, alpha: Cover) -> Image:
    """One image over another, with alpha `[H, W]` from 0 to 255."""
    share = cv2.merge([alpha] * 3)
    above = cv2.multiply(over, share, scale=1 / 255)
    return cv2.add(above, cv2.multiply(under, cv2.bitwise_not(share), scale=1 / 255))
