"""The decoupled head of YOLOv10, and what its numbers mean.

Each anchor (a cell of one scale) says how far the four sides of its object are: a distribution
over 16 bins of one stride each, for every side (distribution focal loss, arXiv 2006.04388).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from codes.blocks import Conv, depthwise

BINS = 16  # the farthest side is 15 strides away: 120, 240 and 480 pixels
PRIOR = 0.01  # the score an untrained head gives; RetinaNet's way to a calm start


class Head(nn.Module):
    """Box and class branch for each scale, without weights shared between scales."""

    def __init__(
        self, widths: Sequence[int], classes: int, box_channels: int, class_channels: int
    ) -> None:
        super().__init__()
        self.box = nn.ModuleList(
            nn.Sequential(
                Conv(width, box_channels, 3),
                Conv(box_channels, box_channels, 3),
                nn.Conv2d(box_channels, 4 * BINS, 1),
            )
            for width in widths
        )
        self.score = nn.ModuleList(
            nn.Sequential(
                depthwise(width, 3),
                Conv(width, class_channels),
                depthwise(class_channels, 3),
                Conv(class_channels, class_channels),
                nn.Conv2d(class_channels, classes, 1),
            )
            for width in widths
        )
        for branch in self.score:
            last = branch[-1]  # type: ignore[index] # a list of modules says no more of them
            nn.init.constant_(last.bias, math.log(PRIOR / (1 - PRIOR)))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Side distributions `[B, 4 * 16, N]` (logits) and class logits `[B, K, N]`."""
        sides = [branch(part).flatten(2) for branch, part in zip(self.box, maps, strict=True)]
        logits = [branch(part).flatten(2) for branch, part in zip(self.score, maps, strict=True)]
        return torch.cat(sides, 2), torch.cat(logits, 2)


def anchors(shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Anchors of all scales, all rows of the finest scale first.

    Args:
        shapes: Height and width of each scale's map.
        strides: Pixels between two of its cells.

    Returns:
        Centres `[N, 2]` as x, y in pixels, and the stride of each, `[N]`, both float32.
    """
    centres, sizes = [], []
    for (height, width), stride in zip(shapes, strides, strict=True):
        y = torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)
        x = torch.arange(width, dtype=torch.float32)[None].expand(height, width)
        cells = torch.stack([x.reshape(-1), y.reshape(-1)], 1)  # [H * W, 2]
        centres.append((cells + 0.5) * stride)
        sizes.append(torch.full((height * width,), float(stride)))
    return torch.cat(centres), torch.cat(sizes)


def square(side: int, strides: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Anchors of a square picture of this side in pixels."""
    return anchors([(side // stride, side // stride) for stride in strides], strides)


def boxes_of(sides: Tensor, centres: Tensor, sizes: Tensor) -> Tensor:
    """Boxes `[B, 4, N]`, xyxy in pixels, from distributions `[B, 4 * 16, N]` (logits)."""
    batch, _, count = sides.shape
    shares = sides.reshape(batch, 4, BINS, count).softmax(2)
    bins = torch.arange(BINS, dtype=shares.dtype, device=shares.device)
    distance = (shares * bins[:, None]).sum(2) * sizes  # [B, 4, N]: left, top, right, bottom
    near, far = distance.chunk(2, 1)
    middle = centres.T  # [2, N]
    return torch.cat([middle - near, middle + far], 1)
