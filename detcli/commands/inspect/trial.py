"""Decides by experiment what a file does not say: each interpretation of it runs on pictures.

An `Evidence` ranks the interpretations: how far detections confirm themselves (`consistency.py`),
or labels (`labelled.py`). A part is found only if the best interpretation is clearly ahead of all
that differ from it in this part.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from detcli.backend.device import Device
from detcli.commands.inspect.interpretations import (
    LEAST,
    ROUNDS,
    Interpretation,
    Part,
    candidates,
    open_parts,
    option_text,
)
from detcli.commands.inspect.report import (
    FailedPicture,
    TrialCandidate,
    TrialMethod,
    TrialPart,
    TrialReport,
)
from detcli.detector import Detector, prepare_for
from detcli.errors import DetcliWarning, ModelError, UsageError
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
class Measurement:
    """How well an interpretation does.

    Attributes:
        rank: The higher, the better.
        scores: `(n,)` the rank on each picture alone.
        found: Sum of the scores of a picture's detections, on average.
        confirmed: Share of it that other views of the picture confirm; None where none were run.
    """

    rank: float
    scores: npt.NDArray[np.float64]
    found: float
    confirmed: float | None = None


class Evidence(Protocol):
    """What ranks interpretations."""

    @property
    def method(self) -> TrialMethod:
        """What interpretations are ranked by."""

    @property
    def settings(self) -> Settings:
        """The confidence and the number of detections to run with."""

    @property
    def least(self) -> float:
        """The rank that the best must have; below it, next to nothing was found."""

    @property
    def pictures(self) -> tuple[str, ...]:
        """Names of the pictures."""

    @property
    def failed(self) -> tuple[FailedPicture, ...]:
        """Pictures that cannot be read."""

    def measure(self, detector: Detector, advance: Callable[[], None]) -> Measurement:
        """Run a model on all pictures; `advance` is called after each."""


@dataclass(frozen=True, eq=False, slots=True)
class Tried:
    """An interpretation and how well it does."""

    candidate: Interpretation
    measured: Measurement


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
        device: str | Device = "auto",
        settings: Settings | None = None,
        parts: Sequence[Part] | None = None,
    ) -> Self:
        """Read a model, and see what has to be tried.

        Args:
            model: The file.
            device: Where to run.
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
        if "values" in chosen and contract.takes_levels:
            raise UsageError(
                "--parts values: this graph takes whole numbers, the levels of a picture",
                "leave values out",
            )
        return cls(model, runs_on, settings, contract, settled, chosen)

    @property
    def base(self) -> Interpretation:
        """What the file and the user say."""
        return Interpretation(self.contract.preprocessing, self.contract.box_format, {})

    @property
    def count(self) -> int:
        """Number of interpretations to run."""
        return sum(len(candidates(self.base, free)) for free in self._rounds())

    def _rounds(self) -> list[list[Part]]:
        """The parts of each round."""
        rounds = ([part for part in members if part in self.parts] for members in ROUNDS)
        return [free for free in rounds if free]

    def run(self, evidence: Evidence, advance: Callable[[], None] = lambda: None) -> TrialReport:
        """Run all interpretations on the evidence, and rank them.

        Raises:
            DeviceError: The device cannot be used.
            InferenceError: The network failed.
        """
        base, tried, parts = self.base, list[Tried](), list[TrialPart]()
        for free in self._rounds():
            rivals = [
                Tried(one, self._measure(one, evidence, advance)) for one in candidates(base, free)
            ]
            own = rivals[0].candidate
            rivals.sort(key=lambda one: -one.measured.rank)  # of equals the model's own
            judged = [self._judge(part, rivals, evidence.least) for part in free]
            # What stays undecided is left as the file or the user says it, if one of them does.
            kept = {
                one.part: one.best if one.found or not one.settled_by else own.names[one.part]
                for one in judged
            }
            base = next(
                one.candidate for one in rivals if one.candidate.names.items() >= kept.items()
            )
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

    def _measure(
        self, candidate: Interpretation, evidence: Evidence, advance: Callable[[], None]
    ) -> Measurement:
        nms = self.contract.needs_nms or "boxes" in self.parts
        settings = replace(
            self.settings,
            conf=evidence.settings.conf,
            max_det=evidence.settings.max_det,
            nms=IOU if nms else None,
            preprocess=written(candidate.preprocessing),
            box_format=candidate.box_format if "boxes" in self.parts else self.settings.box_format,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DetcliWarning)  # of interpretations that are wrong
            with Detector(self.model, self.device, settings) as detector:
                return evidence.measure(detector, advance)

    def _judge(self, part: Part, rivals: Sequence[Tried], least: float) -> TrialPart:
        """Whether the best interpretation is clearly ahead of all that differ from it in a part."""
        best = rivals[0]
        name = best.candidate.names[part]
        others = [one for one in rivals if one.candidate.names[part] != name]
        rank, second = best.measured.rank, others[0]
        margin = (rank - second.measured.rank) / rank if rank > 0 else 0.0
        certain = rank >= least and margin >= MARGINS[part]
        certain = certain and all(is_ahead(best.measured, one.measured) for one in others)
        by = self.settled.get(part)
        own = option_text(part, self.base) == option_text(part, best.candidate)
        return TrialPart(
            part=part,
            found=name if certain else None,
            best=name,
            second=second.candidate.names[part],
            margin=round(margin, 4),
            settled_by=by,
            confirms=own if certain and by is not None else None,
            option=option_text(part, best.candidate),
        )


def is_ahead(best: Measurement, other: Measurement) -> bool:
    """Whether one interpretation's scores exceed another's by more than chance."""
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
        preprocess=written(one.candidate.preprocessing),
        box_format=one.candidate.box_format,
        rank=round(measured.rank, 4),
        found=round(measured.found, 4),
        confirmed=None if measured.confirmed is None else round(measured.confirmed, 4),
    )
