"""Top-k and selection by themselves, without a network; for what compares them with others."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from detcli.backend.postprocess import Selection, select
from detcli.backend.protocol import Limits
from detcli.topk import top_k

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


class Ranker(Protocol):
    """One device's top-k and selection; results come back to the host.

    Attributes:
        device: Where it computes.
    """

    device: str

    def upload(self, values: Floats) -> Any:  # noqa: ANN401 - opaque, as a backend's buffers
        """Take an array to the device."""

    def top_k(self, values: Any, k: int) -> tuple[Floats, Indices]:  # noqa: ANN401
        """Values and indices of `detcli.top_k` for what was uploaded."""

    def select(self, head: Any, limits: Limits) -> Selection:  # noqa: ANN401
        """Detections of an uploaded head `(4 + C, N)` whose boxes are x1, y1, x2, y2."""

    def close(self) -> None:
        """Free what was uploaded."""


class CpuRanker:
    """NumPy's."""

    device = "cpu"

    def upload(self, values: Floats) -> Floats:
        """Return the array: it is there already."""
        return values

    def top_k(self, values: Floats, k: int) -> tuple[Floats, Indices]:
        """See `detcli.top_k`."""
        return top_k(values, k)

    def select(self, head: Floats, limits: Limits) -> Selection:
        """See `detcli.backend.postprocess.select`."""
        return select(head, limits)

    def close(self) -> None:
        """Nothing is held."""
