"""The page in one file, in a browser, as somebody opens it who was sent it."""

import axe
import pytest
from pages import box, make, record_of

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>document.title='run'</script><!--\u2028'\".jpg"


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A page in one file, and one in a folder, of the same records."""
    records = [
        record_of(f"site{number % 2}/{number}.jpg", [box(number % 3)]) for number in range(6)
    ]
    records.append(record_of(f"in/{HOSTILE}", [box(0, 0.4)]))
    folder = tmp_path_factory.mktemp("sent")
    make(folder / "page", records)
    (folder / "alone").mkdir()
    return make(folder / "alone/index.html", records).parent, folder / "page"


def test_it_shows_the_same_as_a_folder_and_loads_nothing(browser, sent):
    alone, folder = sent
    state = "return JSON.stringify([page.records.map(({ picture, ...r }) => r), boxColumns.score])"
    browser.open(folder)
    expected = browser.run(state)
    tiles = browser.names()
    browser.open(alone)
    assert browser.run(state) == expected
    assert browser.names() == tiles
    assert browser.text("#state") == ""
    requests = [name for name in browser.requests() if not name.startswith("data:")]
    assert requests == ["index.html"]
    browser.wait(
        "return [...document.querySelectorAll('.tile img')]"
        ".every((image) => image.naturalWidth > 0)"
    )
    assert browser.run("return document.title").startswith("7 images")


def test_its_views_and_its_images_open_on_a_phone(browser, sent):
    alone, _ = sent
    browser.open(alone, width=400, height=740)
    assert browser.run("return innerWidth") == 400
    width = "return document.documentElement.scrollWidth"
    for view in ("#", "#view=wall", "#view=figures", "#view=problems", "#picture=2"):
        browser.go(view)
        assert browser.run(width) <= 400
    browser.wait("return document.querySelector('#stage img').naturalWidth > 0")
    browser.click("#viewer-marks [data-mark=keep]")
    browser.click("#close")
    assert browser.text("#count-marks") == "1"


def test_axe_has_nothing_to_say_of_it(browser, sent):
    alone, _ = sent
    browser.open(alone, width=390)
    browser.run(axe.script())
    complaints = []
    for view in ("#", "#view=wall", "#view=figures", "#picture=1"):
        browser.go(view)
        complaints += axe.violations(browser, view)
    assert complaints == []


def test_even_markup_in_it_could_do_nothing(chromium, sent):
    alone, _ = sent
    chromium.open(alone)
    chromium.run(
        "const script = document.createElement('script'); script.textContent = 'window.isRun = 1';"
        "document.body.append(script)"
    )
    assert chromium.run("return window.isRun") is None
    assert "Content Security Policy" in "".join(chromium.messages())
