"""The boxes that were selected on the network's input, and how anything odd in them is reported."""

import warnings
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from detcli.core.errors import DetcliWarning

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

NAN_CAUSES = ": an overflow in half precision, or a broken model"
"""The end of a message about NaN: where it may come from."""


class SelectedBoxes(NamedTuple):
    """The M rows that were selected, best first."""

    boxes: Floats  # (M, 4) x1, y1, x2, y2 in canvas pixels
    score: Floats  # (M,)
    class_id: Indices  # (M,)


def warn(message: str) -> None:
    """Warn about something odd in what the model outputs, on the line that calls this."""
    warnings.warn(message, DetcliWarning, stacklevel=2)
