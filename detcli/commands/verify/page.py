"""The page of a verification: both sides' boxes on each picture, what differs first."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from detcli.commands.shared.comparison import Comparison, Match, Rules
from detcli.commands.shared.page import versions
from detcli.commands.verify.report import SideReport
from detcli.detections import Detections
from detcli.errors import InputError
from detcli.geometry import Picture
from detcli.record import Origin, RecordJson, error_to_json
from detcli.sink.draw import Colour
from detcli.sink.page.page import About, BoxKind, Page, Rendering, Row

# BGR; Okabe and Ito's vermillion and blue, which every kind of colour vision tells apart.
LEFT: Colour = (0, 94, 213)
RIGHT: Colour = (178, 114, 0)

BOTH, MOVED, MISSING, EXTRA = range(4)

# Okabe and Ito's reddish purple, as LEFT and RIGHT are colours of theirs.
KINDS = (
    BoxKind("on both sides", (140, 140, 140), wrong=False),
    BoxKind("moved", (167, 121, 204)),
    BoxKind("on the left only", LEFT),
    BoxKind("on the right only", RIGHT, dashed=True),
)


@dataclass(frozen=True, eq=False, slots=True)
class SeenPicture:
    """A picture that both sides have seen.

    Attributes:
        origin: Where it comes from.
        size: Its height and width.
        load: Reads it; None where it is not found any more.
        warnings: What is wrong with it.
    """

    origin: Origin
    size: tuple[int, int]
    load: Callable[[], Picture | None]
    warnings: Sequence[str] = ()


@dataclass(slots=True)
class DifferencePage:
    """A page to which pictures are added as they are compared.

    Attributes:
        summary: What the page says of the whole, when it is complete.
    """

    page: Page
    summary: tuple[str, ...] = ()
    count: int = 0

    def add(
        self, seen: SeenPicture, rendering: Callable[[], Rendering | None], compared: Comparison
    ) -> None:
        """Add a picture.

        Args:
            seen: The picture.
            rendering: Makes what the page shows of it.
            compared: Its boxes.

        Raises:
            OutputError: It cannot be written.
        """
        fields = self._fields(seen.origin)
        fields["height"], fields["width"] = seen.size
        fields["detections"] = []
        if seen.warnings:
            fields["warnings"] = list(seen.warnings)
        self.page.add(fields, rendering, [*_rows(compared)])

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
    path: Path | None, sides: tuple[SideReport, SideReport], rules: Rules, inputs: Container[Path]
) -> Iterator[DifferencePage | None]:
    """Open a page, and complete it when the block ends; None without a path.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """
    if path is None:
        yield None
        return
    tolerance = rules.tolerance
    facts = [
        *(
            (f"{name} {what}", value)
            for name, side in zip(("left", "right"), sides, strict=True)
            for what, value in (
                ("records", side.records),
                ("model", PurePath(side.model).name),
                ("sha256", side.sha256),
                ("device", side.device),
                ("selection", side.selection),
                ("precision", side.precision),
            )
            if value is not None
        ),
        ("conf", f"{rules.conf:g}"),
        ("IoU of a match", f"{rules.least_iou:g}"),
        ("tolerance", f"score {tolerance.score:g}, corner {tolerance.corner:g} pixels"),
        *versions(),
    ]
    about = About("verify", facts, KINDS, floor=rules.lowered_conf)
    opened = DifferencePage(Page(path, about, inputs))
    try:
        yield opened
    finally:
        opened.page.close(opened.summary)
