"""Records that were damaged, or made by a stranger: all that read them refuse them alike."""

import json
import os

import optional
import pytest
from saved_records import SETTINGS, box, record

from detcli.run.shards.manifest import Manifest
from detcli.run.shards.parts import PartWriter
from detcli.run.shards.store import open_store

FOUND = [
    {"corners": 5},
    {"corners": [[1]]},
    {"zones": 3},
    {"crossed": [5]},
    {"text": 3},
    {"bytes": 3},
    {"symbology": None},
    {"score": None},
    {"class_name": 7},
]
FORGED = [
    {"detections": 5},
    {"detections": None},
    {"detections": [None]},
    {"detections": {}},
    {"settings": None},
    {"settings": []},
    {"provenance": None},
    {"model": 5},
    {"device": []},
    {"saved": 7},
    {"warnings": None},
    {"error": None},
    {"error": {"type": 1}},
    {"width": "x"},
    {"frame": -1},
    {"time": 5},
    {"time_s": "1"},
    {"sha256": 3},
] + [{"detections": [box() | fields]} for fields in FOUND]

READERS = {
    "report": "report forged.jsonl -o page",
    "verify": "verify forged.jsonl fine.jsonl",
    "verify the other": "verify fine.jsonl forged.jsonl",
    "resume": "predict a.png -m colours.onnx --resume forged.jsonl",
}

IN_SHARDS = "predict a.png -m colours.onnx -q -o boxes/".split()


@pytest.fixture
def refuse(invoke, tmp_path):
    """Run a command that has to refuse what it reads."""

    def run(command, code):
        completed = invoke(command.split(), cwd=tmp_path)
        assert completed.returncode == code, (command, completed.stderr)
        assert "bug in detcli" not in completed.stderr
        return completed.stderr

    return run


@pytest.fixture
def files_to_forge(tmp_path, make_model, make_image):
    make_model("colours.onnx")
    make_image("a.png")
    fine = json.dumps(record("a.png", box(), settings=SETTINGS)) + "\n"
    (tmp_path / "fine.jsonl").write_text(fine)
    return tmp_path


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_every_reader_of_a_file_refuses_them(command, refuse, files_to_forge):
    for fields in FORGED:
        text = json.dumps(record("a.png", box(), settings=SETTINGS) | fields) + "\n"
        (files_to_forge / "forged.jsonl").write_text(text)
        (name,) = fields
        says = f"line 1 is not a record of detcli: {name}"
        assert says in refuse(command, 2).replace(" of forged.jsonl", ""), fields
        assert (files_to_forge / "forged.jsonl").read_text() == text


@pytest.mark.slow
@pytest.mark.usefixtures("shards_here")
@pytest.mark.parametrize("suffix", ["jsonl", "csv", optional.PARQUET])
def test_every_reader_of_a_run_in_shards_refuses_them(suffix, refuse, files_to_forge, invoke):
    assert invoke(IN_SHARDS, cwd=files_to_forge).returncode == 0
    store = open_store(f"{files_to_forge / 'boxes'}/")
    (shard,) = Manifest(store)
    for fields in FORGED:
        (files_to_forge / "boxes/part-00000.jsonl").unlink()
        with PartWriter(shard) as writer:  # whose hash is right
            writer.add(record("a.png", box()) | fields)
            writer.publish(store, "part-00000.jsonl")
        (name,) = fields
        says = f"part-00000.jsonl: it is damaged, in record 1: {name}"
        merge = f"merge boxes -o all.{suffix}"
        for command in (merge, "report boxes -o page", "verify boxes fine.jsonl"):
            assert says in refuse(command, 6), fields


@pytest.mark.usefixtures("shards_here")
@pytest.mark.parametrize("fields", [{"settings": None}, {"inputs": 3}, {"shard_size": "9"}])
def test_a_manifest_of_other_fields_is_damaged(fields, refuse, files_to_forge, invoke):
    assert invoke(IN_SHARDS, cwd=files_to_forge).returncode == 0
    path = files_to_forge / "boxes/_manifest.jsonl"
    header, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(header) | fields) + "\n" + rest)
    predict = " ".join(IN_SHARDS)
    for command in ("merge boxes", "report boxes -o page", "verify boxes fine.jsonl", predict):
        assert "_manifest.jsonl" in refuse(command, 2)


@pytest.mark.parametrize(
    "command",
    [
        "predict a.png -m colours.onnx --names pipe",
        "predict a.png -m colours.onnx --zone @pipe",
        "predict a.png -m colours.onnx --save-coco x.json --coco-images pipe",
        "report pipe -o page",
        "verify pipe fine.jsonl",
    ],
)
def test_a_pipe_without_a_writer_is_not_waited_for(command, invoke, files_to_forge, monkeypatch):
    monkeypatch.setattr("detcli.commands.verify.saved.WRITER_TIMEOUT_S", 0.2)
    os.mkfifo(files_to_forge / "pipe")
    completed = invoke(command.split(), cwd=files_to_forge)
    assert completed.returncode in {2, 3}
    assert "not a regular file" in completed.stderr or "no process writes" in completed.stderr
