"""Records to write: a picture with detections, and one that failed."""

import numpy as np

from detcli.detections import Detections
from detcli.errors import DecodeError
from detcli.record import Record


def picture(  # noqa: PLR0913 - one argument a property
    source="a.jpg", name="cat", index=0, *, count=1, score=0.5, bottom=4.5
):
    """A grey 60x40 picture with `count` boxes 1, 2, 3, `bottom` of one class."""
    boxes = np.tile(np.array([1, 2, 3, bottom], np.float32), (count, 1))
    ids = np.zeros(count, np.int64)
    found = Detections(boxes, np.full(count, score, np.float32), ids, (name,))
    return Record(source, index, "m", "cpu", np.zeros((40, 60, 3), np.uint8), found)


def failure(source="torn.jpg", message="it is torn", index=0, *, hint="fetch it again"):
    """An input that could not be decoded."""
    return Record(source, index, "m", "cpu", error=DecodeError(message, hint))
