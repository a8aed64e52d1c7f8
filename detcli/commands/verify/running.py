"""Compares two models that run, or one in two ways: detections and tensors on each image."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from detcli.cli.console import progress
from detcli.commands.verify.bisection import bisect
from detcli.commands.verify.class_pairs import ClassPairs
from detcli.commands.verify.images import Results, open_results
from detcli.commands.verify.report import (
    Certificate,
    VerifyReport,
)
from detcli.commands.verify.request import VerifyRequest
from detcli.commands.verify.running_plan import RunningPlan, Side, plan_running
from detcli.commands.verify.tensors import OutputComparison, Probe
from detcli.core.errors import DetcliWarning, InputError, ModelError
from detcli.data.detections import Detections
from detcli.data.geometry import Image
from detcli.data.record import Origin, Record
from detcli.page.page import PageImage
from detcli.source.decode import DecodeOptions
from detcli.source.guard import InputGuard
from detcli.source.loading import Item, load_in_time
from detcli.source.sources import Sources


def verify_running(request: VerifyRequest, inputs: InputGuard) -> Certificate:
    """Run two models, or one in two ways, and compare, with a progress bar on a terminal.

    Args:
        request: What the user asked for.
        inputs: The files that the page of the comparison must not overwrite.

    Returns:
        A certificate with the report of the comparison. If the request asks for a certificate, it
        also has the hashes of the images, and the settings, versions and hardware of each side.
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

    if request.certifies:
        left_plan, right_plan = plan.sides
        left_report, right_report = plan.reports
        certificate.left = plan.certified(left_plan, left_report)
        certificate.right = plan.certified(right_plan, right_report)
    return certificate


def random_item(seed: int, size: tuple[int, int]) -> Item:
    """Make an image of (height, width) random pixels, the same for the same seed."""
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
                    _add_image(results, loaded, detections[position])  # this counts it as well
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
    """Run both sides on the given images.

    Args:
        sides: The two sides.
        images: The images to detect objects in.
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


def _add_image(
    results: Results, loaded: _LoadedImage, detections: tuple[Detections, Detections]
) -> None:
    """Compare the detections of both sides in an image, and add the outcome to the results.

    If a certificate is written, the file of the image is listed in it.

    Args:
        results: Compares the detections, and shows them on the page if there is one.
        loaded: The image.
        detections: The detections of the first side and those of the second.
    """
    origin = loaded.item.origin
    image = loaded.image
    results.certify(origin, image=image)

    # The page says once, and not beside each image, which models and devices are compared. It
    # numbers its records itself.
    left_detections, _ = detections
    record = Record(origin, index=0, model="", device="", picture=image, detections=left_detections)
    load_image = partial(PageImage, image.pixels, origin.path)
    results.add(record.to_json(), detections, load_image)


def _open_sides(plan: RunningPlan, stack: ExitStack, report: VerifyReport) -> list[Side]:
    """Load the models of both sides, or write into the report why detections are not compared.

    Random images show no objects, and a network that is not a detector finds none. Then only
    tensors are compared, and the report of each side says nothing about the selection of boxes.

    Args:
        plan: What to compare.
        stack: Closes the sides in the end.
        report: The report of the comparison, which is changed if detections are not compared.

    Returns:
        The two sides; empty if detections are not compared.

    Raises:
        ModelError: A model is not a detector, and the user did not ask for tensors.
    """
    if plan.request.random is not None:
        reason = "random images cannot compare detections"
    else:
        try:
            return [side.open(plan.settings, stack) for side in plan.sides]
        except ModelError as error:
            if not plan.request.compares_tensors:
                raise
            reason = str(error)

    report.no_detections = reason
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
