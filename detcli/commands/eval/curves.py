"""Curves: what each confidence would have given, from the evaluator's matches.

The evaluator assigns detections to objects by descending score, so those above a confidence are
assigned as if there were no others: one pass with a low confidence tells about all higher ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from detcli.commands.eval.metrics import Ranking

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Hits and false alarms of the detections that score as much or more.

    Attributes:
        score: `(N,)` float64, descending, no score twice.
        hits: `(N,)` int64, detections of objects.
        alarms: `(N,)` int64, detections of nothing.
        boxes: How many objects there are to be found.
    """

    score: Numbers
    hits: npt.NDArray[np.int64]
    alarms: npt.NDArray[np.int64]
    boxes: int

    @classmethod
    def of(cls, rankings: Iterable[Ranking]) -> Self:
        """Of the detections of one class or more."""
        several = list(rankings)
        scores = np.concatenate([np.zeros(0), *(one.score for one in several)])
        hit = np.concatenate([np.zeros(0, np.bool_), *(one.hit for one in several)])
        order = np.argsort(-scores, kind="stable")
        scores, hit = scores[order], hit[order]
        # Equal scores stand or fall together: a confidence lies behind the last of them.
        last = np.append(scores[1:] < scores[:-1], True)[: len(scores)]
        return cls(
            *(scores[last], np.cumsum(hit)[last], np.cumsum(~hit)[last]),
            sum(one.boxes for one in several),
        )

    @property
    def precision(self) -> Numbers:
        """`(N,)` hits of all detections."""
        return self.hits / (self.hits + self.alarms)

    @property
    def recall(self) -> Numbers:
        """`(N,)` hits of all objects; 0 if there are none."""
        return self.hits / max(self.boxes, 1)

    @property
    def f1(self) -> Numbers:
        """`(N,)` the harmonic mean of the two."""
        return 2 * self.hits / (self.hits + self.alarms + self.boxes)

    def place(self, confidence: float) -> int | None:
        """Index of the lowest score above a confidence; None if there is none."""
        above = int(np.count_nonzero(self.score > confidence))
        return above - 1 if above else None

    def counts(self, confidence: float) -> tuple[int, int]:
        """Hits and false alarms above a confidence."""
        place = self.place(confidence)
        return (0, 0) if place is None else (int(self.hits[place]), int(self.alarms[place]))
