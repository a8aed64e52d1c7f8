"""The effects of light, lens and camera: shadow, glare, tint, blur, noise, JPEG."""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.textures import Field, Image, Random, cloud

GRAIN_SIDE = 1280


class Optics(NamedTuple):
    """How sharp an image will be; chosen first, because it limits how small symbols may be.

    Attributes:
        blur: Standard deviation of the lens blur, in pixels.
        motion: Length of the motion blur, in pixels.
        angle: Its direction, in radians.
        share: The size at which the image was once stored; 1 if never scaled.
        ideal: Whether nothing but coding changes the image: a drawing, a screenshot.
    """

    blur: float
    motion: float
    angle: float
    share: float
    ideal: bool

    @property
    def spread(self) -> float:
        """Standard deviation of all blur together in the worst direction, in pixels."""
        stored = 0.5 / self.share if self.share < 1 else 0.0
        return float(np.sqrt(self.blur**2 + self.motion**2 / 12 + stored**2))


def optics(random: Random, side: int) -> Optics:
    """Mostly sharp; sometimes out of focus, shaken or scaled, on large images more."""
    if random.random() < 0.1:
        return Optics(0, 0, 0, 1, ideal=True)
    part = random.random()
    steps = (0, 0.5, 1.1, 2.5, max(6 * side / 640, 3))
    sharpness = int(np.searchsorted([0.45, 0.76, 0.93], part))
    blur = random.uniform(steps[sharpness], steps[sharpness + 1])
    motion = random.uniform(2, 14 * side / 640 + 3) if random.random() < 0.14 else 0.0
    share = random.uniform(0.3, 1) if random.random() < 0.12 else 1.0
    return Optics(blur, motion, random.uniform(0, np.pi), share, ideal=False)


def photographed(random: Random, image: Image, lens: Optics) -> Image:
    """The image as a camera of these optics stores it."""
    if not lens.ideal:
        if random.random() < 0.35:
            image = _shaded(random, image)
        if random.random() < 0.12:
            image = _glare(random, image)
        if random.random() < 0.05:
            image = _moire(random, image)
        image = _blurred(image, lens)
        image = _exposed(random, image)
        image = _noisy(random, image)
        image = _resampled(image, lens.share)
        if random.random() < 0.08:
            soft = cv2.GaussianBlur(image, (0, 0), 1.5)
            image = cv2.addWeighted(image, 1.8, soft, -0.8, 0)
    if random.random() < 0.25:
        image = np.repeat(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[..., None], 3, 2)
    if random.random() < 0.6:
        quality = int(random.uniform(20, 96))
        coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        image = cv2.imdecode(coded, cv2.IMREAD_COLOR)  # type: ignore[assignment] # it is whole
    return image


def scaled(image: Image, field: NDArray[np.float32]) -> Image:
    """Brightness times a field `[h, w]` of 0 to 2, enlarged to the image's size."""
    height, width = image.shape[:2]
    grown = cv2.resize(field, (width, height), interpolation=cv2.INTER_LINEAR)
    grown8 = np.clip(grown * 128, 0, 255).astype(np.uint8)
    return cv2.multiply(image, cv2.merge([grown8] * 3), scale=1 / 128)


def _shaded(random: Random, image: Image) -> Image:
    depth = random.uniform(0.15, 0.65)
    if random.random() < 0.5:  # a soft change of light
        field = 1.1 - depth * cloud(random, 32, 2, 2)
    else:  # the edge of a shadow
        y, x = np.mgrid[:104, :104].astype(np.float32) / 104 - random.uniform(0.2, 0.8, (2, 1, 1))
        angle = random.uniform(0, 2 * np.pi)
        edge = (x * np.cos(angle) + y * np.sin(angle)) / random.uniform(0.01, 0.2)
        field = 1.1 - depth / (1 + np.exp(-np.clip(edge, -30, 30)))
    return scaled(image, field.astype(np.float32))


def _glare(random: Random, image: Image) -> Image:
    """A reflection: brightest in its middle, but what is under it can still be made out."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:104, :104].astype(np.float32) / 104
    middle, reach = random.uniform(0, 1, 2), random.uniform(0.05, 0.3, 2)
    field = np.exp(-(((x - middle[0]) / reach[0]) ** 2) - ((y - middle[1]) / reach[1]) ** 2)
    peak = random.uniform(40, 130)
    grown = cv2.resize(field * peak, (width, height)).astype(np.uint8)
    return cv2.add(image, cv2.merge([grown] * 3))


def _blurred(image: Image, lens: Optics) -> Image:
    if lens.blur > 0.25:
        image = cv2.GaussianBlur(image, (0, 0), lens.blur)
    if lens.motion > 1:
        size = int(np.ceil(lens.motion)) | 1
        kernel: Field = np.zeros((size * 4, size * 4), np.float32)
        middle = np.array([2 * size, 2 * size])
        step = np.array([np.cos(lens.angle), np.sin(lens.angle)]) * lens.motion * 2
        ends = [(middle + sign * step).astype(int).tolist() for sign in (-1, 1)]
        cv2.line(kernel, ends[0], ends[1], 1.0, 4)
        kernel = cv2.resize(kernel, (size, size), interpolation=cv2.INTER_AREA)
        image = cv2.filter2D(image, -1, kernel / kernel.sum())
    return image


def _resampled(image: Image, share: float) -> Image:
    """Smaller and back, as by a zoom in software."""
    if share == 1:
        return image
    height, width = image.shape[:2]
    small = (max(int(width * share), 1), max(int(height * share), 1))
    stored = cv2.resize(image, small, interpolation=cv2.INTER_AREA)
    return cv2.resize(stored, (width, height), interpolation=cv2.INTER_LINEAR)


def _moire(random: Random, image: Image) -> Image:
    """The grid of a screen's pixels, and its beat with the camera's, each in two directions."""
    height, width = image.shape[:2]
    field: Field = np.full((height, width), 128, np.float32)
    for pitch in (random.uniform(2.1, 5), random.uniform(12, 90)):
        turn = random.uniform(0, np.pi / 2)
        pace = np.array([np.cos(turn), np.sin(turn)]) * 2 * np.pi / pitch
        rows = np.exp(1j * np.arange(height) * pace[1]).astype(np.complex64)
        columns = np.exp(1j * np.arange(width) * pace[0]).astype(np.complex64)
        field += (rows[:, None] * columns).real * np.float32(random.uniform(4, 28))
    return cv2.multiply(image, cv2.merge([field.astype(np.uint8)] * 3), scale=1 / 128)


def _exposed(random: Random, image: Image) -> Image:
    """Gain, gamma and tint; one image in eight is dark."""
    gain = random.uniform(0.25, 0.55) if random.random() < 0.12 else random.uniform(0.7, 1.2)
    offset = random.uniform(-12, 22)
    gamma = np.exp(random.normal(0, 0.2))
    tint = 1 + random.uniform(-0.14, 0.14, 3) * (random.random() < 0.5)
    steps = (np.arange(256)[:, None] / 255) ** gamma * 255 * gain * tint + offset
    return cv2.LUT(image, np.clip(steps, 0, 255).astype(np.uint8).reshape(1, 256, 3))


def dimmed(random: Random, image: Image, boxes: NDArray[np.float32]) -> Image:
    """The image so dark that 5 to 25 grey levels are left of the symbol that had the fewest.

    Args:
        random: Random numbers.
        image: BGR, `[H, W, 3]`, uint8.
        boxes: Where its symbols are, xyxy in pixels, `[G, 4]`.
    """
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), (0, 0), 1)  # less noise
    places = np.column_stack([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])]).astype(int).tolist()
    spans = [np.ptp(np.percentile(grey[y0:y1, x0:x1], (5, 95))) for x0, y0, x1, y1 in places]
    gain = min(random.uniform(5, 25) / max(float(min(spans)), 1), 1)
    steps = np.arange(256) * gain + random.uniform(0, 12)
    return cv2.LUT(image, np.clip(np.round(steps), 0, 255).astype(np.uint8))


_GRAIN: dict[bool, Image] = {}


def _grain(*, coloured: bool) -> Image:
    """Noise of mean 128 and standard deviation 32, made once."""
    if coloured not in _GRAIN:
        random = np.random.default_rng(7)
        shape = (GRAIN_SIDE, GRAIN_SIDE, 3 if coloured else 1)
        noise = np.clip(random.normal(128, 32, shape), 0, 255).astype(np.uint8)
        _GRAIN[coloured] = np.ascontiguousarray(np.broadcast_to(noise, (*shape[:2], 3)))
    return _GRAIN[coloured]


def _noisy(random: Random, image: Image) -> Image:
    strength = float(random.choice([0, 2, 5, 10, 20], p=[0.2, 0.35, 0.25, 0.13, 0.07]))
    return with_grain(random, image, strength) if strength else image


def with_grain(random: Random, image: Image, strength: float) -> Image:
    """The image with noise of about this standard deviation, in grey levels."""
    height, width = image.shape[:2]
    y = int(random.integers(GRAIN_SIDE - height + 1))
    x = int(random.integers(GRAIN_SIDE - width + 1))
    grain = _grain(coloured=bool(random.random() < 0.6))[y : y + height, x : x + width]
    if random.random() < 0.15:  # coarse, as old sensors and film have it
        grain = cv2.resize(grain[: height // 2, : width // 2], (width, height))
    factor = strength * random.uniform(0.6, 1.3) / 32
    return cv2.addWeighted(image, 1, grain, factor, -128 * factor)
