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

CHECKPOINT_NAME = "last.pt"
LOG_NAME = "log.tsv"
GRADIENT_LIMIT = 10.0  # longer gradients are scaled down to this norm
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

    Attributes:
        settings: Hyperparameters.
        device: Where it trains.
        uses_bfloat16: Whether the network computes in bfloat16.
        step: The steps taken.
        network: What is trained.
        parallel: The network as this process calls it; among several processes, it averages the
            gradients of all.
        average: The EMA of the weights, in evaluation mode.
        optimiser: AdamW, for all that Muon does not update.
        matrices: For each weight that Muon updates, a view of it as a matrix, and the weight.
        muon: The optimiser of these matrices.
        grids: The anchors by side of the image.

    Args:
        settings: Hyperparameters.
        device: Where to train.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        """Make an untrained network, the EMA of its weights, and their two optimisers."""
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.device = device
        self.uses_bfloat16 = has_bfloat16(device)
        self.step = 0
        self.grids: dict[int, Anchors] = {}

        network = Network(Plan.narrow(len(NAMES)))
        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parallel: nn.Module = self.network
        if settings.processes > 1:
            self.parallel = DistributedDataParallel(self.network)

        self.average = copy.deepcopy(self.network).eval()
        self.average.requires_grad_(requires_grad=False)

        parameter_groups = _adamw_groups(self.network, settings.weight_decay)
        self.optimiser = torch.optim.AdamW(parameter_groups, fused=True)
        # Muon takes matrices only, and updates a weight through a view of it as one.
        self.matrices = {_matrix(weight): weight for weight in _channel_mixing(self.network)}
        self.muon = torch.optim.Muon(
            self.matrices, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"
        )

    def learn(self, batch: Batch) -> tuple[Parts, Parts]:
        """Take one step; returns the losses of the one-to-many and of the one-to-one head."""
        losses = self.backward(batch)
        self.update()
        return losses

    def backward(self, batch: Batch) -> tuple[Parts, Parts]:
        """Run the network on a batch and replace its gradients by those of the losses.

        Returns:
            The losses of the one-to-many and of the one-to-one head, without gradients.
        """
        images = batch.images.to(self.device).contiguous(memory_format=torch.channels_last)
        objects = Objects(
            image=batch.objects.image.to(self.device),
            label=batch.objects.label.to(self.device),
            box=batch.objects.box.to(self.device),
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.uses_bfloat16):
            outputs = self.parallel(images.float() / 255)
        one_to_many, one_to_one = dual_loss(outputs, objects, self._grid(images))

        self.network.zero_grad(set_to_none=True)
        torch.stack(one_to_many + one_to_one).sum().backward()
        return _detached(one_to_many), _detached(one_to_one)

    def update(self) -> None:
        """Update the weights from their gradients, then the EMA."""
        lr = lr_at(self.step, self.settings)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        for group in self.muon.param_groups:
            group["lr"] = lr * MUON_LR

        nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_LIMIT)

        # Muon takes matrices: its gradients are views of those that the weights have.
        for matrix, weight in self.matrices.items():
            if weight.grad is not None:
                matrix.grad = _matrix(weight.grad)

        self.optimiser.step()
        self.muon.step()
        self.step += 1
        self._update_average()

    def _grid(self, images: Tensor) -> Anchors:
        """The anchors of square images `[B, 3, side, side]`, computed once for each side."""
        side = images.shape[2]
        if side not in self.grids:
            centres, strides = square(side, STRIDES)
            self.grids[side] = Anchors(centres.to(self.device), strides.to(self.device))
        return self.grids[side]

    @torch.no_grad()
    def _update_average(self) -> None:
        """Update the EMA, with a smaller decay in the first steps."""
        decay = min(self.settings.ema_decay, (1 + self.step) / (10 + self.step))
        averages = self.average.state_dict()
        weights = self.network.state_dict()
        moving = [name for name, value in averages.items() if value.dtype.is_floating_point]
        torch._foreach_lerp_(
            [averages[name] for name in moving], [weights[name] for name in moving], 1 - decay
        )

    def start(self, path: Path, images: Tensor) -> None:
        """Take the weights of an exported file; `images` are `[B, 3, H, W]`, uint8."""
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
        temporary_path = path.with_suffix(".new")
        torch.save(state, temporary_path)
        temporary_path.replace(path)

    def load(self, path: Path) -> None:
        """Read a checkpoint; its settings are only a record and are not read."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.muon.load_state_dict(state["muon"])


def _detached(parts: Parts) -> Parts:
    """The parts of a loss without their gradients."""
    return Parts(parts.box.detach(), parts.score.detach(), parts.distribution.detach())


def has_bfloat16(device: torch.device) -> bool:
    """Whether it computes in bfloat16; a CPU that does not is five times as slow with it."""
    if device.type != "cpu":
        return True
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _adamw_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters that AdamW updates, in two groups: with weight decay, and without.

    Those are all that Muon does not update. Only convolutions decay; biases and normalisation do
    not.
    """
    muon_weights = {id(weight) for weight in _channel_mixing(network)}
    decaying = []
    not_decaying = []
    for parameter in network.parameters():
        if id(parameter) in muon_weights:
            continue
        is_convolution = parameter.ndim > 1
        if is_convolution:
            decaying.append(parameter)
        else:
            not_decaying.append(parameter)
    return [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": not_decaying, "weight_decay": 0.0},
    ]


def _channel_mixing(network: nn.Module) -> Iterator[Tensor]:
    """Weights of the convolutions that mix channels, but for the last ones, which have a bias."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.bias is None:
            yield module.weight


def _matrix(weight: Tensor) -> Tensor:
    """A view `[out, kernel * kernel * in]` of a weight `[out, in, kernel, kernel]`, for Muon."""
    return weight.detach().permute(0, 2, 3, 1).flatten(1)


def lr_at(step: int, settings: Settings) -> float:
    """The learning rate of a step, counted from 0.

    In each cycle it rises linearly over the warm-up, and at the end decays to zero along a cosine.
    The first cycle is constant in between; a further one decays from its first step on.
    """
    cycle_start = step - step % settings.cycle_steps
    cycle_end = min(cycle_start + settings.cycle_steps, settings.steps)
    is_first_cycle = cycle_start == 0
    if is_first_cycle:
        peak_lr = settings.lr
        decay_steps = settings.lr_decay_steps
    else:
        peak_lr = settings.restart_lr
        decay_steps = cycle_end - cycle_start
    warmup_share = min((step - cycle_start + 1) / settings.warmup_steps, 1)
    remaining_share = min((cycle_end - step) / max(decay_steps, 1), 1)  # 1 before the decay
    return peak_lr * warmup_share * (1 - math.cos(math.pi * remaining_share)) / 2


def stages(settings: Settings) -> list[Stage]:
    """The stages of a run, in order: mosaics of nine scenes, mosaics of four, single scenes.

    The last steps of each cycle have single scenes on the largest images only. The next cycle goes
    on with single scenes of all sizes.
    """
    run_stages = [
        Stage(0, _sides(NINE, settings), tiles=3),
        Stage(settings.four_from, _sides(FOUR, settings), tiles=2),
        Stage(settings.one_from, _sides(ONE, settings)),
    ]
    cycle_ends = list(range(settings.cycle_steps, settings.steps, settings.cycle_steps))
    cycle_ends.append(settings.steps)
    for cycle_end in cycle_ends:
        large_images_start = max(cycle_end - settings.large_steps, 0)
        run_stages.append(Stage(large_images_start, (settings.imgsz,)))
        run_stages.append(Stage(cycle_end, _sides(ONE, settings)))

    stages_with_hardness = []
    for stage in run_stages:
        is_hard = stage.step >= settings.hard_from
        stages_with_hardness.append(stage._replace(hard=is_hard))
    return stages_with_hardness


def _sides(shares: tuple[float, ...], settings: Settings) -> tuple[int, ...]:
    """Sides in pixels of shares of the largest side, as multiples of the largest stride."""
    stride = STRIDES[-1]
    largest_in_strides = settings.imgsz // stride
    return tuple(round(share * largest_in_strides) * stride for share in shares)


def train(settings: Settings, folder: Path, device: torch.device, rank: int = 0) -> Trainer:
    """Train to the last step, starting from the folder's checkpoint if there is one.

    Without a checkpoint, training starts from the weights of `settings.start`, if that is set.
    Process 0 alone writes checkpoints and the log to the folder, and progress to stderr.

    Args:
        settings: Hyperparameters.
        folder: Where the checkpoint is read from and written to, with a log of the losses.
        device: Where to train.
        rank: Number of this training process.

    Returns:
        The trainer after the last step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint_path = folder / CHECKPOINT_NAME
    trainer = Trainer(settings, device)
    assets = training_assets(settings.seed, settings.photographs)
    run_stages = stages(settings)
    if checkpoint_path.exists():
        trainer.load(checkpoint_path)
    elif settings.start:
        # From the whole first batch, not this process's share of it, so that all processes start
        # with the same weights.
        whole_batches = Scenes(settings.seed, assets, settings.batch_size, run_stages)
        trainer.start(Path(settings.start), whole_batches[0].images)

    scenes = Scenes(
        settings.seed,
        assets,
        settings.batch_size,
        run_stages,
        rank=rank,
        processes=settings.processes,
    )
    is_saving_process = rank == 0
    report = None
    if is_saving_process:
        report = _Report(settings, folder / LOG_NAME, trainer.step)

    last_step = settings.stop_at or settings.steps
    for batch in batches(scenes, trainer.step, last_step, settings.workers):
        losses = trainer.learn(batch)
        if report is not None:
            report.add(trainer.step, losses)
        is_checkpoint_due = trainer.step % settings.checkpoint_every == 0
        if is_saving_process and (is_checkpoint_due or trainer.step == last_step):
            trainer.save(checkpoint_path)
    return trainer


def train_in_parallel(settings: Settings, folder: Path, device: torch.device) -> None:
    """Train with `settings.processes` processes, which average their gradients at each step."""
    with tempfile.TemporaryDirectory() as temporary_folder:
        rendezvous = f"file://{temporary_folder}/processes"
        torch.multiprocessing.spawn(
            _train_process, (settings, folder, device, rendezvous), settings.processes
        )


def _train_process(
    rank: int, settings: Settings, folder: Path, device: torch.device, rendezvous: str
) -> None:
    """Run one of several training processes.

    Args:
        rank: Its number, which `spawn` passes first.
        settings: Hyperparameters.
        folder: Where the checkpoint is.
        device: Where to train.
        rendezvous: Address of the file by which the processes get to know each other.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    distributed.init_process_group(
        "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=settings.processes,
        timeout=timedelta(days=1),  # so that a run can be paused
    )
    train(settings, folder, device, rank)
    distributed.destroy_process_group()


class _Report:
    """Progress on stderr every `REPORT_EVERY` steps, on a terminal in a single line, and in a log.

    Args:
        settings: Hyperparameters.
        log_path: A table with tabs; a resumed run drops the rows of steps that it takes again.
        step: The step that the run is at.
    """

    def __init__(self, settings: Settings, log_path: Path, step: int) -> None:
        """Begin a report, and write the log anew without the rows of steps after this one."""
        self.settings = settings
        self.log_path = log_path
        self.losses: list[Tensor] = []  # of each step since the last report, `[6]`
        self._start_log(step)
        self.last_report_s = time.monotonic()

    def _start_log(self, step: int) -> None:
        """Write the log anew: its heading, and the rows of an earlier run up to this step."""
        lines = ["\t".join(COLUMNS)]
        if self.log_path.exists():
            earlier_rows = self.log_path.read_text().splitlines()[1:]
            for row in earlier_rows:
                row_step = int(row.split("\t")[0])
                if row_step <= step:
                    lines.append(row)
        self.log_path.write_text("\n".join(lines) + "\n")

    def add(self, step: int, losses: tuple[Parts, Parts]) -> None:
        """Add the losses of a step; every `REPORT_EVERY` steps, report their means and drop them.

        The means go to stderr and to the log.

        Args:
            step: Steps taken so far.
            losses: Those of the one-to-many and of the one-to-one head.
        """
        one_to_many, one_to_one = losses
        self.losses.append(torch.stack(one_to_many + one_to_one))
        if len(self.losses) < REPORT_EVERY:
            return

        means = torch.stack(self.losses).mean(0).tolist()
        now_s = time.monotonic()
        steps_per_second = len(self.losses) / (now_s - self.last_report_s)
        self._write_progress(step, means, steps_per_second)
        self._write_log(step, means)
        self.losses = []
        self.last_report_s = now_s

    def _write_progress(self, step: int, means: list[float], steps_per_second: float) -> None:
        """Write one line to stderr; on a terminal it takes the place of the one before."""
        many_box, many_class, many_sides, one_box, one_class, one_sides = means
        images_per_second = steps_per_second * self.settings.batch_size
        seconds_left = (self.settings.steps - step) / steps_per_second
        line = (
            f"{step}/{self.settings.steps} lr {lr_at(step, self.settings):.1e}  "
            f"many: box {many_box:.2f} class {many_class:.2f} sides {many_sides:.2f}  "
            f"one: box {one_box:.2f} class {one_class:.2f} sides {one_sides:.2f}  "
            f"{images_per_second:.0f} images/s, {seconds_left / 60:.0f} min left"
        )
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def _write_log(self, step: int, means: list[float]) -> None:
        """Append a row with the columns `COLUMNS` to the log."""
        cells = [str(step), f"{lr_at(step, self.settings):.1e}"]
        for mean in means:
            cells.append(f"{mean:.2f}")
        with self.log_path.open("a") as log_file:
            log_file.write("\t".join(cells) + "\n")


def main() -> None:
    """Train with the settings of the command line, in one process or in several."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("build/codes"), help="folder of the checkpoint"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in dataclasses.fields(Settings):
        value_type = type(field.default)
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(
            flag, type=value_type, default=field.default, metavar=value_type.__name__
        )

    arguments = vars(parser.parse_args())
    folder = arguments.pop("run")
    device = torch.device(arguments.pop("device"))
    settings = Settings(**arguments)  # all that is left: each is an option

    if settings.processes > 1:
        train_in_parallel(settings, folder, device)
    else:
        cv2.setNumThreads(1)  # as in the processes that render and train in parallel
        train(settings, folder, device)


if __name__ == "__main__":
    main()
