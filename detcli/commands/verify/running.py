"""Sides that run: where and how, and their detections and tensors on each picture."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import cast

import numpy as np

from detcli.backend import open_backend, open_tensors
from detcli.cli.console import download_progress, progress
from detcli.commands.verify.bisection import bisect
from detcli.commands.verify.class_pairs import ClassPairs, pair_classes, warn_about_differences
from detcli.commands.verify.pictures import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    CertifiedSide,
    SelectedBy,
    SideReport,
    VerifyReport,
    tolerance_of,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.tensors import OutputComparison, Probe, image_input
from detcli.compare.detections import Rules
from detcli.compare.sides import DetectorSide, GraphSide, rows_of
from detcli.config.config import Settings
from detcli.config.device import Device, DeviceOptions
from detcli.core.errors import DetcliWarning, InputError, ModelError, UsageError
from detcli.data.geometry import Picture
from detcli.data.record import Origin, Record
from detcli.model.contract import METADATA
from detcli.model.external_data import ChangedError
from detcli.model.file import ModelFile
from detcli.model.graph import known_size, shape
from detcli.model.precision import precision_in
from detcli.model.preprocessing import written
from detcli.model.zoo import find
from detcli.page.page import PagePicture
from detcli.run.batches import BatchDetector, prepare_for
from detcli.run.machine import describe_run
from detcli.source.decode import DecodeOptions
from detcli.source.guard import InputGuard
from detcli.source.loading import Item, load_in_time
from detcli.source.sources import Sources

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
    where: Device
    options: DeviceOptions
    selected_by: SelectedBy

    def open(self, settings: Settings, stack: ExitStack) -> Side:
        if self.selected_by is SelectedBy.GRAPH:
            return GraphSide(self.file, settings)
        detector = BatchDetector(self.file, self.where, settings, self.options)
        if detector.model_sha256 != self.file.identity:  # which the report names
            raise ChangedError(self.file.path)
        return DetectorSide(stack.enter_context(detector))

    def report(self) -> SideReport:
        file, device = self.file, str(self.where)
        precision = precision_in(file.model, self.where, half=self.options.half)
        return SideReport(str(file.path), file.identity, device, self.selected_by, precision)


@dataclass(frozen=True, eq=False, slots=True)
class RunningPlan:
    """A request that fits its models."""

    request: VerifyRequest
    sides: Sequence[SidePlan]
    reports: Sequence[SideReport]
    rules: Rules
    settings: Settings  # of both sides, with the lowered confidence
    classes: ClassPairs | None = None  # of the second side; None to compare class ids as they are

    @property
    def compares_heads(self) -> bool:
        """Whether tensors are compared at the heads of both graphs, instead of at their outputs.

        A network that is not a detector has no head, and comparing with a graph's own selection
        means all of the graph.
        """
        return all(
            side.file.contract is not None and side.selected_by is SelectedBy.DETCLI
            for side in self.sides
        )

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take pictures.
            UsageError: A network does not take the size that the user asked for.
        """
        files, wanted = [side.file for side in self.sides], self.settings.imgsz
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
            contract.input_shape(wanted)  # raises UsageError
        if fixed:
            return fixed.pop()
        if wanted is not None:
            return wanted, wanted
        return contracts[0].default_size if contracts else DEFAULT_SIZE

    def certified(self, side: SidePlan, report: SideReport) -> CertifiedSide:
        """What detections of a side depend on, and what makes them."""
        settings, contract = self.settings, side.file.contract
        nms = settings.suppression(contract.nms if contract else None)
        depend_on = {
            "conf": settings.conf,
            "max_det": settings.max_det,
            "nms": nms,
            "unique": contract and contract.counts_best_class(nms),
            "imgsz": settings.imgsz,
            "box_format": settings.box_format,
            "preprocess": contract and written(contract.preprocessing),
            "half": self.request.config.runtime.half,
        }
        run = describe_run([side.where], report.precision)
        return CertifiedSide(None, depend_on, cast("dict[str, str | None]", run))


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Find and read the models, and work out what to compare.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    settings, runtime = request.config.settings, request.config.runtime
    with download_progress() as show:
        files = [
            replace(
                find(name, show=show),
                box_format=settings.box_format,
                preprocess=settings.preprocess,
            )
            for name in (request.model, request.other)
            if name is not None
        ]
    first, second = files[0], files[-1]  # the same, which is read once
    classes = _paired_classes(first, second)
    wanted, selected_by = _other_side(request, second)
    device = _choose_device(runtime.device[0], first, settings)
    against = _choose_device(wanted, second, settings)
    by_graph = selected_by is SelectedBy.GRAPH
    if first is second and not by_graph and device == against:
        raise UsageError(f"both sides are the same: {first.path.name} on {device}", SIDES_HINT)
    if not (device.computes_half or against.computes_half):
        DeviceOptions(half=runtime.half).check(device)  # refuses --half
    sides = [
        SidePlan(file, where, DeviceOptions(half=runtime.half and where.computes_half), by)
        for file, where, by in (
            (first, device, SelectedBy.DETCLI),
            (second, against, selected_by),
        )
    ]
    reports = [side.report() for side in sides]
    most = (rows_of(second) if by_graph else None) or settings.max_det
    conf = settings.effective_conf(first.contract.min_conf if first.contract else None)
    rules = Rules(conf, request.iou, most, tolerance_of(reports, request.tolerance))
    lowered = replace(settings, conf=rules.lowered_conf, max_det=most)
    return RunningPlan(request, sides, reports, rules, lowered, classes)


def _other_side(request: VerifyRequest, second: ModelFile) -> tuple[Device, SelectedBy]:
    """Where the second side runs, and what selects its detections, by request or by default."""
    against, own = request.against, second.contract is not None and second.selection is not None
    if against == GRAPH and not own:
        raise UsageError(
            f"{second.path.name} has no selection of its own to compare with: its layout is "
            f"{second.detector().layout}",
            "name another MODEL, or another device with --against",
        )
    if against is None and request.other is None:
        if not own:
            raise UsageError(f"nothing to compare {second.path.name} with", SIDES_HINT)
        against = GRAPH
    if against == GRAPH and request.other is None and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )
    if against == GRAPH:
        return Device.parse("cpu"), SelectedBy.GRAPH
    device = Device.parse(against) if against else request.config.runtime.device[0]
    return device, SelectedBy.DETCLI


def _paired_classes(first: ModelFile, second: ModelFile) -> ClassPairs | None:
    """How the classes of the second model are those of the first; None without names of both."""
    if first is second or first.contract is None or second.contract is None:
        return None
    if {first.contract.names_origin, second.contract.names_origin} != {METADATA}:
        return None
    names = first.contract.names, second.contract.names
    pairs = pair_classes(*names)
    warn_about_differences(pairs, *names)
    return pairs


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


def verify_running(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Run both sides and compare, with a bar on a terminal."""
    plan, config, seed = plan_running(request), request.config, request.random
    decode = DecodeOptions(config.inputs, keep=request.certifies)
    with (
        open_results(request, inputs, plan.rules, plan.reports) as results,
        Sources(request.images, config.inputs, config.outputs.written, decode) as sources,
        progress(lambda: sources.progress.total, enabled=not config.verbosity.quiet) as advance,
    ):
        items = sources if seed is None else [random_item(seed, plan.input_size)]
        made = compare_running(plan, items, results, advance)
    if results.certifies:
        made.left, made.right = map(plan.certified, plan.sides, plan.reports)
    return made


def random_item(seed: int, size: tuple[int, int]) -> Item:
    """A picture of (height, width) random pixels, the same for the same seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Item(Origin(f"random:{seed}"), lambda: Picture.whole(pixels))


def compare_running(
    plan: RunningPlan,
    items: Iterable[Item],
    results: Results,
    advance: Callable[[], None] = lambda: None,
) -> Certificate:
    """Run both sides on all pictures and compare; those that cannot be read are reported.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: The page cannot be written.
        UsageError: The settings do not fit a model.
    """
    request, report, outputs = plan.request, results.report, None
    pictures = _load(items, results, advance)
    with ExitStack() as stack:
        sides = _open_sides(plan, stack, report)
        if request.compares_tensors:
            size, at_head = plan.input_size, plan.compares_heads
            left, right = (
                Probe(side.file, size, side.where, side.options, at_head=at_head)
                for side in plan.sides
            )
            outputs = OutputComparison(left, right, plan.rules.tolerance.tensor)
        chunk = max((side.chunk for side in sides), default=1)  # all that devices take at a time
        while loaded := [*islice(pictures, chunk)]:
            found = [side.detect([picture for _, picture in loaded]) for side in sides]
            if found and plan.classes is not None:
                found[1] = [plan.classes.with_first_ids(detections) for detections in found[1]]
            for (item, picture), *pair in zip(loaded, *found, strict=True):
                if pair:
                    results.certify(item.origin, picture=picture)
                    fields = Record(item.origin, 0, "", "", picture, pair[0]).to_json()
                    shown = partial(PagePicture, picture.pixels, item.origin.path)
                    results.add(fields, pair, shown)
                else:
                    report.compared += 1
                if outputs is not None:
                    outputs.add(picture, item.origin.source)
        if outputs is not None:
            report.tensors = outputs.reports
            report.bisect = bisect(outputs) if request.bisect else None
    return results.finish()


def _open_sides(plan: RunningPlan, stack: ExitStack, report: VerifyReport) -> list[Side]:
    """Both sides, or none where the report says why detections are not compared."""
    if plan.request.random is None:
        try:
            return [side.open(plan.settings, stack) for side in plan.sides]
        except ModelError as error:
            if not plan.request.compares_tensors:
                raise  # a network that is not a detector still has tensors
            report.no_detections = str(error)
    else:
        report.no_detections = "random pictures cannot compare detections"
    report.left, report.right = (replace(side, selection=None) for side in plan.reports)
    return []


def _load(
    items: Iterable[Item], results: Results, advance: Callable[[], None]
) -> Iterator[tuple[Item, Picture]]:
    """The pictures of items; those that cannot be read are noted."""
    for item in items:
        try:
            picture = load_in_time(item)
        except InputError as error:
            results.fail(item.origin, error)
        else:
            for warning in picture.warnings:
                warnings.warn(f"{item.origin.source}: {warning}", DetcliWarning, stacklevel=3)
            yield item, picture
        advance()
