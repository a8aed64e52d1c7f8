"""Options that contradict one another are refused before any work."""

from pathlib import Path

import pytest

from detcli.commands.convert.steps import ConversionOptions
from detcli.errors import UsageError


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({}, "nothing to do"),
        ({"keep_io": True}, "--keep-io needs --half"),
        ({"cut": True, "end_to_end": True}, "--cut and --end-to-end are mutually exclusive"),
        ({"half": True, "int8": True}, "--half and --int8 are mutually exclusive"),
        ({"imgsz": 0}, "--imgsz is 0"),
        ({"imgsz": 16385}, "--imgsz is 16385"),
        ({"half": True, "max_det": 5}, "--max-det needs --end-to-end"),
        ({"batch": 0}, "--batch is 0"),
        ({"end_to_end": True, "max_det": 0}, "--max-det is 0"),
    ],
)
def test_refused_options(wanted, why):
    with pytest.raises(UsageError, match=why) as caught:
        ConversionOptions(**wanted)
    assert caught.value.hint


@pytest.mark.parametrize(
    "wanted",
    [
        {"cut": True, "half": True, "keep_io": True, "guard_transpose": True},
        {"names": Path("names.txt")},
        {"metadata": {"author": "me"}},
        {"batch": "dynamic", "imgsz": 320, "end_to_end": True, "max_det": 100},
    ],
)
def test_options_that_combine(wanted):
    options = ConversionOptions(**wanted)
    assert {name: getattr(options, name) for name in wanted} == wanted


@pytest.mark.parametrize(("max_det", "rows"), [(None, 300), (5, 5)])
def test_rows(max_det, rows):
    assert ConversionOptions(end_to_end=True, max_det=max_det).rows == rows
