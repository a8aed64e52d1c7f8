"""`detcli models`, and models by name on the command line."""

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
import terminals
from hub_server import COMMIT
from json_lines import column_of

from detcli import __version__
from detcli.model import zoo

pytestmark = pytest.mark.slow


@pytest.fixture
def filled(hub, make_model):
    """A hub with a detector of half a megabyte."""
    padding = {"names": "{0: 'red', 1: 'green', 2: 'blue'}", "padding": "x" * 500_000}
    hub.add("yolov10n", make_model(metadata=padding).read_bytes())
    return hub


@pytest.fixture
def bundled(tmp_path, monkeypatch, make_model):
    """A stand-in for the bundled model, for commands in this process."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    monkeypatch.setattr(zoo, "BUNDLED", folder)
    return make_model().rename(folder / "codes.onnx")


def shown(command, **environment):
    """What a command shows on stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | environment
    ) as process:
        printed = process.stdout.read()
        assert process.wait(60) == 0
    os.close(theirs)
    screen = terminals.read_all(ours).decode()
    os.close(ours)
    return printed, screen


@pytest.mark.usefixtures("filled")
def test_predict_fetches_its_default_model_and_says_so(detcli, make_image):
    image = make_image("a.png", ("red", 2, 3))
    finished = detcli("predict", image, "--conf", 0.6)
    assert finished.returncode == 0
    (line,) = finished.stdout.splitlines()
    record = json.loads(line)
    assert record["model"] == "yolov10n"
    assert column_of(record["detections"], "class_name") == ["red"]
    first = finished.stderr.splitlines()[0]
    for part in ("fetching yolov10n", "onnx-community/yolov10n", COMMIT[:10], "MB", "AGPL-3.0"):
        assert part in first
    alone = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    second_run = detcli("predict", image, "--conf", 0.6, env=alone)
    assert second_run.stdout == finished.stdout
    assert "fetching" not in second_run.stderr


def test_quiet_fetches_silently(detcli, filled, make_image):
    finished = detcli("predict", make_image("a.png"), "-q", "-m", "yolov10n")
    assert finished.returncode == 0
    assert finished.stderr == ""
    assert len(filled.ranges()) == 1


def test_without_a_network_the_hint_names_three_ways_and_cached_files_do(detcli, hub, make_model):
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    finished = detcli("predict", "a.png", env=offline)
    assert finished.returncode == 4
    assert finished.stdout == ""
    missing, message, hint = finished.stderr.splitlines()
    assert missing == "detcli: error: a.png: no such file"
    assert "cannot fetch yolov10n" in message
    for text in ("the path of an ONNX file", "'codes'", "HF_ENDPOINT"):
        assert text in hint
    hub.add("yolov10n", make_model().read_bytes())
    assert detcli("models", "pull", "yolov10n").returncode == 0
    hub.requests.clear()
    assert detcli("models", "pull", "yolov10n", env=offline).returncode == 0
    assert hub.requests == []


def test_an_interrupted_download_leaves_nothing(detcli, filled, make_image):
    filled.faults.hang = "rest"
    command = [sys.executable, "-m", "detcli", "predict", str(make_image("a.png"))]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert b"fetching" in process.stderr.readline()
        content = zoo.MODELS["yolov10n"].file().storage / "blobs"
        while not list(content.glob("*.incomplete")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
    assert list(content.iterdir()) == []
    filled.faults.hang = ""
    assert detcli(command[3:]).returncode == 0


@pytest.mark.usefixtures("filled")
def test_a_bar_on_a_terminal_only(warm_detcli, make_image):
    command = [warm_detcli / "detcli", "predict", str(make_image("a.png"))]
    printed, errors = shown(command, TERM="xterm")
    assert json.loads(printed)["model"] == "yolov10n"
    assert "fetching yolov10n" in errors
    assert "━" in errors
    assert " kB" in errors.partition("fetching")[2].partition("\n")[2]


def test_nothing_about_the_user_is_sent(detcli, filled):
    environment = {**os.environ, "AI_AGENT": "somebody"}
    del environment["HF_HUB_DISABLE_TELEMETRY"]  # which the tests set for themselves
    assert detcli("models", "pull", "yolov10n", env=environment).returncode == 0
    for _, path, headers in filled.requests:
        assert headers["user-agent"].startswith(f"detcli/{__version__}; hf_hub/")
        assert headers["user-agent"].count(";") == 2  # and Python's version
        assert "/resolve/" in path or len(path) == len("/") + 64


def test_the_bundled_model_by_its_name(invoke, predict, bundled):
    (record,) = predict("a.png -m codes --conf 0.6").records
    assert record["model"] == "codes"
    assert column_of(record["detections"], "class_name") == ["red"]
    assert invoke("models", "path", "codes").stdout == f"{bundled}\n"


def test_a_listing_sends_no_requests_and_follows_what_is_fetched(hub, invoke, bundled):
    def files():
        models = json.loads(invoke("models", "list").stdout)["models"]
        assert column_of(models, "name") == list(zoo.MODELS)
        model_by_name = dict(zip(zoo.MODELS, models, strict=True))
        extra = model_by_name["yolov10x"]
        assert extra["parameters"] == 29_500_000
        assert extra["files"][0]["revision"] == "main"
        return {name: model["files"] for name, model in model_by_name.items()}

    def file(state, size=None, path=None, revision=None, *, half=False):
        path = None if path is None else str(path)
        return {"half": half, "state": state, "bytes": size, "path": path, "revision": revision}

    before = files()
    assert before["codes"] == [file("bundled", bundled.stat().st_size, bundled)]
    full_precision, half = before["yolov10n"]
    assert full_precision == file("to fetch", revision=COMMIT)
    assert half == file("to fetch", revision=COMMIT, half=True)
    assert hub.requests == []
    hub.add("yolov10s", b"small")
    path = zoo.pull("yolov10s")
    fetched, half = files()["yolov10s"]
    assert fetched == file("fetched", 5, path, COMMIT)
    assert half["state"] == "to fetch"
    bundled.unlink()
    assert files()["codes"] == [file("missing")]


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("columns", [40, 50])
def test_names_are_whole_on_a_narrow_terminal(columns):
    environment = {**os.environ, "COLUMNS": str(columns), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "detcli", "models", "list", "--format", "table"]
    listing = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first_words = {line.split()[0] for line in listing.stdout.splitlines()}
    assert first_words >= set(zoo.MODELS)


def test_list_as_a_table(hub, invoke, make_model):
    hub.add("yolov10n", make_model().read_bytes(), half=b"half")
    assert invoke("models", "pull", "yolov10n", "--half").returncode == 0
    lines = invoke("models", "list", "--format", "table").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines}
    for name, cells in {
        "codes": ["bundled", "Apache-2.0"],
        "yolov10n": ["to fetch", "~9 MB", COMMIT[:7]],
        "--half": ["4 bytes"],
        "yolov10s": ["not pinned"],
        "rfdetr-medium": ["not pinned"],
    }.items():
        for cell in cells:
            assert cell in rows[name]
    assert len(rows) == 1 + len(zoo.MODELS) + 1
    for line in lines:
        assert len(line.rstrip()) <= 80  # on any terminal
        assert "…" not in line
    for name, model in zoo.MODELS.items():
        if model.pinned:
            assert "not " not in rows[name]


@pytest.mark.usefixtures("bundled")
def test_models_of_a_licence(invoke):
    def models(licence):
        return json.loads(invoke("models", "list", "--licence", licence).stdout)["models"]

    free = set(column_of(models("apache"), "name"))
    assert {"codes", "dfine-n", "rfdetr-nano", "rtdetrv2-r18"} <= free
    for name in free:
        assert not name.startswith("yolo")
    assert set(column_of(models("AGPL"), "licence")) == {"AGPL-3.0"}


@pytest.mark.usefixtures("filled")
def test_pull_and_path(invoke, predict):
    before = invoke("models", "path", "yolov10n")
    assert before.returncode == 4
    assert "detcli models pull yolov10n" in before.stderr
    pulled = invoke("models", "pull", "yolov10n").stdout
    assert pulled == invoke("models", "path", "yolov10n").stdout
    assert pulled.endswith("onnx/model.onnx\n")
    output = f"-m yolov10n --format jsonl -o {pulled.strip()}"
    predict(f"a.png {output}", code=2, says="is one of the inputs")


@pytest.mark.parametrize(
    ("line", "exit_code", "words"),
    [
        ("pull", 2, "missing argument 'NAME...'"),
        ("pull yolov10q", 4, "no model has that name"),
        ("path yolov10", 4, "did you mean yolov10"),
        ("pull yolov10n --half", 4, "the repository has no such file"),
        ("remove yolov10n", 2, "hf cache rm model/onnx-community/NAME"),
        ("list --licence mit", 2, "no model has it"),
        ("fetch", 2, "no such command 'fetch'"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_errors_have_their_code(invoke, line, exit_code, words):
    finished = invoke("models", line.split())
    assert finished.returncode == exit_code
    assert finished.stdout == ""
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


def test_the_password_of_a_hub_is_in_no_log(hub, detcli):
    hub.add("yolov10n", b"content")
    address = hub.url.replace("://", "://user:S3cret%21@")
    completed = detcli(
        "models", "pull", "yolov10n", "-vv", env={**os.environ, "HF_ENDPOINT": address}
    )
    assert completed.returncode == 0
    assert "HTTP Request" in completed.stderr
    refused = {**os.environ, "HF_ENDPOINT": "http://user:S3cret%21@127.0.0.1:9"}
    failed = detcli("models", "pull", "yolov10s", "-vv", env=refused)
    assert "Traceback" in failed.stderr
    encoded = base64.b64encode(b"user:S3cret!").decode()
    for text in (completed.stdout, completed.stderr, failed.stdout, failed.stderr):
        assert "S3cret" not in text
        assert encoded not in text
