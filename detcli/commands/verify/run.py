"""Runs a verification: opens both sides, compares them on each picture, adds up."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import PurePath

import numpy as np

from detcli.commands.shared.comparison import DetectionsReport, Tolerance
from detcli.commands.shared.sides import DetectorSide, GraphSide
from detcli.commands.verify.bisect import bisect
from detcli.commands.verify.pictures import SeenPicture
from detcli.commands.verify.plan import Plan, SidePlan
from detcli.commands.verify.probe import Probe
from detcli.commands.verify.report import (
    BisectReport,
    DecodersReport,
    FailedInput,
    SelectedBy,
    SideReport,
    TensorReport,
    VerifyReport,
)
from detcli.commands.verify.results import Results
from detcli.commands.verify.tensors import OutputComparison
from detcli.detector import Detector
from detcli.errors import DecodeError, DetcliWarning, InputError, ModelError
from detcli.geometry import Decoder, Picture
from detcli.opencv import cv2
from detcli.settings import Settings
from detcli.sink.folder import OutputFolder
from detcli.source.item import Item
from detcli.source.loading import load_in_time

Side = DetectorSide | GraphSide


def verify(
    plan: Plan,
    items: Iterable[tuple[Item, Item]],
    folder: OutputFolder | None = None,
    results: Results | None = None,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Run both sides on all pictures and compare.

    Args:
        plan: The sides, and how strictly to compare.
        items: The pictures for the first side and for the second, which are one item unless they
            are decoded differently; those that cannot be read are reported.
        folder: Where to draw the worst pictures; None for nowhere.
        results: Gets what is compared; None to keep it for the report only.
        advance: Called after each picture.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: A picture cannot be written.
        UsageError: The settings do not fit a model.
    """
    tolerance = plan.rules.tolerance
    with ExitStack() as stack:
        sides, refusal = _open_sides(plan, stack)
        outputs = None
        if plan.request.compares_tensors:
            size, at_head = plan.input_size, plan.compares_heads
            one, other = (Probe(side, size, at_head=at_head) for side in (plan.left, plan.right))
            outputs = OutputComparison(one, other, tolerance.tensor)
        results = results or Results(plan.rules)
        run = _Run(sides, outputs, results)
        run.go_through(items, advance)
        bisected = bisect(outputs) if outputs is not None and plan.request.bisect else None
    left, right = side_reports(plan)
    detections = None
    if sides is not None:
        detections = results.summarise(folder, titles(left, right))
    tensors = outputs.reports if outputs is not None else None
    wrong = failures(detections, tensors, bisected, tolerance)
    decoders = run.decoders.report() if plan.request.gpu_decode else None
    if decoders is not None and run.compared and not decoders.gpu:
        wrong = (*wrong, "the GPU decoded none of the pictures")
    if results.page is not None:
        results.page.summary = wrong or ("The two sides agree",)
    return VerifyReport(
        agree=not wrong and is_evidence(detections, tensors),
        failures=wrong,
        left=left if detections is not None else replace(left, selection=None),
        right=right if detections is not None else replace(right, selection=None),
        tolerance=tolerance,
        compared=run.compared,
        failed=tuple(run.failed),
        unlike=(),
        left_only=(),
        right_only=(),
        other_files=(),
        detections=detections,
        no_detections=refusal,
        tensors=tensors,
        bisect=bisected,
        decoders=decoders,
    )


def side_reports(plan: Plan) -> tuple[SideReport, SideReport]:
    """What the report says of both sides."""
    left, right = (
        SideReport(
            model=str(side.model.path),
            sha256=side.file.sha256,
            device=side.device,
            selection=side.selected_by,
            precision=side.precision,
        )
        for side in (plan.left, plan.right)
    )
    return left, right


def _open_sides(plan: Plan, stack: ExitStack) -> tuple[tuple[Side, Side] | None, str | None]:
    """Both sides, or why detections are not compared."""
    if plan.request.random:
        return None, "random pictures cannot compare detections"
    try:
        left = _open_side(plan.left, plan.settings, stack)
        return (left, _open_side(plan.right, plan.settings, stack)), None
    except ModelError as error:
        if not plan.request.compares_tensors:
            raise  # a network that is not a detector still has tensors
        return None, str(error)


def _open_side(side: SidePlan, settings: Settings, stack: ExitStack) -> Side:
    if side.selected_by is SelectedBy.GRAPH:
        return GraphSide(side.file, settings)
    detector = Detector(side.model, side.device, settings, side.options)
    return DetectorSide(stack.enter_context(detector))


class _Run:
    """Compares the sides on the pictures."""

    def __init__(
        self,
        sides: tuple[Side, Side] | None,
        outputs: OutputComparison | None,
        results: Results,
    ) -> None:
        self.compared = 0
        self.failed: list[FailedInput] = []
        self.decoders = DecoderComparison()
        self._sides, self._outputs, self._results = sides, outputs, results

    def go_through(self, items: Iterable[tuple[Item, Item]], advance: Callable[[], None]) -> None:
        """Compare on all pictures, as many at a time as the devices take."""
        chunk = max((side.chunk for side in self._sides or ()), default=1)
        loaded: list[tuple[Item, Picture, Picture]] = []
        for left, item in items:
            try:
                picture = load_in_time(item)
                other = picture if left is item else load_in_time(left)
                if other.size != picture.size:
                    raise DecodeError("the two decoders do not agree on its size")
            except InputError as error:
                self.failed.append(FailedInput(item.origin.source, str(error)))
                if self._results.page is not None:
                    self._results.page.fail(item.origin, error)
            else:
                loaded.append((item, other, picture))
                for warning in picture.warnings:
                    text = f"{item.origin.source}: {warning}"
                    warnings.warn(text, DetcliWarning, stacklevel=2)
            if len(loaded) == chunk:
                self._compare(loaded)
                loaded = []
            advance()
        self._compare(loaded)

    def _compare(self, loaded: list[tuple[Item, Picture, Picture]]) -> None:
        self.compared += len(loaded)
        if self._sides is not None and loaded:
            _, *pictures = zip(*loaded, strict=True)  # of the left side and of the right
            sides = zip(self._sides, pictures, strict=True)
            found = (side.detect(shown) for side, shown in sides)
            for (item, by_gpu, picture), left, right in zip(loaded, *found, strict=True):
                self.decoders.add(by_gpu, picture)
                seen = SeenPicture(
                    item.origin, picture.size, partial(_as_it_is, picture), picture.warnings
                )
                self._results.certify(item.origin)
                self._results.add(seen, left, right)
        if self._outputs is not None:
            for item, _, picture in loaded:
                self._outputs.add(picture, item.origin.source)


class DecoderComparison:
    """Compares the pixels of two decoders."""

    def __init__(self) -> None:
        self._decoded: Counter[Decoder | None] = Counter()
        self._sum = self._values = self._largest = 0

    def add(self, by_gpu: Picture, picture: Picture) -> None:
        """Compare a picture that a GPU was asked to decode with that of the CPU."""
        self._decoded[by_gpu.decoder] += 1
        if by_gpu.decoder is Decoder.GPU:
            apart = cv2.absdiff(by_gpu.pixels, picture.pixels)
            self._sum += int(apart.sum(dtype=np.int64))
            self._values += apart.size
            self._largest = max(self._largest, int(apart.max()))

    def report(self) -> DecodersReport:
        """What was found."""
        mean = self._sum / self._values if self._values else None
        largest = self._largest if self._values else None
        return DecodersReport(self._decoded[Decoder.GPU], self._decoded[Decoder.CPU], mean, largest)


def _as_it_is(picture: Picture) -> Picture:
    return picture


def titles(left: SideReport, right: SideReport) -> tuple[str, str]:
    """The names of both sides in the legend of a drawn picture."""
    return f"left: {_title(left)}", f"right: {_title(right)}"


def _title(side: SideReport) -> str:
    names = side.records and PurePath(side.records).name, PurePath(side.model).name, side.device
    graph = "selection by the graph" if side.selection is SelectedBy.GRAPH else None
    return ", ".join(filter(None, (*names, graph)))


def failures(
    detections: DetectionsReport | None,
    tensors: Sequence[TensorReport] | None,
    bisected: BisectReport | None,
    tolerance: Tolerance,
) -> tuple[str, ...]:
    """What exceeds the tolerance, one sentence each; empty if both sides agree."""
    found = [] if detections is None else detections.failures(tolerance)
    for tensor in tensors or ():
        if not tensor.agrees:
            found.append(_tensor_failure(tensor, tolerance))
        elif tensor.left.nan + tensor.left.infinite and tensor.max_absolute is None:
            found.append(f"{tensor.name}: no value is finite on either side")
    if bisected is not None and bisected.node is not None:
        found.append(
            f"{bisected.node.operator} {bisected.node.name} is the first node that differs: "
            f"{bisected.finding}"
        )
    return tuple(found)


def _tensor_failure(tensor: TensorReport, tolerance: Tolerance) -> str:
    if tensor.left.shape != tensor.right.shape:
        return f"{tensor.name}: {list(tensor.left.shape)} and {list(tensor.right.shape)}"
    if tensor.max_scaled is not None and tensor.max_scaled > tolerance.tensor:
        return (
            f"{tensor.name}: differs by {tensor.max_scaled:.3g} of its largest magnitude "
            f"({tolerance.tensor:g} allowed)"
        )
    left, right = (f"{side.nan} NaN and {side.infinite} infinities" for side in tensor.sides)
    return f"{tensor.name}: {left} on the left, {right} on the right"


def is_evidence(
    detections: DetectionsReport | None, tensors: Sequence[TensorReport] | None
) -> bool:
    """Whether anything was compared: two sides that find nothing always agree."""
    found = detections
    boxes = found.pairs + found.borderline + found.missing + found.extra if found else 0
    return boxes > 0 or any(tensor.max_absolute is not None for tensor in tensors or ())
