"""The page of an evaluation: what was found, what is false, and what was missed."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from detcli.commands.eval.report import EvalReport
from detcli.commands.shared.labelled.dataset import ClassMapping
from detcli.commands.shared.labelled.evaluator import IOU, PictureOutcome
from detcli.commands.shared.page import versions
from detcli.record import Record, RecordJson
from detcli.sink.page.page import About, BoxKind, Page, Row, Table, render

FOUND, FALSE, MISSED = range(3)

# Okabe and Ito's bluish green, vermillion and blue, which every kind of colour vision tells apart.
KINDS = (
    BoxKind("found", (115, 158, 0), wrong=False),
    BoxKind("false positive", (0, 94, 213)),
    BoxKind("missed", (178, 114, 0), dashed=True),
)


@dataclass(slots=True)
class EvaluatedRecord:
    """What the page needs of a record until all are compared: its JSON without boxes."""

    image_id: int
    fields: RecordJson
    picture: str | None


class EvaluationPage:
    """A page whose pictures are written during the run, and the rest when all are compared.

    Raises:
        UsageError: The folder has something else in it, or another run is writing to it.
        OutputError: It cannot be written to.
    """

    def __init__(self, path: Path, inputs: Container[Path]) -> None:
        self._page = Page(path, About("eval", [*versions()], KINDS), inputs)
        self._records: list[EvaluatedRecord] = []
        self._summary: tuple[str, ...] = ()
        self._tables: tuple[Table, ...] = ()

    def keep(self, image_id: int, record: Record) -> None:
        """Write the picture of a record.

        Raises:
            OutputError: It cannot be written.
        """
        fields, picture = record.to_json(), None
        if record.picture is not None:
            fields["detections"] = []
            picture = self._page.store(partial(render, record.picture.pixels))
        self._records.append(EvaluatedRecord(image_id, fields, picture))

    def finish(
        self,
        report: EvalReport,
        outcomes: dict[int, PictureOutcome],
        mapping: ClassMapping,
        names: Sequence[str],
    ) -> None:
        """Add all records and figures.

        Args:
            report: The figures.
            outcomes: Boxes by image id, above the confidence of the report's confusions.
            mapping: Classes of categories.
            names: Of classes.

        Raises:
            OutputError: It cannot be written.
        """
        conf, model = report.confusions.conf, report.model
        facts = [
            *(("sha256", model.sha256), ("data", str(report.data.path))),
            *(("evaluator", report.evaluator), ("evaluated above", f"{report.limits.conf:g}")),
            *(("shown above", f"{conf:g}"), ("IoU of a match", f"{IOU:g}"), *versions()),
        ]
        self._page.describe(About("eval", facts, KINDS, floor=conf))
        for record in self._records:
            boxes = outcomes.get(record.image_id)
            rows = [] if boxes is None else [*_rows(boxes, mapping, names)]
            self._page.add(record.fields, record.picture, rows)
        metrics = report.metrics
        totals = [sum(one) for one in zip(*map(_counts, outcomes.values()), strict=True)] or [0] * 3
        counts = (
            f"{totals[FOUND]} found, {totals[FALSE]} false positives, {totals[MISSED]} missed, "
            f"above {conf:g} and from an IoU of {IOU:g} on"
        )
        self._summary = (
            f"mAP50-95 {_figure(metrics.map50_95)}, mAP50 {_figure(metrics.map50)}",
            counts,
        )
        self._tables = tuple(_tables(report, outcomes, mapping))

    def close(self) -> None:
        """Complete the page, as far as it came.

        Raises:
            OutputError: It cannot be written.
        """
        self._page.close(self._summary, self._tables)


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _counts(outcome: PictureOutcome) -> tuple[int, int, int]:
    hits = int(outcome.hit.sum())
    return hits, len(outcome.hit) - hits, len(outcome.missed)


def _rows(outcome: PictureOutcome, mapping: ClassMapping, names: Sequence[str]) -> Iterator[Row]:
    """The boxes of a picture, the best first, then what was missed."""

    def row(one: Any, score: float | None, kind: int) -> Row:  # noqa: ANN401 - a row of an array
        class_id = mapping.classes_of(int(one["category"]))[0]
        left, top, width, height = one["box"].tolist()
        box = [left, top, left + width, top + height]
        return Row(class_id, names[class_id], score, box, kind)

    order = (-outcome.found["score"]).argsort(kind="stable")
    for one, hit in zip(outcome.found[order], outcome.hit[order], strict=True):
        yield row(one, round(float(one["score"]), 4), FOUND if hit else FALSE)
    for one in outcome.missed:
        yield row(one, None, MISSED)


def _tables(
    report: EvalReport, outcomes: dict[int, PictureOutcome], mapping: ClassMapping
) -> Iterator[Table]:
    """Each class, those with most false positives first, and what was taken for what."""
    counts = {one.class_id: [0, 0, 0] for one in report.classes}
    for outcome in outcomes.values():
        for rows, kinds in (
            (outcome.found, [FOUND if hit else FALSE for hit in outcome.hit]),
            (outcome.missed, [MISSED] * len(outcome.missed)),
        ):
            for category, kind in zip(rows["category"].tolist(), kinds, strict=True):
                counts[mapping.classes_of(category)[0]][kind] += 1
    columns = ["class", "boxes", "found", "false positives", "missed", "AP50-95", "AP50"]
    ordered = sorted(report.classes, key=lambda one: -counts[one.class_id][FALSE])
    yield Table(
        "By class",
        columns,
        [
            [one.name, one.boxes, *counts[one.class_id], one.metrics.map50_95, one.metrics.map50]
            for one in ordered
        ],
    )
    confused = [one for one in report.confusions.counts if one.true != one.found]
    yield Table(
        "Taken for something else",
        ["is", "found as", "times"],
        [[one.true or "nothing", one.found or "not found", one.count] for one in confused],
    )
