"""The page in a browser: Chromium opens it from the disk."""

import json
import shlex
import shutil
import subprocess
import time

import cv2
import numpy as np
import pytest
import sample_records
from nasty_names import NASTY
from sample_records import picture

from detcli.core.record import BOX
from detcli.core.values import Shape
from detcli.run.saved import Marks
from detcli.sink import page as module
from detcli.sink.page import About, BoxKind, Page, Row, Table, render
from detcli.sink.page import folder as folders

CLASSES = ("person", "car", "dog")


@pytest.fixture
def browser(chromium):
    """A browser in which nothing goes wrong, and which loads nothing from elsewhere."""
    chromium.messages(), chromium.requests()
    yield chromium
    assert chromium.messages() == []
    outside = [name for name in chromium.requests() if "/" in name and "://" in name]
    assert outside == []


def box(class_id=0, score=0.5, sides=(10, 10, 50, 40), name=None):
    name = CLASSES[class_id] if name is None else name
    return {"class_id": class_id, "class_name": name, "score": score} | dict(
        zip(BOX, map(float, sides), strict=True)
    )


def record(source, *boxes, **more):
    return picture(source).to_json() | {"width": 80, "height": 60, "detections": boxes} | more


def failure(source, message="it is torn", hint="fetch it again"):
    return sample_records.failure(source, message, hint=hint).to_json()


def grey(size=(60, 80)):
    return render(np.full((*size, 3), 120, np.uint8))


def make(path, records, about=About("predict", [("conf", "0.25")]), rows=None, **closing):  # noqa: B008
    page, shown = Page(path, about), grey()
    for number, one in enumerate(records):
        page.add(one, lambda: shown, rows and rows[number])
    page.close(**closing)
    return path


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """400 pictures: a person on each, a car on every 4th, nothing on the first; two failures."""
    records = [record("pics/000.jpg")]
    for n in range(1, 400):
        cars = [box(1, 0.9, (20, 20, 70, 50))] if n % 4 == 0 else []
        warned = {"warnings": ["it is odd"]} if n == 7 else {}
        records.append(record(f"pics/{n:03}.jpg", *cars, box(0, n / 500), **warned))
    records += [failure("torn.jpg"), failure("gone.jpg", "no such file", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "CHUNK_RECORDS", 150)
        return make(tmp_path_factory.mktemp("many") / "page", records)


def count(browser):
    return browser.text("#count-pictures")


def test_it_shows_what_was_found(browser, many):
    browser.open(many)
    assert browser.text("#title") == "400 pictures, 498 detections"
    assert count(browser) == "400"
    assert browser.names()[:3] == ["000.jpg", "001.jpg", "002.jpg"]
    assert browser.text("#state") == ""
    assert browser.texts("#classes .name") == ["person", "car"]
    assert browser.texts("#classes .count") == ["399", "99"]
    assert "Made by detcli predict" in browser.text("#foot")
    assert "0.25" in browser.text("#foot")
    assert browser.run("return document.querySelectorAll('.tile svg path').length") > 10
    first = browser.find(".tile")
    assert first.get_attribute("aria-posinset") == "1"
    assert first.get_attribute("aria-setsize") == "400"
    assert browser.text("#announce") == "400 pictures shown"
    assert browser.find(".tile a").get_attribute("aria-label") == "000.jpg, nothing found"


def test_only_what_is_near_is_loaded(browser, many):
    browser.open(many)
    thumbnails = {name for name in browser.requests() if name.startswith("thumbnails/")}
    assert 10 < len(thumbnails) < 60
    assert len(browser.names()) < 60
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    assert browser.wait(
        "return [...document.querySelectorAll('.tile .name')]"
        ".some((one) => one.textContent === '399.jpg')"
    )
    assert len(browser.names()) < 60
    assert {name for name in browser.requests() if name.startswith("thumbnails/")} - thumbnails


def test_filters_and_orders(browser, many):
    browser.open(many)
    browser.set("#least", "0.85")
    assert browser.text("#least-shown") == "0.85"
    assert browser.texts("#classes .count") == ["0", "99"]
    browser.set("#least", "0.7")  # scores on the border stay
    assert browser.texts("#classes .count") == ["50", "99"]
    browser.set("#least", "0.85")
    browser.set("#show", "some")
    assert count(browser) == "99"
    browser.click("#reset")
    browser.settle()
    assert count(browser) == "400"
    browser.click("#classes input[value='1']")
    assert count(browser) == "99"
    assert browser.names()[:2] == ["004.jpg", "008.jpg"]
    assert "1 car" in browser.texts(".tile")[0]
    assert "person" not in browser.texts(".tile")[0]
    browser.click("#classes input[value='0']")
    assert count(browser) == "399"
    browser.click("#reset")
    browser.settle()
    for order, first in (
        ("most", ["004.jpg", "008.jpg"]),
        ("fewest", ["000.jpg", "001.jpg"]),
        ("lowest", ["001.jpg", "002.jpg"]),
        ("name", ["000.jpg", "001.jpg"]),
    ):
        browser.set("#sort", order)
        assert browser.names()[:2] == first
    browser.set("#show", "none")
    assert browser.names() == ["000.jpg"]
    browser.set("#show", "warned")
    assert browser.names() == ["007.jpg"]
    browser.set("#show", "all")
    browser.set("#search", "ICS/39")
    assert count(browser) == "10"
    browser.set("#search", "nothing like it")
    assert browser.text("#shown") == "No picture passes the filter"


def test_a_link_says_what_is_shown(browser, many):
    browser.open(many, "#class=person&score=0..0.4&sort=name")
    assert browser.texts("#classes .count") == ["199", "0"]  # 0.4 is not below 0.4
    assert count(browser) == "199"
    assert browser.find("#classes input[value='0']").is_selected()
    assert browser.text("#below-shown") == "0.40"
    assert browser.find("#sort").get_attribute("value") == "name"
    browser.click("#reset")
    assert count(browser) == "400"
    browser.wait("return location.hash === ''")
    browser.open(many, "#class=person&score=..0.4")  # its lowest is the run's
    assert count(browser) == "199"


ADDRESS = "find=39&score=0.1..0.95&class=car&show=some&sort=most&theme=dark"


def test_what_is_chosen_is_in_the_address_and_comes_back(browser, many):
    browser.open(many)
    browser.set("#search", "39")
    browser.set("#least", "0.1")
    browser.set("#below", "0.95")
    browser.set("#show", "some")
    browser.set("#sort", "most")
    browser.click("#classes input[value='1']")
    browser.click("#theme")
    browser.wait("return location.hash === arguments[0]", f"#{ADDRESS}")
    assert browser.names() == ["392.jpg", "396.jpg"]
    browser.click("nav [data-view='figures']")
    assert browser.run("return location.hash") == f"#view=figures&{ADDRESS}"
    assert "2 boxes" in browser.text("#view-figures")
    browser.run("history.back()")
    browser.wait("return location.hash === arguments[0]", f"#{ADDRESS}")
    browser.settle()
    browser.click(".tile a")
    browser.click("#next")
    browser.wait("return location.hash === arguments[0]", f"#picture=396&{ADDRESS}")
    browser.driver.refresh()
    browser.wait("return document.documentElement.dataset.ready === 'true'")
    browser.settle()
    assert browser.text("#viewer-name") == "396.jpg"
    assert browser.text("#position") == "2 of 2"
    assert browser.find("#show").get_attribute("value") == "some"
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    browser.click("#close")
    browser.run("history.back()")  # to the grid that it was opened from
    browser.settle()
    assert browser.names() == ["392.jpg", "396.jpg"]
    browser.click("#theme")  # what the system prefers needs no word
    browser.wait("return !location.hash.includes('theme')")


@pytest.mark.parametrize(
    "odd", ["view=x", "score=b..a", "score=0.9..0.1", "sort=constructor", "show=%ZZ&picture=-1",
            'show="]', "theme=1&picture=999999", "__proto__=1"]
)  # fmt: skip
def test_an_odd_address_shows_what_a_plain_one_does(browser, many, odd):
    browser.open(many, f"#{odd}")
    assert count(browser) == "400"
    assert not browser.run("return document.getElementById('viewer').open")


def test_the_skip_link_changes_nothing_else(browser, many):
    browser.open(many, "#class=car")
    browser.run("document.querySelector('.skip').click()")
    assert browser.run("return document.activeElement.id") == "main"
    assert browser.run("return location.hash") == "#class=car"
    assert count(browser) == "99"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Five pictures, whose classes and names are alike in part."""
    light = box(1, 0.6, (10, 10, 20, 20), name="traffic light")
    records = [
        record("in/a.jpg", box(0, 0.9), light),
        record("in/b.jpg", box(0, 0.45, (0, 0, 60, 60)), box(2, 0.8)),
        record("in/person.jpg", box(2, 0.3)),
        record("in/traffic.jpg"),
        record("in/c.jpg", box(0, 0.2) | {"text": "EX-2048"}, light),
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
    browser.open(mixed)
    browser.set("#search", words)
    assert browser.names() == [f"{name}.jpg" for name in names.split()]


def test_words_ask_for_boxes_that_pass_but_of_any_class(browser, mixed):
    browser.open(mixed, "#find=person+dog&class=person")
    assert browser.names() == ["b.jpg"]
    browser.open(mixed, "#find=person&score=0.3..")
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
    browser.open(mixed, f"#sort={order}")
    assert browser.names() == [f"{name}.jpg" for name in names.split()]
    assert browser.find("#near").is_displayed() == order.startswith("uncertain")


def test_figures_lead_to_their_pictures(browser, mixed):
    browser.open(mixed, "#view=figures&find=jpg")
    browser.click(".bar-slot[title='from 0.45: 1 box']")
    assert browser.names() == ["a.jpg", "b.jpg", "person.jpg", "traffic.jpg", "c.jpg"]
    assert browser.run("return location.hash") == "#find=jpg&score=0.45..0.5"
    assert browser.texts("#classes .count") == ["1", "0", "0"]
    browser.open(mixed, "#view=figures")
    browser.click(".bar-slot[title='from 32: 5 boxes']")
    assert browser.names() == ["a.jpg", "b.jpg", "person.jpg", "c.jpg"]
    assert browser.find("#smallest").get_attribute("value") == "32"
    browser.set("#larger", "33")
    assert browser.run("return location.hash") == "#size=32..33"
    browser.set("#smallest", "")
    assert browser.names() == ["a.jpg", "c.jpg"]
    browser.open(mixed, "#view=figures")
    browser.run("""
        const cell = document.querySelector(".class-bars tr:nth-child(2) .number");
        const area = cell.getBoundingClientRect();
        document.elementFromPoint(area.x + 2, area.y + 2).click()""")  # anywhere in the row
    browser.settle()
    assert browser.names() == ["a.jpg", "c.jpg"]
    assert browser.run("return location.hash") == "#class=traffic+light"


def crops(browser):
    """What the tiles of the wall say, in their order: names of groups, scores with pictures."""
    return browser.run(
        "return [...document.querySelectorAll('.tile')]"
        ".sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)"
        ".map((tile) => [...tile.querySelectorAll('.name, .quiet')].map((one) => one.textContent)"
        ".join(' '))"
    )


def test_a_wall_has_each_box_by_class_and_score(browser, mixed):
    browser.open(mixed, "#view=wall&sort=highest")
    assert browser.text("#shown") == "7 crops of 5 pictures shown"
    people = ["person", "0.90 a.jpg", "0.45 b.jpg", "0.20 c.jpg"]
    lights = ["traffic light", "0.60 a.jpg", "0.60 c.jpg"]
    assert crops(browser) == [*people, *lights, "dog", "0.80 b.jpg", "0.30 person.jpg"]
    browser.set("#sort", "lowest")
    assert crops(browser)[:4] == ["person", "0.20 c.jpg", "0.45 b.jpg", "0.90 a.jpg"]
    browser.set("#below", "0.5")
    assert crops(browser) == ["person", "0.20 c.jpg", "0.45 b.jpg", "dog", "0.30 person.jpg"]
    assert browser.texts("#group option") == ["Class", "Text"]
    browser.set("#group", "text")
    assert crops(browser) == ["EX-2048", "0.20 c.jpg"]


def test_a_wall_of_tracks_has_those_of_each_video(browser, tmp_path):
    tracked = [
        record(f"{name}.mp4", box(0, 0.9) | {"track_id": n}, box(1), frame=0, time_s=0.0)
        for name, n in (("a", 1), ("b", 1), ("b", 2))
    ]
    browser.open(make(tmp_path / "page", tracked), "#view=wall&group=track")
    moment = "0.90 0:00.0 · "
    assert crops(browser) == [
        *("#1 · a.mp4", f"{moment}a.mp4", "#1 · b.mp4", f"{moment}b.mp4"),
        *("#2 · b.mp4", f"{moment}b.mp4"),
    ]


def test_a_crop_shows_its_part_of_the_picture_and_leads_to_its_box(browser, tmp_path):
    """Of the picture or, for a large box, of its thumbnail."""
    pixels = np.full((900, 1200, 3), 255, np.uint8)
    pixels[:, 600:] = (0, 0, 255)  # red in the right half
    for top in (100, 300):
        pixels[top : top + 40, 100:140] = (255, 0, 0)
    sizes = {"width": 1200, "height": 900}
    boxes = [box(0, 0.9, (100, 300, 140, 340)), box(1, 0.8, (700, 100, 1100, 500))]
    page = Page(tmp_path / "page", About("predict"))
    page.add(record("a.jpg", *boxes, **sizes), lambda: render(pixels))
    page.close()
    browser.open(tmp_path / "page", "#view=wall&sort=highest")
    colours = []
    for canvas in browser.driver.find_elements("css selector", ".tile canvas"):
        shot = cv2.imdecode(np.frombuffer(canvas.screenshot_as_png, np.uint8), cv2.IMREAD_COLOR)
        colours.append(shot[shot.shape[0] // 2, shot.shape[1] // 2].tolist())
    assert np.abs(np.subtract(colours, [(255, 0, 0), (0, 0, 255)])).max() < 12
    loaded = {name.split("/")[0] for name in browser.requests() if name.endswith(".jpg")}
    assert loaded == {"pictures", "thumbnails"}
    browser.click(".tile a")
    assert browser.run("return location.hash") == "#view=wall&picture=0.0&sort=highest"
    assert browser.texts("#viewer-found tr.chosen") == ["person 0.90 100, 300 to 140, 340"]
    browser.click("#close")
    assert browser.run("return document.activeElement.ariaLabel") == "person 0.90, a.jpg"


def test_of_ten_thousand_crops_few_are_drawn(browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    wide = [box(n % 3, n % 89 / 100, (n, n, n + 9, n + 9)) for n in range(50)]
    place = make(tmp_path / "page", [record(f"{n:03}.jpg", *wide) for n in range(200)])
    browser.open(place, "#view=wall&sort=lowest")
    assert browser.text("#shown") == "10,000 crops of 200 pictures shown"
    drawn = "return document.querySelectorAll('canvas').length"
    assert 20 < browser.run(drawn) < 150
    browser.press(Keys.ARROW_DOWN, Keys.END)
    assert browser.run(drawn) < 150
    assert browser.run("return document.activeElement.ariaLabel") == "dog 0.47, 199.jpg"


ODD = "in/it's \\(1) $x.jpg"


@pytest.fixture
def marked(browser, tmp_path):
    """A page on which pictures and boxes are marked, with pointer and keys; and its records."""
    from selenium.webdriver.common.keys import Keys

    records = [
        record("in/a.jpg", box(0, 0.9), box(1, 0.8, (10.04, 20.26, 30, 40))),
        record(ODD, box(2, 0.7)),
        *(record("film.mp4", box(0, 0.6), frame=n, time_s=float(n)) for n in range(2)),
        record("-b.jpg", box(0, 0.3)),
    ]
    about = About("predict", [("model", "yolo v10"), ("conf", "0.25"), ("max det", "300")])
    browser.open(make(tmp_path / "page", records, about), "#view=wall&sort=lowest")
    assert not browser.find("#open-marks").is_displayed()
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


def hand_back(browser, form, which="all"):
    """What the page hands back in a form."""
    browser.run(
        "if (!document.getElementById('marks').open) document.getElementById('open-marks').click()"
    )
    for selector, value in (("#hand-as", form), ("#hand-of", which)):
        browser.find(f"{selector} [value={value}]").click()
    return browser.find("#hand-text").get_attribute("value")


def test_marks_are_applied_to_the_records_of_their_page(marked, tmp_path):
    browser, records = marked
    (tmp_path / "marks.json").write_text(hand_back(browser, "json"), "utf-8")
    assert browser.text("#marks-sum") == (
        "drop: 0 pictures and 3 boxes; keep: 1 picture and 0 boxes"
    )
    marks = Marks(tmp_path / "marks.json")
    assert [marks.kept(one) for one in records] == [[0], [0], [], [0], []]
    marks.require_fit()
    assert "drop" not in hand_back(browser, "json", "keep")


def test_what_is_marked_is_listed(marked):
    browser, _ = marked
    names = ["in/a.jpg", ODD, "film.mp4", "-b.jpg"]
    assert hand_back(browser, "files").splitlines() == names
    assert hand_back(browser, "files", "keep").splitlines() == [ODD]
    assert shlex.split(hand_back(browser, "predict")) == [
        *("detcli", "predict", "--model", "yolo v10", "--conf", "0.25"), *names[:3], "./-b.jpg",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_finds_the_records_that_are_marked(marked, tmp_path):
    browser, records = marked
    (tmp_path / "marked.jq").write_text(hand_back(browser, "jq"), "utf-8")
    lines = "".join(f"{json.dumps(one)}\n" for one in records)
    command = ["jq", "-c", "-f", "marked.jq"]
    done = subprocess.check_output(command, input=lines, text=True, cwd=tmp_path)
    found = [*map(json.loads, done.splitlines())]
    places = [n for n, line in enumerate(lines.splitlines()) if json.loads(line) in found]
    assert places == [0, 1, 2, 4]


def test_marks_are_copied_saved_shown_and_cleared(marked, tmp_path):
    browser, _ = marked
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
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
    assert browser.text("#shown") == "3 crops of 4 pictures shown"
    assert crops(browser)[1] == "0.30 -b.jpg"
    hand_back(browser, "json")
    browser.click("#hand-clear")
    assert not browser.find("#open-marks").is_displayed()
    assert not browser.run("return document.querySelector('[data-mark][aria-pressed=true]')")


def test_a_box_of_a_comparison_is_marked_without_its_number(browser, tmp_path):
    """There it is not that of a record."""
    kinds = [BoxKind("false positive", (0, 94, 213))]
    rows = [[Row(0, "person", 0.9, (1, 1, 9, 9), 0)]]
    page = make(tmp_path / "page", [record("a.jpg")], About("eval", kinds=kinds), rows)
    browser.open(page, "#view=wall")
    browser.click(".tile:nth-child(2) [data-mark=drop]")
    assert json.loads(hand_back(browser, "json")) == [
        {"mark": "drop", "source": "a.jpg", "class_name": "person", "box": [1, 1, 9, 9]}
    ]


def test_keys(browser, many):
    from selenium.webdriver.common.keys import Keys

    browser.open(many)
    focused = (
        "return document.activeElement.getAttribute('aria-label') || document.activeElement.id"
    )
    browser.press("/")
    assert browser.run(focused) == "search"
    browser.press("3", "9", "9")
    assert browser.names() == ["399.jpg"]
    browser.press(*[Keys.BACKSPACE] * 3)
    browser.press(Keys.ESCAPE)
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.run(focused).startswith("002.jpg")
    browser.press(Keys.ARROW_DOWN)
    columns = browser.run("return grid.columns")
    assert browser.run(focused).startswith(f"{2 + columns:03}.jpg")
    browser.press(Keys.END)
    assert browser.run(focused).startswith("399.jpg")
    browser.press(Keys.ARROW_RIGHT)
    assert browser.run(focused).startswith("399.jpg")
    browser.press(Keys.HOME)
    assert browser.run(focused).startswith("000.jpg")
    browser.press("?")
    assert browser.run("return document.getElementById('keys').open")
    browser.press(Keys.ESCAPE)
    assert not browser.run("return document.getElementById('keys').open")


def test_a_picture_opens_with_its_boxes_and_closes(browser, many):
    from selenium.webdriver.common.keys import Keys

    browser.open(many, "#picture=8")
    assert browser.run("return document.getElementById('viewer').open")
    assert browser.text("#viewer-name") == "008.jpg"
    assert browser.texts("#viewer-found tbody tr") == [
        "car 0.90 20, 20 to 70, 50",
        "person 0.02 10, 10 to 50, 40",
    ]
    labels = "return [...document.querySelectorAll('#stage text')].map((e) => e.textContent)"
    assert browser.run(labels) == ["car 0.90", "person 0.02"]
    assert browser.wait("return document.querySelector('#stage img').naturalWidth") == 80
    browser.press(Keys.ARROW_RIGHT)
    assert browser.text("#viewer-name") == "009.jpg"
    assert browser.text("#position") == "10 of 400"
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert browser.text("#viewer-warnings") == "it is odd"
    browser.press("b")
    assert browser.run("return document.querySelector('#stage svg')") is None
    browser.press("f")
    assert (
        browser.wait("return document.fullscreenElement && document.fullscreenElement.id")
        == "viewer-body"
    )
    browser.press("f")
    browser.wait("return !document.fullscreenElement")
    browser.press("b", Keys.ESCAPE)
    browser.wait("return !document.getElementById('viewer').open")
    assert browser.run("return document.activeElement.getAttribute('aria-label')").startswith("007")
    browser.wait("return location.hash === ''")
    browser.run("window.scrollTo(0, 0)")
    browser.settle()
    browser.click(".tile a[href='#picture=4']")
    assert browser.text("#viewer-name") == "004.jpg"
    browser.click("#next")
    assert browser.text("#viewer-name") == "005.jpg"
    browser.run("history.back()")
    browser.wait("return !document.getElementById('viewer').open")
    browser.click(".tile a[href='#picture=4']")
    browser.click("#close")
    assert not browser.run("return document.getElementById('viewer').open")


def test_boxes_lie_on_the_picture(browser, many):
    """The corner of a box is where the picture has that pixel, though bars are beside it."""
    for size in ({"width": 1200}, {"width": 390, "height": 800}):
        browser.open(many, "#picture=8", **size)
        browser.wait("return document.querySelector('#stage img').naturalWidth")
        box, stage = browser.run("""
            return ["#stage .box path", "#stage"].map((selector) => {
              const area = document.querySelector(selector).getBoundingClientRect();
              return [area.x, area.y, area.width, area.height];
            });""")
        scale = min(stage[2] / 80, stage[3] / 60)
        left = stage[0] + (stage[2] - 80 * scale) / 2 + 10 * scale
        top = stage[1] + (stage[3] - 60 * scale) / 2 + 10 * scale
        assert box[0] == pytest.approx(left, abs=4)
        assert box[1] == pytest.approx(top, abs=4)
        assert box[2] == pytest.approx(40 * scale, abs=8)


def test_problems_and_figures_have_views_of_their_own(browser, many):
    browser.open(many)
    assert browser.text("#count-problems") == "3"
    browser.click("nav [data-view='problems']")
    first, second, third = browser.texts(".problems li")
    assert first.splitlines() == ["DecodeError", "torn.jpg", "it is torn", "fetch it again"]
    assert "no such file" in second
    assert "it is odd" in third
    browser.click(".problems a")
    assert browser.text("#viewer-name") == "007.jpg"
    browser.go("#view=figures")
    assert "498 boxes" in browser.text("#view-figures")
    rows = "return [...document.querySelectorAll('.class-bars tbody tr')].map((e) => e.innerText)"
    assert [row.split() for row in browser.run(rows)] == [["person", "399"], ["car", "99"]]
    scores = """return [...document.querySelectorAll('#view-figures .bars')].map(
        (bars) => [...bars.children].map((bar) => bar.title))"""
    histogram, sizes = browser.run(scores)
    assert histogram[0] == "from 0.00: 24 boxes"
    assert histogram[18] == "from 0.90: 99 boxes"
    assert sizes[4:6] == ["from 32: 498 boxes", "from 64: 0 boxes"]
    browser.click("#classes input[value='1']")
    assert "99 boxes" in browser.text("#view-figures")


DAY = "2026-01-01T12:00:"


def frames(count, source="in/film.mp4"):
    return [
        record(source, *[box(n // 20 % 2, 0.8)] * (n % 3), frame=n, time_s=n / 10)
        for n in range(count)
    ]


def test_a_video_has_a_timeline(browser, tmp_path, monkeypatch):
    from selenium.webdriver.common.keys import Keys

    monkeypatch.setattr(module, "VIDEO_PICTURES", 16)
    browser.open(make(tmp_path / "page", [*frames(100), record("a.jpg")]), "#view=timeline")
    assert "100 frames, 99 boxes, at most 2 at once" in browser.text("#view-timeline figure")
    assert browser.texts(".legend li") == ["person", "car"]
    strip = browser.find(".strip")
    assert strip.get_attribute("role") == "slider"
    browser.run("document.querySelector('.strip').focus()")
    browser.press(Keys.END)
    assert strip.get_attribute("aria-valuetext").startswith("0:09.9: 0 boxes")
    browser.press(Keys.ARROW_LEFT, Keys.ENTER)
    assert browser.text("#viewer-name") == "film.mp4"
    assert "frame 96 · 0:09.6" in browser.text("#viewer-facts")  # the nearest that was kept
    browser.press(Keys.ESCAPE)
    browser.open(tmp_path / "page")
    assert browser.text("#title") == "1 picture and 100 frames, 99 detections"
    assert count(browser) == "14"
    browser.set("#search", "film")
    assert count(browser) == "13"


def test_streams_that_end_alike_can_be_told_apart(browser, tmp_path):
    records = [
        record(f"rtsp://camera{n}/live/stream", box(), frame=0, time_s=0.0, time=f"{DAY}0{n}Z")
        for n in (1, 2)
    ]
    browser.open(make(tmp_path / "page", records))
    assert browser.names() == [
        "2026-01-01 12:00:01 UTC · camera1/live/stream",
        "2026-01-01 12:00:02 UTC · camera2/live/stream",
    ]
    browser.open(tmp_path / "page", "#view=timeline")
    assert browser.texts("#view-timeline h2") == ["camera1/live/stream", "camera2/live/stream"]


def test_a_long_video_shows_no_picture_that_was_removed(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VIDEO_PICTURES", 8)
    browser.open(make(tmp_path / "page", frames(70)))
    assert browser.names() == [f"0:0{n // 10}.{n % 10} · film.mp4" for n in range(0, 70, 16)]


HOSTILE = [
    "<img src=x onerror=alert(1)>.jpg", "</script><script>alert(2)</script>", "javascript:alert(3)",
    '"><svg onload=alert(4)>', "{{7*7}}${alert(5)}", "__proto__", "constructor", "'\"`",
    "&lt;b&gt;", "\u202egpj.exe", "a\u2028b", "%00%2e%2e/#picture-1?x=1",
    *NASTY,
]  # fmt: skip


def test_tracks_zones_lines_and_texts_are_shown(browser, tmp_path):
    tracked = {**box(0, 0.9), "track_id": 7, "zones": ["door", "yard"], "text": "EX-2048",
               "crossed": [{"line": "gate", "to": "left"}]}  # fmt: skip
    other = {**box(1, 0.8, (20, 20, 70, 50)), "zones": [], "text": None}
    about = About(
        "predict",
        places=(
            Shape.zone("door=0,0,0.5,0,0.5,1,0,1"),
            Shape.zone("yard=10,10,70,10,70,50"),
            Shape.line("gate=0.5,0,0.5,1"),
        ),
    )
    browser.open(make(tmp_path / "page", [record("a.jpg", tracked, other)], about))
    browser.go("#picture=0")
    zones = "return [...document.querySelectorAll('#stage .place path:not(.casing)')]"
    assert browser.run(f"{zones}.map((one) => one.getAttribute('d'))")[:2] == [
        "M0 0L40 0L40 60L0 60Z",
        "M10 10L70 10L70 50Z",
    ]
    assert browser.run(f"{zones}[2].getAttribute('d')").startswith("M40 0L40 60M")
    captions = browser.texts("#stage .place text")
    assert captions == ["door 1", "yard 1", "gate"]
    assert browser.texts("#stage .label text")[0] == "#7 person 0.90 EX-2048"
    rows = browser.texts("#viewer-found tbody tr")
    assert "#7 person" in rows[0]
    assert "door, yard, gate to the left" in rows[0]
    assert "EX-2048" in rows[0]
    assert rows[1] == "car 0.80 20, 20 to 70, 50"
    browser.press("b")
    assert browser.texts("#stage .place text") == []


def test_names_are_never_markup(browser, tmp_path):
    records = [
        record(name, box(n, 0.5, name=name) | {"text": name, "zones": [name]}, warnings=[name])
        for n, name in enumerate(HOSTILE)
    ]
    records += [failure(name, name, name) for name in HOSTILE]
    about = About("predict", [(name, name) for name in HOSTILE[:5]])
    tables = [Table(HOSTILE[0], HOSTILE[:3], [[HOSTILE[0], 1, None]])]
    place = make(tmp_path / "page", records, about, summary=HOSTILE[:3], tables=tables)
    foreign = """return document.querySelectorAll(
        'script:not([src^="files/"]), iframe, object, [onerror], [onload], img[src="x"], b'
    ).length"""
    browser.open(place)
    for view in (
        "#view=wall",
        "#view=figures",
        "#view=problems",
        "#picture=0",
        "#view=wall&group=text",
    ):
        browser.go(view)
        assert browser.run(foreign) == 0
        assert not browser.run("return Boolean(Object.prototype.polluted)")
        text = browser.run("return document.body.textContent")
        assert "<img src=x onerror=alert(1)>" in text
    browser.open(place)
    assert browser.names()[0] == HOSTILE[0]
    assert browser.texts("#classes .name")[0] == HOSTILE[0]
    browser.set("#search", "<IMG")
    assert browser.names() == [HOSTILE[0]]


ATTACKS = [
    """const one = document.createElement('script'); one.textContent = 'window.hacked = 1';
    document.body.append(one)""",
    """document.body.insertAdjacentHTML(
        'beforeend', '<img src=x onerror="window.hacked = 1">')""",
    """const one = document.createElement('script'); one.src = 'https://example.org/x.js';
    document.body.append(one)""",
    "new Image().src = 'https://example.org/x.png'",
    "fetch('https://example.org/').catch(() => {})",
]


def test_even_markup_could_do_nothing(chromium, many):
    chromium.open(many)
    for attack in ATTACKS:
        chromium.run(attack)
        chromium.settle()
        assert not chromium.run("return window.hacked")
        assert "Content Security Policy" in "".join(chromium.messages())


def test_a_run_that_goes_on_or_was_cut_off_says_so(browser, tmp_path):
    page = Page(tmp_path / "page", About("predict"))
    page.add(record("a.jpg", box()), grey)
    browser.open(tmp_path / "page")
    assert browser.text("#title") == "1 picture, 1 detection"
    assert browser.text("#state").startswith("The run is still going on, or was cut off")
    page.close()
    browser.open(tmp_path / "page")
    assert browser.text("#state") == ""


def test_what_is_damaged_is_said_and_the_rest_is_shown(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "CHUNK_RECORDS", 2)
    place = make(tmp_path / "page", [record(f"{n}.jpg") for n in range(6)])
    (place / "data/0.js").write_text('add({"sour')
    (place / "data/1.js").unlink()
    (place / "thumbnails/0/0/4.jpg").unlink()
    chromium.open(place)
    assert chromium.names() == ["4.jpg", "5.jpg"]
    assert chromium.text("#state") == "2 parts of the records cannot be read"
    chromium.wait("return document.querySelector('.missing')")
    assert chromium.text(".missing") == "The picture cannot be shown"


def test_a_run_that_goes_on_replaces_what_failed_but_not_standard_input(browser, tmp_path):
    records = [record("a.jpg", box()), failure("b.jpg"), record("a.jpg", box(1))]
    make(tmp_path / "page", [*records, record("-", box())])
    page = Page(tmp_path / "page", About("predict"), resumed=True)
    for one in (record("b.jpg", box(2)), record("c.jpg", box(1)), record("-", box())):
        page.add(one, grey)
    page.close()
    browser.open(tmp_path / "page")
    assert browser.names() == ["a.jpg", "a.jpg", "-", "b.jpg", "c.jpg", "-"]
    assert browser.text("#count-problems") == ""
    assert browser.texts("#classes .name") == ["person", "car", "dog"]


def test_a_comparison_shows_what_differs_first(browser, tmp_path):
    kinds = [
        BoxKind("agree", (99, 99, 99), wrong=False),
        BoxKind("missing", (0, 94, 213), dashed=True),
    ]
    rows = [
        [Row(0, "person", 0.9, (1, 1, 9, 9), 0)],
        [Row(0, "person", 0.9, (1, 1, 9, 9), 0), Row(1, "car", None, (5, 5, 30, 30), 1)],
        [Row(0, "person", 0.9, (1, 1, 9, 9), 1, (0.8, (2, 2, 9, 9)))],
    ]
    table = Table(
        *("By class", ["class", "false positives", "AP"]),
        [["person", 1200, 0.5], ["car", 0, None]],
        [{}, {"class": ["car"], "kind": ["missing"]}],
    )
    place = make(
        tmp_path / "page", [record(f"{n}.jpg") for n in "abc"], About("verify", kinds=kinds), rows,
        summary=["2 boxes are missing"], tables=[table],
    )  # fmt: skip
    browser.open(place)
    assert browser.names() == ["b.jpg", "c.jpg", "a.jpg"]
    assert browser.text("#summary") == "2 boxes are missing"
    assert browser.texts("#kinds .name") == ["agree", "missing"]
    browser.click("#kinds input[value='1']")
    assert browser.names() == ["b.jpg", "c.jpg"]
    browser.set("#least", "0.95")
    assert browser.names() == ["b.jpg"]  # whose box has no score
    browser.click("#reset")
    browser.settle()
    assert browser.names() == ["b.jpg", "c.jpg", "a.jpg"]
    browser.open(place, "#picture=2")
    assert browser.texts("#viewer-found tbody tr") == ["person missing 0.90 → 0.80 1, 1 to 9, 9"]
    assert browser.run("return document.querySelectorAll('#stage .other').length") == 1
    browser.open(place, "#view=figures")
    assert browser.texts("#view-figures table.figures tr") == [
        "class false positives AP", "person 1,200 0.500", "car 0 -",
    ]  # fmt: skip
    browser.click("#view-figures table.figures tr:nth-child(2) a")
    assert browser.names() == ["b.jpg"]
    assert browser.run("return location.hash") == "#class=car&kind=missing"


def test_it_is_dark_and_fits_on_a_phone(browser, many):
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(many)
    light = browser.run(ground)
    browser.open(many, dark=True)
    assert browser.run(ground) != light
    browser.click("#theme")
    assert browser.run(ground) == light
    browser.open(many, width=360, height=740)
    width = "return document.documentElement.scrollWidth"
    assert browser.run(width) <= 360
    assert not browser.find("#filters").is_displayed()
    browser.click("#open-filters")
    browser.click("#classes input[value='1']")
    assert count(browser) == "99"
    browser.open(many, width=360, height=740)
    for view in ("#view=wall", "#view=figures", "#view=problems", "#view=timeline", "#picture=8"):
        browser.go(view)
        assert browser.run(width) <= 360


NAMED = """
const hidden = (one) => one.closest('[aria-hidden="true"], [hidden]') || !one.checkVisibility();
return [...document.querySelectorAll('a, button, input, select, [role], img, svg, dialog')]
  .filter((one) => !hidden(one))
  .filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length
    || one.alt === '' || one.alt || one.role === 'status' || one.role === 'list'))
  .map((one) => one.outerHTML.slice(0, 200));
"""


def test_everything_has_a_name_for_a_screen_reader(browser, many):
    browser.open(many)
    wanted = {"link", "button", "slider", "checkbox", "combobox", "searchbox", "image", "dialog"}
    for view in ("#view=pictures", "#view=wall", "#view=figures", "#view=problems", "#picture=8"):
        browser.go(view)
        assert browser.run(NAMED) == []
        tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        nameless = [
            node["role"]["value"]
            for node in tree
            if not node["ignored"] and node["role"]["value"] in wanted and not node["name"]["value"]
        ]
        assert nameless == []
