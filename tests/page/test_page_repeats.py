"""The page of repeats in a browser: a tile for each group, and marks that drop or keep it."""

import json

import pytest
from pages import box, grey, record_of

from detcli.page.page import Page, PageRepeat
from detcli.page.run_info import RunInfo
from detcli.run.marks import Marks

pytestmark = pytest.mark.slow

STONE = (10.04, 10, 50, 40)


def repeat(number, image_count, place, **more_fields):
    """A group of repeats on the page."""
    fields = {"box_count": image_count + 1, "box": (0.1255, 0.25, 0.625, 0.5)}
    names = {"first_name": "0.jpg", "last_name": f"{image_count}.jpg"}
    fields |= {"number": number, "image_count": image_count, "place": place}
    return PageRepeat(**fields | names | more_fields)


@pytest.fixture
def of_repeats(browser, tmp_path):
    """A page with a stone, a car and a branch with an odd name."""
    page = Page(tmp_path / "page", RunInfo("report", records_are_repeats=True))
    groups = [
        (record_of("site1/7.jpg", [box(0, 0.9, STONE)]), repeat(1, 412, "site1")),
        (record_of("site2/3.jpg", [box(1, 0.8)]), repeat(2, 30, "site2")),
        (record_of("<b>/3.jpg", [box(0, 0.7)]), repeat(3, 10, "<b>")),
    ]
    image = grey()
    for fields, group in groups:
        page.add(fields, lambda: image, repeat=group)
    page.close()
    browser.open(tmp_path / "page")
    return browser


def tiles(browser):
    """The text of each tile on the wall."""
    script = "return [...document.querySelectorAll('.tile .caption')].map(tile => tile.innerText)"
    return browser.run(script)


def marks_of_page(browser):
    """The marks as the page hands them back."""
    browser.click("#open-marks")
    return json.loads(browser.find("#hand-text").get_attribute("value"))


def test_each_group_is_a_tile_and_the_largest_comes_first(of_repeats):
    assert of_repeats.text("#title") == "3 groups of repeated boxes"
    assert of_repeats.text("#shown") == "3 groups shown"
    first, second, third = tiles(of_repeats)
    assert first.split("\n") == ["412 images · person", "site1: 0.jpg to 412.jpg"]
    assert second.startswith("30 images · car")
    assert "<b>: 0.jpg to 10.jpg" in third
    assert of_repeats.run("return document.getElementById('group').parentElement.hidden")


def test_keys_mark_groups_on_the_wall_and_in_the_viewer(of_repeats, tmp_path):
    from selenium.webdriver.common.keys import Keys

    browser = of_repeats
    browser.press(Keys.ARROW_RIGHT, "x")  # the stone
    browser.press(Keys.ARROW_RIGHT, Keys.ENTER)
    assert browser.text("#viewer-facts").endswith(
        "Group 2: 30 images, 31 boxes · site2: 0.jpg to 30.jpg"
    )
    browser.press("k")  # the car
    browser.press("n", "x", "x")  # the branch, and not after all
    browser.press(Keys.ESCAPE)
    assert browser.text("#count-marks") == "2"
    stone, car = marks_of_page(browser)
    fields_of_stone = {"source": "site1", "repeated": 1, "class_name": "person"}
    assert stone == {"mark": "drop", **fields_of_stone, "box_fractions": [0.1255, 0.25, 0.625, 0.5]}
    assert car["mark"] == "keep"

    (tmp_path / "marks.json").write_text(json.dumps([stone]))
    marks = Marks(tmp_path / "marks.json")
    another = record_of("site1/8.jpg", [box(0, 0.5, (10.1, 15, 50, 30))])
    assert marks.corrected(another)["detections"][0]["repeated"] == 1
    marks.require_fit()


def test_the_first_key_selects_a_group_and_the_second_marks_it(of_repeats):
    of_repeats.press("x")
    selected_text = of_repeats.run("return document.activeElement.innerText")
    assert selected_text.startswith("412 images")
    assert of_repeats.text("#count-marks") == ""
    of_repeats.press("x")
    assert of_repeats.text("#count-marks") == "1"


def test_a_mark_of_an_image_and_of_its_box_are_the_same_mark(of_repeats):
    browser = of_repeats
    browser.go("#view=pictures")
    browser.click(".tile:nth-child(1) [data-mark=drop]")
    browser.go("#view=wall")
    pressed = browser.find(".tile:nth-child(1) [data-mark=drop]").get_attribute("ariaPressed")
    assert pressed == "true"
    browser.go("#picture=0.0")
    browser.click("#viewer-found [data-mark=keep]")
    assert browser.find("#viewer-marks [data-mark=keep]").get_attribute("ariaPressed") == "true"
    assert browser.text("#count-marks") == "1"


def test_groups_have_no_table_of_folders(of_repeats):
    of_repeats.go("#view=figures")
    assert of_repeats.texts("#view-figures h2") == ["Scores", "Box sizes", "Classes"]


def test_only_marks_for_apply_are_handed_back(of_repeats):
    of_repeats.click("#open-marks")
    forms = of_repeats.run(
        "return [...document.getElementById('hand-as').options].map(o => o.value)"
    )
    assert forms == ["json"]


def test_another_page_says_which_boxes_are_repeated(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    page = Page(tmp_path / "page", RunInfo("report"))
    image = grey()
    stone = box(0, 0.9, STONE) | {"repeated": 17}
    page.add(record_of("a.jpg", [stone, box(1, 0.8)]), lambda: image)
    page.close()
    browser.open(tmp_path / "page", "#picture=0")
    rows = browser.run(
        "return [...document.querySelectorAll('#viewer-found tbody tr')].map(r => r.innerText)"
    )
    assert "repeated, group 17" in rows[0]
    assert "repeated" not in rows[1]
    opacities = browser.run(
        "return [...document.querySelectorAll('#stage .box')]"
        ".sort((a, b) => a.dataset.box - b.dataset.box).map((box) => getComputedStyle(box).opacity)"
    )
    assert opacities == ["0.4", "1"]
    browser.press(Keys.ESCAPE)
    assert len(browser.texts(".tile .repeated")) == 1
    browser.go("#view=wall")
    browser.wait("return document.querySelectorAll('.tile svg.repeated').length > 0")
    assert len(browser.texts(".tile svg.repeated")) == 1
