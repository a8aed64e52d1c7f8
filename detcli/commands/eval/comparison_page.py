"""The page of two models on labelled images: where one is right and the other is not."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from detcli.commands.eval.comparison_report import (
    ComparedSide,
    ComparisonReport,
    class_sentences,
    difference_text,
    interval_text,
)
from detcli.commands.eval.deferred_page import DeferredPage
from detcli.commands.eval.image_pairs import FalsePositive, ImagePair, ObjectPair, corners
from detcli.commands.eval.matches import CORRECT, IOU, MatchedBox
from detcli.commands.eval.metrics import metric_or_unknown
from detcli.data.record import RecordJson
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, PageTable
from detcli.page.run_info import RunInfo, versions

BOTH_RIGHT, ONLY_LEFT, ONLY_RIGHT, BOTH_FALSE, LEFT_FALSE, RIGHT_FALSE, LABEL, BOTH_MISSED = range(
    8
)


# In BGR. Apart from the grey, they are the colours of Okabe and Ito, which every kind of colour
# vision tells apart.
GREEN = (115, 158, 0)
BLUE = (178, 114, 0)
ORANGE = (0, 159, 230)
GREY = (140, 140, 140)
PURPLE = (167, 121, 204)
VERMILLION = (0, 94, 213)
YELLOW = (66, 228, 240)
SKY_BLUE = (233, 180, 86)


def _box_kinds(left_name: str, right_name: str) -> tuple[BoxKind, ...]:
    """List the kinds of boxes on the page, each with how it is shown.

    Outcomes that differ between the models count as wrong for the page, so that images with most of
    them come first. If only one model has boxes of a kind, `side` says which: 0 for left, 1 for
    right.

    Args:
        left_name: The name of the first model on the page.
        right_name: The name of the second model on the page.
    """
    kinds = {
        BOTH_RIGHT: BoxKind("found by both", GREEN, wrong=False),
        ONLY_LEFT: BoxKind(f"found by {left_name} only", BLUE, side=0),
        ONLY_RIGHT: BoxKind(f"found by {right_name} only", ORANGE, side=1),
        BOTH_FALSE: BoxKind("false positive of both", GREY, wrong=False),
        LEFT_FALSE: BoxKind(f"false positive of {left_name}", PURPLE, side=0),
        RIGHT_FALSE: BoxKind(f"false positive of {right_name}", VERMILLION, side=1),
        LABEL: BoxKind("label", YELLOW, dashed=True, wrong=False),
        BOTH_MISSED: BoxKind("missed by both", SKY_BLUE, dashed=True, wrong=False),
    }
    return tuple(kinds[number] for number in sorted(kinds))  # boxes refer to kinds by number


class ComparisonPage(DeferredPage):
    """A page of two models: where one is right and the other is not."""

    def __init__(self, path: Path, inputs: Container[Path], *, linked: bool) -> None:
        """Begin the page; the arguments are those of `DeferredPage`."""
        super().__init__(path, _box_kinds("left", "right"), inputs, linked=linked)

    def finish(
        self,
        report: ComparisonReport,
        pairs: Mapping[int, ImagePair],
        names: Mapping[int, str],
        category_ids: Sequence[int],
    ) -> None:
        """Add the boxes of all images to the page, and prepare the conclusion that `close` writes.

        The conclusion is a summary of the comparison and a table of the classes.

        Args:
            report: The report of the comparison.
            pairs: The paired outcomes of both models on each image that both could read, by image
                id.
            names: The name of each category, by its index. Several may have the same name.
            category_ids: The id of each category in the data, by its index.
        """
        left_name, right_name = report.names
        run_info = RunInfo(
            command="eval",
            facts=_facts(report),
            kinds=_box_kinds(left_name, right_name),
            sides=report.names,
            min_score=min(report.left.conf, report.right.conf),
        )
        self._page.describe(run_info)

        # In the table of classes, a click on a class shows the images in which the models differ in
        # this class. So their record indices are collected by the id of the category.
        differing_records: dict[int, list[int]] = {}
        for stored_record in self._records:
            pair = pairs.get(stored_record.image_id)
            if pair is None:
                self._page.add(_failed(stored_record.fields), stored_record.image)
                continue
            boxes = _page_boxes(pair, names)
            record_index = self._page.add(stored_record.fields, stored_record.image, boxes)
            for category in set(pair.differing_categories):
                category_id = category_ids[category]
                differing_records.setdefault(category_id, []).append(record_index)
        # `close` writes this.
        self._conclusion = Conclusion(_summary(report), _tables(report, differing_records))


def _failed(fields: RecordJson) -> RecordJson:
    """Turn the record of an image that either model could not read into a failed one.

    Returns:
        The same record, which was changed unless it had an error already.
    """
    if "error" in fields:
        return fields
    message = "one of the models could not read it"
    fields["error"] = {"type": "SourceError", "message": message, "hint": ""}
    del fields["detections"]
    return fields


def _facts(report: ComparisonReport) -> list[tuple[str, str]]:
    """List what the figures depend on, as pairs of a label and a value for the page."""
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


def _page_boxes(pair: ImagePair, names: Mapping[int, str]) -> list[PageBox]:
    """List the boxes that the page shows of an image, the differences between the models first.

    Objects and false positives that only one model detects come first. Those of both models and
    objects that both missed follow, and then the label of each object that a model detects.

    Args:
        pair: For each labelled object, which models detect it; and the false positives of both.
        names: The name of each category, by its index.
    """
    boxes_of_one_model = []
    other_boxes = []
    boxes = [_object_box(object_pair, names) for object_pair in pair.objects]
    for false_positive in pair.false_positives:
        boxes.append(_false_positive_box(false_positive, names))
    for box in boxes:
        if box.kind in {ONLY_LEFT, ONLY_RIGHT, LEFT_FALSE, RIGHT_FALSE}:
            boxes_of_one_model.append(box)
        else:
            other_boxes.append(box)

    labels = []
    for object_pair in pair.objects:
        is_found = CORRECT in {object_pair.left.kind, object_pair.right.kind}
        if is_found:
            label = PageBox(
                class_id=object_pair.category,
                class_name=names[object_pair.category],
                score=None,
                corners=corners(object_pair.object_box),
                kind=LABEL,
            )
            labels.append(label)
    return boxes_of_one_model + other_boxes + labels


def _object_box(pair: ObjectPair, names: Mapping[int, str]) -> PageBox:
    """Return the box that shows a labelled object: its detection, or the label if both missed it.

    Args:
        pair: The object, and whether each model detects it.
        names: The name of each category, by its index.
    """
    is_right_on_left = pair.left.kind == CORRECT
    is_right_on_right = pair.right.kind == CORRECT
    if is_right_on_left and is_right_on_right:
        return _page_box(pair.left, BOTH_RIGHT, names, pair.right)
    if is_right_on_left:
        return _page_box(pair.left, ONLY_LEFT, names)
    if is_right_on_right:
        return _page_box(pair.right, ONLY_RIGHT, names)
    return _page_box(pair.left, BOTH_MISSED, names)


def _false_positive_box(false_positive: FalsePositive, names: Mapping[int, str]) -> PageBox:
    """Return the box that shows a false positive of one model, or of both.

    Args:
        false_positive: The false positive.
        names: The name of each category, by its index.
    """
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
    """Convert a detection or a missed object to a box of the page.

    Args:
        outcome: The detection, or the object that was missed.
        kind: What the page says about it, BOTH_RIGHT and so on.
        names: The name of each category, by its index.
        counterpart: The detection of the second model that is shown together with `outcome`, which
            is a detection of the first one.
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
        left = metric_or_unknown(figure.left)
        right = metric_or_unknown(figure.right)
        difference = difference_text(figure.difference)
        interval = f"{interval_text(figure.interval)} in {report.coverage:.0%} of resamples"
        sentences.append(f"{title}: {left} and {right}, difference {difference} ({interval})")
    left_name, right_name = report.names
    sentences.append(f"left, {left_name}: {_outcomes_text(report.left)}")
    sentences.append(f"right, {right_name}: {_outcomes_text(report.right)}")
    sentences.extend(class_sentences(report))
    return sentences


def _outcomes_text(side: ComparedSide) -> str:
    """Describe what became of all boxes of a model, above its best confidence."""
    outcomes = side.outcomes
    counts = f"{outcomes.found} found, {outcomes.false} false positives"
    return f"{counts}, {outcomes.missed} missed, above {side.conf:g}"


def _tables(
    report: ComparisonReport, differing_records: Mapping[int, Sequence[int]]
) -> list[PageTable]:
    """Lay out the only table of the page: the classes, the largest contribution first.

    Args:
        report: The report of the comparison.
        differing_records: By category id, the record indices of the images in which the models
            differ in that category; the row of the category leads to these.
    """
    columns = [
        "class",
        "boxes",
        "left AP50-95",
        "right AP50-95",
        "left AP50",
        "right AP50",
        "contribution",
    ]
    rows = []
    records = []  # for each row
    for difference in report.classes:
        row: list[str | int | float | None] = [
            difference.name,
            difference.boxes,
            difference.left_map50_95,
            difference.right_map50_95,
            difference.left_map50,
            difference.right_map50,
            difference.contribution,
        ]
        rows.append(row)
        records.append(differing_records.get(difference.category_id, ()))
    return [PageTable("Classes that decide", columns, rows=rows, images=records)]
