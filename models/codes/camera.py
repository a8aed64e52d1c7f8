"""The effects of light, lens and camera: shadow, glare, tint, blur, noise, JPEG."""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from codes.textures import Field, Image, Random, cloud

GRAIN_SIDE = 1280
FIELD_SIDE = 104  # of a light map before it is enlarged to the image's size
IDEAL_CHANCE = 0.1  # that an image is a drawing or a screenshot
SHAKEN_CHANCE = 0.14
STORED_SMALL_CHANCE = 0.12  # that an image was stored at a smaller size once
GREY_CHANCE = 0.25  # that an image has no colours
JPEG_CHANCE = 0.6  # that an image was compressed
USUAL_SIDE = 640  # pixels of the image whose blur is described; larger images have more of it


class Optics(NamedTuple):
    """How sharp an image will be; chosen first, because it limits how small symbols may be.

    Attributes:
        blur: Standard deviation of the lens blur, in pixels.
        motion: Length of the motion blur, in pixels.
        angle: Its direction, in radians.
        stored_scale: The size at which the image was once stored, relative to its size now; 1 if
            it was never scaled.
        ideal: Whether nothing but coding changes the image: a drawing, a screenshot.
    """

    blur: float
    motion: float
    angle: float
    stored_scale: float
    ideal: bool

    @property
    def spread(self) -> float:
        """Standard deviation of all blur together in the worst direction, in pixels."""
        resampling = 0.0
        if self.stored_scale < 1:
            resampling = 0.5 / self.stored_scale
        # The variance of a uniform distribution is the square of its length over 12.
        return float(np.sqrt(self.blur**2 + self.motion**2 / 12 + resampling**2))


IDEAL_OPTICS = Optics(blur=0, motion=0, angle=0, stored_scale=1, ideal=True)


def optics(random: Random, side: int) -> Optics:
    """Draw at random how sharp an image is whose shorter side has this many pixels.

    Most images are sharp. Some are out of focus, shaken or were stored at a smaller size. The
    strongest blur grows with the image.
    """
    if random.random() < IDEAL_CHANCE:
        return IDEAL_OPTICS

    choice = random.random()
    # 45% have less than 0.5 pixels of blur, 31% up to 1.1, 17% up to 2.5, and 7% more.
    cumulative_shares = [0.45, 0.76, 0.93]
    blur_limits = (0, 0.5, 1.1, 2.5, max(6 * side / USUAL_SIDE, 3))
    interval = int(np.searchsorted(cumulative_shares, choice))
    blur = random.uniform(blur_limits[interval], blur_limits[interval + 1])

    motion = 0.0
    if random.random() < SHAKEN_CHANCE:
        motion = random.uniform(2, 14 * side / USUAL_SIDE + 3)
    stored_scale = 1.0
    if random.random() < STORED_SMALL_CHANCE:
        stored_scale = random.uniform(0.3, 1)
    angle = random.uniform(0, np.pi)
    return Optics(blur=blur, motion=motion, angle=angle, stored_scale=stored_scale, ideal=False)


def photographed(random: Random, image: Image, lens: Optics) -> Image:
    """The image as a camera with these optics stores it, some in grey and most as JPEG."""
    if not lens.ideal:
        image = _through_the_lens(random, image, lens)

    if random.random() < GREY_CHANCE:
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        image = np.repeat(grey[..., None], 3, axis=2)
    if random.random() < JPEG_CHANCE:
        quality = int(random.uniform(20, 96))
        coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        # It would be None only if the bytes were damaged.
        image = cv2.imdecode(coded, cv2.IMREAD_COLOR)  # type: ignore[assignment]
    return image


def _through_the_lens(random: Random, image: Image, lens: Optics) -> Image:
    """The image under uneven light, blurred by the lens, and with what the camera does to it."""
    if random.random() < 0.35:
        image = _shaded(random, image)
    if random.random() < 0.12:
        image = _with_glare(random, image)
    if random.random() < 0.05:
        image = _with_moire(random, image)

    image = _blurred(image, lens)

    image = _exposed(random, image)
    image = _noisy(random, image)
    image = _resampled(image, lens.stored_scale)
    if random.random() < 0.08:
        image = _sharpened(image)
    return image


def scaled(image: Image, light_map: NDArray[np.float32]) -> Image:
    """Brightness times a light map `[h, w]` of 0 to 2, enlarged to the image's size."""
    height, width = image.shape[:2]
    enlarged_map = cv2.resize(light_map, (width, height), interpolation=cv2.INTER_LINEAR)
    levels = np.clip(enlarged_map * 128, 0, 255).astype(np.uint8)  # 128 leaves the image as it is
    return cv2.multiply(image, cv2.merge([levels] * 3), scale=1 / 128)


def _shaded(random: Random, image: Image) -> Image:
    """The image in uneven light, or with the edge of a shadow across it.

    Brightness is multiplied by up to 1.1 where it is light, and by `depth` less where it is dark.
    """
    depth = random.uniform(0.15, 0.65)
    if random.random() < 0.5:
        # A soft change of light: noise with two cells a side, and four in a weaker second octave.
        light_map = 1.1 - depth * cloud(random, 32, coarse=2, octaves=2)
    else:  # the edge of a shadow, sharp or soft
        point_on_edge = random.uniform(0.2, 0.8, (2, 1, 1))  # y and x
        pixel_positions = np.mgrid[:FIELD_SIDE, :FIELD_SIDE].astype(np.float32) / FIELD_SIDE
        y, x = pixel_positions - point_on_edge
        angle = random.uniform(0, 2 * np.pi)
        softness = random.uniform(0.01, 0.2)
        distance = (x * np.cos(angle) + y * np.sin(angle)) / softness  # from the edge
        light_map = 1.1 - depth / (1 + np.exp(-np.clip(distance, -30, 30)))
    return scaled(image, light_map.astype(np.float32))


def _with_glare(random: Random, image: Image) -> Image:
    """The image with a reflection, brightest in its middle, that hides little of what is below."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:FIELD_SIDE, :FIELD_SIDE].astype(np.float32) / FIELD_SIDE
    middle = random.uniform(0, 1, 2)
    radius = random.uniform(0.05, 0.3, 2)
    falloff_x = ((x - middle[0]) / radius[0]) ** 2
    falloff_y = ((y - middle[1]) / radius[1]) ** 2
    light_map = np.exp(-falloff_x - falloff_y)
    peak = random.uniform(40, 130)  # grey levels
    levels = cv2.resize(light_map * peak, (width, height)).astype(np.uint8)
    return cv2.add(image, cv2.merge([levels] * 3))


def _blurred(image: Image, lens: Optics) -> Image:
    """The image out of focus, then shaken; blur too weak to be seen is left out."""
    if lens.blur > 0.25:
        image = cv2.GaussianBlur(image, (0, 0), lens.blur)
    if lens.motion > 1:
        image = cv2.filter2D(image, -1, _motion_kernel(lens.motion, lens.angle))
    return image


def _motion_kernel(length: float, angle: float) -> Field:
    """A straight line of this length through the middle of a kernel, whose sum is 1.

    It is drawn four times as large and then made smaller, so that its edges are soft.
    """
    size = int(np.ceil(length))
    if size % 2 == 0:  # a kernel has a middle
        size += 1
    large_kernel: Field = np.zeros((size * 4, size * 4), np.float32)
    middle = np.array([2 * size, 2 * size])
    half_line = np.array([np.cos(angle), np.sin(angle)]) * length * 2
    start = (middle - half_line).astype(int).tolist()
    end = (middle + half_line).astype(int).tolist()
    cv2.line(large_kernel, start, end, 1.0, thickness=4)

    kernel = cv2.resize(large_kernel, (size, size), interpolation=cv2.INTER_AREA)
    return kernel / kernel.sum()


def _resampled(image: Image, stored_scale: float) -> Image:
    """Smaller and back, as by a zoom in software."""
    if stored_scale == 1:
        return image
    height, width = image.shape[:2]
    small_size = (max(int(width * stored_scale), 1), max(int(height * stored_scale), 1))
    small = cv2.resize(image, small_size, interpolation=cv2.INTER_AREA)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)


def _sharpened(image: Image) -> Image:
    """The image sharpened as cameras do it (unsharp masking), too much for its good."""
    soft = cv2.GaussianBlur(image, (0, 0), 1.5)
    return cv2.addWeighted(image, 1.8, soft, -0.8, 0)


def _with_moire(random: Random, image: Image) -> Image:
    """The image as a photograph of a screen, with two waves of light on it.

    The fine wave is the grid of the screen's pixels. The coarse one is the moiré pattern of that
    grid and the camera's. Each runs in a random direction.
    """
    height, width = image.shape[:2]
    light_map: Field = np.full((height, width), 128, np.float32)
    pitches = (random.uniform(2.1, 5), random.uniform(12, 90))
    for pitch in pitches:
        angle = random.uniform(0, np.pi / 2)
        direction = np.array([np.cos(angle), np.sin(angle)])
        phase_per_column, phase_per_row = direction * 2 * np.pi / pitch
        # cos(x + y) is the real part of exp(ix) * exp(iy): one row and one column suffice.
        rows = np.exp(1j * np.arange(height) * phase_per_row).astype(np.complex64)
        columns = np.exp(1j * np.arange(width) * phase_per_column).astype(np.complex64)
        wave = (rows[:, None] * columns).real
        light_map += wave * np.float32(random.uniform(4, 28))
    return cv2.multiply(image, cv2.merge([light_map.astype(np.uint8)] * 3), scale=1 / 128)


def _exposed(random: Random, image: Image) -> Image:
    """Gain, gamma and tint; one image in eight is dark."""
    if random.random() < 0.12:
        gain = random.uniform(0.25, 0.55)
    else:
        gain = random.uniform(0.7, 1.2)
    offset = random.uniform(-12, 22)
    gamma = np.exp(random.normal(0, 0.2))
    tint = 1 + random.uniform(-0.14, 0.14, 3) * (random.random() < 0.5)  # every other has none
    levels = (np.arange(256)[:, None] / 255) ** gamma * 255 * gain * tint + offset  # [256, 3]
    lookup_table = np.clip(levels, 0, 255).astype(np.uint8).reshape(1, 256, 3)
    return cv2.LUT(image, lookup_table)


def dimmed(random: Random, image: Image, boxes: NDArray[np.float32]) -> Image:
    """The image so dark that the contrast of its faintest symbol is 5 to 25 grey levels.

    Contrast is the difference between the 5th and the 95th percentile of a symbol's pixels.

    Args:
        random: How dark it gets.
        image: BGR, `[H, W, 3]`, uint8.
        boxes: Where its symbols are, xyxy in pixels, `[G, 4]`.
    """
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), (0, 0), 1)  # less noise
    whole_pixels = np.column_stack([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])]).astype(int)
    contrasts = []
    for x1, y1, x2, y2 in whole_pixels.tolist():
        dark, light = np.percentile(grey[y1:y2, x1:x2], (5, 95))
        contrasts.append(float(light - dark))

    gain = min(random.uniform(5, 25) / max(min(contrasts), 1), 1)
    levels = np.arange(256) * gain + random.uniform(0, 12)
    lookup_table = np.clip(np.round(levels), 0, 255).astype(np.uint8)
    return cv2.LUT(image, lookup_table)


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
    """The image with noise of some strength; one in five has none."""
    strength = float(random.choice([0, 2, 5, 10, 20], p=[0.2, 0.35, 0.25, 0.13, 0.07]))
    if strength == 0:
        return image
    return with_grain(random, image, strength)


def with_grain(random: Random, image: Image, strength: float) -> Image:
    """The image with noise of about this standard deviation, in grey levels."""
    height, width = image.shape[:2]
    y = int(random.integers(GRAIN_SIDE - height + 1))
    x = int(random.integers(GRAIN_SIDE - width + 1))
    is_coloured = bool(random.random() < 0.6)
    grain = _grain(coloured=is_coloured)[y : y + height, x : x + width]
    if random.random() < 0.15:  # coarse, as old sensors and film have it
        grain = cv2.resize(grain[: height // 2, : width // 2], (width, height))
    factor = strength * random.uniform(0.6, 1.3) / 32  # the grain's standard deviation is 32
    return cv2.addWeighted(image, 1, grain, factor, -128 * factor)
