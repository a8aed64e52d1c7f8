"""The page of two models on labelled images: where one is right and the other is not."""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from detcli.commands.eval.comparison_report import (
    ComparedSide,
    ComparisonReport,
    class_sentences,
    difference_text,
    interval_text,
)
from detcli.commands.eval.deferred_page import DeferredPage
from detcli.commands.eval.evaluator import CORRECT, IOU, MatchedBox
from detcli.commands.eval.image_pairs import FalsePositive, ImagePair, ObjectPair, corners
from detcli.commands.eval.metrics import figure_text
from detcli.data.record import RecordJson
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, PageTable, RunInfo, versions

BOTH_RIGHT, ONLY_LEFT, ONLY_RIGHT, BOTH_FALSE, LEFT_FALSE, RIGHT_FALSE, LABEL, BOTH_MISSED = range(
    8
)


def _kinds(left: str, right: str) -> tuple[BoxKind, ...]:
    """Say how the page shows each kind of box of two models.

    The kinds are in the order of their numbers, from BOTH_RIGHT to BOTH_MISSED. Those that set the
    models apart are `wrong`: images with most of these come first. A kind that only one model has
    names its side, 0 or 1.

    The colours, in BGR, are those of Okabe and Ito, which every kind of colour vision tells apart.

    Args:
        left: What the page calls the first model.
        right: What the page calls the second model.
    """
    return (
        BoxKind("found by both", (115, 158, 0), wrong=False),
        BoxKind(f"found by {left} only", (178, 114, 0), side=0),
        BoxKind(f"found by {right} only", (0, 159, 230), side=1),
        BoxKind("false positive of both", (140, 140, 140), wrong=False),
        BoxKind(f"false positive of {left}", (167, 121, 204), side=0),
        BoxKind(f"false positive of {right}", (0, 94, 213), side=1),
        BoxKind("label", (66, 228, 240), dashed=True, wrong=False),
        BoxKind("missed by both", (233, 180, 86), dashed=True, wrong=False),
    )


class ComparisonPage(DeferredPage):
    """A page of two models: where one is right and the other is not."""

    def __init__(self, path: Path, inputs: Container[Path], *, linked: bool) -> None:
        """Begin the page; the arguments are those of `DeferredPage`."""
        super().__init__(path, _kinds("left", "right"), inputs, linked=linked)

    def finish(
        self, report: ComparisonReport, pairs: Mapping[int, ImagePair], names: Mapping[int, str]
    ) -> None:
        """Add all images with their boxes to the page, and the figures of the comparison.

        Args:
            report: The report of the comparison.
            pairs: What both models make of each image that both could read, by image id.
            names: The name of each category, by its index.
        """
        left_name, right_name = report.names
        min_score = min(report.left.conf, report.right.conf)
        kinds = _kinds(left_name, right_name)
        self._page.describe(RunInfo("eval", _facts(report), kinds, report.names, min_score))

        # The page numbers its records. In a table, a category leads to those where the models
        # differ.
        records_of_category: dict[int, list[int]] = {}
        for image_id, fields, image in self._records:
            if image_id not in pairs:
                self._page.add(_failed(fields), image)
                continue
            pair = pairs[image_id]
            record_number = self._page.add(fields, image, list(_page_boxes(pair, names)))
            for category in set(pair.differing_categories):
                records_of_category.setdefault(category, []).append(record_number)
        records_of_class = {names[key]: numbers for key, numbers in records_of_category.items()}
        self._conclusion = Conclusion(_summary(report), _tables(report, records_of_class))


def _failed(fields: RecordJson) -> RecordJson:
    """The record of an image that one of the models could not read, or both: it has an error."""
    if "error" in fields:
        return fields
    message = "one of the models could not read it"
    fields["error"] = {"type": "SourceError", "message": message, "hint": ""}
    del fields["detections"]
    return fields


def _facts(report: ComparisonReport) -> list[tuple[str, str]]:
    """What the figures depend on, as pairs of a label and a text for the page."""
    facts = []
    for name, side in (("left", report.left), ("right", report.right)):
        facts.append((f"{name} model", Path(side.model.file).name))
        facts.append((f"{name} sha256", side.model.sha256))
        facts.append((f"{name} evaluated above", f"{side.limits.conf:g}"))
        facts.append((f"{name} shown above", f"{side.conf:g}"))
    facts.append(("data", str(report.data.path)))
    facts.append(("evaluator", report.evaluator))
    facts.append(("IoU of a match", f"{IOU:g}"))
    facts.extend(versions())
    return facts


def _page_boxes(pair: ImagePair, names: Mapping[int, str]) -> Iterator[PageBox]:
    """Yield the boxes that the page shows of an image, those that set the models apart first.

    The labels of the objects that a model has found come last.

    Args:
        pair: What both models make of the image.
        names: The name of each category, by its index.
    """
    boxes = [_detected_object(object_pair, names) for object_pair in pair.objects]
    for false_positive in pair.false_positives:
        boxes.append(_false_positive(false_positive, names))
    differing_kinds = {ONLY_LEFT, ONLY_RIGHT, LEFT_FALSE, RIGHT_FALSE}
    yield from (box for box in boxes if box.kind in differing_kinds)
    yield from (box for box in boxes if box.kind not in differing_kinds)

    for object_pair in pair.objects:
        is_found = CORRECT in {object_pair.left.kind, object_pair.right.kind}
        if is_found:
            yield PageBox(
                class_id=object_pair.category,
                class_name=names[object_pair.category],
                score=None,
                box=corners(object_pair.object_box),
                kind=LABEL,
            )


def _detected_object(pair: ObjectPair, names: Mapping[int, str]) -> PageBox:
    """A labelled object as a box of the page: the detection, or the label if both missed it."""
    is_right_on_left = pair.left.kind == CORRECT
    is_right_on_right = pair.right.kind == CORRECT
    if is_right_on_left and is_right_on_right:
        return _page_box(pair.left, BOTH_RIGHT, names, pair.right)
    if is_right_on_left:
        return _page_box(pair.left, ONLY_LEFT, names)
    if is_right_on_right:
        return _page_box(pair.right, ONLY_RIGHT, names)
    return _page_box(pair.left, BOTH_MISSED, names)


def _false_positive(false_positive: FalsePositive, names: Mapping[int, str]) -> PageBox:
    """A false positive of one model, or of both, as a box of the page."""
    detection = false_positive.detection
    if false_positive.counterpart is not None:
        return _page_box(detection, BOTH_FALSE, names, false_positive.counterpart)
    if false_positive.is_left:
        return _page_box(detection, LEFT_FALSE, names)
    return _page_box(detection, RIGHT_FALSE, names)


def _page_box(
    outcome: MatchedBox,
    kind: int,
    names: Mapping[int, str],
    counterpart: MatchedBox | None = None,
) -> PageBox:
    """Convert what became of a box to a box of the page.

    Args:
        outcome: A detection, or an object that was missed.
        kind: What the page says of it, BOTH_RIGHT and so on.
        names: The name of each category, by its index.
        counterpart: The detection of the second model, if `outcome` is one of the first and both
            are shown together.
    """
    score_and_corners = None
    if counterpart is not None:
        score_and_corners = (counterpart.score, corners(counterpart.box))
    return PageBox(
        class_id=outcome.category,
        class_name=names[outcome.category],
        score=outcome.score,
        corners=corners(outcome.box),
        kind=kind,
        counterpart=score_and_corners,
    )


def _summary(report: ComparisonReport) -> list[str]:
    """Sum up the comparison in a few lines."""
    sentences = [report.verdict()]
    for title, figure in (("mAP50-95", report.map50_95), ("mAP50", report.map50)):
        left = _figure_or_unknown(figure.left)
        right = _figure_or_unknown(figure.right)
        difference = difference_text(figure.difference)
        interval = f"{interval_text(figure.interval)} in {report.coverage:.0%} of resamples"
        sentences.append(f"{title}: {left} and {right}, difference {difference} ({interval})")
    left_name, right_name = report.names
    sentences.append(f"left, {left_name}: {_outcomes_text(report.left)}")
    sentences.append(f"right, {right_name}: {_outcomes_text(report.right)}")
    sentences.extend(class_sentences(report))
    return sentences


def _outcomes_text(side: ComparedSide) -> str:
    """What became of all boxes of a model, above its best confidence."""
    outcomes = side.outcomes
    counts = f"{outcomes.found} found, {outcomes.false} false positives"
    return f"{counts}, {outcomes.missed} missed, above {side.conf:g}"


def _figure_or_unknown(figure: float | None) -> str:
    """A figure as people read it."""
    if figure is None:
        return "unknown"
    return figure_text(figure)


def _tables(
    report: ComparisonReport, records_of_class: Mapping[str, Sequence[int]]
) -> list[PageTable]:
    """Lay out the classes, the largest contribution to the difference first.

    Args:
        report: The report of the comparison.
        records_of_class: Numbers of the records in which the models differ in a class, by name.
    """
    columns = ["class", "boxes", "left AP50-95", "right AP50-95", "left AP50", "right AP50"]
    columns.append("contribution")
    rows = []
    records = []
    for of_class in report.classes:
        row: list[str | int | float | None] = [of_class.name, of_class.boxes]
        row += [of_class.left_map50_95, of_class.right_map50_95]
        row += [of_class.left_map50, of_class.right_map50, of_class.contribution]
        rows.append(row)
        records.append(records_of_class.get(of_class.name, ()))
    return [PageTable("Classes that decide", columns, rows, records)]
