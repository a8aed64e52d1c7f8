"""Ranks interpretations of a model by mAP on labelled pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from detcli.commands.inspect.report import FailedPicture, TrialMethod
from detcli.commands.inspect.trial import Measurement
from detcli.commands.shared.labelled.dataset import (
    ClassMapping,
    Dataset,
    Findings,
    Sample,
    map_classes,
)
from detcli.commands.shared.labelled.evaluator import EvaluatedPicture, Evaluator, require_evaluator
from detcli.commands.shared.labelled.reading import beside_labels, open_dataset
from detcli.detector import Detector
from detcli.errors import InputError, SourceError
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.settings import Settings
from detcli.source.decode import load_file

MOST = 64
"""Pictures that each interpretation runs on."""


@dataclass(frozen=True, eq=False, slots=True)
class Labelled:
    """Labelled pictures, as an `Evidence`."""

    pictures: tuple[str, ...]
    failed: tuple[FailedPicture, ...]
    samples: tuple[Sample, ...]
    dataset: Dataset
    mapping: ClassMapping
    method: TrialMethod = "mAP"
    settings: Settings = field(default_factory=lambda: Settings(conf=0.001, max_det=300))
    least: float = 0.01

    @classmethod
    def open(
        cls, data: Path, images: Path | None, split: str | None, contract: Contract
    ) -> "Labelled":
        """Read data as `detcli eval` does, and choose pictures with labels, spread over it.

        Raises:
            DependencyError: hotcoco, or PyYAML where needed, is not installed.
            UsageError: The data cannot be used.
            SourceError: No picture can be read.
        """
        require_evaluator()
        findings = Findings()
        dataset = open_dataset(data, images, split, contract.class_count, findings)
        mapping = map_classes(contract.names, dataset, findings)
        known = [one for one in dataset.samples if len(one.objects)]
        places = np.linspace(0, len(known) - 1, min(MOST, len(known))).round().astype(int)
        samples, failed = list[Sample](), list[FailedPicture]()
        for sample in (known[place] for place in places.tolist()):
            try:
                _load(sample)
            except InputError as error:
                failed.append(FailedPicture(sample.name, str(error)))
            else:
                samples.append(sample)
        if not samples:
            raise SourceError(
                f"--data: no picture could be read: {failed[0].source}: {failed[0].error}",
                "check the data with: detcli eval",
            )
        names = tuple(one.name for one in samples)
        return cls(names, tuple(failed), tuple(samples), dataset, mapping)

    def measure(self, detector: Detector, advance: Callable[[], None]) -> Measurement:
        """Rank by the mAP of all pictures; the scores are those of each alone."""
        compared, found = list[EvaluatedPicture](), 0.0
        for sample in self.samples:
            picture = _load(sample)
            detections = detector.submit([picture])()[0]
            found += float(detections.score.sum())
            beside = beside_labels(sample, self.dataset, self.mapping, picture.size, detections)
            compared.append(beside)
            advance()
        return Measurement(
            rank=self._mean_precision(compared),
            scores=np.array([self._mean_precision([one]) for one in compared]),
            found=found / len(compared),
        )

    def _mean_precision(self, compared: Sequence[EvaluatedPicture]) -> float:
        """The mAP at IoU 0.5 to 0.95; 0 without objects."""
        overall, _ = Evaluator(compared, self.mapping.categories).score()
        return overall.metrics.map50_95 or 0.0


def _load(sample: Sample) -> Picture:
    """Load a picture.

    Raises:
        InputError: It is missing, or cannot be read.
    """
    if sample.path is None:
        raise SourceError("no such file")
    return load_file(sample.path)
