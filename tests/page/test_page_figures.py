"""The page in a browser: figures of a comparison, paper, ten thousand images, and access."""

import base64
import re

import axe
import pytest
from pages import box, failure, grey, make, record_of
from thinning import RUNS_WHOLE, note, thin

from detcli.config.shapes import Line
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, Curves, Page, PageTable
from detcli.page.run_info import RunInfo

pytestmark = pytest.mark.slow

KINDS = [BoxKind("found", (1, 2, 3), wrong=False), BoxKind("missed", (0, 94, 213), side=1)]
ABOUT = RunInfo("eval", kinds=KINDS, sides=("a.onnx", "labels"))


@pytest.fixture(scope="module")
def page_with_tables(tmp_path_factory):
    """Three images, tables that lead to them, and curves of twelve classes."""
    found_person = PageBox(0, "person", 0.9, (1, 1, 9, 9), 0)
    missed_car = PageBox(1, "car", None, (5, 5, 30, 30), 1)
    rows = [["person", 10, 0.5], ["refrigerator", 9, None], ["car", 100, 0.25]]
    tables = [
        PageTable("By class", ["class", "boxes", "AP"], rows, [[0, 2], [], [1]]),  # type: ignore[arg-type]
        PageTable("Not found as anything", ["class", "times"], [["hair drier", 1]], [[1]]),
    ]
    lines = [(f"class {n}", n, n / 20, [1, 0.5, 0]) for n in range(12)]
    lines.append(("all", 66, 0.5, [1, 1, 0]))
    f1_lines = [("car", 3, 1, [0, 1, 0]), ("all", 3, 1, [0, 1, 0])]
    curves = [
        Curves("Precision and recall", ("recall", "precision"), lines),
        Curves("F1", ("confidence", "F1"), f1_lines, 0.25),
    ]
    return make(
        tmp_path_factory.mktemp("compared") / "page",
        [record_of("a.jpg"), record_of("b.jpg"), record_of("c.jpg")],
        ABOUT,
        [[found_person], [missed_car], [found_person, missed_car]],
        Conclusion(["differs: 2 boxes", "left: a.onnx on cpu"], tables, curves, agree=False),
    )


def cells(browser):
    """The first cell of each row of the first table."""
    return browser.run(
        "return [...document.querySelector('table.figures').tBodies[0].rows]"
        ".map((row) => row.cells[0].textContent)"
    )


def test_tables_sort_by_a_column_both_ways(browser, page_with_tables):
    browser.show(page_with_tables, "#view=figures")
    assert cells(browser) == ["person", "refrigerator", "car"]
    for column, first_order, second_order, direction in (
        (1, ["car", "person", "refrigerator"], ["refrigerator", "person", "car"], "ascending"),
        (2, ["car", "person", "refrigerator"], ["refrigerator", "person", "car"], "descending"),
        (3, ["person", "car", "refrigerator"], ["car", "person", "refrigerator"], "descending"),
    ):
        head = f"table.figures th:nth-child({column})"
        browser.click(f"{head} button")
        assert cells(browser) == first_order
        assert browser.find(head).aria_role
        assert browser.texts("table.figures th[aria-sort]") != []
        assert browser.find(head).get_attribute("aria-sort") == direction
        browser.click(f"{head} button")
        assert cells(browser) == second_order


def test_a_row_opens_its_images_one_after_the_other(browser, page_with_tables):
    browser.show(page_with_tables, "#view=figures")
    browser.click(".opener button")
    assert browser.text("#viewer-name") == "c.jpg"
    assert browser.text("#position") == "1 of 2"
    browser.click("#next")
    assert browser.text("#viewer-name") == "a.jpg"
    assert browser.text("#position") == "2 of 2"
    assert not browser.find("#next").is_enabled()
    browser.click("#close")
    browser.wait("return location.hash === '#view=figures&among=0.2'")
    browser.click("nav [data-view='pictures']")
    assert browser.names() == ["c.jpg", "a.jpg"]
    assert browser.text("#shown") == "2 images of a table's row shown"
    browser.click("#reset")
    assert len(browser.names()) == 3
    browser.click("nav [data-view='figures']")
    assert len(browser.texts(".opener")) == 3  # one row has none


def test_curves_are_of_the_classes_with_most_boxes_and_of_all(browser, page_with_tables):
    browser.show(page_with_tables, "#view=figures")
    lines = """return [...document.querySelectorAll('.curves')].map((svg) =>
        [...svg.querySelectorAll('path')].filter((path) => path.querySelector('title'))
        .map((path) => [path.textContent, path.getAttribute('class'), path.getAttribute('d')]))"""
    precision, f1 = browser.run(lines)
    assert [name for name, kind, _ in precision if kind == "others"] == ["class 1", "class 0"]
    assert precision[-11][:2] == ["all", "all"]
    assert f1[0] == ["all", "all", "M0 100L50 0L100 100"]
    marks = browser.run(
        "return [...document.querySelectorAll('.curves .marked')]"
        ".map((path) => path.getAttribute('d'))"
    )
    assert marks == ["M25 0V100"]
    assert browser.texts("#view-figures figure .legend")[0].splitlines()[:2] == [
        "all 0.500",
        "class 11 0.550",
    ]


def test_a_curve_of_one_point_is_a_dot(browser, tmp_path):
    lines = [("car", 3, 1, [0.75]), ("all", 3, 1, [0.5])]
    curves = [Curves("F1", ("confidence", "F1"), lines)]
    page = make(tmp_path / "page", [record_of("a.jpg")], ABOUT, [[]], Conclusion(curves=curves))
    browser.open(page, "#view=figures")
    paths = browser.run(
        "return [...document.querySelectorAll('.curves path')]"
        ".filter((path) => path.querySelector('title'))"
        ".map((path) => path.getAttribute('d'))"
    )
    assert paths == ["M0 50h0", "M0 25h0"]
    caps = browser.run(
        "return [...document.querySelectorAll('.curves path')]"
        ".filter((path) => path.querySelector('title'))"
        ".map((path) => getComputedStyle(path).strokeLinecap)"
    )
    assert caps == ["round", "round"]  # without it, nothing is drawn


def test_a_verdict_is_red_or_green(browser, page_with_tables, tmp_path):
    browser.show(page_with_tables)
    assert browser.text("#summary").splitlines() == ["differs: 2 boxes", "left: a.onnx on cpu"]
    colour = "return getComputedStyle(document.querySelector('#summary p')).color"
    red = browser.run(colour)
    conclusion = Conclusion(["they agree"], agree=True)
    browser.open(make(tmp_path / "page", [record_of("a.jpg")], ABOUT, [[]], conclusion))
    assert browser.run(colour) != red
    border = "return getComputedStyle(document.querySelector('#summary')).borderLeftColor"
    border_of_agreement = browser.run(border)
    browser.show(page_with_tables)
    assert browser.run(border) not in {border_of_agreement, "rgb(221, 225, 230)"}


BROKEN = """
const broken = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walk.nextNode(); node; node = walk.nextNode()) {
  if (!node.parentElement.checkVisibility() || node.parentElement.closest(".unseen")) continue;
  for (const { index, 0: word } of node.data.matchAll(/[A-Za-z]{2,16}/g)) {
    const range = document.createRange();
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
    if (lines.size > 1) broken.push(word);
  }
}
return broken;
"""


@pytest.fixture(scope="module")
def long_words(tmp_path_factory):
    """A comparison whose names and numbers are long, and an input that failed."""
    kinds = [BoxKind("only yolo-nano.onnx", (1, 2, 3)), BoxKind("on both sides", (1, 2, 3))]
    names = ["person", "refrigerator", "baseball glove", "dining table"]
    box_there = (1234.5, 1234.5, 1239.5, 1239.5)
    boxes = []
    for number, name in enumerate(names):
        boxes.append(PageBox(number, name, 0.9, box_there, number % 2, (0.8, (1, 1, 9, 9))))
    columns = ["image", "pairs", "over", "score", "pixels", "order", "missing", "extra"]
    worst = [
        ["000000000196.jpg", 1, 1, 0.1, 2.5, "changed", "person 0.90, car 0.80", "toothbrush 0.31"]
    ]
    return make(
        tmp_path_factory.mktemp("long") / "page",
        [record_of("street.jpg"), failure("torn.jpg")],
        RunInfo("verify", kinds=kinds, sides=("yolo-nano.onnx", "other.onnx")),
        [boxes, None],
        Conclusion(tables=[PageTable("Worst images", columns, worst, [[0]])]),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "width", thin("widths at which no word is broken", [320, 390, 1024], count=1)
)
def test_no_word_is_broken_in_the_middle(browser, long_words, width):
    for view in ("", "#view=figures", "#view=problems", "#picture=0"):
        browser.show(long_words, view, width=width)
        assert browser.run(BROKEN) == []
        assert browser.run("return document.documentElement.scrollWidth") <= width


def fill_paper(browser):
    """How many images a print would have, and what it would say."""
    browser.driver.execute_async_script("fillPaper().then(arguments[0])")
    tiles = browser.run("return document.querySelectorAll('#paper .tile').length")
    missing = (
        "return [...document.querySelectorAll('#paper img')].some((image) => !image.naturalWidth)"
    )
    assert not browser.run(missing)
    return tiles, browser.run("return document.querySelector('#paper p')?.textContent")


def print_paper(browser):
    """How many pages the print has that was filled, and its bytes."""
    result = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    data = base64.b64decode(result["data"])
    assert browser.run("return document.querySelectorAll('#paper *').length") == 0  # afterwards
    return len(re.findall(rb"/Type /Page\b", data)), data


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory):
    """10,000 images; the first 30 have a copy."""
    path = tmp_path_factory.mktemp("10000") / "page"
    page = Page(path, RunInfo("predict"))
    for number in range(10_000):
        boxes = [box(number % 3, 0.5)] * (number % 4)
        page.add(record_of(f"{number:05}.jpg", boxes), grey if number < 30 else None)
    page.close()
    return path


def test_paper_has_all_images_of_the_filter(browser, ten_thousand):
    browser.open(ten_thousand, "#find=0000")
    tiles, left = fill_paper(browser)
    assert tiles == 10
    assert left is None
    pages, _ = print_paper(browser)
    assert pages == 2  # the second says what made them


def test_paper_says_what_is_left_out(browser, ten_thousand):
    """At home it is filled only: to print it takes two seconds."""
    browser.show(ten_thousand)
    tiles, left = fill_paper(browser)
    assert tiles == 500
    assert left == "The first 500 of 10,000 images; 9,500 are left out: a filter chooses others"
    if RUNS_WHOLE:
        pages, _ = print_paper(browser)
        assert 500 / 12 <= pages <= 500 / 12 + 3  # none of them blank
    else:
        note("prints of a page", 0, 1)


def test_paper_has_the_image_that_is_open_and_nothing_behind_it(browser, ten_thousand):
    browser.open(ten_thousand, "#picture=3")
    tiles, _ = fill_paper(browser)
    assert tiles == 0
    pages, data = print_paper(browser)
    assert pages == 1
    assert len(re.findall(rb"/Subtype /Image", data)) == 1


def test_ten_thousand_images_are_paged_through(browser, ten_thousand):
    from selenium.webdriver.common.keys import Keys

    browser.show(ten_thousand)
    assert browser.text("#shown") == "10,000 images shown"
    assert len(browser.names()) < 60
    browser.press(Keys.ARROW_RIGHT, Keys.END)
    assert browser.names()[-1] == "09999.jpg"
    assert len(browser.names()) < 60


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A page with something of each kind."""
    records = [record_of("a.jpg", [box()], warnings=["it is odd"]), failure("torn.jpg")]
    tracked = box(0, 0.9) | {"track_id": 1, "crossed": [{"line": "gate", "to": "left"}]}
    for number in range(5):
        boxes = [tracked] + [box(1, 0.5)] * number
        records.append(record_of("film.mp4", boxes, frame=number, time_s=number / 5))
    gate = Line.parse("gate=0.5,0,0.5,1")
    about = RunInfo("predict", [("conf", "0.25")], zones_and_lines=(gate,))
    return make(tmp_path_factory.mktemp("everything") / "page", records, about)


VIEWS = (
    "",
    "#view=wall",
    "#view=timeline",
    "#view=figures",
    "#view=problems",
    "#picture=0",
    "#picture=3",
)

WINDOWS = thin(
    "windows in which axe looks at the pages",
    [(1200, True), (1200, False), (390, True), (390, False)],
    count=1,
)


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_axe_has_nothing_to_say(browser, everything, page_with_tables, width, dark):
    script = axe.script()
    complaints = []
    browser.open(everything, width=width, dark=dark)
    browser.run(script)
    for view in VIEWS:
        browser.show(everything, view, width=width, dark=dark)
        complaints += axe.violations(browser, view)
    browser.go("#")
    browser.press("?")
    complaints += axe.violations(browser, "keys")
    browser.click("#keys button")
    browser.run("marks.set('0', 'drop'); marks.set('0.0', 'keep'); showMarks()")
    browser.click("#open-marks")
    complaints += axe.violations(browser, "marks")
    browser.open(page_with_tables, width=width, dark=dark)
    browser.run(script)
    for view in ("#view=figures&sides=pair", "#picture=2&sides=pair"):
        browser.show(page_with_tables, view, width=width, dark=dark)
        complaints += axe.violations(browser, view)
    assert complaints == [], "\n".join(map(str, complaints))


def test_the_first_stop_of_the_keyboard_skips_to_the_results(browser, everything):
    from selenium.webdriver.common.keys import Keys

    browser.open(everything, "#view=figures")
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    assert browser.run("return location.hash") == "#view=figures"
