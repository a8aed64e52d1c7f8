"""Records that are read back from CSV and Parquet, beside those in JSON Lines."""

import json
from dataclasses import replace

import numpy as np
import optional
import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_lines import column_of
from origins import sources_of
from sample_records import damaged, detected, failed_frame, failure, feed_all, frame, image

from detcli.core.errors import UsageError
from detcli.data.barcode import Barcode
from detcli.data.record import Origin, Record
from detcli.run import saved
from detcli.sink.text import CsvSink
from detcli.storage.files import AtomicFile

CORNERS = np.array([[1, 2], [30, 2], [30, 12], [1, 12]], np.float64)

BARCODES = (
    Barcode("=1+1", "QR Code", b"=1+1", CORNERS, "qr_code"),
    Barcode(None, "Data Matrix", b"\x00\xff", CORNERS, "matrix"),
    Barcode("", "QR Code", b"", CORNERS, "qr_code"),
    Barcode(None, "", b"", np.zeros((0, 2)), "qr_code"),
)

OPTIONS = ("track_id", "track_class", "zones", "crossed", "text", "symbology", "bytes", "corners")


def observed_frame():
    """A frame whose four detections have what options add."""
    rows = [(1, 2, 30, 40, 0.9, 0), (2, 3, 31, 41, 0.8, 1), (3, 4, 32, 42, 0.7, 0)]
    detections = detected(rows + [(4, 5, 33, 43, 0.6, 1)])
    detections = replace(
        detections,
        track_id=np.array([1, 2, 3, 0]),
        track_class=("person", "car", "car", None),
        zones=(("door",), (), ("door", "gate_2"), ()),
        crossed=((("gate", "left"), ("road", "right")), (), (), ()),
        symbols=BARCODES,
    )
    return replace(frame(7), detections=detections)


RECORDS = [
    image(count=2),
    image("empty.jpg", index=1, count=0),
    failure(index=2),
    frame(3, count=1),
    failed_frame(4),
    damaged(image('=b;c, d".jpg', index=5), "it is torn; badly", "it is old"),
    replace(image("a.jpg", index=6), origin=Origin("a.jpg", meta='{"site": ["7", null]}')),
]


def as_json_lines(records):
    return [json.loads(json.dumps(record.to_json())) for record in records]


def read_back(path):
    return list(saved.read_records(str(path)))


def write_csv(path, records, options=()):
    feed_all(CsvSink(AtomicFile(path), options), records)
    return path


def write_parquet(path, records, options=()):
    optional.require("pyarrow")
    from detcli.sink.parquet import ParquetSink

    feed_all(ParquetSink(AtomicFile(path), options), records)
    return path


def test_parquet_gives_the_records_of_json_lines(tmp_path):
    records = read_back(write_parquet(tmp_path / "boxes.parquet", RECORDS))
    assert records == as_json_lines(RECORDS)


def test_csv_gives_them_without_what_it_has_no_columns_for(tmp_path):
    expected = as_json_lines(RECORDS)
    for record in expected:
        for name in ("model", "device"):
            record.pop(name, None)
        if "error" in record:
            record["error"] |= {"type": "SourceError", "hint": ""}
        if "warnings" in record:
            record["warnings"] = ["; ".join(record["warnings"])]
    assert read_back(write_csv(tmp_path / "boxes.csv", RECORDS)) == expected


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_what_options_add_comes_back(tmp_path, write):
    path = write(tmp_path / "boxes", [observed_frame()], OPTIONS)
    (expected,) = as_json_lines([observed_frame()])
    (record,) = read_back(path)
    assert record["detections"] == expected["detections"]


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@given(
    names=st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1)),
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_any_images_come_back(tmp_path_factory, write, names, counts):
    path = tmp_path_factory.mktemp("tables") / "boxes"
    records: list[Record] = []
    for index, count in enumerate(counts):
        source = names[index % len(names)] if names else "a.jpg"
        records.append(image(source, index=index, count=count))
    sources = column_of(read_back(write(path, records)), "source")
    numbers_of_detections = [len(record["detections"]) for record in read_back(path)]
    assert sources == sources_of(records)
    assert numbers_of_detections == counts


def test_images_that_are_listed_twice_stay_two(tmp_path):
    records = [image(index=0), image(index=1)]
    assert len(read_back(write_csv(tmp_path / "boxes.csv", records))) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.5", "high", "row 1 of .* is not a row of detcli's: score is 'high'"),
        ("0.5", "nan", "row 1 of .*: .*score"),
        ("60,40", "60", "row 1 of .*: it has more or fewer cells than the header"),
        ("cat", '"ca"t', "row 1 of .*: ',' expected after"),
        ("60,40", ",40", "row 1 of .*: width is missing"),
    ],
)
def test_a_damaged_row_of_csv_is_refused(tmp_path, old, new, message):
    path = write_csv(tmp_path / "boxes.csv", [image(), image(index=1)])
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=message) as caught:
        read_back(path)
    assert "CSV or Parquet that predict or merge wrote" in caught.value.hint


def test_parquet_without_its_end_is_refused(tmp_path):
    path = write_parquet(tmp_path / "boxes.parquet", RECORDS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        read_back(path)


def test_other_parquet_is_refused(tmp_path):
    pa = optional.require("pyarrow")
    parquet = optional.require("pyarrow.parquet")
    path = tmp_path / "other.parquet"
    parquet.write_table(pa.table({"name": ["a"], "score": [0.5]}), path)
    with pytest.raises(UsageError, match=r"row 1 of .*: source is missing"):
        read_back(path)
