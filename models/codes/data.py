"""Batches of rendered scenes, in a fixed order for any number of workers.

Each scene is used four times, `GAP` steps apart: as it is, turned by 90 degrees, and both mirrored.
That changes nothing that a detector looks for, so it must learn to score all four alike.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from codes.assets import Assets
from codes.loss import Objects
from codes.negatives import HARD
from codes.scene import Scene, generated, render
from codes.textures import Image

PADDING = 114  # the grey of detcli's letterbox
MIN_SCENE_SIDE = 64  # pixels
# Whether x and y are exchanged, and whether x is flipped then.
TURNS = ((False, False), (True, True), (False, True), (True, False))
GAP = 48  # steps; a multiple of most worker counts, so that a scene returns to its own worker

# How likely each of these is for an image.
GENERATED_CHANCE = 0.07  # one symbol with little around it, as programs write it
FULL_SIZE_CHANCE = 0.75  # its longer side is the canvas's; the others are smaller
SQUARE_CHANCE = 0.6  # the others are landscape or portrait, as photographs are
SYMBOLS_CHANCE = 0.8  # meant to have symbols


class Batch(NamedTuple):
    """Images `[B, 3, H, W]`, RGB, uint8, and the objects in them."""

    images: Tensor
    objects: Objects


class Stage(NamedTuple):
    """What images are like from a step on.

    Attributes:
        step: The first step.
        sides: Sides of the images in pixels, which take turns. Their number divides `GAP`, so
            that a scene returns at its own size.
        tiles: Scenes in a row and in a column of each image: 2 for mosaics of four.
        hard: Whether what is mistaken most often is shown more often.
    """

    step: int
    sides: tuple[int, ...]
    tiles: int = 1
    hard: bool = False


class SceneKey(NamedTuple):
    """What a scene that is shown again depends on, besides the seed and the assets."""

    index: int
    side: int
    tiles: int
    hard: bool


class Scenes(Dataset[Batch]):
    """One batch for each training step: a quarter is new, the rest are older scenes, turned.

    Args:
        seed: Seed of the series of scenes.
        assets: What scenes are made of.
        batch_size: Images in a step; a multiple of four times `processes`.
        stages: What images are like, by step.
        rank: Number of this training process, which gets an equal share of each batch.
        processes: The number of training processes.

    Raises:
        ValueError: The batch size is not such a multiple.
    """

    def __init__(
        self,
        seed: int,
        assets: Assets,
        batch_size: int,
        stages: list[Stage],
        *,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        """Divide each batch among the turns and the processes; nothing is rendered yet."""
        if batch_size % (len(TURNS) * processes):
            raise ValueError(
                f"a batch size of {batch_size} is not a multiple of {len(TURNS)} * {processes}"
            )
        self.seed = seed
        self.assets = assets
        self.stages = stages
        self.rank = rank
        self.processes = processes
        self.new_scenes_per_batch = batch_size // len(TURNS)
        # Scenes that will be shown again. Each rendering process has a copy of this object, and
        # stores the scenes that it renders here.
        self.scenes_to_reuse: dict[SceneKey, Scene] = {}

    def __getitem__(self, step: int) -> Batch:
        """Make the batch of a step: a quarter are new scenes, the rest older ones in other turns.

        Scenes belong to groups, and a group is shown at four steps, `GAP` apart, each time in
        another of the `TURNS`. With a gap of 48, group 144 is shown as it is at step 0, and turned
        at steps 48, 96 and 144. Scenes are rendered when they are first needed; `scenes_to_reuse`
        stores them until they are shown for the last time.
        """
        stage = self.stage(step)
        side = self.side(step)
        assets = self.assets
        if stage.hard:
            assets = replace(self.assets, negatives=HARD)

        last_turn = len(TURNS) - 1
        scenes = []
        for turn, (swap, flip) in enumerate(TURNS):
            group = step + (last_turn - turn) * GAP
            start = group * self.new_scenes_per_batch
            stop = start + self.new_scenes_per_batch
            for index in range(start + self.rank, stop, self.processes):
                key = SceneKey(index, side, stage.tiles, stage.hard)
                scene = self.scenes_to_reuse.pop(key, None)
                if scene is None:
                    scene = mosaic(self.seed, index, assets, side, stage.tiles)
                if turn < last_turn:
                    self.scenes_to_reuse[key] = scene
                scenes.append(turned(scene, swap=swap, flip=flip))
        return collated(scenes)

    def side(self, step: int) -> int:
        """The side of the images of a step."""
        sides = self.stage(step).sides
        return sides[step % len(sides)]

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        stages_so_far = [stage for stage in self.stages if stage.step <= step]
        return stages_so_far[-1]


def turned(scene: Scene, *, swap: bool, flip: bool) -> Scene:
    """The scene with x and y exchanged, then flipped horizontally; both turn it by 90 degrees."""
    image = scene.image
    boxes = scene.boxes.copy()
    if swap:
        image = image.transpose(1, 0, 2)
        boxes = boxes[:, [1, 0, 3, 2]]
    if flip:
        image = image[:, ::-1]
        width = image.shape[1]
        boxes[:, [2, 0]] = width - boxes[:, [0, 2]]
    return Scene(image, scene.labels, boxes)


def mosaic(seed: int, index: int, assets: Assets, side: int, tiles: int) -> Scene:
    """A square of `tiles * tiles` scenes of one size, all of them whole.

    The mosaics of YOLOv4 (arXiv 2004.10934) cut scenes off and vary their sizes. A mosaic of four
    shows more than twice as many symbols as one scene of its size, one of nine about five times as
    many.
    """
    if tiles == 1:
        return letterboxed_scene(seed, index, assets, side)

    tile_side = side // tiles
    count = tiles * tiles
    image = np.full((side, side, 3), PADDING, np.uint8)
    labels = []
    boxes = []
    for number in range(count):
        scene = letterboxed_scene(seed, index * count + number, assets, tile_side)
        row, column = divmod(number, tiles)
        top = row * tile_side
        left = column * tile_side
        image[top : top + tile_side, left : left + tile_side] = scene.image
        labels.append(scene.labels)
        boxes.append(scene.boxes + np.array([left, top, left, top], np.float32))
    return Scene(image, np.concatenate(labels), np.concatenate(boxes))


def letterboxed_scene(seed: int, index: int, assets: Assets, side: int) -> Scene:
    """A random scene on a square canvas: generated, square, or landscape or portrait.

    Of those that are not generated, a quarter are smaller than the canvas, down to a quarter of its
    side, with padding around them. A fifth are meant to have no symbols; with those that have none
    by chance it is a quarter.
    """
    random = np.random.default_rng([seed, index, 1])
    if random.random() < GENERATED_CHANCE:
        return letterboxed(generated(seed, index, assets, side), side)

    longer = side
    is_full_size = random.random() < FULL_SIZE_CHANCE
    if not is_full_size:
        longer = int(side * random.uniform(0.25, 0.9))

    shorter = longer
    is_square = random.random() < SQUARE_CHANCE
    if not is_square:
        shorter = int(longer * random.uniform(0.4, 0.95))
    shorter = max(shorter, MIN_SCENE_SIDE)
    longer = max(longer, MIN_SCENE_SIDE)

    height, width = shorter, longer
    is_portrait = random.random() < 0.5
    if is_portrait:
        height, width = longer, shorter
    has_symbols = random.random() < SYMBOLS_CHANCE
    return letterboxed(render(seed, index, assets, height, width, symbols=has_symbols), side)


def letterboxed(scene: Scene, side: int) -> Scene:
    """The scene, made smaller if it does not fit, in the middle of a grey square."""
    height, width = scene.image.shape[:2]
    if height == width == side:
        return scene

    scale = min(side / max(height, width), 1)
    scaled_height = round(height * scale)
    scaled_width = round(width * scale)
    scaled_image = scene.image
    if scale != 1:
        scaled_image = cv2.resize(
            scaled_image, (scaled_width, scaled_height), interpolation=cv2.INTER_LINEAR
        )

    top = (side - scaled_height) // 2
    left = (side - scaled_width) // 2
    canvas = np.full((side, side, 3), PADDING, np.uint8)
    canvas[top : top + scaled_height, left : left + scaled_width] = scaled_image
    boxes = scene.boxes * np.float32(scale) + np.array([left, top, left, top], np.float32)
    return Scene(canvas, scene.labels, boxes)


def collated(scenes: list[Scene]) -> Batch:
    """Scenes of the same size as one batch."""
    images = np.stack([_rgb_planes(scene.image) for scene in scenes])  # [B, 3, H, W]
    counts = torch.tensor([len(scene.labels) for scene in scenes])
    objects = Objects(
        image=torch.arange(len(scenes)).repeat_interleave(counts),
        label=torch.from_numpy(np.concatenate([scene.labels for scene in scenes])),
        box=torch.from_numpy(np.concatenate([scene.boxes for scene in scenes])),
    )
    return Batch(torch.from_numpy(images), objects)


def _rgb_planes(image: Image) -> Image:
    """A BGR image `[H, W, 3]` as RGB, `[3, H, W]`."""
    return np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1))


def batches(scenes: Scenes, start: int, stop: int, workers: int) -> Iterator[Batch]:
    """The batches of these steps, rendered ahead by worker processes (0: by this one)."""
    loader = DataLoader(
        scenes,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        worker_init_fn=_start_worker,
    )
    return iter(loader)


def _start_worker(_worker: int) -> None:
    """Use one thread in each rendering process."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
