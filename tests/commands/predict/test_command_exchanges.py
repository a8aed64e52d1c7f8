"""Files that are exchanged while a run starts: each record names what it was made of."""

import hashlib
import json
import shutil
import sys
from contextlib import contextmanager

import pytest
import thinning
from colour_model import save_external
from json_lines import lines

from detcli.model.file import ModelFile

pytestmark = pytest.mark.slow

MOMENTS = 20 if thinning.RUNS_WHOLE else 5  # over the calls that the main thread makes
LAST_MOMENT = 0.985  # of these calls: all is read by then, and the number of calls differs a little
FILES = {"model": "m.onnx", "weights": "weights.bin", "names": "config.json", "picture": "a.png"}


@pytest.fixture
def versions(tmp_path, make_model, make_image):
    """Write two folders that differ in one file, and return them."""

    def write(kind):
        mine = tmp_path / "mine"
        mine.mkdir()
        write_version(mine, kind, colour="red", stride=8, label="red")

        theirs = tmp_path / "theirs"
        theirs.mkdir()
        if kind == "picture":
            write_version(theirs, kind, colour="green", stride=8, label="red")
        elif kind == "weights":
            write_version(theirs, kind, colour="red", stride=16, label="red")
        elif kind == "names":
            write_version(theirs, kind, colour="red", stride=8, label="theirs")
        else:
            write_version(theirs, kind, colour="red", stride=8, label="red")
        return [mine, theirs]

    def write_version(folder, kind, *, colour, stride, label):
        make_image(f"{folder.name}/a.png", (colour, 2, 3))
        if kind == "model":
            names = f"['{folder.name}', 'g', 'b']"
            make_model(f"{folder.name}/m.onnx", "authors", metadata={"names": names})
        else:
            save_external(folder / "m.onnx", stride)
        labels = {"0": label, "1": "g", "2": "b"}
        (folder / "config.json").write_text(json.dumps({"id2label": labels}))

    return write


@contextmanager
def exchange_at(moment, act):
    """Act at a call of Python's on this thread; gives a list that grows with each call."""
    calls = []

    def called(_, event, __):
        if event == "call":
            calls.append(None)
            if len(calls) == moment:
                act()

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("kind", FILES)
def test_records_name_what_they_were_made_of(kind, invoke, versions, tmp_path, monkeypatch):
    folders = versions(kind)
    current_folder = tmp_path / "now"

    def run(folder, moment=0):
        theirs = tmp_path / "next"
        shutil.copy(folders[1] / FILES[kind], theirs)
        with exchange_at(moment, lambda: theirs.replace(current_folder / FILES[kind])) as calls:
            completed = invoke("predict", "a.png", "-m", "m.onnx", "--provenance", cwd=folder)
        assert completed.returncode == 0, completed.stderr
        (record,) = lines(completed.stdout)
        result = record["detections"], record["width"]
        return (
            json.dumps(result),
            (record["settings"]["model_sha256"], record["sha256"]),
            len(calls),
        )

    def hashes(folder):
        image = (folder / "a.png").read_bytes()
        return ModelFile.read(folder / "m.onnx").identity, hashlib.sha256(image).hexdigest()

    def fresh(name):
        monkeypatch.setenv("DETCLI_CACHE_DIR", str(tmp_path / "cache" / name))

    fresh("clean")
    hashes_by_result = {run(folder)[0]: hashes(folder) for folder in folders}
    assert len(set(hashes_by_result.values())) == len(hashes_by_result) == 2
    fresh("counted")
    calls = run(folders[0])[2]
    results = set()
    for number in range(MOMENTS):
        fresh(f"{number}")
        shutil.copytree(folders[0], current_folder, dirs_exist_ok=True)
        moment = 1 + int(LAST_MOMENT * calls) * number // (MOMENTS - 1)
        result, hashes_in_record, _ = run(current_folder, moment)
        assert hashes_in_record == hashes_by_result[result]
        results.add(hashes_in_record)
        assert run(current_folder)[:2] == run(folders[1])[:2]  # nothing else was kept
    assert len(results) == 2
