"""Performs a verification as it was asked for, of models or of saved runs."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from detcli.commands.shared.finder import Finder
from detcli.commands.shared.progress import progress
from detcli.commands.shared.setup import find_model
from detcli.commands.verify.coco_results import CocoResults, is_results
from detcli.commands.verify.page import open_page
from detcli.commands.verify.pictures import random_item
from detcli.commands.verify.plan import VerifyRequest, make_plan
from detcli.commands.verify.report import VerifyReport
from detcli.commands.verify.results import Results
from detcli.commands.verify.run import side_reports, verify
from detcli.commands.verify.saved import SavedRun, is_saved
from detcli.commands.verify.saved_sides import plan_saved, verify_saved
from detcli.errors import SourceError, UsageError, system_reason
from detcli.model.contract import BoxFormat
from detcli.settings import Settings
from detcli.sink.coco import Numbers, NumbersFromFile
from detcli.sink.folder import OutputFolder
from detcli.source.decode import DecodeOptions
from detcli.source.item import SourceOptions
from detcli.source.sources import InputGuard, Sources

CONF = Settings().conf


@dataclass(frozen=True, slots=True)
class VerifyCall:
    """What to compare, as it was asked for; each field is named as on the command line.

    Raises:
        UsageError: The options contradict each other.
    """

    model: str
    other: str | None = None
    images: tuple[str, ...] = ()
    random: int | None = None
    recursive: bool = False
    device: str = "cpu"
    against: str | None = None
    half: bool = False
    conf: float | None = None
    nms: float | None = None
    imgsz: int | None = None
    box_format: BoxFormat | None = None
    preprocess: str | None = None
    iou: float = 0.5
    tolerance: dict[str, float] = field(default_factory=dict)
    coco_images: str | None = None
    tensors: bool = False
    bisect: bool = False

    def __post_init__(self) -> None:
        if self.is_saved:
            self._check_saved()
        elif self.coco_images is not None:
            raise UsageError("--coco-images needs saved records and COCO results", "leave it out")
        elif bool(self.images) == (self.random is not None):
            raise UsageError(
                "--images and --random are mutually exclusive"
                if self.images
                else "no pictures to compare on",
                "name a folder of real pictures with --images",
            )

    @property
    def is_saved(self) -> bool:
        """Whether saved runs are compared."""
        return is_saved(self.model) or (self.other is not None and is_saved(self.other))

    def _check_saved(self) -> None:
        names = [self.model, *filter(None, [self.other])]
        if len(names) == 1 or not all(map(is_saved, names)):
            raise UsageError(
                f"{next(filter(is_saved, names))} holds saved records, which are compared with "
                "other saved records, or with COCO results",
                "name two: detcli verify here.jsonl there.jsonl",
            )
        running = {
            "--random": self.random,
            "--recursive": self.recursive,
            "--against": self.against,
            "--half": self.half,
            "--nms": self.nms,
            "--imgsz": self.imgsz,
            "--boxes": self.box_format,
            "--preprocess": self.preprocess,
            "--tensors": self.tensors,
            "--bisect": self.bisect,
        }
        for option, value in running.items():
            if value is not None and value is not False:
                raise UsageError(
                    f"{option} is about running a model, and saved records are compared as they "
                    "are",
                    f"leave out {option}",
                )
        if len(self.images) > 1:
            raise UsageError(
                "saved records have their pictures in one folder", "give --images once"
            )


@dataclass(frozen=True, slots=True)
class Outputs:
    """Folders for the worst pictures, and for a page; None for neither."""

    save: Path | None = None
    report: Path | None = None


def perform(call: VerifyCall, outputs: Outputs, *, quiet: bool) -> VerifyReport:
    """Compare, with a bar on a terminal.

    Args:
        call: What to compare.
        outputs: What to write.
        quiet: Show no bar.

    Raises:
        DetcliError: Something cannot be compared or written; see `verify` and `verify_saved`.
    """
    return (_saved if call.is_saved else _live)(call, outputs, quiet=quiet)


def _live(call: VerifyCall, outputs: Outputs, *, quiet: bool) -> VerifyReport:
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
                conf=CONF if call.conf is None else call.conf,
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
            random=call.random is not None,
        )
    )
    written = tuple(filter(None, (outputs.save, outputs.report)))
    options = SourceOptions(recursive=call.recursive, written=written)
    guard = InputGuard([*call.images, call.model, *filter(None, [call.other])], options)
    folder = OutputFolder(outputs.save, guard) if outputs.save else None
    with (
        open_page(outputs.report, side_reports(plan), plan.rules, guard) as page,
        Sources(list(call.images), options) as sources,
        progress(lambda: sources.progress.total, wanted=not quiet) as advance,
    ):
        items = sources if call.random is None else [random_item(call.random, plan.input_size)]
        return verify(plan, items, folder, Results(plan.rules, page), advance)


def _saved(call: VerifyCall, outputs: Outputs, *, quiet: bool) -> VerifyReport:
    """Read both sides."""
    settings = Settings() if call.conf is None else Settings(conf=call.conf)  # checks it
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
            None if call.conf is None else settings.conf,
            call.iou,
            call.tolerance,
        )
        guard = InputGuard([*call.images, call.model, other])
        folder = OutputFolder(outputs.save, guard) if outputs.save else None
        page = stack.enter_context(open_page(outputs.report, plan.sides, plan.rules, guard))
        advance = stack.enter_context(progress(lambda: left.count, wanted=not quiet))
        results = Results(plan.rules, page, keep_all=False)
        finder = Finder(images, DecodeOptions())
        return verify_saved(plan, finder, results, folder, advance)


@contextmanager
def _lasting(name: str) -> Iterator[str]:
    """A path that can be read twice: a pipe is written to a temporary file.

    Raises:
        SourceError: The pipe cannot be read.
    """
    path = Path(name)
    if not path.exists() or path.is_file() or path.is_dir():
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
