"""Which anchors learn which object: task-aligned assignment (TOOD, arXiv 2108.07755).

YOLOv10 uses the same measure for both heads, with ten anchors for each object in the one-to-many
head and one in the one-to-one head, so that both agree on the best anchor ("consistent dual
assignments"). Objects of a whole batch lie in one list: G objects, each with its picture.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from codes.boxes import complete_iou

ALPHA = 0.5  # exponent of the score
BETA = 6.0  # exponent of the IoU


class Objects(NamedTuple):
    """The G labelled objects of a batch.

    Attributes:
        picture: Index of the picture each is in, `[G]`, int64.
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
            anchor of its object, times that one's IoU.
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
