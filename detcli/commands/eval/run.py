"""Runs images through the pipeline of `predict` and compares detections with labels."""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.bootstrap import CategoryRanking
from detcli.commands.eval.classes import ClassMapping, map_classes
from detcli.commands.eval.comparison_report import ComparedSide
from detcli.commands.eval.confidence import advise
from detcli.commands.eval.evaluator import (
    DETECTION,
    PER_CLASS,
    EvaluatedImage,
    Evaluator,
    require_evaluator,
)
from detcli.commands.eval.figures import FILES, EvaluationPage, plot
from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.image_pairs import OutcomeCounts
from detcli.commands.eval.labels import Dataset, Sample, StructuredRows
from detcli.commands.eval.matches import IOU, MatchedBox
from detcli.commands.eval.metrics import Metrics, Score
from detcli.commands.eval.report import (
    ClassReport,
    Confusion,
    Confusions,
    EvalData,
    EvalLimits,
    EvalModel,
    EvalReport,
    UnevaluatedImage,
)
from detcli.config.config import DEFAULT_CONF, Config
from detcli.core.errors import loading
from detcli.core.timing import Stage, StageTimes
from detcli.data.detections import Detections
from detcli.data.record import Origin, Record
from detcli.model.file import ModelFile
from detcli.page.folder import require_apart
from detcli.run import Run, open_run
from detcli.sink.labels import CocoIds, CocoSink
from detcli.source.guard import InputGuard
from detcli.source.loading import Item
from detcli.source.reading import load_file
from detcli.storage.files import make_folder, open_output

TOLERANCE = 1.0  # pixels that a box may extend beyond its image, as rounding makes it
MAX_CONFIDENCE = 0.01  # a higher one cuts off too much of the precision-recall curve


def _prepare_plots(folder: Path) -> list[Path]:
    """Check that plots can be drawn, create the folder for them, and return their paths.

    Raises:
        DependencyError: matplotlib is not installed.
        OutputError: The folder cannot be made.
    """
    with loading("matplotlib", 'pip install "detcli[eval]"'):
        import matplotlib as mpl  # noqa: F401 - whether it loads
    make_folder(folder)
    return [folder / name for name in FILES]


@contextlib.contextmanager
def open_evaluation(
    config: Config,
    model: ModelFile,
    read_dataset: Callable[[int, Findings], Dataset],
    plots: Path | None = None,
) -> Iterator["Evaluation"]:
    """Open a model and labelled images, so that the model can be evaluated on them.

    An evaluation may take hours, so what would fail at its end is tried here: libraries that are
    not installed, a folder that cannot be made, outputs that would overwrite an input.

    Args:
        config: What the user asked for.
        model: The model to evaluate.
        read_dataset: Reads the labelled images. It is called with the number of the model's
            classes, and with the findings to which it adds whatever is odd about the labels.
        plots: The folder for plots; None for no plots.

    Yields:
        The evaluation, ready to run. The model and the HTML report are closed after the block.

    Raises:
        UsageError: An output would overwrite an input or another output.
        DependencyError: A library is not installed.
    """
    outputs = config.outputs
    require_evaluator()
    require_apart(outputs.report, (plots, outputs.save_coco))
    plot_paths: list[Path] = []
    if plots is not None:
        plot_paths = _prepare_plots(plots)
    findings = Findings()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(open_run(config, model))
        contract = run.detector.contract
        dataset = read_dataset(contract.class_count, findings)
        mapping = map_classes(contract.names, dataset, findings)

        input_files = dataset.files + [str(model.path)]
        if config.settings.names:
            input_files.append(str(config.settings.names))
        guard = InputGuard(input_files)
        guard.refuse([*plot_paths, outputs.save_coco])

        evaluation = Evaluation(run, dataset, mapping, findings)
        evaluation.input_files = input_files
        if outputs.report is not None:
            page = EvaluationPage(outputs.report, guard, linked=outputs.report_link)
            evaluation.page = stack.enter_context(contextlib.closing(page))
        yield evaluation


class EvaluatedSide(NamedTuple):
    """What a comparison needs to know about one of its two models."""

    report: ComparedSide
    shared_metrics: Metrics  # over the categories that both models know
    scores: Mapping[int, Score]  # of each category that this model knows, by index
    rankings: Sequence[CategoryRanking]  # of the categories that both know, in their order
    outcomes: Mapping[int, list[MatchedBox]]  # by image id, of the categories that both know


class Evaluation(CocoIds):
    """The evaluation of a model on labelled data: detects objects in all images, then compares.

    It also says which ids images and classes have in the file of `--save-coco`: those of the
    data.
    """

    def __init__(
        self, run: Run, dataset: Dataset, mapping: ClassMapping, findings: Findings
    ) -> None:
        """Prepare to run on the images that exist; missing ones are added to `failed` at once.

        Args:
            run: The pipeline of `predict`, with the model loaded.
            dataset: The labelled images.
            mapping: Which class of the model stands for which category of the data.
            findings: Collects what is odd about the data.
        """
        self._run = run
        self._dataset = dataset
        self._mapping = mapping
        self.findings = findings

        # `open_evaluation` sets these two.
        self.input_files: list[str] = []  # files that no output may overwrite
        self.page: EvaluationPage | None = None

        # `records` fills these while it runs; missing images are in `failed` from the beginning.
        self.times = StageTimes()
        self.images: list[EvaluatedImage] = []
        self.failed: list[UnevaluatedImage] = []

        self.samples: list[Sample] = []  # the images that exist, in the order in which they run
        for sample in dataset.samples:
            if sample.path is None:
                self.failed.append(UnevaluatedImage(sample.name, "no such file"))
            else:
                self.samples.append(sample)

    def image_id(self, record: Record) -> int:
        """Return the id that the data gives the image of a record."""
        return self.samples[record.index].image_id

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:  # noqa: ARG002
        """Return the id of a class's category in the data; None for a class without one."""
        category = self._mapping.category_of_class[class_id]
        if category is None:
            return None
        return self._dataset.categories[category].id

    def records(self) -> Iterator[Record]:
        """Detect on all images, and yield the record of each one as soon as it is detected.

        Before a record is yielded, it is written to COCO results and to the page, where the user
        asked for these, and its detections are collected for the evaluation. From the first record
        on, `times` has the seconds that each stage of the pipeline has taken.
        """
        pipeline = self._run.pipeline()
        self.times = pipeline.times
        coco_path = self._run.config.outputs.save_coco
        with contextlib.ExitStack() as stack:
            coco_sink = None
            if coco_path is not None:
                output = open_output(coco_path)
                coco_sink = CocoSink(output, self)
                stack.callback(coco_sink.close)
            for record in pipeline.run(self._items()):
                self._write_outputs(record, coco_sink)
                self.collect(record)
                yield record

    def _write_outputs(self, record: Record, coco_sink: CocoSink | None) -> None:
        """Write a record to COCO results and to the page, where there are any."""
        if coco_sink is not None:
            with self.times.stage(Stage.WRITE):
                coco_sink.write(record)
        if self.page is not None:
            with self.times.stage(Stage.WRITE):
                self.page.keep(self.image_id(record), record)

    def _items(self) -> Iterator[Item]:
        """Yield the images as the pipeline takes them, to be loaded when it is their turn."""
        for sample in self.samples:
            if sample.path is not None:
                load = partial(load_file, sample.path, self._run.decode)
                yield Item(Origin(str(sample.path), sample.path), load)

    def collect(self, record: Record) -> None:
        """Add the labels and detections of an image, both in pixels, to `images`.

        Detections of classes that have no category in the data are left out. An image that could
        not be read is added to `failed` instead. Whatever is odd becomes a finding.
        """
        sample = self.samples[record.index]
        if record.picture is None or record.detections is None:
            reason = str(record.error or "no result")
            self.findings.add(Kind.UNREADABLE, f"{sample.name}: {reason}")
            self.failed.append(UnevaluatedImage(sample.name, reason))
            return

        height, width = record.picture.size
        objects = sample.objects.copy()
        if self._dataset.form == "yolo":  # boxes are in fractions of the image
            objects["box"] *= (width, height, width, height)

        image = EvaluatedImage(sample.image_id, objects, self._detection_rows(record.detections))
        self.images.append(image)
        self._report_oddities(sample, image, (height, width))

    def _detection_rows(self, detections: Detections) -> StructuredRows:
        """Convert detections to rows of DETECTION, without classes that have no category."""
        rows = np.zeros(len(detections), DETECTION)
        rows["box"] = detections.xyxy
        rows["box"][:, 2:] -= rows["box"][:, :2]  # from the bottom right corner to width and height
        rows["category"] = self._category_by_class()[detections.class_id]
        rows["score"] = detections.score
        return rows[rows["category"] >= 0]

    def _category_by_class(self) -> npt.NDArray[np.int64]:
        """`(C,)` the index of each class's category, by class id; -1 for classes without one."""
        categories = []
        for category in self._mapping.category_of_class:
            if category is None:
                categories.append(-1)
            else:
                categories.append(category)
        return np.array(categories, np.int64)

    def _report_oddities(
        self, sample: Sample, image: EvaluatedImage, size: tuple[int, int]
    ) -> None:
        """Report what is odd about the labels of an image, such as boxes beyond its edges.

        Args:
            sample: The image as the data describes it.
            image: Its labels and detections, in pixels.
            size: Its height and width as it was decoded.
        """
        height, width = size
        if sample.size is not None and sample.size != size:
            labelled_height, labelled_width = sample.size
            self.findings.add(
                Kind.OTHER_SIZE,
                f"{sample.name}: {width}x{height}, not {labelled_width}x{labelled_height}",
            )
        detection_counts = np.bincount(image.detections["category"])  # by category
        if (detection_counts > PER_CLASS).any():
            self.findings.add(Kind.CUT, f"{sample.name}: {detection_counts.max()}")

        self._report_odd_boxes(sample.name, image.objects, size)

    def _report_odd_boxes(self, name: str, objects: StructuredRows, size: tuple[int, int]) -> None:
        """Report labelled boxes of an image that are odd by themselves, each kind with an example.

        Args:
            name: The name of the image.
            objects: Its labels, `(N,)` of OBJECT in pixels.
            size: Its height and width.
        """
        height, width = size
        left_top = objects["box"][:, :2]
        width_height = objects["box"][:, 2:]
        right_bottom = left_top + width_height
        begins_outside = (left_top < -TOLERANCE).any(axis=1)
        ends_outside = (right_bottom > np.array([width, height]) + TOLERANCE).any(axis=1)
        # Which of the N boxes are odd, by the kind of oddity.
        odd_boxes = {
            Kind.OUTSIDE: begins_outside | ends_outside,
            Kind.NO_AREA: (width_height <= 0).any(axis=1),
            Kind.CROWD: objects["crowd"],
            Kind.IGNORED: objects["ignored"] & ~objects["crowd"],
        }
        for kind, is_odd in odd_boxes.items():
            if is_odd.any():
                first_box = objects["box"][is_odd][0].round(1).tolist()
                count = int(np.count_nonzero(is_odd))
                self.findings.add(kind, f"{name}: {first_box}", count)

    def report(self, data: Path, plots: Path | None, *, advised: bool) -> EvalReport:
        """Compare all detections with the labels, and gather the results in a report.

        Also draws the plots and completes the page, if there are any.

        Args:
            data: What the user named as the data.
            plots: The folder for plots; None for no plots.
            advised: Whether the report says which confidences are the best.
        """
        detector = self._run.detector
        names = detector.contract.names
        conf = detector.conf
        evaluator = Evaluator(self.images, self._mapping.categories)
        image_count = len(self.images)
        self.images.clear()  # the evaluator has copied their boxes
        overall, score_of_category = evaluator.score()
        classes = self._class_reports(score_of_category)
        self._report_high_confidence()
        best_conf = self._best_conf(overall)
        confusions = self._confusions(evaluator, best_conf)
        advice = None
        if advised:
            curves = {category: score.curve for category, score in score_of_category.items()}
            advice = advise(overall.curve, curves, self._mapping, names, conf)

        scores: list[tuple[str, Score]] = []
        for category, score in score_of_category.items():
            scores.append((self._dataset.categories[category].name, score))
        scores.append(("all", overall))
        plot_files: tuple[Path, ...] = ()
        if plots is not None:
            model_name = Path(detector.model_name).name
            title = f"{model_name} on {data.name}, {image_count} images"
            class_ids = {}
            for category in score_of_category:
                category_name = self._dataset.categories[category].name
                class_ids[category_name] = self._mapping.classes_of(category)[0]
            plot_files = plot(plots, title, scores, confusions, class_ids)
        report = EvalReport(
            evaluator=require_evaluator(),
            model=self._model_report(),
            data=self._data_report(data, image_count, box_count=overall.curve.boxes),
            limits=self._limits_report(),
            metrics=overall.metrics,
            classes=tuple(classes),
            confusions=confusions,
            advice=advice,
            findings=self.findings.report(),
            failed=tuple(self.failed),
            plots=plot_files,
        )
        if self.page is not None:
            self.page.finish(report, evaluator, self._mapping, names, scores)
        return report

    def _report_high_confidence(self) -> None:
        """Add a finding if the run's confidence is so high that the figures are too low."""
        conf = self._run.detector.conf
        if conf > MAX_CONFIDENCE:
            self.findings.add(Kind.HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")

    def _best_conf(self, overall: Score) -> float:
        """Return the confidence with the best F1, or the usual one if no detection is right."""
        conf = self._run.detector.conf
        best_conf = overall.curve.best_confidence(conf)
        if best_conf is None:
            best_conf = max(DEFAULT_CONF, conf)
        return best_conf

    @property
    def dataset(self) -> Dataset:
        """The labelled images."""
        return self._dataset

    @property
    def categories(self) -> dict[int, str]:
        """The categories that the model has a class for: the model's name of each, by index."""
        names = self._run.detector.contract.names
        categories = {}
        for category in self._mapping.categories:
            first_class_id = self._mapping.classes_of(category)[0]
            categories[category] = names[first_class_id]
        return categories

    def evaluate_for_comparison(
        self, image_ids: Container[int], categories: Sequence[int]
    ) -> EvaluatedSide:
        """Evaluate the model for a comparison with another one.

        This empties `images` to free memory, so it can be done once.

        Args:
            image_ids: The images that both models could read; others do not take part.
            categories: The categories that both models know, as indexes of the data's categories.
        """
        self._report_high_confidence()
        images = [image for image in self.images if image.image_id in image_ids]
        self.images.clear()

        # First over all categories that this model knows, as in an evaluation of it alone.
        evaluator = Evaluator(images, self._mapping.categories)
        overall, score_of_category = evaluator.score()
        best_conf = self._best_conf(overall)

        # Then over the categories that both models know. If this model knows no others, the result
        # is the same. Otherwise a second evaluator replaces the first, so that while it works, only
        # one copy of all boxes is in memory.
        shared_overall = overall
        if len(categories) < len(score_of_category):
            evaluator = Evaluator(images, categories)
            shared_overall, _ = evaluator.score()
        outcomes = evaluator.outcomes(best_conf)
        return EvaluatedSide(
            report=self._side_report(overall, best_conf, outcomes),
            shared_metrics=shared_overall.metrics,
            scores=score_of_category,
            rankings=list(evaluator.rankings().values()),
            outcomes=outcomes,
        )

    def _side_report(
        self, overall: Score, best_conf: float, outcomes: Mapping[int, list[MatchedBox]]
    ) -> ComparedSide:
        """Describe this model for the report of a comparison, without regard to the other model.

        Args:
            overall: The result for all categories that the model knows.
            best_conf: The model's confidence with the best F1.
            outcomes: What became of each detection above this confidence and of each missed object,
                by image id.
        """
        all_outcomes: list[MatchedBox] = []
        for outcomes_of_image in outcomes.values():
            all_outcomes.extend(outcomes_of_image)
        return ComparedSide(
            model=self._model_report(),
            mapped_by=self._mapping.mapped_by,
            limits=self._limits_report(),
            metrics=overall.metrics,
            conf=best_conf,
            outcomes=OutcomeCounts.of(all_outcomes),
            findings=self.findings.report(),
        )

    def _model_report(self) -> EvalModel:
        """Describe the model for the report: its file, where it ran, its input and classes."""
        detector = self._run.detector
        return EvalModel(
            file=self._run.config.runtime.model,
            sha256=detector.model_sha256,
            device=detector.placement,
            input_size=detector.canvas,
            classes=len(detector.contract.names),
        )

    def _data_report(self, data: Path, image_count: int, box_count: int) -> EvalData:
        """Describe the data for the report.

        Args:
            data: What the user named as the data.
            image_count: How many images were evaluated.
            box_count: How many labelled boxes there were to be detected.
        """
        return EvalData(
            path=data,
            form=self._dataset.form,
            split=self._dataset.split,
            listed=len(self._dataset.samples),
            evaluated=image_count,
            boxes=box_count,
            mapped_by=self._mapping.mapped_by,
            categories=len(self._mapping.categories),
        )

    def _limits_report(self) -> EvalLimits:
        """Describe for the report which detections are evaluated, by thresholds and limits."""
        detector = self._run.detector
        tile = None
        if detector.tiling is not None:
            tile = str(detector.tiling)
        return EvalLimits(
            conf=detector.conf,
            max_det=self._run.config.settings.max_det,
            per_class=PER_CLASS,
            nms=detector.nms,
            tile=tile,
        )

    def _class_reports(self, score_of_category: Mapping[int, Score]) -> list[ClassReport]:
        """Report the result of each class that is a category of the data, in the model's order.

        Adds a finding for each class without any labelled box.

        Args:
            score_of_category: The results, by the category's index in the data.
        """
        names = self._run.detector.contract.names
        category_by_first_class = {}
        for category in score_of_category:
            # A category may have several classes of the same name; the first stands for all.
            first_class_id = self._mapping.classes_of(category)[0]
            category_by_first_class[first_class_id] = category

        class_reports = []
        for class_id, category in sorted(category_by_first_class.items()):
            score = score_of_category[category]
            box_count = score.curve.boxes
            # All scores are above minus infinity, so this counts all detections.
            true_positives, false_positives = score.curve.counts(-np.inf)
            detection_count = true_positives + false_positives
            if box_count == 0:
                self.findings.add(Kind.EMPTY, f"{names[class_id]} ({detection_count} detections)")
            class_report = ClassReport(
                class_id=class_id,
                category_id=self._dataset.categories[category].id,
                name=names[class_id],
                boxes=box_count,
                detections=detection_count,
                metrics=score.metrics,
            )
            class_reports.append(class_report)
        return class_reports

    def _confusions(self, evaluator: Evaluator, conf: float) -> Confusions:
        """Count the objects of each category by the category that they were detected as.

        Args:
            evaluator: Has the labels and detections of all images.
            conf: Only detections that score more take part.
        """
        # None stands for no object, or for no detection, and has no name.
        name_of_category: dict[int | None, str | None] = {None: None}
        for index, category in enumerate(self._dataset.categories):
            name_of_category[index] = category.name
        confusions = []
        for category_pair, image_ids in evaluator.confusions(conf).items():
            true_category, detected_category = category_pair
            confusion = Confusion(
                true=name_of_category[true_category],
                found=name_of_category[detected_category],
                count=len(image_ids),  # each object adds the id of its image
            )
            confusions.append(confusion)
        return Confusions(conf, IOU, counts=tuple(confusions))
