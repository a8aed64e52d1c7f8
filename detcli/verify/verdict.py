"""Why two ways of running do not agree, in sentences."""

from collections.abc import Sequence

from detcli.verify.report import BisectReport, DetectionsReport, Order, TensorReport
from detcli.verify.tolerance import Tolerance


def failures(
    detections: DetectionsReport | None,
    tensors: Sequence[TensorReport] | None,
    bisected: BisectReport | None,
    tolerance: Tolerance,
) -> tuple[str, ...]:
    """What is not within the tolerance; empty if everything is.

    Args:
        detections: The comparison of detections, if there was one.
        tensors: The comparison of tensors, if there was one.
        bisected: Where the networks begin to differ, if that was looked for.
        tolerance: How far the sides may be apart.
    """
    found = []
    if detections is not None and detections.disagreeing > tolerance.boxes:
        total = detections.pairs + detections.missing + detections.extra
        found.append(
            f"of {total} boxes {detections.missing} are missing, {detections.extra} extra, "
            f"{detections.over} further apart than {tolerance.score:g} in score or "
            f"{tolerance.corner:g} pixels in a corner: {detections.disagreeing:.2%}, allowed are "
            f"{tolerance.boxes:.2%}"
        )
    if detections is not None:
        wrong = sum(picture.order is Order.WRONG for picture in detections.pictures)
        if wrong:
            found.append(
                "detections do not come by descending score on "
                f"{wrong} of {len(detections.pictures)} pictures"
            )
    for tensor in tensors or ():
        if not tensor.agrees:
            found.append(_tensor_failure(tensor, tolerance))
        elif tensor.left.nan + tensor.left.infinite and tensor.max_absolute is None:
            found.append(f"{tensor.name}: no entry is a finite number, on either side")
    if bisected is not None and bisected.node is not None:
        found.append(
            f"{bisected.node.operator} {bisected.node.name} is the first node that differs: "
            f"{bisected.finding}"
        )
    return tuple(found)


def is_evidence(
    detections: DetectionsReport | None, tensors: Sequence[TensorReport] | None
) -> bool:
    """Whether anything was compared at all: two sides that find nothing always agree."""
    boxes = 0
    if detections is not None:
        boxes = sum((detections.pairs, detections.borderline, detections.missing, detections.extra))
    return boxes > 0 or any(tensor.max_absolute is not None for tensor in tensors or ())


def _tensor_failure(tensor: TensorReport, tolerance: Tolerance) -> str:
    if tensor.left.shape != tensor.right.shape:
        return f"{tensor.name}: {list(tensor.left.shape)} against {list(tensor.right.shape)}"
    if tensor.max_scaled is not None and tensor.max_scaled > tolerance.tensor:
        return (
            f"{tensor.name}: differs by {tensor.max_scaled:.3g} of its largest magnitude, allowed "
            f"are {tolerance.tensor:g}"
        )
    left, right = (f"{side.nan} NaN and {side.infinite} infinities" for side in tensor.sides)
    return f"{tensor.name}: {left} against {right}"
