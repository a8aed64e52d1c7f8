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
        object_ids: Indices of the objects, `[P]`.
        anchor_ids: Indices of the anchors, `[P]`.
    """

    object_ids: Tensor
    anchor_ids: Tensor

    def select(self, indices: Tensor) -> "Pairs":
        """The pairs at these indices `[Q]`."""
        return Pairs(self.object_ids[indices], self.anchor_ids[indices])


class Positives(NamedTuple):
    """The Q anchors that learn an object; each of them learns exactly one.

    Attributes:
        object_ids: Indices of the objects, `[Q]`.
        anchor_ids: Indices of the anchors, `[Q]`.
        targets: The scores to learn, `[Q]`, from 0 to 1: how good the anchor is compared with the
            best anchor of its object, times the largest IoU that an anchor of the object has.
    """

    object_ids: Tensor
    anchor_ids: Tensor
    targets: Tensor


def candidates(objects: Objects, centres: Tensor) -> Pairs:
    """All pairs where the anchor's centre `[N, 2]` is strictly inside the object's box."""
    near, far = objects.box[:, None].chunk(2, 2)  # [G, 1, 2]
    inside = ((centres > near) & (centres < far)).all(2)  # [G, N]
    object_ids, anchor_ids = inside.nonzero(as_tuple=True)
    return Pairs(object_ids, anchor_ids)


def assign(
    objects: Objects, pairs: Pairs, scores: Tensor, boxes: Tensor, max_anchors: int
) -> Positives:
    """Choose the anchors that learn each object, and the score that each of them learns.

    Each object takes its best anchors. Then an anchor that several objects of an image took learns
    only the one that its box overlaps most.

    Args:
        objects: The labels.
        pairs: P candidates, in the order of the objects.
        scores: Predicted score of the object's class at each pair, `[P]`, after the sigmoid.
        boxes: Predicted box of the anchor of each pair, `[P, 4]`.
        max_anchors: The most anchors for an object.
    """
    ious = complete_iou(objects.box[pairs.object_ids], boxes).clamp(min=0)  # [P]
    merits = scores.pow(ALPHA) * ious.pow(BETA)  # the paper's alignment measure

    best_of_object = _best(pairs.object_ids, merits, max_anchors)
    claims = pairs.select(best_of_object)
    claim_ious = ious[best_of_object]
    claim_merits = merits[best_of_object]

    # Of the claims on one anchor of one image, that of the largest IoU stays. An anchor of an image
    # gets a number of its own among those of the whole batch.
    anchor_count = 1
    if len(claims.anchor_ids):
        anchor_count = int(claims.anchor_ids.max()) + 1
    anchors_in_batch = objects.image[claims.object_ids] * anchor_count + claims.anchor_ids
    best_of_anchor = _best(anchors_in_batch, claim_ious, 1)
    object_ids, anchor_ids = claims.select(best_of_anchor)
    positive_ious = claim_ious[best_of_anchor]
    positive_merits = claim_merits[best_of_anchor]

    # The paper's normalised alignment: the best anchor of an object learns the largest IoU that
    # the object has, and the others less, in proportion to their merit.
    object_count = len(objects.label)
    top_merits = _largest(object_ids, positive_merits, object_count)[object_ids]
    top_ious = _largest(object_ids, positive_ious, object_count)[object_ids]
    targets = positive_merits / top_merits.clamp(min=1e-9) * top_ious
    return Positives(object_ids, anchor_ids, targets)


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

    In the comments on shapes, P pairs are candidates, and Q of them are assigned: positives.

    Args:
        output: Side distributions `[B, 4 * 16, N]` and class logits `[B, K, N]`.
        objects: The labels of the B images.
        pairs: The P anchors and objects that may be assigned to each other.
        grid: The N anchors.
        max_anchors: How many anchors learn an object at most.
    """
    distributions = output[0].transpose(1, 2)  # [B, N, 64]
    logits = output[1].float()  # [B, K, N]

    with torch.no_grad():
        pair_image = objects.image[pairs.object_ids]
        pair_label = objects.label[pairs.object_ids]
        pair_scores = logits[pair_image, pair_label, pairs.anchor_ids].sigmoid()  # [P]
        pair_distributions = distributions[pair_image, pairs.anchor_ids].float()
        pair_boxes = _decode(pair_distributions, grid, pairs.anchor_ids)  # [P, 4]
        positives = assign(objects, pairs, pair_scores, pair_boxes, max_anchors)

        images = objects.image[positives.object_ids]  # [Q]
        labels = objects.label[positives.object_ids]
        target_scores = torch.zeros_like(logits)  # 0 for all that learn no object
        target_scores[images, labels, positives.anchor_ids] = positives.targets
        # All parts of the loss are means weighted by the targets.
        target_sum = positives.targets.sum().clamp(min=1)

    score_loss = functional.binary_cross_entropy_with_logits(logits, target_scores, reduction="sum")
    score_loss = score_loss / target_sum

    positive_distributions = distributions[images, positives.anchor_ids].float()  # [Q, 64]
    true_boxes = objects.box[positives.object_ids]  # [Q, 4]
    predicted_boxes = _decode(positive_distributions, grid, positives.anchor_ids)
    iou = complete_iou(true_boxes, predicted_boxes)
    box_loss = ((1 - iou) * positives.targets).sum() / target_sum

    focal_loss = _focal(positive_distributions, true_boxes, grid, positives.anchor_ids)
    distribution_loss = (focal_loss * positives.targets).sum() / target_sum
    return Parts(BOX * box_loss, CLASS * score_loss, DISTRIBUTION * distribution_loss)


def _decode(distributions: Tensor, grid: Anchors, anchor_ids: Tensor) -> Tensor:
    """Boxes `[P, 4]` from side distributions `[P, 4 * 16]` at these anchors `[P]`."""
    bins = torch.arange(BINS, dtype=distributions.dtype, device=distributions.device)
    mean_bins = distributions.reshape(-1, 4, BINS).softmax(2) @ bins
    distances = mean_bins * grid.strides[anchor_ids, None]  # [P, 4]: left, top, right, bottom
    near, far = distances.chunk(2, 1)
    centre = grid.centres[anchor_ids]
    return torch.cat([centre - near, centre + far], 1)


def _focal(distributions: Tensor, true_boxes: Tensor, grid: Anchors, anchor_ids: Tensor) -> Tensor:
    """Distribution focal loss `[Q]`: cross entropy with the two bins next to each true side."""
    centre = grid.centres[anchor_ids]
    stride = grid.strides[anchor_ids, None]
    distances = torch.cat([centre - true_boxes[:, :2], true_boxes[:, 2:] - centre], 1) / stride
    distances = distances.clamp(0, BINS - 1.01).flatten()  # [4 Q], in bins
    lower_bin = distances.floor()
    share_of_upper = distances - lower_bin

    log_shares = distributions.reshape(-1, BINS).log_softmax(1)  # [4 Q, 16]
    log_lower = log_shares.gather(1, lower_bin.long()[:, None])[:, 0]
    log_upper = log_shares.gather(1, lower_bin.long()[:, None] + 1)[:, 0]
    cross_entropy = -(log_lower * (1 - share_of_upper) + log_upper * share_of_upper)
    return cross_entropy.reshape(-1, 4).mean(1)
