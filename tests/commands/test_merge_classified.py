"""`detcli merge --classified`."""

import csv
import json
from collections import Counter

import cv2
import optional
import pages
import pytest
from colour_model import image, image_of
from json_lines import column_of, lines
from report_schemas import validator

from detcli.data.record import box_of

COLOURS = ("blue", "green", "red")  # of the channels of OpenCV


@pytest.fixture
def detected(predict, tmp_path):
    """Records and crops of two folders with an image of one name, and of an image without boxes."""
    for folder, squares in {"a": [("red", 1, 1), ("blue", 6, 6)], "b": [("green", 3, 3)]}.items():
        (tmp_path / "pics" / folder).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "pics" / folder / "1.png"), image_of(squares))
    cv2.imwrite(str(tmp_path / "pics/a/2.png"), image())
    predict("pics --recursive --conf 0.9 --save-crops crops -o boxes.jsonl")
    return tmp_path


def brightest(path):
    """A classifier: the name of the brightest channel of an image, and its share."""
    means = cv2.imread(str(path)).mean(axis=(0, 1))
    return COLOURS[means.argmax()], means.max() / means.sum()


@pytest.fixture
def classified(detected):
    """The same folder, with a CSV file that names the colours of the crops, last one first."""
    with (detected / "colours.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["score", "crop", "class"])
        for path in sorted((detected / "crops").rglob("*.png"), reverse=True):
            name, share = brightest(path)
            rows.writerow([share, path, name])
    return detected


@pytest.fixture
def merge(invoke, tmp_path):
    """Run `detcli merge` with words, beside the files."""

    def run(line, code=0):
        completed = invoke("merge", line.split(), cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert "Traceback" not in completed.stderr
        return completed

    return run


def test_each_box_has_the_class_of_its_crop(classified, merge):
    before = lines((classified / "boxes.jsonl").read_text())
    after = lines(merge("boxes.jsonl --classified colours.csv").stdout)
    names = []
    for fields in after:
        validator("predict").validate(fields)
        for detection in fields["detections"]:
            names.append((detection["class_name"], detection.pop("classified")))
            assert 0 < detection.pop("classified_score") <= 1
    assert sorted(names) == [("blue", "blue"), ("green", "green"), ("red", "red")]
    assert after == before


def test_csv_and_the_table_have_it_and_csv_gives_it_back(classified, merge):
    merge("boxes.jsonl --classified colours.csv -o all.csv")
    rows = list(csv.DictReader((classified / "all.csv").read_text().splitlines()))
    pairs = [(row["class_name"], row["classified"]) for row in rows]
    assert sorted(pairs) == [("", ""), ("blue", "blue"), ("green", "green"), ("red", "red")]
    again = lines(merge("all.csv --format jsonl").stdout)
    direct = lines(merge("boxes.jsonl --classified colours.csv").stdout)
    for ours, theirs in zip(again, direct, strict=True):
        assert column_of(ours["detections"], "classified") == column_of(
            theirs["detections"], "classified"
        )
    table = merge("boxes.jsonl --classified colours.csv --format table").stdout
    assert "classified" in table


def test_parquet_has_it(classified, merge):
    parquet = optional.require("pyarrow.parquet")
    merge("boxes.jsonl --classified colours.csv -o all.parquet")
    rows = parquet.read_table(classified / "all.parquet").to_pylist()
    for row in rows:
        assert row["classified"] == row["class_name"]
    assert {type(row["classified_score"]) for row in rows} == {float, type(None)}


def test_count_counts_it(classified, merge, invoke):
    merge("boxes.jsonl --classified colours.csv -o all.jsonl")
    command = ["count", "all.jsonl", "--by", "classified,folder", "--format", "json"]
    counted = json.loads(invoke(command, cwd=classified).stdout)
    groups = Counter()
    for group in counted["groups"]:
        groups[group["classified"], group["folder"]] = group["boxes"]
    assert groups == {
        ("red", "pics/a"): 1, ("blue", "pics/a"): 1, ("green", "pics/b"): 1, (None, "pics/a"): 0
    }  # fmt: skip
    plain = invoke("count", "boxes.jsonl", "--by", "classified", cwd=classified)
    assert "merge --classified adds it" in plain.stderr


def test_the_page_has_it(classified, merge, invoke):
    merge("boxes.jsonl --classified colours.csv -o all.jsonl")
    completed = invoke("report", "all.jsonl", "-o", "page", cwd=classified)
    assert completed.returncode == 0, completed.stderr
    names = []
    for entry in pages.entries(classified / "page"):
        names += entry.get("classified", [])
    assert sorted(names) == ["blue", "green", "red"]


def test_rows_that_fit_nothing_are_listed_and_the_rest_is_written(classified, merge):
    with (classified / "colours.csv").open("a") as file:
        file.write("0.5,crops/red/a/9_0.png,red\n")
    completed = merge("boxes.jsonl --classified colours.csv -o all.jsonl", code=6)
    assert "line 5 fits no detection: crops/red/a/9_0.png" in completed.stderr
    assert "1 of 4 rows in colours.csv fit no detection" in completed.stderr
    assert len(lines((classified / "all.jsonl").read_text())) == 3


def test_a_refused_file_leaves_no_output(classified, merge):
    (classified / "twice.csv").write_text("source,box,class\npics/a/1.png,0,x\npics/a/1.png,0,y\n")
    completed = merge("boxes.jsonl --classified twice.csv -o all.jsonl", code=2)
    assert "lines 2 and 3 are about the same box" in completed.stderr
    assert not (classified / "all.jsonl").exists()
    merge("boxes.jsonl --classified colours.csv -o colours.csv", code=2)
    assert (classified / "colours.csv").read_text().startswith("score,crop,class")


@pytest.mark.usefixtures("shards_here")
def test_a_run_in_shards_is_classified_by_the_numbers_of_its_boxes(detected, predict, merge):
    predict("pics --recursive --conf 0.9 -o parts/")
    (detected / "species.csv").write_text("source,box,class\npics/b/1.png,0,frog\n")
    single = merge("boxes.jsonl --classified species.csv -o one.csv")
    parts = merge("parts/ --classified species.csv -o all.csv")
    assert single.returncode == parts.returncode
    assert "frog" in (detected / "all.csv").read_text()
    assert (detected / "one.csv").read_text() == (detected / "all.csv").read_text()


def test_boxes_stay_where_they_are(classified, merge):
    before = lines((classified / "boxes.jsonl").read_text())
    after = lines(merge("boxes.jsonl --classified colours.csv").stdout)
    for ours, theirs in zip(before, after, strict=True):
        pairs = zip(ours["detections"], theirs["detections"], strict=True)
        for detection_before, detection_after in pairs:
            assert box_of(detection_before) == box_of(detection_after)
