"""What images are made of: assets for training, and others for the held-out images."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from codes import negatives, textures
from codes.surfaces import Surface
from codes.textures import Image, Lettering, Mask, Random

SIDE = 768  # pixels of a background
VIEWS = 3  # warped views of each photograph, besides itself
TEXTURES_PER_PHOTOGRAPH = 4  # one of them a page of text
COLLAGES = 30
# Sample photographs and scans of scikit-image (public domain or CC0) and scikit-learn
# (china.jpg, flower.jpg: CC BY 2.0), found in the installed packages.
TRAINING_PHOTOGRAPHS = (
    "astronaut.png chelsea.png coffee.png rocket.jpg motorcycle_left.png brick.png grass.png "
    "hubble_deep_field.jpg china.jpg clock_motion.png retina.jpg microaneurysms.png"
).split()
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}  # of images in a folder
# Pixels of the shorter sides: smaller photographs are left out, larger images are scaled down.
MIN_PHOTOGRAPH_SIDE, PHOTOGRAPH_SIDE, CUTOUT_SIDE = 200, 512, 256
# Typefaces of matplotlib (DejaVu, STIX and Computer Modern, all under free licences), most of them
# bold: strokes of bold print are what is mistaken for bars.
TYPEFACES = (
    "DejaVuSans-Bold DejaVuSans DejaVuSansMono-Bold DejaVuSerif-Bold DejaVuSerif STIXGeneralBol "
    "cmb10"
).split()
HELD_OUT_PHOTOGRAPHS = "flower.jpg coins.png camera.png gravel.png text.png moon.png".split()


# Names or files of `cv2.FontFace`, and the weights (100 to 800) to draw each with.
Fonts = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Assets:
    """What images are made of.

    Attributes:
        backgrounds: Each `[768, 768, 3]` or smaller.
        lettering: Lines of text.
        negatives: Makers of lookalikes, which are not symbols.
        photographs: More backgrounds, used as often as all the others together; may be empty.
        cutouts: Images of objects cut out, and where they are opaque; may be empty.
    """

    backgrounds: list[Image]
    lettering: Lettering
    negatives: tuple[negatives.Maker, ...]
    photographs: list[Image] = field(default_factory=list)
    cutouts: list[tuple[Image, Mask]] = field(default_factory=list)

    def crop(self, random: Random, height: int, width: int) -> Image:
        """A part of a background, scaled, perhaps mirrored, and tinted: `[height, width, 3]`."""
        backgrounds = self.backgrounds
        if self.photographs and random.random() < 0.5:
            backgrounds = self.photographs
        background = backgrounds[random.integers(len(backgrounds))]

        # How many pixels of the background become one of the crop: at most 1.6, or less where the
        # background is too small for that, and at least 0.4 times as many.
        max_scale = min(background.shape[:2]) / max(height, width)
        scale = random.uniform(0.4, 1) * min(max_scale, 1.6)
        crop_height = max(int(height * scale), 4)
        crop_width = max(int(width * scale), 4)
        y = int(random.integers(background.shape[0] - crop_height + 1))
        x = int(random.integers(background.shape[1] - crop_width + 1))
        crop = background[y : y + crop_height, x : x + crop_width]
        if random.random() < 0.5:
            crop = crop[:, ::-1]
        if random.random() < 0.3:
            crop = crop[::-1]
        scaled_crop = cv2.resize(crop, (width, height), interpolation=cv2.INTER_LINEAR)
        return _with_random_tint(random, scaled_crop)

    def cutout(self, random: Random, size: int) -> Surface:
        """One of the objects cut out, its longer side `size` pixels."""
        image, alpha = self.cutouts[random.integers(len(self.cutouts))]
        height, width = alpha.shape
        scale = size / max(height, width)
        scaled_size = (max(round(width * scale), 4), max(round(height * scale), 4))
        scaled_image = cv2.resize(image, scaled_size, interpolation=cv2.INTER_AREA)
        scaled_alpha = cv2.resize(alpha, scaled_size, interpolation=cv2.INTER_AREA)
        return Surface(scaled_image, scaled_alpha, areas=[])


def training_assets(seed: int, folder: str = "") -> Assets:
    """The assets of the images that the model is trained with.

    Args:
        seed: Seed of the words, the textures, the views and the collages.
        folder: Images without symbols, in this folder and below; those with transparent parts
            are cut-outs to lay into the scenes. Empty for none.

    Raises:
        FileNotFoundError: No images are in the folder, or what the extra `train` has is missing.
    """
    random = np.random.default_rng([seed, 1])
    fonts: Fonts = (("sans", (200, 400, 500, 600)), ("italic", (400,)))
    for name in TYPEFACES:
        fonts += ((str(typeface(name)), (400,)),)
    assets = _assets(
        random,
        photograph_names=TRAINING_PHOTOGRAPHS,
        fonts=fonts,
        texture_makers=textures.TRAINING,
        lookalike_makers=negatives.TRAINING,
    )
    if not folder:
        return assets
    photographs, cutouts = _read_folder(Path(folder))
    return replace(assets, photographs=photographs, cutouts=cutouts)


def _with_random_tint(random: Random, image: Image) -> Image:
    """The image `[H, W, 3]` with a random gain for each channel and a random offset for all."""
    gains = random.uniform(0.6, 1.3, 3) ** 0.7  # 0.7 to 1.2
    offset = random.uniform(-25, 25)
    levels = np.arange(256)[:, None] * gains + offset  # [256, 3]
    lookup_table = np.clip(levels, 0, 255).astype(np.uint8).reshape(1, 256, 3)
    return cv2.LUT(image, lookup_table)


def held_out_assets(seed: int) -> Assets:
    """The assets of the held-out images: other photographs, fonts, textures and negatives."""
    random = np.random.default_rng([seed, 2])
    return _assets(
        random,
        photograph_names=HELD_OUT_PHOTOGRAPHS,
        fonts=(("uni", (400,)), ("sans", (800,)), ("italic", (700,))),
        texture_makers=textures.HELD_OUT,
        lookalike_makers=negatives.HELD_OUT,
    )


def _assets(
    random: Random,
    *,
    photograph_names: list[str],
    fonts: Fonts,
    texture_makers: tuple[Callable[[Random, int], Image], ...],
    lookalike_makers: tuple[negatives.Maker, ...],
) -> Assets:
    """Assets whose backgrounds are photographs, views of them, textures, and collages of all these.

    Args:
        random: Where the words, the textures, the views and the collages come from.
        photograph_names: Samples of scikit-image and scikit-learn.
        fonts: What text is drawn with.
        texture_makers: What draws textures, in turn.
        lookalike_makers: What draws lookalikes.
    """
    lettering = Lettering(random, fonts)
    photographs = [photograph(name) for name in photograph_names]
    backgrounds = list(photographs)
    for _ in range(VIEWS):
        for image in photographs:
            backgrounds.append(textures.warped(random, image))

    texture_count = len(photographs) * TEXTURES_PER_PHOTOGRAPH
    for number in range(texture_count):
        is_page_of_text = number % TEXTURES_PER_PHOTOGRAPH == 0
        if is_page_of_text:
            backgrounds.append(textures.page(random, SIDE, lettering))
        else:
            make_texture = texture_makers[number % len(texture_makers)]
            backgrounds.append(make_texture(random, SIDE))

    collages = [textures.collage(random, backgrounds, SIDE) for _ in range(COLLAGES)]
    return Assets(backgrounds + collages, lettering, lookalike_makers)


def _read_folder(folder: Path) -> tuple[list[Image], list[tuple[Image, Mask]]]:
    """The photographs in a folder and below, and the objects cut out, each with its alpha.

    What is not an 8-bit image in colour, and photographs that are too small, are passed over.
    """
    photographs = []
    cutouts = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.dtype != np.uint8 or image.ndim < 3:
            continue
        if _has_transparent_parts(image):
            cutouts.append(_trimmed_cutout(image))
        elif min(image.shape[:2]) >= MIN_PHOTOGRAPH_SIDE:
            photographs.append(_scaled_down(image[..., :3], PHOTOGRAPH_SIDE))
    if not photographs and not cutouts:
        raise FileNotFoundError(f"{folder}: no images are in it")
    return photographs, cutouts


def _has_transparent_parts(image: Image) -> bool:
    """Whether an image `[H, W, 3 or 4]` has an alpha channel that is below 128 somewhere."""
    return image.shape[2] == 4 and bool(image[..., 3].min() < 128)


def _trimmed_cutout(image: Image) -> tuple[Image, Mask]:
    """Colours and alpha of an image `[H, W, 4]`, without the transparent border."""
    x, y, width, height = cv2.boundingRect((image[..., 3] > 0).astype(np.uint8))
    trimmed = _scaled_down(image[y : y + height, x : x + width], CUTOUT_SIDE)
    return np.ascontiguousarray(trimmed[..., :3]), trimmed[..., 3].copy()


def _scaled_down(image: Image, side: int) -> Image:
    """The image, its shorter side at most `side` pixels."""
    scale = min(side / min(image.shape[:2]), 1)
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def typeface(name: str) -> Path:
    """The TrueType file of this name that matplotlib brings.

    Raises:
        FileNotFoundError: matplotlib is not installed, or has no such file.
    """
    package = _package_folder("matplotlib") or Path()
    path = package / "mpl-data/fonts/ttf" / f"{name}.ttf"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name}: install matplotlib (the `train` extra)")
    return path


def photograph(name: str) -> Image:
    """A sample photograph of scikit-image or scikit-learn, its shorter side 768 pixels.

    Raises:
        FileNotFoundError: Neither package is installed, or the file cannot be decoded.
    """
    for package_name, folder in (("skimage", "data"), ("sklearn", "datasets/images")):
        package = _package_folder(package_name)
        if package is None or not (package / folder / name).is_file():
            continue
        image = cv2.imread(str(package / folder / name), cv2.IMREAD_COLOR)
        if image is None:
            break
        scale = SIDE / min(image.shape[:2])
        return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    raise FileNotFoundError(f"{name}: install scikit-image and scikit-learn (the `train` extra)")


def _package_folder(name: str) -> Path | None:
    """The folder of an installed package, which is not imported; None if it is not installed."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent
