"""The page of `detcli eval MODEL OTHER` in a browser: where the two models differ."""

import json

import pytest
from labelled import Scene, write_coco

pytestmark = pytest.mark.slow


@pytest.fixture
def compared(invoke, make_model, browser, tmp_path):
    """Open the page of two models, of which the second one has boxes that are too large.

    Returns the report that belongs to it.
    """
    scenes = [
        Scene.found(("red", 1, 1, 0.9), ("green", 4, 4, 0.9)),
        Scene([("red", 1, 1, 0.9)], [("red", 10.6, 8, 8, 8)]),  # only the exact box matches it
        Scene.found(("blue", 2, 5, 0.6)),
    ]
    data = write_coco(tmp_path / "data", scenes)
    models = [make_model("exact.onnx"), make_model("wide.onnx", reach=0.6)]
    page = tmp_path / "page"
    options = ["--data", data, "--report", page, "--device", "cpu", "--format", "json"]
    completed = invoke("eval", models, options)
    assert completed.returncode == 0, completed.stderr
    browser.open(page)
    return json.loads(completed.stdout)


def test_the_page_says_which_is_better_and_shows_first_what_differs(browser, compared):
    assert browser.text("#summary").splitlines()[0] == "exact is better"
    assert browser.names()[0] == "0002.png"
    [image] = compared["images"]
    assert image["source"] == "0002.png"


@pytest.mark.usefixtures("compared")
def test_a_class_that_differs_opens_the_images_in_which_it_does(browser):
    browser.go("#view=figures")
    class_names = browser.texts(".figures tr.opener td:first-child")
    assert class_names == ["red"]
    browser.click(".figures tr.opener button")
    assert browser.find("#viewer").get_attribute("open") is not None
    assert browser.text("#viewer-name") == "0002.png"


def test_a_key_shows_the_boxes_of_each_model_alone(browser, compared):
    from selenium.webdriver.common.keys import Keys

    browser.press(Keys.ARROW_RIGHT, Keys.ENTER)
    assert browser.text("#viewer-name") == compared["images"][0]["source"]
    browser.press("s", "s")  # from both to the swipe, and to the pair
    assert browser.texts(".side-name") == ["exact", "wide"]
