"""Compares two models on the same labelled images."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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

DatasetReader = Callable[[int, Findings], Dataset]
"""Reads the labelled images, given the number of classes of the model, see `open_evaluation`."""


@contextlib.contextmanager
def open_comparison(
    configs: Sequence[Config], models: Sequence[ModelFile], read_dataset: DatasetReader
) -> Iterator["ComparisonOfModels"]:
    """Open two models and the labelled images, so that the models can be compared on them.

    The second model is opened before the first one runs, as a first run may take hours before a
    fault of the second one would be seen.

    Args:
        configs: How each of the two models runs. They only differ in the model, so both name the
            same page.
        models: The two models.
        read_dataset: Reads the labelled images.

    Yields:
        The comparison, ready to run. The models and the page are closed after the block.

    Raises:
        UsageError: The models have no category of the data in common, or the page would overwrite
            an input.
    """
    outputs = configs[0].outputs
    # With a page among its outputs, each evaluation would begin a page of its model alone.
    outputs_without_page = replace(outputs, report=None)
    with contextlib.ExitStack() as stack:
        evaluations = []
        for config, model in zip(configs, models, strict=True):
            config_without_page = replace(config, outputs=outputs_without_page)
            evaluation = stack.enter_context(
                open_evaluation(config_without_page, model, read_dataset)
            )
            evaluations.append(evaluation)
        left, right = evaluations
        comparison = ComparisonOfModels(left, right)

        # The page must not overwrite a file that either evaluation reads, so it follows them.
        if outputs.report is not None:
            guard = InputGuard(left.input_files + right.input_files)
            page = ComparisonPage(outputs.report, guard, linked=outputs.report_link)
            comparison.page = stack.enter_context(contextlib.closing(page))
        yield comparison


class ComparisonOfModels:
    """Two models, which run one after the other on all images, and are compared after that."""

    def __init__(self, left: Evaluation, right: Evaluation) -> None:
        """Find the categories that both models know; nothing runs before `records` is read.

        Args:
            left: The first model with the labelled images.
            right: The second model with the same images.

        Raises:
            UsageError: The models have no category of the data in common.
        """
        self.left = left
        self.right = right
        self.page: ComparisonPage | None = None

        # The first model's name of each category that both models know, by the category's index.
        self._shared_names: dict[int, str] = {}
        for category, name in left.categories.items():
            if category in right.categories:
                self._shared_names[category] = name
        if not self._shared_names:
            raise UsageError(
                "the models know no category of the data in common",
                "evaluate each by itself, or rename the classes of both: --names FILE",
            )

    @property
    def times(self) -> StageTimes:
        """The seconds that both models together have spent in each stage."""
        times = StageTimes()
        for evaluation in (self.left, self.right):
            for stage, seconds in evaluation.times.items():
                times[stage] += seconds
        return times

    def records(self) -> Iterator[Record]:
        """Run the first model on all images, then the second, and yield the records."""
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
        # Only images that both models could read and categories that both know are compared.
        left_image_ids = {image.image_id for image in self.left.images}
        right_image_ids = {image.image_id for image in self.right.images}
        shared_image_ids = left_image_ids & right_image_ids
        shared_categories = list(self._shared_names)
        left_side = self.left.evaluate_for_comparison(shared_image_ids, shared_categories)
        right_side = self.right.evaluate_for_comparison(shared_image_ids, shared_categories)

        image_count = len(shared_image_ids)
        map50_95, map50 = _map_differences(left_side, right_side, image_count)
        class_differences = self._class_differences(left_side, right_side)
        image_pairs = _pair_images(left_side, right_side)
        image_differences = self._image_differences(left_side, right_side, image_pairs)

        report = ComparisonReport(
            evaluator=require_evaluator(),
            data=self._data_report(data, image_count, class_differences),
            left=left_side.report,
            right=right_side.report,
            map50_95=map50_95,
            map50=map50,
            resamples=RESAMPLES,
            coverage=COVERAGE_PERCENT / 100,
            classes=tuple(class_differences),
            only_left=_missing_names(self.left.categories, self._shared_names),
            only_right=_missing_names(self.right.categories, self._shared_names),
            differing=len(image_differences),
            images=tuple(image_differences[:MAX_REPORTED_IMAGES]),
            failed=tuple(self._failed()),
        )
        if self.page is not None:
            category_ids = [category.id for category in self.left.dataset.categories]
            self.page.finish(
                report, pairs=image_pairs, names=self._shared_names, category_ids=category_ids
            )
        return report

    def _data_report(
        self, data: Path, image_count: int, class_differences: Sequence[ClassDifference]
    ) -> ComparedData:
        """Describe the data for the report.

        Args:
            data: What the user named as the data.
            image_count: How many images were compared.
            class_differences: The classes with boxes that both models know.
        """
        dataset = self.left.dataset
        return ComparedData(
            path=data,
            form=dataset.form,
            split=dataset.split,
            listed=len(dataset.samples),
            evaluated=image_count,
            boxes=sum(difference.boxes for difference in class_differences),
        )

    def _class_differences(
        self, left: EvaluatedSide, right: EvaluatedSide
    ) -> list[ClassDifference]:
        """Compare the models by class; the class that contributes most to the difference is first.

        Classes without boxes have no figures, and are left out.
        """
        # Both models see the same labels, so a class has boxes for both or for neither.
        categories_with_boxes = [
            category
            for category in self._shared_names
            if left.scores[category].metrics.map50 is not None
        ]
        differences = []
        for category in categories_with_boxes:
            left_metrics = left.scores[category].metrics
            right_metrics = right.scores[category].metrics
            left_ap50_95 = left_metrics.map50_95 or 0.0  # not None, as there are boxes
            right_ap50_95 = right_metrics.map50_95 or 0.0
            # The mAP is the mean over these classes, so each adds this share to the difference.
            contribution = (right_ap50_95 - left_ap50_95) / len(categories_with_boxes)
            difference = ClassDifference(
                name=self._shared_names[category],
                category_id=self.left.dataset.categories[category].id,
                boxes=left.scores[category].curve.boxes,
                left_map50_95=left_ap50_95,
                right_map50_95=right_ap50_95,
                left_map50=left_metrics.map50 or 0.0,
                right_map50=right_metrics.map50 or 0.0,
                contribution=round(contribution, 6),
            )
            differences.append(difference)
        return sorted(differences, key=lambda difference: -abs(difference.contribution))

    def _image_differences(
        self, left: EvaluatedSide, right: EvaluatedSide, pairs: Mapping[int, ImagePair]
    ) -> list[ImageDifference]:
        """List the images that the models see differently; the one that differs most is first.

        Args:
            left: The evaluation of the first model.
            right: That of the second model.
            pairs: The paired outcomes of both models on each image, by image id.
        """
        differences = []
        for sample in self.left.samples:
            image_id = sample.image_id
            if image_id in pairs and pairs[image_id].difference_count:
                difference = ImageDifference(
                    source=sample.name,
                    differences=pairs[image_id].difference_count,
                    left=OutcomeCounts.of(left.outcomes[image_id]),
                    right=OutcomeCounts.of(right.outcomes[image_id]),
                )
                differences.append(difference)
        return sorted(differences, key=lambda difference: -difference.differences)

    def _failed(self) -> Iterator[UnevaluatedImage]:
        """Yield the images that at least one of the models could not read, each once."""
        sources = set()
        for image in self.left.failed + self.right.failed:
            if image.source not in sources:
                yield image
            sources.add(image.source)


def _pair_images(left: EvaluatedSide, right: EvaluatedSide) -> dict[int, ImagePair]:
    """Pair the outcomes of two models on each image that both could read, by image id."""
    image_pairs = {}
    for image_id, left_outcomes in left.outcomes.items():
        image_pairs[image_id] = pair_outcomes(left_outcomes, right.outcomes[image_id])
    return image_pairs


class _MapDifferences(NamedTuple):
    """The mAP50-95 and the mAP50 of two models, with their differences."""

    map50_95: MapDifference
    map50: MapDifference


def _map_differences(
    left: EvaluatedSide, right: EvaluatedSide, image_count: int
) -> _MapDifferences:
    """Subtract the mAP of the first model from that of the second, with intervals by a bootstrap.

    Args:
        left: The evaluation of the first model.
        right: That of the second model, on the same images.
        image_count: How many images were compared.
    """
    intervals = bootstrap(left.rankings, right.rankings, image_count)
    left_metrics = left.shared_metrics
    right_metrics = right.shared_metrics
    return _MapDifferences(
        map50_95=_difference(
            left_metrics.map50_95, right_metrics.map50_95, interval=intervals.map50_95
        ),
        map50=_difference(left_metrics.map50, right_metrics.map50, interval=intervals.map50),
    )


def _difference(
    left: float | None, right: float | None, interval: MapInterval | None
) -> MapDifference:
    """Subtract a figure of the first model from that of the second.

    Args:
        left: The figure of the first model; None if there are no labelled boxes.
        right: The figure of the second model; None if there are no labelled boxes.
        interval: The interval of the difference, which is dropped if a figure is None.
    """
    difference = None
    if left is None or right is None:
        interval = None
    else:
        difference = round(right - left, 6)
    return MapDifference(left=left, right=right, difference=difference, interval=interval)


def _missing_names(categories: Mapping[int, str], shared: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of the categories that only one model knows.

    Args:
        categories: The names of all categories that the model knows, by index.
        shared: The names of the categories that both models know, by index.
    """
    return tuple(name for category, name in categories.items() if category not in shared)
