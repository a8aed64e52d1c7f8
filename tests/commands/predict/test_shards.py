"""`detcli predict -o FOLDER/`: options, refusals, and runs that go on."""

import errno
import json
import os
import signal
import sys
import tarfile
import time

import forked
import pytest
from folders import contents_of, names_in
from json_lines import column_of, detections_by_source, lines, optional_column_of

from detcli.run.shards.store import LocalFolder
from detcli.source.reading import load_file, unreadable


@pytest.fixture
def shards_of_four(predict, make_images, tmp_path, shards_here):  # noqa: ARG001 - it only has to be there
    """Run in shards of four, over a folder of ten images."""
    images = make_images(10)
    boxes = tmp_path / "boxes"

    def run(line="", *, sources="pics", size=4, conf=0.5, code=0, says=""):
        size = "" if size is None else f"--shard-size {size}"
        completed = predict(
            f"{sources} -o boxes/ --conf {conf} {size} {line}", code=code, says=says
        )
        assert completed.stdout == ""
        return completed

    def part(number):
        return boxes / f"part-{number:05}.jsonl"

    run.pictures, run.boxes, run.part = images, boxes, part  # type: ignore[attr-defined]
    return run


def test_a_run_says_what_it_does_and_goes_on(shards_of_four):
    completed = shards_of_four(says="listed 10 inputs, 3 shards in all")
    assert "10 images, 4 detections" in completed.stderr
    assert "wrote 3 parts to" in completed.stderr
    shards_of_four.part(1).unlink()
    first_part = shards_of_four.part(0).read_bytes()
    for options in ({"size": None}, {"sources": "", "size": None}, {}):
        completed = shards_of_four(**options)
        assert shards_of_four.part(0).read_bytes() == first_part
    assert "3 of 3 shards done already" in completed.stderr
    assert len(lines(shards_of_four.part(1).read_text())) == 4


def test_tasks_share_the_shards(shards_of_four):
    for task in (1, 2, 3, 4):
        shards_of_four(f"--shards {task}/4")
        parts = list(shards_of_four.boxes.glob("part-*"))
        assert len(parts) == min(task, 3)


def test_other_settings_and_names_are_refused(shards_of_four, make_model):
    make_model("other.onnx", tail="authors")
    shards_of_four()
    shards_of_four(conf=0.6, code=2, says="was begun with conf 0.5 instead of 0.6")
    shards_of_four("--strict", code=2, says="was begun with strict false instead of true")
    shards_of_four("--lenient", code=2, says="was begun with lenient false instead of true")
    shards_of_four("-m other.onnx", code=2, says="another file of the model")
    (shards_of_four.pictures / "0003.png").rename(shards_of_four.pictures / "new.png")
    completed = shards_of_four(code=2, says="1 new: ")
    assert "new.png; 1 gone: " in completed.stderr
    completed = shards_of_four("--extend", says="listed 1 input, 4 shards in all")
    assert "1 name of the manifest not among the inputs" in completed.stderr
    (record,) = lines(shards_of_four.part(3).read_text())
    assert record["source"] == "pics/new.png"
    shards_of_four("--extend")


def test_failures_are_records_and_the_exit_code(shards_of_four):
    (shards_of_four.pictures / "0004.png").write_bytes(b"torn")
    completed = shards_of_four(sources="pics absent.png pics/0001.png", code=3, says="2 failed")
    assert "1 name given again: each input is processed once" in completed.stderr
    assert "absent.png: no such file" in completed.stderr
    last_record = lines(shards_of_four.part(2).read_text())[-1]
    assert last_record["source"] == "absent.png"
    assert last_record["error"]["type"] == "SourceError"
    sound = (shards_of_four.pictures / "0003.png").read_bytes()
    (shards_of_four.pictures / "0004.png").write_bytes(sound)
    (shards_of_four.boxes.parent / "absent.png").write_bytes(sound)
    shards_of_four("--retry-failed", sources="", says="2 images, 2 detections")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--resume x.jsonl", "--resume does not go with a run in shards"),
        ("--save out", "--save does not go with a run in shards"),
        ("--fail-if red>0", "--fail-if does not go with a run in shards"),
        ("--format csv", "--format csv: parts are JSON Lines"),
        ("--format parquet", "merge boxes/ --format parquet writes it from the parts"),
        ("--on cluster", "--on cluster names nothing to run on"),
        ("--on ''", "--on  names nothing to run on"),
        ("--on ray://host:port", "names nothing to run on"),
        ("--shards 0/8", "--shards 0/8 is not a share"),
        ("--shards 9/8", "--shards 9/8 is not a share"),
        ("--shards 3", "--shards 3 is not a share"),
        ("--shards ''", "--shards  is not a share"),  # a variable that is not set
        ("--shard-size " + "9" * 30, "--shard-size"),
        ("--shard-size 0", "--shard-size"),
        ("-o boxes.jsonl --on local:2", "are for runs in shards"),
        ("-o boxes.jsonl --shards 1/2", "are for runs in shards"),
        ("-o boxes.jsonl --shard-size 5", "are for runs in shards"),
        ("-o - --extend", "are for runs in shards"),
        ("-o ftp://host/boxes/", "is not a folder for the parts of a run"),
        ("-o https://user:secret@host/boxes/", "is not a folder for the parts of a run"),
    ],
)
def test_options_that_do_not_go_together_are_refused(predict, tmp_path, options, problem):
    folder = "" if options.startswith("-o ") else "-o boxes/"
    completed = predict(f"pics {folder} {options}", code=2, says=problem)
    assert "secret" not in completed.stderr
    assert set(names_in(tmp_path)) == {"a.png", "colours.onnx"}


@pytest.mark.parametrize("source", ["-", "camera:0", "rtsp://host/stream"])
def test_what_can_be_read_once_is_refused(shards_of_four, source):
    shards_of_four(sources=source, code=2, says="cannot be cut into shards")


def test_a_video_is_one_name_of_its_shard(shards_of_four, in_shards, make_video):
    make_video("pics/0002.mp4", frames=9)
    shards_of_four()
    records = lines(shards_of_four.part(0).read_text())
    assert optional_column_of(records, "frame") == [None, None] + list(range(9)) + [None]
    expected, merged = in_shards("pics --conf 0.5", "--shard-size", 4)
    assert merged == expected


def test_no_names_make_no_parts(shards_of_four, tmp_path):
    (tmp_path / "list").write_bytes(b"")
    shards_of_four("--files-from list", sources="")
    assert names_in(shards_of_four.boxes) == ["_manifest.jsonl"]


def test_nothing_to_begin_with_is_refused(shards_of_four):
    shards_of_four(sources="", code=2, says="no inputs given")


def test_relative_names_are_not_looked_for_in_another_folder(shards_of_four, tmp_path, invoke):
    """An error would be their record for good."""
    shards_of_four()
    shards_of_four.part(1).unlink()
    (tmp_path / "elsewhere").mkdir()
    command = ["predict", "-m", "../colours.onnx", "--conf", 0.5, "-o", "../boxes/"]
    completed = invoke(command, cwd=tmp_path / "elsewhere")
    assert completed.returncode == 5
    assert "pics/0004.png: no such file" in completed.stderr
    assert "from which folder it counts" in completed.stderr
    assert not shards_of_four.part(1).exists()
    for image in sorted(shards_of_four.pictures.iterdir())[:3]:
        image.unlink()  # what is gone gets an error, as long as it is not all
    shards_of_four(sources="", size=None)
    assert shards_of_four.part(1).exists()


def test_errors_are_said_again_until_they_are_mended(shards_of_four, predict, make_video, invoke):
    """Of images and of a video, in two turns; each merge is what one run would write then."""
    images = shards_of_four.pictures
    sound_images = {}
    for name in ("0004.png", "0005.png", "0009.png"):
        sound_images[name] = (images / name).read_bytes()
        (images / name).write_bytes(b"torn")
    video = make_video("pics/0007.mp4", frames=9).read_bytes()
    (images / "0007.mp4").write_bytes(video[:-100])

    def merged(code):
        completed = invoke("merge", "boxes/", cwd=images.parent)
        one_run = predict("pics --conf 0.5", code=code)
        assert completed.returncode == code
        assert completed.stdout == one_run.stdout
        return completed.stderr

    shards_of_four(code=3)
    assert "4 records with an error: 3 DecodeError: " in merged(3)
    file_count = len(list(shards_of_four.boxes.iterdir()))
    for option in ("", "", "--retry-failed"):
        completed = shards_of_four(option, code=3)
    assert "4 records with an error" not in completed.stderr
    assert "4 failed" in completed.stderr
    assert "4 records with an error: 3 DecodeError: " in shards_of_four(code=3).stderr
    for name in ("0004.png", "0005.png"):
        (images / name).write_bytes(sound_images[name])
    completed = shards_of_four("--retry-failed", code=3, says="2 images, ")
    assert "; in parts done already" not in completed.stderr
    assert "2 records with an error: " in merged(3)
    (images / "0009.png").write_bytes(sound_images["0009.png"])
    (images / "0007.mp4").write_bytes(video)
    shards_of_four("--retry-failed", says="1 image, 9 frames, ")
    shards_of_four("--retry-failed", says="wrote 0 parts")
    assert merged(0) == ""
    assert len(list(shards_of_four.boxes.iterdir())) > file_count + 3


def test_an_image_that_changes_after_it_was_listed_is_noticed(shards_of_four, predict, invoke):
    """It has an error of its own kind; --retry-failed and --extend work it again, in its place."""
    shards_of_four()
    shards_of_four.part(1).unlink()
    other_image = (shards_of_four.pictures / "0003.png").read_bytes()
    for name in ("0004.png", "0008.png"):  # of which the second has been read already
        (shards_of_four.pictures / name).write_bytes(other_image)
    completed = shards_of_four(code=3, says="0004.png: it has changed since it was listed")
    assert lines(shards_of_four.part(1).read_text())[0]["error"]["type"] == "AlteredError"
    assert "hint: process it as it is now with --retry-failed" in completed.stderr
    completed = shards_of_four("--retry-failed", code=3, says="1 image, 1 detection")
    assert "1 file has changed since it was listed: pics/0008.png\n" in completed.stderr
    completed = shards_of_four("--extend", says="listed 2 inputs, 4 shards in all")
    assert "not among the inputs" not in completed.stderr
    shards_of_four("--extend", says="4 of 4 shards done already")
    expected = lines(predict("pics --conf 0.5").stdout)
    merged = lines(invoke("merge", "boxes/", cwd=shards_of_four.boxes.parent).stdout)
    assert column_of(merged, "index") == list(range(10))
    assert detections_by_source(merged) == detections_by_source(expected)


def test_a_missing_image_that_comes_is_the_same_input(shards_of_four, invoke):
    """It is retried, and does not become a new one."""
    shards_of_four(sources="pics/0003.png pics/new.png", code=3, says="pics/new.png: no such file")
    (shards_of_four.pictures / "0004.png").rename(shards_of_four.pictures / "new.png")
    sources = "pics/0003.png pics/new.png"
    shards_of_four("--retry-failed", sources=sources, says="1 image, ")
    shards_of_four("--extend", sources=sources, says="1 of 2 shards done already")
    merged = lines(invoke("merge", "boxes/", cwd=shards_of_four.boxes.parent).stdout)
    assert column_of(merged, "source") == ["pics/0003.png", "pics/new.png"]


@pytest.mark.parametrize("output", ["boxes/", "boxes.jsonl"])
def test_beyond_twenty_failures_are_counted(shards_of_four, predict, output):
    """Each of the first ones is a line, also with --quiet."""
    for number in range(10, 50):
        (shards_of_four.pictures / f"{number:04}.png").touch()
    completed = predict(f"pics -o {output}", code=3)
    failures = [line for line in completed.stderr.splitlines() if "png: " in line]
    assert len(failures) == 20
    expected_lines = set()
    for number in range(10, 50):
        message = f"pics/00{number}.png: empty; hint: fetch or copy the file again"
        expected_lines.add(f"detcli: error: {message}")
    assert set(failures) <= expected_lines
    assert "20 of 40 messages are shown; all: 40 DecodeError: empty\n" in completed.stderr
    assert completed.stderr.count("\n") < 30
    names = " ".join(f"absent{number}.png" for number in range(22))
    completed = predict(f"{names} a.png -q -o again.jsonl", code=3)
    assert "20 of 22 messages are shown; all: 22 SourceError: no such file\n" in completed.stderr


def test_a_run_in_shards_tells_how_far_it_is(shards_of_four, invoke):
    (shards_of_four.pictures / "0009.png").write_bytes(b"torn")
    shards_of_four(code=3)
    for number, at_s in ((0, 60), (1, 40)):
        os.utime(shards_of_four.part(number), (time.time() - at_s,) * 2)
    shards_of_four.part(2).rename(shards_of_four.boxes / "part-00002.away")
    os.utime(shards_of_four.boxes / "_manifest.jsonl", (time.time() - 80,) * 2)

    def status_with(working):
        (shards_of_four.boxes / "_working-other.json").write_text(json.dumps(working))
        return json.loads(invoke("status", shards_of_four.boxes, "--format", "json").stdout)

    for working in ([], [2, 3]):  # nobody works, or others may end at the same moment
        run_status = status_with(working)
        assert run_status["inputs_per_s"] is None
        assert run_status["left_s"] is None
    run_status = status_with([2])
    assert 39 < run_status.pop("last_s") < 60
    assert run_status == {
        "schema_version": 1,
        "inputs": 10,
        "shards": 3,
        "done": 2,
        "working": 1,
        "failed": {},
        "inputs_per_s": pytest.approx(10 / 3 / 20, rel=0.01),
        "left_s": pytest.approx(20, rel=0.01),
    }
    (shards_of_four.boxes / "part-00002.away").rename(shards_of_four.part(2))
    table = invoke("status", shards_of_four.boxes, "--format", "table").stdout
    assert table.startswith("3 of 3 shards done, 0 at work, 10 inputs\nlast part ")
    assert "1 record with an error: DecodeError: " in table
    assert "the rest" not in table
    completed = invoke("status", shards_of_four.pictures)
    assert completed.returncode == 2
    assert ("has no _manifest.jsonl" in completed.stderr) is True


def test_a_tar_file_is_one_name_of_its_shard(shards_of_four, predict, invoke):
    names = sorted(shards_of_four.pictures.iterdir())
    names[4].write_bytes(b"torn")
    for number in range(3):
        with tarfile.open(shards_of_four.pictures.parent / f"{number:02}.tar", "w") as tar:
            for path in names[number::3]:
                tar.add(path, path.name)
    shards_of_four(sources="{00..02}.tar pics/0000.png", size=2, code=3)
    completed = invoke("merge", "boxes/", cwd=shards_of_four.boxes.parent)
    one_run = predict("{00..02}.tar pics/0000.png --conf 0.5", code=3).stdout
    assert completed.returncode == 3
    assert completed.stdout == one_run
    records = lines(one_run)
    assert column_of(records[3:6], "source") == [
        "00.tar/0009.png",
        "01.tar/0001.png",
        "01.tar/0004.png",
    ]
    records_without_tar = lines(predict("pics --conf 0.5", code=3).stdout)
    expected_detections = column_of(records_without_tar[::3], "detections")
    assert optional_column_of(records[:4], "detections") == expected_detections
    with tarfile.open(shards_of_four.boxes.parent / "01.tar", "w") as tar:
        for path in names[:2]:
            tar.add(path, path.name)
    shards_of_four("--retry-failed", sources="", size=2, says="2 images, 1 detection")
    completed = invoke("merge", "boxes/", cwd=shards_of_four.boxes.parent)
    assert completed.stdout == predict("{00..02}.tar pics/0000.png --conf 0.5").stdout


def test_what_is_at_work_is_told_while_it_is(shards_of_four, invoke, monkeypatch):
    """But not of a run that was killed a minute ago."""
    noted = []
    write_note = LocalFolder.write_note

    def spy(store, name, content):
        noted.extend(json.loads(content))
        write_note(store, name, content)

    def working():
        return json.loads(invoke("status", "boxes/", "--format", "json").stdout)["working"]

    monkeypatch.setattr(LocalFolder, "write_note", spy)
    monkeypatch.chdir(shards_of_four.boxes.parent)
    shards_of_four()
    assert set(noted) <= {0, 1, 2}
    assert noted
    assert not list(shards_of_four.boxes.glob("_working*"))
    shards_of_four.part(1).unlink()
    killed = shards_of_four.boxes / "_working-killed.json"
    killed.write_text("[0, 1]")  # of which the first is done
    assert working() == 1
    os.utime(killed, (time.time() - 61,) * 2)
    assert working() == 0
    fresh = shards_of_four.boxes / "_working-other.json"
    fresh.write_text("[]")
    shards_of_four(sources="")
    assert list(shards_of_four.boxes.glob("_working*")) == [fresh]


def test_a_mount_that_drops_makes_no_records(shards_of_four, tmp_path, monkeypatch, caplog):
    """The folder is gone, or empty, as where nothing is mounted; or it comes back in between."""
    shards_of_four()
    complete_parts = contents_of(shards_of_four.boxes)
    away = shards_of_four.pictures.rename(tmp_path / "away")
    for number in range(2):
        shards_of_four.part(0).unlink(missing_ok=True)
        shards_of_four.part(number).unlink(missing_ok=True)
        completed = shards_of_four(sources="", code=5, says="png: no such file")
        assert "hint: the same command goes on from here" in completed.stderr
        shards_of_four.pictures.mkdir(exist_ok=True)
    shards_of_four.pictures.rmdir()
    away.rename(shards_of_four.pictures)
    read = load_file
    failing = iter([False] * 5 + [True] * 3)

    def load(path, options):
        if next(failing, False):
            raise unreadable(path, OSError(errno.ESTALE, "Stale file handle"))
        return read(path, options)

    monkeypatch.setattr("detcli.source.sources.load_file", load)
    shards_of_four(sources="")
    assert "Stale file handle; trying again" in caplog.text
    assert contents_of(shards_of_four.boxes) == complete_parts


def test_a_folder_that_cannot_be_listed_is_not_written_down(shards_of_four, monkeypatch):
    def scan(path):
        if path == "pics":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr("detcli.source.names.os.scandir", scan)
    shards_of_four(code=5, says="pics: cannot list it: Permission denied")
    shards_of_four(sources="gone pics", code=5, says="gone: no such file")
    assert not shards_of_four.boxes.exists()


def test_several_runs_at_once_publish_each_part_once(shards_of_four, tmp_path):
    command = ["predict", "pics", "-m", "colours.onnx", "-q", "-o", "boxes/", "--shard-size", 1]
    runs = [forked.start(command, cwd=tmp_path), forked.start(command, cwd=tmp_path)]
    for run in runs:
        run.join()
        assert run.exitcode == 0
    assert len(list(shards_of_four.boxes.iterdir())) == 11


def test_an_interrupt_says_how_to_go_on(shards_of_four, tmp_path):
    messages = tmp_path / "stderr"
    messages.touch()
    for number in range(10, 300):
        os.link(shards_of_four.pictures / "0001.png", shards_of_four.pictures / f"{number:04}.png")
    command = "predict pics -m colours.onnx -o boxes/ --shard-size 1 --conf 0.5"
    run = forked.start(command.split(), stderr=messages, cwd=tmp_path)
    while not list(shards_of_four.boxes.glob("part-*")):
        assert run.is_alive()
        time.sleep(0.005)
    os.kill(run.pid, signal.SIGINT)
    run.join()
    text = messages.read_text()
    assert run.exitcode == 130
    assert "interrupted with" in text
    assert "hint: the same command goes on from here" in text
    assert "Traceback" not in text
    shards_of_four(size=1)
    assert len(list(shards_of_four.boxes.glob("part-*"))) == 300


def test_the_manifest_tells_what_the_run_depends_on(shards_of_four):
    shards_of_four("--end 5 --max-pixels 100000")
    head = json.loads((shards_of_four.boxes / "_manifest.jsonl").read_text().splitlines()[0])
    assert head["inputs"] == {
        "start_s": 0,
        "end_s": 5,
        "max_pixels": 100_000,
        "strict": False,
        "lenient": False,
    }
    assert head["settings"]["conf"] == 0.5
    assert head["shard_size"] == 4


def test_a_folder_that_cannot_be_read_does_not_look_like_failed_images(shards_of_four):
    """Exit code 3 is that of a run that is complete but for some images."""
    shards_of_four.boxes.write_bytes(b"a file")
    shards_of_four(code=5, says="boxes")


def test_object_stores_are_not_installed(shards_of_four, invoke, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    says = 'pip install "detcli[cloud]"'
    assert "obstore" in shards_of_four(sources="s3://bucket/pics/", code=5, says=says).stderr
    completed = invoke("merge", "s3://bucket/boxes/")
    assert completed.returncode == 5
    assert (says in completed.stderr) is True


def test_ray_is_not_installed(predict, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    completed = predict("a.png -o boxes/ --on ray", code=5, says="--on ray needs Ray")
    assert 'pip install "detcli[ray]"' in completed.stderr
