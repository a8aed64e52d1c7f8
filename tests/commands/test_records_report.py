"""`detcli report`, and `--report` of predict: the same page."""

import json
import shutil

import cv2
import numpy as np
import pages
import pytest
from colour_model import picture

from detcli.core.errors import SourceError
from detcli.run.saved import read_records


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A temporary working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(here, invoke, make_model, make_picture):
    """A run over a folder, which has a damaged picture and a video too."""
    model = make_model()
    make_picture("pics/a.png", ("red", 2, 3))
    make_picture("pics/b.png")
    (here / "pics/torn.png").write_bytes((here / "pics/a.png").read_bytes()[:60])
    fourcc = cv2.VideoWriter.fourcc(*"mp4v")
    video = cv2.VideoWriter("pics/film.mp4", fourcc, 10, (64, 64))
    for _ in range(4):
        video.write(picture(("blue", 2, 2)))
    video.release()
    done = invoke(
        *("predict", "pics", "-m", model, "--conf", "0.5"),
        *("-o", "boxes.jsonl", "--report", "page"),
    )
    assert done.returncode == 3
    return done


def named(place):
    """Entries with the content of their pictures instead of their names."""
    entries = pages.entries(place)
    for entry in entries:
        if "picture" in entry:
            entry["picture"] = (place / f"pictures/{entry['picture']}.jpg").read_bytes()
    return entries


def test_a_run_says_where_its_page_is(run, tmp_path):
    assert "detcli: wrote a page of 7 records: page/index.html\n" in run.stderr
    assert len(pages.entries(tmp_path / "page")) == 7
    (about,) = pages.runs(tmp_path / "page")
    facts = dict(about["facts"])
    assert facts["model"] == "colours"
    assert len(facts["model sha256"]) == 64
    assert facts["conf"] == "0.5"
    assert {"detcli", "Python", "ONNX Runtime", "OpenCV", "NumPy"} <= facts.keys()
    assert about["floor"] == 0.5


@pytest.mark.usefixtures("run")
def test_records_hold_nothing_of_the_page(tmp_path):
    assert "saved" not in (tmp_path / "boxes.jsonl").read_text()


@pytest.mark.usefixtures("run")
def test_a_page_from_records_is_that_of_the_run(invoke, tmp_path):
    done = invoke("report", "boxes.jsonl", "-o", "later")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "detcli: wrote a page of 7 records: later/index.html\n"
    assert named(tmp_path / "later") == named(tmp_path / "page")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("moved", ["elsewhere", "elsewhere/deep/pics"])
def test_pictures_are_found_in_another_folder(invoke, tmp_path, moved):
    (tmp_path / moved).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(tmp_path / "pics", tmp_path / moved)
    done = invoke("report", "boxes.jsonl", "-o", "later", "--images", "elsewhere")
    if moved == "elsewhere":
        assert named(tmp_path / "later") == named(tmp_path / "page")
    else:
        assert "6 pictures not found" in done.stderr


@pytest.mark.usefixtures("run")
def test_pictures_that_are_gone_leave_their_boxes(invoke, tmp_path):
    shutil.rmtree(tmp_path / "pics")
    done = invoke("report", "boxes.jsonl", "-o", "later")
    assert done.returncode == 0
    assert "6 pictures not found, or changed since\n  hint: name their folder with" in done.stderr
    assert pages.pictures(tmp_path / "later") == []
    found = [entry.get("found") for entry in named(tmp_path / "page")]
    assert [entry.get("found") for entry in named(tmp_path / "later")] == found


@pytest.mark.usefixtures("run")
def test_another_picture_of_the_name_is_not_shown(invoke, tmp_path):
    cv2.imwrite(str(tmp_path / "pics/a.png"), picture(size=(32, 96)))
    assert "1 picture not found, or changed" in invoke("report", "boxes.jsonl", "-o", "l").stderr


@pytest.mark.usefixtures("run")
def test_a_run_in_shards_has_a_page_too(invoke, detcli, make_model, tmp_path):
    detcli("predict", "pics", "-m", make_model(), "--conf", "0.5", "-o", "boxes/", "-q")
    assert invoke("report", "boxes", "-o", "later").returncode == 0
    assert named(tmp_path / "later") == named(tmp_path / "page")


def test_a_run_in_shards_that_lacks_a_part_has_no_page(
    invoke, detcli, make_model, make_picture, here
):
    names = [make_picture(name) for name in ("a.png", "b.png")]
    run = ("predict", *names, "-m", make_model(), "-o", "boxes/", "--shard-size", 1)
    assert detcli(*run).returncode == 0
    (here / "boxes/part-00001.jsonl").unlink()
    done = invoke("report", "boxes", "-o", "page")
    assert done.returncode == 3
    assert "part-00001.jsonl: missing" in done.stderr
    assert "complete the run" in done.stderr
    assert not (here / "page").exists()


@pytest.mark.usefixtures("run")
def test_records_in_an_array_and_on_standard_input(tmp_path, detcli):
    lines = (tmp_path / "boxes.jsonl").read_text()
    records = [json.loads(line) for line in lines.splitlines()]
    (tmp_path / "boxes.json").write_text(
        "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in records) + "\n]\n"
    )
    assert detcli("report", "boxes.json", "-o", "one", cwd=tmp_path).returncode == 0
    assert detcli("report", "-", "-o", "two", cwd=tmp_path, input=lines).returncode == 0
    assert named(tmp_path / "one") == named(tmp_path / "two") == named(tmp_path / "page")


RECORD = {"schema_version": 1, "source": "a.png", "index": 0, "width": 64, "height": 64}
BOX = {"class_id": 0, "class_name": "red", "score": 0.5, "box": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    "line",
    [
        "not JSON", "[]", "{}", '{"source": 1}', "[" * 10_000, "\udcff",
        json.dumps(RECORD),
        json.dumps({**RECORD, "detections": [{**BOX, "box": [1, 2, 3]}]}),
        json.dumps({**RECORD, "detections": [{**BOX, "box": [1, 2, 3, float("inf")]}]}),
        json.dumps({**RECORD, "detections": [{**BOX, "class_id": 10**30}]}),
        json.dumps({**RECORD, "detections": [{**BOX, "class_name": None}]}),
        json.dumps({**RECORD, "detections": [], "width": 0}),
        json.dumps({**RECORD, "detections": [], "frame": "1"}),
        json.dumps({**RECORD, "detections": [], "warnings": [1]}),
        json.dumps({**RECORD, "error": "x"}),
        json.dumps({**RECORD, "detections": [{**BOX, "track_id": "7"}]}),
        json.dumps({**RECORD, "detections": [{**BOX, "zones": [1]}]}),
        json.dumps({**RECORD, "detections": [{**BOX, "crossed": [{"line": "gate"}]}]}),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused_by_its_line(invoke, here, line):
    whole = json.dumps({**RECORD, "detections": [BOX]})
    (here / "x.jsonl").write_text(f"{whole}\n{line}\n", errors="surrogateescape")
    done = invoke("report", "x.jsonl", "-o", "page")
    assert done.returncode == 2, done.stderr
    assert "line 2 of x.jsonl is not a record of detcli" in done.stderr


def test_settings_of_strangers_are_only_text(invoke, here):
    settings = {"conf": "high", "x": [{"y": None}], "<b>": 1}
    record = {**RECORD, "detections": [BOX], "settings": settings}
    (here / "x.jsonl").write_text(json.dumps(record))
    assert invoke("report", "x.jsonl", "-o", "page").returncode == 0
    assert pages.runs(here / "page")[0]["floor"] == 0


@pytest.mark.parametrize("version", [2, "1", None])
def test_records_of_another_version_are_refused(invoke, here, version):
    record = {**RECORD, "detections": [BOX], "schema_version": version}
    (here / "x.jsonl").write_text(json.dumps(record))
    done = invoke("report", "x.jsonl", "-o", "page")
    assert done.returncode == 2
    assert "line 1 of x.jsonl is a record of another version" in done.stderr
    assert not (here / "page").exists()


def test_zones_and_lines_of_a_run_are_on_its_page(invoke, make_model, make_picture, here):
    zone, line = "left=0,0,0.5,0,0.5,1,0,1", "gate=0.5,0,0.5,1"
    watched = ("--zone", zone, "--track", "bytetrack", "--line", line)
    pytest.importorskip("trackers")
    command = ("predict", make_picture("a.png", ("red", 2, 3)), "-m", make_model(), *watched)
    assert invoke(*command, "--resume", "r.jsonl", "--report", "page").returncode == 0
    assert invoke("report", "r.jsonl", "-o", "later").returncode == 0
    for place in ("page", "later"):
        (about,) = pages.runs(here / place)
        shown = [(name, points) for name, *_, points in about["places"]]
        assert shown == [("left", [0, 0, 0.5, 0, 0.5, 1, 0, 1]), ("gate", [0.5, 0, 0.5, 1])]
        (entry,) = pages.entries(here / place)
        assert ["left"] in entry["zones"]


def test_places_of_strangers_are_left_out_where_they_are_none(invoke, here):
    settings = {"zones": ["a=0,0", None, "b=0,0,1,0,1,1"], "lines": "gate=0,0,1,1"}
    record = {**RECORD, "detections": [BOX], "settings": settings}
    (here / "x.jsonl").write_text(json.dumps(record))
    assert invoke("report", "x.jsonl", "-o", "page").returncode == 0
    assert [name for name, *_ in pages.runs(here / "page")[0]["places"]] == ["b"]


@pytest.mark.parametrize("text", ["", "\n", "[]\n"])
def test_no_records_are_a_page_without_any(invoke, here, text):
    (here / "x.jsonl").write_text(text)
    assert invoke("report", "x.jsonl", "-o", "page").returncode == 0
    assert pages.entries(here / "page") == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["absent.jsonl", "-o", "page"], 3, "cannot read absent.jsonl"),
        (["x.jsonl"], 2, "Missing option '--output'"),
        (["x.jsonl", "-o", "s3://bucket/page"], 2, "cannot write to an object store"),
        (["x.jsonl", "-o", "."], 2, "has other files in it"),
        (["x.jsonl", "-o", "x.jsonl"], 1, "cannot write x.jsonl"),
        (["x.jsonl", "-o", "loop"], 1, "cannot write loop"),
        (["x.jsonl", "-o", "page", "--images", "absent"], 2, "--images absent is not a folder"),
        (["x.jsonl", "-o", "page", "--images", "x.jsonl"], 2, "--images x.jsonl is not a folder"),
    ],
)
def test_requests_that_are_refused(invoke, here, arguments, code, said):
    (here / "x.jsonl").write_text(json.dumps({**RECORD, "detections": [BOX]}))
    (here / "loop").symlink_to("loop")
    done = invoke("report", *arguments)
    assert (said.lower() in done.stderr.lower(), done.returncode) == (True, code), done.stderr


def test_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SourceError, match="standard input is closed"):
        next(read_records("-"))


def test_a_page_in_a_link_to_itself_is_an_error(invoke, make_model, make_picture, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    command = ("predict", make_picture("a.png"), "-m", make_model(), "--report", tmp_path / "loop")
    done = invoke(*command, "-o", tmp_path / "a.jsonl")
    assert (done.returncode, f"cannot write {tmp_path}/loop" in done.stderr) == (1, True)


def test_a_resumed_run_goes_on_with_its_page(invoke, make_model, make_picture, tmp_path):
    first, second = make_picture("a.png", ("red", 2, 3)), make_picture("b.png")
    common = ("-m", make_model(), "--resume", tmp_path / "r.jsonl", "--report", tmp_path / "page")
    assert invoke("predict", first, *common).returncode == 0
    assert invoke("predict", first, second, *common).returncode == 0
    sources = [entry["source"] for entry in pages.entries(tmp_path / "page")]
    assert sources == [str(first), str(second)]


def test_pictures_of_the_page_are_not_inputs(invoke, make_model, make_picture, tmp_path):
    make_picture("pics/a.png", ("red", 2, 3))
    command = (
        "predict",
        tmp_path / "pics",
        "-r",
        "-m",
        make_model(),
        "-q",
        "-o",
        tmp_path / "x.jsonl",
    )
    for _ in range(2):
        assert invoke(*command, "--report", tmp_path / "pics/page").returncode == 0
    assert len(pages.entries(tmp_path / "pics/page")) == 1


def test_a_run_in_shards_is_told_of_the_command(invoke, make_model, make_picture, tmp_path):
    done = invoke("predict", make_picture("a.png"), "-m", make_model(), "-o", f"{tmp_path}/b/",
                  "--report", tmp_path / "page")  # fmt: skip
    assert done.returncode == 2
    assert "--report does not go with a run in shards" in done.stderr
    assert f"detcli report {tmp_path}/b/" in done.stderr


@pytest.mark.usefixtures("run")
def test_classes_can_be_hidden(here, invoke):
    lines = [json.loads(line) for line in (here / "boxes.jsonl").read_text().splitlines()]
    for line in lines:
        for one in line.get("detections", []):
            one["text"] = "secret"
    (here / "boxes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = invoke("report", "boxes.jsonl", "-o", "plain")
    assert done.returncode == 0, done.stderr
    for way in ("fill", "blur"):
        done = invoke("report", "boxes.jsonl", "-o", way, "--blur", "red,gren", "--blur-with", way)
        assert done.returncode == 0, done.stderr
        assert "nothing to hide was found of gren" in done.stderr
        entries = {entry["source"]: entry for entry in named(here / way)}
        plain = {entry["source"]: entry for entry in named(here / "plain")}
        assert entries["pics/b.png"]["picture"] == plain["pics/b.png"]["picture"]
        assert entries["pics/a.png"]["picture"] != plain["pics/a.png"]["picture"]
        assert entries["pics/a.png"]["found"] == plain["pics/a.png"]["found"]
        assert "texts" not in entries["pics/a.png"]
        assert plain["pics/a.png"]["texts"] == ["secret"]
        if way == "fill":
            shown = cv2.imdecode(np.frombuffer(entries["pics/a.png"]["picture"], np.uint8), 1)
            left, top, right, bottom = map(round, entries["pics/a.png"]["found"][0][2:])
            assert np.ptp(shown[top:bottom, left:right].astype(int), axis=(0, 1)).max() < 30
