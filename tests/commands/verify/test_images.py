"""The page of a verification: what is missing, extra or moved."""

import pages
import pytest
from folders import contents_of

from detcli.commands.verify.report import SideReport
from detcli.commands.verify.tables import side_names


@pytest.fixture
def compare_images(verify, make_model, compared_images, tmp_path):
    (compared_images / "torn.png").write_bytes((compared_images / "a.png").read_bytes()[:60])

    def run(*options):
        page = tmp_path / "page"
        common = ["--images", compared_images, "--conf", 0.6, "-q", "--report", page]
        completed = verify(make_model(), options, common)
        return completed.returncode, pages.entries(page), pages.runs(page)[0]

    return run


def kinds_of(entries, run):
    kinds = []
    for entry in entries:
        if "found" in entry:
            kinds.append(pages.kinds_of_boxes(run, entry))
    return kinds


def test_sides_that_agree(compare_images, make_model):
    code, entries, run = compare_images(make_model("same.onnx"))
    assert code == 3  # for the torn image
    assert kinds_of(entries, run) == [["on both sides"], ["on both sides"] * 2]
    for entry in entries[:2]:
        for row in entry["found"]:
            assert row[2:6] == row[8:12]
    assert "error" in entries[2]
    verdict, left, right = run["summary"]
    assert verdict == "the two sides agree"
    assert run["agree"] is True
    assert left.startswith("left: colours.onnx on cpu, float32, selection by detcli")
    assert right.startswith("right: same.onnx on cpu")
    assert run["sides"] == ["colours.onnx", "same.onnx"]
    assert run["state"] == "complete"
    facts = dict(run["facts"])
    assert facts["left model"] == "colours.onnx"
    assert facts["right model"] == "same.onnx"
    assert len(facts["left sha256"]) == 64


def test_sides_that_differ(compare_images, broken, tmp_path):
    code, entries, run = compare_images(broken)
    assert code == 6
    assert kinds_of(entries, run)[0] == ["only colours.onnx", "only broken.onnx"]
    assert "100.00% of 6 boxes disagree" in run["summary"][0]
    assert run["agree"] is False
    classes, (title, columns, rows, entry_numbers) = run["tables"]
    assert classes[1][4] == "only broken.onnx"
    assert title == "Worst images"
    assert columns[0] == "image"
    assert columns[-1] == "extra"
    assert sorted(entry_numbers) == [[0], [1]]
    assert rows[0][0] == entries[entry_numbers[0][0]]["source"].split("/")[-1]
    assert len(pages.images(tmp_path / "page")) == 2


def test_two_sides_of_one_model_are_told_apart_by_what_differs():
    def named(**fields):
        return side_names(SideReport("a/m.onnx"), SideReport("b/m.onnx", **fields))

    assert side_names(SideReport("a.onnx"), SideReport("b.onnx")) == ("a.onnx", "b.onnx")
    assert named(device="cpu") == ("m.onnx, unknown", "m.onnx, cpu")
    assert named() == ("m.onnx, left", "m.onnx, right")


def test_a_refused_run_leaves_the_page(
    verify, compare_images, make_model, compared_images, tmp_path
):
    same_model = make_model("same.onnx")
    compare_images(same_model)
    page = tmp_path / "page"
    before = contents_of(page)

    common = ["--images", compared_images, "--report", page]
    assert verify(make_model(), same_model, "--imgsz", 333, common).returncode == 2
    assert contents_of(page) == before
    assert verify(make_model(), "missing.onnx", common).returncode == 4
    assert contents_of(page) == before


def test_the_page_has_its_folder_for_itself(verify, make_model, compared_images, tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    options = ["--images", compared_images, "--report", page, "--certificate", page / "c.json"]
    completed = verify(make_model(), make_model("same.onnx"), options)
    assert completed.returncode == 2
    assert "the folder of the page, which holds nothing else" in completed.stderr
    assert list(page.iterdir()) == []
