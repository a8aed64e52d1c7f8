"""Settings are checked on construction."""

import dataclasses
import math

import pytest

from detcli import Settings
from detcli.core.errors import UsageError


@pytest.mark.parametrize(
    "wrong",
    [
        {"conf": -0.1},
        {"conf": 1.1},
        {"conf": math.nan},
        {"max_det": 0},
        {"nms": 0},
        {"nms": 1.5},
        {"imgsz": 0},
        {"classes": "person"},
    ],
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Settings(**wrong)


@pytest.mark.parametrize("right", [{"conf": 0}, {"conf": 1}, {"max_det": 1}, {"nms": 1}])
def test_the_ends_of_the_range_are_accepted(right):
    assert dataclasses.asdict(Settings(**right)).items() >= right.items()


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().conf = 0.5
