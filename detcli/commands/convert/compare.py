"""Holds a converted model against the one it was made from, on a picture."""

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from detcli.backend import open_tensors
from detcli.commands.convert.calibration import Tensor, tensor_of
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.report import Difference
from detcli.commands.shared.comparison import (
    DetectionsReport,
    Rules,
    Tolerance,
    picture_report,
    summarise,
    tolerance_for,
)
from detcli.commands.shared.comparison import compare as compare_detections
from detcli.commands.shared.sides import COLUMNS, GraphSide, precision_of, rows_of
from detcli.detector import Detector
from detcli.errors import DetcliWarning
from detcli.geometry import Picture
from detcli.model.contract import Layout
from detcli.model.loading import ModelFile
from detcli.model.passes import cut
from detcli.settings import Settings
from detcli.source.item import Item

CONFIDENCES = (Settings().conf, 0.05, 0.0)
"""Above which detections are compared: the next where neither model finds anything above the one
before, as on a picture without anything that they know. In the end, whatever they make of it."""

LEAST_IOU = 0.5
"""Boxes that overlap less do not match, as in `detcli verify`."""

NMS = 0.45
"""For one-to-many heads: an IoU that suits most pictures."""

LEAST_SCALE = 0.001  # scores of a class that is not in the picture are noise

# Both measured with YOLOv10-N, see docs/convert.md. In 8 bits one score in a hundred moves by more
# than 0.25. Of a model at another size no more can be said than that it sees most of the objects,
# about where they are.
INT8 = {"score": 0.25, "corner": 20.0, "boxes": 0.25}
RESIZED = {"score": 0.5, "corner": 40.0, "boxes": 0.5}


def compare(
    old: ModelFile,
    new: ModelFile,
    options: ConversionOptions,
    item: Item,
    wanted: Mapping[str, float],
) -> tuple[Difference, tuple[str, ...]]:
    """Run the old and the new model on a picture, on the CPU.

    Args:
        old: The model that was converted.
        new: What was made of it.
        options: What was done.
        item: The picture.
        wanted: Tolerances that were asked for, by their name.

    Returns:
        The difference; and why it is too large, empty if it is not.

    Raises:
        InputError: The picture cannot be read.
        InferenceError: A network fails.
        ModelError: The runtime refuses one.
        UsageError: A tolerance is out of range.
    """
    picture = item.load()
    before, after = old.detector(), new.detector()
    sizes = before.input_size, after.input_size
    resized = None not in sizes and sizes[0] != sizes[1]
    precisions = {precision_of(file.model) for file in (old, new)}
    tolerance = tolerance_for(precisions, {**_expected(options, resized=resized), **wanted})
    settings = Settings(
        nms=NMS if before.layout is Layout.ONE_TO_MANY else None,
        imgsz=None if resized else options.imgsz,
        box_format=options.box_format,
    )
    with warnings.catch_warnings():
        # Loading the files again repeats the warnings about them.
        warnings.simplefilter("ignore", DetcliWarning)
        for conf in CONFIDENCES:
            found = _detections(old, new, item, replace(settings, conf=conf), tolerance)
            if found.left or found.right:
                break
    failures = found.failures(tolerance)
    if (broken := _not_finite(new, picture)) and not _not_finite(old, picture):
        failures.append(f"{broken} values of the head are NaN or infinite, and none were before")
    mixed = None if options.batch is None else _mixed_up(new, picture)
    if mixed is not None and mixed > tolerance.tensor:
        failures.append(
            f"in a batch, a picture's output depends on the others: by {mixed:.3g} of the largest "
            f"value, allowed are {tolerance.tensor:g}"
        )
    difference = Difference(
        source=item.origin.source,
        conf=found.conf,
        old=found.left,
        new=found.right,
        pairs=found.pairs,
        over=found.over,
        borderline=found.borderline,
        missing=found.missing,
        extra=found.extra,
        largest_score=found.largest_score_difference,
        largest_corner=found.largest_corner_difference,
        score_tolerance=tolerance.score,
        corner_tolerance=tolerance.corner,
        boxes_tolerance=tolerance.boxes,
        batch=mixed,
    )
    return difference, tuple(failures)


def _expected(options: ConversionOptions, *, resized: bool) -> dict[str, float]:
    """The tolerance that a conversion needs, where it is more than its precision needs."""
    expected: dict[str, float] = {}
    for allowed in [*([INT8] if options.int8 else []), *([RESIZED] if resized else [])]:
        expected = {name: max(limit, expected.get(name, 0)) for name, limit in allowed.items()}
    return expected


def _detections(
    old: ModelFile, new: ModelFile, item: Item, settings: Settings, tolerance: Tolerance
) -> DetectionsReport:
    """Compare the detections of both models on a picture."""
    ends = new.detector().layout is Layout.END_TO_END
    max_det = (rows_of(new) if ends else None) or settings.max_det
    rules = Rules(settings.conf, LEAST_IOU, max_det, tolerance)
    settings = replace(settings, conf=rules.lowered_conf, max_det=max_det)
    picture = item.load()
    with Detector(old.path, "cpu", settings) as detector:
        [left] = detector.submit([picture])()
    if ends:  # the selection is part of the new file; a detector would cut it off
        [right] = GraphSide(new, settings).detect([picture])
    else:
        with Detector(new.path, "cpu", settings) as detector:
            [right] = detector.submit([picture])()
    compared = compare_detections(left, right, rules)
    return summarise([picture_report(item.origin, compared, rules)], rules)


def _not_finite(file: ModelFile, picture: Picture) -> int:
    """How many values of a head are NaN or infinite: no detection, so a comparison misses them."""
    contract = file.detector()
    body = cut(file.model, contract.head)
    session = open_tensors("cpu", body.SerializeToString(), file.path.name)
    [head] = session.run(contract.input_name, tensor_of(picture, contract)).values()
    return int(np.count_nonzero(~np.isfinite(head)))


def _mixed_up(new: ModelFile, picture: Picture) -> float | None:
    """How far a picture's output depends on the others in its batch; None if it has none.

    The picture and its mirror image, in turns, against batches of one of them; see `_apart`.
    """
    contract = new.detector()
    size = contract.batch or 2
    if size == 1:
        return None
    mirrored = Picture.whole(np.ascontiguousarray(picture.pixels[:, ::-1]))
    alone = [tensor_of(side, contract) for side in (picture, mirrored)]  # (1 or B, 3, H, W)
    turns = np.concatenate([alone[place % 2][:1] for place in range(size)])  # (B, 3, H, W)
    session = open_tensors("cpu", new.content, new.path.name)
    mixed, *expected = (session.run(contract.input_name, fed) for fed in (turns, *alone))
    worst = 0.0
    for name, output in mixed.items():
        for place, found in enumerate(output):
            worst = max(worst, _apart(found, expected[place % 2][name][0]))
    return worst


def _apart(found: Tensor, wanted: Tensor) -> float:
    """Largest difference of two heads of a picture, as a share of the channel's largest value.

    Channels are the shorter of the two axes: pixels would hide the scores. Of rows that a
    selection made, `(K, 6)`, only those count that anybody looks at: others may change places.
    """
    if wanted.shape[1] == COLUMNS:
        rows = np.maximum(found[:, 4], wanted[:, 4]) > Settings().conf
        found, wanted = found[rows], wanted[rows]
    wanted = wanted.astype(np.float64)
    anchors = 0 if wanted.shape[1] == COLUMNS else int(np.argmax(wanted.shape))
    scale = np.abs(wanted).max(axis=anchors, keepdims=True, initial=LEAST_SCALE)
    return float((np.abs(found - wanted) / scale).max(initial=0))
