"""The page in one file: limits, what it replaces, and what commands make of it."""

import re

import numpy as np
import pytest
from folders import names_in
from pages import PREDICT, box, grey, make, record_of

from detcli.core.errors import OutputError, UsageError
from detcli.page import one_file
from detcli.page.one_file import PageFile, address_of_page, is_one_file, open_page
from detcli.page.page import Page, PageImage


def test_the_path_says_whether_a_page_is_one_file(tmp_path):
    assert is_one_file(tmp_path / "page.html")
    assert is_one_file(tmp_path / "PAGE.HTM")
    assert not is_one_file(tmp_path / "page")
    (tmp_path / "folder.html").mkdir()
    assert not is_one_file(tmp_path / "folder.html")
    assert address_of_page(tmp_path / "page.html") == tmp_path / "page.html"
    assert address_of_page(tmp_path / "folder.html") == tmp_path / "folder.html/index.html"


def test_all_code_is_in_the_file_and_its_policy_names_it(tmp_path):
    text = make(tmp_path / "new/page.html", [record_of("a.jpg", [box()])]).read_text("utf-8")
    assert names_in(tmp_path / "new") == ["page.html"]
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text.split("<script>")[0]) == []
    assert 'src="files/' not in text
    (policy,) = re.findall(r"default-src[^\"]*", text)
    assert "unsafe" not in policy
    assert "file:" not in policy
    assert policy.count("sha256-") == text.count("<script>") + text.count("<style>")


def test_more_images_than_one_file_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "MAX_IMAGES", 2)
    path = make(tmp_path / "page.html", [record_of("earlier.jpg", [box()])])
    page = Page(path, PREDICT)
    page.add(record_of("a.jpg", [box()]), grey)
    page.add(record_of("without.jpg"), None)
    page.add(record_of("b.jpg", [box()]), grey)
    with pytest.raises(OutputError, match="would have more than 2 images") as caught:
        page.add(record_of("c.jpg", [box()]), grey)
    for advice in ("--sample", "--only-detections", str(tmp_path / "page")):
        assert advice in caught.value.hint
    page.close()
    assert "earlier.jpg" in path.read_text("utf-8")  # the earlier page stays


def test_more_bytes_than_one_file_may_have_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "MAX_BYTES", 2_000_000)
    path = tmp_path / "page.html"
    page = Page(path, PREDICT)
    noise = np.random.default_rng(0).integers(0, 255, (300, 480, 3), np.uint8)

    def add_all():
        for number in range(500):
            page.add(record_of(f"{number}.jpg"), lambda: PageImage(noise))

    with pytest.raises(OutputError, match="more than 2 MB"):
        add_all()
    page.close()
    assert not path.exists()


def test_a_run_that_is_stopped_leaves_what_it_has(tmp_path):
    path = tmp_path / "page.html"

    def run():
        page = Page(path, PREDICT)
        try:
            page.add(record_of("a.jpg", [box()]), grey)
            raise KeyboardInterrupt
        finally:
            page.close()

    with pytest.raises(KeyboardInterrupt):
        run()
    text = path.read_text("utf-8")
    assert '"state":"stopped"' in text
    assert "a.jpg" in text


def test_nothing_but_a_page_is_replaced(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("<h1>mine</h1>")
    with pytest.raises(UsageError, match="is not a page of detcli"):
        Page(path, PREDICT)
    path.unlink()
    make(path, [record_of("first.jpg")])
    make(path, [record_of("second.jpg")])
    assert "first.jpg" not in path.read_text("utf-8")
    with pytest.raises(UsageError, match="is one of the inputs"):
        Page(path, PREDICT, {path})


def test_without_a_record_nothing_is_written(tmp_path):
    PageFile(tmp_path / "page.html").close()
    assert list(tmp_path.iterdir()) == []


def test_what_one_file_cannot_do_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--resume cannot add to ") as caught:
        open_page(tmp_path / "page.html", resumed=True)
    assert str(tmp_path / "page") in caught.value.hint
    with pytest.raises(UsageError, match="--report-link would leave the images out"):
        open_page(tmp_path / "page.html", linked=True)


def test_images_of_a_video_that_are_dropped_are_not_in_the_file(tmp_path, monkeypatch):
    from detcli.page import page as module

    monkeypatch.setattr(module, "VIDEO_IMAGES", 4)
    records = [
        record_of("a.mp4", [box()], frame=number, time_s=float(number)) for number in range(16)
    ]
    text = make(tmp_path / "page.html", records).read_text("utf-8")
    (images,) = re.findall(r"inlined.images = (\{.*\});", text)
    assert images.count(":") == 4


def test_predict_and_report_write_it(invoke, make_model, make_image, tmp_path):
    make_image("a.png", ("red", 2, 3))
    make_image("b.png")
    make_model("colours.onnx")
    detect = ["predict", "a.png", "b.png", "-m", "colours.onnx", "-o", "boxes.jsonl"]
    completed = invoke(*detect, "--report", "sent/page.html", cwd=tmp_path)
    assert completed.returncode == 0
    assert "wrote 2 records to the page sent/page.html" in completed.stderr
    completed = invoke("report", "boxes.jsonl", "-o", "later.html", cwd=tmp_path)
    assert completed.returncode == 0
    assert "later.html" in completed.stderr
    assert '"command":"report"' in (tmp_path / "later.html").read_text("utf-8")
    completed = invoke(*detect, "--report", "linked.html", "--report-link", cwd=tmp_path)
    assert completed.returncode == 2
    assert not (tmp_path / "linked.html").exists()
