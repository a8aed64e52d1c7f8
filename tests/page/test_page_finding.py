"""The page in a browser: what is found by words, orders, figures and a wall of crops."""

import cv2
import numpy as np
import pytest
from pages import box, make, record_of

from detcli.page.page import Page, PageImage
from detcli.page.run_info import RunInfo

pytestmark = pytest.mark.slow


def files_named(words):
    """The names of files: "a b" are a.jpg and b.jpg."""
    return [f"{word}.jpg" for word in words.split()]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Five images, whose classes and names are alike in part."""
    light = box(1, 0.6, (10, 10, 20, 20), name="traffic light")
    records = [
        record_of("in/a.jpg", [box(0, 0.9), light]),
        record_of("in/b.jpg", [box(0, 0.45, (0, 0, 60, 60)), box(2, 0.8)]),
        record_of("in/person.jpg", [box(2, 0.3)]),
        record_of("in/traffic.jpg"),
        record_of("in/c.jpg", [box(0, 0.2) | {"text": "EX-2048"}, light]),
    ]
    return make(tmp_path_factory.mktemp("mixed") / "page", records)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("person", "a b c"),  # a class is no part of a name
        ("Person dog", "b"),
        ("person -dog", "a c"),
        ('"traffic light"', "a c"),
        ("traff", "a traffic c"),
        ("person.jpg", "person"),
        ("-person -traffic", "person"),
        ('person -"traffic light"', "b"),
        ("ex-20", "c"),
        ('"', "a b person traffic c"),
        ("person dog -", "b"),
    ],
)
def test_words_find_classes_and_names(browser, mixed, words, names):
    browser.show(mixed)
    browser.set("#search", words)
    assert browser.names() == files_named(names)


def test_words_ask_for_boxes_that_pass_but_of_any_class(browser, mixed):
    browser.open(mixed, "#find=person+dog&class=person")
    assert browser.names() == ["b.jpg"]
    browser.show(mixed, "#find=person&score=0.3..")
    assert browser.names() == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("uncertain", "b a c person traffic"),  # 0.05, 0.1, 0.1 and 0.2 from 0.5
        ("uncertain&near=0.24", "c person b a traffic"),
        ("highest", "a b c person traffic"),
        ("lowest", "c person b a traffic"),
        ("largest", "b a person c traffic"),
        ("smallest", "a c b person traffic"),
        ("class", "b person a c traffic"),
        ("most", "a b c person traffic"),
    ],
)
def test_boxes_make_the_order(browser, mixed, order, names):
    browser.show(mixed, f"#sort={order}")
    assert browser.names() == files_named(names)
    assert browser.find("#near").is_displayed() == order.startswith("uncertain")


def test_figures_lead_to_their_images(browser, mixed):
    browser.show(mixed, "#view=figures&find=jpg")
    browser.click(".bar-slot[title='from 0.45: 1 box']")
    assert browser.names() == ["a.jpg", "b.jpg", "person.jpg", "traffic.jpg", "c.jpg"]
    assert browser.run("return location.hash") == "#find=jpg&score=0.45..0.5"
    assert browser.texts("#classes .count") == ["1", "0", "0"]
    browser.show(mixed, "#view=figures")
    browser.click(".bar-slot[title='from 32: 5 boxes']")
    assert browser.names() == ["a.jpg", "b.jpg", "person.jpg", "c.jpg"]
    assert browser.find("#smallest").get_attribute("value") == "32"
    browser.set("#larger", "33")
    assert browser.run("return location.hash") == "#size=32..33"
    browser.set("#smallest", "")
    assert browser.names() == ["a.jpg", "c.jpg"]
    browser.show(mixed, "#view=figures")
    browser.run("""
        const cell = document.querySelector(".class-bars tr:nth-child(2) .number");
        const area = cell.getBoundingClientRect();
        document.elementFromPoint(area.x + 2, area.y + 2).click()""")  # anywhere in the row
    browser.settle()
    assert browser.names() == ["a.jpg", "c.jpg"]
    assert browser.run("return location.hash") == "#class=traffic+light"


def test_a_wall_has_each_box_by_class_and_score(browser, mixed):
    browser.show(mixed, "#view=wall&sort=highest")
    assert browser.text("#shown") == "7 crops of 5 images shown"
    person_a = "0.90 person a.jpg"
    person_b = "0.45 person b.jpg"
    person_c = "0.20 person c.jpg"
    light_a = "0.60 traffic light a.jpg"
    light_c = "0.60 traffic light c.jpg"
    assert browser.crops()[:4] == ["person", person_a, person_b, person_c]
    assert browser.crops()[4:7] == ["traffic light", light_a, light_c]
    assert browser.crops()[7:] == ["dog", "0.80 dog b.jpg", "0.30 dog person.jpg"]
    browser.set("#sort", "lowest")
    assert browser.crops()[:4] == ["person", person_c, person_b, person_a]
    browser.set("#below", "0.5")
    assert browser.crops() == ["person", person_c, person_b, "dog", "0.30 dog person.jpg"]
    assert browser.texts("#group option") == ["Class", "Text", "Nothing"]
    browser.set("#group", "text")
    assert browser.crops()[:2] == ["EX-2048", person_c]
    browser.set("#group", "none")
    assert browser.crops() == [person_c, "0.30 dog person.jpg", person_b]


def test_boxes_without_a_text_are_a_group_of_their_own_and_the_last(browser, tmp_path):
    read = box(0, 0.9) | {"text": "EX-2048"}
    records = [record_of("a.jpg", [box(0, 0.8), read]), record_of("b.jpg", [box(1, 0.7)])]
    browser.open(make(tmp_path / "page", records), "#view=wall&group=text")
    assert browser.crops() == [
        "EX-2048",
        "0.90 person a.jpg",
        "Without a text",
        "0.80 person a.jpg",
        "0.70 car b.jpg",
    ]
    assert browser.text("#shown") == "3 crops of 2 images shown"


def test_folders_are_on_tiles_groups_of_crops_and_a_table(browser, tmp_path):
    records = [
        record_of("/cards/2026/site2/a.jpg", [box(0, 0.8), box(1, 0.9)]),
        record_of("/cards/2026/site1/b.jpg", [box(1, 0.7)]),
        record_of("/cards/2026/site2/c.jpg"),
        record_of("/cards/2026/site10/d.jpg", [box(0, 0.2), box(0, 0.1)]),
    ]
    browser.open(make(tmp_path / "page", records))
    folders = browser.texts(".tile .folder")
    assert folders == ["2026/site2", "2026/site1", "2026/site2", "2026/site10"]
    browser.go("#view=wall&group=folder&sort=highest&score=0.5..")
    assert browser.crops() == [
        "/cards/2026/site2",
        "0.90 car a.jpg",
        "0.80 person a.jpg",
        "/cards/2026/site1",
        "0.70 car b.jpg",
    ]
    browser.go("#view=figures")
    assert browser.texts(".figures th") == ["Folder", "Images", "Boxes", "person", "car"]
    rows = browser.run(
        "return [...document.querySelectorAll('.figures tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert rows == [
        ["/cards/2026/site1", "1", "1", "0", "1"],
        ["/cards/2026/site2", "2", "2", "1", "1"],
        ["/cards/2026/site10", "1", "2", "2", "0"],
    ]
    browser.click(".figures tbody tr:nth-child(2) button")
    assert browser.text("#position") == "1 of 2"


def test_a_page_of_one_folder_says_nothing_of_folders(browser, tmp_path):
    browser.open(make(tmp_path / "page", [record_of("in/a.jpg", [box()]), record_of("in/b.jpg")]))
    assert browser.texts(".tile .folder") == []
    browser.go("#view=figures")
    assert browser.texts(".figures") == []
    assert browser.run("return document.querySelector('#group [value=folder]')") is None


def test_a_wall_of_tracks_has_those_of_each_video(browser, tmp_path):
    records = []
    for name, number in (("a.mp4", 1), ("b.mp4", 1), ("b.mp4", 2)):
        tracked = box(0, 0.9) | {"track_id": number}
        records.append(record_of(name, [tracked, box(1)], frame=0, time_s=0.0))
    browser.open(make(tmp_path / "page", records), "#view=wall&group=track")
    assert browser.crops() == [
        "#1 · a.mp4",
        "0.90 #1 person 0:00.0 · a.mp4",
        "#1 · b.mp4",
        "0.90 #1 person 0:00.0 · b.mp4",
        "#2 · b.mp4",
        "0.90 #2 person 0:00.0 · b.mp4",
        "Without a track",
        "0.50 car 0:00.0 · a.mp4",
        "0.50 car 0:00.0 · b.mp4",
        "0.50 car 0:00.0 · b.mp4",
    ]


def test_a_crop_shows_its_part_of_the_image_and_leads_to_its_box(browser, tmp_path):
    """Of the image or, for a large box, of its thumbnail."""
    pixels = np.full((900, 1200, 3), 255, np.uint8)
    pixels[:, 600:] = (0, 0, 255)  # red in the right half
    for top in (100, 300):
        pixels[top : top + 40, 100:140] = (255, 0, 0)
    boxes = [box(0, 0.9, (100, 300, 140, 340)), box(1, 0.8, (700, 100, 1100, 500))]
    page = Page(tmp_path / "page", RunInfo("predict"))
    page.add(record_of("a.jpg", boxes, width=1200, height=900), lambda: PageImage(pixels))
    page.close()
    browser.open(tmp_path / "page", "#view=wall&sort=highest")
    colours = []
    for crop in browser.driver.find_elements("css selector", ".tile .frame"):
        shot = cv2.imdecode(np.frombuffer(crop.screenshot_as_png, np.uint8), cv2.IMREAD_COLOR)
        height, width, _ = shot.shape
        colours.append(shot[height // 2, width // 2].tolist())
    assert np.abs(np.subtract(colours, [(255, 0, 0), (0, 0, 255)])).max() < 12
    requests = browser.requests()
    assert "pictures/0/0/0.jpg" in requests
    assert "thumbnails/0/0.js" in requests
    browser.click(".tile a")
    assert browser.run("return location.hash") == "#view=wall&picture=0.0&sort=highest"
    assert browser.texts("#viewer-found tr.chosen") == ["person 0.90 100, 300 to 140, 340"]
    assert browser.text("#position") == "1 of 2"
    browser.press("n")  # the next crop, of the same image
    assert browser.run("return location.hash") == "#view=wall&picture=0.1&sort=highest"
    assert browser.texts("#viewer-found tr.chosen") == ["car 0.80 700, 100 to 1100, 500"]
    assert browser.text("#position") == "2 of 2"
    browser.press("x")
    assert browser.run("return [...marks]") == [["0.1", "drop"]]
    browser.press("x", "p")
    browser.click("#close")
    assert browser.run("return document.activeElement.title") == "person 0.90\na.jpg"
    browser.click(".tile:nth-child(4) a")  # another of the same image
    browser.click("#close")
    assert browser.run("return document.activeElement.title") == "car 0.80\na.jpg"
    browser.go("#view=pictures")  # whose thumbnail is not the one that is cut
    assert not browser.find(".tile img").get_attribute("style")


def test_of_ten_thousand_crops_few_are_drawn(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    wide = [box(n % 3, n % 89 / 100, (n, n, n + 9, n + 9)) for n in range(50)]
    records = [record_of(f"{n:03}.jpg", wide) for n in range(200)]
    page = make(tmp_path / "page", records)
    browser.open(page, "#view=wall&sort=lowest")
    assert browser.text("#shown") == "10,000 crops of 200 images shown"
    drawn = "return document.querySelectorAll('#grid .frame').length"
    assert 20 < browser.run(drawn) < 150
    assert browser.crops()[:3] == ["person", "0.00 person 000.jpg", "0.00 person 001.jpg"]
    browser.press(Keys.ARROW_DOWN, Keys.END)
    assert browser.run(drawn) < 150
    assert browser.run("return document.activeElement.title") == "dog 0.47\n199.jpg"


@pytest.fixture(scope="module")
def certain(tmp_path_factory):
    """An image with a box that scores exactly 1, and another with one that scores less."""
    records = [record_of("certain.jpg", [box(0, 1.0)]), record_of("likely.jpg", [box(1, 0.99)])]
    return make(tmp_path_factory.mktemp("certain") / "page", records)


@pytest.mark.parametrize(
    ("view", "persons", "cars"),
    [
        ("", "1", "1"),
        ("#score=0..1", "1", "1"),
        ("#score=0.995..1", "1", "0"),
        ("#score=1..1", "1", "0"),
        ("#score=0..0.99", "0", "0"),
        ("#score=0..0.995", "0", "1"),
    ],
)
def test_a_score_of_exactly_1_is_shown_unless_a_filter_ends_below_it(
    browser, certain, view, persons, cars
):
    browser.show(certain, view)
    assert browser.texts("#classes .count") == [persons, cars]


@pytest.mark.parametrize("view", ["timeline", "figures", "wall"])
def test_every_view_counts_a_score_of_exactly_1(browser, certain, view):
    browser.show(certain, f"#view={view}")
    assert browser.texts("#classes .count") == ["1", "1"]


def test_the_wall_shows_a_score_of_exactly_1(browser, certain):
    browser.show(certain, "#view=wall")
    assert "1.00 person" in browser.names()


@pytest.mark.parametrize(
    ("view", "bar_class"), [("", "in"), ("#score=1..1", "in"), ("#score=0..0.9", "out")]
)
def test_the_last_bar_of_the_slider_holds_a_score_of_exactly_1(browser, certain, view, bar_class):
    browser.show(certain, view)
    last_bar = browser.find("#score-bars rect:last-child")
    assert float(last_bar.get_attribute("height")) > 0
    assert last_bar.get_attribute("class") == bar_class
