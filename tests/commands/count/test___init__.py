"""`detcli count`, typed; DuckDB counts the same files."""

import csv
import gzip
import io
import json
import random

import optional
import pytest
from json_lines import text_of
from saved_records import box, error, record


def animal(score=0.9, **fields):
    return box(score, name="animal", class_id=0) | fields


def person(score=0.9, **fields):
    return box(score, name="person", class_id=1) | fields


CARD = [
    record("site1/a.jpg", animal(0.9), animal(0.4), taken="2026-11-03T04:55:12.25", burst=0),
    record("site1/b.jpg", animal(0.8), person(0.3), taken="2026-11-03T04:55:13", burst=0),
    record("site1/c.jpg", taken="2026-11-04T23:00:00", burst=1),
    record("site2/a.jpg", person(0.7)),
    error("site2/torn.jpg"),
]
"""Two sites: a burst of two images, an empty image, one without a time, and a failure."""


@pytest.fixture
def count(invoke, tmp_path):
    """Write records to card.jsonl, and count them; returns what is printed, and on stderr."""

    def run(line, records=CARD, code=0):
        text = text_of(records)
        (tmp_path / "card.jsonl").write_text(text, encoding="utf-8")
        completed = invoke("count", line.split(), cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert "Traceback" not in completed.stderr
        return completed

    return run


def groups(completed):
    """The groups of the JSON: images, boxes and failed by the values of the keys."""
    report = json.loads(completed.stdout)
    counts = {}
    for group in report["groups"]:
        values = tuple(group[key] for key in report["by"])
        counts[values] = (group["images"], group["boxes"], group["failed"])
    return counts


def test_repeated_boxes_count_only_if_asked_for(count):
    stone = animal(0.9, repeated=17)
    records = [record("a.jpg", stone, animal(0.8)), record("b.jpg", stone)]
    without = groups(count("card.jsonl", records))
    assert without == {("animal",): (1, 1, 0), (None,): (1, 0, 0)}
    assert groups(count("card.jsonl --repeated", records)) == {("animal",): (2, 3, 0)}
    wrong = [record("a.jpg", animal(repeated=0))]
    assert "repeated is 0" in count("card.jsonl", wrong, code=2).stderr


def test_classes_are_counted_unless_something_else_is_asked_for(count):
    completed = count("card.jsonl")
    assert groups(completed) == {
        ("animal",): (2, 3, 0),
        ("person",): (2, 2, 0),
        (None,): (1, 0, 1),
    }
    report = json.loads(completed.stdout)
    assert report["schema_version"] == 1
    assert (report["images"], report["boxes"], report["failed"]) == (4, 5, 1)
    assert completed.stderr == ""


def test_an_image_that_shows_two_classes_counts_once_without_classes(count):
    assert groups(count("card.jsonl --by folder")) == {("site1",): (3, 4, 0), ("site2",): (1, 1, 1)}


def test_days_and_hours_are_those_of_the_camera(count):
    assert groups(count("card.jsonl --by day,hour")) == {
        ("2026-11-03", "04"): (2, 4, 0),
        ("2026-11-04", "23"): (1, 0, 0),
        ("unknown", "unknown"): (1, 1, 1),
    }


def test_frames_of_a_stream_have_the_time_at_which_they_came(count):
    frame = record("rtsp://cam/1", animal(), frame=0, time="2026-01-31T12:00:00.000Z")
    assert groups(count("card.jsonl --by day,hour,folder", [frame])) == {
        ("2026-01-31", "12", "rtsp://cam"): (1, 1, 0)
    }


def test_a_photograph_says_better_when_it_was_taken_than_when_it_came(count):
    times = {"taken": "2026-01-30T23:00:00", "time": "2026-01-31T12:00:00.000Z"}
    assert groups(count("card.jsonl --by day", [record("a.jpg", **times)])) == {
        ("2026-01-30",): (1, 0, 0)
    }


def test_bursts_are_numbers_of_one_file(count):
    assert groups(count("card.jsonl --by burst")) == {
        (0,): (2, 4, 0),
        (1,): (1, 0, 0),
        ("unknown",): (1, 1, 1),
    }


def test_bursts_of_two_files_are_different_ones(count, tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps(CARD[0]))
    assert groups(count("card.jsonl b.jsonl --by burst")) == {
        ("b.jsonl:0",): (1, 2, 0),
        ("card.jsonl:0",): (2, 4, 0),
        ("card.jsonl:1",): (1, 0, 0),
        ("unknown",): (1, 1, 1),
    }


def test_a_box_counts_in_each_of_its_zones(count):
    zoned = [
        record("a.jpg", animal(zones=["door", "mat"]), animal(zones=["door"]), person(zones=[]))
    ]
    assert groups(count("card.jsonl --by zone,class", zoned)) == {
        ("door", "animal"): (1, 2, 0),
        ("mat", "animal"): (1, 1, 0),
        (None, "person"): (1, 1, 0),
    }


SURE_ANIMALS = {("animal",): (1, 1, 0), ("person",): (2, 2, 0), (None,): (1, 0, 1)}
"""The counts with a confidence of 0.8 for animals and 0.2 for persons."""


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ("--conf 0.4", {("animal",): (2, 2, 0), ("person",): (1, 1, 0), (None,): (1, 0, 1)}),
        ("--conf 0.8,person=0.2", SURE_ANIMALS),
        ("--conf 0.8,1=0.2", SURE_ANIMALS),
        ("--classes animal", {("animal",): (2, 3, 0), (None,): (2, 0, 1)}),
        ("--classes 1", {("person",): (2, 2, 0), (None,): (2, 0, 1)}),
        ("--classes animal,person --conf 1", {(None,): (4, 0, 1)}),
    ],
)  # fmt: skip
def test_boxes_are_selected_by_class_and_by_a_score_above_the_confidence(count, options, counts):
    assert groups(count(f"card.jsonl {options}")) == counts


def test_a_class_that_no_box_is_of_is_mentioned(count):
    assert "no box is of the class amimal; did you mean animal?" in (
        count("card.jsonl --classes amimal").stderr
    )
    assert count("card.jsonl --classes amimal -q").stderr == ""


def test_that_images_without_the_classes_count_is_mentioned(count):
    said = count("card.jsonl --by folder --classes animal").stderr
    assert "--by class,folder counts those with them" in said
    assert count("card.jsonl --by class,folder --classes animal").stderr == ""
    assert count("card.jsonl --by folder").stderr == ""


@pytest.mark.parametrize("key", ["day", "hour", "zone", "burst"])
def test_what_no_record_says_is_mentioned(count, key):
    completed = count(f"card.jsonl --by {key}", [record("a.jpg", animal())])
    assert "detcli: no " in completed.stderr
    assert completed.stderr.count("\n") == 1


def test_csv_has_a_row_for_each_group(count):
    completed = count("card.jsonl --by class,folder --format csv")
    assert completed.stdout.splitlines() == [
        "class,folder,images,boxes,failed",
        "animal,site1,2,3,0",
        "person,site1,1,1,0",
        "person,site2,1,1,0",
        ",site1,1,0,0",
        ",site2,0,0,1",
    ]


def test_the_table_has_the_totals_in_its_last_line(count):
    lines = count("card.jsonl --format table").stdout.splitlines()
    assert lines[0].split() == ["class", "images", "boxes", "failed"]
    assert lines[1].split() == ["animal", "2", "3", "0"]
    assert lines[3].split() == ["-", "1", "0", "1"]
    assert lines[4] == "4 images, 5 boxes, 1 failed"


def test_the_table_shows_the_first_thousand_groups_and_says_so(count):
    many = [record(f"{number:04}/a.jpg", animal()) for number in range(1002)]
    lines = count("card.jsonl --by folder --format table", many).stdout.splitlines()
    assert len(lines) == 1 + 1000 + 2
    assert lines[-2] == "2 more groups: --format csv and json have all"
    assert lines[-1] == "1002 images, 1002 boxes"
    assert len(groups(count("card.jsonl --by folder", many))) == 1002


def test_control_codes_do_not_reach_the_terminal(count):
    nasty = record("a\x1b[31m/b.jpg", box(name="\x1b]0;x\x07"))
    assert "\x1b" not in count("card.jsonl --by class,folder --format table", [nasty]).stdout


def test_no_records_are_no_groups(count):
    completed = count("card.jsonl", [])
    assert json.loads(completed.stdout)["groups"] == []
    assert completed.stderr == ""
    assert count("card.jsonl --format csv", []).stdout == "class,images,boxes,failed\n"


def test_records_come_compressed_or_as_an_array(count, tmp_path):
    expected = groups(count("card.jsonl"))
    plain = (tmp_path / "card.jsonl").read_bytes()
    (tmp_path / "card.jsonl.gz").write_bytes(gzip.compress(plain))
    assert groups(count("card.jsonl.gz")) == expected
    rows = ",\n".join(json.dumps(fields) for fields in CARD)
    (tmp_path / "card.json").write_text(f"[\n{rows}\n]\n")
    assert groups(count("card.json")) == expected


@pytest.mark.usefixtures("shards_here")
def test_the_parts_of_a_run_in_shards_are_counted(predict, make_image, invoke, tmp_path):
    make_image("pics/a.png", ("red", 2, 3))
    make_image("pics/b.png")
    predict("pics -o boxes/")
    predict("pics -o boxes.jsonl")
    whole = invoke("count", "boxes.jsonl", cwd=tmp_path)
    parts = invoke("count", "boxes/", cwd=tmp_path)
    assert groups(parts) == groups(whole)
    assert json.loads(parts.stdout)["images"] == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"taken": "yesterday"}, "record 1 of card.jsonl is not a record of detcli: taken is"),
        ({"taken": "2026-11-03"}, "taken is '2026-11-03', not a time"),
        ({"taken": "2026-13-03T00:00:00"}, "taken is"),
        ({"taken": None}, "taken is"),
        ({"time": "noon"}, "time is 'noon'"),
        ({"burst": "first"}, "burst is"),
        ({"burst": True}, "burst is"),
        ({"detections": [animal(class_name=7)]}, "detections[0].class_name is 7"),
        ({"detections": [animal(score=float("nan"))]}, "detections[0].score is NaN"),
        ({"detections": [animal(zones=[5])]}, "detections[0].zones[0] is 5"),
        ({"detections": [animal(), 5]}, "detections[1] is 5"),
        ({"detections": {}}, "detections is {}"),
    ],
)  # fmt: skip
def test_what_is_counted_is_checked(count, fields, message):
    completed = count("card.jsonl --by day,burst,zone,class", [record("a.jpg") | fields], code=2)
    assert message in completed.stderr
    assert completed.stdout == ""


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("missing.jsonl", 3, "cannot read missing.jsonl"),
        ("card.jsonl card.jsonl", 2, "card.jsonl is named twice"),
        ("card.jsonl --by species", 2, "'species' is not one of 'class', 'folder'"),
        ("card.jsonl --by ,", 2, "empty list"),
        ("card.jsonl --conf 2", 2, "conf is 2"),
        ("", 2, "records"),
    ],
)
def test_what_cannot_be_counted_is_refused(count, line, code, message):
    assert message in count(line, code=code).stderr.lower()


def random_records(count, seed):
    """Records with every kind of value, in random order."""
    chooser = random.Random(seed)  # noqa: S311
    records = []
    for number in range(count):
        fields = record(f"site{chooser.randrange(3)}/{number}.jpg", index=number)
        for _ in range(chooser.choice([0, 0, 1, 2, 4])):
            score = round(chooser.random(), 2)
            fields["detections"].append(chooser.choice([animal, person])(score))
        if chooser.random() < 0.8:
            fields["taken"] = (
                f"2026-11-0{chooser.randrange(1, 4)}T{chooser.randrange(24):02}:10:00.5"
            )
            fields["burst"] = number // 3
        if chooser.random() < 0.1:
            fields = error(f"site{chooser.randrange(3)}/{number}.jpg")
        records.append(fields)
    return records


QUERY = """
WITH images AS (
    SELECT *, [d for d in detections if d.score > 0.3] AS boxes,
        coalesce(strftime(taken::TIMESTAMP, '%Y-%m-%d'), 'unknown') AS day,
        coalesce(strftime(taken::TIMESTAMP, '%H'), 'unknown') AS hour,
        coalesce(burst::VARCHAR, 'unknown') AS burst_name,
        regexp_replace(source, '/[^/]*$', '') AS folder
    FROM read_json('card.jsonl', format = 'newline_delimited')
),
rows AS (
    SELECT *, unnest(CASE WHEN len(boxes) > 0 THEN boxes ELSE [NULL] END) AS box FROM images
)
SELECT box.class_name AS class, folder, day, hour, burst_name AS burst,
    count(DISTINCT source) FILTER (error IS NULL) AS images, count(box) AS boxes,
    count(DISTINCT source) FILTER (error IS NOT NULL) AS failed
FROM rows GROUP BY ALL
"""


def test_duckdb_counts_the_same(count, tmp_path):
    duckdb = optional.require("duckdb")
    completed = count(
        "card.jsonl --by class,folder,day,hour,burst --conf 0.3 --format csv",
        random_records(300, 7),
    )
    rows = list(csv.reader(io.StringIO(completed.stdout)))
    expected = duckdb.sql(QUERY.replace("'card.jsonl'", f"'{tmp_path / 'card.jsonl'}'"))
    assert rows[0] == expected.columns
    texts = []
    for row in expected.fetchall():
        cells = []
        for value in row:
            if value is None:
                cells.append("")
            else:
                cells.append(str(value))
        texts.append(cells)
    assert len(texts) > 200
    assert sorted(rows[1:]) == sorted(texts)
