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
    IOU,
    PER_CLASS,
    EvaluatedImage,
    Evaluator,
    MatchedBox,
    require_evaluator,
)
from detcli.commands.eval.figures import FILES, EvaluationPage, plot
from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.image_pairs import OutcomeCounts
from detcli.commands.eval.labels import Dataset, Sample, StructuredRows
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
    """Make sure that plots can be drawn, make the folder for them, and return their paths.

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
    read: Callable[[int, Findings], Dataset],
    plots: Path | None = None,
) -> Iterator["Evaluation"]:
    """Open a model and labelled images, so that the model can be evaluated on them.

    An evaluation may take hours, so what would fail at its end is tried here: libraries that are
    not installed, a folder that cannot be made, outputs that would overwrite an input.

    Args:
        config: What the user asked for.
        model: The model to evaluate.
        read: Reads the labelled images. It is called with the number of the model's classes, and
            with a list to which it adds whatever is odd about the labels.
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
        dataset = read(contract.class_count, findings)
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
    """What a comparison needs to know of one of its two models."""

    report: ComparedSide
    shared_metrics: Metrics  # over the categories that both models know
    scores: Mapping[int, Score]  # of each category that this model knows, by index
    rankings: Sequence[CategoryRanking]  # of the categories that both know, in their order
    outcomes: Mapping[int, list[MatchedBox]]  # by image id, of these categories


class Evaluation(CocoIds):
    """The evaluation of a model on labelled data: detects on all images, then compares.

    It also says which ids images and classes have in the file of `--save-coco`: those of the
    data.
    """

    def __init__(
        self, run: Run, dataset: Dataset, mapping: ClassMapping, findings: Findings
    ) -> None:
        """Prepare to run on the images that are there.

        Args:
            run: The pipeline of `predict`, with the model loaded.
            dataset: The labelled images.
            mapping: Which class of the model stands for which category of the data.
            findings: Collects what is odd about the data.
        """
        self.times = StageTimes()
        self.page: EvaluationPage | None = None
        self.input_files: list[str] = []  # that no output may overwrite
        self._run = run
        self._dataset = dataset
        self._mapping = mapping
        self.findings = findings
        self.samples: list[Sample] = []  # in the order in which they run
        self.images: list[EvaluatedImage] = []
        self.failed: list[UnevaluatedImage] = []
        for sample in dataset.samples:
            if sample.path is None:
                self.failed.append(UnevaluatedImage(sample.name, "no such file"))
            else:
                self.samples.append(sample)

    def image_id(self, record: Record) -> int:
        """The image's id in the data."""
        return self.samples[record.index].image_id

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:  # noqa: ARG002
        """The category's id in the data; None for a class that the data does not have."""
        index = self._mapping.category_of[class_id]
        return None if index is None else self._dataset.categories[index].id

    def records(self) -> Iterator[Record]:
        """Detect on all images, and yield the record of each one as soon as it is there.

        Records are collected for the evaluation, and written to COCO results and to the page where
        the user asked for these.
        """
        pipeline = self._run.pipeline()
        outputs = self._run.config.outputs
        self.times = pipeline.times
        with contextlib.ExitStack() as stack:
            sink = None
            if outputs.save_coco is not None:
                sink = CocoSink(open_output(outputs.save_coco), self)
                stack.callback(sink.close)
            for record in pipeline.run(self._items()):
                self._write(record, sink)
                self.add(record)
                yield record

    def _write(self, record: Record, sink: CocoSink | None) -> None:
        """Write a record to COCO results and to the page, where there are any."""
        if sink is not None:
            with self.times.stage(Stage.WRITE):
                sink.write(record)
        if self.page is not None:
            with self.times.stage(Stage.WRITE):
                self.page.keep(self.image_id(record), record)

    def _items(self) -> Iterator[Item]:
        """Yield the images as the pipeline takes them, to be loaded when it is their turn."""
        for sample in self.samples:
            if sample.path is not None:
                load = partial(load_file, sample.path, self._run.decode)
                yield Item(Origin(str(sample.path), sample.path), load)

    def add(self, record: Record) -> None:
        """Collect the labels and detections of an image, both in pixels.

        Detections of classes that have no category in the data are left out. An image that could
        not be read is noted as failed.
        """
        sample = self.samples[record.index]
        if record.picture is None or record.detections is None:
            reason = str(record.error or "no result")
            self.findings.add(Kind.UNREADABLE, f"{sample.name}: {reason}")
            self.failed.append(UnevaluatedImage(sample.name, reason))
            return

        height, width = record.picture.size
        objects = sample.objects.copy()
        if self._dataset.form == "yolo":  # whose boxes are in fractions of the image
            objects["box"] *= (width, height, width, height)

        image = EvaluatedImage(sample.image_id, objects, self._detection_rows(record.detections))
        self.images.append(image)
        self._report_oddities(sample, image, (height, width))

    def _detection_rows(self, detections: Detections) -> StructuredRows:
        """Convert detections to rows of DETECTION, without classes that have no category."""
        rows = np.zeros(len(detections), DETECTION)
        rows["box"] = detections.xyxy
        rows["box"][:, 2:] -= rows["box"][:, :2]  # from the right bottom corner to width and height
        rows["category"] = self._category_by_class()[detections.class_id]
        rows["score"] = detections.score
        return rows[rows["category"] >= 0]

    def _category_by_class(self) -> npt.NDArray[np.int64]:
        """`(C,)` the index of each class's category, by class id; -1 for classes without one."""
        categories = []
        for category in self._mapping.category_of:
            categories.append(-1 if category is None else category)
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
        classes = tuple(self._class_reports(score_of_category))
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
            require_evaluator(),
            self._model_report(),
            self._data_report(data, image_count, overall.curve.boxes),
            self._limits_report(),
            overall.metrics,
            classes,
            confusions,
            advice,
            self.findings.report(),
            failed=tuple(self.failed),
            plots=plot_files,
        )
        if self.page is not None:
            self.page.finish(report, evaluator, self._mapping, names, scores)
        return report

    def _report_high_confidence(self) -> None:
        """Report a confidence of the run that is so high that the figures are too low."""
        conf = self._run.detector.conf
        if conf > MAX_CONFIDENCE:
            self.findings.add(Kind.HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")

    def _best_conf(self, overall: Score) -> float:
        """The confidence with the best F1 for all classes; the usual one if nothing is right."""
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
            class_id = self._mapping.classes_of(category)[0]  # of several, the first
            categories[category] = names[class_id]
        return categories

    def evaluate_for_comparison(
        self, image_ids: Container[int], categories: Sequence[int]
    ) -> EvaluatedSide:
        """Evaluate the model for a comparison with another one; this can be done once.

        Args:
            image_ids: The images that both models could read; others do not take part.
            categories: The categories that both models know, as indexes of the data's categories.
        """
        images = [image for image in self.images if image.image_id in image_ids]
        self.images.clear()  # to free memory: the evaluator has copied their boxes
        evaluator = Evaluator(images, self._mapping.categories)
        overall, scores = evaluator.score()

        # The figures of the comparison are over the categories that both models know.
        shared_metrics = overall.metrics
        if len(categories) < len(scores):
            evaluator = Evaluator(images, categories)
            score_of_shared, _ = evaluator.score()
            shared_metrics = score_of_shared.metrics

        self._report_high_confidence()
        conf = self._best_conf(overall)
        outcomes = evaluator.outcomes(conf)
        all_outcomes: list[MatchedBox] = []
        for outcomes_of_image in outcomes.values():
            all_outcomes.extend(outcomes_of_image)
        report = ComparedSide(
            self._model_report(),
            self._mapping.by,
            self._limits_report(),
            overall.metrics,
            conf,
            OutcomeCounts.of(all_outcomes),
            self.findings.report(),
        )
        rankings = list(evaluator.rankings().values())
        return EvaluatedSide(report, shared_metrics, scores, rankings, outcomes)

    def _model_report(self) -> EvalModel:
        """What the report says of the model: its file, where it ran, its input and classes."""
        detector = self._run.detector
        return EvalModel(
            self._run.config.runtime.model,
            detector.model_sha256,
            detector.placement,
            detector.canvas,
            len(detector.contract.names),
        )

    def _data_report(self, data: Path, image_count: int, box_count: int) -> EvalData:
        """What the report says of the data.

        Args:
            data: What the user named as the data.
            image_count: How many images were evaluated.
            box_count: How many labelled boxes there were to be detected.
        """
        return EvalData(
            data,
            self._dataset.form,
            self._dataset.split,
            listed=len(self._dataset.samples),
            evaluated=image_count,
            boxes=box_count,
            mapped_by=self._mapping.by,
            categories=len(self._mapping.categories),
        )

    def _limits_report(self) -> EvalLimits:
        """What the report says of the limits that were set to detections."""
        detector = self._run.detector
        return EvalLimits(
            detector.conf,
            self._run.config.settings.max_det,
            PER_CLASS,
            detector.nms,
            tile=None if detector.tiling is None else str(detector.tiling),
        )

    def _class_reports(self, score_of_category: Mapping[int, Score]) -> Iterator[ClassReport]:
        """Yield the result of each class that is a category of the data, in the model's order.

        For a class without any labelled box, a finding is added as well.

        Args:
            score_of_category: The results, by the category's index in the data.
        """
        names = self._run.detector.contract.names
        category_of_class = {}
        for category in score_of_category:
            class_id = self._mapping.classes_of(category)[0]  # of several, the first
            category_of_class[class_id] = category
        for class_id, category in sorted(category_of_class.items()):
            score = score_of_category[category]
            box_count = score.curve.boxes
            # Above the lowest possible confidence, and so of all detections.
            true_positives, false_positives = score.curve.counts(-np.inf)
            detection_count = true_positives + false_positives
            if box_count == 0:
                self.findings.add(Kind.EMPTY, f"{names[class_id]} ({detection_count} detections)")
            yield ClassReport(
                class_id,
                self._dataset.categories[category].id,
                names[class_id],
                box_count,
                detection_count,
                score.metrics,
            )

    def _confusions(self, evaluator: Evaluator, conf: float) -> Confusions:
        """Count which categories were detected as which others above a confidence, by name."""
        name_of: dict[int | None, str] = {}
        for index, category in enumerate(self._dataset.categories):
            name_of[index] = category.name
        counts = []
        for (true_category, detected_as), image_ids in evaluator.confusions(conf).items():
            # None stands for no object, or no detection, and has no name.
            counts.append(
                Confusion(name_of.get(true_category), name_of.get(detected_as), len(image_ids))
            )
        return Confusions(conf, IOU, tuple(counts))
