"""The report of two models on the same labelled images, as JSON and as tables.

`left` is the first model and `right` the second one, as in verify; a positive difference speaks for
the second. The JSON Schema is that of eval, which has both reports.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from detcli.cli.report import EMPTY, facts_table, styled_line
from detcli.commands.eval.bootstrap import COVERAGE_PERCENT, MapInterval
from detcli.commands.eval.classes import MappedBy
from detcli.commands.eval.findings import Finding
from detcli.commands.eval.image_pairs import OutcomeCounts
from detcli.commands.eval.labels import Form
from detcli.commands.eval.metrics import Metrics, metric_text
from detcli.commands.eval.report import (
    EvalLimits,
    EvalModel,
    UnevaluatedImage,
    empty_table,
    finding_text,
    limits_text,
    number_text,
)
from detcli.core import frozen
from detcli.core.text import escape_unprintable

MAX_CLASSES = 10  # rows of classes that a table shows
MAX_IMAGES = 10  # rows of images that a table shows
MAX_REPORTED_IMAGES = 100  # images that the report lists
MAX_EXAMPLES = 5  # categories that a sentence names


@frozen
class ComparedSide:
    """One of the two models, by itself."""

    model: EvalModel  # the model
    mapped_by: MappedBy  # how classes were assigned to categories
    limits: EvalLimits  # the detections that were compared
    metrics: Metrics  # over all of its classes with boxes, as eval says about this model alone
    conf: float  # its confidence with the best F1, above which images are compared
    outcomes: OutcomeCounts  # what became of all boxes above this confidence
    findings: tuple[Finding, ...]  # problems and notes, the most serious first


@frozen
class ComparedData:
    """The labelled images that both models have seen."""

    path: Path  # as given
    form: Form  # the format of the labels
    split: str | None  # the part of the data
    listed: int  # number of images it has
    evaluated: int  # number of images that were compared
    boxes: int  # number of boxes to be found in these, of classes that both models know


@frozen
class MapDifference:
    """A figure of both models over the classes that both know, and the difference.

    All are null if there are no boxes.
    """

    left: float | None  # of the first model
    right: float | None  # of the second model
    difference: float | None  # right minus left
    interval: MapInterval | None  # of the difference, by a bootstrap over images


@frozen
class ClassDifference:
    """A class that both models know, with boxes in the data."""

    name: str  # in the first model
    category_id: int  # of the data
    boxes: int  # number of boxes to be found
    left_map50_95: float  # AP50-95 of the first model
    right_map50_95: float  # of the second model
    left_map50: float  # AP50 of the first model
    right_map50: float  # of the second model
    contribution: float  # to the difference in mAP50-95, which is the sum of all contributions


@frozen
class ImageDifference:
    """An image that the models see differently."""

    source: str  # the image
    differences: int  # objects and false positives that only one of the models has
    left: OutcomeCounts  # the outcome of the first model
    right: OutcomeCounts  # of the second model


@frozen
class ComparisonReport:
    """Two models on the same labelled images: which one is better, and how sure that is."""

    evaluator: str  # the program that computed the figures, with its version
    data: ComparedData  # the labelled images
    left: ComparedSide  # the first model
    right: ComparedSide  # the second model
    map50_95: MapDifference  # mAP at IoU 0.5 to 0.95
    map50: MapDifference  # mAP at IoU 0.5
    resamples: int  # number of resamples that the intervals rest on
    coverage: float  # share of the resamples within an interval
    classes: tuple[ClassDifference, ...]  # the largest contribution first, whatever its sign
    only_left: tuple[str, ...]  # categories that only the first model knows
    only_right: tuple[str, ...]  # categories that only the second model knows
    differing: int  # number of images that the models see differently
    images: tuple[ImageDifference, ...]  # of these the hundred that differ most
    failed: tuple[UnevaluatedImage, ...]  # images that were left out of both

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two models: those of their files, or left and right if equal."""
        left_name = Path(self.left.model.file).name.removesuffix(".onnx")
        right_name = Path(self.right.model.file).name.removesuffix(".onnx")
        if left_name == right_name:
            return "left", "right"
        return left_name, right_name

    def verdict(self) -> str:
        """Describe in a sentence which model is better, if the interval shows it."""
        left_name, right_name = self.names
        interval = self.map50_95.interval
        if interval is None:
            return "no boxes to compare on"
        if interval.low > 0:
            return f"{right_name} is better"
        if interval.high < 0:
            return f"{left_name} is better"
        return "the difference may be chance: its interval has both signs, or is zero"


def render_comparison(report: ComparisonReport) -> Iterator[Table | Text]:
    """Lay out the comparison of two models for a terminal, the figures last.

    It yields, in this order: the models and the data, the classes that decide, the images that
    differ most, what is odd about the data, and both figures with their difference.
    """
    yield facts_table(_facts(report))
    if report.classes:
        yield Text()
        yield _title("classes that decide", len(report.classes), MAX_CLASSES)
        yield _class_table(report)
    if report.images:
        yield Text()
        yield _title("images that differ most", report.differing, MAX_IMAGES)
        yield _image_table(report)
    yield Text()
    for prefix, finding in named_findings(report):
        yield Text.assemble((prefix, "cyan"), finding_text(finding))
    for sentence in class_sentences(report):
        yield styled_line(("warning: ", "yellow"), (sentence, ""))
    yield Text()
    yield _figures(report)
    yield styled_line((report.verdict(), "bold"))


def named_findings(report: ComparisonReport) -> Iterator[tuple[str, Finding]]:
    """Yield what is odd about the data, each finding with a prefix that names its model.

    The prefix is "left: " or "right: " if only one model has the finding, and empty if both have
    it.
    """
    left_findings = report.left.findings
    right_findings = report.right.findings
    for finding in left_findings:
        if finding in right_findings:
            yield "", finding
        else:
            yield "left: ", finding
    for finding in right_findings:
        if finding not in left_findings:
            yield "right: ", finding


def class_sentences(report: ComparisonReport) -> Iterator[str]:
    """Yield a sentence for each model that knows categories which the other one does not."""
    left_name, right_name = report.names
    if report.only_left:
        yield _only_sentence(left_name, report.only_left)
    if report.only_right:
        yield _only_sentence(right_name, report.only_right)


def _only_sentence(model_name: str, categories: Sequence[str]) -> str:
    """Describe which categories only one of the models knows.

    Example:
        "only yolo knows 2 of the categories, left out of the difference: car, bus"
    """
    examples = ", ".join(categories[:MAX_EXAMPLES])
    if len(categories) > MAX_EXAMPLES:
        examples += ", ..."
    count = f"{len(categories)} of the categories"
    if len(categories) == 1:
        count = "one category"
    return f"only {model_name} knows {count}, left out of the difference: {examples}"


def _facts(report: ComparisonReport) -> Iterator[tuple[str, str]]:
    """Yield the facts about both models and the data, as pairs of a label and a value."""
    for label, side in (("left", report.left), ("right", report.right)):
        model = side.model
        file_and_digest = f"{model.file} ({model.sha256[:12]})"
        height, width = model.input_size
        device_and_size = f"on {model.device}, {width}x{height}"
        yield label, f"{file_and_digest} {device_and_size}; {limits_text(side.limits)}"

    data = report.data
    form_and_split = str(data.form)
    if data.split:
        form_and_split += f", {data.split}"
    yield "data", f"{data.path} ({form_and_split})"
    yield "images", f"{data.evaluated} of {data.listed}, {data.boxes} boxes"

    # How classes were assigned to categories, which may differ between the models.
    mapped_by = f"by {report.left.mapped_by}"
    if report.right.mapped_by != report.left.mapped_by:
        mapped_by += f" and {report.right.mapped_by}"
    yield "classes", f"{len(report.classes)} with boxes that both know, {mapped_by}"

    yield "evaluator", report.evaluator


def difference_text(difference: float | None) -> str:
    """A difference with its sign and four decimals, one more than figures have."""
    if difference is None:
        return EMPTY
    return f"{difference:+.4f}"


def interval_text(interval: MapInterval | None) -> str:
    """An interval of a difference, as people read it."""
    if interval is None:
        return EMPTY
    return f"{difference_text(interval.low)} to {difference_text(interval.high)}"


def _figures(report: ComparisonReport) -> Table:
    """Lay out the mAP of both models, and the difference with its interval."""
    interval_title = f"{COVERAGE_PERCENT}% of {report.resamples} resamples"
    figures = empty_table("", ["left", "right", "difference", interval_title])
    for title, figure in (("mAP50-95", report.map50_95), ("mAP50", report.map50)):
        figures.add_row(
            title,
            number_text(figure.left),
            number_text(figure.right),
            difference_text(figure.difference),
            interval_text(figure.interval),
        )
    return figures


def _class_table(report: ComparisonReport) -> Table:
    """Lay out the classes that contribute most to the difference in mAP, the largest one first."""
    # A column titled "right" has the figure of the column to its left, but of the right model. To
    # repeat the name of the figure would make the table too wide.
    columns = ["boxes", "left AP50-95", "right", "left AP50", "right", "contribution"]
    class_table = empty_table("class", columns)
    class_table.columns[0].overflow = "fold"  # long names go on in the next line
    for difference in report.classes[:MAX_CLASSES]:
        class_table.add_row(
            Text(escape_unprintable(difference.name)),
            str(difference.boxes),
            metric_text(difference.left_map50_95),
            metric_text(difference.right_map50_95),
            metric_text(difference.left_map50),
            metric_text(difference.right_map50),
            difference_text(difference.contribution),
        )
    return class_table


def _image_table(report: ComparisonReport) -> Table:
    """Lay out the images that differ most, with what became of the boxes of both models."""
    columns = ["differ", "left found", "false", "missed", "right found", "false", "missed"]
    image_table = empty_table("image", columns)
    image_table.columns[0].overflow = "fold"  # long names go on in the next line
    for image in report.images[:MAX_IMAGES]:
        cells = [str(image.differences)]
        for outcomes in (image.left, image.right):
            cells += [str(outcomes.found), str(outcomes.false), str(outcomes.missed)]
        image_table.add_row(Text(escape_unprintable(image.source)), *cells)
    return image_table


def _title(title: str, row_count: int, limit: int) -> Text:
    """Add to the title of a table how many of its rows are shown, if not all of them are."""
    if row_count > limit:
        title = f"{title}, {limit} of {row_count}"
    return styled_line((title, "cyan"))
