"""What training minimises: for each head class scores, boxes and side distributions.

Task-aligned assignment (TOOD, arXiv 2108.07755) decides which anchors learn which object. YOLOv10
uses the same measure for both heads, with ten anchors for each object in the one-to-many head and
one in the one-to-one head, so that both agree on the best anchor ("consistent dual assignments").
The G objects of a batch are in one list, each with the index of its image.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from codes.network import BINS

ALPHA = 0.5  # exponent of the score
BETA = 6.0  # exponent of the IoU

# The paper's weights (appendix A.1).
BOX, CLASS, DISTRIBUTION = 7.5, 0.5, 1.5
MANY, ONE = 10, 1  # anchors for each object in the one-to-many and in the one-to-one head


def overlap(first: Tensor, second: Tensor, axis: int = -1) -> Tensor:
    """Intersection over union of boxes whose xyxy is along an axis; the axis is gone."""
    (near, far), (other_near, other_far) = first.chunk(2, axis), second.chunk(2, axis)
    sides = torch.minimum(far, other_far) - torch.maximum(near, other_near)
    shared = sides.clamp(min=0).prod(axis)
    areas = (far - near).prod(axis) + (other_far - other_near).prod(axis)
    return shared / (areas - shared).clamp(min=1e-9)


def complete_iou(first: Tensor, second: Tensor) -> Tensor:
    """CIoU (arXiv 2005.03572): IoU less the distance of the centres and of the aspect ratios."""
    iou = overlap(first, second)
    hull = torch.maximum(first[..., 2:], second[..., 2:])
    hull = hull - torch.minimum(first[..., :2], second[..., :2])
    apart = (first[..., :2] + first[..., 2:] - second[..., :2] - second[..., 2:]) / 2
    distance = apart.square().sum(-1) / hull.square().sum(-1).clamp(min=1e-9)
    turn = (_slope(first) - _slope(second)) * (2 / math.pi)
    unlike = turn.square()
    with torch.no_grad():  # the paper's trade-off weight is not differentiated
        weight = unlike / (1 - iou + unlike).clamp(min=1e-9)
    return iou - distance - weight * unlike


def _slope(box: Tensor) -> Tensor:
    size = (box[..., 2:] - box[..., :2]).clamp(min=1e-6)
    return torch.atan2(size[..., 0], size[..., 1])


class Objects(NamedTuple):
    """The G labelled objects of a batch.

    Attributes:
        image: Index of the image each is in, `[G]`, int64.
        label: Its class, `[G]`, int64.
        box: xyxy in pixels, `[G, 4]`, float32.
    """

    picture: Tensor
    label: Tensor
    box: Tensor


class Pairs(NamedTuple):
    """P pairs of an object and an anchor whose centre is inside its box."""

    item: Tensor  # index of the object, [P]
    anchor: Tensor  # [P]


class Positives(NamedTuple):
    """The anchors that learn an object, each at most one.

    Attributes:
        item: Index of the object, `[Q]`.
        anchor: `[Q]`.
        target: The score to learn, `[Q]`, from 0 to 1: how well it does compared with the best
            anchor of its object, times the IoU of that anchor.
    """

    item: Tensor
    anchor: Tensor
    target: Tensor


def candidates(objects: Objects, centres: Tensor) -> Pairs:
    """All pairs where the anchor's centre `[N, 2]` is strictly inside the object's box."""
    near, far = objects.box[:, None].chunk(2, 2)  # [G, 1, 2]
    inside = ((centres > near) & (centres < far)).all(2)  # [G, N]
    return Pairs(*inside.nonzero(as_tuple=True))


def assign(objects: Objects, pairs: Pairs, scores: Tensor, boxes: Tensor, most: int) -> Positives:
    """Choose the anchors of each object.

    Args:
        objects: The labels.
        pairs: Candidates, in the order of the objects.
        scores: Predicted score of the object's class at each pair, `[P]`, after the sigmoid.
        boxes: Predicted box of the anchor of each pair, `[P, 4]`.
        most: The number of anchors for each object.
    """
    iou = complete_iou(objects.box[pairs.item], boxes).clamp(min=0)  # [P]
    merit = scores.pow(ALPHA) * iou.pow(BETA)
    kept = _best(pairs.item, merit, most)
    item, anchor, iou, merit = pairs.item[kept], pairs.anchor[kept], iou[kept], merit[kept]
    beyond = int(anchor.max()) + 1 if len(anchor) else 1
    kept = _best(objects.picture[item] * beyond + anchor, iou, 1)  # one object for each anchor
    item, anchor, iou, merit = item[kept], anchor[kept], iou[kept], merit[kept]
    count = len(objects.label)
    top_merit = _largest(item, merit, count)[item]
    top_iou = _largest(item, iou, count)[item]
    return Positives(item, anchor, merit / top_merit.clamp(min=1e-9) * top_iou)


def _best(group: Tensor, merit: Tensor, most: int) -> Tensor:
    """Indices of the `most` best members of each group; the earlier one where two are equal."""
    order = merit.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    return order[_rank(group[order]) < most]


def _rank(group: Tensor) -> Tensor:
    """Position of each element within its run of equal, sorted values."""
    place = torch.arange(len(group), device=group.device)
    starts = torch.ones_like(group, dtype=torch.bool)
    starts[1:] = group[1:] != group[:-1]
    return place - torch.where(starts, place, 0).cummax(0).values


def _largest(group: Tensor, values: Tensor, count: int) -> Tensor:
    """The largest value of each group, `[count]`; 0 for an empty one."""
    return values.new_zeros(count).scatter_reduce(0, group, values, "amax")


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
        objects: The labels of the B images.
        pairs: Candidates for them.
        grid: The N anchors.
        most: How many anchors learn each object.
    """
    sides, logits = output[0].transpose(1, 2), output[1].float()  # [B, N, 64], [B, K, N]
    with torch.no_grad():
        image, label = objects.picture[pairs.item], objects.label[pairs.item]
        scores = logits[image, label, pairs.anchor].sigmoid()  # [P]
        boxes = _decode(sides[image, pairs.anchor].float(), grid, pairs.anchor)  # [P, 4]
        item, anchor, target = assign(objects, pairs, scores, boxes, most)
        image = objects.picture[item]
        wanted = torch.zeros_like(logits)
        wanted[image, objects.label[item], anchor] = target
        total = target.sum().clamp(min=1)
    score = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / total
    chosen = sides[image, anchor].float()  # [Q, 64]
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
