"""Runs both sides and compares them on each picture."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from detcli.backend.device import Device
from detcli.commands.shared.progress import progress
from detcli.commands.shared.provenance import describe_run
from detcli.commands.shared.sides import DetectorSide, GraphSide
from detcli.commands.verify.page import SeenPicture, open_page
from detcli.commands.verify.report import (
    CertifiedSide,
    FailedInput,
    SelectedBy,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.request import Outputs, VerifyRequest
from detcli.commands.verify.results import Results, Verification, failures, is_evidence
from detcli.commands.verify.running.bisect import bisect
from detcli.commands.verify.running.plan import RunningPlan, SidePlan, plan_running
from detcli.commands.verify.running.tensors import OutputComparison, Probe
from detcli.detector import Detector
from detcli.errors import DetcliWarning, InputError, ModelError, UsageError
from detcli.geometry import Picture
from detcli.model.preprocessing import written
from detcli.record import Origin
from detcli.settings import Settings
from detcli.source.item import Item, SourceOptions
from detcli.source.loading import load_in_time
from detcli.source.sources import InputGuard, Sources

Side = DetectorSide | GraphSide


def verify_running(
    request: VerifyRequest, outputs: Outputs, *, certify: bool, quiet: bool
) -> Verification:
    """Run both sides and compare, with a bar on a terminal.

    Args:
        request: What to compare.
        outputs: What to write; a certificate is written by whoever asks for one.
        certify: Whether to find out what a certificate says.
        quiet: Show no bar.

    Raises:
        DetcliError: Something cannot be compared or written; see `plan_running` and
            `compare_running`.
    """
    if outputs.report is not None and request.random is not None:
        raise UsageError(
            "--report shows detections, and random pictures have none",
            "name a folder with --images",
        )
    plan = plan_running(request)
    written = tuple(filter(None, [outputs.report]))
    options = SourceOptions(recursive=request.recursive, written=written)
    guard = InputGuard([*request.images, request.model, *filter(None, [request.other])], options)
    outputs.check(guard)
    with (
        open_page(outputs.report, side_reports(plan), plan.rules, guard) as page,
        Sources(list(request.images), options) as sources,
        progress(lambda: sources.progress.total, wanted=not quiet) as advance,
    ):
        seed = request.random
        items = sources if seed is None else [random_item(seed, plan.input_size)]
        results = Results(plan.rules, page, certify=certify)
        report = compare_running(plan, items, results, advance)
    if not certify:
        return Verification(report, results, ())
    sides = (_certified(side, plan) for side in (plan.left, plan.right))
    return Verification(report, results, tuple(sides))


def random_item(seed: int, size: tuple[int, int]) -> Item:
    """A picture of (height, width) random pixels, the same for the same seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Item(Origin(f"random:{seed}"), lambda: Picture.whole(pixels))


def _certified(side: SidePlan, plan: RunningPlan) -> CertifiedSide:
    """What a certificate says of a side that ran."""
    run = describe_run([Device.parse(side.device)], side.precision)
    settings, contract = plan.settings, side.file.contract
    depend_on: dict[str, Any] = {
        "conf": settings.conf,
        "max_det": settings.max_det,
        "nms": settings.suppression(contract.nms if contract else None),
        "imgsz": settings.imgsz,
        "box_format": settings.box_format,
        "preprocess": contract and written(contract.preprocessing),
        "half": plan.request.half,
    }
    return CertifiedSide(None, depend_on, dict(run))  # type: ignore[arg-type]


def compare_running(
    plan: RunningPlan,
    items: Iterable[Item],
    results: Results | None = None,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Run both sides on all pictures and compare.

    Args:
        plan: The sides, and how strictly to compare.
        items: The pictures; those that cannot be read are reported.
        results: Gets what is compared; None to keep it for the report only.
        advance: Called after each picture.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: The page cannot be written.
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
        detections = results.summarise()
    tensors = outputs.reports if outputs is not None else None
    wrong = failures(detections, tensors, bisected, tolerance)
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
        detections=detections,
        no_detections=refusal,
        tensors=tensors,
        bisect=bisected,
    )


def side_reports(plan: RunningPlan) -> tuple[SideReport, SideReport]:
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


def _open_sides(plan: RunningPlan, stack: ExitStack) -> tuple[tuple[Side, Side] | None, str | None]:
    """Both sides, or why detections are not compared."""
    if plan.request.random is not None:
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
        self._sides, self._outputs, self._results = sides, outputs, results

    def go_through(self, items: Iterable[Item], advance: Callable[[], None]) -> None:
        """Compare on all pictures, as many at a time as the devices take."""
        chunk = max((side.chunk for side in self._sides or ()), default=1)
        loaded: list[tuple[Item, Picture]] = []
        for item in items:
            try:
                picture = load_in_time(item)
            except InputError as error:
                self.failed.append(FailedInput(item.origin.source, str(error)))
                if self._results.page is not None:
                    self._results.page.fail(item.origin, error)
            else:
                loaded.append((item, picture))
                for warning in picture.warnings:
                    text = f"{item.origin.source}: {warning}"
                    warnings.warn(text, DetcliWarning, stacklevel=2)
            if len(loaded) == chunk:
                self._compare(loaded)
                loaded = []
            advance()
        self._compare(loaded)

    def _compare(self, loaded: list[tuple[Item, Picture]]) -> None:
        self.compared += len(loaded)
        if self._sides is not None and loaded:
            pictures = [picture for _, picture in loaded]
            found = (side.detect(pictures) for side in self._sides)
            for (item, picture), left, right in zip(loaded, *found, strict=True):
                seen = SeenPicture(
                    item.origin, picture.size, partial(_as_it_is, picture), picture.warnings
                )
                self._results.certify(item.origin)
                self._results.add(seen, left, right)
        if self._outputs is not None:
            for item, picture in loaded:
                self._outputs.add(picture, item.origin.source)


def _as_it_is(picture: Picture) -> Picture:
    return picture
