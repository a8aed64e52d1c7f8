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
    near, far = first.chunk(2, axis)
    other_near, other_far = second.chunk(2, axis)
    shared_size = torch.minimum(far, other_far) - torch.maximum(near, other_near)
    shared = shared_size.clamp(min=0).prod(axis)
    areas = (far - near).prod(axis) + (other_far - other_near).prod(axis)
    return shared / (areas - shared).clamp(min=1e-9)


def complete_iou(first: Tensor, second: Tensor) -> Tensor:
    """CIoU (arXiv 2005.03572): IoU less penalties for distant centres and other aspect ratios.

    Args:
        first: Boxes `[..., 4]`, xyxy.
        second: As many boxes, each to compare with one of the first.

    Returns:
        A value for each pair, `[...]`, of 1 at most; it is negative where boxes lie far apart.
    """
    iou = overlap(first, second)

    # The squared distance of the centres, over the squared diagonal of the box around both.
    enclosing_near = torch.minimum(first[..., :2], second[..., :2])
    enclosing_far = torch.maximum(first[..., 2:], second[..., 2:])
    enclosing_size = enclosing_far - enclosing_near
    centre_offset = (first[..., :2] + first[..., 2:] - second[..., :2] - second[..., 2:]) / 2
    diagonal = enclosing_size.square().sum(-1).clamp(min=1e-9)
    distance_penalty = centre_offset.square().sum(-1) / diagonal

    # The paper's v: how much the aspect ratios differ, as angles of the diagonals, from 0 to 1.
    aspect_difference = ((_aspect_angle(first) - _aspect_angle(second)) * (2 / math.pi)).square()
    with torch.no_grad():  # the paper's trade-off weight is not differentiated
        trade_off = aspect_difference / (1 - iou + aspect_difference).clamp(min=1e-9)
    return iou - distance_penalty - trade_off * aspect_difference


def _aspect_angle(box: Tensor) -> Tensor:
    """The arc tangent of width over height, `[...]`, of boxes `[..., 4]`."""
    size = (box[..., 2:] - box[..., :2]).clamp(min=1e-6)
    return torch.atan2(size[..., 0], size[..., 1])


class Objects(NamedTuple):
    """The G labelled objects of a batch.

    Attributes:
        image: Index of the image each is in, `[G]`, int64.
        label: Its class, `[G]`, int64.
        box: xyxy in pixels, `[G, 4]`, float32.
    """

    image: Tensor
    label: Tensor
    box: Tensor


class Pairs(NamedTuple):
    """P pairs of an object and an anchor whose centre is inside its box.

    Attributes:
        item: Index of the object, `[P]`.
        anchor: Index of the anchor, `[P]`.
    """

    item: Tensor
    anchor: Tensor


class Positives(NamedTuple):
    """The Q anchors that learn an object, each of them exactly one.

    Attributes:
        item: Index of the object, `[Q]`.
        anchor: Index of the anchor, `[Q]`.
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


def assign(
    objects: Objects, pairs: Pairs, scores: Tensor, boxes: Tensor, max_anchors: int
) -> Positives:
    """Choose the anchors that learn each object.

    Each object takes its best anchors. Then an anchor that several objects of an image took learns
    only the one that its box overlaps most.

    Args:
        objects: The labels.
        pairs: Candidates, in the order of the objects.
        scores: Predicted score of the object's class at each pair, `[P]`, after the sigmoid.
        boxes: Predicted box of the anchor of each pair, `[P, 4]`.
        max_anchors: The most anchors for an object.
    """
    iou = complete_iou(objects.box[pairs.item], boxes).clamp(min=0)  # [P]
    merit = scores.pow(ALPHA) * iou.pow(BETA)  # the paper's alignment measure

    taken = _best(pairs.item, merit, max_anchors)
    item = pairs.item[taken]
    anchor = pairs.anchor[taken]
    iou = iou[taken]
    merit = merit[taken]

    # One number for each anchor of each image, so that they are grouped by both.
    anchor_count = int(anchor.max()) + 1 if len(anchor) else 1
    anchor_in_batch = objects.image[item] * anchor_count + anchor
    unique = _best(anchor_in_batch, iou, 1)
    item = item[unique]
    anchor = anchor[unique]
    iou = iou[unique]
    merit = merit[unique]

    object_count = len(objects.label)
    top_merit = _largest(item, merit, object_count)[item]
    top_iou = _largest(item, iou, object_count)[item]
    target = merit / top_merit.clamp(min=1e-9) * top_iou
    return Positives(item, anchor, target)


def _best(group: Tensor, merit: Tensor, count: int) -> Tensor:
    """Indices of the `count` best members of each group; the earlier one where two are equal."""
    by_merit = merit.argsort(descending=True, stable=True)
    by_group_and_merit = by_merit[group[by_merit].argsort(stable=True)]
    return by_group_and_merit[_rank(group[by_group_and_merit]) < count]


def _rank(group: Tensor) -> Tensor:
    """Position of each element within its run of equal, sorted values."""
    position = torch.arange(len(group), device=group.device)
    starts_run = torch.ones_like(group, dtype=torch.bool)
    starts_run[1:] = group[1:] != group[:-1]
    start_of_run = torch.where(starts_run, position, 0).cummax(0).values
    return position - start_of_run


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
    strides: Tensor


def dual_loss(
    outputs: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], objects: Objects, grid: Anchors
) -> tuple[Parts, Parts]:
    """Loss of the one-to-many and of the one-to-one head; they are added with equal weight."""
    pairs = candidates(objects, grid.centres)
    many, one = outputs
    many_loss = head_loss(many, objects, pairs, grid, max_anchors=MANY)
    one_loss = head_loss(one, objects, pairs, grid, max_anchors=ONE)
    return many_loss, one_loss


def head_loss(
    output: tuple[Tensor, Tensor], objects: Objects, pairs: Pairs, grid: Anchors, max_anchors: int
) -> Parts:
    """Loss of one head.

    Args:
        output: Side distributions `[B, 4 * 16, N]` and class logits `[B, K, N]`.
        objects: The labels of the B images.
        pairs: The anchors that may learn each object.
        grid: The N anchors.
        max_anchors: How many anchors learn an object at most.
    """
    distributions = output[0].transpose(1, 2)  # [B, N, 64]
    logits = output[1].float()  # [B, K, N]

    with torch.no_grad():
        pair_image = objects.image[pairs.item]
        pair_label = objects.label[pairs.item]
        pair_scores = logits[pair_image, pair_label, pairs.anchor].sigmoid()  # [P]
        pair_distributions = distributions[pair_image, pairs.anchor].float()
        pair_boxes = _decode(pair_distributions, grid, pairs.anchor)  # [P, 4]
        item, anchor, target = assign(objects, pairs, pair_scores, pair_boxes, max_anchors)

        image = objects.image[item]  # [Q]
        target_scores = torch.zeros_like(logits)  # 0 for all that learn no object
        target_scores[image, objects.label[item], anchor] = target
        target_sum = target.sum().clamp(min=1)  # all parts are means weighted by the target

    score_loss = functional.binary_cross_entropy_with_logits(logits, target_scores, reduction="sum")
    score_loss = score_loss / target_sum

    positive_distributions = distributions[image, anchor].float()  # [Q, 64]
    true_boxes = objects.box[item]  # [Q, 4]
    iou = complete_iou(true_boxes, _decode(positive_distributions, grid, anchor))
    box_loss = ((1 - iou) * target).sum() / target_sum

    focal_loss = _focal(positive_distributions, true_boxes, grid, anchor)
    distribution_loss = (focal_loss * target).sum() / target_sum
    return Parts(BOX * box_loss, CLASS * score_loss, DISTRIBUTION * distribution_loss)


def _decode(distributions: Tensor, grid: Anchors, anchor: Tensor) -> Tensor:
    """Boxes `[P, 4]` from side distributions `[P, 4 * 16]` at these anchors `[P]`."""
    bins = torch.arange(BINS, dtype=distributions.dtype, device=distributions.device)
    mean_bins = distributions.reshape(-1, 4, BINS).softmax(2) @ bins
    distances = mean_bins * grid.strides[anchor, None]  # [P, 4]: left, top, right, bottom
    near, far = distances.chunk(2, 1)
    centre = grid.centres[anchor]
    return torch.cat([centre - near, centre + far], 1)


def _focal(distributions: Tensor, true_boxes: Tensor, grid: Anchors, anchor: Tensor) -> Tensor:
    """Distribution focal loss `[Q]`: cross entropy with the two bins next to each true side."""
    centre = grid.centres[anchor]
    stride = grid.strides[anchor, None]
    distances = torch.cat([centre - true_boxes[:, :2], true_boxes[:, 2:] - centre], 1) / stride
    distances = distances.clamp(0, BINS - 1.01).flatten()  # [4 Q], in bins
    lower_bin = distances.floor()
    share_of_upper = distances - lower_bin

    log_shares = distributions.reshape(-1, BINS).log_softmax(1)  # [4 Q, 16]
    log_lower = log_shares.gather(1, lower_bin.long()[:, None])[:, 0]
    log_upper = log_shares.gather(1, lower_bin.long()[:, None] + 1)[:, 0]
    cross_entropy = -(log_lower * (1 - share_of_upper) + log_upper * share_of_upper)
    return cross_entropy.reshape(-1, 4).mean(1)
