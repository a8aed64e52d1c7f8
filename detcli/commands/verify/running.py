"""Sides that run: where and how, and their detections and tensors on each picture."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from detcli.backend import open_backend, open_tensors
from detcli.cli.messages import fetching, progress
from detcli.commands.verify.pictures import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    CertifiedSide,
    SelectedBy,
    SideReport,
    VerifyReport,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.tensors import OutputComparison, Probe, bisect, image_input
from detcli.core.comparison import Precision, Rules, tolerance_for
from detcli.core.config import Settings
from detcli.core.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, InputError, ModelError, UsageError
from detcli.core.geometry import Picture
from detcli.core.record import Origin, iso_time
from detcli.model.contract import METADATA
from detcli.model.file import ModelFile
from detcli.model.graph import known_size, shape
from detcli.model.preprocessing import written
from detcli.model.zoo import find
from detcli.run import source_options
from detcli.run.detector import Detector, prepare_for
from detcli.run.machine import describe_run
from detcli.run.sides import DetectorSide, GraphSide, precision_in, rows_of
from detcli.source.loading import Item, load_in_time
from detcli.source.sources import InputGuard, Sources

GRAPH = "graph"  # the value of --against, in place of a device, for the graph's own selection
DEFAULT_SIZE = (640, 640)  # input size of a dynamic graph that is not a detector

SIDES_HINT = (
    "name OTHER, a second model; or --against cpu, cuda, tensorrt or openvino, a second device; or "
    "--against graph, if the model selects boxes itself, which detcli does in its place"
)


Side = DetectorSide | GraphSide


@dataclass(frozen=True, eq=False, slots=True)
class SidePlan:
    """One side: a model, where it runs, and what selects its detections."""

    file: ModelFile
    device: str = "cpu"  # as `str` of a Device
    options: DeviceOptions = field(default_factory=DeviceOptions)
    selected_by: SelectedBy = SelectedBy.DETCLI

    @property
    def precision(self) -> Precision:
        device = Device.parse(self.device)
        return precision_in(self.file.model, device, half=self.options.half)

    def open(self, settings: Settings, stack: ExitStack) -> Side:
        if self.selected_by is SelectedBy.GRAPH:
            return GraphSide(self.file, settings)
        detector = Detector(self.file, self.device, settings, self.options)
        return DetectorSide(stack.enter_context(detector))

    def report(self) -> SideReport:
        return SideReport(
            str(self.file.path), self.file.sha256, self.device, self.selected_by, self.precision
        )


@dataclass(frozen=True, eq=False, slots=True)
class RunningPlan:
    """A request that fits its models."""

    request: VerifyRequest
    left: SidePlan
    right: SidePlan
    rules: Rules
    settings: Settings  # of both sides, with the lowered confidence

    @property
    def compares_heads(self) -> bool:
        """Whether tensors are compared at the heads of both graphs, instead of at their outputs.

        A network that is not a detector has no head, and comparing with a graph's own selection
        means all of the graph.
        """
        contracts = self.left.file.contract, self.right.file.contract
        return None not in contracts and self.right.selected_by is SelectedBy.DETCLI

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take pictures.
            UsageError: A network does not take the size that the user asked for.
        """
        files, wanted = (self.left.file, self.right.file), self.settings.imgsz
        sizes = [[known_size(dim) for dim in shape(image_input(file))[2:]] for file in files]
        fixed = {(height, width) for height, width in sizes if height and width}
        if len(fixed) > 1:
            texts = " and ".join(f"{width}x{height}" for height, width in sorted(fixed))
            raise ModelError(
                f"the models take inputs of different sizes, {texts}: their tensors cannot be "
                "compared",
                "compare their detections, without --tensors and --bisect",
            )
        contracts = [file.contract for file in files if file.contract is not None]
        for contract in contracts if wanted is not None else ():
            contract.canvas(wanted)  # raises UsageError
        if fixed:
            return fixed.pop()
        if wanted is not None:
            return wanted, wanted
        return contracts[0].default_size if contracts else DEFAULT_SIZE

    def certified(self, side: SidePlan) -> CertifiedSide:
        settings, contract = self.settings, side.file.contract
        depend_on: dict[str, Any] = {
            "conf": settings.conf,
            "max_det": settings.max_det,
            "nms": settings.suppression(contract.nms if contract else None),
            "imgsz": settings.imgsz,
            "box_format": settings.box_format,
            "preprocess": contract and written(contract.preprocessing),
            "half": self.request.config.running.half,
        }
        run = describe_run([Device.parse(side.device)], side.precision)
        return CertifiedSide(None, depend_on, dict(run))  # type: ignore[arg-type]


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Find and read the models, and work out what to compare.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    settings, running = request.config.settings, request.config.running
    box_format, preprocess = settings.box_format, settings.preprocess
    with fetching() as show:
        first, second = (
            replace(find(name, show=show), box_format=box_format, preprocess=preprocess)
            for name in (request.model, request.other or request.model)
        )
    if request.other is None:
        second = first  # which is read once
    _warn_about_classes(first, second)
    by_graph = _compares_with_graph(request, second)
    device = _choose_device(running.device[0], first, settings)
    against = Device.parse("cpu")
    if not by_graph:
        against = Device.parse(request.against) if request.against else running.device[0]
        against = _choose_device(against, second, settings)
    if request.other is None and not by_graph and device == against:
        raise UsageError(f"both sides are the same: {first.path.name} on {device}", SIDES_HINT)
    if request.other is None and by_graph and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )
    if not (device.computes_half or against.computes_half):
        DeviceOptions(half=running.half).check(device)  # refuses --half
    left, right = (
        SidePlan(file, str(where), DeviceOptions(half=running.half and where.computes_half), by)
        for file, where, by in (
            (first, device, SelectedBy.DETCLI),
            (second, against, SelectedBy.GRAPH if by_graph else SelectedBy.DETCLI),
        )
    )
    max_det = (rows_of(second) if by_graph else None) or settings.max_det
    tolerance = tolerance_for({left.precision, right.precision}, request.tolerance or {})
    conf = settings.confidence(first.contract.conf if first.contract else None)
    rules = Rules(conf, request.iou, max_det, tolerance)
    lowered = replace(settings, conf=rules.lowered_conf, max_det=max_det)
    return RunningPlan(request, left, right, rules, lowered)


def _compares_with_graph(request: VerifyRequest, second: ModelFile) -> bool:
    """Whether the second side is the graph's own selection, by request or by default."""
    own = second.contract is not None and second.selection is not None
    if request.against == GRAPH and not own:
        raise UsageError(
            f"{second.path.name} has no selection of its own to compare with: its layout is "
            f"{second.detector().layout}",
            "name another MODEL, or another device with --against",
        )
    if request.against is not None or request.other is not None:
        return request.against == GRAPH
    if own:
        return True
    raise UsageError(f"nothing to compare {second.path.name} with", SIDES_HINT)


def _warn_about_classes(first: ModelFile, second: ModelFile) -> None:
    """Warn where one class id, by which detections are paired, has two names."""
    contracts = [file.contract for file in (first, second)]
    if any(one is None or one.names_origin != METADATA for one in contracts):
        return
    pairs = enumerate(zip(*(one.names for one in contracts if one), strict=False))
    if different := [(index, one, other) for index, (one, other) in pairs if one != other]:
        index, one, other = different[0]
        warnings.warn(
            f"classes are compared by id, and {len(different)} have different names: "
            f"{index} is '{one}' and '{other}'",
            DetcliWarning,
            stacklevel=3,
        )


def _choose_device(device: Device, file: ModelFile, settings: Settings) -> Device:
    """The device; for auto, the one on which the model loads, as in predict."""
    if not device.is_auto:
        return device
    if file.contract is None:
        session = open_tensors(device, file.model.SerializeToString(), file.path.name)
        return Device.parse(session.device)
    backend = open_backend(device, prepare_for(file, settings))
    backend.close()
    return Device.parse(backend.device)


def verify_running(request: VerifyRequest, inputs: InputGuard, *, certify: bool) -> Certificate:
    """Run both sides and compare, with a bar on a terminal."""
    plan, config = plan_running(request), request.config
    sides, page = (plan.left.report(), plan.right.report()), config.writing.report
    with (
        open_results(page, inputs, plan.rules, sides, certify=certify) as results,
        Sources(request.images, source_options(config)) as sources,
        progress(lambda: sources.progress.total, wanted=not config.messages.quiet) as advance,
    ):
        seed = request.random
        items = sources if seed is None else [random_item(seed, plan.input_size)]
        report = compare_running(plan, items, results, advance)
    left = right = CertifiedSide()
    if certify:
        left, right = map(plan.certified, (plan.left, plan.right))
    date = iso_time(datetime.now(UTC))
    return Certificate(date, request.to_json(), left, right, tuple(results.certified), report)


def random_item(seed: int, size: tuple[int, int]) -> Item:
    """A picture of (height, width) random pixels, the same for the same seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Item(Origin(f"random:{seed}"), lambda: Picture.whole(pixels))


def compare_running(
    plan: RunningPlan,
    items: Iterable[Item],
    results: Results | None = None,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Run both sides on all pictures and compare; those that cannot be read are reported.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: The page cannot be written.
        UsageError: The settings do not fit a model.
    """
    results = results or Results(plan.rules)
    request, both = plan.request, (plan.left, plan.right)
    outputs = bisected = None
    count = 0
    with ExitStack() as stack:
        sides, refusal = _open_sides(plan, stack)
        if request.compares_tensors:
            size, at_head = plan.input_size, plan.compares_heads
            left, right = (
                Probe(side.file, size, side.device, side.options, at_head=at_head) for side in both
            )
            outputs = OutputComparison(left, right, plan.rules.tolerance.tensor)
        chunk = max((side.chunk for side in sides), default=1)
        for loaded in _chunks(items, chunk, results, advance):
            count += len(loaded)
            found = [side.detect([picture for _, picture in loaded]) for side in sides]
            for (item, picture), *pair in zip(loaded, *found, strict=True):
                if pair:
                    results.certify(item.origin)
                    results.add(item.origin, picture.size, pair, picture, picture.warnings)
                if outputs is not None:
                    outputs.add(picture, item.origin.source)
        if outputs is not None and request.bisect:
            bisected = bisect(outputs)
    reports = [side.report() for side in both]
    if not sides:
        reports = [replace(report, selection=None) for report in reports]
    report = VerifyReport(
        left=reports[0],
        right=reports[1],
        tolerance=plan.rules.tolerance,
        compared=count,
        failed=tuple(results.failed),
        detections=results.detections() if sides else None,
        no_detections=refusal,
        tensors=None if outputs is None else outputs.reports,
        bisect=bisected,
    )
    return results.judge(report)


def _open_sides(plan: RunningPlan, stack: ExitStack) -> tuple[list[Side], str | None]:
    """Both sides, or none, and why detections are not compared."""
    if plan.request.random is not None:
        return [], "random pictures cannot compare detections"
    try:
        return [side.open(plan.settings, stack) for side in (plan.left, plan.right)], None
    except ModelError as error:
        if not plan.request.compares_tensors:
            raise  # a network that is not a detector still has tensors
        return [], str(error)


def _chunks(
    items: Iterable[Item], size: int, results: Results, advance: Callable[[], None]
) -> Iterator[list[tuple[Item, Picture]]]:
    """Pictures, as many at a time as the devices take; those that cannot be read are noted."""
    loaded: list[tuple[Item, Picture]] = []
    for item in items:
        try:
            picture = load_in_time(item)
        except InputError as error:
            results.fail(item.origin.source, item.origin, error)
        else:
            loaded.append((item, picture))
            for warning in picture.warnings:
                text = f"{item.origin.source}: {warning}"
                warnings.warn(text, DetcliWarning, stacklevel=3)
        if len(loaded) == size:
            yield loaded
            loaded = []
        advance()
    if loaded:
        yield loaded
