"""Performs a verification as it was asked for, of models or of saved runs."""

import shutil
import tempfile
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from detcli.backend import open_decoder
from detcli.backend.device import Device
from detcli.commands.shared.finder import Finder
from detcli.commands.shared.progress import progress
from detcli.commands.shared.provenance import describe_run
from detcli.commands.shared.setup import find_model
from detcli.commands.verify.call import VerifyCall
from detcli.commands.verify.certificate import CertifiedSide
from detcli.commands.verify.coco_results import CocoResults, is_results
from detcli.commands.verify.page import open_page
from detcli.commands.verify.pictures import random_item
from detcli.commands.verify.plan import SidePlan, VerifyRequest, make_plan
from detcli.commands.verify.report import VerifyReport
from detcli.commands.verify.results import Results
from detcli.commands.verify.run import side_reports, verify
from detcli.commands.verify.saved import SavedRun
from detcli.commands.verify.saved_sides import plan_saved, verify_saved
from detcli.errors import DecodeError, SourceError, UsageError, system_reason
from detcli.model.hub_cache import sha256
from detcli.model.preprocessing import written
from detcli.settings import Settings
from detcli.sink.coco import Numbers, NumbersFromFile
from detcli.sink.folder import OutputFolder
from detcli.source.address import is_live
from detcli.source.decode import DecodeOptions
from detcli.source.item import STDIN, Item, SourceOptions, failed
from detcli.source.sources import InputGuard, Sources


@dataclass(frozen=True, slots=True)
class Outputs:
    """Folders for the worst pictures and for a page, and a certificate's files; all optional."""

    save: Path | None = None
    report: Path | None = None
    certificate: tuple[Path, ...] = ()

    def check(self, guard: Container[Path]) -> None:
        """Refuse to write over an input.

        Raises:
            UsageError: A file of the certificate is one of the inputs.
        """
        for path in self.certificate:
            if path in guard:
                raise UsageError(f"{path} is one of the inputs", "write to another file")


@dataclass(frozen=True, slots=True)
class Performed:
    """What was found.

    Attributes:
        report: The report.
        results: The worst pictures, and the hashes of all.
        sides: What a certificate says of both sides; empty where none is wanted.
    """

    report: VerifyReport
    results: Results
    sides: tuple[CertifiedSide, ...]


def perform(call: VerifyCall, outputs: Outputs, *, certify: bool, quiet: bool) -> Performed:
    """Compare, with a bar on a terminal.

    Args:
        call: What to compare.
        outputs: What to write; a certificate is written by whoever asks for one.
        certify: Whether to find out what a certificate says.
        quiet: Show no bar.

    Raises:
        DetcliError: Something cannot be compared or written; see `verify` and `verify_saved`.
    """
    return (_saved if call.is_saved else _live)(call, outputs, certify=certify, quiet=quiet)


def _live(call: VerifyCall, outputs: Outputs, *, certify: bool, quiet: bool) -> Performed:
    """Run both sides."""
    if outputs.report is not None and call.random is not None:
        raise UsageError(
            "--report shows detections, and random pictures have none",
            "name a folder with --images",
        )
    plan = make_plan(
        VerifyRequest(
            model=find_model(call.model),
            other=None if call.other is None else find_model(call.other),
            device=call.device,
            against=call.against,
            settings=Settings(
                conf=call.conf,
                nms=call.nms,
                imgsz=call.imgsz,
                box_format=call.box_format,
                preprocess=call.preprocess,
            ),
            least_iou=call.iou,
            tolerance=call.tolerance,
            half=call.half,
            tensors=call.tensors,
            bisect=call.bisect,
            gpu_decode=call.gpu_decode,
            random=call.random is not None,
        )
    )
    if call.gpu_decode and any(name == STDIN or is_live(name) for name in call.images):
        raise UsageError(
            "--gpu-decode reads each input twice, which cameras, streams and - do not allow",
            "name files or folders in --images",
        )
    folders = tuple(filter(None, (outputs.save, outputs.report)))
    options = SourceOptions(recursive=call.recursive, written=folders)
    guard = InputGuard([*call.images, call.model, *filter(None, [call.other])], options)
    outputs.check(guard)
    folder = OutputFolder(outputs.save, guard) if outputs.save else None
    with (
        ExitStack() as stack,
        open_page(outputs.report, side_reports(plan), plan.rules, guard) as page,
        Sources(list(call.images), options) as sources,
        progress(lambda: sources.progress.total, wanted=not quiet) as advance,
    ):
        items = sources if call.random is None else [random_item(call.random, plan.input_size)]
        results = Results(plan.rules, page, certify=certify)
        pairs: Iterable[tuple[Item, Item]] = ((item, item) for item in items)
        if call.gpu_decode:
            decoder = stack.enter_context(closing(open_decoder([Device.parse(plan.left.device)])))
            decode = replace(options.decode, gpu=decoder)
            by_gpu = Sources(list(call.images), replace(options, decode=decode))
            pairs = _paired(stack.enter_context(by_gpu), items)
        report = verify(plan, pairs, folder, results, advance)
    sides = ((plan.left, call.gpu_decode), (plan.right, False)) if certify else ()
    certified = (
        _running(side, plan.settings, call, gpu_decode=gpu_decode) for side, gpu_decode in sides
    )
    return Performed(report, results, tuple(certified))


def _paired(by_gpu: Iterable[Item], by_cpu: Iterable[Item]) -> Iterator[tuple[Item, Item]]:
    """The same inputs and frames by both decoders; a frame that only one of them has fails."""
    sources = (groupby(items, lambda item: item.origin.source) for items in (by_gpu, by_cpu))
    for (source, left), (_, right) in zip(*sources, strict=True):
        for pair in zip_longest(left, right):
            frame = next(item.origin.frame for item in pair if item is not None)
            lacking = failed(source, DecodeError("only one of the two decoders has it"), frame)
            yield pair[0] or lacking, pair[1] or lacking


def _running(
    side: SidePlan, settings: Settings, call: VerifyCall, *, gpu_decode: bool
) -> CertifiedSide:
    """What a certificate says of a side that ran."""
    run = describe_run([Device.parse(side.device)], side.precision, gpu_decode=gpu_decode)
    contract = side.file.contract
    depend_on: dict[str, Any] = {
        "conf": settings.conf,
        "max_det": settings.max_det,
        "nms": settings.nms,
        "imgsz": settings.imgsz,
        "box_format": settings.box_format,
        "preprocess": contract and written(contract.preprocessing),
        "half": call.half,
        "gpu_decode": gpu_decode,
    }
    return CertifiedSide(None, depend_on, dict(run))  # type: ignore[arg-type]


def _saved(call: VerifyCall, outputs: Outputs, *, certify: bool, quiet: bool) -> Performed:
    """Read both sides."""
    conf = Settings(conf=call.conf).conf  # checks it
    if not 0 < call.iou <= 1:
        raise UsageError(f"--iou is {call.iou}", "give an IoU above 0, up to 1")
    other = call.other or ""
    images = Path(call.images[0]) if call.images else None
    with ExitStack() as stack:
        paths = [stack.enter_context(_lasting(name)) for name in (call.model, other)]
        if is_results(Path(paths[0])):
            raise UsageError(f"{call.model} holds COCO results", "name them second, after records")
        left = SavedRun.scan(call.model, paths[0])
        right: SavedRun | CocoResults
        if call.coco_images is not None or is_results(Path(paths[1])):
            listed = call.coco_images
            numbers = Numbers() if listed is None else NumbersFromFile(Path(listed))
            right = CocoResults(other, Path(paths[1]), numbers, left.classes)
        else:
            right = SavedRun.scan(other, paths[1])
        plan = plan_saved(
            left,
            right,
            conf,
            call.iou,
            call.tolerance,
        )
        guard = InputGuard([*call.images, call.model, other, *filter(None, [call.coco_images])])
        outputs.check(guard)
        folder = OutputFolder(outputs.save, guard) if outputs.save else None
        page = stack.enter_context(open_page(outputs.report, plan.sides, plan.rules, guard))
        advance = stack.enter_context(progress(lambda: left.count, wanted=not quiet))
        results = Results(plan.rules, page, keep_all=False, certify=certify)
        finder = Finder(images, DecodeOptions())
        report = verify_saved(plan, finder, results, folder, advance)
        runs = zip((left, right), paths, strict=True) if certify else ()
        return Performed(report, results, tuple(_saved_side(*run) for run in runs))


def _saved_side(run: SavedRun | CocoResults, path: str) -> CertifiedSide:
    """What a certificate says of a side that was saved."""
    digest = sha256(Path(path)) if Path(path).is_file() else None
    if isinstance(run, CocoResults):
        return CertifiedSide(digest, None, None)
    return CertifiedSide(digest, run.settings[0] if run.settings else None, run.made_with())


@contextmanager
def _lasting(name: str) -> Iterator[str]:
    """A path that can be read twice: a pipe is written to a temporary file.

    Raises:
        SourceError: The pipe cannot be read.
    """
    path = Path(name)
    try:
        lasts = not path.exists() or path.is_file() or path.is_dir()
    except OSError:  # which reading it finds, too
        lasts = True
    if lasts:
        yield name
        return
    with tempfile.NamedTemporaryFile(prefix="detcli-") as copy:
        try:
            with path.open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
            copy.flush()
        except OSError as error:
            raise SourceError(f"cannot read {name}: {system_reason(error)}", "check it") from error
        yield copy.name
