"""`detcli predict --provenance`: records say what made them."""

import getpass
import hashlib
import json
import platform

import pytest
from json_lines import column_of, lines, records_by_source, records_with
from report_schemas import validator

from detcli import __version__
from detcli.source.reading import load_file


@pytest.fixture
def run_with_provenance(predict, make_image, make_video, tmp_path):
    """Run over two images, a video and a damaged one into a file; returns its records."""
    make_image("pics/b.png", ("red", 2, 3))
    make_image("pics/c.png")
    (tmp_path / "pics/torn.png").write_bytes((tmp_path / "pics/b.png").read_bytes()[:60])
    make_video("pics/a.mp4", frames=3)

    def run(name, *options, code=3):
        output_option = "-o"
        if name == "run.jsonl":
            output_option = "--resume"
        predict("pics", output_option, name, options, code=code)
        text = (tmp_path / name).read_text()
        if name.endswith(".json"):
            return json.loads(text)
        return lines(text)

    return run


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_first_record_says_what_made_the_run_and_each_its_file(run_with_provenance, tmp_path):
    records = run_with_provenance("a.jsonl", "--provenance", "--device", "cpu")
    first = records[0]
    other_records = records[1:]
    in_an_array = run_with_provenance("a.json", "--provenance", "--device", "cpu")
    assert in_an_array[0]["provenance"].keys() == first["provenance"].keys()
    assert in_an_array[1:] == other_records
    for record in records:
        validator("predict").validate(record)
        assert record["sha256"] == sha256(tmp_path / record["source"])
    assert len(other_records) == 5
    for record in other_records:
        assert record.keys().isdisjoint({"settings", "provenance"})
    assert first["settings"]["model_sha256"] == sha256(tmp_path / "colours.onnx")
    provenance = first["provenance"]
    assert provenance["detcli"] == __version__
    assert provenance["python"] == platform.python_version()
    assert provenance["precision"] == "float32"
    assert provenance["gpu"] is None
    assert provenance["driver"] is None
    assert provenance["openvino"] is None
    assert {provenance["onnxruntime"], provenance["opencv"], provenance["numpy"]}.isdisjoint({None})
    words = []
    for value in provenance.values():
        words.extend(str(value).lower().split())
    personal_names = {platform.node(), getpass.getuser()}
    for name in personal_names - {"localhost", platform.system().lower()}:
        assert name.lower() not in words
    for record in records:
        for field in ("sha256", "file_stamp", "settings", "provenance"):
            record.pop(field, None)
    assert records == run_with_provenance("b.jsonl", "--device", "cpu")


@pytest.mark.parametrize(
    ("options", "unique"), [("", False), ("--unique", True), ("--nms 0.5", True)]
)
def test_the_settings_say_whether_an_anchor_gives_one_detection(predict, options, unique):
    (record,) = predict(f"a.png --provenance {options}").records
    assert record["settings"]["unique"] is unique


def test_the_settings_say_whether_classes_suppress_each_other(predict):
    (record,) = predict("a.png --provenance --nms 0.5 --agnostic-nms").records
    assert record["settings"]["agnostic_nms"] is True
    validator("predict").validate(record)
    (record,) = predict("a.png --provenance --nms 0.5").records
    assert "agnostic_nms" not in record["settings"]


def test_a_journal_goes_on_only_if_classes_suppress_each_other_as_before(predict, make_images):
    make_images(2)
    predict("--resume by_class.jsonl pics --nms 0.5")
    says = "agnostic_nms false instead of true"
    predict("--resume by_class.jsonl pics --nms 0.5 --agnostic-nms", code=2, says=says)
    predict("--resume all.jsonl pics --nms 0.5 --agnostic-nms")
    predict("--resume all.jsonl pics --nms 0.5 --agnostic-nms")
    says = "agnostic_nms true instead of false"
    predict("--resume all.jsonl pics --nms 0.5", code=2, says=says)


def test_what_compares_no_boxes_says_what_to_add(predict):
    completed = predict("a.png --agnostic-nms", code=2, says="no boxes are compared")
    assert "with --nms 0.7" in completed.stderr


def test_each_run_of_a_journal_says_it(run_with_provenance, make_image, tmp_path):
    """The record that says it is dropped with the second run, if it is an error."""
    images = tmp_path / "pics"
    for name in ("a.mp4", "b.png", "c.png"):
        (images / name).rename(tmp_path / name)
    run_with_provenance("run.jsonl", "--provenance")
    (images / "b.png").write_bytes((tmp_path / "b.png").read_bytes())
    records = run_with_provenance("run.jsonl", "--provenance")
    (with_detections,) = records_with(records, "detections")
    assert with_detections.keys() >= {"settings", "provenance", "sha256"}
    make_image("pics/d.png")
    records = run_with_provenance("run.jsonl")
    assert column_of(records_with(records, "provenance"), "source") == ["pics/b.png"]


def test_the_head_of_a_run_goes_to_the_next_record(run_with_provenance, make_image, tmp_path):
    (tmp_path / "pics/a.mp4").unlink()
    (tmp_path / "pics/torn.png").rename(tmp_path / "pics/a.png")
    first, second, _ = run_with_provenance("run.jsonl", "--provenance")
    assert "error" in first
    provenance = first["provenance"]
    make_image("pics/a.png")
    by_source = records_by_source(run_with_provenance("run.jsonl", code=0))
    assert second["source"] == "pics/b.png"
    assert by_source.keys() == {"pics/a.png", "pics/b.png", "pics/c.png"}
    assert by_source["pics/b.png"]["provenance"] == provenance
    assert "provenance" not in by_source["pics/a.png"]
    assert "provenance" not in by_source["pics/c.png"]


def test_an_image_is_the_one_that_was_looked_at(predict, make_image, tmp_path, monkeypatch):
    """Each is replaced as soon as it has been read: what is written is of what was read."""
    contents = {}
    digests = []
    for number in range(4):
        name = f"{number}.png"
        content = make_image(name, ("red", 2, number)).read_bytes()
        contents[name] = content
        digests.append(hashlib.sha256(content).hexdigest())
    replacement = make_image("other.png", ("blue", 5, 5)).read_bytes()

    def loaded(path, options):
        image = load_file(path, options)
        (tmp_path / path).write_bytes(replacement)
        return image

    monkeypatch.setattr("detcli.source.sources.load_file", loaded)
    completed = predict("--conf 0.6 --provenance --save-dataset set", list(contents))
    assert column_of(completed.records, "sha256") == digests
    for name, data in contents.items():
        assert (tmp_path / name).read_bytes() == replacement
        assert (tmp_path / "set/images" / name).read_bytes() == data
