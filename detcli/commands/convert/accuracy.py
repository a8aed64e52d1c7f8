"""Measures the old and the new model on labelled pictures, as `detcli eval` does."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from detcli.commands.convert.report import Accuracy
from detcli.commands.shared.labelled.dataset import (
    ClassMapping,
    Dataset,
    Findings,
    Level,
    Sample,
    map_classes,
)
from detcli.commands.shared.labelled.evaluator import (
    EvaluatedPicture,
    Evaluator,
    Metrics,
    require_evaluator,
)
from detcli.commands.shared.labelled.reading import beside_labels, open_dataset
from detcli.detector import Detector
from detcli.errors import DetcliWarning, InputError, SourceError
from detcli.geometry import Picture
from detcli.record import Origin
from detcli.settings import Settings
from detcli.source.decode import load_file
from detcli.source.folders import FileIdentity, identity
from detcli.source.item import Item, failed
from detcli.source.loading import load_in_time
from detcli.source.sources import InputGuard

CONFIDENCE = 0.001
"""Detections above this score take part, as in `detcli eval`."""


@dataclass(frozen=True, slots=True)
class LabelledPictures:
    """Labelled pictures that models are measured on."""

    data: Path
    dataset: Dataset
    mapping: ClassMapping
    findings: Findings
    calibrated: Collection[FileIdentity | None]  # the pictures that are calibrated on, in the end
    advance: Callable[[], None]  # called after each picture

    @classmethod
    def open(  # noqa: PLR0913 - what the options say, and the model
        cls,
        data: Path,
        images: Path | None,
        split: str | None,
        names: Sequence[str],
        *,
        calibrated: Collection[FileIdentity | None],
        advance: Callable[[], None],
    ) -> "LabelledPictures":
        """Read labels as `detcli eval` does, for a model with classes of these names.

        Raises:
            DependencyError: hotcoco, or PyYAML where needed, is not installed.
            UsageError: The data cannot be used, or has no name in common with the model.
        """
        require_evaluator()
        findings = Findings()
        dataset = open_dataset(data, images, split, len(names), findings)
        mapping = map_classes(names, dataset, findings)
        return cls(data, dataset, mapping, findings, calibrated, advance)

    def __contains__(self, path: Path) -> bool:
        """Whether a file is one of the labels, or of the pictures."""
        return path in InputGuard(self.dataset.files)

    def compare(self, models: tuple[Path, Path], settings: Settings) -> Accuracy:
        """Measure two models on the CPU; pictures that cannot be read are left out of both.

        Args:
            models: The model before the conversion, and after it.
            settings: Of both; their confidence is replaced.

        Raises:
            InferenceError: A network failed.
            SourceError: No picture can be read.
        """
        settings = replace(settings, conf=CONFIDENCE)
        samples = list[Sample]()
        before, after = list[EvaluatedPicture](), list[EvaluatedPicture]()
        with (
            Detector(models[0], "cpu", settings) as old,
            Detector(models[1], "cpu", settings) as new,
        ):
            for sample, picture in self._load():
                samples.append(sample)
                for detector, pictures in ((old, before), (new, after)):
                    [found] = detector.submit([picture])()
                    pictures.append(
                        beside_labels(sample, self.dataset, self.mapping, picture.size, found)
                    )
        if not samples:
            raise SourceError(
                f"--data {self.data}: no picture can be read", "detcli eval says more about it"
            )
        for one in self.findings.report():
            if one.level is Level.WARNING:
                _warn(f"{one.kind} ({one.count}): {one.meaning} ({one.examples[0]})")
        known = sum(identity(sample.path) in self.calibrated for sample in samples if sample.path)
        if known:
            _warn(
                f"{known} of the {len(samples)} labelled pictures were calibrated on, which "
                "flatters the new model: use others"
            )
        return Accuracy(
            data=self.data,
            listed=len(self.dataset.samples),
            evaluated=len(samples),
            calibrated=known,
            nms=old.nms,
            before=self._metrics(before),
            after=self._metrics(after),
        )

    def _load(self) -> Iterator[tuple[Sample, Picture]]:
        """The samples that can be read, with a warning for each of the others."""
        for sample in self.dataset.samples:
            try:
                picture = load_in_time(_item(sample))
            except InputError as error:
                _warn(f"{sample.name}: {error}")
            else:
                for warning in picture.warnings:
                    _warn(f"{sample.name}: {warning}")
                yield sample, picture
            self.advance()

    def _metrics(self, pictures: Sequence[EvaluatedPicture]) -> Metrics:
        return Evaluator(pictures, self.mapping.categories).score()[0].metrics


OpenLabels = Callable[[Sequence[str]], LabelledPictures]
"""Reads labels for a model with classes of these names."""


def _item(sample: Sample) -> Item:
    if sample.path is None:
        return failed(sample.name, SourceError("no such file"))
    path = Path(sample.path)
    return Item(Origin(str(path), path), partial(load_file, path))


def _warn(text: str) -> None:
    warnings.warn(text, DetcliWarning, stacklevel=3)
