"""The page of a verification: both sides' boxes on each picture, what differs first."""

from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from detcli.commands.shared.comparison import Comparison, Match
from detcli.commands.shared.page import versions
from detcli.commands.verify.pictures import LEFT, RIGHT
from detcli.commands.verify.plan import Plan
from detcli.detections import Detections
from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Origin, RecordJson, error_to_json
from detcli.sink.page.page import About, BoxKind, Page, Row, render

BOTH, MOVED, MISSING, EXTRA = range(4)

# Okabe and Ito's reddish purple, as LEFT and RIGHT are colours of theirs.
KINDS = (
    BoxKind("on both sides", (140, 140, 140), wrong=False),
    BoxKind("moved", (167, 121, 204)),
    BoxKind("on the left only", LEFT),
    BoxKind("on the right only", RIGHT, dashed=True),
)


@dataclass(slots=True)
class DifferencePage:
    """A page to which pictures are added as they are compared.

    Attributes:
        summary: What the page says of the whole, when it is complete.
    """

    page: Page
    summary: tuple[str, ...] = ()
    count: int = 0

    def add(self, origin: Origin, picture: Picture, compared: Comparison) -> None:
        """Add a picture.

        Raises:
            OutputError: It cannot be written.
        """
        fields = self._fields(origin)
        fields["height"], fields["width"] = picture.size
        fields["detections"] = []
        if picture.warnings:
            fields["warnings"] = list(picture.warnings)
        self.page.add(fields, partial(render, picture.pixels), [*_rows(compared)])

    def fail(self, origin: Origin, error: InputError) -> None:
        """Add an input that cannot be read.

        Raises:
            OutputError: It cannot be written.
        """
        self.page.add({**self._fields(origin), "error": error_to_json(error)}, lambda: None)

    def _fields(self, origin: Origin) -> RecordJson:
        fields: RecordJson = {"schema_version": 1, "source": origin.source, "index": self.count}
        self.count += 1
        if origin.frame is not None:
            fields["frame"] = origin.frame
        if origin.time_s is not None:
            fields["time_s"] = round(origin.time_s, 3)
        return fields


def _rows(compared: Comparison) -> Iterator[Row]:
    """The boxes of a picture, those that differ first."""
    for match in compared.over:
        yield _pair(compared, match, MOVED)
    for found, rows, kind in (
        (compared.left, compared.missing, MISSING),
        (compared.right, compared.extra, EXTRA),
    ):
        for row in rows:
            yield Row(*_box(found, row), kind)
    for match in compared.pairs:
        yield _pair(compared, match, BOTH)


def _pair(compared: Comparison, match: Match, kind: int) -> Row:
    _, _, score, sides = _box(compared.right, match.right)
    return Row(*_box(compared.left, match.left), kind, (score, sides))


def _box(found: Detections, row: int) -> tuple[int, str, float, list[float]]:
    ((box, score, class_id, name),) = found[row]
    return class_id, name, round(score, 4), box.tolist()


@contextmanager
def open_page(
    path: Path | None, plan: Plan, inputs: Container[Path]
) -> Iterator[DifferencePage | None]:
    """Open a page, and complete it when the block ends; None without a path.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    if path is None:
        yield None
        return
    sides = [
        (f"{name} {what}", value)
        for name, side in (("left", plan.left), ("right", plan.right))
        for what, value in (
            ("model", side.file.path.name),
            ("sha256", side.file.sha256),
            ("device", side.device),
            ("selection", side.selected_by.value),
            ("precision", side.precision.value),
        )
    ]
    tolerance = plan.rules.tolerance
    facts = [
        *sides,
        ("conf", f"{plan.rules.conf:g}"),
        ("IoU of a match", f"{plan.rules.least_iou:g}"),
        ("tolerance", f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"),
        *versions(),
    ]
    about = About("verify", facts, KINDS, floor=plan.rules.lowered_conf)
    opened = DifferencePage(Page(path, about, inputs))
    try:
        yield opened
    finally:
        opened.page.close(opened.summary)
