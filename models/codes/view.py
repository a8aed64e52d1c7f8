"""How surfaces are placed in an image: rotated, in perspective, bent around a cylinder."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.textures import Image, Mask, Random

Points = NDArray[Any]  # float64, [P, 2], x and y
Homography = NDArray[Any]  # float64, [3, 3]

MIN_FOCAL = 400  # pixels


class Tilt:
    """How a surface is turned towards the camera, drawn at random.

    Attributes:
        roll: Rotation within the image, in radians.
        pitch: Rotation about the horizontal axis, in radians: the upper edge comes or goes.
        yaw: Rotation about the vertical axis, in radians.
        shrinkage: By what the surface is shortened where the tilt shortens it most, from 0 to 1.
        distance: Focal length over the size of the surface; perspective is strong if it is small.

    Args:
        random: Where the angles come from.
        flat: Whether it is scanned or drawn: square to the image, or upside down.
    """

    def __init__(self, random: Random, *, flat: bool = False) -> None:
        """Draw the angles and the distance."""
        self.roll = _roll(random, flat=flat)
        # Drawn for flat surfaces too, but not used for them.
        pitch, yaw = _pitch_and_yaw(random)
        if flat:
            pitch = 0.0
            yaw = 0.0
        self.pitch = pitch
        self.yaw = yaw

        self.shrinkage = float(np.cos(self.pitch) * np.cos(self.yaw))
        if not flat:
            self.shrinkage *= 0.9  # perspective makes the far end smaller still
        self.distance = random.uniform(1.5, 5)

    def homography(
        self, middle: tuple[float, float], scale: float, target: Points, extent: float
    ) -> Homography:
        """The homography `[3, 3]` that takes `middle` of a surface to `target` in the image.

        Args:
            middle: x and y on the surface, in its own pixels.
            scale: Pixels in the image for a pixel of the surface, before the tilt.
            target: x and y in the image.
            extent: How far the surface reaches from the middle at most, in its own pixels.
        """
        rotation = _yaw_matrix(self.yaw) @ _pitch_matrix(self.pitch) @ _roll_matrix(self.roll)
        # The focal length grows with the surface, so that no part of it comes near the camera.
        focal = self.distance * max(MIN_FOCAL, extent * scale)

        to_middle = np.array([[1, 0, -middle[0]], [0, 1, -middle[1]], [0, 0, 1]])
        # The surface is a plane: of the rotation, two columns are needed, and the third is where
        # the plane lies, a focal length away from the camera.
        to_camera = np.column_stack([rotation[:, 0] * scale, rotation[:, 1] * scale, (0, 0, focal)])
        to_image = np.array([[focal, 0, target[0]], [0, focal, target[1]], [0, 0, 1]])
        return to_image @ to_camera @ to_middle


def _roll(random: Random, *, flat: bool) -> float:
    """A random rotation within the image, in radians: a third of the surfaces are about upright.

    A flat surface is upright in seven of ten cases, otherwise turned by a multiple of 90 degrees.
    """
    choice = random.random()
    wobble = float(np.radians(random.normal(0, 5)))
    if flat:
        quarter_turns = random.choice(4, p=[0.7, 0.1, 0.1, 0.1])
        return float(np.pi / 2 * quarter_turns)

    if choice > 0.6:  # 40%: any direction
        return float(random.uniform(0, 2 * np.pi))
    if choice > 0.45:  # 15%: on its side or upside down
        quarter_turns = random.integers(1, 4)
        return float(wobble + np.pi / 2 * quarter_turns)
    if choice > 0.33:  # 12%: askew, as people hold bar codes
        return float(wobble + np.radians(random.uniform(10, 25) * random.choice([-1, 1])))
    return wobble  # 33%: upright


def _pitch_and_yaw(random: Random) -> tuple[float, float]:
    """Random pitch and yaw in radians; if one of them is steep, the other is not.

    Two angles are drawn, of which only the first may be steep, and are assigned in either order.
    """
    limit = random.choice([25, 50, 70], p=[0.6, 0.25, 0.15])  # degrees
    angles = random.uniform(-limit, limit, 2)
    if limit < 70:
        angles = angles * random.random(2)  # smaller angles more often
    else:
        angles = angles * [1, 0.3]
    if random.random() < 0.05:  # nearly from the side
        angles[0] = random.uniform(65, 80) * random.choice([-1, 1])

    first, second = np.radians(angles)
    if random.random() < 0.5:
        return first, second
    return second, first


def _roll_matrix(angle: float) -> NDArray[np.float64]:
    """Rotation about the camera's axis."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])


def _yaw_matrix(angle: float) -> NDArray[np.float64]:
    """Rotation about the vertical axis."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])


def _pitch_matrix(angle: float) -> NDArray[np.float64]:
    """Rotation about the horizontal axis."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])


class Bend:
    """A surface around a cylinder: columns crowd towards both sides, rows sag.

    Attributes:
        half_arc: Half of the visible arc, in radians.
        sag: How much lower the middle of a row is than its ends, in pixels; it may be negative.
    """

    def __init__(self, random: Random, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.half_arc = random.uniform(0.3, 1.0)
        self.sag = random.uniform(-0.1, 0.1) * height

    def forward(self, points: Points) -> Points:
        """Where points `[P, 2]` of the flat surface come to lie."""
        angle = (points[:, 0] / self.width * 2 - 1) * self.half_arc
        x = (np.sin(angle) / np.sin(self.half_arc) + 1) / 2 * self.width
        return np.column_stack([x, points[:, 1] + self._drop(angle)])

    def applied(self, image: Image) -> Image:
        """The bent image, of the same size: the overhang is cut off, and paper fills the gaps."""
        position = np.arange(self.width, dtype=np.float32) / self.width * 2 - 1  # from -1 to 1
        angle = np.arcsin(np.clip(position * np.sin(self.half_arc), -1, 1))
        source_x = ((angle / self.half_arc + 1) / 2 * self.width).astype(np.float32)
        drop = self._drop(angle)[None].astype(np.float32)

        map_x = np.repeat(source_x[None], self.height, 0)
        map_y = np.arange(self.height, dtype=np.float32)[:, None] - drop
        return cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)

    def _drop(self, angle: NDArray[Any]) -> NDArray[Any]:
        """How far points at these angles sink: the whole sag in the middle, 0 at both ends."""
        cos_at_end = np.cos(self.half_arc)
        drop: NDArray[Any] = self.sag * (np.cos(angle) - cos_at_end) / (1 - cos_at_end)
        return drop


def bent(bend: Bend | None, points: Points) -> Points:
    """Where points of a surface come to lie if it is bent; the same points if it is not."""
    return points if bend is None else bend.forward(points)


def edge_points(box: tuple[float, float, float, float]) -> Points:
    """Points around a box, nine on each side: enough to follow a bend."""
    left, top, right, bottom = box
    ramp = np.linspace(0, 1, 9)[:-1]
    zeros = np.zeros(8)
    # Clockwise from the top left corner: along the top, the right, the bottom, the left side.
    x = np.concatenate([ramp, zeros + 1, 1 - ramp, zeros]) * (right - left) + left
    y = np.concatenate([zeros, ramp, zeros + 1, 1 - ramp]) * (bottom - top) + top
    return np.column_stack([x, y])


def moved(homography: Homography, points: Points) -> Points:
    """Points `[P, 2]` through a homography.

    Pixel (0, 0) is centred at (0, 0) for OpenCV's warp, at (0.5, 0.5) for boxes: a box that
    starts where a pixel starts must come out where the warped pixel starts.
    """
    homogeneous = np.column_stack([points - 0.5, np.ones(len(points))]) @ homography.T
    moved_points: Points = homogeneous[:, :2] / homogeneous[:, 2:] + 0.5
    return moved_points


def area_of(outline: Points) -> float:
    """The area inside an outline (shoelace formula)."""
    x, y = outline.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def clipped(outline: Points, width: float, height: float) -> Points:
    """The part of an outline inside the image (Sutherland and Hodgman); may be empty.

    The outline is cut at one side of the image after the other. At each, points inside stay, and
    where the outline crosses the side on its way to the next point, the crossing is added.
    """
    if outline.min() >= 0 and (outline.max(0) <= (width, height)).all():
        return outline

    points = outline
    # Axis, position of the side on it, and the direction in which the inside lies.
    image_sides = ((0, 0, 1), (0, width, -1), (1, 0, 1), (1, height, -1))
    for axis, position, direction in image_sides:
        if not len(points):
            break
        depth = (points[:, axis] - position) * direction  # negative outside
        next_points = np.roll(points, -1, axis=0)
        next_depth = np.roll(depth, -1)
        is_inside = depth >= 0
        crosses = is_inside != (next_depth >= 0)

        depth_lost = np.where(crosses, depth - next_depth, 1)  # 1 avoids a division by 0
        share_of_way = depth / depth_lost  # to the next point
        crossings = points + (next_points - points) * share_of_way[:, None]

        # Point, its crossing, next point, its crossing and so on: those that exist are selected.
        points_and_crossings = np.stack([points, crossings], axis=1)  # [P, 2, 2]
        exists = np.stack([is_inside, crosses], axis=1)  # [P, 2]
        points = points_and_crossings[exists]
    return points


def fill(mask: Mask, outline: Points) -> None:
    """Set the inside of an outline to 255, to a sixteenth of a pixel."""
    sixteenths = np.clip(np.round((outline - 0.5) * 16), -(2**20), 2**20).astype(np.int32)
    cv2.fillPoly(mask, [sixteenths], 255, shift=4)


def blend(under: Image, over: Image, alpha: Mask) -> Image:
    """One image over another, with alpha `[H, W]` from 0 to 255."""
    alpha_by_channel = cv2.merge([alpha] * 3)
    upper = cv2.multiply(over, alpha_by_channel, scale=1 / 255)
    lower = cv2.multiply(under, cv2.bitwise_not(alpha_by_channel), scale=1 / 255)
    return cv2.add(upper, lower)
