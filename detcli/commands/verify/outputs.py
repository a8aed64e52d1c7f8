"""Compares the raw outputs of two networks: their heads, before any selection."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detcli.commands.verify.graphs import Probe
from detcli.commands.verify.report import TensorReport
from detcli.commands.verify.tensors import badness, compare_tensors, worse
from detcli.errors import DetcliWarning, ModelError
from detcli.geometry import Picture
from detcli.model.contract import Contract
from detcli.model.head import BOX_ROWS

Tensor = npt.NDArray[Any]
Heads = tuple[Contract, Contract]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors that should be alike, by their names in either graph."""

    left: str
    right: str


class OutputComparison:
    """Compares two networks' outputs, picture by picture.

    Detectors are compared by their heads, boxes and scores apart, whichever way round they lie:
    next to pixels a score is nothing. Other networks are compared by outputs of the same name, else
    by their order.

    Attributes:
        left: The one network.
        right: The other.
        worst: The picture on which they are furthest apart, its name, and the pair of tensors.

    Raises:
        ModelError: They have nothing in common.
    """

    def __init__(self, left: Probe, right: Probe, heads: Heads | None, limit: float) -> None:
        """Prepare.

        Args:
            left: The one network.
            right: The other.
            heads: Contracts of both, if their only outputs are the heads; else None.
            limit: See `compare_tensors`.
        """
        self.left, self.right = left, right
        self.worst: tuple[Picture, str, Pair] | None = None
        self._limit = limit
        self._heads = heads
        self._pairs = self._pair_up()
        self._reports: dict[str, TensorReport] = {}
        self._worst_badness = (False, -1.0)

    @property
    def reports(self) -> tuple[TensorReport, ...]:
        """Each pair on the picture where it is worst."""
        return tuple(self._reports.values())

    def add(self, picture: Picture, source: str) -> None:
        """Compare on one more picture.

        Raises:
            DeviceError: A device cannot be used.
            InferenceError: The runtime failed.
            ModelError: It refuses a graph, or gives no tensors.
        """
        left = self.left.fetch(picture, [pair.left for pair in self._pairs])
        right = self.right.fetch(picture, [pair.right for pair in self._pairs])
        pairs = [pair for pair in self._pairs if pair.left in left and pair.right in right]
        if not pairs:
            raise ModelError(
                f"the outputs of {self.left.name} and {self.right.name} are no tensors",
                "see them with detcli inspect",
            )
        for pair in pairs:
            for report in self.compare(pair, left[pair.left], right[pair.right], source):
                self._reports[report.name] = worse(self._reports.get(report.name), report)
                if badness(report) > self._worst_badness:
                    self._worst_badness = badness(report)
                    self.worst = picture, source, pair

    def compare(self, pair: Pair, left: Tensor, right: Tensor, source: str) -> list[TensorReport]:
        """Compare two outputs, part by part: next to boxes, scores would be nothing."""
        return [
            compare_tensors(name, one, other, self._limit, source)
            for name, (one, other) in self._parts(pair, left, right).items()
        ]

    def _pair_up(self) -> tuple[Pair, ...]:
        left, right = self.left.outputs, self.right.outputs
        if self._heads is not None or len(left) == len(right) == 1:
            return (Pair(left[0], right[0]),)
        if common := [name for name in left if name in right]:
            if alone := sorted({*left} ^ {*right}):
                text = f"not compared, since only one of the two has them: {', '.join(alone)}"
                warnings.warn(text, DetcliWarning, stacklevel=3)
            return tuple(Pair(name, name) for name in common)
        if len(left) == len(right):
            return tuple(Pair(*names) for names in zip(left, right, strict=True))
        raise ModelError(
            f"{self.left.name} has the outputs {', '.join(left)}; {self.right.name} has "
            f"{', '.join(right)}: none in common",
            "compare two versions of one model",
        )

    def _parts(self, pair: Pair, left: Tensor, right: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """What is compared of a pair, by its name in reports."""
        if self._heads is None:
            title = pair.left if pair.left == pair.right else f"{pair.left} and {pair.right}"
            return {title: (left, right)}
        one, other = self._heads
        heads = [
            np.swapaxes(head, 1, 2) if contract.anchors_first else head
            for head, contract in ((left, one), (right, other))
        ]  # (B, 4 + C, N)
        parts = {"scores": (heads[0][:, BOX_ROWS:], heads[1][:, BOX_ROWS:])}
        if one.box_format is other.box_format:  # corners and centres have nothing in common
            parts["boxes"] = (heads[0][:, :BOX_ROWS], heads[1][:, :BOX_ROWS])
        return parts
