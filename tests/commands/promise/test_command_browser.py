"""A review from the deal to the promise, answered with keys in a browser."""

import time

import pytest
from json_lines import column_of, lines
from reviews import Card, deck_of, label, looked_at, write_labels

pytestmark = pytest.mark.slow


@pytest.fixture
def animals(tmp_path):
    """Writes a card of 120 images; returns which of them show an animal."""
    card = Card(tmp_path, count=120, share=0.5)
    card.write_images()
    return card.animals


@pytest.fixture
def promise(invoke, animals, tmp_path):
    """Run detcli promise in the folder with the card."""
    assert animals

    def run(*words):
        completed = invoke("promise", words, cwd=tmp_path)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run


DEAL = "deal boxes.jsonl -o review --classes animal --lost 10% --expect 30% --rounds 1 --misses 0"


def shown_source(browser):
    """The unit that is asked for, when its images are there; None at the end of the round."""
    browser.wait(
        "return !document.getElementById('stage').checkVisibility()"
        " || [...document.querySelectorAll('#stage .frame')]"
        ".every((frame) => frame.children.length)"
    )
    return browser.run(
        "return document.getElementById('stage').checkVisibility() ? review.shown[0].source : null"
    )


def answer_all(browser, animals):
    """Answer each look by the truth, the first only after an undo and the second when asked again.

    Returns the sources in the order in which they were asked.
    """
    sources = [shown_source(browser)]
    browser.press("f")
    browser.press("z")
    while sources[-1] is not None:
        if len(sources) == 2:
            browser.press("u")
        else:
            browser.press("fj"[not animals[sources[-1]]])
        sources.append(shown_source(browser))
    return sources[:-1]


def saved(browser, folder, name):
    """Press the key that saves, and wait for the file of labels."""
    browser.run("window.showSaveFilePicker = undefined")
    downloads = {"behavior": "allow", "downloadPath": str(folder)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", downloads)
    browser.press("s")
    browser.wait("return document.getElementById('saved').textContent.endsWith('saved')")
    path = folder / name
    for _ in range(200):  # the browser writes it a little later
        if path.exists():
            break
        time.sleep(0.05)
    return path


def test_a_review_is_answered_with_keys_and_checked(browser, promise, animals, tmp_path):
    promise(DEAL.split(), "--repeat", "10%", "--seed", "3")
    browser.open(tmp_path / "review", "?who=anna")
    sources = answer_all(browser, animals)
    names = looked_at(tmp_path / "review", 1)
    assert set(sources) == set(names)
    repeats = len(deck_of(tmp_path / "review")["repeat"])
    assert repeats == round(len(names) / 10)
    assert len(sources) == len(names) + repeats + 1
    assert sources[-1] == sources[1]  # the unsure one
    assert browser.text("#end-title") == "Round 1 is complete"
    command = browser.find("#command").get_attribute("value").split()
    assert command[:3] == ["detcli", "promise", "check"]
    path = saved(browser, tmp_path, command[-1])
    printed = promise("check", "review", path)
    assert printed.startswith("--conf ")
    assert f"0 of {repeats} repeats were answered differently" in printed
    assert "animals were seen in 20 of 20 best-scoring units" in printed


def test_what_is_disputed_is_decided_on_a_page_of_its_own(browser, promise, animals, tmp_path):
    promise(DEAL.split(), "--repeat", "0", "--seed", "3")
    review = tmp_path / "review"
    names = looked_at(review, 1)
    labels_of_anna = []
    for name in names:
        labels_of_anna.append(label(name, int(animals[name])))
    write_labels(tmp_path / "anna.jsonl", labels_of_anna)
    labels_of_ben = []
    for name in names[:2]:
        labels_of_ben.append(label(name, 1 - int(animals[name]), who="ben"))
    write_labels(tmp_path / "ben.jsonl", labels_of_ben)
    printed = promise("check", "review", "anna.jsonl", "ben.jsonl")
    assert "2 answered differently: decide them in review/disputed/index.html" in printed
    browser.open(review / "disputed", "?who=cleo")
    assert browser.run("return review.looks.size") == 2
    while (source := shown_source(browser)) is not None:
        browser.wait("return [...document.images].every((image) => image.naturalWidth > 0)")
        browser.press("fj"[not animals[source]])
    path = saved(browser, tmp_path, "labels-cleo.jsonl")
    assert set(column_of(lines(path.read_text()), "pass")) == {3}
    assert "differently: decide" not in promise("check", "review/disputed", path)
