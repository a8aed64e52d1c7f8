"""`detcli predict --resume`: images that were exchanged under their old names."""

import os
import shutil
import tarfile

import optional
import pytest
from json_lines import column_of, lines, records_by_source, text_of

LATER_S = 3_000_000_000  # no file that a test writes has this time by itself


def set_time(path, seconds):
    os.utime(path, (seconds, seconds))


@pytest.fixture
def resume_changed(predict, tmp_path):
    """Run over inputs with `--resume run.jsonl`; returns the result, with the journal's records."""

    def run(line, code=0, says=""):
        result = predict(f"--resume run.jsonl --conf 0.5 {line}", code=code, says=says)
        result.records = lines((tmp_path / "run.jsonl").read_text())
        return result

    return run


def classes(record):
    return column_of(record["detections"], "class_name")


def classes_by_source(records):
    return {record["source"]: classes(record) for record in records}


def test_an_exchanged_image_is_processed_again_and_said(resume_changed, make_image):
    make_image("pics/1.png", ("red", 2, 3))
    make_image("pics/2.png", ("red", 2, 3))
    resume_changed("pics")
    set_time(make_image("pics/1.png", ("blue", 1, 1)), LATER_S)

    result = resume_changed(
        "pics", says="run.jsonl: 1 input processed again, as their files have changed"
    )

    assert "changed: pics/1.png\n" in result.stderr
    assert "it had 1 input already" in result.stderr
    expected_classes = {"pics/1.png": ["blue"], "pics/2.png": ["red"]}
    assert classes_by_source(result.records) == expected_classes
    assert len(result.records) == 2
    assert "changed" not in resume_changed("pics").stderr


def test_the_journal_is_then_what_a_new_run_would_write(resume_changed, make_image, tmp_path):
    for number in range(4):
        make_image(f"pics/{number}.png", ("red", number, 3))
    resume_changed("pics")
    for number in (0, 2):
        set_time(make_image(f"pics/{number}.png", ("green", number, 1)), LATER_S)
    changed = resume_changed("pics").records
    (tmp_path / "run.jsonl").unlink()
    new = resume_changed("pics").records

    by_source = records_by_source(changed)
    for record in new:
        new_record = by_source.pop(record["source"])
        record.pop("settings", None)
        new_record.pop("settings", None)
        assert new_record == record
    assert by_source == {}


def test_a_new_time_or_a_new_size_alone_counts(resume_changed, make_image):
    path = make_image("a.png", ("red", 2, 3))
    status = path.stat()
    resume_changed("a.png")

    set_time(path, LATER_S)
    assert "1 input processed again" in resume_changed("a.png").stderr

    path.write_bytes(path.read_bytes() + b"\0")
    set_time(path, LATER_S)
    (record,) = resume_changed("a.png").records
    assert record["file_stamp"] == f"{status.st_size + 1}-{LATER_S}000000"


def test_an_exchanged_image_that_is_damaged_loses_its_old_boxes(resume_changed, make_image):
    path = make_image("a.png", ("red", 2, 3))
    resume_changed("a.png")
    path.write_bytes(b"torn")
    (record,) = resume_changed("a.png", code=3).records
    assert record["error"]["type"] == "DecodeError"
    make_image("a.png", ("blue", 2, 3))
    (record,) = resume_changed("a.png").records
    assert classes(record) == ["blue"]


def test_an_image_that_is_gone_keeps_its_record(resume_changed, make_image, tmp_path):
    make_image("a.png", ("red", 2, 3))
    (tmp_path / "list").write_text("a.png\n")
    resume_changed("--files-from list")
    (tmp_path / "a.png").unlink()
    (record,) = resume_changed("--files-from list").records
    assert classes(record) == ["red"]


def test_records_of_inputs_that_are_not_given_stay(resume_changed, make_image):
    make_image("one/1.png", ("red", 2, 3))
    make_image("two/1.png", ("red", 2, 3))
    resume_changed("one")
    set_time(make_image("one/1.png", ("blue", 2, 3)), LATER_S)
    records = resume_changed("two").records
    assert column_of(records, "source") == ["one/1.png", "two/1.png"]


def test_an_image_named_twice_is_processed_twice(resume_changed, make_image):
    path = make_image("a.png", ("red", 2, 3))
    resume_changed("a.png a.png")
    set_time(make_image("a.png", ("blue", 2, 3)), LATER_S)
    first, second = resume_changed("a.png a.png").records
    assert classes(first) == ["blue"]
    assert classes(second) == ["blue"]
    assert path.exists()


def test_a_shorter_video_under_the_old_name_leaves_no_frame_of_the_old_one(
    resume_changed, make_video
):
    make_video("film.mp4", frames=9)
    resume_changed("film.mp4")
    set_time(make_video("film.mp4", frames=4), LATER_S)
    result = resume_changed("film.mp4", says="1 input processed again")
    assert column_of(result.records, "frame") == [0, 1, 2, 3]
    assert "again" not in resume_changed("film.mp4").stderr


def test_the_images_of_an_exchanged_archive_are_processed_again(
    resume_changed, make_image, tmp_path
):
    def pack(square):
        make_image("1.png", square)
        with tarfile.open(tmp_path / "pics.tar", "w") as archive:
            archive.add(tmp_path / "1.png", "1.png")

    pack(("red", 2, 3))
    resume_changed("pics.tar")
    pack(("blue", 2, 3))
    set_time(tmp_path / "pics.tar", LATER_S)
    (record,) = resume_changed("pics.tar", says="pics.tar/1.png").records
    assert classes(record) == ["blue"]


def test_a_journal_of_an_earlier_version_is_gone_on_with_and_said_once(
    resume_changed, make_image, tmp_path
):
    for number in range(3):
        make_image(f"pics/{number}.png", ("red", 2, 3))
    journal = tmp_path / "run.jsonl"
    records = resume_changed("pics").records
    for record in records:
        del record["file_stamp"]
    journal.write_text(text_of(records))
    make_image("pics/1.png", ("blue", 2, 3))

    result = resume_changed(
        "pics", says="run.jsonl: 3 inputs skipped without a check for changes: their records"
    )

    assert result.stderr.count("skipped without a check") == 1
    assert result.records == records


def test_a_kill_before_the_end_leaves_no_record_twice(resume_changed, make_image, monkeypatch):
    from detcli.sink.journal import Journal

    for number in range(3):
        make_image(f"pics/{number}.png", ("red", 2, 3))
    resume_changed("pics")
    set_time(make_image("pics/1.png", ("blue", 2, 3)), LATER_S)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_keep_only", lambda *_: None)
        interrupted = resume_changed("pics").records
    assert interrupted[-1]["replaces"] == interrupted[1]["file_stamp"]

    records = resume_changed("pics", says="it had 3 inputs already").records

    expected_classes = {"pics/0.png": ["red"], "pics/1.png": ["blue"], "pics/2.png": ["red"]}
    assert classes_by_source(records) == expected_classes
    assert len(records) == 3
    for record in records:
        assert "replaces" not in record


def test_the_settings_stay_when_the_first_record_is_replaced(resume_changed, make_image):
    for number in range(2):
        make_image(f"pics/{number}.png", ("red", 2, 3))
    settings = resume_changed("pics").records[0]["settings"]
    set_time(make_image("pics/0.png", ("blue", 2, 3)), LATER_S)
    first = resume_changed("pics").records[0]
    assert first["source"] == "pics/1.png"
    assert first["settings"] == settings


def test_a_link_to_another_image_is_another_image(resume_changed, make_image, tmp_path):
    make_image("1.png", ("red", 2, 3))
    set_time(make_image("2.png", ("blue", 2, 3)), LATER_S)
    link = tmp_path / "latest.png"
    link.symlink_to("1.png")
    resume_changed("latest.png")
    link.unlink()
    link.symlink_to("2.png")
    (record,) = resume_changed("latest.png", says="1 input processed again").records
    assert classes(record) == ["blue"]


def test_a_copy_with_its_time_is_the_same_image(resume_changed, make_image, tmp_path):
    path = make_image("a.png", ("red", 2, 3))
    resume_changed("a.png")
    shutil.copy2(path, tmp_path / "copy.png")
    (tmp_path / "copy.png").replace(path)
    assert "again" not in resume_changed("a.png").stderr


def test_provenance_has_the_stamp_too_and_other_records_do_not(predict, make_image):
    path = make_image("a.png", ("red", 2, 3))
    set_time(path, LATER_S)
    stamp = f"{path.stat().st_size}-{LATER_S}000000"
    (record,) = predict("a.png --provenance").records
    assert record["file_stamp"] == stamp
    (record,) = predict("a.png").records
    assert "file_stamp" not in record


def test_an_exchanged_object_is_processed_again(predict, stored, s3, tmp_path):
    folder = stored(3)
    predict("s3://photos/pics/ --conf 0.5 --resume run.jsonl")
    s3.put("pics/0001.png", (folder / "0000.png").read_bytes())
    result = predict(
        "s3://photos/pics/ --conf 0.5 --resume run.jsonl", says="1 input processed again"
    )
    assert "s3://photos/pics/0001.png" in result.stderr
    records = lines((tmp_path / "run.jsonl").read_text())
    assert classes_by_source(records)["s3://photos/pics/0001.png"] == ["red"]
    assert len(records) == 3


@pytest.mark.parametrize(
    "name",
    ["big.csv", "big.json", "big", pytest.param("big.parquet", marks=optional.needs("pyarrow"))],
)
def test_a_file_of_another_format_cannot_be_continued(predict, name, tmp_path):
    suffix = name.partition(".")[2] or "csv"
    predict(f"a.png --format {suffix} -o {name}")
    content = (tmp_path / name).read_bytes()
    result = predict(f"a.png --resume {name}", code=2, says=f"--resume {name}: line 1 is not")
    assert "cannot be continued: start a new one with --resume NEW.jsonl" in result.stderr
    assert (tmp_path / name).read_bytes() == content


def test_records_of_output_are_continued_and_are_not_compared(predict):
    predict("a.png -o big.jsonl")
    result = predict("a.png --resume big.jsonl", says="1 skipped")
    assert (
        "1 input skipped without a check for changes: their records lack the size and time"
        in result.stderr
    )
