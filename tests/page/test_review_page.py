"""The review page: its files, and how it is answered with keys and buttons in a browser."""

import json
import re
import time

import axe
import pytest
from json_lines import column_of
from review_pages import BOX, answer, answers, is_on, labels, progress, wait_for_images
from thinning import thin

from detcli.page.review_page import CHUNK_LOOKS, Look, ReviewImage

pytestmark = pytest.mark.slow


def script_arguments(path, function):
    """What a data script calls its function with."""
    text = path.read_text("ascii")
    assert text.startswith(f"{function}(")
    assert text.endswith(");\n")
    return json.loads(text[len(function) + 1 : -len(");\n")])


def test_the_folder_has_the_page_its_files_and_its_data(review):
    folder = review(1, 3, rounds=[1, 2])
    html = (folder / "index.html").read_text("utf-8")
    for name in re.findall(r'(?:src|href)="([^"]+)"', html):
        assert (folder / name).is_file()
    assert script_arguments(folder / "data/deck.js", "deck") == {
        "id": str(folder.parent),
        "review": "1f0c",
        "wanted": "animal",
        "rounds": [1, 1],
        "looks": 2,
        "chunks": 1,
    }
    first, second = script_arguments(folder / "data/0.js", "looks")
    image = {"file": "images/0-0.jpg", "boxes": [list(BOX)]}
    assert first == {"source": "cam/0.jpg", "round": 1, "pass": 1, "images": [image]}
    assert second["round"] == 2
    assert len(second["images"]) == 3


def test_looks_come_in_chunks_and_addresses_are_quoted(review):
    image = ReviewImage("images/a #1.jpg", ())
    looks = []
    for number in range(CHUNK_LOOKS + 1):
        looks.append(Look(f"{number}.jpg", [image], 1, 1))
    folder = review(looks=looks)
    assert script_arguments(folder / "data/deck.js", "deck")["chunks"] == 2
    (last,) = script_arguments(folder / "data/1.js", "looks")
    assert last["source"] == f"{CHUNK_LOOKS}.jpg"
    assert last["images"][0]["file"] == "images/a%20%231.jpg"


def test_the_page_loads_files_of_its_folder_only(browser, review):
    folder = review(1)
    html = (folder / "index.html").read_text("utf-8")
    (policy,) = re.findall(r'content="(default-src[^"]+)"', html)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    browser.open(folder)
    wait_for_images(browser)
    requests = set(browser.requests())
    assert "images/0-0.jpg" in requests
    for name in requests:
        assert "://" not in name


def test_keys_answer_and_each_answer_is_a_label(browser, review):
    from selenium.webdriver.common.keys import Keys

    browser.open(review(1, 1, 1, 1, 1), "?who=anna")
    assert progress(browser) == "0 of 5; 0 animals; 1 min left"
    answer(browser, "j", "f", Keys.ARROW_RIGHT, Keys.ARROW_LEFT, "u")
    assert column_of(labels(browser), "animal") == [0, 1, 0, 1, None]
    label = labels(browser)[1]
    keys = ["source", "animal", "who", "at", "seconds", "pass", "boxes_seen", "review"]
    assert list(label) == keys
    assert label["source"] == "cam/1.jpg"
    assert label["who"] == "anna"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", label["at"])
    assert label["seconds"] >= 0
    assert label["pass"] == 1
    assert label["boxes_seen"] is False
    assert label["review"] == "1f0c"
    assert progress(browser) == "4 of 5; 2 animals; 1 unsure; 1 min left"


def test_buttons_answer_as_keys_do_and_do_not_take_the_keyboard(browser, review):
    browser.open(review(1, 1, 1, 1))
    for action in ("nothing", "wanted", "unsure"):
        wait_for_images(browser)
        browser.click(f"[data-action={action}]")
    assert column_of(labels(browser), "animal") == [0, 1, None]
    browser.press(" ")  # would press the button once more if that had the focus
    assert is_on(browser, "zoom")
    assert len(labels(browser)) == 3


def test_a_key_that_is_held_down_is_one_answer(browser, review):
    browser.open(review(1, 1, 1))
    wait_for_images(browser)
    for is_repeat in (False, True, True):
        event = {"type": "keyDown", "key": "j", "text": "j", "autoRepeat": is_repeat}
        browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", event)
        browser.settle()
    browser.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", "key": "j"})
    assert answers(browser) == [("cam/0.jpg", 0)]


def test_nothing_is_answered_before_it_can_be_seen(browser, review):
    browser.open(review(1, 1))
    browser.run(
        "HTMLImageElement.prototype.decode = () => new Promise(() => {});"
        "review.frames.clear(); show()"
    )
    browser.press("j")
    assert labels(browser) == []


def test_unsure_is_asked_again_once_at_the_end_of_the_round(browser, review):
    browser.open(review(1, 1, 1))
    answer(browser, "u", "u", "j")
    assert progress(browser).startswith("1 of 3; 0 animals; 2 unsure")
    answer(browser, "f", "u")
    assert answers(browser)[3:] == [("cam/0.jpg", 1), ("cam/1.jpg", None)]
    assert browser.text("#end-title") == "Round 1 is complete"
    answer(browser, "z")
    answer(browser, "j")
    assert browser.text("#end-title") == "Round 1 is complete"
    assert answers(browser)[5:] == [("cam/1.jpg", "undo"), ("cam/1.jpg", 0)]


def test_undo_goes_back_to_the_beginning_of_the_round_and_not_further(browser, review):
    browser.open(review(1, 1, 1, 1, rounds=[1, 2, 2, 2]))
    answer(browser, "f")
    browser.click("[data-action=go-on]")
    answer(browser, "j", "f", "z", "z", "z", "z")
    assert answers(browser)[1:] == [
        ("cam/1.jpg", 0),
        ("cam/2.jpg", 1),
        ("cam/2.jpg", "undo"),
        ("cam/1.jpg", "undo"),
    ]
    assert progress(browser).startswith("0 of 3; 0 animals; ")
    answer(browser, "f")
    assert answers(browser)[-1] == ("cam/1.jpg", 1)


def test_the_time_left_is_of_the_latest_answers_without_breaks(browser, review):
    image = ReviewImage("", ())
    looks = []
    for number in range(61):
        looks.append(Look(f"{number}.jpg", [image], 1, 1))
    browser.open(review(looks=looks))
    browser.run("addLabel(openLooks()[0], 0, 2.04); show()")
    assert labels(browser)[0]["seconds"] == 2
    assert progress(browser) == "1 of 61; 0 animals; 2 min left"
    browser.run("addLabel(openLooks()[0], 0, 3600); show()")
    # 59 looks of (2 + 30) / 2 seconds: an hour was a break, and counts as half a minute.
    assert progress(browser) == "2 of 61; 0 animals; 16 min left"


def test_a_burst_plays_its_images_in_order_and_pauses(browser, review):
    browser.open(review(3, 1))
    assert browser.run("return FRAME_MS") == 500
    wait_for_images(browser)
    positions = browser.driver.execute_async_script(
        "const done = arguments[0]; const texts = [];"
        "const position = document.getElementById('position');"
        "new MutationObserver(() => { texts.push(position.textContent);"
        "  if (texts.length === 5) done(texts); }).observe(position, {childList: true});"
    )
    start = int(positions[0][0])
    expected = [f"{(start - 1 + step) % 3 + 1} / 3" for step in range(5)]
    assert positions == expected
    shown_images = (
        "const images = [...document.querySelectorAll('#stage img')];"
        "return [document.getElementById('position').textContent,"
        " images.filter((image) => image.checkVisibility()).map((image) => image.src)]"
    )
    position, (source,) = browser.run(shown_images)
    assert source.endswith(f"0-{int(position[0]) - 1}.jpg")
    browser.wait(f"return document.getElementById('position').textContent !== '{position}'")
    later_position, (later_source,) = browser.run(shown_images)
    assert later_position != position
    assert later_source.endswith(f"0-{int(later_position[0]) - 1}.jpg")

    browser.press("p")
    assert is_on(browser, "pause")
    paused_position = browser.text("#position")
    time.sleep(1.2)  # more than two images last
    assert browser.text("#position") == paused_position
    browser.press("j")
    assert not is_on(browser, "pause")
    assert browser.text("#position") == ""


def test_zoom_shows_what_is_under_the_pointer_and_ends_with_the_answer(browser, review):
    browser.open(review(1, 1))
    wait_for_images(browser)
    size = "return document.querySelector('#stage .frame').getBoundingClientRect().toJSON()"
    whole = browser.run(size)
    browser.mouse("move", whole["left"] + 10, whole["top"] + 10)
    browser.press(" ")
    near = browser.run(size)
    assert near["width"] == pytest.approx(3 * whole["width"])
    assert near["left"] == pytest.approx(whole["left"] - 20, abs=1)
    assert near["top"] == pytest.approx(whole["top"] - 20, abs=1)
    browser.press(" ")
    assert browser.run(size) == whole
    browser.press(" ", "j")
    assert not is_on(browser, "zoom")


def test_brighter_ends_with_the_answer(browser, review):
    browser.open(review(1, 1))
    wait_for_images(browser)
    bright = "return getComputedStyle(document.querySelector('#stage img')).filter"
    assert browser.run(bright) == "none"
    browser.press("c")
    assert browser.run(bright).startswith("brightness(")
    answer(browser, "j")
    wait_for_images(browser)
    assert browser.run(bright) == "none"


def test_boxes_are_hidden_and_labels_say_that_they_were_shown(browser, review):
    folder = review(1, 1, 1)
    browser.open(folder)
    wait_for_images(browser)
    drawn = "return document.querySelector('#stage svg').checkVisibility()"
    assert not browser.run(drawn)
    browser.press("b")
    assert browser.run(drawn)
    path = browser.run("return document.querySelector('#stage svg path').getAttribute('d')")
    assert path == "M16 12H48V24H16Z"  # of 64x48 pixels
    browser.press("b")
    assert not browser.run(drawn)

    browser.open(folder)  # a reload does not forget it
    answer(browser, "j")
    wait_for_images(browser)
    assert not browser.run(drawn)
    answer(browser, "j", "b", "j", "z")
    assert column_of(labels(browser), "boxes_seen") == [True, False, True, True]


def test_the_grid_answers_twenty_at_once(browser, review):
    from selenium.webdriver.common.keys import Keys

    browser.open(review(*([1] * 22)))
    answer(browser, "j", "g")
    assert len(browser.texts(".tile")) == 20
    wait_for_images(browser)
    browser.click("[data-tile='3']")
    browser.click("[data-tile='5']")
    browser.click("[data-tile='5']")
    assert not browser.find("#answers").is_displayed()
    browser.press(Keys.ENTER)  # the focus is on a tile
    values = dict(answers(browser)[1:])
    assert len(values) == 20
    assert values.pop("cam/4.jpg") == 1
    assert set(values.values()) == {0}
    assert progress(browser).startswith("21 of 22; 1 animal; ")

    browser.press("z")
    assert progress(browser).startswith("1 of 22; 0 animals; ")
    marked = "return document.querySelectorAll('.tile[aria-pressed=true]').length"
    assert browser.run(marked) == 1
    wait_for_images(browser)
    browser.click("[data-action=rest]")
    assert progress(browser).startswith("21 of 22; 1 animal; ")
    browser.press("g")
    assert browser.texts(".tile") == []


def test_tiles_of_the_grid_are_marked_with_the_keyboard(browser, review):
    browser.open(review(1, 1, 1))
    answer(browser, "g")
    wait_for_images(browser)
    browser.run("document.querySelector('[data-tile=\"1\"]').focus()")
    browser.press(" ")
    browser.press("\ue007")
    assert answers(browser) == [("cam/0.jpg", 0), ("cam/1.jpg", 1), ("cam/2.jpg", 0)]


def test_the_end_of_a_round_says_what_to_do_and_no_bound(browser, review):
    folder = review(1, 1, 1, rounds=[1, 1, 2])
    browser.open(folder, "?who=anna")
    answer(browser, "f", "j")
    assert browser.text("#end-title") == "Round 1 is complete"
    command = browser.find("#command").get_attribute("value")
    assert command == f"detcli promise check {folder} labels-anna.jsonl"
    assert browser.text("#file-name") == "labels-anna.jsonl"
    assert browser.text("[data-action=go-on]") == "Go on with round 2: 1 more"
    assert not browser.find("#no-round").is_displayed()
    assert "%" not in browser.text("body")
    assert not browser.find("#stage").is_displayed()

    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click("[data-action=copy]")
    browser.wait("return document.getElementById('copied').textContent === 'Copied'")
    assert browser.run("return window.copied") == command

    browser.open(folder, "?who=anna")  # the end stays after a reload
    assert browser.text("#end-title") == "Round 1 is complete"
    browser.click("[data-action=go-on]")
    assert progress(browser).startswith("0 of 1; 0 animals; ")
    answer(browser, "j")
    assert browser.text("#end-title") == "Round 2 is complete"
    assert browser.text("#no-round") == "There is no other round."
    assert not browser.find("[data-action=go-on]").is_displayed()


def test_nothing_in_the_page_tells_names_or_why_a_look_is_there(browser, review):
    browser.open(review(2, 1, 1))
    wait_for_images(browser)
    for keys in ("j", "b", "g"):
        browser.press(keys)
        wait_for_images(browser)
        html = browser.run("return document.documentElement.outerHTML")
        assert "cam/" not in html
        for word in ("score", "pass", "repeat", "known", "above", "below"):
            assert word not in browser.text("body").lower()


def test_texts_are_never_markup(browser, review):
    markup = "<img src=x onerror=alert(1)>"
    browser.open(review(1, 1, wanted=markup), "?who=%3Cb%3Eanna%3C%2Fb%3E")
    assert browser.text("#who") == "<b>anna</b>"
    assert browser.find("#wanted").get_attribute("textContent") == markup
    answer(browser, "f")
    assert progress(browser).startswith(f"1 of 2; 1 with {markup}; ")
    assert browser.run("return document.querySelectorAll('[onerror], bdi b').length") == 0


def test_an_image_that_cannot_be_shown_is_not_empty_but_unsure(browser, review):
    folder = review(1, 1, 1)
    (folder / "images/0-0.jpg").unlink()
    (folder / "images/1-0.jpg").write_bytes(b"no JPEG")
    browser.open(folder)
    wait_for_images(browser)
    assert "cannot be shown" in browser.text("#stage")
    answer(browser, "j", "f", "j")
    assert column_of(labels(browser), "animal") == [None, 1, 0]
    assert len(browser.messages()) == 1  # of the missing file


def test_missing_data_are_said_and_nothing_is_asked(browser, review):
    folder = review(1)
    (folder / "data/0.js").write_text("looks([{")
    browser.open(folder)
    assert "part of its data is missing" in browser.text("#notice")
    browser.press("j")
    assert labels(browser) == []
    assert len(browser.messages()) == 1  # of the damaged script


def test_ten_thousand_looks_load_at_once_and_images_only_when_they_are_near(browser, review, jpeg):
    looks = []
    for number in range(10_000):
        image = ReviewImage(f"images/{number}.jpg", [BOX] * 3)
        looks.append(Look(f"a camera/2026/11/{number}.jpg", [image], 1, 1))
    folder = review(looks=looks)
    for number in range(30):
        (folder / f"images/{number}.jpg").write_bytes(jpeg)
    browser.open(folder)
    wait_for_images(browser)
    assert progress(browser).startswith("0 of 10,000; 0 animals; ")
    images = {name for name in browser.requests() if name.startswith("images/")}
    assert "images/0.jpg" in images
    assert len(images) < 12
    answer(browser, "j", "f")
    assert progress(browser).startswith("2 of 10,000; 1 animal; ")
    assert browser.run("return document.querySelectorAll('*').length") < 200


def test_each_key_of_the_list_has_a_button(browser, review):
    browser.open(review(1))
    browser.press("?")
    assert browser.find("#keys").is_displayed()
    browser.press("j")  # no answer while the list is open
    assert labels(browser) == []
    names = {"←": "ArrowLeft", "→": "ArrowRight"}
    listed_keys = set()
    for text in browser.texts("#keys dt kbd, #keys dd kbd"):
        listed_keys.add(names.get(text, text))
    button_keys = set()
    for button in browser.driver.find_elements("css selector", "[aria-keyshortcuts]"):
        button_keys.update(button.get_attribute("aria-keyshortcuts").split())
    assert listed_keys == button_keys
    browser.press("\ue00c")  # Escape
    assert not browser.find("#keys").is_displayed()


def test_the_focus_is_visible_and_reaches_all_buttons(browser, review):
    from selenium.webdriver.common.keys import Keys

    browser.open(review(1))
    wait_for_images(browser)
    reached = set()
    for _ in range(11):
        browser.press(Keys.TAB)
        action, outline = browser.run(
            "const part = document.activeElement;"
            "return [part.dataset.action, getComputedStyle(part).outlineStyle]"
        )
        assert outline == "solid"
        reached.add(action)
    views = {"undo", "zoom", "brighter", "boxes-on", "pause", "grid"}
    assert reached == {"save", "help", "nothing", "wanted", "unsure"} | views


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_all_fits_in_the_window(browser, review, width):
    folder = review(3, 1)
    browser.open(folder, width=width, height=800)
    wait_for_images(browser)
    for keys in ("", "g"):
        browser.press(keys)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.run("return document.documentElement.scrollHeight") <= 800
        for button in browser.driver.find_elements("css selector", "footer button"):
            if button.is_displayed():
                assert button.rect["x"] + button.rect["width"] <= width
                assert button.rect["y"] + button.rect["height"] <= 800


WINDOWS = thin(
    "windows in which axe looks at the review page",
    [(1280, True), (1280, False), (400, True), (400, False)],
    count=1,
)


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_axe_has_nothing_to_say(browser, review, width, dark):
    script = axe.script()
    browser.open(review(3, 1, 1, rounds=[1, 1, 2]), width=width, dark=dark)
    browser.run(script)
    wait_for_images(browser)
    complaints = axe.violations(browser, "look")
    browser.press("b", "c")
    complaints += axe.violations(browser, "boxes")
    browser.press("?")
    complaints += axe.violations(browser, "keys")
    browser.click("#keys button")
    answer(browser, "g")
    wait_for_images(browser)
    browser.click("[data-tile='1']")
    complaints += axe.violations(browser, "grid")
    browser.click("[data-action=rest]")
    assert browser.text("#end-title") == "Round 1 is complete"
    complaints += axe.violations(browser, "end")
    assert complaints == [], "\n".join(map(str, complaints))
