"""Compares two models on the same labelled images."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from detcli.commands.eval.bootstrap import COVERAGE_PERCENT, RESAMPLES, MapInterval, bootstrap
from detcli.commands.eval.comparison_page import ComparisonPage
from detcli.commands.eval.comparison_report import (
    MAX_REPORTED_IMAGES,
    ClassDifference,
    ComparedData,
    ComparisonReport,
    ImageDifference,
    MapDifference,
)
from detcli.commands.eval.evaluator import require_evaluator
from detcli.commands.eval.findings import Findings
from detcli.commands.eval.image_pairs import ImagePair, OutcomeCounts, pair_outcomes
from detcli.commands.eval.labels import Dataset
from detcli.commands.eval.report import UnevaluatedImage
from detcli.commands.eval.run import EvaluatedSide, Evaluation, open_evaluation
from detcli.config.config import Config
from detcli.core.errors import UsageError
from detcli.core.timing import StageTimes
from detcli.data.record import Record
from detcli.model.file import ModelFile
from detcli.source.guard import InputGuard

Read = Callable[[int, Findings], Dataset]
"""Reads the labelled images, given the number of classes of the model, see `open_evaluation`."""


@contextlib.contextmanager
def open_comparison(
    configs: Sequence[Config], models: Sequence[ModelFile], read: Read
) -> Iterator["ComparisonOfModels"]:
    """Open two models and the labelled images, so that the models can be compared on them.

    Both are opened at once, so that what is wrong with the second one is seen before the first one
    runs.

    Args:
        configs: How each of the two models runs.
        models: The two models.
        read: Reads the labelled images.

    Yields:
        The comparison, ready to run. The models and the page are closed after the block.

    Raises:
        UsageError: The models have no category of the data in common, or the page would overwrite
            an input.
    """
    page_folder = configs[0].outputs.report
    with contextlib.ExitStack() as stack:
        evaluations = []
        for config, model in zip(configs, models, strict=True):
            outputs = replace(config.outputs, report=None)  # the page is one of both models
            config_of_side = replace(config, outputs=outputs)
            evaluations.append(stack.enter_context(open_evaluation(config_of_side, model, read)))
        comparison = ComparisonOfModels(*evaluations)
        if page_folder is not None:
            guard = InputGuard(comparison.left.input_files + comparison.right.input_files)
            linked = configs[0].outputs.report_link
            page = ComparisonPage(page_folder, guard, linked=linked)
            comparison.page = stack.enter_context(contextlib.closing(page))
        yield comparison


class ComparisonOfModels:
    """Two models, which run one after the other on all images, and are compared after that."""

    def __init__(self, left: Evaluation, right: Evaluation) -> None:
        """Prepare to run.

        Raises:
            UsageError: The models have no category of the data in common.
        """
        self.left = left
        self.right = right
        self.page: ComparisonPage | None = None
        # The categories that both models know: the first model's name of each, by index.
        self._names: dict[int, str] = {}
        for category, name in left.categories.items():
            if category in right.categories:
                self._names[category] = name
        if not self._names:
            raise UsageError(
                "the models know no category of the data in common",
                "evaluate each by itself, or rename the classes of both: --names FILE",
            )

    @property
    def times(self) -> StageTimes:
        """The seconds that both models have spent in each stage."""
        times = StageTimes()
        for evaluation in (self.left, self.right):
            for stage, seconds in evaluation.times.items():
                times[stage] += seconds
        return times

    def records(self) -> Iterator[Record]:
        """Detect on all images by the first model, then by the second, and yield the records."""
        for record in self.left.records():
            if self.page is not None:
                self.page.keep(self.left.image_id(record), record)
            yield record
        yield from self.right.records()

    def report(self, data: Path) -> ComparisonReport:
        """Compare the detections of both models, and complete the page if there is one.

        Args:
            data: What the user named as the data.
        """
        left_ids = {image.image_id for image in self.left.images}
        right_ids = {image.image_id for image in self.right.images}
        shared_ids = left_ids & right_ids
        categories = list(self._names)
        left = self.left.evaluate_for_comparison(shared_ids, categories)
        right = self.right.evaluate_for_comparison(shared_ids, categories)
        pairs = {}
        for image_id in left.outcomes:
            pairs[image_id] = pair_outcomes(left.outcomes[image_id], right.outcomes[image_id])

        intervals = bootstrap(left.rankings, right.rankings, len(shared_ids))
        left_map = left.shared_metrics
        right_map = right.shared_metrics
        classes = self._class_differences(left, right)
        images = self._image_differences(left, right, pairs)
        report = ComparisonReport(
            evaluator=require_evaluator(),
            data=self._data_report(data, len(shared_ids), classes),
            left=left.report,
            right=right.report,
            map50_95=_difference(left_map.map50_95, right_map.map50_95, intervals.map50_95),
            map50=_difference(left_map.map50, right_map.map50, intervals.map50),
            resamples=RESAMPLES,
            coverage=COVERAGE_PERCENT / 100,
            classes=tuple(classes),
            only_left=_missing_names(self.left.categories, self._names),
            only_right=_missing_names(self.right.categories, self._names),
            differing=len(images),
            images=tuple(images[:MAX_REPORTED_IMAGES]),
            failed=tuple(self._failed()),
        )
        if self.page is not None:
            self.page.finish(report, pairs, self._names)
        return report

    def _data_report(
        self, data: Path, image_count: int, classes: Sequence[ClassDifference]
    ) -> ComparedData:
        """What the report says of the data.

        Args:
            data: What the user named as the data.
            image_count: How many images took part.
            classes: The classes with boxes that both models know.
        """
        dataset = self.left.dataset
        return ComparedData(
            data,
            dataset.form,
            dataset.split,
            listed=len(dataset.samples),
            evaluated=image_count,
            boxes=sum(of_class.boxes for of_class in classes),
        )

    def _class_differences(
        self, left: EvaluatedSide, right: EvaluatedSide
    ) -> list[ClassDifference]:
        """Compare the models by class; the class that contributes most to the difference is first.

        Classes without boxes have no figures, and are left out.
        """
        categories = [
            category for category in self._names if left.scores[category].metrics.map50 is not None
        ]
        classes = []
        for category in categories:
            left_metrics = left.scores[category].metrics
            right_metrics = right.scores[category].metrics
            left_ap = left_metrics.map50_95 or 0.0
            right_ap = right_metrics.map50_95 or 0.0
            of_class = ClassDifference(
                name=self._names[category],
                category_id=self.left.dataset.categories[category].id,
                boxes=left.scores[category].curve.boxes,
                left_map50_95=left_ap,
                right_map50_95=right_ap,
                left_map50=left_metrics.map50 or 0.0,
                right_map50=right_metrics.map50 or 0.0,
                contribution=round((right_ap - left_ap) / len(categories), 6),
            )
            classes.append(of_class)
        return sorted(classes, key=lambda of_class: -abs(of_class.contribution))

    def _image_differences(
        self, left: EvaluatedSide, right: EvaluatedSide, pairs: Mapping[int, ImagePair]
    ) -> list[ImageDifference]:
        """List the images that the models see differently; the one that differs most is first.

        Args:
            left: The evaluation of the first model.
            right: That of the second model.
            pairs: What both make of each image, by image id.
        """
        images = []
        for sample in self.left.samples:
            image_id = sample.image_id
            if image_id in pairs and pairs[image_id].difference_count:
                image = ImageDifference(
                    sample.name,
                    pairs[image_id].difference_count,
                    OutcomeCounts.of(left.outcomes[image_id]),
                    OutcomeCounts.of(right.outcomes[image_id]),
                )
                images.append(image)
        return sorted(images, key=lambda image: -image.differences)

    def _failed(self) -> Iterator[UnevaluatedImage]:
        """Yield the images that one model could not read at least, each once."""
        sources = set()
        for image in self.left.failed + self.right.failed:
            if image.source not in sources:
                yield image
            sources.add(image.source)


def _difference(
    left: float | None, right: float | None, interval: MapInterval | None
) -> MapDifference:
    """Subtract a figure of the first model from that of the second; None stands for no boxes."""
    if left is None or right is None:
        return MapDifference(left, right, None, None)
    return MapDifference(left, right, round(right - left, 6), interval)


def _missing_names(categories: Mapping[int, str], shared: Mapping[int, str]) -> tuple[str, ...]:
    """The names of a model's categories that are not among those that both models know."""
    return tuple(name for category, name in categories.items() if category not in shared)
