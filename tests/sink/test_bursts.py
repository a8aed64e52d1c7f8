"""Records with their bursts, written when all have come."""

from dataclasses import replace

import pytest
from json_lines import column_of, lines
from sample_records import failure, image

from detcli.core.errors import OutputError
from detcli.data.capture_time import CaptureTime
from detcli.sink.bursts import BurstSink
from detcli.sink.text import JsonLinesSink
from detcli.storage.files import AtomicFile


def photograph(source, time, index=0, score=0.5):
    """The record of an image that was taken at a time of one day."""
    blank = image(source, index=index, score=score)
    capture_time = CaptureTime(f"2021-05-06T{time}", None)
    return replace(blank, picture=replace(blank.picture, capture_time=capture_time))


class Collector:
    """A sink that remembers what it gets."""

    def __init__(self):
        self.records = []
        self.is_closed = False

    def write(self, record):
        self.records.append(record.to_json())

    def close(self):
        self.is_closed = True


def test_nothing_is_written_before_the_end():
    collector = Collector()
    sink = BurstSink(collector, 60)
    sink.write(photograph("a.jpg", "07:08:09"))
    sink.write(photograph("b.jpg", "07:08:10", index=1, score=0.75))
    assert collector.records == []
    sink.close()
    assert column_of(collector.records, "burst") == [0, 0]
    assert column_of(collector.records, "burst_score") == [0.75, 0.75]
    assert collector.is_closed


def test_records_are_passed_on_once():
    collector = Collector()
    sink = BurstSink(collector, 60)
    sink.write(photograph("a.jpg", "07:08:09"))
    sink.pass_on()
    assert not collector.is_closed
    sink.close()
    assert len(collector.records) == 1


def test_no_record_leaves_an_empty_output():
    collector = Collector()
    BurstSink(collector, 60).close()
    assert collector.records == []
    assert collector.is_closed


def test_all_else_is_as_without_bursts(tmp_path):
    records = [
        photograph("é.jpg", "07:08:09.25"),
        failure(index=1),
        image("caf\udce9.jpg", index=2),
    ]
    plain = JsonLinesSink(AtomicFile(tmp_path / "plain.jsonl"))
    with_bursts = BurstSink(JsonLinesSink(AtomicFile(tmp_path / "bursts.jsonl")), 60)
    for record in records:
        plain.write(record)
        with_bursts.write(record)
    plain.close()
    with_bursts.close()

    plain_lines = (tmp_path / "plain.jsonl").read_text().splitlines()
    burst_lines = (tmp_path / "bursts.jsonl").read_text().splitlines()
    assert burst_lines[1:] == plain_lines[1:]
    dated = lines((tmp_path / "bursts.jsonl").read_text())[0]
    assert dated.pop("burst") == 0
    assert dated.pop("burst_score") == 0.5
    assert dated == lines((tmp_path / "plain.jsonl").read_text())[0]


def test_an_error_of_the_other_sink_is_raised_and_closes_it():
    class FullDisk(Collector):
        def write(self, _record):
            raise OutputError("the disk is full", "free space")

    full = FullDisk()
    sink = BurstSink(full, 60)
    sink.write(photograph("a.jpg", "07:08:09"))
    with pytest.raises(OutputError, match="the disk is full"):
        sink.close()
    assert full.is_closed
