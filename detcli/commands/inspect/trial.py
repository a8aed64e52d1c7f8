"""Settles by experiment what a file does not say: each way of reading it runs on pictures.

What the ways are ranked by is an `Evidence`: how far detections confirm themselves
(`consistency.py`), or labels (`labelled.py`). A way is found only if it is clearly ahead of all
that differ from it in the same part.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from detcli.backend.device import Device
from detcli.commands.inspect.report import (
    FailedPicture,
    TrialCandidate,
    TrialMethod,
    TrialPart,
    TrialReport,
)
from detcli.commands.inspect.ways import LEAST, ROUNDS, Part, Way, open_parts, said, ways
from detcli.detector import Detector, prepare_for
from detcli.errors import DetcliWarning, ModelError
from detcli.model.contract import BoxFormat, Contract
from detcli.model.names import read_names
from detcli.model.preprocessing import change, named_parts, written
from detcli.model.zoo import LocatedModel
from detcli.settings import Settings

IOU = 0.45
"""Of the suppression that a head of several boxes for an object needs."""

MARGINS: dict[Part, float] = {"values": 0.1, "channels": 0.1, "boxes": 0.1, "resize": 0.2}
"""What the best must be ahead by, as a share of its rank.

Resizing has a larger one: a network may find more in pictures that fill its input than in those it
was trained on.
"""

STUDENT = (
    *(3.747, 3.365, 3.143, 2.998, 2.896, 2.821),
    *(2.764, 2.718, 2.681, 2.650, 2.624, 2.602),
)
"""Quantiles of Student's t at 99%: the standard errors to be ahead by.

For 5 to 16 scores; for more, the last, which is a little too much.
"""


@dataclass(frozen=True, eq=False, slots=True)
class Standing:
    """How well a way does.

    Attributes:
        rank: The higher, the better.
        scores: `(n,)` the same for each picture alone.
        found: Sum of the scores of a picture's detections, on average.
        confirmed: Share of it that other views of the picture confirm; None where none were run.
    """

    rank: float
    scores: npt.NDArray[np.float64]
    found: float
    confirmed: float | None = None


class Evidence(Protocol):
    """What tells ways apart."""

    @property
    def method(self) -> TrialMethod:
        """What ways are ranked by."""

    @property
    def settings(self) -> Settings:
        """The confidence and the number of detections to run with."""

    @property
    def least(self) -> float:
        """Where no way ranks higher, next to nothing was found."""

    @property
    def pictures(self) -> tuple[str, ...]:
        """What it consists of."""

    @property
    def failed(self) -> tuple[FailedPicture, ...]:
        """What cannot be read."""

    def measure(self, detector: Detector, advance: Callable[[], None]) -> Standing:
        """Run a model on all pictures; `advance` is called after each."""


@dataclass(frozen=True, eq=False, slots=True)
class Tried:
    """A way and how well it does."""

    way: Way
    measured: Standing


@dataclass(frozen=True, slots=True)
class Trial:
    """What is to be tried on a model.

    Attributes:
        model: Its file.
        device: Where to run.
        settings: What the user says about it.
        contract: What the file promises, and the user.
        settled: What settles each part.
        parts: What is tried.
    """

    model: LocatedModel
    device: Device
    settings: Settings
    contract: Contract
    settled: Mapping[str, str]
    parts: tuple[Part, ...]

    @classmethod
    def plan(
        cls,
        model: LocatedModel,
        device: str = "auto",
        settings: Settings | None = None,
        parts: Sequence[Part] | None = None,
    ) -> Self:
        """Read a model, and see what has to be tried.

        Args:
            model: The file.
            device: Where to run; of several the first.
            settings: What the user says about the model.
            parts: What to try; None for what neither the file nor the user says.

        Raises:
            ModelError: The model cannot be used, whatever the format of its boxes.
            UsageError: The settings do not suit the model.
        """
        settings, runs_on = settings or Settings(), Device.parse(device)
        boxes: str | None = "the file" if settings.box_format is None else "--box-format"
        try:
            contract = _contract(model, settings)
        except ModelError:
            if settings.box_format is not None:
                raise  # which else would change nothing
            contract = _contract(model, replace(settings, box_format=BoxFormat.XYXY))
            boxes = None
        settled = dict(contract.settled) | ({} if boxes is None else {"boxes": boxes})
        chosen = open_parts(settled) if parts is None else tuple(parts)
        return cls(model, runs_on, settings, contract, settled, chosen)

    @property
    def base(self) -> Way:
        """What the file and the user say."""
        return Way(self.contract.preprocessing, self.contract.box_format, {})

    @property
    def count(self) -> int:
        """How many ways are run."""
        return sum(len(ways(self.base, free)) for free in self._rounds())

    def _rounds(self) -> list[list[Part]]:
        """The parts of each round."""
        rounds = ([part for part in members if part in self.parts] for members in ROUNDS)
        return [free for free in rounds if free]

    def run(self, evidence: Evidence, advance: Callable[[], None] = lambda: None) -> TrialReport:
        """Run all ways on the evidence, and rank them.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The network failed.
        """
        base, tried, parts = self.base, list[Tried](), list[TrialPart]()
        for free in self._rounds():
            rivals = [Tried(way, self._measure(way, evidence, advance)) for way in ways(base, free)]
            own = rivals[0].way
            rivals.sort(key=lambda one: -one.measured.rank)  # of equals the model's own
            judged = [self._judge(part, rivals, evidence.least) for part in free]
            # What stays undecided is left as the file or the user says it, if one of them does.
            kept = {
                one.part: one.best if one.found or not one.settled_by else own.names[one.part]
                for one in judged
            }
            base = next(one.way for one in rivals if one.way.names.items() >= kept.items())
            parts += judged
            tried += rivals
        found = [one for one in parts if one.found is not None and not one.confirms]
        changed = {one.part for one in found}
        left = [part for part in self.contract.unsettled if part not in changed]
        words = [one.option for one in found if one.part != "boxes"]
        if words and left == ["interpolation"]:  # which no trial would show
            words.append(self.contract.preprocessing.interpolation)
            left = []
        if words and self.settings.preprocess is not None:
            if changed.isdisjoint(named_parts(self.settings.preprocess)):
                words.insert(0, self.settings.preprocess)
            else:
                words = [written(change(self.contract.preprocessing, ",".join(words)))]
        boxes = self.settings.box_format if words else None
        return TrialReport(
            method=evidence.method,
            pictures=evidence.pictures,
            failed=evidence.failed,
            parts=tuple(parts),
            preprocess=",".join(words) or None,
            box_format=next((one.option for one in found if one.part == "boxes"), boxes),
            unknown=tuple(left),
            candidates=tuple(map(_describe, tried)),
        )

    def _measure(self, way: Way, evidence: Evidence, advance: Callable[[], None]) -> Standing:
        nms = self.contract.needs_nms or "boxes" in self.parts
        settings = replace(
            self.settings,
            conf=evidence.settings.conf,
            max_det=evidence.settings.max_det,
            nms=IOU if nms else None,
            preprocess=written(way.preprocessing),
            box_format=way.box_format if "boxes" in self.parts else self.settings.box_format,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DetcliWarning)  # of ways that are wrong
            with Detector(self.model, self.device, settings) as detector:
                return evidence.measure(detector, advance)

    def _judge(self, part: Part, rivals: Sequence[Tried], least: float) -> TrialPart:
        """Whether the best way for a part is clearly ahead of all with another way for it."""
        best = rivals[0]
        name = best.way.names[part]
        others = [one for one in rivals if one.way.names[part] != name]
        rank, second = best.measured.rank, others[0]
        margin = (rank - second.measured.rank) / rank if rank > 0 else 0.0
        certain = rank >= least and margin >= MARGINS[part]
        certain = certain and all(is_ahead(best.measured, one.measured) for one in others)
        by = self.settled.get(part)
        own = said(part, self.base) == said(part, best.way)
        return TrialPart(
            part=part,
            found=name if certain else None,
            best=name,
            second=second.way.names[part],
            margin=round(margin, 4),
            settled_by=by,
            confirms=own if certain and by is not None else None,
            option=said(part, best.way),
        )


def is_ahead(best: Standing, other: Standing) -> bool:
    """Whether the scores of one way are higher than those of another by more than chance."""
    ahead = best.scores - other.scores
    count = len(ahead)
    if count < LEAST:
        return False
    quantile = STUDENT[min(count - LEAST, len(STUDENT) - 1)]
    return bool(ahead.mean() > quantile * ahead.std(ddof=1) / count**0.5)


def _contract(model: LocatedModel, settings: Settings) -> Contract:
    contract = prepare_for(model, settings).contract
    if settings.names is None:
        return contract
    return contract.with_names(read_names(Path(settings.names)), str(settings.names))


def _describe(one: Tried) -> TrialCandidate:
    measured = one.measured
    return TrialCandidate(
        preprocess=written(one.way.preprocessing),
        box_format=one.way.box_format,
        rank=round(measured.rank, 4),
        found=round(measured.found, 4),
        confirmed=None if measured.confirmed is None else round(measured.confirmed, 4),
    )
