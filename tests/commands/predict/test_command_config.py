"""Rows that say they change no boxes do not: one run on one image for each of them."""

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
OPTIONS_WITHOUT_EFFECT = [
    name for name, option in OPTIONS.items() if not option.affects_detections and name != "follow"
]
WORDS = {
    "apply": ["--apply", "marks.json"],
    "base": ["--base", "/"],
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
    "burst": ["--burst", "60s", "-o", "boxes.json"],
    "crop_margin": ["--crop-margin", "16px"],
    "fail_if": ["--fail-if", "red>100"],
    "coco_images": ["--coco-images", "instances.json", "--save-coco", "found.json"],
    "save_mot": ["--save-mot", "mot", "--track", "bytetrack"],
    "on": ["--on", "local:2"],
    "shards": ["--shards", "1/1"],
}
SQUARES = (("red", 1, 1), ("green", 3, 3), ("blue", 5, 2))
BOXES = [
    (0, 1.0) + tuple(cell_box(1, 1)),
    (1, 1.0) + tuple(cell_box(3, 3)),
    (2, 1.0) + tuple(cell_box(5, 2)),
]
VALUES_BY_TYPE = {bool: [], int: ["3"], float: ["30"]}


def words_of_option(name):
    """The words that set an option: those of the table, or a value of its type."""
    if name in WORDS:
        return WORDS[name]
    option = OPTIONS[name]
    has_value = bool(option.metavar)
    if option.value_type in VALUES_BY_TYPE and (has_value or option.value_type is bool):
        return [option.flag] + VALUES_BY_TYPE[option.value_type]
    if not has_value:
        return [option.flag]
    if option.choices:
        return [option.flag, option.choices[-1]]
    return [option.flag, name]


def words_of(name):
    """The words that set an option, and what it needs."""
    option = OPTIONS[name]
    option_words = words_of_option(name)
    words = list(option_words)
    for need in option.needs:
        needed_option = need.split()[0]
        is_set = f"--{needed_option}" in option_words
        if not is_set and needed_option not in {"track", "save_coco"}:
            words.extend(words_of(needed_option))
    if option.panel == "Runs in shards":
        words.extend(["-o", "parts/"])
    return words


@pytest.fixture
def boxes_of(invoke, make_model, make_image, tmp_path, monkeypatch):
    """The boxes of one image that a run with these words records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETCLI_DEVICE", "cpu")
    monkeypatch.setattr("detcli.commands.predict.shards.open_engine", open_here)
    monkeypatch.setattr("detcli.source.stdin.read_stdin", lambda *_: iter(()))
    monkeypatch.setattr("detcli.sink.window.WindowSink.__init__", lambda *_: None)
    monkeypatch.setattr("detcli.sink.window.WindowSink.write", lambda *_: None)
    monkeypatch.setattr("detcli.sink.window.WindowSink.close", lambda *_: None)
    image = make_image("a.png", *SQUARES)
    make_image("b.png", ("red", 2, 2))
    (tmp_path / "names.txt").write_text(f"{tmp_path / 'b.png'}")
    (tmp_path / "marks.json").write_text("[]")
    categories = [
        {"id": 0, "name": "red"},
        {"id": 1, "name": "green"},
        {"id": 2, "name": "blue"},
    ]
    images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]
    document = {"images": images, "categories": categories, "annotations": []}
    (tmp_path / "instances.json").write_text(json.dumps(document))
    records = []
    monkeypatch.setattr(Counts, "add", recording(Counts.add, records))

    def run(words):
        records.clear()
        completed = invoke("predict", image, "-m", make_model(), "--conf", "0.5", words)
        assert completed.returncode == 0, completed.stderr
        (record,) = [record for record in records if record.origin.source == str(image)]
        return sorted(boxes_in(record.detections))

    return run


def recording(add, records):
    """A `Counts.add` that also appends each record to the list."""

    def add_and_record(self, record):
        records.append(record)
        add(self, record)

    return add_and_record


def boxes_in(detections):
    """Class number, rounded score and corners of each detection."""
    boxes = []
    class_ids = detections.class_id.tolist()
    scores = detections.score.tolist()
    for class_id, score, corners in zip(class_ids, scores, detections.xyxy.tolist(), strict=True):
        boxes.append((class_id, round(score, 3)) + tuple(corners))
    return boxes


@pytest.mark.parametrize("name", OPTIONS_WITHOUT_EFFECT)
def test_a_row_that_says_it_changes_no_boxes_does_not(name, boxes_of):
    words = words_of(name)
    if "--track" in words:
        optional.require("trackers")
    assert boxes_of(words) == BOXES


def test_a_row_that_changes_boxes_is_noticed(boxes_of):
    assert boxes_of([]) == BOXES
    assert boxes_of(["--classes", "red"]) == BOXES[:1]
