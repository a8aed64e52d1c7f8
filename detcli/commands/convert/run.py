"""Converts a model file, and writes the result if its detections stay the same."""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from detcli.backend import open_tensors
from detcli.commands.convert.options import ConversionOptions
from detcli.commands.convert.steps import Pictures, Step, Steps, Tensor, serialised, tensor_of
from detcli.compare.detections import (
    DetectionsReport,
    Rules,
    Totals,
    compare,
    picture_report,
    tolerance_for,
)
from detcli.compare.sides import COLUMNS, DetectorSide, GraphSide, rows_of
from detcli.config.config import DEFAULT_CONF, Settings
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.errors import DetcliWarning, InputError, UsageError
from detcli.data.detections import Detections
from detcli.data.geometry import Picture
from detcli.data.record import Origin
from detcli.model.editing import names_entry, set_metadata
from detcli.model.file import ModelFile, damage_reported
from detcli.model.metadata import BOX_FORMAT_KEY, FAMILY_KEY
from detcli.model.precision import precision_of
from detcli.model.preprocessing import METADATA_KEY, written
from detcli.model.recognise import read_graph
from detcli.run.batches import BatchDetector
from detcli.source.decode import BUILT_IN
from detcli.source.fetch import load_file
from detcli.source.loading import Item, load_in_time
from detcli.storage.files import AtomicFile, DirectFile, open_output, write_output

MAX_PICTURES = 512  # used for calibration; more would hardly widen the ranges
# Detections above the first are compared, or above the next where neither model finds any.
CONFIDENCES = (DEFAULT_CONF, 0.05, 0.0)
LEAST_IOU = 0.5  # boxes that overlap less do not match, as in `detcli verify`
MIN_SCALE = 0.001  # scores of a class that is not in the picture are noise

# Measured with YOLOv10-N, see docs/convert.md: one score in a hundred changes by more than 0.25.
INT8 = {"score": 0.25, "corner": 20.0, "boxes": 0.25}


@frozen
class File:
    path: str
    sha256: str
    bytes: int  # external data included
    size: tuple[int, int] | None  # height and width of the input; None for a dynamic graph
    batch: int | None  # None for a dynamic batch


@frozen
class Difference:
    """How the detections of the old and the new model differ; docs/convert.md explains each."""

    source: str
    conf: float
    old: int
    new: int
    pairs: int
    over: int
    borderline: int
    missing: int
    extra: int
    largest_score: float
    largest_corner: float
    score_tolerance: float
    corner_tolerance: float
    boxes_tolerance: float
    batch: float | None


@frozen
class Conversion:
    model: File
    output: File  # the result, written or not
    written: bool
    steps: tuple[Step, ...]
    difference: Difference
    failures: tuple[str, ...]  # why nothing was written


def built_in() -> Item:
    """The picture that is part of detcli."""
    return Item(Origin(BUILT_IN.name), lambda: load_file(BUILT_IN))


def load_pictures(items: Iterable[Item], advance: Callable[[], None]) -> Iterator[Picture]:
    """Load the first MAX_PICTURES items, with a warning for each that cannot be read."""
    for item in itertools.islice(items, MAX_PICTURES):
        try:
            picture = load_in_time(item)
        except InputError as error:
            _warn(f"{item.origin.source}: {error}")
        else:
            for warning in picture.warnings:
                _warn(f"{item.origin.source}: {warning}")
            yield picture
        advance()


def convert(
    model: ModelFile,
    options: ConversionOptions,
    item: Item,
    pictures: Pictures | None = None,
) -> Conversion:
    """Convert a model; the file is written if the detections on a picture stay the same.

    `pictures` are for the calibration of half and int8, in place of that one.
    """
    source = item.origin.source
    output = options.output
    settings = options.config.settings
    try:
        picture = load_in_time(item)
    except InputError as error:
        raise error.about(source) from error
    item = Item(item.origin, lambda: picture)
    target = _open_output(model.path, output, force=options.force)
    try:
        with tempfile.TemporaryDirectory(prefix="detcli-") as folder:
            original = ModelFile.read(model.path, settings.box_format, settings.preprocess)
            old = _of_family(original, options.entries, Path(folder, "given"))
            old_warnings = old.detector().warnings
            for warning in old_warnings:
                _warn(f"{model.path.name}: {warning}")
            calibration_pictures = pictures or (lambda: [picture])
            steps = Steps(_with_contract(old), model.path.name, options, calibration_pictures)
            with damage_reported(model.path):  # converters raise anything
                steps.run()
            converted = serialised(steps.model)
            path = Path(folder, output.name)
            write_output(path, converted)
            new = ModelFile.read(path, settings.box_format, content=converted)
            for warning in new.detector().warnings:
                if warning not in old_warnings:
                    _warn(f"{output.name}: {warning}")
            difference, failures = compare_models(old, new, options, item)
            before = _describe(original, model.path, old)
            after = _describe(new, output, new)
        if difference.conf != CONFIDENCES[0]:
            _warn(
                f"neither model finds anything above {CONFIDENCES[0]:g} in {source}; "
                f"{max(difference.old, difference.new)} boxes above {difference.conf:g} were "
                "compared, which is weak evidence: use --image FILE with objects the model knows"
            )
        if not failures:
            target.write(converted)
            target.commit()
    finally:
        target.discard()
    return Conversion(before, after, not failures, tuple(steps.done), difference, failures)


def _warn(text: str) -> None:
    warnings.warn(text, DetcliWarning, stacklevel=3)


def _open_output(model: Path, output: Path, *, force: bool) -> AtomicFile | DirectFile:
    """Open the file to write; it stays unchanged unless it is committed."""
    if output.is_dir():
        raise UsageError(f"{output} is a folder", "name a file in it")
    if output.is_file() and not force:
        problem = f"{output} already exists"
        if model.exists() and model.samefile(output):
            problem = f"{output} is the model itself"
        raise UsageError(problem, "name another file, or overwrite it with --force")
    return open_output(output)


def _of_family(file: ModelFile, entries: dict[str, str], folder: Path) -> ModelFile:
    """A file as the family is to be named in its metadata, without which it may not be known."""
    if FAMILY_KEY not in entries:
        return file
    folder.mkdir()
    path = folder / file.path.name
    named = set_metadata(file.original, {FAMILY_KEY: entries[FAMILY_KEY]})
    write_output(path, serialised(named))
    return ModelFile.read(path, file.box_format, file.preprocess)


def _describe(file: ModelFile, path: Path, detector: ModelFile) -> File:
    """What is reported of a file; as a detector it may be known by another one only."""
    size = len(file.content) + sum(external.bytes for external in file.external)
    contract = detector.detector()
    return File(str(path), file.sha256, size, contract.input_size, contract.batch)


def _with_contract(file: ModelFile) -> ModelProto:
    """A model whose metadata says what otherwise only its neighbours or the user say."""
    contract = file.detector()
    graph_contract = read_graph(file.model, file.path.name, file.box_format).contract
    entries: dict[str, str] = {}
    if file.box_format is not None:
        entries[BOX_FORMAT_KEY] = contract.box_format
    if (
        graph_contract.preprocessing != contract.preprocessing
        or graph_contract.unknown_preprocessing != contract.unknown_preprocessing
    ):
        entries[METADATA_KEY] = written(contract.preprocessing)
    if graph_contract.names != contract.names:
        entries |= names_entry(contract.names)
    if graph_contract.default_size != contract.default_size:
        entries["imgsz"] = str(list(contract.default_size))
    if not entries:
        return file.original
    return set_metadata(file.original, entries)


def compare_models(
    old: ModelFile, new: ModelFile, options: ConversionOptions, item: Item
) -> tuple[Difference, tuple[str, ...]]:
    """Run the old and the new model on a picture; what differs, and why that is too much."""
    picture = item.load()
    allowed: dict[str, float] = {}
    if options.int8:
        allowed |= INT8
    if options.tolerance:
        allowed |= options.tolerance
    precisions = {precision_of(old.model), precision_of(new.model)}
    tolerance = tolerance_for(precisions, allowed)
    settings = replace(options.config.settings, nms=old.detector().nms, names=None)
    with warnings.catch_warnings():
        # Loading the files again repeats the warnings about them.
        warnings.simplefilter("ignore", DetcliWarning)
        for conf in CONFIDENCES:
            report = _compare_detections(old, new, item, replace(settings, conf=conf), tolerance)
            if report.left or report.right:
                break
    failures = report.failures(tolerance)
    not_finite = _count_not_finite(new, picture)
    if not_finite and not _count_not_finite(old, picture):
        failures.append(
            f"{not_finite} values of the head are NaN or infinite, and none were before"
        )
    batch_difference = None
    if options.batch is not None:
        batch_difference = _batch_difference(new, picture)
    if batch_difference is not None and batch_difference > tolerance.tensor:
        failures.append(
            "in a batch, the output for a picture depends on the others: by "
            f"{batch_difference:.3g} of the largest value ({tolerance.tensor:g} allowed)"
        )
    difference = Difference(
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
    return difference, tuple(failures)


def _compare_detections(
    old: ModelFile, new: ModelFile, item: Item, settings: Settings, tolerance: Tolerance
) -> DetectionsReport:
    """How the detections of both models on a picture differ."""
    picture = item.load()
    max_det = rows_of(new) or settings.max_det
    limit_of_old = old.detector().max_detections
    if limit_of_old:
        max_det = min(max_det, limit_of_old)
    rules = Rules(settings.effective_conf(None), LEAST_IOU, max_det, tolerance)
    settings = replace(settings, conf=rules.lowered_conf, max_det=max_det)
    left = _detect(old, picture, settings)
    if new.selection:  # which a detector would cut off
        [right] = GraphSide(new, settings).detect([picture])
    else:
        right = _detect(new, picture, settings)
    report = picture_report(item.origin, compare(left, right, rules), rules)
    totals = Totals(rules)
    totals.add(report)
    return totals.report([report])


def _detect(file: ModelFile, picture: Picture, settings: Settings) -> Detections:
    """What a model finds on a picture, on the CPU."""
    with BatchDetector(file.path, "cpu", settings) as detector:
        [detections] = DetectorSide(detector).detect([picture])
    return detections


def _count_not_finite(file: ModelFile, picture: Picture) -> int:
    """NaN and infinite values in a head make no detections to compare."""
    contract = file.detector()
    session = open_tensors("cpu", file.body().SerializeToString(), file.path.name)
    [head] = session.run_watched(contract.input_name, tensor_of(picture, contract)).values()
    return int(np.count_nonzero(~np.isfinite(head)))


def _batch_difference(new: ModelFile, picture: Picture) -> float | None:
    """How much the output for a picture depends on the others in its batch; None for batch 1.

    Compares a batch of the picture and its mirror image in turns with batches of one of them.
    """
    contract = new.detector()
    size = contract.batch or 2
    if size == 1:
        return None
    mirrored = Picture.whole(np.ascontiguousarray(picture.pixels[:, ::-1]))
    batches = [tensor_of(picture, contract), tensor_of(mirrored, contract)]  # (1 or B, 3, H, W)
    mixed_batch = np.concatenate([batches[index % 2][:1] for index in range(size)])  # (B, 3, H, W)
    graph = (new.selection or new.reading()).body(new.model)
    session = open_tensors("cpu", graph.SerializeToString(), new.path.name)
    mixed = session.run_watched(contract.input_name, mixed_batch)
    alone = [session.run_watched(contract.input_name, batch) for batch in batches]
    differences = []
    for name, outputs in mixed.items():
        for index, output in enumerate(outputs):
            expected = alone[index % 2][name][0]
            differences.append(_scaled_difference(output, expected))
    return max(differences)


def _scaled_difference(output: Tensor, expected: Tensor) -> float:
    """Largest difference of two outputs, as a share of the channel's largest value.

    Channels are the shorter of the two axes, since pixels would hide the scores. Of the rows of a
    selection, `(K, 6)`, only confident ones count: others may change places.
    """
    anchor_axis = int(np.argmax(expected.shape))
    if expected.shape[1] == COLUMNS:
        is_confident = np.maximum(output[:, 4], expected[:, 4]) > DEFAULT_CONF
        output = output[is_confident]
        expected = expected[is_confident]
        anchor_axis = 0
    expected = expected.astype(np.float64)
    scale = np.abs(expected).max(axis=anchor_axis, keepdims=True, initial=MIN_SCALE)
    return float((np.abs(output - expected) / scale).max(initial=0))
