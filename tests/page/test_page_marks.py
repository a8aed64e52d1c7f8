"""The page in a browser: marks, and the forms in which they are handed back."""

import json
import shlex
import shutil
import subprocess
import time

import pytest
from pages import box, make, record

from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import RunInfo
from detcli.run.marks import Marks

pytestmark = pytest.mark.slow

ODD = "in/it's \\(1) $x.jpg"


@pytest.fixture
def marked(browser, tmp_path):
    """A page on which images and boxes are marked, with pointer and keys; and its records."""
    from selenium.webdriver.common.keys import Keys

    records = [
        record("in/a.jpg", box(0, 0.9), box(1, 0.8, (10.04, 20.26, 30, 40))),
        record(ODD, box(2, 0.7)),
        record("film.mp4", box(0, 0.6), frame=0, time_s=0.0),
        record("film.mp4", box(0, 0.6), frame=1, time_s=1.0),
        record("-b.jpg", box(0, 0.3)),
    ]
    about = RunInfo("predict", [("model", "yolo v10"), ("conf", "0.25"), ("max det", "300")])
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
    assert words[:6] == ["detcli", "predict", "--model", "yolo v10", "--conf", "0.25"]
    assert words[6:] == ["in/a.jpg", ODD, "film.mp4", "./-b.jpg"]
    browser.click("#marks form button:last-child")
    browser.go("#find=person&score=..0.7")
    assert hand_back(browser, "files", "shown").splitlines() == ["film.mp4", "-b.jpg"]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_finds_the_records_that_are_marked(marked, tmp_path):
    browser, records = marked
    (tmp_path / "marked.jq").write_text(hand_back(browser, "jq"), "utf-8")
    as_read = json.loads(json.dumps(records))
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    command = ["jq", "-c", "-f", "marked.jq"]
    output = subprocess.check_output(command, input=lines, text=True, cwd=tmp_path)
    selected = [json.loads(line) for line in output.splitlines()]
    not_marked = as_read[3]
    assert not_marked not in selected
    assert [record for record in as_read if record in selected] == as_read[:3] + as_read[4:]


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
    page = make(tmp_path / "page", [record("a.jpg", box(0, 0.9), box(1, 0.8))])
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
    assert mark_of_image["mark"] == "keep"
    assert "detection" not in mark_of_image


def test_a_box_of_a_comparison_is_marked_without_its_number(browser, tmp_path):
    """There it is not that of a record."""
    kinds = [BoxKind("false positive", (0, 94, 213))]
    boxes = [[PageBox(0, "person", 0.9, (1, 1, 9, 9), 0)]]
    page = make(tmp_path / "page", [record("a.jpg")], RunInfo("eval", kinds=kinds), boxes)
    browser.open(page, "#view=wall")
    browser.click(".tile:nth-child(2) [data-mark=drop]")
    assert json.loads(hand_back(browser, "json")) == [
        {"mark": "drop", "source": "a.jpg", "class_name": "person", "box": [1, 1, 9, 9]}
    ]
