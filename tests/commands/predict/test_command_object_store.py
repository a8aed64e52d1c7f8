"""`detcli predict` on object stores gives what it gives on the same files on a disk."""

import pytest
from json_lines import lines


@pytest.fixture
def stored(s3, make_pictures):
    """Put pictures onto the server; returns their folder on the disk."""

    def put(count):
        folder = make_pictures(count)
        for path in folder.iterdir():
            s3.put(f"pics/{path.name}", path.read_bytes())
        return folder

    return put


def test_records_are_those_of_a_local_run_whatever_the_server_does(
    s3, stored, invoke, make_model, tmp_path
):
    folder = stored(120)
    local, remote = tmp_path / "local.jsonl", tmp_path / "remote.jsonl"
    common = "--model", make_model(), "--workers", 2
    assert invoke("predict", folder, *common, "-o", local).returncode == 0
    s3.faults.refuse_each, s3.faults.cut_each = 10, 20
    finished = invoke("predict", "s3://photos/pics/", *common, "-o", remote)
    assert finished.returncode == 0, finished.stderr
    assert remote.read_text().replace("s3://photos/pics", str(folder)) == local.read_text()
    assert len(s3.requests) > 120
    assert s3.most_at_once > 2


def test_pictures_that_cannot_be_fetched_are_records(stored, invoke, make_model, tmp_path):
    folder = stored(3)
    names = [f"s3://photos/pics/{path.name}" for path in sorted(folder.iterdir())]
    names[1:1] = ["s3://photos/gone.png", "s3://gone/a.png", "s3://photos/pics/"]
    (tmp_path / "list").write_text("\n".join(names))
    finished = invoke("predict", "--files-from", tmp_path / "list", "--model", make_model())
    assert finished.returncode == 3
    records = lines(finished.stdout)
    assert [record["source"] for record in records] == names
    assert [record["error"]["message"] for record in records[1:4]] == [
        "cannot be fetched: there is no such object",
        "cannot be fetched: there is no such bucket",
        "a folder, where a picture is expected",
    ]
    assert all("detections" in record for record in (records[0], *records[4:]))


def test_a_store_that_hangs_is_given_up(s3, stored, invoke, make_model, make_picture):
    stored(2)
    s3.faults.hang.set()
    finished = invoke(
        "predict", "s3://photos/pics/0000.png", make_picture("local.png"), "--model", make_model(),
        "--input-timeout", 1,
    )  # fmt: skip
    assert finished.returncode == 3
    hanging, sound = lines(finished.stdout)
    assert hanging["error"]["message"] == "not read and decoded after 1 s"
    assert "detections" in sound


def test_a_resumed_run_fetches_only_what_it_lacks(s3, stored, invoke, make_model, tmp_path):
    stored(6)
    journal = tmp_path / "run.jsonl"
    command = "predict", "s3://photos/pics/", "--model", make_model(), "--resume", journal
    assert invoke(*command).returncode == 0
    whole = journal.read_text()
    journal.write_text("".join(whole.splitlines(keepends=True)[:4]))
    s3.requests.clear()
    assert invoke(*command).returncode == 0
    assert sum(".png" in path for _, path in s3.requests) == 2
    assert [record["source"] for record in lines(journal.read_text())] == [
        record["source"] for record in lines(whole)
    ]


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
    finished = detcli("predict", *names, "--model", make_model(), "-vv")
    assert finished.returncode == 3
    assert len(lines(finished.stdout)) == 4
    assert s3.secret not in finished.stdout + finished.stderr
    assert s3.key not in finished.stdout + finished.stderr
    assert "botocore" not in finished.stderr


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_records_are_written_to_an_object(s3, make_pictures, invoke, make_model, suffix):
    folder = make_pictures(5)
    local = folder.with_name(f"local.{suffix}")
    s3.put("first")
    common = "predict", folder, "--model", make_model(), "-o"
    assert invoke(*common, local).returncode == 0
    finished = invoke(*common, f"s3://photos/out/all.{suffix}")
    assert finished.returncode == 0, finished.stderr
    assert f"wrote 5 records to s3://photos/out/all.{suffix}" in finished.stderr
    assert s3.get(f"out/all.{suffix}") == local.read_bytes()


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
def test_outputs_that_cannot_be_are_refused(make_pictures, invoke, output, code, reason):
    finished = invoke("predict", make_pictures(1), "--model", "codes", "-o", output)
    assert (finished.returncode, reason in finished.stderr) == (code, True), finished.stderr


def test_an_input_is_not_written_over(s3, stored, invoke, make_model):
    stored(1)
    name = "s3://photos/pics/0000.png"
    before = s3.get("pics/0000.png")
    finished = invoke("predict", name, "--model", make_model(), "-o", name, "--format", "jsonl")
    assert finished.returncode == 2
    assert f"{name} is one of the inputs" in finished.stderr
    assert s3.get("pics/0000.png") == before


@pytest.mark.parametrize("option", ["--resume", "--save", "--save-txt", "--save-coco"])
def test_what_needs_a_disk_says_so(invoke, make_picture, option, tmp_path):
    finished = invoke("predict", make_picture("a.png"), option, "s3://photos/out", cwd=tmp_path)
    assert finished.returncode == 2
    assert f"{option} cannot write to an object store" in finished.stderr
    assert not (tmp_path / "s3:").exists()
