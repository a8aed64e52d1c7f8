"""What images are made of: one store for training, a disjoint one for the held-out set."""

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from codes import negatives, textures
from codes.surfaces import Surface
from codes.textures import Cover, Image, Lettering, Random

SIDE = 768  # of a stored background
VIEWS = 3  # of each photograph, besides itself
COLLAGES = 30
# Sample photographs and scans of scikit-image (public domain or CC0) and scikit-learn
# (china.jpg, flower.jpg: CC BY 2.0), found in the installed packages.
TRAINING_PHOTOGRAPHS = (
    "astronaut.png chelsea.png coffee.png rocket.jpg motorcycle_left.png brick.png grass.png "
    "hubble_deep_field.jpg china.jpg clock_motion.png retina.jpg microaneurysms.png"
).split()
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}  # of images in a folder
# Shorter sides of these: photographs (smaller ones are left out), things at most.
MIN_PHOTOGRAPH_SIDE, PHOTOGRAPH_SIDE, THING_SIDE = 200, 512, 256
# Typefaces of matplotlib (DejaVu, STIX and Computer Modern, all under free licences), most of them
# bold: strokes of bold print are what is mistaken for bars.
TYPEFACES = (
    "DejaVuSans-Bold DejaVuSans DejaVuSansMono-Bold DejaVuSerif-Bold DejaVuSerif STIXGeneralBol "
    "cmb10"
).split()
HELD_OUT_PHOTOGRAPHS = "flower.jpg coins.png camera.png gravel.png text.png moon.png".split()


@dataclass(frozen=True, slots=True)
class Assets:
    """A store to draw from.

    Attributes:
        backgrounds: Each `[768, 768, 3]` or smaller.
        lettering: Lines of text.
        negatives: Makers of lookalikes, which are not symbols.
        photographs: More backgrounds, used as often as all the others together; may be empty.
        things: Images of things cut out, and where they are opaque; may be empty.
    """

    backgrounds: list[Image]
    lettering: Lettering
    negatives: tuple[negatives.Maker, ...]
    photographs: list[Image] = field(default_factory=list)
    things: list[tuple[Image, Cover]] = field(default_factory=list)

    def crop(self, random: Random, height: int, width: int) -> Image:
        """A part of a background at a random size, turn and tint, `[height, width, 3]`."""
        store = self.backgrounds
        if self.photographs and random.random() < 0.5:
            store = self.photographs
        stored = store[random.integers(len(store))]
        most = min(stored.shape[:2]) / max(height, width)
        share = random.uniform(0.4, 1) * min(most, 1.6)
        tall, wide = max(int(height * share), 4), max(int(width * share), 4)
        y = int(random.integers(stored.shape[0] - tall + 1))
        x = int(random.integers(stored.shape[1] - wide + 1))
        part = stored[y : y + tall, x : x + wide]
        if random.random() < 0.5:
            part = part[:, ::-1]
        if random.random() < 0.3:
            part = part[::-1]
        out = cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR)
        gain, offset = random.uniform(0.6, 1.3, 3) ** 0.7, random.uniform(-25, 25)
        steps = np.arange(256)[:, None] * gain + offset  # [256, 3]
        return cv2.LUT(out, np.clip(steps, 0, 255).astype(np.uint8).reshape(1, 256, 3))

    def thing(self, random: Random, size: int) -> Surface:
        """One of the things, its longer side `size` pixels."""
        image, cover = self.things[random.integers(len(self.things))]
        scale = size / max(cover.shape)
        wide, tall = (max(round(side * scale), 4) for side in cover.shape[::-1])
        area = cv2.INTER_AREA
        image = cv2.resize(image, (wide, tall), interpolation=area)
        return Surface(image, cv2.resize(cover, (wide, tall), interpolation=area), [])


def training_assets(seed: int, folder: str = "") -> Assets:
    """What training draws from.

    Args:
        seed: Seed of what is drawn by chance.
        folder: Images without symbols, in this folder and below; those with transparent parts
            are things to lay into the scenes. Empty for none.
    """
    random = np.random.default_rng([seed, 1])
    fonts = (
        ("sans", (200, 400, 500, 600)),
        ("italic", (400,)),
        *((str(typeface(name)), (400,)) for name in TYPEFACES),
    )
    assets = _assets(random, TRAINING_PHOTOGRAPHS, fonts, textures.TRAINING, negatives.TRAINING)
    if not folder:
        return assets
    photographs, things = _images(Path(folder))
    return replace(assets, photographs=photographs, things=things)


def held_out_assets(seed: int) -> Assets:
    """What the held-out images draw from: other photographs, fonts, textures and negatives."""
    random = np.random.default_rng([seed, 2])
    fonts = (("uni", (400,)), ("sans", (800,)), ("italic", (700,)))
    return _assets(random, HELD_OUT_PHOTOGRAPHS, fonts, textures.HELD_OUT, negatives.HELD_OUT)


def _assets(random, names, fonts, makers, kinds) -> Assets:  # type: ignore[no-untyped-def] # noqa: ANN001
    lettering = Lettering(random, fonts)
    photographs = [photograph(name) for name in names]
    backgrounds = [*photographs]
    for _ in range(VIEWS):
        backgrounds += [textures.warped(random, image) for image in photographs]
    for number in range(len(photographs) * 4):
        if number % 4 == 0:
            backgrounds.append(textures.page(random, SIDE, lettering))
        else:
            backgrounds.append(makers[number % len(makers)](random, SIDE))
    backgrounds += [textures.collage(random, backgrounds, SIDE) for _ in range(COLLAGES)]
    return Assets(backgrounds, lettering, kinds)


def _images(folder: Path) -> tuple[list[Image], list[tuple[Image, Cover]]]:
    """The photographs and the things cut out that are in a folder."""
    photographs, things = [], []
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.dtype != np.uint8 or image.ndim < 3:
            continue
        if image.shape[2] == 4 and image[..., 3].min() < 128:
            left, top, wide, tall = cv2.boundingRect((image[..., 3] > 0).astype(np.uint8))
            image = _shrunk(image[top : top + tall, left : left + wide], THING_SIDE)
            things.append((np.ascontiguousarray(image[..., :3]), image[..., 3].copy()))
        elif min(image.shape[:2]) >= MIN_PHOTOGRAPH_SIDE:
            photographs.append(_shrunk(image[..., :3], PHOTOGRAPH_SIDE))
    if not photographs and not things:
        raise FileNotFoundError(f"{folder}: no images are in it")
    return photographs, things


def _shrunk(image: Image, side: int) -> Image:
    scale = min(side / min(image.shape[:2]), 1)
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def typeface(name: str) -> Path:
    """A TrueType file of matplotlib."""
    found = find_spec("matplotlib")
    path = Path((found and found.origin) or "").parent / "mpl-data/fonts/ttf" / f"{name}.ttf"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name}: install matplotlib (the `train` extra)")
    return path


def photograph(name: str) -> Image:
    """A sample photograph of scikit-image or scikit-learn, its shorter side 768 pixels."""
    folders = (("skimage", "data"), ("sklearn", "datasets/images"))
    for package, folder in folders:
        found = find_spec(package)
        path = Path(found.origin or "").parent / folder / name if found else Path(name)
        if path.is_file():
            image = cv2.imread(str(path), cv2.IMREAD_COLOR)
            if image is None:
                break
            scale = SIDE / min(image.shape[:2])
            return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    raise FileNotFoundError(f"{name}: install scikit-image and scikit-learn (the `train` extra)")
