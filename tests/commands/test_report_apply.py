"""`--apply`: marks of a page are taken off records, pages and datasets."""

import json

import cv2
import number_video
import numpy as np
import pages
import pytest
from colour_model import image
from folders import names_in
from json_lines import column_of, lines

from detcli.sink.image import GREY


@pytest.fixture
def records(predict, make_image, tmp_path):
    """Two images with boxes, and their records."""
    make_image("pics/a.png", ("red", 2, 3))
    make_image("pics/b.png", ("red", 1, 1), ("blue", 3, 3))
    predict("pics --conf 0.5 -o boxes.jsonl -q")
    return lines((tmp_path / "boxes.jsonl").read_text())


def mark(record, index=None, say="drop", **fields):
    """A mark as the page makes it."""
    fields_of_mark = {"mark": say, "source": record["source"]}
    if index is not None:
        detection = record["detections"][index]
        box = [round(detection[side], 1) for side in ("x1", "y1", "x2", "y2")]
        fields_of_mark |= {"detection": index, "class_name": detection["class_name"], "box": box}
    return fields_of_mark | fields


@pytest.fixture
def apply(invoke, tmp_path):
    """Write marks, and give them to a command."""

    def run(command, marks, code=0, says=""):
        (tmp_path / "marks.json").write_text(marks if isinstance(marks, str) else json.dumps(marks))
        completed = invoke(command.split(), "--apply", "marks.json", cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert says in completed.stderr
        assert "Traceback" not in completed.stderr
        return completed

    return run


REPORT = "report boxes.jsonl -o page"


def shown(tmp_path):
    """The classes on each image of the page."""
    classes = {}
    for source, (_, boxes, _) in pages.shown(tmp_path / "page").items():
        classes[source] = [box[0] for box in boxes]
    return classes


def test_what_is_dropped_is_not_on_the_page(apply, records, tmp_path):
    first, second = records
    names = column_of(second["detections"], "class_name")
    assert len(names) == 2
    completed = apply(REPORT, [mark(second, 1), mark(second, 0, "keep")])
    assert "wrote a page of 2 records, without what 1 mark dropped: " in completed.stderr
    assert shown(tmp_path) == {"pics/a.png": ["red"], "pics/b.png": names[:1]}
    apply(REPORT, [mark(second)])
    assert shown(tmp_path) == {"pics/a.png": ["red"]}
    apply(REPORT, [mark(first, say="keep"), mark(second, say="keep")])
    assert shown(tmp_path) == {"pics/a.png": ["red"], "pics/b.png": names}
    apply(REPORT, [])
    assert len(shown(tmp_path)) == 2


def test_a_box_is_known_by_class_and_place_wherever_it_is_in_its_record(apply, records, tmp_path):
    _, second = records
    for changed in ({"detection": 0}, {"detection": 99}):
        apply(REPORT, [mark(second, 1) | changed])
        assert shown(tmp_path)["pics/b.png"] == [second["detections"][0]["class_name"]]
    of_a_comparison = mark(second, 1)
    del of_a_comparison["detection"]
    apply(REPORT, [of_a_comparison])
    assert len(shown(tmp_path)["pics/b.png"]) == 1


def test_of_two_boxes_alike_the_marked_one_goes(apply, records, tmp_path):
    (box,) = records[0]["detections"]
    twins = [box | {"text": "first"}, box | {"text": "second"}]
    record = records[0] | {"detections": twins}
    (tmp_path / "boxes.jsonl").write_text(json.dumps(record))
    apply(REPORT, [mark(record, 1)])
    (entry,) = pages.entries(tmp_path / "page")
    assert entry["texts"] == ["first"]
    apply(REPORT, [mark(record, 0), mark(record, 1)])
    assert shown(tmp_path) == {"pics/a.png": []}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"class_name": "blue"}, "1 of 2 marks in marks.json fit no record: blue at "),
        ({"box": [1, 1, 2, 2]}, "fit no record: red at 1, 1, 2, 2 in pics/a.png"),
        ({"source": "pics/c.png"}, " in pics/c.png"),
        ({"frame": 1}, " in pics/a.png"),
        ({"time": "2026-01-01T00:00:00Z"}, " in pics/a.png"),
    ],
)
def test_marks_of_other_records_are_refused(apply, records, tmp_path, changed, says):
    first, second = records
    marks = [mark(first, 0) | changed, mark(second)]
    completed = apply(REPORT, marks, code=6, says=says)
    assert "apply them to the records that their page was made of" in completed.stderr
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(
    "marks",
    [
        "not JSON",
        "{}",
        "[1]",
        '[{"source": "a"}]',
        '[{"source": "a", "mark": "odd"}]',
        "[[]]",
        '[{"source": "a", "mark": "drop", "box": [1, 2, 3]}]',
        '[{"source": "a", "mark": "drop", "box": [1, 2, 3, "4"]}]',
        '[{"source": 1, "mark": "drop"}]',
        "[" * 10_000,
    ],
)
@pytest.mark.usefixtures("records")
def test_what_holds_no_marks_is_refused(apply, tmp_path, marks):
    apply(REPORT, marks, code=2, says="name a file that a page has saved")
    assert not (tmp_path / "page").exists()


def test_a_run_leaves_out_what_is_dropped_of_everything(apply, records, make_model, tmp_path):
    first, second = records
    run = f"predict pics -m {make_model()} --conf 0.5 --save-dataset data -o new.jsonl"
    apply(run, [mark(first), mark(second, 1)])
    (line,) = (tmp_path / "new.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["source"] == "pics/b.png"
    assert record["detections"] == second["detections"][:1]
    assert names_in(tmp_path / "data/images") == ["b.png"]
    (label,) = (tmp_path / "data/labels/b.txt").read_text().splitlines()
    assert label.startswith(f"{second['detections'][0]['class_id']} ")


def test_a_run_says_which_marks_fit_nothing(apply, records, make_model, tmp_path):
    first, second = records
    run = f"predict pics/b.png -m {make_model()} --conf 0.5 -o new.jsonl"
    apply(run, [mark(first, 0), mark(second, 0)], code=6, says="1 of 2 marks in marks.json fit no")
    (line,) = (tmp_path / "new.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["detections"] == second["detections"][1:]
    apply(f"{run[:-12]} --resume x.jsonl", [], code=2, says="apply the marks in a separate run")


def test_a_frame_of_a_video_is_dropped_alone(apply, predict, tmp_path):
    video = number_video.open_writer(tmp_path / "film.mp4", (64, 64))
    for _ in range(3):
        video.write(image(("red", 2, 2)))
    video.release()
    predict("film.mp4 --conf 0.5 -o boxes.jsonl -q")
    records = lines((tmp_path / "boxes.jsonl").read_text())
    apply(REPORT, [mark(records[1], frame=1), mark(records[2], 0, frame=2)])
    entries = pages.entries(tmp_path / "page")
    assert column_of(entries, "frame") == [0, 2]
    assert [len(entry["found"]) for entry in entries] == [1, 0]


def test_a_box_that_is_dropped_stays_hidden_on_the_page(apply, records, tmp_path):
    _, second = records
    class_names = column_of(second["detections"], "class_name")
    red = class_names.index("red")
    blurred = f"{REPORT} --blur red --blur-with fill"
    says = "1 detection dropped by marks, and blurred on the page all the same"
    completed = apply(blurred, [mark(second, red)], says=says)
    assert shown(tmp_path)["pics/b.png"] == ["blue"]
    (entry,) = [
        entry for entry in pages.entries(tmp_path / "page") if entry["source"] == "pics/b.png"
    ]
    pixels = cv2.imread(str(tmp_path / f"page/pictures/{entry['picture']}.jpg")).astype(int)
    assert np.abs(pixels[10:14, 10:14] - GREY).max() < 10  # the red cell
    assert np.abs(pixels[26:30, 26:30] - GREY).max() > 100  # the blue one
    completed = apply(blurred, [mark(second, 1 - red)])
    assert "all the same" not in completed.stderr
