"""`report --repeated`, and what `--apply` makes of marks on groups of repeats."""

import json
from unittest.mock import Mock

import cv2
import numpy as np
import optional
import pages
import pytest
from json_lines import column_of, lines, text_of
from saved_records import box, error, record


def animal(score=0.5, shift=0.0):
    return box(score, name="animal", shift=shift)


def car(score=0.6):
    return box(score, column=2, class_id=2, name="car")


def camera(name, count, *detections):
    """Records of a camera whose images all have the same detections."""
    return [record(f"{name}/{number:02}.jpg", *detections) for number in range(count)]


CARD = camera("site1", 11, animal()) + camera("site2", 12, animal(), car())
CARD += [
    record("site1/deer.jpg", animal(0.9, shift=150.0)),
    record("site3/empty.jpg"),
    error("site3/torn.jpg"),
]
"""A stone at each of two sites, a car that stands at one of them, and a deer."""

STONE = {"source": "site1", "repeated": 3, "class_name": "animal"}
STONE |= {"box_fractions": [0.0, 0.0, 0.1, 1.0]}


@pytest.fixture
def run(invoke, tmp_path):
    """Write records to card.jsonl, and run a command beside it."""

    def run_command(line, records=CARD, code=0, says=""):
        text = text_of(records)
        (tmp_path / "card.jsonl").write_text(text, encoding="utf-8")
        completed = invoke(line.split(), cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert says in completed.stderr
        assert "Traceback" not in completed.stderr
        return completed

    return run_command


def write_marks(tmp_path, *marks):
    """Write marks of a page to marks.json."""
    (tmp_path / "marks.json").write_text(json.dumps(list(marks)), encoding="utf-8")


def groups_of_page(tmp_path):
    """What the page says of each group: number, images, boxes, place, first and last image."""
    return [tuple(entry["repeat"][:6]) for entry in pages.entries(tmp_path / "page")]


def group_numbers(records):
    """The group of each detection of records; 0 without one."""
    numbers = []
    for fields in records:
        for detection in fields.get("detections", ()):
            numbers.append(detection.get("repeated", 0))
    return numbers


def test_a_page_has_an_entry_for_each_group_and_the_largest_comes_first(run, tmp_path):
    run("report card.jsonl --repeated -o page", says="wrote a page of 3 groups of repeats in 26 ")
    assert groups_of_page(tmp_path) == [
        (1, 12, 12, "site2", "00.jpg", "11.jpg"),
        (2, 12, 12, "site2", "00.jpg", "11.jpg"),
        (3, 11, 11, "site1", "00.jpg", "10.jpg"),
    ]
    (about,) = pages.runs(tmp_path / "page")
    assert about["repeats"] is True
    assert about["state"] == "complete"
    last_entry = pages.entries(tmp_path / "page")[-1]
    assert last_entry["repeat"][6] == STONE["box_fractions"]
    assert len(last_entry["found"]) == 1


def test_a_page_without_repeats_says_so(run, tmp_path):
    run("report card.jsonl --repeated -o page", camera("a", 9, animal()), says="0 groups")
    (about,) = pages.runs(tmp_path / "page")
    assert about["summary"] == ["No box is at one place in 10 images or more of a camera."]
    run("report card.jsonl --repeated -o page", [], says="0 groups of repeats in 0 records")


def test_the_tile_of_a_group_shows_its_image(run, make_image, tmp_path):
    stone = box(0.5) | {"x1": 8, "y1": 16, "x2": 40, "y2": 48}  # around the red square
    records = []
    for number in range(10):
        name = f"pics/{number}.png"
        make_image(name, ("red", 2, 3))
        records.append(record(name, stone, width=64, height=64))
    run("report card.jsonl --repeated -o page", records)
    (entry,) = pages.entries(tmp_path / "page")
    plain = cv2.imread(str(tmp_path / f"page/pictures/{entry['picture']}.jpg"))
    assert plain.shape == (64, 64, 3)
    assert np.ptp(plain[20:44, 12:36], axis=(0, 1)).max() > 100
    run("report card.jsonl --repeated --blur person --blur-with fill -o page", records)
    (entry,) = pages.entries(tmp_path / "page")
    hidden = cv2.imread(str(tmp_path / f"page/pictures/{entry['picture']}.jpg"))
    assert np.ptp(hidden[20:44, 12:36], axis=(0, 1)).max() < 20
    (tmp_path / "pics/3.png").unlink()
    says = "1 record left out, as their images are gone"
    run("report card.jsonl --repeated --existing -o page", records + [records[0]], says=says)


def test_a_text_on_a_track_that_was_hidden_earlier_is_not_shown(run, make_image, tmp_path):
    """In the first frame the track is a person; that frame has no tile."""
    make_image("clip/0.png", ("red", 2, 3))
    place = {"x1": 8, "y1": 16, "x2": 40, "y2": 48, "track_id": 7}
    first = record("clip/0.png", box(0.5, name="person") | place, width=64, height=64, frame=0)
    records = [first]
    for number in range(1, 12):
        code = box(0.9, name="qr_code") | place | {"text": "SECRET"}
        records.append(record("clip/0.png", code, width=64, height=64, frame=number))
    run("report card.jsonl --repeated -o page", records)
    assert "SECRET" in written_text(tmp_path / "page")
    run("report card.jsonl --repeated --blur person -o hidden", records)
    assert pages.entries(tmp_path / "hidden")
    assert "SECRET" not in written_text(tmp_path / "hidden")


def test_a_person_whose_box_a_mark_drops_is_hidden_on_tiles(run, make_image, tmp_path):
    """The image still shows the person."""
    for number in range(10):
        make_image(f"pics/{number}.png", ("red", 2, 3))
    place = {"x1": 8, "y1": 16, "x2": 40, "y2": 48}  # around the red square
    person = box(0.5, name="person") | place
    stone = box(0.5, name="stone") | place
    records = []
    marks = []
    for number in range(10):
        name = f"pics/{number}.png"
        records.append(record(name, person, stone, width=64, height=64))
        corners = list(place.values())
        marks.append({"mark": "drop", "source": name, "class_name": "person", "box": corners})
    write_marks(tmp_path, *marks)
    options = "--repeated --blur person --blur-with fill --apply marks.json -o page"
    run(f"report card.jsonl {options}", records)
    (entry,) = pages.entries(tmp_path / "page")
    tile = cv2.imread(str(tmp_path / f"page/pictures/{entry['picture']}.jpg"))
    assert np.ptp(tile[20:44, 12:36], axis=(0, 1)).max() < 20


def written_text(folder):
    """All that the scripts of a page say."""
    return "".join(path.read_text() for path in folder.rglob("*.js"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report card.jsonl --repeated --sample 5 -o page", "--repeated counts in all records"),
        ("report - --repeated -o page", "--repeated reads the records twice"),
        ("report absent.jsonl --repeated -o page", "cannot read absent.jsonl"),
        ("report card.jsonl --repeated --apply card.jsonl -o page", "card.jsonl"),
    ],
)
def test_what_cannot_be_shown_is_refused_without_a_page(run, tmp_path, line, says):
    code = 3 if "absent" in line else 2
    run(line, code=code, says=says)
    assert not (tmp_path / "page/index.html").exists()


def test_boxes_of_a_dropped_group_get_its_number_in_records(run, tmp_path):
    write_marks(tmp_path, {"mark": "drop", **STONE})
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=3)
    marked = lines((tmp_path / "marked.jsonl").read_text())
    assert group_numbers(marked) == [3] * 11 + [0] * 25
    assert column_of(marked, "source") == column_of(CARD, "source")


def test_marked_boxes_are_left_out_by_count_sort_and_megadetector(run, tmp_path):
    write_marks(tmp_path, {"mark": "drop", **STONE})
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=3)
    counts = json.loads(run("count marked.jsonl --format json").stdout)
    boxes = {group["class"]: group["boxes"] for group in counts["groups"]}
    assert boxes == {"animal": 13, "car": 12, None: 0}
    run("sort marked.jsonl --by animal>=0.2 --how list -o lists")
    assert len((tmp_path / "lists/animal.txt").read_text().splitlines()) == 13
    run("merge marked.jsonl --format megadetector -o md.json", code=3)
    entries = json.loads((tmp_path / "md.json").read_text())["images"]
    detection_count = 0
    for entry in entries:
        detection_count += len(entry["detections"] or [])
    assert detection_count == 25


@pytest.mark.parametrize("suffix", ["csv", optional.PARQUET])
def test_tables_have_a_column_for_it_and_are_read_back(run, tmp_path, suffix):
    name = f"marked.{suffix}"
    write_marks(tmp_path, {"mark": "drop", **STONE})
    run(f"merge card.jsonl --apply marks.json -o {name}", code=3)
    run(f"merge {name} -o back.jsonl", code=3)
    assert group_numbers(lines((tmp_path / "back.jsonl").read_text())) == [3] * 11 + [0] * 25


def test_a_group_that_is_kept_stays_also_where_another_overlaps_it(run, tmp_path):
    beside = STONE | {"repeated": 4, "box_fractions": [0.004, 0.0, 0.104, 1.0]}
    write_marks(tmp_path, {"mark": "drop", **STONE}, {"mark": "keep", **beside})
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=3)
    assert group_numbers(lines((tmp_path / "marked.jsonl").read_text())) == [0] * 36


def test_groups_of_another_folder_fit_no_record(run, tmp_path):
    write_marks(tmp_path, {"mark": "drop", **STONE, "source": "site9"})
    says = "1 of 1 mark in marks.json fit no record: group 3 of repeats, animal in site9"
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=6, says=says)
    assert not (tmp_path / "marked.jsonl").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"box_fractions": None}, "box_fractions is null"),
        ({"box_fractions": [0, 0, 1]}, "box_fractions is [0, 0, 1]"),
        ({"repeated": 0}, "repeated is 0"),
        ({"class_name": 4}, "class_name is 4"),
    ],
)
def test_damaged_marks_of_groups_are_refused(run, tmp_path, changed, says):
    write_marks(tmp_path, {"mark": "drop", **STONE, **changed})
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=2, says=says)


@pytest.mark.parametrize("name", ["class_name", "box_fractions"])
def test_a_mark_of_a_group_says_all_of_it(run, tmp_path, name):
    mark = {"mark": "drop", **STONE}
    del mark[name]
    write_marks(tmp_path, mark)
    says = f"the mark of group 3 of repeats has no {name}"
    run("merge card.jsonl --apply marks.json -o marked.jsonl", code=2, says=says)


def test_a_page_of_records_shows_the_numbers_and_the_next_page_of_repeats_leaves_them_out(
    run, tmp_path
):
    write_marks(tmp_path, {"mark": "drop", **STONE})
    says = "of 26 records, with 1 group of repeats marked: "
    run("report card.jsonl --apply marks.json -o page", says=says)
    first_entry = pages.entries(tmp_path / "page")[0]
    assert first_entry["repeated"] == [3]
    run("report card.jsonl --repeated --apply marks.json -o page")
    assert [group[0] for group in groups_of_page(tmp_path)] == [4, 5]


def test_marks_of_other_records_are_refused_before_there_is_a_page(run, tmp_path):
    write_marks(tmp_path, {"mark": "drop", **STONE, "source": "site9"})
    run("report card.jsonl --apply marks.json -o page", code=6, says="1 of 1 mark")
    assert not (tmp_path / "page").exists()


def test_a_page_says_how_counts_follow_its_marks(run, tmp_path):
    write_marks(tmp_path, {"mark": "drop", **STONE})
    says = "detcli merge RECORDS --apply marks.json -o corrected.jsonl"
    run("report card.jsonl --apply marks.json -o page", says=says)


def red_group(fields):
    """The group of the red square of a record, an image of 64x64 pixels."""
    (red,) = [box for box in fields["detections"] if box["class_name"] == "red"]
    fractions = [red[side] / 64 for side in ("x1", "y1", "x2", "y2")]
    return {"source": "pics", "repeated": 7, "class_name": "red", "box_fractions": fractions}


def test_predict_marks_boxes_of_a_dropped_group(predict, make_image, tmp_path):
    for number in range(3):
        make_image(f"pics/{number}.png", ("red", 2, 3), ("blue", 0, 0))
    first_record = predict("pics --conf 0.5").records[0]
    write_marks(tmp_path, {"mark": "drop", **red_group(first_record)})
    records = predict("pics --conf 0.5 --apply marks.json").records
    for fields in records:
        numbers = {box["class_name"]: box.get("repeated") for box in fields["detections"]}
        assert numbers == {"red": 7, "blue": None}
    predict("pics --conf 0.5 --apply marks.json --save-txt labels -q --fail-if red>0")
    for path in tmp_path.glob("labels/**/*.txt"):
        assert len(path.read_text().splitlines()) == 1
    table = predict("pics --conf 0.5 --apply marks.json --format csv").stdout
    assert table.splitlines()[0].endswith(",repeated")


def test_the_window_draws_no_repeats_that_are_dropped(predict, make_image, monkeypatch, tmp_path):
    make_image("pics/0.png", ("red", 2, 3), ("blue", 0, 0))
    (only_record,) = predict("pics --conf 0.5").records
    write_marks(tmp_path, {"mark": "drop", **red_group(only_record)})
    window = Mock()
    monkeypatch.setattr("detcli.sink.window.WindowSink", lambda _style: window)
    predict("pics --conf 0.5 --apply marks.json --show")
    ((record_in_window,), _) = window.write.call_args
    assert len(record_in_window.detections) == 1
