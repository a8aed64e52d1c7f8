"""What was found in each picture beside what is there, and what is odd about the latter."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from detcli.commands.eval.classes import ClassMapping
from detcli.commands.eval.dataset import Dataset, Sample
from detcli.commands.eval.evaluator import PER_CLASS, Compared, Found
from detcli.commands.eval.findings import (
    CROWD,
    CUT,
    IGNORED,
    NO_AREA,
    OTHER_SIZE,
    OUTSIDE,
    UNREADABLE,
    Findings,
)
from detcli.commands.eval.objects import Objects
from detcli.commands.eval.report import Failed
from detcli.detections import Detections
from detcli.record import Origin, Record
from detcli.source.decode import DecodeOptions, load_file
from detcli.source.item import Item

EDGE = 1.0
"""Pixels that a box may lie outside of its picture: what rounding does."""


class Comparison:
    """Gathers what the evaluator compares.

    Attributes:
        samples: The pictures that are there, in the order of the run.
        compared: What was found in each, beside what is there.
        failed: Those of which there is no comparison, and why.
    """

    def __init__(self, dataset: Dataset, mapping: ClassMapping, findings: Findings) -> None:
        self.samples = tuple(sample for sample in dataset.samples if sample.path is not None)
        self.compared: list[Compared] = []
        self.failed = [
            Failed(sample.name, "no such file") for sample in dataset.samples if sample.path is None
        ]
        self._dataset = dataset
        self._findings = findings
        self._category_of = np.array(
            [-1 if index is None else index for index in mapping.category_of], np.int64
        )

    def items(self, options: DecodeOptions) -> Iterator[Item]:
        """What the pipeline is to run."""
        for sample in self.samples:
            if sample.path is not None:
                load = partial(load_file, sample.path, options)
                yield Item(Origin(str(sample.path), sample.path), load)

    def add(self, record: Record) -> None:
        """Take a record of the run."""
        sample = self.samples[record.index]
        if record.picture is None or record.detections is None:
            reason = str(record.error or "no result")
            self._findings.add(UNREADABLE, f"{sample.name}: {reason}")
            self.failed.append(Failed(sample.name, reason))
            return
        objects = self._objects(sample, record.picture.size)
        self._examine(sample, objects, record.picture.size)
        found = self._found(record.detections)
        counts = np.bincount(found.category)
        if (counts > PER_CLASS).any():
            self._findings.add(CUT, f"{sample.name}: {counts.max()}")
        self.compared.append(Compared(sample.image_id, objects, found))

    def _objects(self, sample: Sample, size: tuple[int, int]) -> Objects:
        return sample.objects.in_pixels(size) if self._dataset.relative else sample.objects

    def _found(self, detections: Detections) -> Found:
        category = self._category_of[detections.class_id]
        known = category >= 0
        boxes = detections.xyxy[known].astype(np.float64)
        boxes[:, 2:] -= boxes[:, :2]
        return Found(boxes, detections.score[known].astype(np.float64), category[known])

    def _examine(self, sample: Sample, objects: Objects, size: tuple[int, int]) -> None:
        """Tell what is odd about the labels of a picture of (height, width)."""
        height, width = size
        if sample.size is not None and sample.size != size:
            said = f"{sample.size[1]}x{sample.size[0]}"
            self._findings.add(OTHER_SIZE, f"{sample.name}: {width}x{height}, not {said}")
        left_top, right_bottom = objects.boxes[:, :2], objects.boxes[:, :2] + objects.boxes[:, 2:]
        outside = (left_top < -EDGE).any(axis=1) | (
            right_bottom > np.array([width, height], np.float64) + EDGE
        ).any(axis=1)
        for kind, chosen in (
            (OUTSIDE, outside),
            (NO_AREA, (objects.boxes[:, 2:] <= 0).any(axis=1)),
            (CROWD, objects.crowd),
            (IGNORED, objects.ignored & ~objects.crowd),
        ):
            count = int(np.count_nonzero(chosen))
            if count:
                first = objects.boxes[chosen][0].round(1).tolist()
                self._findings.add(kind, f"{sample.name}: {first}", count)
