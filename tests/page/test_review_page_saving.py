"""How the answers on a review page are kept and saved."""

import json
import time

import pytest
from json_lines import column_of
from review_pages import answer, answers, labels, progress

from detcli.page.review_page import Look, ReviewImage

pytestmark = pytest.mark.slow


def test_answers_survive_a_reload_and_each_reviewer_has_their_own(browser, review):
    folder = review(1, 1, 1)
    browser.open(folder, "?who=anna")
    answer(browser, "f", "u", "z")
    browser.open(folder, "?who=ben")
    assert labels(browser) == []
    answer(browser, "j")
    browser.open(folder, "?who=anna")
    assert progress(browser).startswith("1 of 3; 1 animal; ")
    assert column_of(labels(browser), "who") == ["anna"] * 3
    assert browser.text("#who") == "anna"
    browser.press("z")
    assert progress(browser).startswith("0 of 3; 0 animals; ")
    browser.open(folder)
    assert browser.text("#who") == "reviewer (your name: ?who=NAME in the address)"


def test_more_answers_than_one_item_holds_are_restored_in_their_order(browser, review):
    image = ReviewImage("", ())
    looks = []
    for number in range(150):
        looks.append(Look(f"{number}.jpg", [image], 1, 1))
    folder = review(looks=looks)
    browser.open(folder)
    browser.run("for (const look of looksOfRound()) addLabel(look, 0, 1)")
    lines = browser.run("return review.lines")
    assert len(lines) == 150
    browser.open(folder)
    assert browser.run("return review.lines") == lines


def test_another_window_of_the_same_reviewer_follows(browser, review):
    folder = review(1, 1)
    browser.open(folder, "?who=anna")
    first_window = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    try:
        browser.open(folder, "?who=anna")
        answer(browser, "f")
    finally:
        browser.driver.close()
        browser.driver.switch_to.window(first_window)
    browser.wait("return document.getElementById('progress').textContent.startsWith('1 of 2')")


def saved_lines(path):
    """The lines of a file, once the browser has written it."""
    end = time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return path.read_text("utf-8").splitlines()


def test_save_downloads_the_labels_under_the_name_of_the_reviewer(browser, review, tmp_path):
    odd_source = '</script><img src=x onerror="alert(1)">\udcff.jpg'
    look = Look(odd_source, [ReviewImage("images/0-0.jpg", ())], 1, 2)
    review(1)
    browser.open(review(looks=[look]), "?who=an%2Fna%20%C3%A9")
    browser.run("delete window.showSaveFilePicker; window.showSaveFilePicker = undefined")
    answer(browser, "j")
    downloads = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    browser.press("s")
    (line,) = saved_lines(tmp_path / "labels-an_na_é.jsonl")
    label = json.loads(line)
    assert label["source"] == odd_source
    assert label["who"] == "an/na é"
    assert label["pass"] == 2
    assert browser.text("#saved") == "1 saved"


FILE_PICKER = """
window.written = []; window.pickers = 0;
const createWritable = async () => {
  let text = "";
  return {write: async (part) => { text += part; }, close: async () => window.written.push(text)};
};
window.showSaveFilePicker = async (options) => {
  window.pickers += 1; window.suggested = options.suggestedName; return {createWritable};
};
"""


def test_a_chosen_file_is_written_at_once_every_hundred_and_at_the_end(browser, review):
    image = ReviewImage("", ())
    looks = []
    for number in range(120):
        looks.append(Look(f"{number}.jpg", [image], 1, 1))
    browser.open(review(looks=looks), "?who=anna")
    browser.run(FILE_PICKER)
    answer(browser, "f")
    browser.press("s")
    browser.wait("return window.written.length === 1")
    assert browser.run("return window.suggested") == "labels-anna.jsonl"
    browser.run("for (const look of looksOfRound().slice(1, 100)) addLabel(look, 0, 1); show()")
    browser.wait("return window.written.length === 2")
    text = browser.run("return window.written[1]")
    assert text.count("\n") == 100
    assert json.loads(text.splitlines()[0])["animal"] == 1
    browser.run("for (const look of openLooks()) addLabel(look, 0, 1); show()")
    browser.wait("return window.written.length === 3")
    assert browser.run("return window.written[2]").count("\n") == 120
    assert browser.run("return window.pickers") == 1


def test_a_file_that_cannot_be_written_is_chosen_again(browser, review):
    browser.open(review(1, 1))
    browser.run(FILE_PICKER)
    answer(browser, "f")
    browser.press("s")
    browser.wait("return window.written.length === 1")
    browser.run("review.file.createWritable = () => Promise.reject(new Error('full'))")
    browser.press("s")
    browser.wait("return document.getElementById('notice').textContent.includes('save again')")
    browser.press("s")
    browser.wait("return window.written.length === 2")
    assert browser.run("return window.pickers") == 2
    assert browser.text("#notice") == ""


def test_a_browser_that_keeps_nothing_is_said(browser, review):
    browser.open(review(1, 1))
    browser.run("Storage.prototype.setItem = () => { throw new Error('full'); }")
    answer(browser, "j")
    assert "save before you leave" in browser.text("#notice")
    assert answers(browser) == [("cam/0.jpg", 0)]
