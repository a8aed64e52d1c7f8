"""`--format megadetector` of predict, and what the other commands make of its file."""

import json

import megadetector_rules
import number_video
import pages
import pytest
from colour_model import image
from json_lines import records_with
from saved_records import report_of


@pytest.fixture
def cards(predict, make_image, tmp_path):
    """A folder of memory cards, with a video, damaged files and the results of a run."""
    make_image("cards/site 1/a.jpg", ("red", 2, 3))
    make_image("cards/site 1/b.jpg")
    (tmp_path / "cards/torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "cards/torn.mp4").write_bytes(b"nothing")
    video = number_video.open_writer(tmp_path / "cards/film.mp4", (64, 64))
    for _ in range(4):
        video.write(image(("blue", 2, 2)))
    video.release()
    options = "-r --conf 0.5 --format megadetector --base cards -o results.json"
    predict(f"cards {options}", code=3)
    return tmp_path / "cards"


def test_the_file_keeps_the_rules_and_names_files_below_the_base(cards, tmp_path):
    content = megadetector_rules.read_valid(tmp_path / "results.json")
    entries = {entry["file"]: entry for entry in content["images"]}
    assert set(entries) == {"site 1/a.jpg", "site 1/b.jpg", "torn.png", "torn.mp4", "film.mp4"}
    for file_name in entries:
        assert (cards / file_name).is_file()
    assert len(entries["site 1/a.jpg"]["detections"]) == 1
    assert entries["site 1/b.jpg"]["detections"] == []
    assert entries["torn.png"]["detections"] is None
    assert entries["torn.mp4"]["detections"] is None
    assert entries["film.mp4"]["frame_rate"] == 10
    assert entries["film.mp4"]["frames_processed"] == [0, 1, 2, 3]
    assert content["detection_categories"] == {"1": "red", "2": "green", "3": "blue"}
    assert content["info"]["detector"] == "colours"
    assert content["info"]["detector_metadata"]["conservative_detection_threshold"] == 0.5


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a.png --base .", "--base needs --format"),
        ("a.png --base . --format csv", "--base is not used by the format csv"),
        ("a.png --base pics --format megadetector", "a.png is not below --base pics"),
        ("camera:0 --format megadetector", "camera:0 is a live stream"),
        ("a.png --base . --format megadetector -o boxes/", "--base"),
        ("a.png --provenance --format megadetector", "--provenance is not part"),
    ],
)
def test_what_the_format_cannot_have_is_refused_before_the_run(predict, line, says):
    predict(line, code=2, says=says)


@pytest.mark.usefixtures("cards")
def test_a_page_shows_the_results(invoke, tmp_path):
    completed = invoke("report", "results.json", "--images", "cards", "-o", "page", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "not found" not in completed.stderr
    entries = pages.entries(tmp_path / "page")
    assert len(entries) == 8
    assert len(records_with(entries, "picture")) == 6
    assert len(records_with(entries, "error")) == 2


@pytest.mark.usefixtures("cards")
def test_images_beside_the_results_are_found(invoke, tmp_path):
    (tmp_path / "results.json").rename(tmp_path / "cards/results.json")
    completed = invoke("report", "cards/results.json", "-o", "page", cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    entries = pages.entries(tmp_path / "page")
    assert len(records_with(entries, "picture")) == 6


@pytest.mark.usefixtures("cards")
def test_results_on_standard_input_are_recognised(detcli, tmp_path):
    text = (tmp_path / "results.json").read_text()
    completed = detcli("report", "-", "-o", "page", cwd=tmp_path, input=text)
    assert completed.returncode == 0, completed.stderr
    assert len(pages.entries(tmp_path / "page")) == 8


@pytest.mark.usefixtures("cards")
def test_results_without_sizes_take_those_of_the_images(invoke, tmp_path):
    content = json.loads((tmp_path / "results.json").read_text())
    for entry in content["images"]:
        entry.pop("width", None)
        entry.pop("height", None)
    (tmp_path / "small.json").write_text(json.dumps(content))
    for name in ("results", "small"):
        options = ["--images", "cards", "-o", f"{name}.csv"]
        completed = invoke("merge", f"{name}.json", options, cwd=tmp_path)
        assert completed.returncode == 3, completed.stderr
    assert (tmp_path / "small.csv").read_text() == (tmp_path / "results.csv").read_text()


@pytest.mark.usefixtures("cards")
def test_results_whose_images_are_elsewhere_say_what_to_do(invoke, tmp_path):
    text = (tmp_path / "results.json").read_text().replace('"width"', '"w"')
    (tmp_path / "small.json").write_text(text)
    completed = invoke("merge", "small.json", "-o", "boxes.csv", cwd=tmp_path)
    assert completed.returncode == 2
    assert "small.json has no width and height of film.mp4" in completed.stderr
    assert "--images" in completed.stderr
    assert not (tmp_path / "boxes.csv").exists()


@pytest.mark.usefixtures("cards")
def test_results_agree_with_the_records_of_the_same_run(predict, invoke, tmp_path):
    predict("cards -r --conf 0.5 -q -o boxes.jsonl", code=3)
    completed = invoke("verify", "boxes.jsonl", "results.json", "--format", "json", cwd=tmp_path)
    assert completed.returncode == 3, completed.stderr
    report = report_of(completed)
    assert report["agree"] is True
    assert report["compared"] == 6


@pytest.mark.usefixtures("cards")
def test_records_become_the_file_of_a_run(predict, invoke, tmp_path):
    """All but what only the run knows: its confidence and classes that it did not find."""
    predict("cards -r --conf 0.5 -q -o boxes.jsonl", code=3)
    options = ["--format", "megadetector", "--base", "cards", "-o", "later.json"]
    completed = invoke("merge", "boxes.jsonl", options, cwd=tmp_path)
    assert completed.returncode == 3, completed.stderr
    later = megadetector_rules.read_valid(tmp_path / "later.json")
    content = megadetector_rules.read_valid(tmp_path / "results.json")
    assert later["images"] == content["images"]
    assert later["detection_categories"] == {"1": "red", "3": "blue"}


@pytest.mark.usefixtures("cards")
def test_results_are_nothing_to_resume(predict):
    line = "a.png --resume results.json"
    completed = predict(line, code=2, says="line 1 is not a record")
    assert "cannot be continued" in completed.stderr


@pytest.mark.usefixtures("cards")
def test_a_file_is_not_written_over_itself(invoke, tmp_path):
    before = (tmp_path / "results.json").read_bytes()
    completed = invoke("merge", "results.json", "-o", "results.json", cwd=tmp_path)
    assert completed.returncode == 2
    assert (tmp_path / "results.json").read_bytes() == before
