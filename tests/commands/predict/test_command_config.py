"""Rows that say they change no boxes do not: one run on one picture for each of them."""

import json
from importlib.util import find_spec

import optional
import pytest
from colour_model import cell_box
from shard_engine import open_here

from detcli.config.config import Config
from detcli.config.option import options_of
from detcli.run.counts import Counts

pytestmark = pytest.mark.slow

OPTIONS = options_of(Config)
# Without --follow, which takes no file and has no end: see test_command_follow.
CLAIMS = [
    name for name, option in OPTIONS.items() if not option.affects_detections and name != "follow"
]
WORDS = {
    "apply": ["--apply", "marks.json"],
    "source": ["b.png"],
    "files_from": ["--files-from", "names.txt"],
    "fps": ["--fps", "30", "-"],
    "null": ["--null"],
    "device": ["--device", "openvino" if find_spec("openvino") else "cpu,cpu"],
    "cuda_graph": ["--no-cuda-graph"],
    "gpu_mem_limit": ["--gpu-mem-limit", "2GiB"],
    "output": ["-o", "boxes.json"],
    "labels": ["--labels", "score"],
    "blur": ["--blur", "red", "--save", "out"],
    "blur_margin": ["--blur-margin", "3"],
    "fail_if": ["--fail-if", "red>100"],
    "coco_images": ["--coco-images", "instances.json", "--save-coco", "found.json"],
    "save_mot": ["--save-mot", "mot", "--track", "bytetrack"],
    "on": ["--on", "local:2"],
    "shards": ["--shards", "1/1"],
}
SQUARES = (("red", 1, 1), ("green", 3, 3), ("blue", 5, 2))
BOXES = [(number, 1.0, *cell_box(*cell)) for number, (_, *cell) in enumerate(SQUARES)]
BY_KIND = {bool: [], int: ["3"], float: ["30"]}


def words_of(name):
    """The words that set an option, and what it needs."""
    option = OPTIONS[name]
    if name in WORDS:
        words = WORDS[name]
    elif option.value_type in BY_KIND and (option.metavar or option.value_type is bool):
        words = [option.flag, *BY_KIND[option.value_type]]
    else:
        words = [
            option.flag,
            *([option.choices[-1] if option.choices else name] if option.metavar else []),
        ]
    needed = [word for need, *_ in map(str.split, option.needs) if f"--{need}" not in words
              and need not in {"track", "save_coco"} for word in words_of(need)]  # fmt: skip
    folder = ["-o", "parts/"] if option.panel == "Runs in shards" else []
    return [*words, *needed, *folder]


@pytest.fixture
def boxes_of(invoke, make_model, make_picture, tmp_path, monkeypatch):
    """The boxes of one picture that a run with these words records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETCLI_DEVICE", "cpu")
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
    monkeypatch.setattr("detcli.source.stdin.read_stdin", lambda *_: iter(()))
    monkeypatch.setattr("detcli.sink.window.WindowSink.__init__", lambda *_: None)
    monkeypatch.setattr("detcli.sink.window.WindowSink.write", lambda *_: None)
    monkeypatch.setattr("detcli.sink.window.WindowSink.close", lambda *_: None)
    picture = make_picture("a.png", *SQUARES)
    make_picture("b.png", ("red", 2, 2))
    (tmp_path / "names.txt").write_text(f"{tmp_path / 'b.png'}")
    (tmp_path / "marks.json").write_text("[]")
    names = [{"id": number, "name": name} for number, name in enumerate(("red", "green", "blue"))]
    images = [{"id": number, "file_name": name} for number, name in ((1, "a.png"), (2, "b.png"))]
    document = {"images": images, "categories": names, "annotations": []}
    (tmp_path / "instances.json").write_text(json.dumps(document))
    seen = []
    monkeypatch.setattr(Counts, "add", noting(Counts.add, seen))

    def run(*words):
        seen.clear()
        done = invoke("predict", picture, "-m", make_model(), "--conf", "0.5", *words)
        assert done.returncode == 0, done.stderr
        (record,) = [one for one in seen if one.origin.source == str(picture)]
        found = record.detections
        boxes = zip(found.class_id, found.score, found.xyxy.tolist(), strict=True)
        return sorted((int(number), round(float(score), 3), *box) for number, score, box in boxes)

    return run


def noting(add, seen):
    def note(self, record):
        seen.append(record)
        add(self, record)

    return note


@pytest.mark.parametrize("name", CLAIMS)
def test_a_row_that_says_it_changes_no_boxes_does_not(name, boxes_of):
    words = words_of(name)
    if "--track" in words:
        optional.require("trackers")
    assert boxes_of(*words) == BOXES


def test_a_row_that_changes_boxes_is_noticed(boxes_of):
    assert boxes_of() == BOXES
    assert boxes_of("--classes", "red") == BOXES[:1]
