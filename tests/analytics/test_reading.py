"""Reading the barcode in a box."""

import numpy as np
import pytest

from detcli.analytics import reading
from detcli.analytics.codes import PIXEL_BUDGET


@pytest.mark.parametrize(
    ("readings", "accepted"),
    [
        ((b"1", b"1"), b"1"),
        ((b"1", b"2"), None),
        ((b"1",), None),
        ((b"1", b"2", b"2"), None),
    ],
)
def test_bars_below_the_confidence_are_read_twice(readings, accepted, monkeypatch):
    remaining = list(readings)

    def read_next(*_):
        if not remaining:
            return []
        corners = np.full((4, 2), 50.0)
        return [reading.Barcode("", "ITF", remaining.pop(0), corners, "barcode")]

    monkeypatch.setattr(reading, "read", read_next)
    grey = np.zeros((100, 100), np.uint8)
    box = np.array([0, 0, 100, 100], np.float32)
    budget = reading.PixelBudget(PIXEL_BUDGET)
    barcode = reading.read_barcode_in_box(grey, box, budget, confident=False, linear=True)
    if accepted is None:
        assert barcode is None
    else:
        assert barcode.content == accepted
