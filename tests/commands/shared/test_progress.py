"""The summary at the end of a run."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sample_records import Film, failure, frame, picture

from detcli.commands.shared.progress import Tally

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(record):
    """The record, as if it were of a live source."""
    return replace(record, origin=replace(record.origin, time=NOW))


@pytest.fixture
def tally():
    return Tally(quiet=False, errors_shown=True)


def listed(tally, capsys, **dropped):
    tally.list_streams(Counter(dropped))
    return capsys.readouterr().err.splitlines()


def test_each_stream_has_its_own_rate(tally, capsys):
    """Of the time in which it gave frames, whatever came before and after."""
    for number, times in {"b": [100.0, 100.5, 101.0], "a": [3.0], "c": [0.0, 4.0]}.items():
        for time_s in times:
            tally.add(live(frame(0, Film(number, 0.0, live=True), time_s=time_s)))
    tally.add(live(failure("d")))
    assert listed(tally, capsys, b=7, a=0, c=0, d=0, silent=0) == [
        "detcli: b: 3 frames, 2.0/s, 7 dropped",
        "detcli: a: 1 frame",
        "detcli: c: 2 frames, 0.2/s",
        "detcli: d: 0 frames",
        "detcli: silent: 0 frames",
    ]


def test_one_stream_is_not_listed(tally, capsys):
    for number in range(3):
        tally.add(live(frame(number, Film("a", 0.0, live=True))))
    tally.add(picture("a.jpg"))
    tally.add(frame(0))
    assert listed(tally, capsys, a=1) == []


def test_nothing_is_listed_if_quiet(capsys):
    tally = Tally(quiet=True, errors_shown=True)
    for name in "ab":
        tally.add(live(frame(0, Film(name, 0.0, live=True))))
    assert listed(tally, capsys, a=0, b=0) == []
