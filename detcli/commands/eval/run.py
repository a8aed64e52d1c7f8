"""Runs pictures through the pipeline of `predict` and compares detections with labels."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from detcli.commands.eval.evaluator import (
    FOUND,
    IOU,
    PER_CLASS,
    EvaluatedPicture,
    Evaluator,
    Score,
    advise,
    best_confidence,
    require_evaluator,
)
from detcli.commands.eval.figures import FILES, EvaluationPage, plot
from detcli.commands.eval.labels import (
    ClassMapping,
    Dataset,
    Findings,
    Kind,
    Sample,
    map_classes,
    open_dataset,
)
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
from detcli.commands.eval.request import EvalRequest
from detcli.core.config import USUAL_CONF
from detcli.core.errors import loading
from detcli.core.files import make_folder, open_output, sha256
from detcli.core.record import Origin, Record
from detcli.core.timing import Stage
from detcli.model.file import ModelFile
from detcli.run import Run, open_run
from detcli.run.pipeline import Pipeline
from detcli.sink.labels import CocoIds, CocoSink
from detcli.sink.page.folder import require_apart
from detcli.source.decode import DecodeOptions
from detcli.source.fetch import load_file
from detcli.source.loading import Item
from detcli.source.sources import InputGuard

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 1.0  # pixels that a box may extend beyond its picture, as rounding makes it
MAX_CONFIDENCE = 0.01  # a higher one cuts off too much of the precision-recall curve


@contextlib.contextmanager
def open_evaluation(request: EvalRequest, model: ModelFile) -> Iterator["Evaluation"]:
    """Open a model and data; what would fail at the end fails now."""
    config, plots = request.config, request.plots
    require_evaluator()
    require_apart(config.writing.report, (plots, config.writing.save_coco))
    if plots is not None:
        with loading("matplotlib", "pip install 'detcli[eval]'"):
            import matplotlib as mpl  # noqa: F401 - whether it loads
        make_folder(plots)
    findings = Findings()
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(open_run(config, model))
        contract = run.detector.contract
        dataset = open_dataset(
            request.data, request.images, request.split, contract.class_count, findings
        )
        mapping = map_classes(contract.names, dataset, findings)
        collector = EvalCollector(dataset, mapping, findings)
        names = filter(None, [config.settings.names])
        guard = InputGuard([*dataset.files, str(model.path), *map(str, names)])
        written = [] if plots is None else [plots / name for name in FILES]
        guard.refuse([*written, config.writing.save_coco])
        page = None
        if config.writing.report is not None:
            page = EvaluationPage(config.writing.report, guard)
        pipeline = run.pipeline()
        if page is not None:
            stack.enter_context(contextlib.closing(page))
        yield Evaluation(request, run, pipeline, collector, page)


class EvalCollector(CocoIds):
    """Collects detections and labels of each picture, and reports odd labels."""

    def __init__(self, dataset: Dataset, mapping: ClassMapping, findings: Findings) -> None:
        self.dataset, self.mapping, self.findings = dataset, mapping, findings
        self.samples = [one for one in dataset.samples if one.path is not None]  # as they run
        self.pictures: list[EvaluatedPicture] = []
        missing = (one.name for one in dataset.samples if one.path is None)
        self.failed = [UnevaluatedPicture(name, "no such file") for name in missing]

    def image_id(self, record: Record) -> int:
        """The picture's id in the data."""
        return self.samples[record.index].image_id

    def category_id(self, class_id: int, names: tuple[str, ...]) -> int | None:  # noqa: ARG002
        """The category's id in the data; None for a class that the data does not have."""
        index = self.mapping.category_of[class_id]
        return None if index is None else self.dataset.categories[index].id

    def items(self, options: DecodeOptions) -> Iterator[Item]:
        """The pipeline's input."""
        for sample in self.samples:
            if sample.path is not None:
                load = partial(load_file, sample.path, options)
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
        if self.dataset.form == "yolo":
            objects["box"] *= (width, height, width, height)
        categories = [-1 if one is None else one for one in self.mapping.category_of]
        found = np.zeros(len(record.detections), FOUND)
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
        counts = np.bincount(picture.found["category"])
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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model and the data to evaluate it on."""

    request: EvalRequest
    opened: Run
    pipeline: Pipeline
    collector: EvalCollector
    page: EvaluationPage | None = None

    def run(self) -> Iterator[Record]:
        """Detect on all pictures."""
        with contextlib.ExitStack() as stack:
            sink = None
            if (coco := self.request.config.writing.save_coco) is not None:
                sink = CocoSink(open_output(coco), self.collector)
                stack.callback(sink.close)
            for record in self.pipeline.run(self.collector.items(self.opened.source.decode)):
                if sink is not None:
                    with self.pipeline.times.stage(Stage.WRITE):
                        sink.write(record)
                if self.page is not None:
                    with self.pipeline.times.stage(Stage.WRITE):
                        self.page.keep(self.collector.image_id(record), record)
                self.collector.add(record)
                yield record

    def report(self) -> EvalReport:
        """Compare, write the plots, and gather everything."""
        request, detector, collector = self.request, self.opened.detector, self.collector
        dataset, mapping, findings = collector.dataset, collector.mapping, collector.findings
        evaluator = Evaluator(collector.pictures, mapping.categories)
        overall, by_category = evaluator.score()
        classes = tuple(self._classes(by_category))
        for one in classes:
            if not one.boxes:
                findings.add(Kind.EMPTY, f"{one.name} ({one.detections} detections)")
        settings, names = request.config.settings, detector.contract.names
        conf, evaluated = detector.conf, len(collector.pictures)
        if conf > MAX_CONFIDENCE:
            findings.add(Kind.HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")
        best = best_confidence(overall.curve, conf)
        confusions = self._confusions(evaluator, max(USUAL_CONF, conf) if best is None else best)
        plots: tuple[Path, ...] = ()
        if request.plots is not None:
            title = f"{detector.model_name} on {request.data}, {evaluated} pictures"
            scores = [(dataset.categories[index].name, one) for index, one in by_category.items()]
            plots = plot(request.plots, title, [*scores, ("all", overall)], confusions, conf)
        advice = None
        if request.advise:
            curves = {index: score.curve for index, score in by_category.items()}
            advice = advise(overall.curve, curves, mapping, names, conf)
        digest = sha256(self.opened.model.path)
        report = EvalReport(
            evaluator=require_evaluator(),
            model=EvalModel(
                request.config.running.model, digest, detector.device, detector.canvas, len(names)
            ),
            data=EvalData(
                *(request.data, dataset.form, dataset.split, len(dataset.samples), evaluated),
                *(overall.curve.boxes, mapping.by, len(mapping.categories)),
            ),
            limits=EvalLimits(
                conf,
                settings.max_det,
                PER_CLASS,
                detector.nms,
                tile=None if settings.tile is None else str(settings.tile),
            ),
            metrics=overall.metrics,
            classes=classes,
            confusions=confusions,
            advice=advice,
            findings=findings.report(),
            failed=tuple(collector.failed),
            plots=plots,
        )
        if self.page is not None:
            self.page.finish(report, evaluator.outcomes(confusions.conf), mapping, names)
        return report

    def _classes(self, by_category: Mapping[int, Score]) -> Iterator[ClassReport]:
        """Each class that is a category, in the order of the model."""
        mapping, dataset = self.collector.mapping, self.collector.dataset
        for class_id, index in sorted((mapping.classes_of(one)[0], one) for one in by_category):
            score = by_category[index]
            yield ClassReport(
                class_id=class_id,
                category_id=dataset.categories[index].id,
                name=self.opened.detector.contract.names[class_id],
                boxes=score.curve.boxes,
                detections=sum(score.curve.counts(-np.inf)),
                metrics=score.metrics,
            )

    def _confusions(self, evaluator: Evaluator, conf: float) -> Confusions:
        names = {None: None} | {
            index: one.name for index, one in enumerate(self.collector.dataset.categories)
        }
        counts = sorted(evaluator.confusions(conf).items(), key=lambda one: (-one[1], str(one[0])))
        rows = (Confusion(names[true], names[found], count) for (true, found), count in counts)
        return Confusions(conf, IOU, tuple(rows))
