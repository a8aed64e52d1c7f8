"""Killed before and after any system call that changes a file, the same command completes."""

import json
import os
import re
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import json_lines
import kills
import number_video
import numpy as np
import optional
import pages
import pytest
import thinning
from json_lines import column_of

import detcli.sink.folder
from detcli.storage.folder import LEFTOVER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not kills.USABLE, reason="ptrace of Linux on x86-64"),
]


def contents(folder, *, journals=()):
    """All files; those of journals as a set of records, whatever their order."""
    content_of = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            content_of[name] = path.readlink()
        elif path.is_file() and path.name != ".detcli-folder":
            content_of[name] = records(path) if path.name in journals else path.read_bytes()
    return content_of


def records(path):
    lines = json_lines.lines(path.read_text())
    for line in lines:
        line.pop("settings", None)
    return sorted(map(json.dumps, lines))


def torn(before, after, killed, *, journals=()):
    """Files that are neither as before the run nor as after it, but temporary ones."""
    contents_before = contents(before)
    contents_after = contents(after)
    problems = []
    for name, content in contents(killed).items():
        file_name = Path(name).name
        if re.fullmatch(LEFTOVER, file_name) or file_name in journals:
            continue
        if content not in (contents_before.get(name), contents_after.get(name)):
            problems.append(f"{name} is torn")
    return problems


def copies(sources, folder):
    for name, path in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)


@pytest.fixture
def scenario(make_model, make_image):
    """A command over three images, one of which is damaged, with folders in use already."""
    damaged = make_image("torn.png", ("red", 2, 3))
    damaged.write_bytes(damaged.read_bytes()[:-40])
    images = {
        "x/a.png": make_image("x/a.png", ("red", 2, 3)),
        "y/a.png": make_image("y/a.png", ("blue", 1, 1)),
        "torn.png": damaged,
    }
    sources = images | {"m.onnx": make_model()}
    predict = ["predict"] + list(images) + ["-m", "m.onnx", "--conf", "0.6"]

    def make(command, files=(), journals=(), code=3, **environment):
        if command[0].startswith("-"):
            command = predict + command
        return kills.Scenario(
            command=command,
            prepare=partial(copies, sources | dict(files)),
            state=partial(contents, journals=journals),
            torn=partial(torn, journals=journals),
            code=code,
            environment=environment,
        )

    return make


def check(outcome):
    assert outcome.problems == []
    assert outcome.begun_again > 1 or outcome.killed > 0


@pytest.fixture
def memory_folder():
    """A folder in memory, where syncing is quick."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder has a name of its own
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(os.path.realpath(name)) / "run"


SAVING = ["--save", "out", "--save-txt", "labels", "--save-crops", "crops"]
JOURNAL = "run.jsonl"
ERROR = '{"type": "DecodeError", "message": "torn", "hint": ""}'
FAILED = (
    f'{{"schema_version": 1, "source": "x/a.png", "index": 0, "error": {ERROR}}}\n{{"schema_ver'
)

KILL_EVERY = 31 if thinning.RUNS_WHOLE else 93
WAYS = [pytest.param(None, id="states"), pytest.param(KILL_EVERY, id="kills")]
"""Every state that a kill could leave, and at some points a process that is killed in fact.

The second shows that the first are the states that kills leave: some kinds of writing are enough.
"""

both_ways = pytest.mark.parametrize("kill_every", WAYS)
states_at_home = pytest.mark.parametrize(
    "kill_every", thinning.thin("ways to try the kills of a command", WAYS, count=1)
)


@both_ways
def test_a_resumed_run_that_saves(scenario, memory_folder, kill_every, tmp_path):
    begun = tmp_path / "begun"
    begun.write_text(FAILED)  # which is written anew first
    command = ["--resume", JOURNAL] + SAVING
    resumed = scenario(command, files={JOURNAL: begun}, journals=[JOURNAL])
    check(kills.examine(resumed, memory_folder, kill_every))


@states_at_home
def test_a_resumed_run_over_a_video(scenario, memory_folder, kill_every, tmp_path):
    command = ["predict", "clip.mp4", "-m", "m.onnx", "--resume", JOURNAL, "--save", "out"]
    path = str(tmp_path / "clip.mp4")
    video = number_video.open_writer(path, (64, 64))
    for _ in range(3):
        video.write(np.zeros((64, 64, 3), np.uint8))
    video.release()
    resumed = scenario(command, files={"clip.mp4": path}, journals=[JOURNAL], code=0)
    check(kills.examine(resumed, memory_folder, kill_every))


def page_state(folder):
    """What the page shows in the end, and the journal: images by content."""
    page = folder / "page"
    return pages.shown(page), pages.runs(page)[-1]["state"], records(folder / JOURNAL)


def unreadable(before, after, killed):  # noqa: ARG001 - as for `torn`
    """What is wrong with a page that a kill leaves: it shows the whole of each record it has."""
    page = killed / "page"
    if not (page / "data/runs.js").exists():
        return []  # there is no page yet
    try:
        entries = pages.entries(page)
    except (AssertionError, ValueError) as error:
        return [f"page: {error}"]
    image_names = set()
    for entry in entries:
        if "picture" in entry:
            image_names.add(entry["picture"])
    finished = set()
    journal = killed / JOURNAL
    if journal.exists():
        for line in journal.read_text().splitlines()[:-1]:
            finished.add(json.loads(line)["source"])

    problems = []
    for name in image_names.difference(pages.images(page, thumbnails=False)):
        problems.append(f"{name} has no image")
    for name in finished.difference(column_of(entries, "source")):
        problems.append(f"{name} is not there")
    return problems


@states_at_home
def test_a_resumed_run_with_a_page(scenario, memory_folder, kill_every):
    resumed = scenario(["--resume", JOURNAL, "--report", "page"])
    resumed = replace(resumed, state=page_state, torn=unreadable)
    check(kills.examine(resumed, memory_folder, kill_every))


@pytest.mark.parametrize("command", ["-o r.jsonl", "-o r.json", "--save-coco r.json"])
def test_a_file_of_records(scenario, memory_folder, command, tmp_path):
    old = tmp_path / "old"
    old.write_text("of an earlier run")
    words = command.split()
    check(kills.examine(scenario(words, files={words[1]: old}), memory_folder))


def test_a_converted_model(scenario, memory_folder):
    command = ["convert", "m.onnx", "-o", "new.onnx", "--batch", "2", "--force"]
    converted = scenario(command, code=0)
    check(kills.examine(converted, memory_folder))


def test_the_cache_of_prepared_models(scenario, memory_folder, make_model):
    files = {"m.onnx": make_model("two-stage.onnx", "ultralytics")}  # whose graph is cut
    cold = scenario(["-q"], files=files, DETCLI_CACHE_DIR="cache")
    outcome = kills.examine(cold, memory_folder)
    check(outcome)
    assert any(".graph" in point or "prepared" in point for point in outcome.points)


@states_at_home
def test_the_cache_of_compiled_networks(scenario, memory_folder, kill_every):
    optional.require("openvino")
    command = ["-q", "-o", "r.jsonl", "--device", "openvino"]
    cold = scenario(command, DETCLI_CACHE_DIR="cache")
    outcome = kills.examine(cold, memory_folder, kill_every)
    check(outcome)
    assert any(".openvino" in point for point in outcome.points)


def fetched(folder):
    """What has its name in a cache of Hugging Face; other files there are of its library."""
    cached = re.compile(r".*/(snapshots/.+|refs/main|blobs/[0-9a-f]{64})")
    return {name: content for name, content in contents(folder).items() if cached.fullmatch(name)}


def torn_model(_, after, killed):
    complete = fetched(after)
    problems = []
    for name, content in fetched(killed).items():
        if content != complete.get(name):
            problems.append(f"{name} is torn")
    return problems


@states_at_home
def test_a_fetched_model(scenario, memory_folder, kill_every, hub, make_model):
    hub.add("yolov10s", make_model().read_bytes())
    pull = scenario(["models", "pull", "yolov10s"], code=0, HF_HOME="hub")
    check(kills.examine(replace(pull, state=fetched, torn=torn_model), memory_folder, kill_every))


def test_every_file_is_synced_before_it_has_its_name(scenario, memory_folder):
    """The order of the calls: a power cut cannot be tried here."""
    saving = scenario(["-o", "r.jsonl"] + SAVING)
    outcome = kills.examine(saving, memory_folder, kill_every=1000)
    last_call_of = {}
    rename_count = 0
    for point in outcome.points:
        if point.startswith("after"):
            _, call, path = point.split()
            if "rename" in call:
                assert last_call_of[path] == "fsync"
                rename_count += 1
            last_call_of[path] = call
    assert rename_count == 10


def write_in_place():
    def write_file(path, data):
        with path.open("wb") as file:
            file.write(data[:20])
            file.flush()
            file.write(data[20:])

    detcli.sink.folder.write_file = write_file


def forget_names():
    detcli.sink.folder.OutputFolder.skip = lambda *_: None


@pytest.mark.parametrize(
    ("sabotage", "noticed"),
    [(write_in_place, "is torn"), (forget_names, "instead of")],
)
def test_broken_promises_are_noticed(scenario, memory_folder, sabotage, noticed):
    run = scenario(["--resume", JOURNAL, "--save-txt", "labels"], journals=[JOURNAL])
    outcome = kills.examine(replace(run, sabotage=sabotage), memory_folder, points_between=1)
    assert any(noticed in problem for problem in outcome.problems)
