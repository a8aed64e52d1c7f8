"""`detcli verify --certificate` and `--check`: what was compared, and whether it still holds."""

import hashlib
import json
from pathlib import Path

import pytest
from json_lines import column_of, text_of
from saved_records import SETTINGS, box, error, record, report_of

from detcli import __version__

HOSTILE = "</td><script>alert(1)</script>\"'&lt; \x1b[31m\u202e{}.png"


@pytest.fixture
def certificate_folder(tmp_path, monkeypatch, compared_images, make_model, broken):  # noqa: ARG001 - files
    """Two images, two models that agree and one that differs."""
    monkeypatch.chdir(tmp_path)
    make_model()
    make_model("b.onnx")
    return tmp_path


@pytest.fixture
def verify(verify, certificate_folder):  # noqa: ARG001 - where it runs
    return verify


@pytest.fixture
def certified(verify):
    """A certificate of two models that agree."""
    assert verify("colours.onnx", "b.onnx", CERTIFY).returncode == 0
    return Path("c.json")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


CERTIFY = ("--images", "pics", "--conf", 0.6, "--certificate", "c.json")


def test_two_models_that_agree(verify, certificate_folder):
    completed = verify("colours.onnx", "b.onnx", CERTIFY)
    assert completed.returncode == 0
    assert completed.stderr == "detcli: wrote a certificate: c.json\n"
    certificate = read(certificate_folder / "c.json")
    report = json.loads(completed.stdout)
    del report["schema_version"]
    assert certificate["report"] == report
    assert report["left"]["sha256"] == sha256(certificate_folder / "colours.onnx")
    assert report["right"]["sha256"] == sha256(certificate_folder / "b.onnx")
    hash_of_a = sha256(certificate_folder / "pics/a.png")
    hash_of_b = sha256(certificate_folder / "pics/b.png")
    assert certificate["pictures"] == [
        {"source": "pics/a.png", "sha256": hash_of_a, "found": True},
        {"source": "pics/b.png", "sha256": hash_of_b, "found": True},
    ]
    for side in (certificate["left"], certificate["right"]):
        assert side["records_sha256"] is None
        assert side["provenance"]["detcli"] == __version__
        assert side["settings"]["max_det"] == 300


def write(path, *records):
    path.write_text(text_of(records))


def test_two_saved_runs(verify, certificate_folder, make_image):
    make_image("pics/1.png", size=(40, 400))
    provenance = {"detcli": "9.9", "gpu": "NVIDIA H200", "driver": "580.65", "x": [], "system": 1}
    head = {"settings": SETTINGS, "provenance": provenance}
    write(
        certificate_folder / "a.jsonl",
        record("/x/1.png", box(), sha256="1" * 64, **head),
        record("/x/2.png"),
    )
    write(
        certificate_folder / "b.jsonl",
        record("/y/1.png", box(0.8), sha256="1" * 64),
        record("/y/2.png"),
    )
    completed = verify("a.jsonl", "b.jsonl", "--images", "pics", "--certificate", "c.json")
    assert completed.returncode == 6
    certificate = read(certificate_folder / "c.json")
    assert certificate["left"]["records_sha256"] == sha256(certificate_folder / "a.jsonl")
    assert certificate["left"]["provenance"]["gpu"] == "NVIDIA H200"
    assert certificate["left"]["provenance"]["system"] is None
    assert "x" not in certificate["left"]["provenance"]
    assert certificate["right"]["settings"] is certificate["right"]["provenance"] is None
    assert certificate["pictures"] == [
        {"source": "/x/1.png", "sha256": "1" * 64, "found": True},
        {"source": "/x/2.png", "sha256": None, "found": False},
    ]


def test_hashes_of_saved_runs(verify, certificate_folder, make_image):
    """Without any in the records they are those of the files now; a video is listed once."""
    path = make_image("pics/1.png", size=(40, 400))
    records = [record("/x/1.png", box())]
    for frame in range(2):  # in turns, as two cameras write them
        records.append(record("a.mp4", box(), frame=frame, sha256="a" * 64))
        records.append(record("b.mp4", box(), frame=frame, sha256="b" * 64))
    (certificate_folder / "a.jsonl").write_text(text_of(records))
    completed = verify("a.jsonl", "a.jsonl", "--images", "pics", "--certificate", "c.json")
    assert completed.returncode == 0
    assert read(certificate_folder / "c.json")["pictures"] == [
        {"source": "/x/1.png", "sha256": sha256(path), "found": True},
        {"source": "a.mp4", "sha256": "a" * 64, "found": False},
        {"source": "b.mp4", "sha256": "b" * 64, "found": False},
    ]
    assert verify("--check", "c.json").returncode == 0


def test_names_of_strangers_are_only_text(verify, certificate_folder):
    hostile_record = record(HOSTILE, box(name=HOSTILE), model=HOSTILE, provenance={"gpu": HOSTILE})
    write(
        certificate_folder / "a.jsonl",
        hostile_record | {"settings": {HOSTILE: HOSTILE}},
        error(HOSTILE, "\ud800"),
    )
    write(
        certificate_folder / "b.jsonl",
        record(HOSTILE, box(shift=3), device=HOSTILE),
        error(HOSTILE),
    )
    assert verify("a.jsonl", "b.jsonl", "--certificate", "<b>.json").returncode == 6
    assert read(certificate_folder / "<b>.json")["left"]["provenance"]["gpu"] == HOSTILE
    completed = verify("--check", "<b>.json", "--format", "table")
    assert completed.returncode == 6
    assert "\x1b" not in completed.stdout + completed.stderr


@pytest.mark.usefixtures("certified")
def test_a_certificate_holds_until_something_changes(reports, verify, make_image, make_model):
    report = reports(0, "--check", "c.json")
    assert report["holds"] is True
    assert report["changes"] == []
    assert report["report"]["agree"] is True
    make_image("pics/a.png", ("red", 1, 2))
    make_image("pics/c.png")
    make_model("b.onnx", tail="authors")
    completed = verify("--check", "c.json")
    assert completed.returncode == 6
    report = report_of(completed)
    assert not report["holds"]
    assert column_of(report["changes"], "what") == [
        "right model sha256", "input pics/a.png", "input pics/c.png", "images compared",
    ]  # fmt: skip
    assert column_of(report["changes"], "matters") == [True, True, True, False]
    assert "c.json no longer holds: right model sha256 was " in completed.stderr
    table = verify("--check", "c.json", "--format", "table").stdout
    assert "the certificate does not hold" in table
    assert "input pics/c.png" in table


def test_an_image_may_be_named_twice(verify, certificate_folder):
    assert verify("colours.onnx", "b.onnx", "--images", "pics", CERTIFY).returncode == 0
    completed = verify("--check", "c.json")
    assert completed.returncode == 0
    assert report_of(completed)["changes"] == []
    certificate = json.loads((certificate_folder / "c.json").read_text())
    a = certificate["pictures"].pop(0)
    certificate["pictures"][0]["sha256"] = "00" * 32
    (certificate_folder / "c.json").write_text(json.dumps(certificate))
    changes = report_of(verify("--check", "c.json"))["changes"]
    change_of_a, change_of_b = changes
    assert change_of_a["what"] == "input pics/a.png"
    assert change_of_a["before"] is None
    assert change_of_a["now"] == a["sha256"]
    assert change_of_b["what"] == "input pics/b.png"
    assert change_of_b["before"] == "00" * 32


def test_a_certificate_that_sides_differ_never_holds(reports, verify):
    assert verify("colours.onnx", "broken.onnx", CERTIFY).returncode == 6
    report = reports(6, "--check", "c.json")
    assert report["holds"] is False
    assert report["changes"] == []


@pytest.mark.parametrize(("options", "unique"), [((), False), (("--nms", "0.5"), True)])
def test_the_settings_say_whether_an_anchor_gives_one_detection(
    verify, certificate_folder, options, unique
):
    certify = ("--images", "pics", "--conf", 0.6, "--certificate", "c.json")
    assert verify("colours.onnx", "b.onnx", certify, options).returncode == 0
    certificate = read(certificate_folder / "c.json")
    assert certificate["left"]["settings"]["unique"] is unique
    assert certificate["right"]["settings"]["unique"] is unique
    del certificate["left"]["settings"]["unique"]  # as earlier versions wrote it
    certificate["right"]["settings"] = {**certificate["right"]["settings"], "unique": not unique}
    (certificate_folder / "c.json").write_text(json.dumps(certificate))
    changes = report_of(verify("--check", "c.json"))["changes"]
    assert column_of(changes, "what") == ["right setting unique"]


@pytest.mark.slow
def test_what_is_told_and_what_matters(verify, certified):
    before = certified.read_text()
    for path, value, subject, matters in (
        (("report", "agree"), False, "verdict", True),
        (("left", "provenance", "onnxruntime"), "1.0", "left onnxruntime", False),
        (("left", "provenance", "begun"), "1.0", None, False),
        (("right", "settings", "nms"), 0.5, "right setting nms", True),
        (("right", "records_sha256"), "0", "right records sha256", True),
        (("report", "tolerance", "score"), 1, "tolerance of score", True),
        (("report", "detections", "pairs"), 9, "pairs", False),
        (("report", "detections", "left"), 9, "boxes on the left", False),
        (("report", "detections", "over"), 9, "pairs beyond the tolerance", False),
        (("report", "left", "device"), "cuda:0", "left device", False),
        (("report", "right", "precision"), "int8", "right precision", True),
        (("report", "left", "model"), "x.onnx", "left model", False),
        (("report", "right", "selection"), "graph", "right selection", False),
        (("report", "left", "records"), "x.jsonl", "left records", False),
        (("report", "detections", "conf"), 0.1, "confidence", True),
        (("request", "iou"), 0.4, "IoU of a match", True),
        (("report", "detections", "reordered"), 9, "images with pairs in another order", False),
        (("report", "detections", "disagreeing"), 0.5, "share of disagreeing boxes", False),
    ):
        content = part = json.loads(before)
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        certified.write_text(json.dumps(content))
        completed = verify("--check", "c.json")
        assert completed.returncode == (6 if matters else 0)
        changes = report_of(completed)["changes"]
        if subject is None:
            assert changes == []
        else:
            (change,) = changes
            assert change["what"] == subject
            assert change["matters"] == matters


def test_a_check_of_saved_runs(reports, verify, certificate_folder):
    for name in "ab":
        write(certificate_folder / f"{name}.jsonl", record("1.png", box(), settings=SETTINGS))
    verify("a.jsonl", "b.jsonl", "--certificate", "c.json", "--tolerance", "score=0.5")
    assert verify("--check", "c.json").returncode == 0
    write(
        certificate_folder / "b.jsonl",
        record("1.png", box(0.89), settings=SETTINGS | {"max_det": 9}),
    )
    changes_that_matter = set()
    for change in reports(6, "--check", "c.json")["changes"]:
        if change["matters"]:
            changes_that_matter.add(change["what"])
    assert changes_that_matter == {"right records sha256", "right setting max_det"}


@pytest.mark.parametrize("change", ["bytes", "gone"])
def test_a_check_of_saved_runs_looks_at_their_images(
    reports, verify, certificate_folder, make_image, change
):
    path = make_image("pics/1.png", size=(40, 400))
    write(certificate_folder / "a.jsonl", record("/x/1.png", box(), sha256=sha256(path)))
    verify("a.jsonl", "a.jsonl", "--images", "pics", "--certificate", "c.json")
    assert reports(0, "--check", "c.json")["changes"] == []
    path.unlink()
    if change == "bytes":
        make_image("pics/1.png", ("red", 1, 1), size=(40, 400))
    report = reports(6, "--check", "c.json")
    assert ("verdict" if change == "bytes" else "input /x/1.png") in set(
        column_of(report["changes"], "what")
    )


@pytest.mark.usefixtures("certified")
def test_a_check_takes_no_other_options(verify):
    """Not even with the value that the certificate has."""
    for options in (
        ["MODEL"], ["--conf", 0.6], ["--device", "cpu"], ["--half"], ["--random", 0],
        ["--certificate", "d.json"],
    ):  # fmt: skip
        completed = verify(options, "--check", "c.json")
        assert completed.returncode == 2
        assert f"takes no {options[0]}\n  hint: leave out {options[0]}\n" in completed.stderr


@pytest.mark.usefixtures("certified")
def test_a_check_goes_before_the_users_defaults(verify, monkeypatch):
    monkeypatch.setenv("DETCLI_MODEL", "none.onnx")
    monkeypatch.setenv("DETCLI_DEVICE", "cuda:7")
    completed = verify("--check", "c.json", "--report", "page", "-q")
    assert completed.returncode == 0
    assert completed.stderr == ""


@pytest.fixture
def saved_request(verify, certificate_folder):
    """What a certificate of two saved runs asks for."""
    for name in "ab":
        write(certificate_folder / f"{name}.jsonl", record("1.png", box(), settings=SETTINGS))
    verify("a.jsonl", "b.jsonl", "--certificate", "c.json")
    return read(certificate_folder / "c.json")["request"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"model": 1}, "no usable model or images"),
        ({"images": [1]}, "no usable model or images"),
        ({"iou": None}, "no usable iou or tolerance"),
        ({"tolerance": None}, "no usable iou or tolerance"),
        ({"tolerance": {"x": 1}}, "'x' is unknown"),
        ({"tolerance": {"score": "x"}}, "'x' is not a number"),
        ({"tolerance": [1]}, "no usable iou or tolerance"),
        ({"tolerance": {"score": -1}}, "score is -1"),
        ({"box_format": "round"}, "--box-format: 'round' is not one of"),
        ({"box_format": ["xyxy"]}, "--box-format: \"['xyxy']\" is not one of"),
        ({"imgsz": True}, "--imgsz: 'True' is not a valid int"),
        ({"half": 1}, "--half: '1' is not a valid bool"),
        ({"gpu_decode": False}, None),  # of certificates of earlier versions
        ({"gpu_decode": True}, "it compares decoders"),
        ({"conf": 7}, "conf is 7"),
        ({"iou": float("nan")}, "--iou: 'nan'"),
        ({"device": None}, None),
        ({"device": "cpu,cuda"}, "names several devices"),
        ({"other": None}, "holds saved records"),
    ],
)
def test_certificates_of_strangers(verify, certificate_folder, saved_request, change, says):
    strange = {"schema_version": 2,
               "report": {"detections": [], "left": 1, "tolerance": "x"}, "left": [], "right": 7,
               "pictures": [1, {}, {"source": []}, {"source": "\x1b[31m", "sha256": {}}],
               "date": ["x"]}  # fmt: skip
    request = saved_request | change
    del request["nms"], request["recursive"]  # what is not there was not asked for
    (certificate_folder / "c.json").write_text(json.dumps(strange | {"request": request}))
    completed = verify("--check", "c.json", "--format", "table")
    assert completed.returncode == (2 if says else 6)
    assert (says or "no longer holds") in completed.stderr
    assert "\x1b" not in completed.stdout + completed.stderr
    assert "bug" not in completed.stderr


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (1, "has schema version 1,"),
        (3, "has schema version 3,"),
        (99, "has schema version 99,"),
        (-1, "has schema version -1,"),
        ("2", 'has schema version "2",'),
        (2.5, "has schema version 2.5,"),
        (True, "has schema version true,"),
        ([2], "has schema version [2],"),
        ("x" * 5000, 'has schema version "xxx'),
        (None, "does not say its schema version,"),
    ],
)
def test_a_certificate_of_another_schema_version_is_refused(verify, certified, version, says):
    content = read(certified)
    assert content["schema_version"] == 2
    content["schema_version"] = version
    certified.write_text(json.dumps(content))
    completed = verify("--check", certified)
    assert completed.returncode == 2
    assert f"cannot check c.json: the certificate {says}" in completed.stderr
    assert "this detcli reads version 2" in completed.stderr
    assert len(completed.stderr) < 1000


def test_a_certificate_without_a_schema_version_is_refused(verify, certified):
    content = read(certified)
    del content["schema_version"]
    certified.write_text(json.dumps(content))
    completed = verify("--check", certified)
    assert completed.returncode == 2
    assert "does not say its schema version" in completed.stderr


def test_names_in_certificates_of_strangers(verify, certificate_folder, saved_request):
    def check(**changes):
        (certificate_folder / "c.json").write_text(
            json.dumps({"schema_version": 2, "report": {}, "request": saved_request | changes})
        )
        return verify("--check", "c.json")

    for name in ("x" * 300 + ".jsonl", "/dev/null/x.jsonl", "\ud800.jsonl"):
        completed = check(other=name)
        assert completed.returncode == 3
        assert "cannot read" in completed.stderr
    completed = check(other="\0.jsonl")
    assert completed.returncode == 2
    assert "NUL character" in completed.stderr
    for field, value in (("model", "\0.onnx"), ("images", ["\0"]), ("device", "\0")):
        completed = check(**{"model": "x.onnx", "other": None, "images": ["pics"], field: value})
        assert completed.returncode in {2, 4}
        assert "bug" not in completed.stderr


def test_other_files_are_no_certificates(verify, certificate_folder):
    for content in ("", "[]", "{}", "1", '{"request": {}, "report": {}}', "[" * 9999):
        (certificate_folder / "c.json").write_text(content)
        completed = verify("--check", "c.json")
        assert completed.returncode == 2
        assert "cannot check c.json" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--check", "none.json"], 2, "No such file"),
        (["--check", "c.json", "--images", "pics"], 2, "--check compares what its certificate"),
        (["colours.onnx", "b.onnx", CERTIFY[:-1], "c.txt"], 2, "does not end with .json"),
        (["colours.onnx", "b.onnx", CERTIFY[:-1], "no/c.json"], 1, "cannot write no/c.json"),
        (["colours.onnx", "b.onnx", CERTIFY, "--tensors"], 2, "--certificate is about detections"),
        (["a.json", "a.json", "--certificate", "a.json"], 2, "a.json is one of the inputs"),
    ],
)
def test_requests_that_cannot_be_met(verify, certificate_folder, arguments, code, says):
    content = f"[\n{json.dumps(record('1.png', box()))}\n]\n"
    (certificate_folder / "a.json").write_text(content)
    completed = verify(arguments)
    assert completed.returncode == code
    assert says in completed.stderr
    assert (certificate_folder / "a.json").read_text() == content
    assert list(certificate_folder.glob("*.part")) == []


def test_a_run_that_fails_leaves_no_certificate(verify, certificate_folder):
    assert verify("colours.onnx", "none.onnx", CERTIFY).returncode == 4
    assert list(certificate_folder.glob("c.*")) == []
    assert list(certificate_folder.glob(".*part")) == []
