"""The page in a browser: marks, and the forms in which they are handed back."""

import csv
import io
import json
import shlex
import shutil
import subprocess
import time

import json_lines
import pytest
from pages import box, make, record_of

from detcli.page.entries import BoxKind, PageBox
from detcli.page.run_info import RunInfo
from detcli.run.marks import Marks

pytestmark = pytest.mark.slow

ODD = "in/it's \\(1) $x.jpg"


@pytest.fixture
def marked(browser, tmp_path):
    """A page on which images and boxes are marked, with pointer and keys; and its records."""
    from selenium.webdriver.common.keys import Keys

    records = [
        record_of("in/a.jpg", [box(0, 0.9), box(1, 0.8, (10.04, 20.26, 30, 40))]),
        record_of(ODD, [box(2, 0.7)]),
        record_of("film.mp4", [box(0, 0.6)], frame=0, time_s=0.0),
        record_of("film.mp4", [box(0, 0.6)], frame=1, time_s=1.0),
        record_of("-b.jpg", [box(0, 0.3)]),
    ]
    about = RunInfo("predict", rerun=["detcli", "predict", "--model", "yolo v10", "--rect"])
    browser.open(make(tmp_path / "page", records, about), "#view=wall&sort=lowest")
    assert browser.text("#count-marks") == ""
    browser.click(".tile:nth-child(2) [data-mark=drop]")  # person 0.3 of -b.jpg
    assert browser.find(".tile:nth-child(2) [data-mark=drop]").get_attribute("ariaPressed")
    browser.press(Keys.ARROW_RIGHT, "x")  # a person of film.mp4
    browser.press("x", "x")  # and off and on again
    browser.go("#view=pictures")
    browser.run("document.querySelector('.tile:nth-child(2) a').focus()")
    browser.press("k")
    browser.go("#picture=0.1")
    browser.press("x")  # the box that is chosen
    browser.press(Keys.ESCAPE)
    assert browser.text("#count-marks") == "4"
    return browser, records


def hand_back(browser, form, choice="all"):
    """What the page hands back in a form: all marks, or those of a choice."""
    browser.run(
        "if (!document.getElementById('marks').open) document.getElementById('open-marks').click()"
    )
    browser.find(f"#hand-as [value={form}]").click()
    browser.find(f"#hand-of [value={choice}]").click()
    return browser.find("#hand-text").get_attribute("value")


def test_marks_are_applied_to_the_records_of_their_page(marked, tmp_path):
    browser, records = marked
    (tmp_path / "marks.json").write_text(hand_back(browser, "json"), "utf-8")
    assert browser.text("#marks-sum") == "3 to drop, 1 to keep"
    marks = Marks(tmp_path / "marks.json")
    remaining = [marks.remaining_detections(record) for record in records]
    assert remaining == [[0], [0], [], [0], []]
    marks.require_fit()
    assert "drop" not in hand_back(browser, "json", "keep")


def test_what_is_marked_is_listed(marked):
    browser, _ = marked
    names = ["in/a.jpg", ODD, "film.mp4", "-b.jpg"]
    assert hand_back(browser, "files").splitlines() == names
    assert hand_back(browser, "files", "keep").splitlines() == [ODD]
    words = shlex.split(hand_back(browser, "predict"))
    assert words[:5] == ["detcli", "predict", "--model", "yolo v10", "--rect"]
    assert words[5:] == ["in/a.jpg", ODD, "film.mp4", "./-b.jpg"]
    browser.click("#marks form button:last-child")
    browser.go("#find=person&score=..0.7")
    assert hand_back(browser, "files", "shown").splitlines() == ["film.mp4", "-b.jpg"]


def test_the_command_detects_as_the_run_did(browser, make_model, make_image, invoke, tmp_path):
    make_model("my colours.onnx")
    make_image("first.png", ("red", 2, 3), ("blue", 6, 6))
    make_image("it's second.png", ("red", 4, 4), ("green", 1, 1))
    options = ["-m", "my colours.onnx", "--classes", "red,green", "--conf", "0.5,red=0.6"]
    options += ["--tile", "64,overlap=0.25", "--nms", "0.5", "--max-det", "20"]
    outputs = ["-o", "boxes.jsonl", "--report", "page"]
    inputs = ["first.png", "it's second.png"]
    command = ["predict"] + inputs + options + outputs
    assert invoke(*command, cwd=tmp_path).returncode == 0
    browser.open(tmp_path / "page")
    words = shlex.split(hand_back(browser, "predict", "shown"))
    assert words[-2:] == inputs
    assert invoke(*words[1:], "-o", "again.jsonl", cwd=tmp_path).returncode == 0
    records = json_lines.lines((tmp_path / "boxes.jsonl").read_text("utf-8"))
    repeated = json_lines.lines((tmp_path / "again.jsonl").read_text("utf-8"))
    assert sum(json_lines.detection_counts(records)) > 0
    detections = json_lines.detections_by_source(records)
    assert json_lines.detections_by_source(repeated) == detections


def test_without_all_options_of_a_run_there_is_no_command(browser, tmp_path):
    page = make(tmp_path / "page", [record_of("a.jpg", [box()])], RunInfo("report"))
    browser.open(page)
    assert browser.run("return document.querySelector('#hand-as [value=predict]')") is None


def test_images_that_have_no_name_for_a_command_are_left_out(browser, tmp_path):
    about = RunInfo("predict", rerun=["detcli", "predict", "--model", "m.onnx"])
    records = [
        record_of("-", [box()]),
        record_of("00.tar/a.jpg", [box()]),
        record_of("b.jpg", [box()]),
    ]
    browser.open(make(tmp_path / "page", records, about))
    command = "detcli predict --model m.onnx b.jpg\n"
    assert hand_back(browser, "predict", "shown") == command
    browser.click("#marks form button:last-child")
    browser.go("#find=00.tar")
    assert hand_back(browser, "predict", "shown").startswith("# ")


def test_boxes_that_are_marked_are_a_table_and_json(browser, tmp_path):
    records = [
        record_of('in/"a",1.jpg', [box(0, 0.9), box(1, 0.8, (10.04, 20.26, 30, 40))]),
        record_of("film.mp4", [box(2, 0.7), box(0, 0.3)], frame=3, time_s=1.5),
        record_of("b.jpg", [box(0, 0.3)]),
    ]
    browser.open(make(tmp_path / "page", records), "#score=0.5..")
    browser.run("setMark('0.1', 'drop'); setMark('1', 'keep'); setMark('2', 'keep')")
    rows = list(csv.reader(io.StringIO(hand_back(browser, "csv"))))
    assert rows[0] == ["mark", "file", "frame", "class", "score", "x1", "y1", "x2", "y2"]
    assert rows[1] == ["drop", 'in/"a",1.jpg', "", "car", "0.8", "10", "20.3", "30", "40"]
    # Of an image, its boxes that pass the filter.
    assert rows[2] == ["keep", "film.mp4", "3", "dog", "0.7", "10", "10", "50", "40"]
    assert len(rows) == 3
    boxes = json.loads(hand_back(browser, "boxes"))
    assert boxes[0] == {
        "mark": "drop",
        "file": 'in/"a",1.jpg',
        "class_name": "car",
        "score": 0.8,
        "box": [10, 20.3, 30, 40],
    }
    assert boxes[1]["frame"] == 3


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_finds_the_records_that_are_marked(marked, tmp_path):
    browser, records = marked
    (tmp_path / "marked.jq").write_text(hand_back(browser, "jq"), "utf-8")
    as_read = json.loads(json.dumps(records))
    lines = json_lines.text_of(records)
    command = ["jq", "-c", "-f", "marked.jq"]
    output = subprocess.check_output(command, input=lines, text=True, cwd=tmp_path)
    selected = json_lines.lines(output)
    not_marked = as_read.pop(3)
    assert not_marked not in selected
    for marked_record in as_read:
        assert marked_record in selected


def test_marks_are_copied_saved_shown_and_cleared(marked, tmp_path):
    browser, _ = marked
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    text = hand_back(browser, "files")
    browser.click("#hand-save")
    browser.wait("return document.getElementById('hand-done').textContent === 'Saved as files.txt'")
    end = time.monotonic() + 20
    while not (tmp_path / "files.txt").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert (tmp_path / "files.txt").read_text("utf-8") == text
    browser.click("#hand-copy")
    browser.wait("return document.getElementById('hand-done').textContent === 'Copied'")
    browser.click("#marks form button:last-child")
    browser.driver.refresh()
    browser.wait("return document.documentElement.dataset.ready === 'true'")
    assert browser.text("#count-marks") == "4"
    browser.go("#view=wall&show=marked&sort=lowest")
    assert browser.text("#shown") == "3 crops of 4 images shown"
    assert browser.crops()[1] == "0.30 person -b.jpg"
    hand_back(browser, "json")
    browser.find("#hand-clear").click()
    browser.driver.switch_to.alert.dismiss()
    assert browser.text("#count-marks")
    browser.find("#hand-clear").click()
    browser.driver.switch_to.alert.accept()
    browser.settle()
    assert browser.text("#count-marks") == ""
    assert not browser.run("return document.querySelector('[data-mark][aria-pressed=true]')")


def test_an_open_image_and_its_rows_are_marked(browser, tmp_path):
    page = make(tmp_path / "page", [record_of("a.jpg", [box(0, 0.9), box(1, 0.8)])])
    browser.open(page, "#picture=0")
    browser.click("#viewer-found tbody tr:nth-child(2) [data-mark=drop]")
    # Only a click elsewhere in the row brings the box close.
    assert browser.run("return viewer.chosenBox") is None
    browser.click("#viewer-marks [data-mark=keep]")
    browser.press("x", "k")  # the image: there is one mark at a time
    browser.click("#close")
    mark_of_box, mark_of_image = json.loads(hand_back(browser, "json"))
    assert mark_of_box["mark"] == "drop"
    assert mark_of_box["detection"] == 1
    assert mark_of_box["score"] == 0.8
    assert mark_of_image["mark"] == "keep"
    assert "detection" not in mark_of_image


def test_a_box_of_a_comparison_is_marked_without_its_number(browser, tmp_path):
    """There it is not that of a record."""
    kinds = [BoxKind("false positive", (0, 94, 213))]
    boxes = [[PageBox(0, "person", 0.9, (1, 1, 9, 9), 0)]]
    page = make(tmp_path / "page", [record_of("a.jpg")], RunInfo("eval", kinds=kinds), boxes)
    browser.open(page, "#view=wall")
    browser.click(".tile:nth-child(2) [data-mark=drop]")
    (mark,) = json.loads(hand_back(browser, "json"))
    assert mark == {
        "mark": "drop",
        "source": "a.jpg",
        "class_name": "person",
        "score": 0.9,
        "box": [1, 1, 9, 9],
    }
