"""Runs the pictures through the pipeline of `predict` and compares detections with labels."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from detcli.commands.eval.advice import advise, best_confidence
from detcli.commands.eval.coco_data import read_coco
from detcli.commands.eval.dataset import (
    ClassMapping,
    Dataset,
    Findings,
    Form,
    Kind,
    Rows,
    Sample,
    map_classes,
)
from detcli.commands.eval.evaluator import (
    FOUND,
    IOU,
    PER_CLASS,
    EvaluatedPicture,
    Evaluator,
    Score,
    require_evaluator,
)
from detcli.commands.eval.plots import FILES, Plotted, plot, require_matplotlib
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
from detcli.commands.eval.yolo_data import read_yolo
from detcli.commands.shared.setup import RunOptions
from detcli.detections import Detections
from detcli.detector import Detector
from detcli.errors import UsageError
from detcli.files import AtomicFile, make_folder
from detcli.model.zoo import LocatedModel
from detcli.record import Origin, Record
from detcli.sink.coco import CocoSink
from detcli.source.decode import DecodeOptions, load_file
from detcli.source.item import Item
from detcli.source.sources import InputGuard
from detcli.timing import Stage, StageTimes

TOLERANCE = 1.0
"""Pixels that a box may extend beyond its picture, as rounding makes it."""

LOW = 0.01
"""A higher confidence cuts off a part of the precision-recall curve that matters."""

USUAL = 0.25
"""The confidence of `predict`, for the confusions where the best one is unknown."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What to evaluate, and how.

    Attributes:
        run: Which model, where and how.
        model: The model's file.
        data: COCO's `instances.json`; YOLO's `data.yaml`; a list of pictures, `.txt`; or a folder.
        images: The folder of the pictures of an `instances.json`; None for `images` beside it.
        split: The part of a `data.yaml`; None for `val`.
        decode: How pictures are decoded.
        advise: Whether to look for the best confidences.
        plots: Folder for plots; None for none.
        coco: File for COCO results; None for none.
    """

    run: RunOptions
    model: LocatedModel
    data: Path
    images: Path | None
    split: str | None
    decode: DecodeOptions
    advise: bool
    plots: Path | None
    coco: Path | None


def open_dataset(
    data: Path, images: Path | None, split: str | None, class_count: int, findings: Findings
) -> Dataset:
    """Read labels.

    Args:
        data: See `EvalRequest`, as for the next two.
        images: The folder of the pictures of an `instances.json`.
        split: The part of a `data.yaml`.
        class_count: Number of the model's classes, and of categories in data without names.
        findings: Receives what is wrong with the data.

    Raises:
        UsageError: The data cannot be read, or has nothing to evaluate.
        DependencyError: PyYAML is needed and not installed.
    """
    if not os.path.exists(data):
        raise UsageError(f"--data {data}: no such file or folder", "check the path")
    if data.is_file() and data.suffix.lower() == ".json":
        if split is not None:
            raise UsageError(f"--split: {data} has no parts", "name another instances.json")
        dataset = read_coco(data, images, findings)
    else:
        if images is not None:
            raise UsageError(
                f"--images: {data} itself says where its pictures are",
                "leave it out; it belongs to COCO's instances.json",
            )
        dataset = read_yolo(data, split, class_count, findings)
    if not dataset.samples:
        raise UsageError(f"{data} lists no pictures", "check whether it is the right file")
    if not any(len(sample.objects) for sample in dataset.samples):
        why = [f"{one.kind} ({one.count}): {one.examples[0]}" for one in findings.report()]
        if dataset.form is Form.YOLO:
            why.append("labels are looked for in a folder labels beside images")
        raise UsageError(
            f"{data}: none of the {len(dataset.samples)} pictures has a labelled object",
            "; ".join(why) or "check whether it is the right file",
        )
    return dataset


@contextlib.contextmanager
def open_evaluation(request: EvalRequest) -> Iterator["Evaluation"]:
    """Open a model and data; what would fail at the end fails now.

    Raises:
        DependencyError: hotcoco, or matplotlib or PyYAML where needed, is not installed.
        UsageError: The data cannot be used, or an output is one of the inputs.
        OutputError: The folder for plots cannot be made.
        ModelError: The model cannot be used.
        DeviceError: The device cannot be used.
    """
    require_evaluator()
    if request.plots is not None:
        require_matplotlib()
        make_folder(request.plots)
    findings = Findings()
    with request.run.open_detector(request.model) as detector:
        contract = detector.contract
        dataset = open_dataset(
            request.data, request.images, request.split, contract.class_count, findings
        )
        mapping = map_classes(contract.names, dataset, findings)
        yield Evaluation(request, detector, Collector(dataset, mapping, findings))


class Collector:
    """Collects detections beside labels, and what is odd about the latter.

    Attributes:
        samples: The pictures whose files exist, in the order of the run.
        pictures: Their labels and detections so far.
        failed: Pictures that cannot be evaluated, and why.
    """

    def __init__(self, dataset: Dataset, mapping: ClassMapping, findings: Findings) -> None:
        self.dataset, self.mapping, self.findings = dataset, mapping, findings
        self.samples = tuple(sample for sample in dataset.samples if sample.path is not None)
        self.pictures: list[EvaluatedPicture] = []
        self.failed = [
            UnevaluatedPicture(sample.name, "no such file")
            for sample in dataset.samples
            if sample.path is None
        ]
        self._category_of = np.array(
            [-1 if index is None else index for index in mapping.category_of], np.int64
        )

    def image_id(self, record: Record) -> int:
        """The picture's id in the data, for COCO results."""
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
        """Collect a record of the run."""
        sample = self.samples[record.index]
        if record.picture is None or record.detections is None:
            reason = str(record.error or "no result")
            self.findings.add(Kind.UNREADABLE, f"{sample.name}: {reason}")
            self.failed.append(UnevaluatedPicture(sample.name, reason))
            return
        height, width = record.picture.size
        objects = sample.objects
        if self.dataset.relative:
            objects = objects.copy()
            objects["box"] *= (width, height, width, height)
        self._examine(sample, objects, (height, width))
        found = self._found(record.detections)
        counts = np.bincount(found["category"])
        if (counts > PER_CLASS).any():
            self.findings.add(Kind.CUT, f"{sample.name}: {counts.max()}")
        self.pictures.append(EvaluatedPicture(sample.image_id, objects, found))

    def _found(self, detections: Detections) -> Rows:
        found = np.zeros(len(detections), FOUND)
        found["box"] = detections.xyxy
        found["box"][:, 2:] -= found["box"][:, :2]
        found["category"] = self._category_of[detections.class_id]
        found["score"] = detections.score
        return found[found["category"] >= 0]

    def _examine(self, sample: Sample, objects: Rows, size: tuple[int, int]) -> None:
        """Add what is odd about the labels of a picture of (height, width) to the findings."""
        height, width = size
        if sample.size is not None and sample.size != size:
            said = f"{sample.size[1]}x{sample.size[0]}"
            self.findings.add(Kind.OTHER_SIZE, f"{sample.name}: {width}x{height}, not {said}")
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


class Evaluation:
    """A model and the data to evaluate it on."""

    def __init__(self, request: EvalRequest, detector: Detector, collector: Collector) -> None:
        self._request, self._detector, self._collector = request, detector, collector
        self._pipeline = request.run.open_pipeline(detector)
        samples = [str(sample.path) for sample in collector.samples]
        guard = InputGuard([*samples, str(request.model.path), str(request.data)])
        written = [] if request.plots is None else [request.plots / name for name in FILES]
        for path in (*written, *filter(None, [request.coco])):
            if path in guard:
                raise UsageError(f"{path} is one of the inputs", "write to another file")

    @property
    def times(self) -> StageTimes:
        """Seconds spent in each stage of the pipeline."""
        return self._pipeline.times

    @property
    def total(self) -> int:
        """Number of pictures to run."""
        return len(self._collector.samples)

    def run(self, watch: Callable[[Record], None]) -> None:
        """Detect on all pictures.

        Args:
            watch: Receives each record.

        Raises:
            DetcliError: The pipeline ended early, or COCO results cannot be written.
        """
        with contextlib.ExitStack() as stack:
            sink = None
            if self._request.coco is not None:
                sink = CocoSink(AtomicFile(self._request.coco), self._collector)
                stack.callback(sink.close)
            for record in self._pipeline.run(self._collector.items(self._request.decode)):
                if sink is not None:
                    with self.times.stage(Stage.WRITE):
                        sink.write(record)
                self._collector.add(record)
                watch(record)

    def report(self) -> EvalReport:
        """Compare, write the plots, and gather everything.

        Raises:
            OutputError: A plot cannot be written.
        """
        request, detector, collector = self._request, self._detector, self._collector
        dataset, mapping, findings = collector.dataset, collector.mapping, collector.findings
        evaluator = Evaluator(collector.pictures, mapping.categories)
        overall, by_category = evaluator.score()
        classes = tuple(self._classes(by_category))
        for one in classes:
            if not one.boxes:
                findings.add(Kind.EMPTY, f"{one.name} ({one.detections} detections)")
        settings = request.run.settings
        conf = settings.conf
        if conf > LOW:
            findings.add(Kind.HIGH_CONFIDENCE, f"{conf:g} instead of 0.001")
        best = best_confidence(overall.curve, conf)
        confusions = self._confusions(evaluator, max(USUAL, conf) if best is None else best)
        evaluated, names = len(collector.pictures), detector.contract.names
        plots: tuple[Path, ...] = ()
        if request.plots is not None:
            title = f"{detector.model_name} on {request.data}, {evaluated} pictures"
            scores = [
                (dataset.categories[index].name, score) for index, score in by_category.items()
            ]
            plots = plot(request.plots, Plotted(title, scores, overall, confusions, conf))
        advice = None
        if request.advise:
            curves = {index: score.curve for index, score in by_category.items()}
            advice = advise(overall.curve, curves, mapping, names, conf)
        with request.model.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return EvalReport(
            evaluator=require_evaluator(),
            model=EvalModel(
                request.run.model, digest, detector.device, detector.canvas, len(names)
            ),
            data=EvalData(
                *(request.data, dataset.form, dataset.split, len(dataset.samples), evaluated),
                *(overall.curve.boxes, mapping.by, len(mapping.categories)),
            ),
            limits=EvalLimits(conf, settings.max_det, PER_CLASS, settings.nms),
            metrics=overall.metrics,
            classes=classes,
            confusions=confusions,
            advice=advice,
            findings=findings.report(),
            failed=tuple(collector.failed),
            plots=plots,
        )

    def _classes(self, by_category: Mapping[int, Score]) -> Iterator[ClassReport]:
        """Each class that is a category, in the order of the model."""
        mapping, dataset = self._collector.mapping, self._collector.dataset
        for class_id, index in sorted((mapping.classes_of(one)[0], one) for one in by_category):
            score = by_category[index]
            yield ClassReport(
                class_id=class_id,
                category_id=dataset.categories[index].id,
                name=self._detector.contract.names[class_id],
                boxes=score.curve.boxes,
                detections=sum(score.curve.counts(-np.inf)),
                metrics=score.metrics,
            )

    def _confusions(self, evaluator: Evaluator, conf: float) -> Confusions:
        categories = self._collector.dataset.categories
        names: dict[int | None, str] = {index: one.name for index, one in enumerate(categories)}
        counts = evaluator.confusions(conf).items()
        rows = (
            Confusion(names.get(true), names.get(found), count)
            for (true, found), count in sorted(counts, key=lambda one: (-one[1], str(one[0])))
        )
        return Confusions(conf, IOU, tuple(rows))
