"""Runs a verification: opens both sides, goes through the pictures, adds up."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from detcli.commands.shared.comparison import (
    DetectionsReport,
    PictureReport,
    Tolerance,
    compare,
    picture_report,
    summarise,
)
from detcli.commands.shared.sides import DetectorSide, GraphSide, Side
from detcli.commands.verify.bisect import bisect
from detcli.commands.verify.graphs import Probe
from detcli.commands.verify.outputs import OutputComparison
from detcli.commands.verify.pictures import Judged, Worst
from detcli.commands.verify.plan import Plan
from detcli.commands.verify.report import (
    BisectReport,
    FailedInput,
    SelectedBy,
    SideReport,
    TensorReport,
    VerifyReport,
)
from detcli.detector import Detector
from detcli.errors import InputError, ModelError
from detcli.geometry import Picture
from detcli.sink.folder import OutputFolder
from detcli.source.item import Item


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
    found = [] if detections is None else detections.failures(tolerance)
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


Sides = tuple[Side, Side]

RANDOM = "random pictures say nothing about detections"


@dataclass(slots=True)
class _Found:
    """What has been found so far."""

    compared: int = 0
    failed: list[FailedInput] = field(default_factory=list)
    pictures: list[PictureReport] = field(default_factory=list)
    worst: Worst = field(default_factory=Worst)


def verify(
    plan: Plan,
    items: Iterable[Item],
    folder: OutputFolder | None = None,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Run both ways on all pictures and compare.

    Args:
        plan: What to run, and how strictly to judge.
        items: The pictures; those that cannot be read are reported, the others go on.
        folder: Where the worst pictures are drawn; None for nowhere.
        advance: Called after each picture.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: A picture cannot be written.
        UsageError: The settings do not fit a model.
    """
    with ExitStack() as stack:
        sides, refusal = _open_sides(plan, stack)
        outputs = _open_outputs(plan) if plan.request.looks_inside else None
        found = _go_through(plan, items, sides, outputs, advance)
        bisected = None
        if outputs is not None and plan.request.bisect:
            bisected = bisect(outputs, plan.rules.tolerance.tensor)
    detections = _detections(plan, found, folder) if sides is not None else None
    return _report(plan, found, detections, refusal, outputs, bisected)


def _open_sides(plan: Plan, stack: ExitStack) -> tuple[Sides | None, str | None]:
    """Both sides, or why detections are not compared."""
    if plan.request.random:
        return None, RANDOM
    try:
        return (_open_side(plan, 0, stack), _open_side(plan, 1, stack)), None
    except ModelError as error:
        if not plan.request.looks_inside:
            raise  # a network that is no detector has tensors still
        return None, str(error)


def _open_side(plan: Plan, number: int, stack: ExitStack) -> Side:
    file, settings = plan.files[number], plan.settings
    if plan.selections[number] is SelectedBy.GRAPH:
        return GraphSide(file, settings)
    detector = Detector(file.path, plan.devices[number], settings, plan.options[number])
    return DetectorSide(stack.enter_context(detector))


def _open_outputs(plan: Plan) -> OutputComparison:
    size, heads = plan.input_size, plan.heads
    cuts = (None, None) if heads is None else (heads[0].head, heads[1].head)
    parts = zip(plan.files, cuts, plan.devices, plan.options, strict=True)
    left, right = (
        Probe(file, head, device, size, options) for file, head, device, options in parts
    )
    return OutputComparison(left, right, heads, plan.rules.tolerance.tensor)


def _go_through(
    plan: Plan,
    items: Iterable[Item],
    sides: Sides | None,
    outputs: OutputComparison | None,
    advance: Callable[[], None],
) -> _Found:
    """Compare on all pictures, as many at a time as the devices take."""
    found = _Found()
    chunk = max((side.chunk for side in sides or ()), default=1)
    waiting: list[tuple[Item, Picture]] = []
    for item in items:
        try:
            waiting.append((item, item.load()))
        except InputError as error:
            found.failed.append(FailedInput(item.origin.source, str(error)))
        if len(waiting) == chunk:
            _compare(plan, waiting, sides, outputs, found)
            waiting = []
        advance()
    _compare(plan, waiting, sides, outputs, found)
    return found


def _compare(
    plan: Plan,
    loaded: list[tuple[Item, Picture]],
    sides: Sides | None,
    outputs: OutputComparison | None,
    found: _Found,
) -> None:
    """Compare on some pictures."""
    found.compared += len(loaded)
    if sides is not None and loaded:
        pictures = [picture for _, picture in loaded]
        left, right = (side.detect(pictures) for side in sides)
        for (item, picture), one, other in zip(loaded, left, right, strict=True):
            compared = compare(one, other, plan.rules)
            report = picture_report(item.origin, compared, plan.rules)
            judged = Judged(len(found.pictures), item.origin, picture, compared)
            found.worst.add(report.severity(plan.rules.tolerance), judged)
            found.pictures.append(report)
    if outputs is not None:
        for item, picture in loaded:
            outputs.add(picture, item.origin.source)


def _detections(plan: Plan, found: _Found, folder: OutputFolder | None) -> DetectionsReport:
    pictures = found.pictures
    if folder is not None:
        for index, path in found.worst.save(folder, titles(plan)).items():
            pictures[index] = replace(pictures[index], drawn=str(path))
    return summarise(pictures, plan.rules)


def titles(plan: Plan) -> tuple[str, str]:
    """What to call the two sides on a picture: what tells them apart."""
    first, second = (
        f"{side}: {file.path.name}, {device}"
        + (", selection by the graph" if selection is SelectedBy.GRAPH else "")
        for side, file, device, selection in zip(
            ("left", "right"), plan.files, plan.devices, plan.selections, strict=True
        )
    )
    return first, second


def _report(  # noqa: PLR0913, PLR0917 - each is a part of the report
    plan: Plan,
    found: _Found,
    detections: DetectionsReport | None,
    refusal: str | None,
    outputs: OutputComparison | None,
    bisected: BisectReport | None,
) -> VerifyReport:
    tensors: tuple[TensorReport, ...] | None = outputs.reports if outputs is not None else None
    left, right = (
        SideReport(
            str(file.path), file.sha256, device, selection if detections else None, precision
        )
        for file, device, selection, precision in zip(
            plan.files, plan.devices, plan.selections, plan.precisions, strict=True
        )
    )
    wrong = failures(detections, tensors, bisected, plan.rules.tolerance)
    return VerifyReport(
        agree=not wrong and is_evidence(detections, tensors),
        failures=wrong,
        left=left,
        right=right,
        tolerance=plan.rules.tolerance,
        compared=found.compared,
        failed=tuple(found.failed),
        detections=detections,
        no_detections=refusal,
        tensors=tensors,
        bisect=bisected,
    )
