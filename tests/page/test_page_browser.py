"""The page in a browser: Chromium opens it from the disk."""

import pytest
from nasty_names import NASTY
from pages import box, failure, images, make, record_of
from thinning import thin

from detcli.config.ignored import IgnoredZone
from detcli.config.shapes import Line, Zone
from detcli.page import folder as folders
from detcli.page import page as module
from detcli.page import thumbnails as packs
from detcli.page.page import Conclusion, Curves, PageTable
from detcli.page.run_info import RunInfo
from detcli.sink.colours import colour_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """400 images: a person on each, a car on every 4th, nothing on the first; two failures."""
    records = [record_of("pics/000.jpg")]
    for n in range(1, 400):
        cars = [box(1, 0.9, (20, 20, 70, 50))] if n % 4 == 0 else []
        warned = {"warnings": ["it is odd"]} if n == 7 else {}
        records.append(record_of(f"pics/{n:03}.jpg", cars + [box(0, n / 500)], **warned))
    records += [failure("torn.jpg"), failure("gone.jpg", "no such file", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "CHUNK_RECORDS", 150)
        patch.setattr(packs, "PACK_IMAGES", 50)
        return make(tmp_path_factory.mktemp("many") / "page", records)


def count(browser):
    return browser.text("#count-pictures")


def requested_packs(browser):
    return {name for name in browser.requests() if name.startswith("thumbnails/")}


def test_it_shows_what_was_found(browser, many):
    browser.open(many)
    assert browser.text("#title") == "400 images, 498 detections"
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
    assert browser.text("#announce") == "400 images shown"
    assert browser.find(".tile a").get_attribute("aria-label") == "000.jpg pics nothing found"


def test_only_what_is_near_is_loaded(browser, many):
    browser.open(many)
    first_packs = requested_packs(browser)
    assert first_packs == {"thumbnails/0/0.js"}
    assert 10 < len(browser.names()) < 50
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    assert browser.wait(
        "return [...document.querySelectorAll('.tile .name')]"
        ".some((name) => name.textContent === '399.jpg')"
    )
    assert len(browser.names()) < 60
    assert "thumbnails/0/7.js" in requested_packs(browser) - first_packs


def test_filters_and_orders(browser, many):
    browser.show(many)
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
    for order, names in (
        ("most", ["004.jpg", "008.jpg"]),
        ("fewest", ["000.jpg", "001.jpg"]),
        ("lowest", ["001.jpg", "002.jpg"]),
        ("name", ["000.jpg", "001.jpg"]),
    ):
        browser.set("#sort", order)
        assert browser.names()[:2] == names
    browser.set("#show", "none")
    assert browser.names() == ["000.jpg"]
    browser.set("#show", "warned")
    assert browser.names() == ["007.jpg"]
    browser.set("#show", "all")
    browser.set("#search", "ICS/39")
    assert count(browser) == "10"
    browser.set("#search", "nothing like it")
    assert browser.text("#shown") == "No image passes the filter"


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


ODD_ADDRESSES = [
    "view=x",
    "score=b..a",
    "score=0.9..0.1",
    "sort=constructor",
    "show=%ZZ&picture=-1",
    'show="]',
    "theme=1&picture=999999",
    "__proto__=1",
]


@pytest.mark.parametrize("odd", thin("odd addresses of a page", ODD_ADDRESSES, count=2))
def test_an_odd_address_shows_what_a_plain_one_does(browser, many, odd):
    browser.open(many, f"#{odd}")
    assert count(browser) == "400"
    assert not browser.run("return document.getElementById('viewer').open")


def test_the_skip_link_changes_nothing_else(browser, many):
    browser.show(many, "#class=car")
    browser.run("document.querySelector('.skip').click()")
    assert browser.run("return document.activeElement.id") == "main"
    assert browser.run("return location.hash") == "#class=car"
    assert count(browser) == "99"


def test_keys(browser, many):
    from selenium.webdriver.common.keys import Keys

    browser.show(many)
    focused = (
        "return document.activeElement.getAttribute('aria-label') || document.activeElement.id"
    )
    browser.press("/")
    assert browser.run(focused) == "search"
    browser.press("3", "9", "9")
    assert browser.names() == ["399.jpg"]
    browser.press(Keys.BACKSPACE, Keys.BACKSPACE, Keys.BACKSPACE)
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


def test_an_image_opens_with_its_boxes_and_closes(browser, many):
    from selenium.webdriver.common.keys import Keys

    browser.show(many, "#picture=8")
    assert browser.run("return document.getElementById('viewer').open")
    assert browser.text("#viewer-name") == "008.jpg"
    assert browser.texts("#viewer-found tbody tr") == [
        "car 0.90 20, 20 to 70, 50",
        "person 0.02 10, 10 to 50, 40",
    ]
    labels = "return [...document.querySelectorAll('#stage text')].map((text) => text.textContent)"
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
    browser.wait("return document.fullscreenElement?.id === 'viewer-body'")
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
    browser.settle()  # the tiles are drawn anew
    browser.click(".tile a[href='#picture=4']")
    browser.click("#close")
    assert not browser.run("return document.getElementById('viewer').open")


def test_boxes_lie_on_the_image(browser, many):
    """The corner of a box is where the image has that pixel, though bars are beside it."""
    for size in ({"width": 1200}, {"width": 390, "height": 800}):
        browser.show(many, "#picture=8", **size)
        browser.wait("return document.querySelector('#stage img').naturalWidth")
        box, stage = browser.run("""
            return ["#stage .box path", "#stage"].map((selector) => {
              const area = document.querySelector(selector).getBoundingClientRect();
              return [area.x, area.y, area.width, area.height];
            });""")
        stage_x, stage_y, stage_width, stage_height = stage
        scale = min(stage_width / 80, stage_height / 60)
        left = stage_x + (stage_width - 80 * scale) / 2 + 10 * scale
        top = stage_y + (stage_height - 60 * scale) / 2 + 10 * scale
        box_x, box_y, box_width, _ = box
        assert box_x == pytest.approx(left, abs=4)
        assert box_y == pytest.approx(top, abs=4)
        assert box_width == pytest.approx(40 * scale, abs=8)


def test_problems_and_figures_have_views_of_their_own(browser, many):
    browser.show(many)
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
    rows = (
        "return [...document.querySelectorAll('.class-bars tbody tr')].map((row) => row.innerText)"
    )
    first_row, second_row = browser.run(rows)
    assert first_row.split() == ["person", "399"]
    assert second_row.split() == ["car", "99"]
    scores = """return [...document.querySelectorAll('#view-figures .bars')].map(
        (bars) => [...bars.children].map((bar) => bar.title))"""
    histogram, sizes = browser.run(scores)
    assert histogram[0] == "from 0.00: 24 boxes"
    assert histogram[18] == "from 0.90: 99 boxes"
    assert sizes[4:6] == ["from 32: 498 boxes", "from 64: 0 boxes"]
    browser.click("#classes input[value='1']")
    assert "99 boxes" in browser.text("#view-figures")


def frames(count, source="in/film.mp4"):
    """Frames with no, one or two boxes; every 20 frames, persons and cars take turns."""
    records = []
    for number in range(count):
        boxes = [box(number // 20 % 2, 0.8)] * (number % 3)
        records.append(record_of(source, boxes, frame=number, time_s=number / 10))
    return records


def test_a_video_has_a_timeline(browser, tmp_path, monkeypatch):
    from selenium.webdriver.common.keys import Keys

    monkeypatch.setattr(module, "VIDEO_IMAGES", 16)
    page = make(tmp_path / "page", frames(100) + [record_of("a.jpg")])
    browser.open(page, "#view=timeline")
    assert "100 frames, 99 boxes, at most 2 at once" in browser.text("#view-timeline figure")
    assert browser.texts(".legend li") == ["person", "car"]
    strip = browser.find(".strip input")
    assert strip.aria_role == "slider"
    browser.run("document.querySelector('.strip input').focus()")
    browser.press(Keys.END)
    assert strip.get_attribute("aria-valuetext").startswith("0:09.9: 0 boxes")
    browser.press(Keys.ARROW_LEFT, Keys.ENTER)
    assert browser.text("#viewer-name") == "film.mp4"
    assert "frame 96 · 0:09.6" in browser.text("#viewer-facts")  # the nearest that was kept
    browser.press(Keys.ESCAPE)
    browser.show(tmp_path / "page")
    assert browser.text("#title") == "1 image and 100 frames, 99 detections"
    assert count(browser) == "14"
    browser.set("#search", "film")
    assert count(browser) == "13"


def test_streams_that_end_alike_can_be_told_apart(browser, tmp_path):
    records = []
    for number, time in ((1, "2026-01-01T12:00:01Z"), (2, "2026-01-01T12:00:02Z")):
        source = f"rtsp://camera{number}/live/stream"
        records.append(record_of(source, [box()], frame=0, time_s=0.0, time=time))
    browser.open(make(tmp_path / "page", records))
    assert browser.names() == [
        "2026-01-01 12:00:01 UTC · camera1/live/stream",
        "2026-01-01 12:00:02 UTC · camera2/live/stream",
    ]
    browser.show(tmp_path / "page", "#view=timeline")
    assert browser.texts("#view-timeline h2") == ["camera1/live/stream", "camera2/live/stream"]


def test_a_long_video_shows_no_image_that_was_removed(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VIDEO_IMAGES", 8)
    browser.open(make(tmp_path / "page", frames(70)))
    assert browser.names() == [
        "0:00.0 · film.mp4",
        "0:01.6 · film.mp4",
        "0:03.2 · film.mp4",
        "0:04.8 · film.mp4",
        "0:06.4 · film.mp4",
    ]


def test_no_removed_image_is_requested_while_a_long_video_loads(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "VIDEO_IMAGES", 8)
    monkeypatch.setattr(folders, "CHUNK_RECORDS", 5)
    page = make(tmp_path / "page", frames(70))
    pack = page / "thumbnails/0/0.js"
    remaining_names = images(page)
    remaining_lines = []
    for line in pack.read_text().splitlines(keepends=True):
        if line.split('"')[1] in remaining_names:
            remaining_lines.append(line)
    pack.write_text("".join(remaining_lines))
    browser.open(page)  # it would look for the copy of an image that is in no pack
    requests = browser.requests()
    assert "thumbnails/0/0.js" in requests
    for name in requests:
        assert not name.startswith("pictures/")


HOSTILE = [
    "<img src=x onerror=alert(1)>.jpg", "</script><script>alert(2)</script>", "javascript:alert(3)",
    '"><svg onload=alert(4)>', "{{7*7}}${alert(5)}", "__proto__", "constructor", "'\"`",
    "&lt;b&gt;", "\u202egpj.exe", "a\u2028b", "%00%2e%2e/#picture-1?x=1",
] + NASTY  # fmt: skip


def test_tracks_zones_lines_and_texts_are_shown(browser, tmp_path):
    tracked = box(0, 0.9) | {
        "track_id": 7,
        "zones": ["door", "yard"],
        "text": "EX-2048",
        "crossed": [{"line": "gate", "to": "left"}],
    }
    without_track = box(1, 0.8, (20, 20, 70, 50)) | {"zones": [], "text": None}
    about = RunInfo(
        "predict",
        zones_and_lines=(
            Zone.parse("door=0,0,0.5,0,0.5,1,0,1"),
            Zone.parse("yard=10,10,70,10,70,50"),
            Line.parse("gate=0.5,0,0.5,1"),
        ),
    )
    browser.open(make(tmp_path / "page", [record_of("a.jpg", [tracked, without_track])], about))
    browser.go("#picture=0")
    zones = "return [...document.querySelectorAll('#stage .place path:not(.casing)')]"
    assert browser.run(f"{zones}.map((path) => path.getAttribute('d'))")[:2] == [
        "M0 0L40 0L40 60L0 60Z",
        "M10 10L70 10L70 50Z",
    ]
    assert browser.run(f"{zones}[2].getAttribute('d')").startswith("M40 0L40 60M")
    captions = browser.texts("#stage .place text")
    assert captions == ["door 1", "yard 1", "gate"]
    boxes = "return [...document.querySelectorAll('#stage .box path:not(.casing)')]"
    strokes = browser.run(f"{boxes}.map((path) => path.getAttribute('stroke'))")
    blue, green, red = colour_of(6)
    assert strokes == ["#888", f"#{red:02x}{green:02x}{blue:02x}"]  # the first has no number yet
    assert browser.texts("#stage .label text")[0] == "#7 person 0.90 EX-2048"
    rows = browser.texts("#viewer-found tbody tr")
    assert "#7 person" in rows[0]
    assert "door, yard, gate to the left" in rows[0]
    assert "EX-2048" in rows[0]
    assert rows[1] == "car 0.80 20, 20 to 70, 50"
    browser.press("b")
    assert browser.texts("#stage .place text") == []


def test_the_class_of_a_second_network_is_shown_and_found(browser, tmp_path):
    first = record_of("a.jpg", [box(0, 0.9) | {"classified": "red fox"}, box(0, 0.8)])
    second = record_of("b.jpg", [box(0, 0.7) | {"classified": "hare"}])
    browser.open(make(tmp_path / "page", [first, second]))
    browser.go("#picture=0")
    assert browser.texts("#stage .label text") == ["person 0.90 red fox", "person 0.80"]
    assert "red fox" in browser.texts("#viewer-found tbody tr")[0]
    browser.go("#find=fox")
    assert browser.names() == ["a.jpg"]
    browser.go("#find=hare")
    assert browser.names() == ["b.jpg"]


def test_ignored_polygons_are_dim_in_the_images_that_they_are_for(browser, tmp_path):
    about = RunInfo(
        "predict",
        ignored=(
            IgnoredZone.parse("site7/**=0,0.5,1,0.5,1,1,0,1"),
            IgnoredZone.parse("0,0,10,0,10,10"),
        ),
    )
    records = [record_of("site7/a.jpg", [box(0, 0.9)]), record_of("site8/a.jpg")]
    browser.open(make(tmp_path / "page", records, about))
    assert browser.run("return document.querySelectorAll('.tile .ignored').length") == 3
    paths = "return [...document.querySelectorAll('#stage .ignored')]"
    browser.go("#picture=0")
    shapes = browser.run(f"{paths}.map((path) => path.getAttribute('d'))")
    assert shapes == ["M0 30L80 30L80 60L0 60Z", "M0 0L10 0L10 10Z"]
    assert browser.run(f"{paths}.map((path) => getComputedStyle(path).fill)") == [
        "rgba(0, 0, 0, 0.5)",
        "rgba(0, 0, 0, 0.5)",
    ]
    browser.go("#picture=1")
    shapes = browser.run(f"{paths}.map((path) => path.getAttribute('d'))")
    assert shapes == ["M0 0L10 0L10 10Z"]


def test_names_are_never_markup(browser, tmp_path):
    records = []
    for number, name in enumerate(HOSTILE):
        detection = box(number, 0.5, name=name) | {"text": name, "zones": [name]}
        records.append(record_of(name, [detection], warnings=[name]))
    records += [failure(name, name, name) for name in HOSTILE]
    about = RunInfo("predict", [(name, name) for name in HOSTILE[:5]])
    tables = [PageTable(HOSTILE[0], HOSTILE[:3], [[HOSTILE[0], 1, None]])]
    lines = [(HOSTILE[0], 1, 1, [0.5, 1]), (HOSTILE[1], 1, 1, [0.5, 1])]
    curves = [Curves(HOSTILE[0], (HOSTILE[0], HOSTILE[1]), lines)]
    conclusion = Conclusion(HOSTILE[:3], tables, curves)
    page = make(tmp_path / "page", records, about, conclusion=conclusion)
    foreign = """return document.querySelectorAll(
        'script:not([src^="files/"], [src^="thumbnails/"]), iframe, object, [onerror], [onload],'
        + 'img[src="x"], b'
    ).length"""
    browser.open(page)
    views = ("view=wall", "view=figures", "view=problems", "picture=0", "view=wall&group=text")
    for view in views:
        browser.go(f"#{view}")
        assert browser.run(foreign) == 0
        assert not browser.run("return Boolean(Object.prototype.polluted)")
        text = browser.run("return document.body.textContent")
        assert "<img src=x onerror=alert(1)>" in text
    browser.show(page)
    assert browser.names()[0] == HOSTILE[0]
    assert browser.texts("#classes .name")[0] == HOSTILE[0]
    browser.set("#search", "<IMG")
    assert browser.names() == [HOSTILE[0]]


ATTACKS = [
    """const script = document.createElement('script');
    script.textContent = 'window.hacked = 1'; document.body.append(script)""",
    """document.body.insertAdjacentHTML(
        'beforeend', '<img src=x onerror="window.hacked = 1">')""",
    """const script = document.createElement('script');
    script.src = 'https://example.org/x.js'; document.body.append(script)""",
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


def test_it_is_dark_and_fits_on_a_phone(browser, many):
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.show(many)
    light = browser.run(ground)
    browser.show(many, dark=True)
    assert browser.run(ground) != light
    browser.click("#theme")
    assert browser.run(ground) == light
    browser.show(many, width=360, height=740)
    width = "return document.documentElement.scrollWidth"
    assert browser.run(width) <= 360
    assert not browser.find("#filters").is_displayed()
    browser.click("#open-filters")
    browser.click("#classes input[value='1']")
    assert count(browser) == "99"
    browser.show(many, width=360, height=740)
    for view in ("#view=wall", "#view=figures", "#view=problems", "#view=timeline", "#picture=8"):
        browser.go(view)
        assert browser.run(width) <= 360


NAMELESS_PARTS = """
const isHidden = (part) =>
  part.closest('[aria-hidden="true"], [hidden]') || !part.checkVisibility();
const hasName = (part) => part.getAttribute('aria-label') || part.textContent.trim()
  || part.labels?.length || part.alt === '' || part.alt;
const needsNone = ({ role }) => role === 'status' || role === 'list';
return [...document.querySelectorAll('a, button, input, select, [role], img, svg, dialog')]
  .filter((part) => !isHidden(part) && !hasName(part) && !needsNone(part))
  .map((part) => part.outerHTML.slice(0, 200));
"""


def test_everything_has_a_name_for_a_screen_reader(browser, many):
    browser.show(many)
    roles = {"link", "button", "slider", "checkbox", "combobox", "searchbox", "image", "dialog"}
    for view in ("#view=pictures", "#view=wall", "#view=figures", "#view=problems", "#picture=8"):
        browser.go(view)
        assert browser.run(NAMELESS_PARTS) == []
        tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        for node in tree:
            if not node["ignored"] and node["role"]["value"] in roles:
                assert node["name"]["value"], node["role"]["value"]
