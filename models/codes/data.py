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
# Whether x and y are exchanged, and whether x is flipped then.
TURNS = ((False, False), (True, True), (False, True), (True, False))
GAP = 48  # steps; a multiple of most worker counts, so that a scene returns to its own worker


class Batch(NamedTuple):
    """Images `[B, 3, H, W]`, RGB, uint8, and the objects in them."""

    pictures: Tensor
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


class Scenes(Dataset[Batch]):
    """One batch for each training step: a quarter is new, the rest are older scenes, turned.

    Args:
        seed: Seed of the series of scenes.
        assets: What scenes are made of.
        batch_size: Images in a step; a multiple of four times `parts`.
        stages: What images are like, by step.
        part: Which of the `parts` equal parts of each batch to return.
        parts: The number of parts.
    """

    def __init__(
        self,
        seed: int,
        assets: Assets,
        batch_size: int,
        stages: list[Stage],
        *,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        if batch_size % (len(TURNS) * parts):
            raise ValueError(
                f"a batch size of {batch_size} is not a multiple of {len(TURNS)} * {parts}"
            )
        self.seed = seed
        self.assets = assets
        self.fresh = batch_size // len(TURNS)
        self.stages = stages
        self.part = part
        self.parts = parts
        self.kept: dict[tuple[int, int, int, bool], Scene] = {}

    def __getitem__(self, step: int) -> Batch:
        side, stage = self.side(step), self.stage(step)
        like = (side, stage.tiles, stage.hard)
        assets = replace(self.assets, negatives=HARD) if stage.hard else self.assets
        last = len(TURNS) - 1
        scenes = []
        for use, (swap, flip) in enumerate(TURNS):
            first = (step + (last - use) * GAP) * self.fresh
            for index in range(first + self.part, first + self.fresh, self.parts):
                scene = self.kept.pop((index, *like), None)
                scene = scene or mosaic(self.seed, index, assets, side, stage.tiles)
                if use < last:
                    self.kept[index, *like] = scene
                scenes.append(turned(scene, swap=swap, flip=flip))
        return collated(scenes)

    def side(self, step: int) -> int:
        """The side of the images of a step."""
        sides = self.stage(step).sides
        return sides[step % len(sides)]

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        return [stage for stage in self.stages if stage.step <= step][-1]


def turned(scene: Scene, *, swap: bool, flip: bool) -> Scene:
    """The scene with x and y exchanged, then flipped horizontally; both turn it by 90 degrees."""
    image, boxes = scene.picture, scene.boxes.copy()
    if swap:
        image, boxes = image.transpose(1, 0, 2), boxes[:, [1, 0, 3, 2]]
    if flip:
        image = image[:, ::-1]
        boxes[:, [2, 0]] = image.shape[1] - boxes[:, [0, 2]]
    return Scene(image, scene.labels, boxes)


def mosaic(seed: int, index: int, assets: Assets, side: int, tiles: int) -> Scene:
    """A square of `tiles * tiles` scenes, as in YOLOv4 (arXiv 2004.10934) but whole and equal.

    A mosaic of four shows more than twice as many symbols as one scene of its size, one of nine
    about five times as many.
    """
    if tiles == 1:
        return letterboxed_scene(seed, index, assets, side)
    part, count = side // tiles, tiles * tiles
    image = np.full((side, side, 3), PADDING, np.uint8)
    scenes = [letterboxed_scene(seed, index * count + i, assets, part) for i in range(count)]
    boxes = []
    for i, scene in enumerate(scenes):
        top, left = i // tiles * part, i % tiles * part
        image[top : top + part, left : left + part] = scene.picture
        boxes.append(scene.boxes + np.array([left, top, left, top], np.float32))
    return Scene(image, np.concatenate([scene.labels for scene in scenes]), np.concatenate(boxes))


def letterboxed_scene(seed: int, index: int, assets: Assets, side: int) -> Scene:
    """A scene on a square canvas.

    Two in five are landscape or portrait, as photographs are. One in four is a small image, down
    to a quarter of the canvas, with padding around it. One in four holds no symbol, most by choice,
    some by chance. One in fourteen is a symbol and next to nothing else.
    """
    random = np.random.default_rng([seed, index, 1])
    if random.random() < 0.07:
        return letterboxed(generated(seed, index, assets, side), side)
    longer = side if random.random() < 0.75 else int(side * random.uniform(0.25, 0.9))
    shorter = longer if random.random() < 0.6 else int(longer * random.uniform(0.4, 0.95))
    shorter, longer = max(shorter, 64), max(longer, 64)
    height, width = (longer, shorter) if random.random() < 0.5 else (shorter, longer)
    symbols = random.random() < 0.8
    return letterboxed(render(seed, index, assets, height, width, symbols=symbols), side)


def letterboxed(scene: Scene, side: int) -> Scene:
    """The scene, made smaller if it does not fit, in the middle of a grey square."""
    height, width = scene.picture.shape[:2]
    if height == width == side:
        return scene
    gain = min(side / max(height, width), 1)
    tall, wide = round(height * gain), round(width * gain)
    top, left = (side - tall) // 2, (side - wide) // 2
    image = np.full((side, side, 3), PADDING, np.uint8)
    fitted = scene.picture
    if gain != 1:
        fitted = cv2.resize(fitted, (wide, tall), interpolation=cv2.INTER_LINEAR)
    image[top : top + tall, left : left + wide] = fitted
    boxes = scene.boxes * np.float32(gain) + np.array([left, top, left, top], np.float32)
    return Scene(image, scene.labels, boxes)


def collated(scenes: list[Scene]) -> Batch:
    """Scenes of the same size as one batch."""
    stacked = np.stack([_planes(scene.picture) for scene in scenes])  # [B, 3, H, W]
    counts = torch.tensor([len(scene.labels) for scene in scenes])
    return Batch(
        torch.from_numpy(stacked),
        Objects(
            torch.arange(len(scenes)).repeat_interleave(counts),
            torch.from_numpy(np.concatenate([scene.labels for scene in scenes])),
            torch.from_numpy(np.concatenate([scene.boxes for scene in scenes])),
        ),
    )


def _planes(image: Image) -> Image:
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


def _start_worker(_: int) -> None:
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
