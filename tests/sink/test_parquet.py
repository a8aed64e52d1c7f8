"""Parquet, read back by pyarrow and by DuckDB."""

import json
import typing
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import optional
import pytest
import sample_records
from sample_records import failed_frame, failure, feed_all, frame

from detcli.data.capture_time import CaptureTime
from detcli.data.columns import DetectionJson
from detcli.data.record import Origin, RecordJson
from detcli.sink.text import COLUMNS, CsvSink, JsonLinesSink
from detcli.storage.files import AtomicFile

pq = optional.require("pyarrow.parquet")

from detcli.sink import parquet

image = partial(sample_records.image, score=0.5123946, bottom=4.567)


@pytest.fixture
def write_parquet(tmp_path):
    """Write records, and return the file."""

    def write(records):
        feed_all(parquet.ParquetSink(AtomicFile(tmp_path / "out.parquet")), records)
        return tmp_path / "out.parquet"

    return write


RECORDS = [
    image(count=2),
    image("empty.jpg", index=1, count=0),
    failure(index=2),
    frame(3, count=1),
    failed_frame(4),
]


def expected_rows(record):
    """The rows of a record, without what is empty in them."""
    fields = record.to_json()
    shared = dict(fields)
    del shared["schema_version"]
    shared.pop("detections", None)
    if "error" in fields:
        shared["error"] = fields["error"]["message"]
        shared["error_type"] = fields["error"]["type"]
        shared["error_hint"] = fields["error"]["hint"]
    if not fields.get("detections"):
        return [shared]
    return [shared | detection for detection in fields["detections"]]


def test_rows_hold_what_the_records_hold(write_parquet):
    rows = pq.read_table(write_parquet(RECORDS)).to_pylist()
    filled = []
    for row in rows:
        filled.append({name: value for name, value in row.items() if value is not None})
    expected = []
    for record in RECORDS:
        expected.extend(expected_rows(record))
    assert filled == expected


def test_every_field_of_a_record_has_a_column(write_parquet):
    fields = typing.get_type_hints(RecordJson) | typing.get_type_hints(DetectionJson)
    columns = fields.keys() - parquet.FIELDS_WITHOUT_COLUMN | set(parquet.ERROR_COLUMNS.values())
    table = pq.read_table(write_parquet([]))
    assert set(table.column_names) == columns
    assert table.schema.metadata[b"detcli.schema_version"] == b"2"
    assert table.num_rows == 0


def test_a_photograph_has_its_local_time_as_a_timestamp(write_parquet):
    whole = image()
    time = CaptureTime("2021-05-06T07:08:09.25", "+02:00")
    photograph = replace(whole, picture=replace(whole.picture, capture_time=time))
    table = pq.read_table(write_parquet([photograph, image("undated.jpg")]))
    rows = table.select(["taken", "taken_offset"]).to_pylist()
    local_time = datetime(2021, 5, 6, 7, 8, 9, 250_000)  # noqa: DTZ001
    assert rows[0] == {"taken": local_time, "taken_offset": "+02:00"}
    assert rows[1] == {"taken": None, "taken_offset": None}


def test_one_query_reads_csv_and_parquet(write_parquet, tmp_path):
    duckdb = optional.require("duckdb")
    feed_all(CsvSink(AtomicFile(tmp_path / "out.csv")), RECORDS)
    table = duckdb.read_parquet(str(write_parquet(RECORDS)))
    in_parquet = table.select(*COLUMNS).fetchall()
    in_csv = duckdb.read_csv(str(tmp_path / "out.csv")).select(*COLUMNS).fetchall()
    assert in_parquet == in_csv


def test_a_detection_has_a_row_and_so_has_what_has_none(write_parquet):
    columns = ["source", "class_id", "class_name", "score", "x1", "y1", "x2", "y2", "error"]
    rows = pq.read_table(write_parquet(RECORDS)).select(columns).to_pylist()
    values = [tuple(row.values()) for row in rows]
    assert values == [
        ("a.jpg", 0, "cat", 0.512395, 1, 2, 3, 4.57, None),
        ("a.jpg", 0, "cat", 0.512395, 1, 2, 3, 4.57, None),
        ("empty.jpg", None, None, None, None, None, None, None, None),
        ("torn.jpg", None, None, None, None, None, None, None, "it is torn"),
        ("in/film.avi", 0, "cat", 0.5, 1, 2, 3, 4.5, None),
        ("in/film.avi", None, None, None, None, None, None, None, "it failed"),
    ]


QUERY = """
    SELECT source, input, source_bytes, class_name, score, x2 - x1, y2 - y1, meta::JSON->'id'
    FROM {} WHERE class_name IS NOT NULL
"""
LINES = "(SELECT * EXCLUDE (detections), unnest(detections, recursive := true) FROM '{}')"


def test_one_query_of_boxes_reads_json_lines_csv_and_parquet(write_parquet, tmp_path):
    duckdb = optional.require("duckdb")
    origin = Origin("caf\udce9.jpg", input=7, meta='{"id": [1, "猫"]}')
    records = RECORDS + [replace(image(), origin=origin)]
    feed_all(JsonLinesSink(AtomicFile(tmp_path / "out.jsonl")), records)
    feed_all(CsvSink(AtomicFile(tmp_path / "out.csv")), records)
    path = write_parquet(records)

    in_lines = duckdb.sql(QUERY.format(LINES.format(tmp_path / "out.jsonl"))).fetchall()
    assert duckdb.sql(QUERY.format(f"'{tmp_path / 'out.csv'}'")).fetchall() == in_lines
    assert duckdb.sql(QUERY.format(f"'{path}'")).fetchall() == in_lines
    assert in_lines[-1][:3] == ("caf\\xe9.jpg", 7, "Y2Fm6S5qcGc=")
    ids = [row[-1] for row in in_lines]
    assert ids[:-1] == [None, None, None]
    assert json.loads(ids[-1]) == [1, "猫"]


def test_the_time_of_a_live_frame_is_a_time(write_parquet):
    duckdb = optional.require("duckdb")
    time = datetime(2026, 11, 22, 8, 5, 9, 125_000, UTC)
    record = frame(count=1)
    path = write_parquet([replace(record, origin=replace(record.origin, time=time))])
    assert pq.read_table(path)["time"].to_pylist() == [time]
    milliseconds = duckdb.read_parquet(str(path)).select("epoch_ms(time)").fetchall()
    assert milliseconds == [(round(time.timestamp() * 1000),)]


def test_many_records_are_written_in_row_groups(write_parquet, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_IN_GROUP", 8)
    path = write_parquet([image(index=number, count=3) for number in range(101)])
    assert pq.ParquetFile(path).num_row_groups == 34  # three records with their detections each
    indices = pq.read_table(path)["index"].to_pylist()
    assert indices == sorted(indices)
    assert Counter(indices) == dict.fromkeys(range(101), 3)


@pytest.mark.parametrize("name", ["a,b", "new\nline", "猫 é 😀", "", "nul\0", "\x1b[1m"])
def test_odd_names_survive(write_parquet, name):
    (row,) = pq.read_table(write_parquet([image(name, name)])).to_pylist()
    assert row["source"] == name
    assert row["class_name"] == name


def test_invalid_unicode_is_escaped(write_parquet):
    (row,) = pq.read_table(write_parquet([image("\udcff.jpg", "\udcff.jpg")])).to_pylist()
    assert row["source"] == "\\xff.jpg"
    assert row["class_name"] == "\\xff.jpg"
