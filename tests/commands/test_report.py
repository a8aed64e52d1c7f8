"""`detcli report`, and `--report` of predict: the same page."""

import json
import shutil
from types import SimpleNamespace

import cv2
import number_video
import numpy as np
import optional
import pages
import pytest
from colour_model import image
from json_lines import (
    column_of,
    lines,
    optional_column_of,
    records_by_source,
    records_with,
    text_of,
)
from labelled import Scene, write_coco

from detcli.core.errors import SourceError
from detcli.run.saved import read_records


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """The folder of the first run of `finished_run`, still empty, and what that run printed."""
    return SimpleNamespace(folder=tmp_path_factory.mktemp("first-run"), completed=None)


@pytest.fixture
def finished_run(first_run, predict, make_image, tmp_path, monkeypatch):
    """A run over a folder, which has a damaged image and a video too; it is a copy of the first."""
    monkeypatch.chdir(tmp_path)
    if first_run.completed is not None:
        shutil.copytree(first_run.folder, tmp_path, dirs_exist_ok=True)
        return first_run.completed
    make_image("pics/a.png", ("red", 2, 3))
    make_image("pics/b.png")
    (tmp_path / "pics/torn.png").write_bytes((tmp_path / "pics/a.png").read_bytes()[:60])
    video = number_video.open_writer(tmp_path / "pics/film.mp4", (64, 64))
    for _ in range(4):
        video.write(image(("blue", 2, 2)))
    video.release()
    first_run.completed = predict("pics --conf 0.5 -o boxes.jsonl --report page", code=3)
    shutil.copytree(tmp_path, first_run.folder, dirs_exist_ok=True)
    return first_run.completed


@pytest.fixture
def report(invoke, tmp_path):
    """Make a page of records."""

    def run(line, code=0, says=""):
        completed = invoke("report", line.split(), cwd=tmp_path)
        assert completed.returncode == code, completed.stderr
        assert completed.stdout == "", completed.stderr
        assert says.lower() in completed.stderr.lower()
        return completed

    return run


def named(folder):
    """Entries with the content of their images instead of their names."""
    entries = pages.entries(folder)
    for entry in entries:
        if "picture" in entry:
            entry["picture"] = (folder / f"pictures/{entry['picture']}.jpg").read_bytes()
    return entries


def test_a_run_says_where_its_page_is(finished_run, tmp_path):
    assert "detcli: wrote 7 records to the page page/index.html\n" in finished_run.stderr
    assert len(pages.entries(tmp_path / "page")) == 7
    (run,) = pages.runs(tmp_path / "page")
    facts = dict(run["facts"])
    assert facts["model"] == "colours"
    assert len(facts["model sha256"]) == 64
    assert facts["conf"] == "0.5"
    assert {"detcli", "Python", "ONNX Runtime", "OpenCV", "NumPy"} <= facts.keys()
    assert run["floor"] == 0.5
    assert "saved" not in (tmp_path / "boxes.jsonl").read_text()


@pytest.mark.usefixtures("finished_run", "shards_here")
def test_a_page_from_records_is_that_of_the_run(report, predict, detcli, tmp_path):
    """Of lines, an array, standard input and a run in shards."""
    completed = report("boxes.jsonl -o later")
    assert completed.stderr == "detcli: wrote a page of 7 records: later/index.html\n"
    lines = (tmp_path / "boxes.jsonl").read_text()
    array = ",\n".join(lines.splitlines())
    (tmp_path / "boxes.json").write_text(f"[\n{array}\n]\n")
    report("boxes.json -o one")
    assert detcli("report", "-", "-o", "two", cwd=tmp_path, input=lines).returncode == 0
    predict("pics --conf 0.5 -o boxes/ -q", code=3)
    report("boxes -o three")
    expected = named(tmp_path / "page")
    for name in ("later", "one", "two", "three"):
        assert named(tmp_path / name) == expected


def originals(folder):
    """The files that a page shows where they are, by their names."""
    paths = {}
    for address in column_of(records_with(pages.entries(folder), "original"), "original"):
        path = (folder / address).resolve()
        paths[path.name] = path
    return paths


@pytest.mark.usefixtures("finished_run")
def test_files_are_shown_where_they_are(report, predict, tmp_path, caplog):
    folder = tmp_path.resolve() / "pics"
    expected = {"a.png": folder / "a.png", "b.png": folder / "b.png"}
    predict("pics --conf 0.5 --report linked --report-link", code=3)
    assert originals(tmp_path / "linked") == expected
    report("boxes.jsonl -o later --report-link")
    assert originals(tmp_path / "later") == expected
    message = "4 of 6 images of the page are copies: they are in no file of their own"
    assert caplog.text.count(message) == 2  # frames
    refused = report("boxes.jsonl -o later --report-link --blur red", code=2)
    assert "leave out --report-link: copies are blurred" in refused.stderr


@pytest.mark.usefixtures("finished_run")
def test_so_does_what_compares(invoke, make_model, tmp_path):
    page = tmp_path / "linked"
    expected = {"a.png": (tmp_path / "pics/a.png").resolve()}
    linked = ("--images", tmp_path / "pics/a.png", "--report", page, "--report-link")
    assert invoke("verify", make_model(), make_model("other.onnx"), linked).returncode == 0
    assert originals(page) == expected
    linked = ("--images", "pics", "--report", page, "--report-link")
    invoke("verify", "boxes.jsonl", "boxes.jsonl", linked, cwd=tmp_path)
    assert originals(page).items() >= expected.items()
    data = write_coco(tmp_path / "data", [Scene.found(("red", 1, 1, 1.0))])
    invoke("eval", make_model(), "--data", data, "--report", page, "--report-link")
    assert originals(page) == {"0001.png": (tmp_path / "data/images/0001.png").resolve()}


@pytest.mark.usefixtures("finished_run")
@pytest.mark.parametrize("moved", ["elsewhere", "elsewhere/deep/pics"])
def test_images_are_found_in_another_folder(report, tmp_path, moved):
    (tmp_path / moved).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(tmp_path / "pics", tmp_path / moved)
    completed = report("boxes.jsonl -o later --images elsewhere")
    if moved == "elsewhere":
        assert named(tmp_path / "later") == named(tmp_path / "page")
    else:
        assert "6 images not found" in completed.stderr


@pytest.mark.usefixtures("finished_run")
def test_images_that_are_gone_leave_their_boxes(report, tmp_path):
    cv2.imwrite(str(tmp_path / "pics/a.png"), image(size=(32, 96)))  # another of the name
    report("boxes.jsonl -o other", says="1 image not found, or changed")
    shutil.rmtree(tmp_path / "pics")
    says = "6 images not found, or changed since\n  hint: name their folder with"
    report("boxes.jsonl -o later", says=says)
    assert pages.images(tmp_path / "later") == []
    boxes = optional_column_of(named(tmp_path / "page"), "found")
    assert optional_column_of(named(tmp_path / "later"), "found") == boxes


@pytest.mark.usefixtures("shards_here")
def test_a_run_in_shards_that_lacks_a_part_has_no_page(report, predict, make_image, tmp_path):
    make_image("b.png")
    predict("a.png b.png -o boxes/ --shard-size 1")
    (tmp_path / "boxes/part-00001.jsonl").unlink()
    completed = report("boxes -o page", code=6, says="part-00001.jsonl: missing")
    assert "complete the run" in completed.stderr
    assert not (tmp_path / "page").exists()


# Of version 1, which is read, too.
RECORD = {"schema_version": 1, "source": "a.png", "index": 0, "width": 64, "height": 64}
BOX = {"class_id": 0, "class_name": "red", "score": 0.5, "box": [1, 2, 3, 4]}


def with_boxes(**fields):
    return json.dumps({**RECORD, "detections": [], **fields})


def with_box(**fields):
    return json.dumps({**RECORD, "detections": [{**BOX, **fields}]})


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[]",
        "{}",
        '{"source": 1}',
        "[" * 10_000,
        "\udcff",
        json.dumps(RECORD),
        with_box(box=[1, 2, 3]),
        with_box(box=[1, 2, 3, float("inf")]),
        with_box(zones=[1]),
        with_box(class_id=10**30),
        with_box(class_name=None),
        with_box(track_id="7"),
        with_box(crossed=[{"line": "gate"}]),
        json.dumps({**RECORD, "error": "x"}),
        with_boxes(width=0),
        with_boxes(frame="1"),
        with_boxes(warnings=[1]),
    ],
)
def test_what_is_no_record_is_refused_by_its_line(report, tmp_path, line):
    (tmp_path / "x.jsonl").write_text(f"{with_box()}\n{line}\n", errors="surrogateescape")
    report("x.jsonl -o page", code=2, says="line 2 of x.jsonl is not a record of detcli")


@pytest.mark.parametrize("version", [3, "1", None])
def test_records_of_another_version_are_refused(report, tmp_path, version):
    (tmp_path / "x.jsonl").write_text(with_boxes(schema_version=version))
    report("x.jsonl -o page", code=2, says="x.jsonl is not a record of detcli: schema_version is")
    assert not (tmp_path / "page").exists()


def test_settings_of_strangers_are_only_text(report, tmp_path):
    settings = {"conf": "high", "x": [{"y": None}], "<b>": 1, "lines": "gate=0,0,1,1"}
    settings["zones"] = ["a=0,0", None, "b=0,0,1,0,1,1"]
    (tmp_path / "x.jsonl").write_text(with_boxes(settings=settings))
    report("x.jsonl -o page")
    (run,) = pages.runs(tmp_path / "page")
    assert run["floor"] == 0
    (zone,) = run["places"]
    assert zone[0] == "b"


def test_zones_and_lines_of_a_run_are_on_its_page(report, predict, tmp_path):
    optional.require("trackers")
    watched = "--zone left=0,0,0.5,0,0.5,1,0,1 --track bytetrack --line gate=0.5,0,0.5,1"
    predict(f"a.png {watched} --resume r.jsonl --report page")
    report("r.jsonl -o later")
    for place in ("page", "later"):
        (run,) = pages.runs(tmp_path / place)
        zone, line = run["places"]
        assert zone[0] == "left"
        assert zone[-1] == [0, 0, 0.5, 0, 0.5, 1, 0, 1]
        assert line[0] == "gate"
        assert line[-1] == [0.5, 0, 0.5, 1]
        (entry,) = pages.entries(tmp_path / place)
        assert ["left"] in entry["zones"]


@pytest.mark.parametrize("text", ["", "\n", "[]\n"])
def test_no_records_are_a_page_without_any(report, tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    report("x.jsonl -o page")
    assert pages.entries(tmp_path / "page") == []


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("absent.jsonl -o page", 3, "cannot read absent.jsonl"),
        ("x.jsonl", 2, "Missing option '--output'"),
        ("x.jsonl -o s3://bucket/page", 2, "cannot write to an object store"),
        ("x.jsonl -o .", 2, "has other files in it"),
        ("x.jsonl -o x.jsonl", 1, "cannot write x.jsonl"),
        ("x.jsonl -o loop", 1, "cannot write loop"),
        ("x.jsonl -o page --images absent", 2, "--images absent is not a folder"),
        ("x.jsonl -o page --images x.jsonl", 2, "--images x.jsonl is not a folder"),
    ],
)
def test_requests_that_are_refused(report, tmp_path, line, code, says):
    (tmp_path / "x.jsonl").write_text(with_box())
    (tmp_path / "loop").symlink_to("loop")
    report(line, code=code, says=says)


def test_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SourceError, match="standard input is closed"):
        next(read_records("-"))


def test_a_page_in_a_link_to_itself_is_an_error(predict, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    predict("a.png -o a.jsonl --report loop", code=1, says="cannot write loop")


def test_a_resumed_run_goes_on_with_its_page(predict, make_image, tmp_path):
    make_image("b.png")
    for names in ("a.png", "a.png b.png"):
        predict(f"{names} --resume r.jsonl --report page")
    sources = column_of(pages.entries(tmp_path / "page"), "source")
    assert sources == ["a.png", "b.png"]


def test_images_of_the_page_are_not_inputs(predict, make_image, tmp_path):
    make_image("pics/a.png", ("red", 2, 3))
    for _ in range(2):
        predict("pics -r -q -o x.jsonl --report pics/page")
    assert len(pages.entries(tmp_path / "pics/page")) == 1


def test_a_run_in_shards_is_told_of_the_command(predict):
    says = "--report does not go with a run in shards"
    assert "detcli report b/" in predict("a.png -o b/ --report page", code=2, says=says).stderr


@pytest.mark.usefixtures("finished_run")
def test_classes_can_be_hidden(tmp_path, report):
    path = tmp_path / "boxes.jsonl"
    records = lines(path.read_text())
    for record in records:
        for detection in record.get("detections", []):
            detection["text"] = "secret"
    path.write_text(text_of(records))
    report("boxes.jsonl -o plain")
    plain = records_by_source(named(tmp_path / "plain"))
    assert plain["pics/a.png"]["texts"] == ["secret"]
    for method in ("fill", "blur"):
        report(f"boxes.jsonl -o {method} --blur red --blur-with {method}")
        entries = records_by_source(named(tmp_path / method))
        assert entries["pics/b.png"]["picture"] == plain["pics/b.png"]["picture"]
        assert entries["pics/a.png"]["picture"] != plain["pics/a.png"]["picture"]
        assert entries["pics/a.png"]["found"] == plain["pics/a.png"]["found"]
        assert "texts" not in entries["pics/a.png"]
        if method == "fill":
            shown_image = cv2.imdecode(np.frombuffer(entries["pics/a.png"]["picture"], np.uint8), 1)
            left, top, right, bottom = map(round, entries["pics/a.png"]["found"][0][2:])
            assert np.ptp(shown_image[top:bottom, left:right].astype(int), axis=(0, 1)).max() < 30
    report("boxes.jsonl -o wide --blur red --blur-margin 2")
    (wide,) = [entry for entry in named(tmp_path / "wide") if entry["source"] == "pics/a.png"]
    assert wide["picture"] not in {entries["pics/a.png"]["picture"], plain["pics/a.png"]["picture"]}


@pytest.mark.usefixtures("finished_run")
def test_nothing_is_left_of_what_a_hidden_symbol_says(tmp_path, report):
    """Whichever detection has read it, and whatever its content is."""
    (record,) = lines((tmp_path / "boxes.jsonl").read_text())[:1]
    record |= {"source": "pics/a.png", "width": 64, "height": 64}
    box = {"score": 0.9, "x1": 8.0, "y1": 8.0, "x2": 24.0, "y2": 24.0}
    corners = [[10.0, 10.0], [20.0, 10.0], [20.0, 20.0], [10.0, 20.0]]
    symbol = {"text": "secret", "symbology": "QR Code", "doubt": True, "corners": corners}
    code = {"class_id": 0, "class_name": "red", **box, **symbol, "text": None, "bytes": "AAEC"}
    page = {"class_id": 2, "class_name": "blue", **box, **symbol, "x2": 60.0, "y2": 60.0}
    record["detections"] = [code, page]
    (tmp_path / "boxes.jsonl").write_text(json.dumps(record) + "\n")
    report("boxes.jsonl -o plain")
    (entry,) = named(tmp_path / "plain")
    assert entry["texts"] == ["", "secret"]
    assert entry["corners"] == [corners, corners]
    report("boxes.jsonl -o hidden --blur red")
    (entry,) = named(tmp_path / "hidden")
    assert "texts" not in entry
    assert "corners" not in entry


@pytest.mark.usefixtures("finished_run")
def test_a_track_that_was_hidden_says_nothing_on_a_page(tmp_path, report):
    (record,) = lines((tmp_path / "boxes.jsonl").read_text())[:1]
    box = {"score": 0.9, "x1": 8.0, "y1": 8.0, "x2": 24.0, "y2": 24.0, "text": "secret"}
    records = []
    for number, class_id in enumerate((2, 0, 2)):
        name = ("red", "green", "blue")[class_id]
        detection = {"class_id": class_id, "class_name": name, **box, "track_id": 4}
        frame = {"source": "film.mp4", "width": 64, "height": 64, "frame": number}
        records.append(record | frame | {"index": number, "detections": [detection]})
    (tmp_path / "boxes.jsonl").write_text(text_of(records))
    report("boxes.jsonl -o hidden --blur red")
    texts = optional_column_of(named(tmp_path / "hidden"), "texts", [""])
    assert texts == [["secret"], [""], [""]]


@pytest.mark.usefixtures("finished_run")
def test_the_class_of_id_0_is_hidden_by_its_id(tmp_path, report):
    for folder, blurred in (("by_id", "0"), ("by_name", "red")):
        report(f"boxes.jsonl -o {folder} --blur {blurred} --blur-with fill")
    report("boxes.jsonl -o plain")
    by_id = named(tmp_path / "by_id")
    by_name = named(tmp_path / "by_name")
    assert column_of(by_id, "source") == column_of(by_name, "source")
    assert optional_column_of(by_id, "picture") == optional_column_of(by_name, "picture")
    hidden = records_by_source(by_id)["pics/a.png"]
    plain = records_by_source(named(tmp_path / "plain"))["pics/a.png"]
    assert hidden["picture"] != plain["picture"]


# Classes that are no classes


@pytest.mark.usefixtures("finished_run")
@pytest.mark.parametrize(
    ("blur", "says"),
    [
        (
            "bleu",
            "--blur bleu: no record has a detection of this class\n  hint: did you mean blue?",
        ),
        ("rde", "no record has a detection of this class\n  hint: they have blue, red; leave"),
        ("red,person", "--blur person: no record has"),
        ("7", "--blur 7: no record has"),
    ],
)
def test_classes_that_no_record_has_are_refused(report, tmp_path, blur, says):
    report(f"boxes.jsonl -o page2 --blur {blur}", code=2, says=says)
    assert not (tmp_path / "page2").exists()


@pytest.mark.usefixtures("finished_run")
def test_classes_on_standard_input_are_checked_before_a_page_is_begun(detcli, tmp_path):
    text = (tmp_path / "boxes.jsonl").read_text()
    completed = detcli("report", "-", "-o", "two", "--blur", "rde", cwd=tmp_path, input=text)
    assert completed.returncode == 2
    assert not (tmp_path / "two").exists()
    completed = detcli("report", "-", "-o", "two", "--blur", "blue", cwd=tmp_path, input=text)
    assert completed.returncode == 0, completed.stderr
    assert len(pages.entries(tmp_path / "two")) == len(pages.entries(tmp_path / "page"))


def record_of(class_id, name, **more):
    detection = {"class_id": class_id, "class_name": name, "score": 0.5}
    detection |= {"x1": 1, "y1": 2, "x2": 3, "y2": 4}
    fields = {"schema_version": 2, "source": "a.png", "index": 0, "width": 64, "height": 64}
    return json.dumps({**fields, "detections": [detection], **more}) + "\n"


@pytest.mark.parametrize(
    ("record", "absent", "wrong"),
    [
        (record_of(2, "car"), "person,0", "persn"),  # of COCO's classes
        (record_of(0, "qr_code", model="codes"), "aruco", "qr_cod"),
        (record_of(1, "b", settings={"names": ["a", "b", "c"]}), "a,2", "d"),
    ],
)
def test_classes_of_the_model_that_were_not_found_are_mentioned(
    report, tmp_path, record, absent, wrong
):
    (tmp_path / "x.jsonl").write_text(record)
    says = f"no detection of {absent.replace(',', ', ')} to hide"
    report(f"x.jsonl -o page --blur {absent}", says=says)
    report(f"x.jsonl -o page --blur {wrong}", code=2, says=f"the model has no class '{wrong}'")


def test_where_nothing_was_found_any_class_may_be_absent(report, tmp_path):
    (tmp_path / "x.jsonl").write_text(with_boxes())
    report("x.jsonl -o page --blur face", says="no detection of face to hide")


# The user's defaults


@pytest.mark.usefixtures("finished_run")
def test_the_users_default_of_blur_holds_for_a_page(report, tmp_path, monkeypatch):
    report("boxes.jsonl -o typed --blur red --blur-with fill")
    report("boxes.jsonl -o plain")
    (tmp_path / "detcli.toml").write_text('blur = "red"\nblur-with = "fill"\nconf = 0.9\n')
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    report("boxes.jsonl -o default")
    assert named(tmp_path / "default") == named(tmp_path / "typed") != named(tmp_path / "plain")
    report("boxes.jsonl -o other --blur blue")
    assert named(tmp_path / "other") != named(tmp_path / "typed")
    says = "leave out --report-link: copies are blurred (--blur is from"
    report("boxes.jsonl -o linked --report-link", code=2, says=says)
    (tmp_path / "detcli.toml").write_text('blur = "rde"\n')
    report("boxes.jsonl -o wrong", code=2, says="--blur is from")


@pytest.mark.usefixtures("finished_run")
def test_a_page_of_a_comparison_says_that_it_hides_nothing(
    invoke, make_model, tmp_path, monkeypatch
):
    (tmp_path / "detcli.toml").write_text('blur = "red"\n')
    monkeypatch.setenv("DETCLI_CONFIG", str(tmp_path / "detcli.toml"))
    says = "the page of detcli verify shows images as they are"
    command = ("verify", "boxes.jsonl", "boxes.jsonl", "--images", "pics")
    completed = invoke(command, "--report", "compared", cwd=tmp_path)
    assert says in completed.stderr
    assert says not in invoke(command, cwd=tmp_path).stderr
    data = write_coco(tmp_path / "data", [Scene.found(("red", 1, 1, 1.0))])
    completed = invoke("eval", make_model(), "--data", data, "--report", "evaluated", cwd=tmp_path)
    assert "the page of detcli eval shows images as they are" in completed.stderr


# Images exchanged since


def exchange(path):
    """Put another image of the same size in place of one."""
    cv2.imwrite(str(path), image(("red", 6, 6), ("red", 1, 5)))


@pytest.fixture
def hashed(predict, finished_run, tmp_path):  # noqa: ARG001 - the images have to be there
    """Records with the hashes of their files."""
    predict("pics --conf 0.5 --provenance -o boxes.jsonl -q", code=3)
    return tmp_path / "boxes.jsonl"


@pytest.mark.usefixtures("hashed")
@pytest.mark.parametrize(
    "options", ["--blur red", "--blur red --blur-with fill", "", "--report-link"]
)
def test_an_image_that_was_exchanged_is_left_out(report, tmp_path, options):
    exchange(tmp_path / "pics/a.png")
    says = "1 image not found, or changed since"
    report(f"boxes.jsonl -o later {options}", says=says)
    entries = records_by_source(pages.entries(tmp_path / "later"))
    assert "picture" in entries["pics/b.png"]
    assert "picture" not in entries["pics/a.png"]
    assert len(entries["pics/a.png"]["found"]) == 1


@pytest.mark.usefixtures("hashed")
def test_an_image_of_the_same_content_is_shown_wherever_it_is(report, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for path in (tmp_path / "pics").iterdir():
        shutil.copyfile(path, tmp_path / "elsewhere" / path.name)
    shutil.rmtree(tmp_path / "pics")
    completed = report("boxes.jsonl -o later --images elsewhere --blur red")
    assert len(pages.images(tmp_path / "later")) == 6
    assert "by size only" not in completed.stderr


@pytest.mark.usefixtures("hashed")
def test_frames_of_a_video_that_was_exchanged_are_left_out(report, tmp_path):
    video = number_video.open_writer(tmp_path / "pics/film.mp4", (64, 64))
    for _ in range(4):
        video.write(image(("red", 5, 5)))
    video.release()
    report("boxes.jsonl -o later --blur red", says="4 images not found, or changed since")
    for entry in records_with(named(tmp_path / "later"), "frame"):
        assert "picture" not in entry


@pytest.mark.usefixtures("finished_run")
def test_images_whose_records_have_no_hash_are_counted(report):
    says = "6 images compared with the records by size only, as these have no hash"
    report("boxes.jsonl -o later --blur red", says=says)
    assert "by size only" not in report("boxes.jsonl -o later").stderr


@pytest.mark.usefixtures("finished_run")
def test_rows_of_images_that_are_gone_can_be_left_out(report, tmp_path):
    (tmp_path / "pics/a.png").unlink()
    says = "wrote a page of 6 records: later/index.html\n  1 record left out, as their images"
    report("boxes.jsonl -o later --existing", says=says)
    sources = set(column_of(pages.entries(tmp_path / "later"), "source"))
    assert sources == {"pics/b.png", "pics/torn.png", "pics/film.mp4"}


def test_rows_that_never_had_a_file_stay(report, tmp_path):
    (tmp_path / "pics.tar").touch()
    sources = ["-", "https://example.org/a.jpg", "s3://bucket/a.jpg", "camera:0", "pics.tar/a.jpg"]
    text = "".join(with_boxes(source=source) + "\n" for source in sources)
    (tmp_path / "boxes.jsonl").write_text(text)
    report("boxes.jsonl -o later --existing")
    assert column_of(pages.entries(tmp_path / "later"), "source") == sources


@pytest.mark.usefixtures("finished_run")
def test_images_without_detections_can_be_left_off_the_page(report, tmp_path):
    report("boxes.jsonl -o later --only-detections", says="wrote a page of 7 records")
    pictures = {}
    for entry in pages.entries(tmp_path / "later"):
        pictures[entry["source"]] = "picture" in entry
    assert pictures == {
        "pics/a.png": True,
        "pics/b.png": False,
        "pics/torn.png": False,
        "pics/film.mp4": True,
    }


@pytest.mark.usefixtures("finished_run")
def test_a_sample_has_rows_of_each_kind(report, tmp_path):
    says = "wrote a page of 3 records: later/index.html\n  a sample of 7 records, by score"
    report("boxes.jsonl -o later --sample 3", says=says)
    entries = pages.entries(tmp_path / "later")
    assert column_of(records_with(entries, "error"), "source") == ["pics/torn.png"]
    assert "pics/b.png" in set(column_of(entries, "source"))
    (run,) = pages.runs(tmp_path / "later")
    assert dict(run["facts"])["sample"] == "3,seed=0"


@pytest.mark.usefixtures("finished_run")
def test_a_sample_is_the_same_until_the_seed_changes(report, tmp_path):
    for folder, options in (("one", "4"), ("two", "4,seed=0"), ("three", "4,seed=5")):
        report(f"boxes.jsonl -o {folder} --sample {options}")
    assert named(tmp_path / "one") == named(tmp_path / "two")
    assert named(tmp_path / "one") != named(tmp_path / "three")


@pytest.mark.usefixtures("finished_run")
def test_marks_of_rows_that_are_not_shown_fit_all_the_same(report, tmp_path):
    (tmp_path / "pics/b.png").unlink()
    marks = [{"mark": "drop", "source": "pics/a.png"}, {"mark": "drop", "source": "pics/b.png"}]
    (tmp_path / "marks.json").write_text(json.dumps(marks))
    report("boxes.jsonl -o later --existing --sample 2 --apply marks.json", says="of 2 records")
    sources = set(column_of(pages.entries(tmp_path / "later"), "source"))
    assert sources == {"pics/torn.png", "pics/film.mp4"}


@pytest.mark.parametrize("value", ["0", "x", "5,6", "5,seed=", "-1"])
def test_what_is_no_sample_is_refused(report, value):
    report(f"boxes.jsonl -o later --sample={value}", code=2, says="is not N or N,seed=SEED")
