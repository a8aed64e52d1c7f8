"""A run in shards from and to an object store that fails often is what one run here prints."""

import json
import time

import forked
import pytest
from thinning import thin

from detcli.run.shards.store import NOTE

pytestmark = pytest.mark.slow


def test_merged_parts_equal_a_run_on_a_disk(s3, stored, detcli, invoke, make_model, tmp_path):
    folder = stored(30)
    model = make_model()
    local = tmp_path / "local.jsonl"
    merged = tmp_path / "merged.jsonl"
    assert invoke("predict", folder, "--model", model, "-o", local).returncode == 0
    s3.faults.refuse_each = 10
    s3.faults.cut_each = 20
    command = (
        "predict",
        "s3://photos/pics/",
        "--model",
        model,
        "-o",
        "s3://photos/boxes/",
        "--shard-size",
        5,
        "--on",
        "local:2",
    )
    killed = forked.start(command)
    while killed.is_alive() and len(s3.keys("boxes/")) < 3:
        time.sleep(0.05)
    killed.kill()
    killed.join()
    finished = detcli(command)
    assert finished.returncode == 0, finished.stderr
    finished = invoke("merge", "s3://photos/boxes/", "-o", merged)
    assert finished.returncode == 0, finished.stderr
    assert merged.read_text().replace("s3://photos/pics", str(folder)) == local.read_text()
    assert [key for key in s3.keys("boxes/") if NOTE not in key] == [
        "boxes/_manifest.jsonl",
        "boxes/part-00000.jsonl",
        "boxes/part-00001.jsonl",
        "boxes/part-00002.jsonl",
        "boxes/part-00003.jsonl",
        "boxes/part-00004.jsonl",
        "boxes/part-00005.jsonl",
    ]
    # What is lost is processed again, and nothing else.
    s3.client.delete_object(Bucket="photos", Key="boxes/part-00003.jsonl")
    s3.requests.clear()
    assert invoke("merge", "s3://photos/boxes/", "-o", merged).returncode == 6
    assert detcli(command).returncode == 0
    assert len({path for _, path in s3.requests if ".png" in path}) == 5
    assert invoke("merge", "s3://photos/boxes/", "-o", "s3://photos/all.jsonl").returncode == 0
    assert s3.get("all.jsonl") == merged.read_bytes()
    status = json.loads(invoke("status", "s3://photos/boxes/").stdout)
    assert status["done"] == 6
    assert status["inputs"] == 30
    assert (status["last_s"] < 600) is True
    finished = invoke("report", "s3://photos/boxes/", "-o", tmp_path / "page")
    assert "wrote a page of 30 records" in finished.stderr


def test_what_cannot_be_listed_now_is_not_written_down(s3, stored, invoke, make_model):
    """A plain run has the error as its record; here it would stay in the manifest."""
    stored(1)
    model = make_model()
    for source, status in (
        ("s3://photos/pics/", ("403 Forbidden", "AccessDenied")),
        ("s3://gone/", ()),
    ):
        s3.faults.status = status
        completed = invoke("predict", source, "-m", model, "-o", "s3://photos/boxes/")
        assert completed.returncode == 5
        assert f"{source}: cannot be listed: " in completed.stderr
        s3.faults.status = ()
        assert s3.keys("boxes/") == []


@pytest.mark.parametrize(
    "code", thin("answers to expired credentials", ["ExpiredToken", "AccessDenied"], count=1)
)
@pytest.mark.usefixtures("shards_here")
def test_credentials_that_expire_make_no_records(s3, stored, invoke, make_model, caplog, code):
    """They come back in between, or stay away; from the start on, the run stops at once."""
    stored(30)
    command = ["predict", "s3://photos/pics/", "--model", make_model(), "--shard-size", 5]
    command += ["-o", "s3://photos/boxes/"]
    assert invoke(command).returncode == 0
    files_before = {key: s3.get(key) for key in s3.keys("boxes/")}

    def run_with_outage(first, count):
        """Process all shards again; these requests are refused. Returns the number of files."""
        for key in s3.keys("boxes/part"):
            s3.client.delete_object(Bucket="photos", Key=key)
        start = s3.answered + first
        s3.faults.status = ("403 Forbidden", code)
        s3.faults.outage = range(start, start + count)
        completed = invoke(command)
        s3.faults.status = ()
        files = {key: s3.get(key) for key in s3.keys("boxes/") if NOTE not in key}
        assert files.items() <= files_before.items()
        return completed, len(files)

    completed, file_count = run_with_outage(first=40, count=2)
    assert completed.returncode == 0, completed.stderr
    assert file_count == len(files_before), completed.stderr
    assert "; trying again" in caplog.text
    completed, file_count = run_with_outage(first=40, count=1000)
    assert completed.returncode == 5, completed.stderr
    assert (file_count < len(files_before)) is True, completed.stderr
    assert "403" in completed.stderr
    caplog.clear()
    completed, _ = run_with_outage(first=9, count=1000)
    assert completed.returncode == 5, completed.stderr
    assert ("trying again" in caplog.text) is False, completed.stderr


@pytest.mark.usefixtures("shards_here")
def test_an_object_that_changes_after_it_was_listed_is_noticed(s3, stored, invoke, make_model):
    stored(4)
    command = ("predict", "s3://photos/pics/", "--model", make_model(), "-o", "s3://photos/boxes/")
    assert invoke(command).returncode == 0
    s3.client.delete_object(Bucket="photos", Key="boxes/part-00000.jsonl")
    keys = list(s3.keys("pics/"))
    key = keys[0]
    s3.put(key, s3.get(keys[1]))
    completed = invoke(command)
    assert completed.returncode == 3
    assert (f"{key}: it has changed since" in completed.stderr) is True
    assert "1 image, " in invoke(command, "--retry-failed").stderr
    assert invoke("merge", "s3://photos/boxes/").returncode == 0
    assert invoke("predict", "s3://photos/pics/", "--model", make_model()).returncode == 0
