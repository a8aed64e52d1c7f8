"""How well boxes match; both functions take xyxy boxes `[..., 4]` and compare them in pairs."""

import math

import torch
from torch import Tensor


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union, `[...]`."""
    near = torch.maximum(first[..., :2], second[..., :2])
    far = torch.minimum(first[..., 2:], second[..., 2:])
    shared = (far - near).clamp(min=0).prod(-1)
    return shared / (_area(first) + _area(second) - shared).clamp(min=1e-9)


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


def _area(box: Tensor) -> Tensor:
    return (box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1)


def _slope(box: Tensor) -> Tensor:
    size = (box[..., 2:] - box[..., :2]).clamp(min=1e-6)
    return torch.atan2(size[..., 0], size[..., 1])
