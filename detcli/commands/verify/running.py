"""Compares two models that run, or one in two ways: detections and tensors on each image."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from detcli.backend import open_backend, open_tensors
from detcli.cli.console import download_progress, progress
from detcli.commands.verify.bisection import bisect
from detcli.commands.verify.class_pairs import ClassPairs, pair_classes, warn_about_differences
from detcli.commands.verify.images import Results, open_results
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
from detcli.compare.sides import DetectorSide, GraphSide, max_detections_of_graph
from detcli.config.config import Settings, effective_conf, suppression_iou
from detcli.config.device import Device, DeviceOptions, check_device_options
from detcli.config.values import Tolerance
from detcli.core.errors import DetcliWarning, InputError, ModelError, UsageError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record
from detcli.model.contract import METADATA, Contract
from detcli.model.external_data import ChangedError
from detcli.model.file import ModelFile
from detcli.model.graph import known_size, shape
from detcli.model.precision import precision_in
from detcli.model.preprocessing import written
from detcli.model.zoo import find
from detcli.page.page import PageImage
from detcli.run.batches import BatchDetector
from detcli.run.machine import describe_run
from detcli.run.model_settings import prepare_for
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
"""What detects in images: detcli, or a graph that selects its own boxes."""


@dataclass(frozen=True, eq=False, slots=True)
class SidePlan:
    """One side of the comparison: a model, where it runs, and what selects its boxes."""

    file: ModelFile
    device: Device
    options: DeviceOptions
    selected_by: SelectedBy

    def open(self, settings: Settings, stack: ExitStack) -> Side:
        """Load the model, so that it can detect; `stack` closes it in the end.

        Raises:
            ChangedError: The model's file has changed since it was read, and so is not the one
                that the report names.
        """
        if self.selected_by is SelectedBy.GRAPH:
            return GraphSide(self.file, settings)
        detector = BatchDetector(self.file, self.device, settings, self.options)
        if detector.model_sha256 != self.file.identity:
            raise ChangedError(self.file.path)
        return DetectorSide(stack.enter_context(detector))

    def report(self) -> SideReport:
        """What the comparison's report says of this side."""
        return SideReport(
            model=str(self.file.path),
            sha256=self.file.identity,
            device=str(self.device),
            selection=self.selected_by,
            precision=precision_in(self.file.model, self.device, half=self.options.half),
        )


@dataclass(frozen=True, eq=False, slots=True)
class RunningPlan:
    """What to compare: a request, checked against the models that it names."""

    request: VerifyRequest
    sides: Sequence[SidePlan]
    reports: Sequence[SideReport]
    rules: Rules
    settings: Settings  # of both sides, with the lowered confidence
    classes: ClassPairs | None = None  # of the second side; None to compare class ids as they are

    @property
    def compares_heads(self) -> bool:
        """Whether tensors are compared at the heads of both graphs, instead of at their outputs.

        A network that is not a detector has no head. A graph that selects its own boxes is compared
        as a whole, since the selection comes after the head.
        """
        for side in self.sides:
            if side.file.contract is None or side.selected_by is SelectedBy.GRAPH:
                return False
        return True

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of an input that both networks take.

        It is the size that a network is fixed to, else the one that the user asked for, else the
        usual one of the first detector.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take images.
            UsageError: A network does not take the size that the user asked for.
        """
        fixed_size = self._fixed_input_size()
        contracts = [side.file.contract for side in self.sides if side.file.contract is not None]
        requested_size = self.settings.imgsz
        if requested_size is not None:
            for contract in contracts:
                contract.input_shape(requested_size)  # raises UsageError if it cannot take the size

        if fixed_size is not None:
            return fixed_size
        if requested_size is not None:
            return requested_size, requested_size
        if contracts:
            return contracts[0].default_size
        return DEFAULT_SIZE

    def _fixed_input_size(self) -> tuple[int, int] | None:
        """The height and width that a network is fixed to; None if both networks are dynamic.

        Raises:
            ModelError: The networks take inputs of different sizes, or do not take images.
        """
        sizes = set()
        for side in self.sides:
            height_dim, width_dim = shape(image_input(side.file))[2:]
            height = known_size(height_dim)
            width = known_size(width_dim)
            if height and width:
                sizes.add((height, width))
        if len(sizes) > 1:
            texts = " and ".join(f"{width}x{height}" for height, width in sorted(sizes))
            raise ModelError(
                f"the models take inputs of different sizes, {texts}: their tensors cannot be "
                "compared",
                "compare their detections, without --tensors and --bisect",
            )
        if not sizes:
            return None
        return sizes.pop()

    def certified(self, side: SidePlan, report: SideReport) -> CertifiedSide:
        """What a certificate says of a side besides its report.

        These are the settings that its detections depend on, and the versions and hardware that
        computed them.
        """
        run = describe_run([side.device], report.precision)
        return CertifiedSide(
            settings=self._certified_settings(side.file.contract),
            provenance=cast("dict[str, str | None]", run),
        )

    def _certified_settings(self, contract: Contract | None) -> dict[str, Any]:
        """The settings that the detections of a side depend on, by name.

        `contract` is what is known of the side's detector; None if the model is not a detector.
        """
        settings = self.settings
        nms = suppression_iou(settings.nms, None)
        counts_best_class = None
        preprocessing = None
        if contract is not None:
            nms = suppression_iou(settings.nms, contract.nms)
            counts_best_class = contract.counts_best_class(nms)
            preprocessing = written(contract.preprocessing)
        return {
            "conf": settings.conf,
            "max_det": settings.max_det,
            "nms": nms,
            "unique": counts_best_class,
            "imgsz": settings.imgsz,
            "box_format": settings.box_format,
            "preprocess": preprocessing,
            "half": self.request.config.runtime.half,
        }


def plan_running(request: VerifyRequest) -> RunningPlan:
    """Plan a comparison of two runs: which model runs on which device, and what counts as equal.

    Args:
        request: What the user asked for: one model on two devices, or two models, or a model and
            the selection of boxes that is part of its own graph.

    Returns:
        Both sides with their devices, the rules of the comparison, and the settings that both sides
        run with.

    Raises:
        ModelError: A file is not a complete ONNX model.
        UsageError: The request does not fit the models or devices.
    """
    first_model, second_model = _find_models(request)
    classes = _paired_classes(first_model, second_model)
    sides = _plan_sides(request, first_model, second_model)
    reports = [side.report() for side in sides]
    tolerance = tolerance_of(reports, request.tolerance)
    rules = _rules_of_running(request, first_model, sides[1], tolerance)
    settings = replace(request.config.settings, conf=rules.lowered_conf, max_det=rules.max_det)
    return RunningPlan(request, sides, reports, rules, settings, classes)


def _plan_sides(
    request: VerifyRequest, first_model: ModelFile, second_model: ModelFile
) -> list[SidePlan]:
    """Decide for each side on which device, and how, its model runs.

    Args:
        request: What the user asked for.
        first_model: The model of the first side.
        second_model: That of the second side; the same object where one model runs twice.

    Raises:
        UsageError: Both sides would be the same, or no side can compute in half precision though
            the user asked for it.
    """
    settings = request.config.settings
    half = request.config.runtime.half
    second_side = _choose_second_side(request, second_model)
    first_device = _choose_device(request.config.runtime.device[0], first_model, settings)
    second_device = _choose_device(second_side.device, second_model, settings)

    is_same_model = first_model is second_model
    is_same_device = first_device == second_device
    if is_same_model and is_same_device and second_side.selected_by is SelectedBy.DETCLI:
        raise UsageError(
            f"both sides are the same: {first_model.path.name} on {first_device}", SIDES_HINT
        )
    if not (first_device.computes_half or second_device.computes_half):
        # Raises the UsageError if the user asked for half precision.
        check_device_options(DeviceOptions(half=half), first_device)

    # A device that has no half precision computes in float32 and is compared with the other.
    first_options = DeviceOptions(half=half and first_device.computes_half)
    second_options = DeviceOptions(half=half and second_device.computes_half)
    return [
        SidePlan(first_model, first_device, first_options, SelectedBy.DETCLI),
        SidePlan(second_model, second_device, second_options, second_side.selected_by),
    ]


def _rules_of_running(
    request: VerifyRequest, first_model: ModelFile, second_side: SidePlan, tolerance: Tolerance
) -> Rules:
    """Return the rules of a comparison of two runs: which detections count, and how they match.

    Args:
        request: What the user asked for.
        first_model: The model of the first side, whose default confidence applies to both sides.
        second_side: The second side. If its graph selects the boxes, both sides select as many.
        tolerance: How far scores and corners of the two sides may differ.
    """
    settings = request.config.settings
    default_conf = None
    if first_model.contract is not None:  # the model is a detector
        default_conf = first_model.contract.min_conf
    max_det = settings.max_det
    if second_side.selected_by is SelectedBy.GRAPH:
        graph_max_det = max_detections_of_graph(second_side.file)
        max_det = graph_max_det or settings.max_det
    return Rules(
        conf=effective_conf(settings, default_conf),
        least_iou=request.iou,
        max_det=max_det,
        tolerance=tolerance,
    )


def _find_models(request: VerifyRequest) -> tuple[ModelFile, ModelFile]:
    """Find the models of both sides, and download them if need be.

    Without a second model in the request, both are the same object, which is read once.
    """
    settings = request.config.settings
    with download_progress() as show:

        def find_model(name: str) -> ModelFile:
            file = find(name, show=show)
            return replace(file, box_format=settings.box_format, preprocess=settings.preprocess)

        first_model = find_model(request.model)
        second_model = first_model
        if request.other is not None:
            second_model = find_model(request.other)
    return first_model, second_model


class _SecondSide(NamedTuple):
    """How the second side runs."""

    device: Device  # may be auto
    selected_by: SelectedBy  # what selects its boxes


def _choose_second_side(request: VerifyRequest, second: ModelFile) -> _SecondSide:
    """Decide where the second side runs, and whether detcli or the graph selects its boxes.

    The user says so with `--against`, a device or "graph". By default a model alone is compared
    with the selection that its graph has, if any; two models run on the same device.

    Args:
        request: What the user asked for.
        second: The model of the second side, which may be that of the first.

    Raises:
        UsageError: The graph has no selection, or there is nothing to compare with.
    """
    against = request.against
    is_one_model = request.other is None
    if against == GRAPH or (against is None and is_one_model):
        _require_graph_selection(request, second)
        return _SecondSide(Device.parse("cpu"), SelectedBy.GRAPH)
    if against:
        return _SecondSide(Device.parse(against), SelectedBy.DETCLI)
    return _SecondSide(request.config.runtime.device[0], SelectedBy.DETCLI)


def _require_graph_selection(request: VerifyRequest, second: ModelFile) -> None:
    """Require that the graph of the second side selects boxes itself, and that this is comparable.

    Args:
        request: What the user asked for.
        second: The model of the second side.

    Raises:
        UsageError: It does not select any; or tensors are to be compared, which are the same for
            both selections of one model.
    """
    selects_itself = second.contract is not None and second.selection is not None
    if not selects_itself and request.against == GRAPH:
        raise UsageError(
            f"{second.path.name} has no selection of its own to compare with: its layout is "
            f"{second.detector().layout}",
            "name another MODEL, or another device with --against",
        )
    if not selects_itself:
        raise UsageError(f"nothing to compare {second.path.name} with", SIDES_HINT)
    is_one_model = request.other is None
    if is_one_model and request.compares_tensors:
        raise UsageError(
            "--tensors and --bisect compare two networks; a graph's own selection follows the "
            "same network as detcli's",
            "leave them out, or name OTHER, or another device with --against",
        )


def _paired_classes(first: ModelFile, second: ModelFile) -> ClassPairs | None:
    """Find out which class of the second model is which of the first, and warn of differences.

    Returns:
        None if classes are compared by their ids: the models are the same, or one of them is not
        a detector or does not name its classes.
    """
    if first is second or first.contract is None or second.contract is None:
        return None
    both_name_classes = (
        first.contract.names_origin == METADATA and second.contract.names_origin == METADATA
    )
    if not both_name_classes:
        return None
    first_names = first.contract.names
    second_names = second.contract.names
    pairs = pair_classes(first_names, second_names)
    warn_about_differences(pairs, first_names, second_names)
    return pairs


def _choose_device(device: Device, file: ModelFile, settings: Settings) -> Device:
    """The device that the user named; for auto, the one on which the model loads.

    The model is loaded and closed again to find out, as `detcli predict` would choose.
    """
    if not device.is_auto:
        return device
    if file.contract is None:
        session = open_tensors(device, file.model.SerializeToString(), file.path.name)
        return Device.parse(session.device)
    backend = open_backend(device, prepare_for(file, settings))
    backend.close()
    return Device.parse(backend.device)


def verify_running(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Run two models, or one in two ways, and compare, with a progress bar on a terminal.

    Args:
        request: What the user asked for.
        inputs: The files that the page of the comparison must not overwrite.

    Returns:
        The report of the comparison, and what a certificate has besides.
    """
    plan = plan_running(request)
    config = request.config
    decode = DecodeOptions(config.inputs, keep=request.certifies)
    with (
        open_results(request, inputs, plan.rules, plan.reports) as results,
        Sources(request.images, config.inputs, config.outputs.written, decode) as sources,
        progress(lambda: sources.progress.total, enabled=not config.verbosity.quiet) as advance,
    ):
        items: Iterable[Item] = sources
        if request.random is not None:
            items = [random_item(request.random, plan.input_size)]
        certificate = compare_running(plan, items, results, advance)
    if results.certifies:
        left_plan, right_plan = plan.sides
        left_report, right_report = plan.reports
        certificate.left = plan.certified(left_plan, left_report)
        certificate.right = plan.certified(right_plan, right_report)
    return certificate


def random_item(seed: int, size: tuple[int, int]) -> Item:
    """An image of (height, width) random pixels, the same for the same seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    return Item(Origin(f"random:{seed}"), lambda: Image.whole(pixels))


class _LoadedImage(NamedTuple):
    """An image that was read, and where it is from."""

    item: Item
    image: Image


def compare_running(
    plan: RunningPlan,
    items: Iterable[Item],
    results: Results,
    advance: Callable[[], None] = lambda: None,
) -> Certificate:
    """Run both sides on all images, and compare their detections and tensors.

    Args:
        plan: What to compare.
        items: The images; those that cannot be read are reported.
        results: Adds up the comparisons.
        advance: Moves the progress bar on by one image.

    Raises:
        DeviceError: A device cannot be used.
        InferenceError: A network failed.
        ModelError: A model cannot be used.
        OutputError: The page cannot be written.
        UsageError: The settings do not fit a model.
    """
    report = results.report
    loaded_images = _load(items, results, advance)
    with ExitStack() as stack:
        sides = _open_sides(plan, stack, report)
        outputs = None
        if plan.request.compares_tensors:
            outputs = _output_comparison(plan)
        # As many images at a time as the devices work on at once, so that they could disturb one
        # another as they do in `predict`.
        chunk_size = max((side.chunk for side in sides), default=1)
        for chunk in _chunks(loaded_images, chunk_size):
            detections = []
            if sides:  # none if only tensors are compared
                detections = _detect(sides, [loaded.image for loaded in chunk], plan.classes)
            for position, loaded in enumerate(chunk):
                if sides:
                    _add_detections(results, loaded, detections[position])  # which counts it, too
                else:
                    report.compared += 1
                if outputs is not None:
                    outputs.add(loaded.image, loaded.item.origin.source)
        if outputs is not None:
            report.tensors = outputs.reports
            if plan.request.bisect:
                report.bisect = bisect(outputs)
    return results.finish()


def _output_comparison(plan: RunningPlan) -> OutputComparison:
    """Prepare to compare the raw outputs of both networks."""
    size = plan.input_size
    at_head = plan.compares_heads
    left_plan, right_plan = plan.sides
    left = Probe(left_plan.file, size, left_plan.device, left_plan.options, at_head=at_head)
    right = Probe(right_plan.file, size, right_plan.device, right_plan.options, at_head=at_head)
    return OutputComparison(left, right, plan.rules.tolerance.tensor)


def _chunks(loaded_images: Iterator[_LoadedImage], size: int) -> Iterator[list[_LoadedImage]]:
    """Yield the images in lists of `size`; the last list may be shorter."""
    chunk = list(islice(loaded_images, size))
    while chunk:
        yield chunk
        chunk = list(islice(loaded_images, size))


def _detect(
    sides: Sequence[Side], images: Sequence[Image], classes: ClassPairs | None
) -> list[tuple[Detections, Detections]]:
    """Run both sides on some images.

    Args:
        sides: The two sides.
        images: The images to detect in.
        classes: Which class of the second side is which of the first; None if ids are the same.

    Returns:
        For each image the detections of the first side and those of the second, both with the class
        ids of the first.
    """
    left_side, right_side = sides
    left_detections = left_side.detect(images)
    right_detections = right_side.detect(images)
    if classes is not None:
        right_detections = [classes.with_first_ids(detections) for detections in right_detections]
    return list(zip(left_detections, right_detections, strict=True))


def _add_detections(
    results: Results, loaded: _LoadedImage, detections: Sequence[Detections]
) -> None:
    """Add an image to the results.

    Args:
        results: Compares the detections and shows them on the page.
        loaded: The image.
        detections: Those of the first side and those of the second.
    """
    origin = loaded.item.origin
    image = loaded.image
    results.certify(origin, image=image)
    shown_record = Record(
        origin, index=0, model="", device="", picture=image, detections=detections[0]
    ).to_json()
    page_image = partial(PageImage, image.pixels, origin.path)
    results.add(shown_record, detections, page_image)


def _open_sides(plan: RunningPlan, stack: ExitStack, report: VerifyReport) -> list[Side]:
    """Load the models of both sides, or say in the report why detections are not compared.

    Random images show no objects, and a network that is not a detector finds none. Then only
    tensors are compared.

    Args:
        plan: What to compare.
        stack: Closes the sides in the end.
        report: The report of the comparison.

    Returns:
        The two sides; empty if detections are not compared.

    Raises:
        ModelError: A model is not a detector, and the user did not ask for tensors.
    """
    if plan.request.random is None:
        try:
            return [side.open(plan.settings, stack) for side in plan.sides]
        except ModelError as error:
            if not plan.request.compares_tensors:
                raise
            report.no_detections = str(error)
    else:
        report.no_detections = "random images cannot compare detections"

    # Without detections it does not matter what selects them.
    left_report, right_report = plan.reports
    report.left = replace(left_report, selection=None)
    report.right = replace(right_report, selection=None)
    return []


def _load(
    items: Iterable[Item], results: Results, advance: Callable[[], None]
) -> Iterator[_LoadedImage]:
    """Load images one by one; those that cannot be read are reported.

    Args:
        items: Where the images are from.
        results: Reports what cannot be read.
        advance: Moves the progress bar on by one image.
    """
    for item in items:
        try:
            image = load_in_time(item)
        except InputError as error:
            results.fail(item.origin, error)
        else:
            for warning in image.warnings:
                warnings.warn(f"{item.origin.source}: {warning}", DetcliWarning, stacklevel=3)
            yield _LoadedImage(item, image)
        advance()
