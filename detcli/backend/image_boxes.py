"""From the boxes that were selected on the network's input to the detections of each image."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from detcli.backend.postprocess import HeadArray, SelectionOptions, detect
from detcli.backend.selected_boxes import NAN_CAUSES, Floats, SelectedBoxes, warn
from detcli.data.detections import Detections, with_rows
from detcli.data.geometry import Letterbox, clipped
from detcli.model.contract import Contract

MAX_FRACTION = 1.5
"""Pixels: where no box of an image reaches further, a warning says that they may be fractions."""


# A network may output boxes near the largest float32 number. Arithmetic on them overflows, and
# `to_detections` drops such boxes with a warning of ours instead of NumPy's.
@np.errstate(over="ignore", invalid="ignore")
def detect_all(
    outputs: Iterable[HeadArray],
    letterboxes: Sequence[Letterbox],
    options: SelectionOptions,
    contract: Contract,
) -> list[Detections]:
    """Select the detections of each image of a batch.

    Args:
        outputs: The network's output for each image, see `detect`.
        letterboxes: Where each image lies on the network's input.
        options: Which detections to keep.
        contract: What the model says about its output.

    Returns:
        The detections of each image in pixels of that image, best first.
    """
    selections = [detect(output, options, contract) for output in outputs]
    return batch_to_detections(selections, letterboxes, contract)


@np.errstate(over="ignore", invalid="ignore")  # as for `detect_all`
def batch_to_detections(
    selections: Sequence[SelectedBoxes], letterboxes: Sequence[Letterbox], contract: Contract
) -> list[Detections]:
    """Turn the boxes that were selected in each image of a batch into detections.

    The boxes of all images are mapped at once, which takes a quarter of the time that
    `to_detections` takes image by image. That function does it if the batch has a box that has to
    be dropped or warned about, which is rare.

    Args:
        selections: The selected boxes of each image.
        letterboxes: Where each image lies on the network's input.
        contract: What the model says about its boxes, and the names of its classes.

    Returns:
        The detections of each image, as `to_detections` returns them.
    """
    boxes_of_all_images = None
    if len(selections) > 1:
        boxes_of_all_images = _map_ordinary_boxes(selections, letterboxes, contract)
    images = list(zip(selections, letterboxes, strict=True))
    if boxes_of_all_images is None:
        return [to_detections(selection, letterbox, contract) for selection, letterbox in images]

    # Split the boxes, which lie image after image.
    detections_by_image = []
    start = 0
    for selection, letterbox in images:
        end = start + len(selection.score)
        detections = Detections(
            boxes_of_all_images[start:end],
            selection.score,
            selection.class_id,
            contract.names,
            selected=selection.score,
            image_size=letterbox.picture,
        )
        detections_by_image.append(detections)
        start = end
    return detections_by_image


def _map_ordinary_boxes(
    selections: Sequence[SelectedBoxes], letterboxes: Sequence[Letterbox], contract: Contract
) -> Floats | None:
    """Map the boxes of all images of a batch from the network's input to their images.

    None if this needs `to_detections`, image by image: because the boxes are fractions of the
    input, or because one of them has to be dropped or warned about.

    Args:
        selections: The selected boxes of each image, T in all.
        letterboxes: Where each image lies on the network's input.
        contract: What the model says about its boxes.

    Returns:
        `(T, 4)`, the boxes in pixels of their images, image after image.
    """
    counts = [len(selection.score) for selection in selections]
    if contract.box_fractions or len(counts) != len(letterboxes):
        return None
    boxes = np.concatenate([selection.boxes for selection in selections])  # (T, 4)
    may_be_fractions = boxes.max(axis=1) <= MAX_FRACTION
    if may_be_fractions.any():
        return None

    offsets = []  # for each image: what to subtract from x1, y1, x2, y2, then to divide them by
    scales = []
    limits = []  # and what they may be at most
    for letterbox in letterboxes:
        scale_x, scale_y = letterbox.scale
        height, width = letterbox.picture
        offsets.append((letterbox.left, letterbox.top, letterbox.left, letterbox.top))
        scales.append((scale_x, scale_y, scale_x, scale_y))
        limits.append((width, height, width, height))
    offset_of_box = np.repeat(np.array(offsets, np.float32), counts, axis=0)  # (T, 4)
    scale_of_box = np.repeat(np.array(scales, np.float32), counts, axis=0)

    mapped: Floats = (boxes - offset_of_box) / scale_of_box
    if not _has_area(mapped).all():
        return None
    if contract.clips:
        limit_of_box = np.repeat(np.array(limits, np.float32), counts, axis=0)
        mapped = np.clip(mapped, np.float32(0), limit_of_box)
    are_valid = _has_area(mapped).all() and np.isfinite(mapped).all()
    if not are_valid:
        return None
    return mapped


def to_detections(selection: SelectedBoxes, letterbox: Letterbox, contract: Contract) -> Detections:
    """Turn the boxes that were selected on the network's input into detections of the image.

    Boxes with NaN or infinity, or without an area, are dropped with a warning. A box outside the
    image is dropped without a warning: it loses its area only when it is clipped to the image.

    Args:
        selection: Boxes on the network's input, in pixels or, as the contract says, in fractions.
        letterbox: Where the image lies on the network's input.
        contract: What the model says about its boxes, and the names of its classes.

    Returns:
        The detections with boxes in pixels of the image, in the order of the selection.
    """
    boxes_in_input = _scale_fractions(selection.boxes, letterbox, contract)
    boxes = letterbox.to_image(boxes_in_input)
    had_area_before_clipping = _has_area(boxes)
    if contract.clips:
        boxes = clipped(boxes, letterbox.picture)
    is_finite = np.isfinite(boxes).all(axis=1)
    _warn_about_boxes(
        boxes,
        infinite_count=int(np.count_nonzero(~is_finite)),
        empty_count=int(np.count_nonzero(is_finite & ~had_area_before_clipping)),
    )

    detections = Detections(
        boxes,
        selection.score,
        selection.class_id,
        contract.names,
        selected=selection.score,  # also the scores of boxes that are dropped below
        image_size=letterbox.picture,
    )
    is_valid = is_finite & _has_area(boxes)
    if is_valid.all():
        return detections
    return with_rows(detections, np.flatnonzero(is_valid))


def _scale_fractions(boxes: Floats, letterbox: Letterbox, contract: Contract) -> Floats:
    """Return boxes `(M, 4)` in pixels of the network's input.

    Boxes that the contract calls fractions of the input are multiplied by its size. Others are in
    pixels already, with a warning if they look like fractions.
    """
    if contract.box_fractions:
        height, width = letterbox.canvas
        return boxes * np.array([width, height, width, height], np.float32)
    if boxes.size and boxes.max() <= MAX_FRACTION:
        warn("no box reaches beyond 1.5 pixels, as if the model's boxes were fractions")
    return boxes


def _has_area(boxes: Floats) -> npt.NDArray[np.bool_]:
    """Determine which boxes have a width and a height, of `(M, 4)` x1, y1, x2, y2.

    A box with NaN counts as one with an area.
    """
    is_empty = (boxes[:, 2:] <= boxes[:, :2]).any(axis=1)
    return np.logical_not(is_empty)


def _warn_about_boxes(boxes: Floats, *, infinite_count: int, empty_count: int) -> None:
    """Warn about the boxes that are dropped because they cannot be drawn.

    Args:
        boxes: `(M, 4)`, all boxes of an image.
        infinite_count: How many of them have a NaN or an infinity.
        empty_count: How many have no width or no height.
    """
    if infinite_count:
        value = "a NaN" if np.isnan(boxes).any() else "an infinity"
        warn(f"{infinite_count} of {len(boxes)} boxes hold {value} and were dropped{NAN_CAUSES}")
    if empty_count:
        warn(f"{empty_count} of {len(boxes)} boxes have no width or height and were dropped")
