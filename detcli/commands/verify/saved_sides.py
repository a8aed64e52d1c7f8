"""Compares saved runs: two of detcli, or one with COCO results."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detcli.commands.shared.comparison import Precision, Rules, tolerance_for
from detcli.commands.shared.finder import Finder
from detcli.commands.verify.coco_results import CocoResults, Rows
from detcli.commands.verify.pictures import SeenPicture
from detcli.commands.verify.report import FailedInput, SideReport, VerifyReport
from detcli.commands.verify.results import Results
from detcli.commands.verify.run import failures, is_evidence, titles
from detcli.commands.verify.saved import ClassNames, SavedRun, pairs, unlike
from detcli.errors import InputError
from detcli.record import Origin, RecordJson
from detcli.settings import USUAL_CONF, Settings
from detcli.sink.folder import OutputFolder

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


def plan_saved(
    left: SavedRun,
    right: SavedRun | CocoResults,
    conf: float | None,
    least_iou: float,
    tolerance: Mapping[str, float],
) -> SavedPlan:
    """Work out what to compare.

    Args:
        left: The first run.
        right: The second.
        conf: Detections above this score count; None for all that both sides hold.
        least_iou: Boxes that overlap less do not match.
        tolerance: Replaces the defaults.

    Raises:
        UsageError: A value of the tolerance is out of range.
    """
    runs = [run for run in (left, right) if isinstance(run, SavedRun)]
    known = [run.conf for run in runs if run.conf is not None]
    # Where a run does not say from which score on it has detections, as COCO results do not, that
    # may be the score from which on they count.
    held = max(known, default=None) if len(known) == 2 else None
    conf = conf if conf is not None else max(known, default=USUAL_CONF)
    held = conf if held is None else held
    class_held: dict[int, float] = {}
    for run in runs:
        for class_id, least in run.class_conf.items():
            class_held[class_id] = max(least, class_held.get(class_id, 0.0))
    precisions = {run.precision or Precision.FLOAT32 for run in runs}
    most = [run.max_det for run in runs if run.max_det is not None]
    rules = Rules(
        conf,
        least_iou,
        min(most, default=Settings().max_det),
        tolerance_for(precisions, tolerance),
        held,
        class_held,
    )
    different: tuple[str, ...] = ()
    if isinstance(right, SavedRun):
        different = tuple(unlike(left, right))
    return SavedPlan(left, right, rules, different)


def verify_saved(
    plan: SavedPlan,
    finder: Finder,
    results: Results,
    folder: OutputFolder | None = None,
    advance: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Compare two saved runs.

    Args:
        plan: The runs, and how strictly to compare.
        finder: Finds the pictures.
        results: Gets what is compared.
        folder: Where to draw the worst pictures; None for nowhere.
        advance: Called after each pair of records.

    Raises:
        OutputError: A picture cannot be written.
        SourceError: Records cannot be read any more.
        UsageError: A record has no image id in the COCO results.
    """
    run = _Pairs(plan, finder, results)
    if isinstance(plan.right, CocoResults):
        run.hold_against(plan.right, advance)
    else:
        run.compare(pairs(plan.left, plan.right), advance)
    left, right = plan.sides
    detections = results.summarise(folder, titles(left, right))
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
        no_detections=None,
        tensors=None,
        bisect=None,
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

    def _add(self, left: RecordJson, right: Rows, digest: str | None) -> None:
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


def _rows(fields: RecordJson) -> Rows:
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
