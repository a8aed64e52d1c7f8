"""Parquet, read back by pyarrow and by DuckDB."""

import json
import typing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import optional
import pytest
import sample_records
from sample_records import failed_frame, failure, feed, frame

from detcli.data.columns import DetectionJson
from detcli.data.record import Origin, RecordJson
from detcli.sink.text import COLUMNS, CsvSink, JsonLinesSink
from detcli.storage.files import AtomicFile

pq = optional.require("pyarrow.parquet")

from detcli.sink import parquet as module

picture = partial(sample_records.picture, score=0.5123946, bottom=4.567)


@pytest.fixture
def write_parquet(tmp_path):
    """Write records, and return the file."""

    def write(*records):
        feed(module.ParquetSink(AtomicFile(tmp_path / "out.parquet")), *records)
        return tmp_path / "out.parquet"

    return write


RECORDS = [
    picture(count=2),
    picture("empty.jpg", index=1, count=0),
    failure(index=2),
    frame(3, count=1),
    failed_frame(4),
]


def test_rows_hold_what_the_records_hold(write_parquet):
    rows = pq.read_table(write_parquet(*RECORDS)).to_pylist()
    for record in RECORDS:
        fields = record.to_json()
        rows_of_record = [row for row in rows if row["index"] == fields["index"]]
        detections = fields.get("detections", [])
        assert len(rows_of_record) == max(1, len(detections))
        for number, row in enumerate(rows_of_record):
            error = fields.get("error", {})
            expected = dict.fromkeys(row) | {
                "error_type": error.get("type"),
                "error": error.get("message"),
                "error_hint": error.get("hint"),
            }
            for name in row.keys() & fields.keys() - {"error"}:
                expected[name] = fields[name]
            if detections:
                expected |= detections[number]
            assert row == expected


def test_every_field_of_a_record_has_a_column(write_parquet):
    fields = typing.get_type_hints(RecordJson) | typing.get_type_hints(DetectionJson)
    table = pq.read_table(write_parquet())
    assert {*table.column_names} == {*fields} - module.FIELDS_WITHOUT_COLUMN | {
        *module.ERROR_COLUMNS.values()
    }
    assert table.schema.metadata[b"detcli.schema_version"] == b"2"
    assert table.num_rows == 0


def test_one_query_reads_csv_and_parquet(write_parquet, tmp_path):
    feed(CsvSink(AtomicFile(tmp_path / "out.csv")), *RECORDS)
    duckdb = optional.require("duckdb")
    tables = (
        duckdb.read_parquet(str(write_parquet(*RECORDS))),
        duckdb.read_csv(str(tmp_path / "out.csv")),
    )
    in_parquet, in_csv = (read.select(*COLUMNS).fetchall() for read in tables)
    assert in_parquet == in_csv
    assert [(row[0], *row[7:15]) for row in in_csv] == [
        *[("a.jpg", 0, "cat", 0.512395, 1, 2, 3, 4.57, None)] * 2,
        ("empty.jpg", *[None] * 8),
        ("torn.jpg", *[None] * 7, "it is torn"),
        ("in/film.avi", 0, "cat", 0.5, 1, 2, 3, 4.5, None),
        ("in/film.avi", *[None] * 7, "it failed"),
    ]


def test_one_query_of_boxes_reads_json_lines_csv_and_parquet(write_parquet, tmp_path):
    duckdb = optional.require("duckdb")
    odd = replace(picture(), origin=Origin("caf\udce9.jpg", input=7, meta='{"id": [1, "猫"]}'))
    records = [*RECORDS, odd]
    for sink, name in ((JsonLinesSink, "out.jsonl"), (CsvSink, "out.csv")):
        feed(sink(AtomicFile(tmp_path / name)), *records)
    write_parquet(*records)
    query = """
        SELECT source, input, source_bytes, class_name, score, x2 - x1, y2 - y1, meta::JSON->'id'
        FROM {} WHERE class_name IS NOT NULL
    """
    lines = "(SELECT * EXCLUDE (detections), unnest(detections, recursive := true) FROM '{}')"
    found = []
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        rows = (lines if name == "out.jsonl" else "'{}'").format(tmp_path / name)
        found.append(duckdb.sql(query.format(rows)).fetchall())
    assert found[0] == found[1] == found[2]
    assert found[0][-1][:3] == ("caf\\xe9.jpg", 7, "Y2Fm6S5qcGc=")
    assert [json.loads(row[-1] or "0") for row in found[0]] == [0, 0, 0, [1, "猫"]]


def test_the_time_of_a_live_frame_is_a_time(write_parquet):
    duckdb = optional.require("duckdb")
    came = datetime(2026, 11, 22, 8, 5, 9, 125_000, UTC)
    one = frame(count=1)
    path = write_parquet(replace(one, origin=replace(one.origin, time=came)))
    assert pq.read_table(path)["time"].to_pylist() == [came]
    answer = duckdb.read_parquet(str(path)).select("epoch_ms(time)").fetchall()
    assert answer == [(round(came.timestamp() * 1000),)]


def test_many_records_are_written_in_row_groups(write_parquet, monkeypatch):
    monkeypatch.setattr(module, "ROW_GROUP", 8)
    path = write_parquet(*(picture(index=number, count=3) for number in range(101)))
    assert pq.ParquetFile(path).num_row_groups == 34  # three records with their detections each
    assert pq.read_table(path)["index"].to_pylist() == [
        index for index in range(101) for _ in "123"
    ]


def test_odd_names_survive_and_invalid_unicode_is_escaped(write_parquet):
    for name in ("a,b", "new\nline", "猫 é 😀", "", "nul\0", "\x1b[1m", "\udcff.jpg"):
        stored = name.replace("\udcff", "\\xff")
        (row,) = pq.read_table(write_parquet(picture(name, name))).to_pylist()
        assert row["source"] == stored
        assert row["class_name"] == stored
