"""How the page looks: nothing is cut, runs together, or is in the way of the images."""

import itertools
import re

import pytest
from pages import box, make, record_of

from detcli.page.entries import BoxKind, PageBox
from detcli.page.run_info import RunInfo

pytestmark = pytest.mark.slow

OPACITY = "return getComputedStyle(document.querySelector('.tile .marks')).opacity"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Scores in many bins, a thousand boxes, at coordinates of large images."""
    records = []
    for number in range(20):
        sides = (1111.1, 1222.2, 2333.3, 3444.4)
        boxes = [box(number % 3, (number % 19 + 1) / 20, sides)] * (100 + number)
        name = f"site{number % 2}/{number}.jpg"
        records.append(record_of(name, boxes, width=5000, height=4000))
    return make(tmp_path_factory.mktemp("crowded") / "page", records)


@pytest.mark.parametrize("view", ["#view=pictures", "#view=wall"])
def test_buttons_are_there_for_the_pointer_the_keyboard_and_a_mark(browser, tmp_path, view):
    page = make(tmp_path / "page", [record_of("a.jpg", [box()]), record_of("b.jpg", [box()])])
    styles = page / "files/page.css"
    text = styles.read_text("utf-8")
    assert "(hover: none)" in text
    # As where a mouse is, which a browser without a window has not.
    styles.write_text(text.replace("(hover: none)", "(width: 0)"), "utf-8")
    browser.open(page, view)
    assert browser.run(OPACITY) == "0"
    x, y = browser.run(
        "const { x, y } = document.querySelector('.tile:has(.marks)').getBoundingClientRect();"
        "return [x, y]"
    )
    browser.mouse("move", x + 50, y + 50)
    assert browser.run(OPACITY) == "1"
    browser.mouse("move", 0, 0)
    assert browser.run(OPACITY) == "0"
    browser.run("document.querySelector('.tile:has(.marks) a').focus()")
    assert browser.run(OPACITY) == "1"
    browser.press("k")
    browser.run("document.activeElement.blur()")
    assert browser.run(OPACITY) == "1"


def test_without_a_pointer_that_hovers_buttons_are_always_there(browser, crowded):
    browser.open(crowded)
    is_touched = browser.run("return matchMedia('(hover: none)').matches")
    assert browser.run(OPACITY) == ("1" if is_touched else "0")


def test_paper_has_no_buttons_and_names_its_filter(browser, crowded):
    browser.open(crowded, "#find=site1&class=car&class=dog&score=0.2..0.9&show=some&sort=lowest")
    browser.driver.execute_async_script("fillPaper().then(arguments[0])")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.text("#paper-filter") == (
            "Filter: find site1; score from 0.2 below 0.9; class car, dog; "
            "show With detections; order Lowest score"
        )
        parts = browser.driver.find_elements("css selector", "#paper .marks, #paper button")
        for part in parts:
            assert not part.is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert not browser.find("#paper-filter").is_displayed()
    browser.go("#score=0.5..")
    assert browser.run("return filterText()") == "Filter: score from 0.5 "
    browser.go("#")
    assert browser.run("return filterText()") == ""


@pytest.mark.parametrize("width", [1200, 900, 400])
def test_no_box_of_the_list_takes_two_lines(browser, crowded, width):
    browser.show(crowded, "#picture=0", width=width)
    heights = browser.run(
        "return [...document.querySelectorAll('#viewer-found td')].slice(0, 12)"
        ".filter((cell) => /\\d to \\d/.test(cell.textContent)).map((cell) => {"
        "  const range = document.createRange(); range.selectNodeContents(cell);"
        "  return range.getClientRects().length; })"
    )
    assert heights == [1, 1, 1]
    overflow = browser.run(
        "const panel = document.querySelector('.panel');"
        "return panel.scrollWidth - panel.clientWidth"
    )
    assert overflow == 0


@pytest.mark.parametrize("width", [1200, 400])
def test_counts_of_bars_do_not_run_together(browser, crowded, width):
    browser.show(crowded, "#view=figures", width=width)
    spans = browser.run(
        "return [...document.querySelector('.bars').querySelectorAll('.bar-count')]"
        ".filter((count) => count.textContent).map((count) => {"
        "  const range = document.createRange(); range.selectNodeContents(count);"
        "  const { left, right, top, bottom, } = range.getBoundingClientRect();"
        "  const slot = count.parentElement.getBoundingClientRect();"
        "  return [left, right, top, bottom, slot.top]; })"
    )
    assert len(spans) > 15
    for span, next_span in itertools.pairwise(spans):
        _, right, _, _, _ = span
        left_of_next, _, _, _, _ = next_span
        assert left_of_next >= right
    for _, _, top, bottom, slot_top in spans:
        assert top >= slot_top - 1
        assert bottom <= slot_top + 40


def test_all_of_a_caption_can_be_read_in_a_comparison(browser, tmp_path):
    name = "yolov10n-finetuned-2026-05-17.onnx"
    kinds = [BoxKind(f"only {name}", (0, 94, 213)), BoxKind(f"only old-{name}", (0, 0, 0))]
    of_new_model = PageBox(0, "person", 0.9, (1, 1, 9, 9), 0)
    of_old_model = PageBox(0, "person", 0.9, (1, 1, 9, 9), 1)
    boxes = [[of_new_model, of_old_model, of_old_model]]
    page = make(tmp_path / "page", [record_of("a.jpg")], RunInfo("verify", kinds=kinds), boxes)
    inside = (
        "return [...document.querySelectorAll('.caption')].every((caption) =>"
        " [...caption.children].every((part) => part.scrollWidth <= part.clientWidth)"
        " && caption.scrollHeight <= caption.clientHeight)"
    )
    for width in (1200, 400):
        browser.open(page, width=width)
        assert browser.text(".caption .quiet") == f"2 only old-{name}, 1 only {name}"
        assert browser.run(inside)
        browser.go("#view=wall&group=none")
        assert browser.texts(".caption .name")[0] == f"0.90 person only {name}"
        assert browser.run(inside)


def test_a_comparison_says_how_far_boxes_are_apart(browser, tmp_path):
    kinds = [BoxKind("moved", (0, 94, 213))]
    boxes = [[PageBox(0, "person", 0.9, (1, 1, 9, 9), 0, (0.8, (2, 1, 9, 13.5)))]]
    about = RunInfo("verify", kinds=kinds, sides=("a", "b"))
    browser.open(make(tmp_path / "page", [record_of("a.jpg")], about, boxes), "#picture=0")
    assert "moved, 4.5 pixels apart" in browser.text("#viewer-found tbody td")


def test_the_link_to_what_is_shown_is_copied(browser, crowded):
    browser.open(crowded, "#view=wall&class=car")
    browser.run("window.copied = []; copyField = async (field) => copied.push(field.value)")
    browser.click(".tools .copy-link")
    assert browser.text(".tools .copy-link") == "Copied"
    browser.go("#picture=3")
    browser.click("#viewer .copy-link")
    assert browser.run("return document.activeElement.className") == "copy-link"
    wall, image = browser.run("return copied")
    assert wall.endswith("/index.html#view=wall&class=car")
    assert image.endswith("/index.html#picture=3")
    assert browser.run("return document.querySelectorAll('textarea').length") == 1  # of the marks
    browser.wait("return document.querySelector('.tools .copy-link').textContent !== 'Copied'")


def test_no_sign_is_of_a_kind_that_few_fonts_have(browser, crowded):
    """Technical symbols and dingbats: they are drawn."""
    browser.open(crowded, "#picture=0")
    text = browser.run("return document.documentElement.outerHTML")
    text += (crowded / "files/page.css").read_text("utf-8")
    assert re.findall("[\u2300-\u23ff\u2600-\u27bf\ufe0e]", text) == []
