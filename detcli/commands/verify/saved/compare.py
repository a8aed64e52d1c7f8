"""Compares saved runs: two of detcli, or one with COCO results."""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np

from detcli.commands.shared.comparison import Precision, Rules, tolerance_for
from detcli.commands.shared.finder import Finder
from detcli.commands.shared.progress import progress
from detcli.commands.verify.page import SeenPicture, open_page
from detcli.commands.verify.report import CertifiedSide, FailedInput, SideReport, VerifyReport
from detcli.commands.verify.request import Outputs, VerifyRequest
from detcli.commands.verify.results import Results, Verification, failures, is_evidence
from detcli.commands.verify.saved.coco_results import BoxRows, CocoResults, is_results
from detcli.commands.verify.saved.runs import SavedRun, pair_names, unlike
from detcli.detections import Detections
from detcli.errors import InputError, SourceError, UsageError, system_reason
from detcli.model.hub_cache import sha256
from detcli.record import Origin, RecordJson
from detcli.settings import USUAL_CONF, Settings
from detcli.sink.labels import CocoIds, CocoIdsFromFile
from detcli.source.decode import DecodeOptions
from detcli.source.sources import InputGuard

MAX_NAMED = 3
"""Inputs that a sentence names."""


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What to compare, and how strictly.

    Attributes:
        unlike: Settings in which the runs differ, a sentence each.
    """

    left: SavedRun
    right: SavedRun | CocoResults
    rules: Rules
    unlike: tuple[str, ...]

    @property
    def sides(self) -> tuple[SideReport, SideReport]:
        """What the report says of both."""
        if isinstance(self.right, CocoResults):
            name = self.right.name
            return self.left.report(), SideReport("unknown", None, None, None, None, name)
        return self.left.report(), self.right.report()


def verify_saved(
    request: VerifyRequest, outputs: Outputs, *, certify: bool, quiet: bool
) -> Verification:
    """Read both sides and compare, with a bar on a terminal; see `verify_running`.

    Raises:
        DetcliError: Something cannot be compared or written; see `plan_saved` and `compare_saved`.
    """
    other = request.other or ""
    images = Path(request.images[0]) if request.images else None
    with ExitStack() as stack:
        paths = [stack.enter_context(_lasting(name)) for name in (request.model, other)]
        if is_results(Path(paths[0])):
            raise UsageError(
                f"{request.model} holds COCO results", "name them second, after records"
            )
        left = SavedRun.scan(request.model, paths[0])
        right: SavedRun | CocoResults
        if request.coco_images is not None or is_results(Path(paths[1])):
            instances = request.coco_images
            ids = CocoIds() if instances is None else CocoIdsFromFile(Path(instances))
            right = CocoResults(other, Path(paths[1]), ids, left.classes)
        else:
            right = SavedRun.scan(other, paths[1])
        plan = plan_saved(left, right, request)
        listed = filter(None, [request.coco_images])
        guard = InputGuard([*request.images, request.model, other, *listed])
        outputs.check(guard)
        page = stack.enter_context(open_page(outputs.report, plan.sides, plan.rules, guard))
        advance = stack.enter_context(progress(lambda: left.count, wanted=not quiet))
        results = Results(plan.rules, page, keep_all=False, certify=certify)
        finder = Finder(images, DecodeOptions())
        report = compare_saved(plan, finder, results, advance)
        runs = zip((left, right), paths, strict=True) if certify else ()
        return Verification(report, results, tuple(_certified(*run) for run in runs))


def _certified(run: SavedRun | CocoResults, path: str) -> CertifiedSide:
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


def plan_saved(left: SavedRun, right: SavedRun | CocoResults, request: VerifyRequest) -> SavedPlan:
    """Work out what to compare.

    Args:
        left: The first run.
        right: The second.
        request: How strictly to compare; without a confidence, all detections that both runs hold
            count.

    Raises:
        UsageError: The confidence, or a value of the tolerance, is out of range.
    """
    runs = [run for run in (left, right) if isinstance(run, SavedRun)]
    known = [run.conf for run in runs if run.conf is not None]
    # Where a run does not say from which score on it has detections, as COCO results do not, that
    # may be the score from which on they count.
    held = max(known, default=None) if len(known) == 2 else None
    wanted = request.settings.conf
    conf = wanted if wanted is not None else max(known, default=USUAL_CONF)
    held = conf if held is None else held
    class_held: dict[int, float] = {}
    for run in runs:
        for class_id, least in run.class_conf.items():
            class_held[class_id] = max(least, class_held.get(class_id, 0.0))
    precisions = {run.precision or Precision.FLOAT32 for run in runs}
    most = [run.max_det for run in runs if run.max_det is not None]
    rules = Rules(
        conf,
        request.iou,
        min(most, default=Settings().max_det),
        tolerance_for(precisions, request.tolerance),
        held,
        class_held,
    )
    different: tuple[str, ...] = ()
    if isinstance(right, SavedRun):
        pair_names(left, right)
        different = tuple(unlike(left, right))
    return SavedPlan(left, right, rules, different)


def compare_saved(
    plan: SavedPlan,
    finder: Finder,
    results: Results,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Compare two saved runs.

    Args:
        plan: The runs, and how strictly to compare.
        finder: Finds the pictures.
        results: Gets what is compared.
        advance: Called after each pair of records.

    Raises:
        OutputError: The page cannot be written.
        SourceError: Records cannot be read any more.
        UsageError: A record has no image id in the COCO results.
    """
    run = _Pairs(plan, finder, results)
    if isinstance(plan.right, CocoResults):
        run.hold_against(plan.right, advance)
    else:
        run.compare(pairs(plan.left, plan.right), advance)
    left, right = plan.sides
    detections = results.summarise()
    finder.close()
    tolerance = plan.rules.tolerance
    wrong = (*failures(detections, None, None, tolerance), *run.failures())
    if results.page is not None:
        results.page.summary = (*(wrong or ("The two sides agree",)), *plan.unlike)
    return VerifyReport(
        agree=not wrong and is_evidence(detections, None),
        failures=wrong,
        left=left,
        right=right,
        tolerance=tolerance,
        compared=results.compared,
        failed=tuple(run.failed),
        unlike=plan.unlike,
        left_only=tuple(run.only[0]),
        right_only=tuple(run.only[1]),
        other_files=tuple(run.other_files),
        detections=detections,
    )


class _Pairs:
    """Compares the records of each input."""

    def __init__(self, plan: SavedPlan, finder: Finder, results: Results) -> None:
        self.failed: list[FailedInput] = []
        self.only: tuple[list[str], list[str]] = ([], [])
        self.other_files: list[str] = []
        self._one_sided: list[str] = []  # errors
        self._plan, self._finder, self._results = plan, finder, results
        self._classes = ClassNames(), ClassNames()

    def compare(
        self,
        found: Iterator[tuple[RecordJson | None, RecordJson | None]],
        advance: Callable[[], None],
    ) -> None:
        """Compare the records of two runs."""
        for left, right in found:
            if left is not None and right is not None:
                self._compare(left, right)
            elif left is not None:
                self.only[0].append(_name(left))
            elif right is not None:
                self.only[1].append(_name(right))
            advance()

    def hold_against(self, results: CocoResults, advance: Callable[[], None]) -> None:
        """Compare the records of a run with COCO results, where no rows mean no detections."""
        for fields in self._plan.left.records():
            if "error" in fields:
                self._fail(fields, fields["error"]["message"])
            else:
                self._add(fields, results.rows(fields), fields.get("sha256"))
            advance()
        self.only[1].extend(results.left_over())

    def failures(self) -> Iterator[str]:
        """What differs besides detections, a sentence each."""
        for side, names in zip(("left", "right"), self.only, strict=True):
            if names:
                yield f"{_inputs(names)} only on the {side}"
        if self._one_sided:
            yield f"{_inputs(self._one_sided)} with an error on one side only"
        if self.other_files:
            yield f"{_inputs(self.other_files)} that are different files on the two sides"

    def _compare(self, left: RecordJson, right: RecordJson) -> None:
        errors = [
            f"{side}: {fields['error']['message']}"
            for side, fields in (("left", left), ("right", right))
            if "error" in fields
        ]
        if errors:
            self._fail(left, "; ".join(errors))
            if len(errors) == 1:
                self._one_sided.append(_name(left))
            return
        hashes = left.get("sha256"), right.get("sha256")
        sizes = [f"{fields['width']}x{fields['height']}" for fields in (left, right)]
        if sizes[0] != sizes[1] or (all(hashes) and hashes[0] != hashes[1]):
            self.other_files.append(_name(left))
        if sizes[0] != sizes[1]:
            self._fail(left, f"{sizes[0]} on the left, {sizes[1]} on the right")
            return
        self._add(left, _rows(right), hashes[0] or hashes[1])

    def _add(self, left: RecordJson, right: BoxRows, digest: str | None) -> None:
        finder, source = self._finder, left["source"]
        origin = Origin(source, frame=left.get("frame"), time_s=left.get("time_s"))
        names, other_names = self._classes
        seen = SeenPicture(
            origin,
            (left["height"], left["width"]),
            partial(finder.picture, left),
            left.get("warnings", ()),
        )
        if self._results.certifies:
            path = finder.path_of(source) if digest is None else None
            self._results.certify(Origin(source, path, origin.frame), digest)
        self._results.add(seen, names.detections(_rows(left)), other_names.detections(right))

    def _fail(self, fields: RecordJson, error: str) -> None:
        self.failed.append(FailedInput(_name(fields), error))
        if self._results.page is not None:
            origin = Origin(fields["source"], frame=fields.get("frame"))
            self._results.page.fail(origin, InputError(error))


def _rows(fields: RecordJson) -> BoxRows:
    return [
        (one["box"], one["score"], one["class_id"], one["class_name"])
        for one in fields["detections"]
    ]


def _name(fields: RecordJson) -> str:
    frame = fields.get("frame")
    return fields["source"] if frame is None else f"{fields['source']} frame {frame}"


def _inputs(names: list[str]) -> str:
    shown = ", ".join(Path(name).name or name for name in names[:MAX_NAMED])
    more = f", and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    count = "1 input" if len(names) == 1 else f"{len(names)} inputs"
    return f"{count} ({shown}{more})"


Pair = tuple[RecordJson | None, RecordJson | None]


def pairs(left: SavedRun, right: SavedRun) -> Iterator[Pair]:
    """Yield the records of each input; None where a run has none.

    Both are read in step. A record waits in memory for its counterpart, so in like order only two
    records are held.
    """
    runs, keys = (left, right), (left.keys, right.keys)
    waiting: tuple[defaultdict[str, list[RecordJson]], ...] = (defaultdict(list), defaultdict(list))
    for step in zip_longest(left.records(), right.records()):
        for side, fields in enumerate(step):
            if fields is None:
                continue
            key, other = runs[side].key(fields), 1 - side
            if key in waiting[other]:
                counterpart = waiting[other][key].pop(0)
                if not waiting[other][key]:
                    del waiting[other][key]
                yield (fields, counterpart) if side == 0 else (counterpart, fields)
            elif key in keys[other]:
                waiting[side][key].append(fields)
            else:
                yield (fields, None) if side == 0 else (None, fields)
    for side, left_over in enumerate(waiting):
        for fields in (one for found in left_over.values() for one in found):
            yield (fields, None) if side == 0 else (None, fields)


class ClassNames:
    """Names of classes by id, as `Detections` take them; they grow as records come."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._names: tuple[str, ...] = ()

    def detections(self, rows: Sequence[tuple[Sequence[float], float, int, str]]) -> Detections:
        """Make detections of boxes with their scores, class ids and class names."""
        new = {class_id: name for _, _, class_id, name in rows if class_id not in self._known}
        if new:
            self._known |= new
            ids = range(max(self._known) + 1)
            self._names = tuple(self._known.get(class_id, "") for class_id in ids)
        return Detections(
            np.array([box for box, *_ in rows], np.float32).reshape(-1, 4),
            np.array([score for _, score, *_ in rows], np.float32),
            np.array([class_id for *_, class_id, _ in rows], np.int64),
            self._names,
        )
