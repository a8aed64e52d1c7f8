"""Train the model: `python -m codes.train --run FOLDER`; resumes where the folder's file ends.

AdamW; the rate warms up, stays, and falls to zero over the last steps, so that a run can be
made longer as long as it has not fallen. An exponential moving average of the weights is what
gets evaluated and exported.
"""

import argparse
import copy
import dataclasses
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from codes.assets import training_assets
from codes.assign import Objects
from codes.data import Batch, Scenes, Stage, batches
from codes.head import square
from codes.loss import Anchors, Parts, dual_loss
from codes.network import STRIDES, Network, Plan
from codes.symbols import NAMES

LAST = "last.pt"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How to train; a resumed run may change everything but the seed and the batch size.

    Attributes:
        steps: In all.
        falling: How many of the last ones the rate takes to fall to zero.
        warm_up: How many of the first ones it takes to rise.
        rate: Between the two.
        decay: Weight decay, of weights of convolutions only.
        batch: Pictures in a step.
        side: Of the pictures, in pixels; a multiple of 32.
        large_side: Of the pictures of the last `large_steps`.
        large_steps: How many steps see those.
        memory: Share of the moving average that stays at each step.
        seed: Of weights and scenes.
        workers: Processes that render, for each one that trains.
        processes: That train, each on its part of the batch. Two on two cores learn from twice
            as many pictures in a second as one does with two threads.
        every: Steps between two checkpoints.
        stop: Step to stop at before the last one, to be resumed; 0 for none.
    """

    steps: int = 16000
    falling: int = 11000
    warm_up: int = 300
    rate: float = 1.5e-3
    decay: float = 0.03
    batch: int = 16
    side: int = 416
    large_side: int = 640
    large_steps: int = 400
    memory: float = 0.999
    seed: int = 0
    workers: int = 2
    processes: int = 1
    every: int = 250
    stop: int = 0


class Trainer:
    """The network, its average and its optimiser, at a step.

    Args:
        settings: How to train.
        device: Where.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.device = device
        self.step = 0
        network = Network(Plan.narrow(len(NAMES)))
        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parallel = DistributedDataParallel(self.network) if settings.processes > 1 else network
        self.average = copy.deepcopy(self.network).eval().requires_grad_(requires_grad=False)
        self.optimiser = torch.optim.AdamW(_groups(self.network, settings.decay), fused=True)
        self.grids: dict[int, Anchors] = {}

    def learn(self, batch: Batch) -> tuple[Parts, Parts]:
        """One step; returns the loss of the one-to-many and of the one-to-one head."""
        losses = self.backward(batch)
        self.update()
        return losses

    def backward(self, batch: Batch) -> tuple[Parts, Parts]:
        """Leave the gradients in the network; returns the losses of both heads."""
        pictures = batch.pictures.to(self.device).contiguous(memory_format=torch.channels_last)
        objects = Objects(*(part.to(self.device) for part in batch.objects))
        with torch.autocast(self.device.type, torch.bfloat16):
            outputs = self.parallel(pictures.float() / 255)
        many, one = dual_loss(outputs, objects, self._grid(pictures))
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack([*many, *one]).sum().backward()
        return Parts(*(part.detach() for part in many)), Parts(*(part.detach() for part in one))

    def update(self) -> None:
        """Move the weights against their gradients."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(self.step, self.settings)
        nn.utils.clip_grad_norm_(self.network.parameters(), 10)
        self.optimiser.step()
        self.step += 1
        self._remember()

    def _grid(self, pictures: Tensor) -> Anchors:
        side = pictures.shape[2]
        if side not in self.grids:
            self.grids[side] = Anchors(*(part.to(self.device) for part in square(side, STRIDES)))
        return self.grids[side]

    @torch.no_grad()
    def _remember(self) -> None:
        """Move the average towards the weights, faster in the first steps."""
        memory = min(self.settings.memory, (1 + self.step) / (10 + self.step))
        ours, theirs = self.average.state_dict(), self.network.state_dict()
        moving = [name for name, value in ours.items() if value.dtype.is_floating_point]
        torch._foreach_lerp_(
            [ours[name] for name in moving], [theirs[name] for name in moving], 1 - memory
        )

    def save(self, path: Path) -> None:
        """Write all that a resumed run needs, whole or not at all."""
        state = {
            "step": self.step,
            "settings": dataclasses.asdict(self.settings),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        draft = path.with_suffix(".new")
        torch.save(state, draft)
        draft.replace(path)

    def load(self, path: Path) -> None:
        """Read what `save` wrote."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])


def _groups(network: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weights of convolutions decay; biases and batch normalisation do not."""
    parameters = list(network.parameters())
    return [
        {"params": [part for part in parameters if part.ndim > 1], "weight_decay": decay},
        {"params": [part for part in parameters if part.ndim <= 1], "weight_decay": 0.0},
    ]


def rate_at(step: int, settings: Settings) -> float:
    """The learning rate of a step, counted from 0."""
    rise = min((step + 1) / settings.warm_up, 1)
    fall = min((settings.steps - step) / max(settings.falling, 1), 1)
    return settings.rate * rise * (1 - math.cos(math.pi * fall)) / 2


def stages(settings: Settings) -> list[Stage]:
    """Smaller pictures first, larger ones in the end."""
    return [
        Stage(0, settings.side),
        Stage(max(settings.steps - settings.large_steps, 0), settings.large_side),
    ]


def train(settings: Settings, folder: Path, device: torch.device, part: int = 0) -> Trainer:
    """Train to the last step, from the folder's checkpoint if it has one.

    Args:
        settings: How to train.
        folder: Of the checkpoint.
        device: Where.
        part: Which of the training processes this one is; the first one saves and reports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings, device)
    if (folder / LAST).exists():
        trainer.load(folder / LAST)
    scenes = Scenes(
        settings.seed,
        training_assets(settings.seed),
        settings.batch,
        stages(settings),
        part=part,
        parts=settings.processes,
    )
    report = _Report(settings)
    end = settings.stop or settings.steps
    for batch in batches(scenes, trainer.step, end, settings.workers):
        losses = trainer.learn(batch)
        if part:
            continue
        report.add(trainer.step, losses)
        if trainer.step % settings.every == 0 or trainer.step == end:
            trainer.save(folder / LAST)
    return trainer


def train_in_parallel(settings: Settings, folder: Path, device: torch.device) -> None:
    """Train with all processes of the settings, which average their gradients at each step."""
    with tempfile.TemporaryDirectory() as meeting:
        torch.multiprocessing.spawn(
            _train_part, (settings, folder, device, f"file://{meeting}/parts"), settings.processes
        )


def _train_part(
    part: int, settings: Settings, folder: Path, device: torch.device, meeting: str
) -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    distributed.init_process_group(
        "gloo", init_method=meeting, rank=part, world_size=settings.processes
    )
    train(settings, folder, device, part)
    distributed.destroy_process_group()


class _Report:
    """Progress on stderr: a line that renews itself on a terminal, one in 50 steps elsewhere."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sums: list[Tensor] = []
        self.since = time.monotonic()

    def add(self, step: int, losses: tuple[Parts, Parts]) -> None:
        """Count a step, and print the mean of the last 50."""
        self.sums.append(torch.stack([part for parts in losses for part in parts]))
        if len(self.sums) < 50:
            return
        means = torch.stack(self.sums).mean(0).tolist()
        many, one = means[:3], means[3:]
        now = time.monotonic()
        speed = len(self.sums) / (now - self.since)
        left = (self.settings.steps - step) / speed
        text = (
            f"{step + 1}/{self.settings.steps} rate {rate_at(step, self.settings):.1e}  "
            f"many: box {many[0]:.2f} class {many[1]:.2f} sides {many[2]:.2f}  "
            f"one: box {one[0]:.2f} class {one[1]:.2f} sides {one[2]:.2f}  "
            f"{speed * self.settings.batch:.0f} pictures/s, {left / 60:.0f} min left"
        )
        terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()
        self.sums, self.since = [], now


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("build/codes"), help="folder to work in")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in dataclasses.fields(Settings):
        kind = type(field.default)
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=field.default, metavar=kind.__name__)
    given = vars(parser.parse_args())
    folder, device = given.pop("run"), torch.device(given.pop("device"))
    settings = Settings(**given)
    if settings.processes > 1:
        train_in_parallel(settings, folder, device)
    else:
        cv2.setNumThreads(1)
        train(settings, folder, device)


if __name__ == "__main__":
    main()
