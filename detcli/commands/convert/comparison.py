"""Compares the detections of a model before and after its conversion."""

import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from detcli.backend import open_tensors
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.value_ranges import Tensor, tensor_of
from detcli.compare.detections import (
    DetectionsReport,
    Rules,
    Totals,
    compare,
    image_report,
    tolerance_for,
)
from detcli.compare.sides import DetectorSide, GraphSide, max_detections_of_graph
from detcli.config.config import DEFAULT_CONF, Settings, effective_conf
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.errors import DetcliWarning
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.model.contract import Layout
from detcli.model.file import ModelFile
from detcli.model.precision import precision_of
from detcli.run.batches import BatchDetector
from detcli.source.loading import Item

# Detections above the first are compared; if neither model finds any, those above the next.
CONFIDENCES = (DEFAULT_CONF, 0.05, 0.0)
MIN_IOU = 0.5  # boxes that overlap less do not match, as in `detcli verify`
MIN_SCALE = 0.001  # scores of a class that is not in the image are noise
SCORE_COLUMN = 4  # of detections: x1, y1, x2, y2, score, class id

# Measured with YOLOv10-N, see docs/convert.md: one score in a hundred changes by more than 0.25.
INT8 = {"score": 0.25, "corner": 20.0, "boxes": 0.25}


@frozen
class Difference:
    """How the detections of the old and the new model differ on one image."""

    source: str  # the image that both models looked at
    conf: float  # boxes above this score were compared
    old: int  # boxes of the old model
    new: int  # boxes of the new model
    pairs: int  # boxes that both models have
    over: int  # pairs beyond the tolerance
    borderline: int  # boxes of one model only, close to the confidence; ignored
    missing: int  # boxes of the old model only
    extra: int  # boxes of the new model only
    largest_score: float  # largest difference of the scores of a pair
    largest_corner: float  # the same of its corners, in pixels
    score_tolerance: float  # how far the scores of a pair may differ
    corner_tolerance: float  # how far its corners may differ, in pixels
    boxes_tolerance: float  # share of boxes that may be missing, extra or over
    batch: float | None  # how far another image in the batch changes the output; None if untested


class ModelComparison(NamedTuple):
    """How the detections of two models differ in an image."""

    difference: Difference
    failures: tuple[str, ...]  # a sentence for each reason why that is too much


def compare_models(
    old: ModelFile, new: ModelFile, options: ConversionOptions, item: Item
) -> ModelComparison:
    """Run the old and the new model on an image, and judge how much their detections differ.

    The comparison also fails if the new network outputs NaN or infinite values, or if its output
    for an image depends on the other images of the batch.

    Args:
        old: The model before the conversion.
        new: The model after it.
        options: What was changed, and how much the detections may differ.
        item: The image.
    """
    image = item.load()
    tolerance = _tolerance(old, new, options)
    # Both models suppress duplicates as the old one does, even if --metadata changes that. Names
    # are not used, as detections are matched by class id.
    settings = replace(options.config.settings, nms=old.detector().nms, names=None)
    detections_report = _compare_where_confident(old, new, item, settings, tolerance)
    failures = detections_report.failures(tolerance)

    not_finite_count = _count_not_finite(new, image)
    if not_finite_count and not _count_not_finite(old, image):
        failures.append(
            f"{not_finite_count} values of the head are NaN or infinite, and none were before"
        )

    batch_difference = None
    if options.batch is not None:
        batch_difference = _batch_difference(new, image)
    if batch_difference is not None and batch_difference > tolerance.tensor:
        failures.append(
            "in a batch, the output for an image depends on the others: by "
            f"{batch_difference:.3g} of the largest value ({tolerance.tensor:g} allowed)"
        )

    difference = _difference_of(detections_report, item, tolerance, batch_difference)
    return ModelComparison(difference, tuple(failures))


def _compare_where_confident(
    old: ModelFile, new: ModelFile, item: Item, settings: Settings, tolerance: Tolerance
) -> DetectionsReport:
    """Compare detections at the usual confidence, or at a lower one if nothing is detected.

    The CONFIDENCES are tried from the highest to the lowest, until either model detects anything.
    If neither does at the lowest one, the report on that one is returned.

    Args:
        old: The model before the conversion.
        new: The model after it.
        item: The image.
        settings: How to detect; the confidence in them is replaced.
        tolerance: How much the detections may differ.
    """
    with warnings.catch_warnings():
        # Loading the files again repeats the warnings about them.
        warnings.simplefilter("ignore", DetcliWarning)
        for conf in CONFIDENCES:
            settings_with_conf = replace(settings, conf=conf)
            report = _compare_detections(old, new, item, settings_with_conf, tolerance)
            detects_anything = report.left or report.right
            if detects_anything:
                break
    return report


def _difference_of(
    report: DetectionsReport, item: Item, tolerance: Tolerance, batch_difference: float | None
) -> Difference:
    """Collect the figures of a comparison for the report of the conversion.

    See `Difference` for what its fields count. Their names are JSON keys of the report.

    Args:
        report: How the detections of the old model (left) and the new one (right) differ.
        item: The image that they were compared on.
        tolerance: How much they may differ.
        batch_difference: How much the new model's output for an image depends on the other images
            of the batch; None if it was not measured.
    """
    return Difference(
        source=item.origin.source,
        conf=report.conf,
        old=report.left,
        new=report.right,
        pairs=report.pairs,
        over=report.over,
        borderline=report.borderline,
        missing=report.missing,
        extra=report.extra,
        largest_score=report.largest_score_difference,
        largest_corner=report.largest_corner_difference,
        score_tolerance=tolerance.score,
        corner_tolerance=tolerance.corner,
        boxes_tolerance=tolerance.boxes,
        batch=batch_difference,
    )


def _tolerance(old: ModelFile, new: ModelFile, options: ConversionOptions) -> Tolerance:
    """Decide how much the detections of two models may differ.

    The default depends on the number types that the models compute in, and allows most in 8 bits.
    Values of the option --tolerance take precedence.
    """
    requested: dict[str, float] = {}
    if options.int8:
        requested |= INT8
    if options.tolerance:
        requested |= options.tolerance
    precisions = {precision_of(old.model), precision_of(new.model)}
    return tolerance_for(precisions, requested)


def _compare_detections(
    old: ModelFile, new: ModelFile, item: Item, settings: Settings, tolerance: Tolerance
) -> DetectionsReport:
    """Compare the detections of both models on an image, with the confidence of the settings.

    Both models run with a confidence that is lower by the tolerance of scores, so that a detection
    just above it is not missing on one side.

    Args:
        old: The model before the conversion.
        new: The model after it.
        item: The image.
        settings: How to detect, with the confidence.
        tolerance: How much the detections may differ.
    """
    image = item.load()
    rules = Rules(
        conf=effective_conf(settings, recommended=None),
        least_iou=MIN_IOU,
        max_det=_common_max_det(old, new, settings),
        tolerance=tolerance,
    )
    lowered_settings = replace(settings, conf=rules.lowered_conf, max_det=rules.max_det)
    old_detections = _detect(old, image, lowered_settings)
    if new.selection:
        # The selection in the new graph is to be compared, so the whole graph runs. `_detect` would
        # run only what comes before the selection.
        [new_detections] = GraphSide(new, lowered_settings).detect([image])
    else:
        new_detections = _detect(new, image, lowered_settings)

    # `Totals` makes a report from the reports on any number of images; here there is only one.
    comparison = compare(old_detections, new_detections, rules)
    report_on_image = image_report(item.origin, comparison, rules)
    totals = Totals(rules)
    totals.add(report_on_image)
    return totals.report([report_on_image])


def _common_max_det(old: ModelFile, new: ModelFile, settings: Settings) -> int:
    """Return how many detections of an image both models output at most in a comparison.

    A new graph that selects detections itself limits their number instead of --max-det. The family
    of the old model may allow fewer.
    """
    max_det = max_detections_of_graph(new) or settings.max_det
    max_det_of_family = old.detector().max_detections
    if max_det_of_family:
        return min(max_det, max_det_of_family)
    return max_det


def _detect(file: ModelFile, image: Image, settings: Settings) -> Detections:
    """Detect the objects in an image with a model, on the CPU.

    If the graph selects detections itself, that part of it is left out, and detcli selects them.
    """
    with BatchDetector(file.path, "cpu", settings) as detector:
        [detections] = DetectorSide(detector).detect([image])
    return detections


def _count_not_finite(file: ModelFile, image: Image) -> int:
    """Count the NaN and infinite values that a model computes for an image.

    They are counted in the head, the tensor with boxes and scores. Boxes with such values are not
    among the detections, so a comparison of detections does not show them.
    """
    contract = file.detector()
    session = open_tensors("cpu", file.body().SerializeToString(), file.path.name)
    [head] = session.run_watched(contract.input_name, tensor_of(image, contract)).values()
    return int(np.count_nonzero(~np.isfinite(head)))


def _batch_difference(new: ModelFile, image: Image) -> float | None:
    """Measure how much a model's output for an image depends on the other images of its batch.

    It should not depend on them at all. A batch that alternates between an image and its mirror
    image is compared with a batch of the image alone, and with one of the mirror image alone.

    Args:
        new: The converted model.
        image: The image.

    Returns:
        The largest difference, as a share of the largest value; None if the graph takes one
        image at a time.
    """
    contract = new.detector()
    mixed_size = contract.batch or 2  # a graph that takes any batch gets both images once
    if mixed_size == 1:
        return None
    mirrored = Image.whole(np.ascontiguousarray(image.pixels[:, ::-1]))
    # Each is (B, 3, H, W); B is 1 if the graph takes any batch.
    image_batch = tensor_of(image, contract)
    mirrored_batch = tensor_of(mirrored, contract)
    mixed_batch = np.empty((mixed_size, *image_batch.shape[1:]), image_batch.dtype)
    mixed_batch[0::2] = image_batch[0]
    mixed_batch[1::2] = mirrored_batch[0]

    # A graph that selects detections itself runs with its selection, any other up to the head.
    selects = new.selection is not None or contract.layout is Layout.ROWS
    graph_reading = new.selection or new.reading()
    graph = graph_reading.body(new.model)
    session = open_tensors("cpu", graph.SerializeToString(), new.path.name)
    mixed_outputs = session.run_watched(contract.input_name, mixed_batch)
    image_outputs = session.run_watched(contract.input_name, image_batch)
    mirrored_outputs = session.run_watched(contract.input_name, mirrored_batch)

    differences = []
    for name, outputs in mixed_outputs.items():
        for output in outputs[0::2]:
            differences.append(
                _scaled_difference(output, image_outputs[name][0], are_detections=selects)
            )
        for output in outputs[1::2]:
            differences.append(
                _scaled_difference(output, mirrored_outputs[name][0], are_detections=selects)
            )
    return max(differences)


def _scaled_difference(output: Tensor, expected: Tensor, *, are_detections: bool) -> float:
    """Return the largest difference of two outputs, as a share of the largest value in its channel.

    A channel is a coordinate of boxes, or the scores of a class. Scores are so much smaller than
    pixels that their differences would not matter, so each channel is divided by its largest value.
    For example, if the largest x is 640, a difference of 64 pixels counts as 0.1. If the largest
    score is 0.9, a difference of 0.09 counts the same.

    For detections that a graph has selected, only the confident ones are compared, since the others
    may change places.

    Args:
        output: A head, `(4 + C, N)` or `(N, 4 + C)`, of N anchors and C classes; or K detections,
            `(K, 6)`.
        expected: What it should be, of the same shape.
        are_detections: Whether they are detections that the graph has selected. The shape does not
            tell, as a head of two classes has six columns, too.
    """
    if are_detections:
        best_scores = np.maximum(output[:, SCORE_COLUMN], expected[:, SCORE_COLUMN])
        is_confident = best_scores > DEFAULT_CONF
        output = output[is_confident]
        expected = expected[is_confident]
        box_axis = 0
    else:
        box_axis = int(np.argmax(expected.shape))  # a head has more anchors than channels

    # A channel is divided by MIN_SCALE if all its values are smaller than that.
    expected = expected.astype(np.float64)
    channel_scales = np.abs(expected).max(axis=box_axis, keepdims=True, initial=MIN_SCALE)
    scaled_differences = np.abs(output - expected) / channel_scales
    return float(scaled_differences.max(initial=0))
