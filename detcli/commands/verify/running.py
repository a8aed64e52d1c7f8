"""What to verify: the two sides and how strictly to compare them."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from detcli.backend import open_backend, open_tensors
from detcli.backend.device import Device, DeviceOptions
from detcli.commands.shared.comparison import Rules, tolerance_for
from detcli.commands.shared.progress import progress
from detcli.commands.shared.provenance import describe_run
from detcli.commands.shared.setup import find_model
from detcli.commands.shared.sides import DetectorSide, GraphSide, rows_of
from detcli.commands.verify.pictures import (
    Results,
    SeenPicture,
    Verification,
    failures,
    is_evidence,
    open_page,
)
from detcli.commands.verify.report import (
    CertifiedSide,
    FailedInput,
    Outputs,
    SelectedBy,
    SideReport,
    VerifyReport,
    VerifyRequest,
)
from detcli.commands.verify.tensors import OutputComparison, Probe, SidePlan, bisect, image_input
from detcli.detector import Detector, prepare_for
from detcli.errors import DetcliWarning, InputError, ModelError, UsageError
from detcli.geometry import Picture
from detcli.model.graph import known_size, shape
from detcli.model.loading import ModelFile
from detcli.model.names import METADATA
from detcli.model.preprocessing import written
from detcli.model.zoo import LocatedModel
from detcli.record import Origin
from detcli.settings import Settings
from detcli.source.item import Item, SourceOptions
from detcli.source.loading import load_in_time
from detcli.source.sources import InputGuard, Sources

GRAPH = "graph"
"""The value of --against, in place of a device, for the graph's own selection."""

DEFAULT_SIZE = (640, 640)
"""Input size of a dynamic graph that is not a detector."""

SIDES_HINT = (
    "name OTHER, a second model; or --against cpu, cuda, tensorrt or openvino, a second device; or "
    "--against graph, if the model selects boxes itself, which detcli does in its place"
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


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Find and read the models, and work out what to compare.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    settings = request.settings
    model = find_model(request.model)
    other = model if request.other is None else find_model(request.other)
    first = second = ModelFile.read(model.path, settings.box_format, settings.preprocess)
    if request.other is not None:
        second = ModelFile.read(other.path, settings.box_format, settings.preprocess)
    _warn_about_classes(first, second)
    by_graph = _compares_with_graph(request, second)
    device = _choose_device(request.device, model, first, settings)
    against = Device.parse("cpu")
    if not by_graph:
        against = _choose_device(request.against or request.device, other, second, settings)
    alike = request.other is None and not by_graph and device == against
    if alike:
        raise UsageError(f"both sides are the same: {first.path.name} on {device}", SIDES_HINT)
    if request.other is None and by_graph and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )
    half = DeviceOptions(half=request.half)
    if not (device.computes_half or against.computes_half):
        half.check(device)  # refuses --half

    def side(
        model: LocatedModel, file: ModelFile, where: Device, selected_by: SelectedBy
    ) -> SidePlan:
        options = half if where.computes_half else DeviceOptions()
        return SidePlan(model, file, str(where), options, selected_by)

    left = side(model, first, device, SelectedBy.DETCLI)
    right = side(other, second, against, SelectedBy.GRAPH if by_graph else SelectedBy.DETCLI)
    max_det = (rows_of(second) if by_graph else None) or settings.max_det
    tolerance = tolerance_for({left.precision, right.precision}, request.tolerance)
    contract = first.contract
    conf = settings.confidence(contract.conf if contract else None)
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


def _choose_device(name: str, model: LocatedModel, file: ModelFile, settings: Settings) -> Device:
    """The device with a name; for auto, the one on which the model loads, as in predict."""
    device = Device.parse(name)
    if not device.is_auto:
        return device
    if file.contract is None:
        session = open_tensors(device, file.model.SerializeToString(), file.path.name)
        return Device.parse(session.device)
    backend = open_backend(device, prepare_for(model, settings))
    backend.close()
    return Device.parse(backend.device)


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
