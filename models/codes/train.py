"""Train the model: `python -m codes.train --run FOLDER`; resumes from the folder's checkpoint.

Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) for the convolutions that mix
channels, AdamW for all else. The learning rate warms up, stays constant and decays to zero; then it
rises again and decays, once in each further cycle (warm restarts: Loshchilov and Hutter,
arXiv 1608.03983). The exponential moving average (EMA) of the weights is what is evaluated and
exported.
"""

import argparse
import copy
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import cv2
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from codes.assets import training_assets
from codes.data import Batch, Scenes, Stage, batches
from codes.export import restore
from codes.loss import Anchors, Objects, Parts, dual_loss
from codes.network import STRIDES, Network, Plan, square
from codes.symbols import NAMES

LAST = "last.pt"
LOG = "log.tsv"
COLUMNS = "step lr many_box many_class many_sides one_box one_class one_sides".split()
REPORT_EVERY = 50  # steps
MUON_LR = 2.0
# Sides of the images in turn, as shares of the largest. Two workers in turn have about as much to
# do. Boxes are learned early on, but telling the classes apart takes about a million symbols: so
# most images are mosaics, of nine small scenes or of four, in which there are many.
NINE = (0.45, 0.45, 0.6, 0.45, 0.6, 0.45, 0.75, 0.45)
FOUR = (0.6, 0.8, 0.5, 1, 0.6, 0.8, 0.5, 1)
ONE = (0.5, 0.7, 1, 0.7, 0.6, 0.85, 0.5, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Hyperparameters; a resumed run may change all but `seed` and `batch_size`.

    Attributes:
        steps: Number of training steps.
        cycle_steps: Steps of a cycle, at whose end the learning rate has decayed to zero; the last
            cycle may be shorter.
        warmup_steps: The first steps of each cycle, over which the learning rate rises.
        lr: The learning rate of AdamW after warm-up; Muon's is `MUON_LR` times as high.
        lr_decay_steps: The last steps of the first cycle, over which the rate decays to zero.
        restart_lr: The learning rate of further cycles, which decays from their first step on.
        weight_decay: Weight decay, applied to the weights of convolutions only.
        batch_size: Images in a step.
        imgsz: Side of the largest images in pixels, a multiple of 32.
        four_from: The step from which on images are mosaics of four scenes instead of nine.
        one_from: The step from which on they are single scenes.
        large_steps: The last steps of each cycle, with the largest images only.
        hard_from: From the first stage at or after this step on, what is mistaken most often is
            shown more often.
        ema_decay: Share of the moving average that each step keeps.
        seed: Seed of weights and scenes.
        workers: Rendering processes for each training process.
        processes: Training processes, each with its part of the batch. On two cores, two of them
            learn from twice as many images a second as one with two threads.
        checkpoint_every: Steps between two checkpoints.
        stop_at: Step to stop at early, to be resumed later; 0 to run to the end.
        start: An exported file whose weights a new run starts from; empty to start from nothing.
        photographs: A folder of images without symbols, for backgrounds and things that lie
            about; empty for those that come with scikit-image and scikit-learn alone.
    """

    steps: int = 24000
    cycle_steps: int = 8000
    warmup_steps: int = 300
    lr: float = 1e-2
    lr_decay_steps: int = 4400
    restart_lr: float = 5e-3
    weight_decay: float = 0.03
    batch_size: int = 16
    imgsz: int = 640
    four_from: int = 2800
    one_from: int = 5200
    large_steps: int = 300
    hard_from: int = 16000
    ema_decay: float = 0.999
    seed: int = 0
    workers: int = 2
    processes: int = 1
    checkpoint_every: int = 100
    stop_at: int = 0
    start: str = ""
    photographs: str = ""


class Trainer:
    """The network, the EMA of its weights and its optimisers, at a step.

    Args:
        settings: Hyperparameters.
        device: Where to train.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.device = device
        self.short = has_bfloat16(device)
        self.step = 0
        network = Network(Plan.narrow(len(NAMES)))
        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parallel = DistributedDataParallel(self.network) if settings.processes > 1 else network
        self.average = copy.deepcopy(self.network).eval().requires_grad_(requires_grad=False)
        self.optimiser = torch.optim.AdamW(_groups(self.network, settings.weight_decay), fused=True)
        self.matrices = {_matrix(weight): weight for weight in _mixing(self.network)}
        self.muon = torch.optim.Muon(
            self.matrices, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self.grids: dict[int, Anchors] = {}

    def learn(self, batch: Batch) -> tuple[Parts, Parts]:
        """Take one step; returns the losses of the one-to-many and of the one-to-one head."""
        losses = self.backward(batch)
        self.update()
        return losses

    def backward(self, batch: Batch) -> tuple[Parts, Parts]:
        """Compute the gradients; returns the losses of both heads."""
        images = batch.pictures.to(self.device).contiguous(memory_format=torch.channels_last)
        objects = Objects(*(part.to(self.device) for part in batch.objects))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.short):
            outputs = self.parallel(images.float() / 255)
        many, one = dual_loss(outputs, objects, self._grid(images))
        self.network.zero_grad(set_to_none=True)
        torch.stack([*many, *one]).sum().backward()
        return Parts(*(part.detach() for part in many)), Parts(*(part.detach() for part in one))

    def update(self) -> None:
        """Update the weights from their gradients."""
        lr = lr_at(self.step, self.settings)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        for group in self.muon.param_groups:
            group["lr"] = lr * MUON_LR
        nn.utils.clip_grad_norm_(self.network.parameters(), 10)
        for matrix, weight in self.matrices.items():
            if weight.grad is not None:
                matrix.grad = _matrix(weight.grad)
        self.optimiser.step()
        self.muon.step()
        self.step += 1
        self._update_average()

    def _grid(self, images: Tensor) -> Anchors:
        side = images.shape[2]
        if side not in self.grids:
            self.grids[side] = Anchors(*(part.to(self.device) for part in square(side, STRIDES)))
        return self.grids[side]

    @torch.no_grad()
    def _update_average(self) -> None:
        """Update the EMA, with a smaller decay in the first steps."""
        decay = min(self.settings.ema_decay, (1 + self.step) / (10 + self.step))
        ours, theirs = self.average.state_dict(), self.network.state_dict()
        moving = [name for name, value in ours.items() if value.dtype.is_floating_point]
        torch._foreach_lerp_(
            [ours[name] for name in moving], [theirs[name] for name in moving], 1 - decay
        )

    def start(self, path: Path, images: Tensor) -> None:
        """Take the weights of an exported file; `pictures` are `[B, 3, H, W]`, uint8."""
        restore(self.network, path, images.to(self.device).float() / 255)
        self.average.load_state_dict(self.network.state_dict())

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        state = {
            "step": self.step,
            "settings": dataclasses.asdict(self.settings),
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "muon": self.muon.state_dict(),
        }
        draft = path.with_suffix(".new")
        torch.save(state, draft)
        draft.replace(path)

    def load(self, path: Path) -> None:
        """Read a checkpoint; its settings are only a record and are not read."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.muon.load_state_dict(state["muon"])


def has_bfloat16(device: torch.device) -> bool:
    """Whether it computes in bfloat16; a CPU that does not is five times as slow with it."""
    if device.type != "cpu":
        return True
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's parameters: weight decay for convolutions, none for biases and normalisation."""
    mixing = {id(weight) for weight in _mixing(network)}
    parameters = [part for part in network.parameters() if id(part) not in mixing]
    return [
        {"params": [part for part in parameters if part.ndim > 1], "weight_decay": weight_decay},
        {"params": [part for part in parameters if part.ndim <= 1], "weight_decay": 0.0},
    ]


def _mixing(network: nn.Module) -> Iterator[Tensor]:
    """Weights of the convolutions that mix channels, but for the last ones, which have a bias."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.bias is None:
            yield module.weight


def _matrix(weight: Tensor) -> Tensor:
    """A view `[out, kernel * kernel * in]` of a weight `[out, in, kernel, kernel]`, for Muon."""
    return weight.detach().permute(0, 2, 3, 1).flatten(1)


def lr_at(step: int, settings: Settings) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, cosine decay, in each cycle."""
    start = step - step % settings.cycle_steps
    end = min(start + settings.cycle_steps, settings.steps)
    lr, decay_steps = settings.lr, settings.lr_decay_steps
    if start:
        lr, decay_steps = settings.restart_lr, end - start
    rise = min((step - start + 1) / settings.warmup_steps, 1)
    fall = min((end - step) / max(decay_steps, 1), 1)
    return lr * rise * (1 - math.cos(math.pi * fall)) / 2


def stages(settings: Settings) -> list[Stage]:
    """Images by step: mosaics of nine scenes, of four, single scenes, large ones at the ends."""
    cells = settings.imgsz // 32
    nine, four, one = (
        tuple(round(share * cells) * 32 for share in shares) for shares in (NINE, FOUR, ONE)
    )
    found = [
        Stage(0, nine, tiles=3),
        Stage(settings.four_from, four, tiles=2),
        Stage(settings.one_from, one),
    ]
    for end in [*range(settings.cycle_steps, settings.steps, settings.cycle_steps), settings.steps]:
        found.append(Stage(max(end - settings.large_steps, 0), (settings.imgsz,)))
        found.append(Stage(end, one))
    return [stage._replace(hard=stage.step >= settings.hard_from) for stage in found]


def train(settings: Settings, folder: Path, device: torch.device, part: int = 0) -> Trainer:
    """Train to the last step, starting from the folder's checkpoint if there is one.

    Args:
        settings: Hyperparameters.
        folder: Where the checkpoint is.
        device: Where to train.
        part: Rank of this training process; rank 0 saves and reports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(settings, device)
    assets = training_assets(settings.seed, settings.photographs)
    series = (settings.seed, assets, settings.batch_size, stages(settings))
    if (folder / LAST).exists():
        trainer.load(folder / LAST)
    elif settings.start:  # the whole batch, so that all processes start alike
        trainer.start(Path(settings.start), Scenes(*series)[0].pictures)
    scenes = Scenes(*series, part=part, parts=settings.processes)
    report = None if part else _Report(settings, folder / LOG, trainer.step)
    end = settings.stop_at or settings.steps
    for batch in batches(scenes, trainer.step, end, settings.workers):
        losses = trainer.learn(batch)
        if report is None:
            continue
        report.add(trainer.step, losses)
        if trainer.step % settings.checkpoint_every == 0 or trainer.step == end:
            trainer.save(folder / LAST)
    return trainer


def train_in_parallel(settings: Settings, folder: Path, device: torch.device) -> None:
    """Train with `settings.processes` processes, which average their gradients at each step."""
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
        "gloo",
        init_method=meeting,
        rank=part,
        world_size=settings.processes,
        timeout=timedelta(days=1),  # so that a run can be paused
    )
    train(settings, folder, device, part)
    distributed.destroy_process_group()


class _Report:
    """Progress on stderr every `REPORT_EVERY` steps, on a terminal in a single line, and in a log.

    Args:
        settings: Hyperparameters.
        log: A table with tabs; a resumed run drops the rows of steps that it takes again.
        step: The step that the run is at.
    """

    def __init__(self, settings: Settings, log: Path, step: int) -> None:
        rows = log.read_text().splitlines()[1:] if log.exists() else []
        rows = [row for row in rows if int(row.split("\t")[0]) <= step]
        log.write_text("\n".join(["\t".join(COLUMNS), *rows, ""]))
        self.settings = settings
        self.log = log
        self.sums: list[Tensor] = []
        self.since = time.monotonic()

    def add(self, step: int, losses: tuple[Parts, Parts]) -> None:
        """Add a step's losses, and report the means when it is time."""
        self.sums.append(torch.stack([part for parts in losses for part in parts]))
        if len(self.sums) < REPORT_EVERY:
            return
        means = torch.stack(self.sums).mean(0).tolist()
        many, one = means[:3], means[3:]
        now = time.monotonic()
        speed = len(self.sums) / (now - self.since)
        left = (self.settings.steps - step) / speed
        lr = lr_at(step, self.settings)
        text = (
            f"{step}/{self.settings.steps} lr {lr:.1e}  "
            f"many: box {many[0]:.2f} class {many[1]:.2f} sides {many[2]:.2f}  "
            f"one: box {one[0]:.2f} class {one[1]:.2f} sides {one[2]:.2f}  "
            f"{speed * self.settings.batch_size:.0f} images/s, {left / 60:.0f} min left"
        )
        terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()
        with self.log.open("a") as log:
            log.write(
                "\t".join([str(step), f"{lr:.1e}", *(f"{mean:.2f}" for mean in means)]) + "\n"
            )
        self.sums, self.since = [], now


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("build/codes"), help="folder of the checkpoint"
    )
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
