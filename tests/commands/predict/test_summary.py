"""The summary at the end of a run."""

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import optional
import pytest
from json_lines import column_of
from sample_records import Film, failure, frame, image

from detcli.commands.predict.summary import RunSummary
from detcli.config.config import Config
from detcli.config.values import Format
from detcli.core.timing import StageTimes
from detcli.run.destination import Destination

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def live(record):
    """The record, as if it were of a live source."""
    return replace(record, origin=replace(record.origin, time=NOW))


def listed(records, **dropped):
    """The lines about live sources."""
    summary = RunSummary(Config(), Destination(Format.TABLE))
    for record in records:
        summary.add(record)
    lines = summary.lines(StageTimes(), Counter(dropped))
    return [line for line in lines if line.partition(":")[0] in dropped]


def summary_of(completed, start):
    """The only message of a command that starts with these words."""
    messages = completed.stderr.splitlines()
    (line,) = [message for message in messages if message.startswith(f"detcli: {start}")]
    return line


def test_each_stream_has_its_own_rate():
    """Of the time in which it gave frames, whatever came before and after."""
    times_by_name = {"b": [100.0, 100.5, 101.0], "a": [3.0], "c": [0.0, 4.0]}
    records = []
    for name, times in times_by_name.items():
        for time_s in times:
            film = Film(name, 0.0, live=True)
            records.append(live(frame(0, film, time_s=time_s)))
    records.append(live(failure("d")))
    assert listed(records, b=7, a=0, c=0, d=0, silent=0) == [
        "b: 3 frames, 2.0/s, 7 dropped",
        "a: 1 frame",
        "c: 2 frames, 0.2/s",
        "d: 0 frames",
        "silent: 0 frames",
    ]


def test_one_stream_is_not_listed():
    records = [live(frame(number, Film("a", 0.0, live=True))) for number in range(3)]
    records.append(image("a.jpg"))
    records.append(frame(0))
    assert listed(records, a=1) == []


def test_stages_are_summed_where_more_is_asked_for(detcli, make_model, make_image):
    images = [make_image("a.png", ("red", 2, 3)), make_image("b.png", ("red", 2, 3))]
    stages = re.compile(r"; decode \d+%, .*write \d+%$")
    completed = detcli("predict", images, "-m", make_model())
    assert not stages.search(summary_of(completed, "2 image"))
    completed = detcli("predict", images, "-m", make_model(), "-v")
    assert stages.search(summary_of(completed, "2 image"))


@pytest.mark.parametrize("device", ["auto", "cpu", "openvino"])
def test_the_device_that_ran_is_named(predict, make_image, device):
    """The one that `auto` has chosen, as in the records."""
    if device == "openvino":
        optional.require("openvino")
    make_image("b.png", ("red", 2, 3))
    completed = predict(f"a.png b.png --device {device}")
    line = summary_of(completed, "2 image")
    (name,) = set(column_of(completed.records, "device"))
    assert name != "auto"
    assert f"/s on {name}" in line


def test_a_device_that_ran_nothing_is_not_named(predict, tmp_path):
    (tmp_path / "torn.png").write_bytes(b"torn")
    completed = predict("torn.png", code=3)
    line = summary_of(completed, "0 image")
    assert " on " not in line


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_shards_and_evaluations_name_the_device(detcli, make_model, make_image, command):
    folder = make_image("a.png", ("red", 1, 1)).parent
    (folder / "a.txt").write_text("0 0.1875 0.1875 0.125 0.125\n")
    (folder / "data.yaml").write_text("val: .\nnames: [red, green, blue]\n")
    arguments = {
        "predict": ["a.png", "-m", make_model(), "-o", "parts/"],
        "eval": [make_model(), "--data", "data.yaml"],
    }
    completed = detcli(command, arguments[command], cwd=folder)
    assert completed.returncode == 0
    line = summary_of(completed, "1 image")
    assert line.endswith(" s on cpu")
