"""Converts a model file, and writes the result if its detections stay the same."""

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from detcli.backend import open_tensors
from detcli.commands.convert.steps import (
    ConversionOptions,
    Pictures,
    Step,
    Steps,
    Tensor,
    serialised,
    tensor_of,
)
from detcli.commands.shared.comparison import (
    DetectionsReport,
    Rules,
    Tolerance,
    compare,
    picture_report,
    summarise,
    tolerance_for,
)
from detcli.commands.shared.sides import COLUMNS, DetectorSide, GraphSide, precision_of, rows_of
from detcli.detector import Detector
from detcli.errors import DetcliWarning, InputError, UsageError
from detcli.files import AtomicFile, DirectFile, open_output, write_output
from detcli.geometry import Picture
from detcli.model.editing import names_entry, set_metadata
from detcli.model.loading import ModelFile, damage_reported
from detcli.model.preprocessing import METADATA_KEY, written
from detcli.model.recognise import BOX_FORMAT_KEY, recognise
from detcli.model.zoo import LocatedModel
from detcli.record import Origin
from detcli.settings import USUAL_CONF, Settings
from detcli.source.decode import BUILT_IN, load_file
from detcli.source.item import Item
from detcli.source.loading import load_in_time


@dataclass(frozen=True, slots=True)
class File:
    """A model file.

    Attributes:
        path: Its path, as the user named it.
        sha256: SHA-256 of the file.
        bytes: Its size, including external data.
        size: Height and width of the input; None for a dynamic graph.
        batch: Number of pictures in a batch; None for a dynamic batch.
    """

    path: str
    sha256: str
    bytes: int
    size: tuple[int, int] | None
    batch: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How the detections of the old and the new model differ.

    Attributes:
        source: The picture that both models ran on.
        conf: Detections above this score were compared.
        old: Number of detections of the old model.
        new: Of the new model.
        pairs: Detections of both models that match.
        over: Pairs that differ by more than the tolerance.
        borderline: Found by one model only, or with one score below `conf`, since it is near it.
        missing: Found by the old model only.
        extra: Found by the new model only.
        largest_score: Largest difference of the scores of a pair.
        largest_corner: Largest difference of the corners of a pair, in pixels.
        score_tolerance: Allowed difference of scores.
        corner_tolerance: Allowed difference of corners, in pixels.
        boxes_tolerance: Allowed share of boxes that are missing, extra or over.
        batch: Largest difference of the new model's output for a picture in a batch with others
            and without, as a share of the largest value; None if the batch was not converted.
    """

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


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        model: The file that was converted.
        output: The result, written or not.
        written: Whether the result was written.
        steps: The passes, in their order.
        difference: How both models differ.
        failures: Why nothing was written, one sentence each.
    """

    model: File
    output: File
    written: bool
    steps: tuple[Step, ...]
    difference: Difference
    failures: tuple[str, ...]


MAX_PICTURES = 512
"""Pictures used for calibration; more would hardly widen the ranges."""

CONFIDENCES = (USUAL_CONF, 0.05, 0.0)
"""Detections above the first are compared, or above the next where neither model finds any."""

LEAST_IOU = 0.5
"""Boxes that overlap less do not match, as in `detcli verify`."""

NMS = 0.45
"""For one-to-many heads: an IoU that suits most pictures."""

MIN_SCALE = 0.001  # scores of a class that is not in the picture are noise

# Measured with YOLOv10-N, see docs/convert.md: one score in a hundred changes by more than 0.25.
INT8 = {"score": 0.25, "corner": 20.0, "boxes": 0.25}


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
    model: LocatedModel,
    output: Path,
    options: ConversionOptions,
    item: Item,
    pictures: Pictures | None = None,
) -> Conversion:
    """Convert a model; the file is written if the detections on a picture stay the same.

    Args:
        model: The model to convert.
        output: The file to write.
        options: How to convert the model.
        item: The picture to compare the old and the new model on.
        pictures: Pictures to calibrate half and int8 on; None for that picture.

    Raises:
        InputError: A picture cannot be read.
        InferenceError: A network failed.
        ModelError: The model cannot be used or converted.
        OutputError: The output cannot be written, or there is no space for a temporary copy.
        UsageError: The output exists; or names, size or tolerance do not fit the model.
    """
    picture = _load(item)
    item = Item(item.origin, lambda: picture)
    with contextlib.ExitStack() as stack:
        target = _open_output(model.path, output, force=options.force)
        stack.callback(target.discard)
        old = ModelFile.read(model.path, options.box_format, options.preprocess)
        known = old.detector().warnings
        for warning in known:
            _warn(f"{model.path.name}: {warning}")
        steps = Steps(
            _with_contract(old), model.path.name, options, pictures or (lambda: [picture])
        )
        with damage_reported(model.path):  # converters raise anything
            steps.run()
        converted = serialised(steps.model)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="detcli-"))
        path = Path(folder, output.name)
        write_output(path, converted)
        new = ModelFile(path, converted, options.box_format)
        for warning in new.detector().warnings:
            if warning not in known:
                _warn(f"{output.name}: {warning}")
        difference, failures = compare_models(old, new, options, item)
        if difference.conf != CONFIDENCES[0]:
            _warn(
                f"neither model finds anything above {CONFIDENCES[0]:g} in {item.origin.source}; "
                f"{max(difference.old, difference.new)} boxes above {difference.conf:g} were "
                "compared, which is weak evidence: use --image FILE with objects the model knows"
            )
        if not failures:
            target.write(converted)
            target.commit()
    return Conversion(
        model=_file_report(old, model.path),
        output=_file_report(new, output),
        written=not failures,
        steps=tuple(steps.done),
        difference=difference,
        failures=failures,
    )


def _load(item: Item) -> Picture:
    """The picture to compare on; an error names it."""
    try:
        return load_in_time(item)
    except InputError as error:
        raise error.about(item.origin.source) from error


def _warn(text: str) -> None:
    warnings.warn(text, DetcliWarning, stacklevel=3)


def _open_output(model: Path, output: Path, *, force: bool) -> AtomicFile | DirectFile:
    """Open the file to write; it stays unchanged unless it is committed."""
    if output.is_dir():
        raise UsageError(f"{output} is a folder", "name a file in it")
    if output.is_file() and not force:
        same = model.exists() and model.samefile(output)
        raise UsageError(
            f"{output} is the model itself" if same else f"{output} already exists",
            "name another file, or overwrite it with --force",
        )
    return open_output(output)


def _file_report(file: ModelFile, path: Path) -> File:
    contract = file.detector()
    return File(
        path=str(path),
        sha256=file.sha256,
        bytes=len(file.content) + sum(external.bytes for external in file.external),
        size=contract.input_size,
        batch=contract.batch,
    )


def _with_contract(file: ModelFile) -> ModelProto:
    """A model whose metadata says what otherwise only its neighbours or the user say."""
    contract, entries = file.detector(), dict[str, str]()
    if file.box_format is not None:
        entries[BOX_FORMAT_KEY] = contract.box_format
    alone = recognise(file.model, file.path.name, file.box_format)
    if (alone.preprocessing, alone.unsettled) != (contract.preprocessing, contract.unsettled):
        entries[METADATA_KEY] = written(contract.preprocessing)
    if alone.names != contract.names:
        entries |= names_entry(contract.names)
    if alone.default_size != contract.default_size:
        entries["imgsz"] = str(list(contract.default_size))
    return set_metadata(file.original, entries) if entries else file.original


def compare_models(
    old: ModelFile, new: ModelFile, options: ConversionOptions, item: Item
) -> tuple[Difference, tuple[str, ...]]:
    """Run the old and the new model on a picture, on the CPU.

    Returns:
        The difference, and why it is too large; no reasons if it is not.

    Raises:
        InputError: The picture cannot be read.
        InferenceError: A network failed.
        ModelError: The runtime refuses a model.
        UsageError: A tolerance is out of range.
    """
    picture = item.load()
    contract = old.detector()
    allowed = INT8 if options.int8 else {}
    precisions = {precision_of(file.model) for file in (old, new)}
    tolerance = tolerance_for(precisions, {**allowed, **options.tolerance})
    settings = Settings(
        nms=(contract.nms or NMS) if contract.needs_nms else None,
        imgsz=options.imgsz,
        box_format=options.box_format,
        preprocess=options.preprocess,
    )
    with warnings.catch_warnings():
        # Loading the files again repeats the warnings about them.
        warnings.simplefilter("ignore", DetcliWarning)
        for conf in CONFIDENCES:
            found = _compare_detections(old, new, item, replace(settings, conf=conf), tolerance)
            if found.left or found.right:
                break
    failures = found.failures(tolerance)
    if (broken := _count_not_finite(new, picture)) and not _count_not_finite(old, picture):
        failures.append(f"{broken} values of the head are NaN or infinite, and none were before")
    mixed = None if options.batch is None else _batch_difference(new, picture)
    if mixed is not None and mixed > tolerance.tensor:
        failures.append(
            f"in a batch, the output for a picture depends on the others: by {mixed:.3g} of the "
            f"largest value ({tolerance.tensor:g} allowed)"
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


def _compare_detections(
    old: ModelFile, new: ModelFile, item: Item, settings: Settings, tolerance: Tolerance
) -> DetectionsReport:
    ends = new.selection is not None
    most = (rows_of(new) if ends else None) or settings.max_det
    max_det = min(most, old.detector().most or most)
    rules = Rules(settings.confidence(None), LEAST_IOU, max_det, tolerance)
    settings = replace(settings, conf=rules.lowered_conf, max_det=max_det)
    picture = item.load()
    with Detector(old.path, "cpu", settings) as detector:
        [left] = DetectorSide(detector).detect([picture])
    if ends:  # the selection is part of the new file; a detector would cut it off
        [right] = GraphSide(new, settings).detect([picture])
    else:
        with Detector(new.path, "cpu", settings) as detector:
            [right] = DetectorSide(detector).detect([picture])
    report = picture_report(item.origin, compare(left, right, rules), rules)
    return summarise([report], rules)


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
    alone = [tensor_of(one, contract) for one in (picture, mirrored)]  # (1 or B, 3, H, W)
    turns = np.concatenate([alone[place % 2][:1] for place in range(size)])  # (B, 3, H, W)
    graph = (new.selection or new.reading()).body(new.model)
    session = open_tensors("cpu", graph.SerializeToString(), new.path.name)
    mixed, *expected = (session.run_watched(contract.input_name, fed) for fed in (turns, *alone))
    return max(
        _scaled_difference(found, expected[place % 2][name][0])
        for name, output in mixed.items()
        for place, found in enumerate(output)
    )


def _scaled_difference(found: Tensor, wanted: Tensor) -> float:
    """Largest difference of two outputs, as a share of the channel's largest value.

    Channels are the shorter of the two axes, since pixels would hide the scores. Of the rows of a
    selection, `(K, 6)`, only confident ones count: others may change places.
    """
    if wanted.shape[1] == COLUMNS:
        rows = np.maximum(found[:, 4], wanted[:, 4]) > USUAL_CONF
        found, wanted = found[rows], wanted[rows]
    wanted = wanted.astype(np.float64)
    anchors = 0 if wanted.shape[1] == COLUMNS else int(np.argmax(wanted.shape))
    scale = np.abs(wanted).max(axis=anchors, keepdims=True, initial=MIN_SCALE)
    return float((np.abs(found - wanted) / scale).max(initial=0))
