"""What a page shows of a run that goes on, was cut off, or is compared."""

import shutil

import pytest
from pages import box, failure, grey, make, record_of

from detcli.page import folder as folders
from detcli.page import thumbnails
from detcli.page.entries import BoxKind, PageBox
from detcli.page.page import Conclusion, Page, PageTable
from detcli.page.run_info import RunInfo

pytestmark = pytest.mark.slow


def test_a_run_that_goes_on_or_was_cut_off_says_so(browser, tmp_path):
    page = Page(tmp_path / "page", RunInfo("predict"))
    page.add(record_of("a.jpg", [box()]), grey)
    browser.open(tmp_path / "page")
    assert browser.text("#title") == "1 image, 1 detection"
    assert browser.text("#state").startswith("The run is still going on, or was cut off")
    page.close()
    browser.open(tmp_path / "page")
    assert browser.text("#state") == ""


def test_what_is_damaged_is_said_and_the_rest_is_shown(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "CHUNK_RECORDS", 2)
    page = make(tmp_path / "page", [record_of(f"{number}.jpg") for number in range(6)])
    (page / "data/0.js").write_text('add({"sour')
    (page / "data/1.js").unlink()
    (page / "thumbnails/0/0.js").write_text('thumbnail("0/0/4", "/9j')
    (page / "pictures/0/0/4.jpg").unlink()
    chromium.open(page)
    assert chromium.names() == ["4.jpg", "5.jpg"]
    assert chromium.text("#state") == "2 parts of the records cannot be read"
    chromium.wait("return document.querySelector('.missing')")
    assert chromium.text(".missing") == "The image cannot be shown"


ARE_ALL_LOADED = """
return [...document.querySelectorAll(".tile img")].every((image) => image.naturalWidth);
"""
SOURCE_STARTS = """
return [...document.querySelectorAll(".tile img")].map((image) => image.src.slice(0, 23));
"""


def test_where_a_pack_has_lost_a_thumbnail_the_copy_is_shown(browser, tmp_path):
    page = make(tmp_path / "page", [record_of("0.jpg"), record_of("1.jpg")])
    pack = page / "thumbnails/0/0.js"
    first_line = pack.read_text().splitlines(keepends=True)[0]
    pack.write_text(first_line)
    browser.open(page)
    assert "pictures/0/0/1.jpg" in browser.requests()
    assert browser.run(SOURCE_STARTS)[0] == "data:image/jpeg;base64,"
    assert browser.wait(ARE_ALL_LOADED)


def test_packs_are_let_go_and_loaded_again(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(thumbnails, "PACK_IMAGES", 1)
    page = make(tmp_path / "page", [record_of(f"{number:03}.jpg") for number in range(200)])
    browser.open(page, width=500)
    pack_paths = "return [...packs.loaded.keys()]"
    assert browser.run(pack_paths)[0] == "thumbnails/0/0.js"
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    browser.wait("return packs.loaded.has('thumbnails/0/199.js')")
    browser.settle()
    assert len(browser.run(pack_paths)) <= browser.run("return MAX_PACKS")
    browser.requests()
    browser.run("window.scrollTo(0, 0)")
    browser.wait("return document.querySelector('.tile[aria-posinset=\"1\"] img')?.naturalWidth")
    assert browser.run("return packs.loaded.has('thumbnails/0/0.js')")


def test_a_page_with_a_file_for_each_thumbnail_still_opens(browser, tmp_path):
    page = make(tmp_path / "page", [record_of("old.jpg")])
    (page / "thumbnails/0/0.js").unlink()
    old_thumbnail = page / "thumbnails/0/0/0.jpg"
    old_thumbnail.parent.mkdir()
    shutil.copy(page / "pictures/0/0/0.jpg", old_thumbnail)
    runs = page / "data/runs.js"
    runs.write_text(runs.read_text().replace("runs(2", "runs(1").replace(',"packed":true', ""))
    resumed = Page(page, RunInfo("predict"), resumed=True)
    resumed.add(record_of("new.jpg", [box()]), grey)
    resumed.close()
    browser.open(page)
    assert browser.names() == ["old.jpg", "new.jpg"]
    requests = browser.requests()
    assert "thumbnails/0/0/0.jpg" in requests
    assert "thumbnails/1/0.js" in requests
    assert browser.wait(ARE_ALL_LOADED)


def test_a_run_that_goes_on_replaces_what_failed_but_not_standard_input(browser, tmp_path):
    records = [record_of("a.jpg", [box()]), failure("b.jpg"), record_of("a.jpg", [box(1)])]
    make(tmp_path / "page", records + [record_of("-", [box()])])
    page = Page(tmp_path / "page", RunInfo("predict"), resumed=True)
    page.add(record_of("b.jpg", [box(2)]), grey)
    page.add(record_of("c.jpg", [box(1)]), grey)
    page.add(record_of("-", [box()]), grey)
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
    agreeing = PageBox(0, "person", 0.9, (1, 1, 9, 9), 0)
    missing = PageBox(1, "car", None, (5, 5, 30, 30), 1)
    moved = PageBox(0, "person", 0.9, (1, 1, 9, 9), 1, (0.8, (2, 2, 9, 9)))
    columns = ["class", "false positives", "AP"]
    table = PageTable("By class", columns, [["person", 1200, 0.5], ["car", 0, None]])
    page = make(
        tmp_path / "page",
        [record_of("a.jpg"), record_of("b.jpg"), record_of("c.jpg")],
        RunInfo("verify", kinds=kinds),
        boxes=[[agreeing], [agreeing, missing], [moved]],
        conclusion=Conclusion(["2 boxes are missing"], [table]),
    )
    browser.open(page)
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
    browser.show(page, "#picture=2")
    assert browser.texts("#viewer-found tbody tr") == [
        "person missing, 1.0 pixels apart 0.90 → 0.80 1, 1 to 9, 9"
    ]
    assert browser.run("return document.querySelectorAll('#stage .other').length") == 1
    browser.show(page, "#view=figures")
    rows = browser.texts("#view-figures table.figures tr")
    assert rows == ["class false positives AP", "person 1,200 0.500", "car 0 -"]
