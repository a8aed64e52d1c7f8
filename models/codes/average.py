"""Average a run with what it began with: `python -m codes.average last.pt mean.pt`.

A run on new scenes improves there and loses a little elsewhere; some weights between its first and
its last do better at both, as Wortsman et al. found for CLIP (arXiv 2109.01903). Near the middle,
the one-to-one head loses symbols that the two ends assign to different cells.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from codes.assets import training_assets
from codes.data import Scenes
from codes.export import trained
from codes.network import Network
from codes.train import Settings, Trainer, stages

BATCHES = 24  # on which batch normalisation is measured


def averaged(first: Network, last: Network, share: float, batches: Iterable[Tensor]) -> Network:
    """The weights between those of two networks, in evaluation mode.

    Args:
        first: Where a run began; it is changed.
        last: Where it ended.
        share: The part of `last`, from 0 to 1.
        batches: Pictures `[B, 3, H, W]`, uint8, on which the statistics of batch normalisation
            are measured again: averaging those of two networks does not give the mean network's.
    """
    ours, theirs = first.state_dict(), last.state_dict()
    for name, value in ours.items():
        if value.dtype.is_floating_point:
            value.lerp_(theirs[name], share)
    for module in first.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean of all batches
    first.train()
    with torch.no_grad():
        for pictures in batches:
            first(pictures.float() / 255)
    return first.eval()


def main() -> None:
    """Average the checkpoint of the command line with the file that its run started from."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="of a run with --start")
    parser.add_argument("output", type=Path, help="checkpoint, to export or to go on from")
    parser.add_argument("--share", type=float, default=0.9, help="of the run's last weights")
    given = parser.parse_args()
    state = torch.load(given.checkpoint, map_location="cpu", weights_only=True)
    settings = Settings(**state["settings"] | {"processes": 1})
    if not settings.start:
        parser.error(f"{given.checkpoint} is of a run that started from nothing")
    assets = training_assets(settings.seed, settings.photographs)
    scenes = Scenes(settings.seed, assets, settings.batch_size, stages(settings))
    trainer = Trainer(settings, torch.device("cpu"))
    trainer.start(Path(settings.start), scenes[0].pictures)
    batches = (scenes[settings.one_from + number].pictures for number in range(BATCHES))
    mean = averaged(trainer.network, trained(given.checkpoint), given.share, batches)
    trainer.average.load_state_dict(mean.state_dict())
    trainer.save(given.output)


if __name__ == "__main__":
    main()
