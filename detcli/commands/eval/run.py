"""Runs pictures through the pipeline of `predict` and compares detections with labels."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from detcli.commands.eval.classes import ClassMapping, map_classes
from detcli.commands.eval.confidence import advise
from detcli.commands.eval.evaluator import (
    DETECTION,
    IOU,
    PER_CLASS,
    EvaluatedPicture,
    Evaluator,
    Score,
    require_evaluator,
)
from detcli.commands.eval.figures import FILES, EvaluationPage, plot
from detcli.commands.eval.findings import Findings, Kind
from detcli.commands.eval.labels import Dataset, Sample
from detcli.commands.eval.report import (
    ClassReport,
    Confusion,
    Confusions,
    EvalData,
    EvalLimits,
    EvalModel,
    EvalReport,
    UnevaluatedPicture,
)
from detcli.config.config import DEFAULT_CONF, Config
from detcli.core.errors import loading
from detcli.core.timing import Stage, StageTimes
from detcli.data.record import Origin, Record
from detcli.model.file import ModelFile
from detcli.page.folder import require_apart
from detcli.run import Run, open_run
from detcli.sink.labels import CocoIds, CocoSink
from detcli.source.fetch import load_file
from detcli.source.guard import InputGuard
from detcli.source.loading import Item
from detcli.storage.files import make_folder, open_output

TOLERANCE = 1.0  # pixels that a box may extend beyond its picture, as rounding makes it
MAX_CONFIDENCE = 0.01  # a higher one cuts off too much of the precision-recall curve


@contextlib.contextmanager
def open_evaluation(
    config: Config,
    model: ModelFile,
    read: Callable[[int, Findings], Dataset],
    plots: Path | None = None,
) -> Iterator["Evaluation"]:
    """Open a model, and data with as many classes; what would fail at the end fails now."""
    outputs = config.outputs
    require_evaluator()
    require_apart(outputs.report, (plots, outputs.save_coco))
    if plots is not None:
        with loading("matplotlib", 'pip install "detcli[eval]"'):
            import matplotlib as mpl  # noqa: F401 - whether it loads
        make_folder(plots)
    findings = Findings()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(open_run(config, model))
        contract = run.detector.contract
        dataset = read(contract.class_count, findings)
        mapping = map_classes(contract.names, dataset, findings)
        names = filter(None, [config.settings.names])
        guard = InputGuard([*dataset.files, str(model.path), *map(str, names)])
        guard.refuse([*(plots / name for name in FILES if plots), outputs.save_coco])
        evaluation = Evaluation(run, dataset, mapping, findings)
        if outputs.report is not None:
            page = EvaluationPage(outputs.report, guard, linked=outputs.report_link)
            evaluation.page = stack.enter_context(contextlib.closing(page))
        yield evaluation


class Evaluation(CocoIds):
    """A model and the data to evaluate it on."""

    def __init__(
        self, run: Run, dataset: Dataset, mapping: ClassMapping, findings: Findings
    ) -> None:
        self.times = StageTimes()
        self.page: EvaluationPage | None = None
        self._run, self._dataset, self._mapping = run, dataset, mapping
        self.findings = findings
        self.samples = [one for one in dataset.samples if one.path is not None]  # as they run
        self.pictures: list[EvaluatedPicture] = []
        missing = (one.name for one in dataset.samples if one.path is None)
        self.failed = [UnevaluatedPicture(name, "no such file") for name in missing]

    def image_id(self, record: Record) -> int:
        """The picture's id in the data."""
        return self.samples[record.index].image_id

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:  # noqa: ARG002
        """The category's id in the data; None for a class that the data does not have."""
        index = self._mapping.category_of[class_id]
        return None if index is None else self._dataset.categories[index].id

    def records(self) -> Iterator[Record]:
        """Detect on all pictures."""
        pipeline, outputs = self._run.pipeline(), self._run.config.outputs
        self.times = pipeline.times
        with contextlib.ExitStack() as stack:
            sink = None
            if outputs.save_coco is not None:
                sink = CocoSink(open_output(outputs.save_coco), self)
                stack.callback(sink.close)
            for record in pipeline.run(self._items()):
                if sink is not None:
                    with self.times.stage(Stage.WRITE):
                        sink.write(record)
                if self.page is not None:
                    with self.times.stage(Stage.WRITE):
                        self.page.keep(self.image_id(record), record)
                self.add(record)
                yield record

    def _items(self) -> Iterator[Item]:
        for sample in self.samples:
            if sample.path is not None:
                load = partial(load_file, sample.path, self._run.decode)
                yield Item(Origin(str(sample.path), sample.path), load)

    def add(self, record: Record) -> None:
        """Collect a record; detections of classes without a category are left out."""
        sample = self.samples[record.index]
        if record.picture is None or record.detections is None:
            reason = str(record.error or "no result")
            self.findings.add(Kind.UNREADABLE, f"{sample.name}: {reason}")
            self.failed.append(UnevaluatedPicture(sample.name, reason))
            return
        height, width = record.picture.size
        objects = sample.objects.copy()
        if self._dataset.form == "yolo":
            objects["box"] *= (width, height, width, height)
        categories = [-1 if one is None else one for one in self._mapping.category_of]
        found = np.zeros(len(record.detections), DETECTION)
        found["box"] = record.detections.xyxy
        found["box"][:, 2:] -= found["box"][:, :2]
        found["category"] = np.array(categories)[record.detections.class_id]
        found["score"] = record.detections.score
        picture = EvaluatedPicture(sample.image_id, objects, found[found["category"] >= 0])
        self.pictures.append(picture)
        self._examine(sample, picture, (height, width))

    def _examine(self, sample: Sample, picture: EvaluatedPicture, size: tuple[int, int]) -> None:
        """Report odd labels of a picture of (height, width)."""
        height, width = size
        if sample.size not in {None, size}:
            said = f"{sample.size[1]}x{sample.size[0]}"
            self.findings.add(Kind.OTHER_SIZE, f"{sample.name}: {width}x{height}, not {said}")
        counts = np.bincount(picture.detections["category"])
        if (counts > PER_CLASS).any():
            self.findings.add(Kind.CUT, f"{sample.name}: {counts.max()}")
        objects = picture.objects
        left_top, sides = objects["box"][:, :2], objects["box"][:, 2:]
        outside = (left_top < -TOLERANCE) | (left_top + sides > np.array(size[::-1]) + TOLERANCE)
        for kind, chosen in (
            (Kind.OUTSIDE, outside.any(axis=1)),
            (Kind.NO_AREA, (sides <= 0).any(axis=1)),
            (Kind.CROWD, objects["crowd"]),
            (Kind.IGNORED, objects["ignored"] & ~objects["crowd"]),
        ):
            if chosen.any():
                first = objects["box"][chosen][0].round(1).tolist()
                self.findings.add(kind, f"{sample.name}: {first}", int(np.count_nonzero(chosen)))

    def report(self, data: Path, plots: Path | None, *, advised: bool) -> EvalReport:
        """Compare, write the plots, and gather everything."""
        run, dataset, mapping = self._run, self._dataset, self._mapping
        detector, settings = run.detector, run.config.settings
        names, conf = detector.contract.names, detector.conf
        evaluator = Evaluator(self.pictures, mapping.categories)
        evaluated = len(self.pictures)
        self.pictures.clear()  # the evaluator has their rows
        overall, by_category = evaluator.score()
        classes = tuple(self._classes(by_category))
        if conf > MAX_CONFIDENCE:
            self.findings.add(Kind.HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")
        best = overall.curve.best(conf)
        confusions = self._confusions(evaluator, max(DEFAULT_CONF, conf) if best is None else best)
        title = f"{detector.model_name} on {data}, {evaluated} pictures"
        scores = [(dataset.categories[index].name, one) for index, one in by_category.items()]
        scores.append(("all", overall))
        advice = None
        if advised:
            curves = {index: score.curve for index, score in by_category.items()}
            advice = advise(overall.curve, curves, mapping, names, conf)
        report = EvalReport(
            require_evaluator(),
            EvalModel(
                run.config.runtime.model,
                detector.model_sha256,
                detector.placement,
                detector.canvas,
                len(names),
            ),
            EvalData(
                data,
                dataset.form,
                dataset.split,
                listed=len(dataset.samples),
                evaluated=evaluated,
                boxes=overall.curve.boxes,
                mapped_by=mapping.by,
                categories=len(mapping.categories),
            ),
            EvalLimits(
                conf,
                settings.max_det,
                PER_CLASS,
                detector.nms,
                tile=None if detector.tiling is None else str(detector.tiling),
            ),
            overall.metrics,
            classes,
            confusions,
            advice,
            self.findings.report(),
            failed=tuple(self.failed),
            plots=plot(plots, title, scores, confusions) if plots else (),
        )
        if self.page is not None:
            self.page.finish(report, evaluator, mapping, names, scores)
        return report

    def _classes(self, by_category: Mapping[int, Score]) -> Iterator[ClassReport]:
        """Each class that is a category, in the order of the model."""
        names = self._run.detector.contract.names
        for class_id, index in sorted(
            (self._mapping.classes_of(one)[0], one) for one in by_category
        ):
            score, name = by_category[index], names[class_id]
            boxes, detections = score.curve.boxes, sum(score.curve.counts(-np.inf))
            if not boxes:
                self.findings.add(Kind.EMPTY, f"{name} ({detections} detections)")
            category = self._dataset.categories[index]
            yield ClassReport(class_id, category.id, name, boxes, detections, score.metrics)

    def _confusions(self, evaluator: Evaluator, conf: float) -> Confusions:
        named: dict[int | None, str] = dict(enumerate(one.name for one in self._dataset.categories))
        rows = (
            Confusion(named.get(true), named.get(found), len(where))
            for (true, found), where in evaluator.confusions(conf).items()
        )
        return Confusions(conf, IOU, tuple(rows))
