"""`detcli predict -o FOLDER/`: options, refusals, and runs that go on."""

import json
import os
import signal
import sys
import time

import forked
import pytest
from json_lines import lines
from shard_engine import open_here


@pytest.fixture
def shards(invoke, make_model, make_pictures, tmp_path, monkeypatch):
    """Run in shards of four, over a folder of ten pictures, without further processes."""
    pictures, model, boxes = make_pictures(10), make_model(), tmp_path / "boxes"
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)

    def run(*options, sources=(pictures,), size=4):
        command = ["predict", *sources, "-m", model, "-o", f"{boxes}/", "--conf", "0.5", *options]
        return invoke(*command, *(() if size is None else ("--shard-size", size)))

    run.pictures, run.model, run.boxes = pictures, model, boxes
    return run


def test_a_run_says_what_it_does_and_goes_on(shards):
    done = shards()
    assert (done.returncode, done.stdout) == (0, "")
    assert "10 names written down, 3 shards in all" in done.stderr
    assert "10 pictures, 4 detections" in done.stderr
    assert "wrote 3 parts to" in done.stderr
    (shards.boxes / "part-00001.jsonl").unlink()
    whole = (shards.boxes / "part-00000.jsonl").read_bytes()
    for options in ({"size": None}, {"sources": (), "size": None}, {}):
        done = shards(**options)
        assert done.returncode == 0
        assert (shards.boxes / "part-00000.jsonl").read_bytes() == whole
    assert "3 of 3 shards done already" in done.stderr
    assert len(lines((shards.boxes / "part-00001.jsonl").read_text())) == 4


def test_tasks_share_the_shards(shards):
    for task in (1, 2, 3, 4):
        assert shards("--shards", f"{task}/4").returncode == 0
        assert len([*shards.boxes.glob("part-*")]) == min(task, 3)


def test_parts_can_be_parquet(shards):
    from pyarrow import parquet

    assert shards("--format", "parquet").returncode == 0
    names = sorted(path.name for path in shards.boxes.glob("part-*"))
    assert names == [f"part-0000{number}.parquet" for number in range(3)]
    assert parquet.read_table(shards.boxes / names[0]).num_rows == 4
    done = shards()
    assert done.returncode == 2
    assert 'was begun with format "parquet" instead of "jsonl"' in done.stderr


def test_other_settings_and_names_are_refused(shards, make_model):
    assert shards().returncode == 0
    for options, problem in (
        (("--conf", "0.6"), "was begun with conf 0.5 instead of 0.6"),
        (("--strict",), "was begun with strict false instead of true"),
        (("-m", make_model("other.onnx", tail="authors")), "another file of the model"),
    ):
        done = shards(*options)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
    (shards.pictures / "0003.png").rename(shards.pictures / "new.png")
    done = shards()
    assert done.returncode == 2
    assert "1 new: " in done.stderr
    assert "new.png; 1 gone: " in done.stderr
    done = shards("--extend")
    assert done.returncode == 0
    assert "1 name written down, 4 shards in all" in done.stderr
    assert "1 name of the manifest not among the inputs" in done.stderr
    assert [record["source"] for record in lines((shards.boxes / "part-00003.jsonl").read_text())]
    assert shards("--extend").returncode == 0


def test_failures_are_records_and_the_exit_code(shards):
    (shards.pictures / "0004.png").write_bytes(b"torn")
    done = shards(sources=(shards.pictures, "absent.png", shards.pictures / "0001.png"))
    assert done.returncode == 3
    assert "1 name given again, and worked once" in done.stderr
    assert "absent.png: no such file" in done.stderr
    assert "2 failed" in done.stderr
    last = lines((shards.boxes / "part-00002.jsonl").read_text())[-1]
    assert (last["source"], last["error"]["type"]) == ("absent.png", "SourceError")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--resume", "x.jsonl"], "--resume does not go with a run in shards"),
        (["--save", "out"], "--save does not go with a run in shards"),
        (["--fail-if", "red>0"], "--fail-if does not go with a run in shards"),
        (["--format", "csv"], "--format csv: parts are jsonl or parquet"),
        (["--on", "cluster"], "--on cluster names nothing to run on"),
        (["--on", "local:0"], "--on local:0 names nothing to run on"),
        (["--shards", "0/8"], "--shards 0/8 is not a share"),
        (["--shards", "9/8"], "--shards 9/8 is not a share"),
        (["--shards", "3"], "--shards 3 is not a share"),
        (["--shards", ""], "--shards  is not a share"),  # a variable that is not set
        (["--on", ""], "--on  names nothing to run on"),
        (["--on", "ray://host:port"], "names nothing to run on"),
        (["--shard-size", "9" * 30], "--shard-size"),
        (["--shard-size", "0"], "--shard-size"),
    ],
)
def test_options_that_do_not_go_together_are_refused(invoke, options, problem):
    done = invoke("predict", "pics", "-o", "boxes/", *options)
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.parametrize(
    "options", [["--on", "local:2"], ["--shards", "1/2"], ["--shard-size", "5"], ["--extend"]]
)
def test_options_of_shards_need_a_folder(invoke, options):
    for output in ([], ["-o", "boxes.jsonl"]):
        done = invoke("predict", "pics", *output, *options)
        assert done.returncode == 2
        assert "are for runs in shards" in done.stderr


@pytest.mark.parametrize("source", ["-", "camera:0", "rtsp://host/stream"])
def test_what_can_be_read_once_is_refused(shards, source):
    done = shards(sources=(source,))
    assert done.returncode == 2
    assert "cannot be cut into shards" in done.stderr


def test_a_video_is_one_name_of_its_shard(shards, make_video, invoke):
    make_video("pics/0002.mp4", frames=9)
    assert shards().returncode == 0
    records = lines((shards.boxes / "part-00000.jsonl").read_text())
    assert [record.get("frame") for record in records] == [None, None, *range(9), None][:12]
    command = ["predict", shards.pictures, "-m", shards.model, "--conf", "0.5"]
    one = invoke(*command, "--format", "jsonl", "-q")
    assert invoke("merge", shards.boxes, "-q").stdout == one.stdout


def test_no_names_make_no_parts(shards, tmp_path):
    (tmp_path / "list").write_bytes(b"")
    done = shards("--files-from", tmp_path / "list", sources=())
    assert done.returncode == 0
    assert [path.name for path in shards.boxes.iterdir()] == ["manifest.jsonl"]


def test_nothing_to_begin_with_is_refused(shards):
    done = shards(sources=())
    assert done.returncode == 2
    assert "no inputs given" in done.stderr


def test_relative_names_are_not_looked_for_in_another_folder(shards, tmp_path, monkeypatch):
    """An error would be their record for good."""
    monkeypatch.chdir(shards.pictures.parent)
    names = shards.pictures.name
    assert shards(sources=(names,)).returncode == 0
    (shards.boxes / "part-00001.jsonl").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = shards(sources=(), size=None)
    assert done.returncode == 2
    assert f"{names}/" in done.stderr
    assert "in the folder where the run began" in done.stderr
    assert not (shards.boxes / "part-00001.jsonl").exists()
    monkeypatch.chdir(shards.pictures.parent)
    for one in sorted(shards.pictures.iterdir())[:3]:
        one.unlink()  # what is gone gets an error, as long as it is not all
    assert shards(sources=(), size=None).returncode == 0
    assert (shards.boxes / "part-00001.jsonl").exists()


def test_several_runs_at_once_publish_each_part_once(shards):
    command = ["predict", shards.pictures, "-m", shards.model, "-q", "-o", f"{shards.boxes}/"]
    runs = [forked.start([*command, "--shard-size", 1]) for _ in range(2)]
    for run in runs:
        run.join()
        assert run.exitcode == 0
    assert len([*shards.boxes.iterdir()]) == 11


def test_an_interrupt_says_how_to_go_on(shards, tmp_path):
    messages = tmp_path / "stderr"
    messages.touch()
    for number in range(10, 300):
        os.link(shards.pictures / "0001.png", shards.pictures / f"{number:04}.png")
    command = ["predict", shards.pictures, "-m", shards.model, "-o", f"{shards.boxes}/"]
    command += ["--shard-size", 1, "--conf", "0.5"]
    run = forked.start(command, stderr=messages)
    while not [*shards.boxes.glob("part-*")]:
        assert run.is_alive()
        time.sleep(0.005)
    os.kill(run.pid, signal.SIGINT)
    run.join()
    said = messages.read_text()
    assert run.exitcode == 130
    assert "interrupted with" in said
    assert "hint: the same command goes on from here" in said
    assert "Traceback" not in said
    assert shards(size=1).returncode == 0
    assert len([*shards.boxes.glob("part-*")]) == 300


def test_the_manifest_tells_what_the_run_depends_on(shards):
    assert shards("--end", "5", "--max-pixels", "100000").returncode == 0
    head = json.loads((shards.boxes / "manifest.jsonl").read_text().splitlines()[0])
    assert head["inputs"] == {"start_s": 0, "end_s": 5, "max_pixels": 100_000, "strict": False}
    assert head["settings"]["conf"] == 0.5
    assert head["shard_size"] == 4


@pytest.mark.parametrize("address", ["https://user:secret@host/boxes/", "ftp://host/boxes/"])
def test_parts_go_to_no_other_servers(invoke, address):
    done = invoke("predict", "pics", "-o", address)
    assert done.returncode == 2
    assert "is not a folder for the parts of a run" in done.stderr
    assert "secret" not in done.stderr
    assert not os.path.lexists(address.partition("/")[0])


def test_a_folder_that_cannot_be_read_does_not_look_like_failed_pictures(shards):
    """Exit code 3 is that of a run that is complete but for some pictures."""
    shards.boxes.write_bytes(b"a file")
    done = shards()
    assert done.returncode == 1
    assert "boxes" in done.stderr


@pytest.mark.parametrize("place", ["s3://bucket/boxes/", None])
def test_object_stores_are_not_installed(shards, invoke, monkeypatch, place):
    monkeypatch.setitem(sys.modules, "obstore", None)
    done = invoke("merge", place) if place else shards(sources=("s3://bucket/pics/",))
    assert done.returncode == 5
    assert "obstore" in done.stderr
    assert "pip install 'detcli[cloud]'" in done.stderr


def test_ray_is_not_installed(invoke, make_model, make_picture, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["predict", make_picture("a.png"), "-m", make_model(), "-o", f"{tmp_path / 'boxes'}/"]
    done = invoke(*command, "--on", "ray")
    assert done.returncode == 5
    assert "--on ray needs Ray" in done.stderr
    assert "pip install 'detcli[ray]'" in done.stderr
