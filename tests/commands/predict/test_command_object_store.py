"""`detcli predict` on object stores gives what it gives on the same files on a disk."""

import optional
import pytest
from json_lines import column_of, lines

pytestmark = pytest.mark.slow


def test_records_are_those_of_a_local_run_whatever_the_server_does(s3, stored, predict, tmp_path):
    folder = stored(120)
    predict(f"{folder} --workers 2 -o local.jsonl")
    s3.faults.refuse_each = 10
    s3.faults.cut_each = 20
    predict("s3://photos/pics/ --workers 2 -o remote.jsonl")
    local = (tmp_path / "local.jsonl").read_text()
    remote = (tmp_path / "remote.jsonl").read_text()
    assert remote.replace("s3://photos/pics", str(folder)) == local
    assert len(s3.requests) > 120
    assert s3.most_at_once > 2


def test_images_that_cannot_be_fetched_are_records(stored, predict, tmp_path):
    stored(3)
    names = [
        "s3://photos/pics/0000.png",
        "s3://photos/gone.png",
        "s3://gone/a.png",
        "s3://photos/pics/",
        "s3://photos/pics/0001.png",
        "s3://photos/pics/0002.png",
    ]
    (tmp_path / "list").write_text("\n".join(names))
    records = predict("--files-from list", code=3).records
    assert column_of(records, "source") == names
    errors = column_of(records[1:4], "error")
    assert column_of(errors, "message") == [
        "cannot be fetched: there is no such object",
        "cannot be fetched: there is no such bucket",
        "a folder, where an image is expected",
    ]
    assert "detections" in records[0]
    assert "detections" in records[4]
    assert "detections" in records[5]


def test_an_object_that_stands_for_a_folder_is_passed_over(s3, stored, predict):
    stored(2)
    s3.put("pics/0000/")
    completed = predict("s3://photos/pics/ -r")
    sources = column_of(completed.records, "source")
    assert sources == ["s3://photos/pics/0000.png", "s3://photos/pics/0001.png"]


@pytest.mark.parametrize("key", ["pics/0000\x01.png", "pics//a.png"])
def test_a_key_that_hides_the_others_of_its_folder_is_named(s3, stored, predict, key):
    stored(2)
    s3.put(key)
    completed = predict("s3://photos/pics/ a.png -r", code=3, says="copy it to another key")
    listing, sound = completed.records
    assert "has an empty part, . or .., or a control code" in listing["error"]["message"]
    assert "detections" in sound


def test_a_store_that_hangs_is_given_up(s3, stored, predict):
    stored(2)
    s3.faults.hang.set()
    completed = predict("s3://photos/pics/0000.png a.png --input-timeout 1", code=3)
    hanging, sound = completed.records
    assert hanging["error"]["message"] == "not read and decoded after 1 s"
    assert "detections" in sound


def test_a_resumed_run_fetches_only_what_it_lacks(s3, stored, predict, tmp_path):
    stored(6)
    journal = tmp_path / "run.jsonl"
    predict("s3://photos/pics/ --resume run.jsonl")
    complete_text = journal.read_text()
    journal.write_text("".join(complete_text.splitlines(keepends=True)[:4]))
    s3.requests.clear()
    predict("s3://photos/pics/ --resume run.jsonl")
    assert sum(".png" in path for _, path in s3.requests) == 2
    sources = column_of(lines(journal.read_text()), "source")
    assert sources == column_of(lines(complete_text), "source")


def test_nothing_secret_is_printed(s3, detcli, make_model, tmp_path, monkeypatch):
    """Nor logged with -vv by the library that finds the credentials."""
    s3.put("pics/a.png", b"none")
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {s3.url}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    names = (
        "s3://photos/pics/",
        "s3://photos/gone.png",
        "s3://gone/",
        f"s3://{s3.key}:{s3.secret}@photos/",
    )
    finished = detcli("predict", names, "--model", make_model(), "-vv")
    assert finished.returncode == 3
    assert len(lines(finished.stdout)) == 4
    assert s3.secret not in finished.stdout + finished.stderr
    assert s3.key not in finished.stdout + finished.stderr
    assert "botocore" not in finished.stderr


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", optional.PARQUET])
def test_records_are_written_to_an_object(s3, make_images, predict, tmp_path, suffix):
    make_images(5)
    s3.put("first")
    predict(f"pics -o local.{suffix}")
    output = f"s3://photos/out/all.{suffix}"
    predict(f"pics -o {output}", says=f"5 records to {output}")
    assert s3.get(f"out/all.{suffix}") == (tmp_path / f"local.{suffix}").read_bytes()


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(
    ("output", "code", "reason"),
    [
        ("s3://gone/a.jsonl", 1, "cannot write s3://gone/a.jsonl: there is no such bucket"),
        ("s3://photos", 2, "--output s3://photos names no object"),
        ("s3://photos/a.txt", 2, "the suffix .txt names no format"),
        ("s3://me:pw@photos/a.jsonl", 2, "--output s3://photos/a.jsonl: not a valid address"),
    ],
)
def test_outputs_that_cannot_be_are_refused(predict, output, code, reason):
    predict(f"a.png -o {output}", code=code, says=reason)


def test_an_input_is_not_written_over(s3, stored, predict):
    stored(1)
    name = "s3://photos/pics/0000.png"
    before = s3.get("pics/0000.png")
    predict(f"{name} -o {name} --format jsonl", code=2, says=f"{name} is one of the inputs")
    assert s3.get("pics/0000.png") == before
