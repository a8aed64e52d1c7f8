"""What training minimises: for each head class scores, boxes and side distributions."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codes.assign import Objects, Pairs, assign, candidates
from codes.boxes import complete_iou
from codes.head import BINS

# The paper's weights (appendix A.1).
BOX, CLASS, DISTRIBUTION = 7.5, 0.5, 1.5
MANY, ONE = 10, 1  # anchors for each object in the one-to-many and in the one-to-one head


class Parts(NamedTuple):
    """The weighted parts of one head's loss, each a scalar."""

    box: Tensor
    score: Tensor
    distribution: Tensor


class Anchors(NamedTuple):
    """Centres `[N, 2]` in pixels and strides `[N]`."""

    centres: Tensor
    sizes: Tensor


def dual_loss(
    outputs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], objects: Objects, grid: Anchors
) -> tuple[Parts, Parts]:
    """Loss of the one-to-many and of the one-to-one head; they are added with equal weight."""
    pairs = candidates(objects, grid.centres)
    many, one = outputs
    return head_loss(many, objects, pairs, grid, MANY), head_loss(one, objects, pairs, grid, ONE)


def head_loss(
    output: tuple[Tensor, Tensor], objects: Objects, pairs: Pairs, grid: Anchors, most: int
) -> Parts:
    """Loss of one head.

    Args:
        output: Side distributions `[B, 4 * 16, N]` and class logits `[B, K, N]`.
        objects: The labels of the B pictures.
        pairs: Candidates for them.
        grid: The N anchors.
        most: How many anchors learn each object.
    """
    sides, logits = output[0].transpose(1, 2), output[1].float()  # [B, N, 64], [B, K, N]
    with torch.no_grad():
        picture, label = objects.picture[pairs.item], objects.label[pairs.item]
        scores = logits[picture, label, pairs.anchor].sigmoid()  # [P]
        boxes = _decode(sides[picture, pairs.anchor].float(), grid, pairs.anchor)  # [P, 4]
        item, anchor, target = assign(objects, pairs, scores, boxes, most)
        picture = objects.picture[item]
        wanted = torch.zeros_like(logits)
        wanted[picture, objects.label[item], anchor] = target
        total = target.sum().clamp(min=1)
    score = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / total
    chosen = sides[picture, anchor].float()  # [Q, 64]
    truth = objects.box[item]  # [Q, 4]
    iou = complete_iou(truth, _decode(chosen, grid, anchor))
    box = ((1 - iou) * target).sum() / total
    distribution = (_focal(chosen, truth, grid, anchor) * target).sum() / total
    return Parts(BOX * box, CLASS * score, DISTRIBUTION * distribution)


def _decode(sides: Tensor, grid: Anchors, anchor: Tensor) -> Tensor:
    """Boxes `[P, 4]` from side distributions `[P, 4 * 16]` at these anchors `[P]`."""
    bins = torch.arange(BINS, dtype=sides.dtype, device=sides.device)
    distance = sides.reshape(-1, 4, BINS).softmax(2) @ bins * grid.sizes[anchor, None]  # [P, 4]
    near, far = distance.chunk(2, 1)
    middle = grid.centres[anchor]
    return torch.cat([middle - near, middle + far], 1)


def _focal(sides: Tensor, truth: Tensor, grid: Anchors, anchor: Tensor) -> Tensor:
    """Distribution focal loss `[Q]`: cross entropy with the two bins next to each true side."""
    middle, size = grid.centres[anchor], grid.sizes[anchor, None]
    distance = torch.cat([middle - truth[:, :2], truth[:, 2:] - middle], 1) / size  # [Q, 4]
    distance = distance.clamp(0, BINS - 1.01).flatten()  # [4 Q]
    lower = distance.floor()
    share = distance - lower  # of the upper bin
    logs = sides.reshape(-1, BINS).log_softmax(1)  # [4 Q, 16]
    low = logs.gather(1, lower.long()[:, None])[:, 0]
    high = logs.gather(1, lower.long()[:, None] + 1)[:, 0]
    return -(low * (1 - share) + high * share).reshape(-1, 4).mean(1)
