"""The Hugging Face cache, as other programs see it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, NEWER

from detcli.errors import OutputError
from detcli.model.hub import fetch
from detcli.model.hub_cache import HubFile, hub_folder, is_intact, sha256
from detcli.model.zoo import MODELS

FILE = HubFile("someone/model", "onnx/model.onnx", "main")
HALF = HubFile("someone/model", "onnx/model_fp16.onnx", "main")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


def place(content, file=FILE, commit=COMMIT):
    """Put content into the cache, as fetching does."""
    made = file.storage / "content"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(content)
    digest = sha256(made)
    file.blob(digest).parent.mkdir(exist_ok=True)
    made.replace(file.blob(digest))
    return file.link(commit, digest)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/hf"},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$PLACE/hf", "PLACE": "/there"},
        {"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"},
        {"HF_HUB_CACHE": "/hub", "HUGGINGFACE_HUB_CACHE": "/old"},
        {"XDG_CACHE_HOME": "/xdg"},
        {"XDG_CACHE_HOME": "/xdg", "HF_HOME": "/hf"},
    ],
)
def test_the_folder_is_the_one_of_huggingface_hub(variables, monkeypatch):
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert hub_folder() == Path(theirs.stdout.decode().strip())


def test_a_file_is_found_by_its_branch_and_by_its_commit():
    pinned = HubFile(FILE.repository, FILE.path, COMMIT)
    assert FILE.cached() is pinned.cached() is None
    path = place(b"content")
    assert FILE.cached() == pinned.cached() == path
    assert FILE.commit_of(path) == COMMIT
    assert HubFile(FILE.repository, FILE.path, NEWER).cached() is None


def test_a_pinned_file_does_not_set_the_branch():
    place(b"content", HubFile(FILE.repository, FILE.path, COMMIT))
    assert FILE.cached() is None


@pytest.mark.parametrize("content", [b"", b"../../..", b"\xff\xfe", b"0" * 39])
def test_a_reference_that_is_not_a_commit_is_ignored(content):
    place(b"content")
    (FILE.storage / "refs/main").write_bytes(content)
    assert FILE.cached() is None


def test_a_dangling_link_is_not_a_cached_file():
    place(b"content").resolve().unlink()
    assert FILE.cached() is None


def test_nothing_is_found_in_an_inaccessible_cache(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/" + "x" * 5000)  # refused by the system, as without permission
    assert FILE.cached() is None
    assert HubFile(FILE.repository, FILE.path, COMMIT).cached() is None


def test_links_still_work_in_a_moved_cache(tmp_path, monkeypatch):
    place(b"content")
    (tmp_path / "home").rename(tmp_path / "elsewhere")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    assert FILE.cached().read_bytes() == b"content"


def test_damage_is_detected_by_the_hash():
    path = place(b"content")
    assert is_intact(path)
    path.resolve().write_bytes(b"damaged")
    assert not is_intact(path)


def test_a_file_without_a_recorded_hash_counts_as_intact(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"anything")
    assert is_intact(tmp_path / "model.onnx")


def test_forgetting_removes_all_revisions_and_partial_downloads():
    place(b"content")
    place(b"newer", commit=NEWER)
    FILE.partial("0" * 64).write_bytes(b"part")
    assert FILE.forget() == len(b"content" + b"newer" + b"part")
    assert FILE.cached() is None
    assert not FILE.storage.exists()
    assert FILE.forget() == 0


def test_forgetting_keeps_files_of_other_programs():
    path = place(b"content")
    other = place(b"other", HALF)
    card = path.parents[1] / "README.md"
    card.write_text("a file of another program")
    download = FILE.blob("0" * 64).with_suffix(".1234.incomplete")
    download.write_text("of another program, at this moment")
    assert FILE.forget() == len(b"content")
    assert not path.is_symlink()
    assert HALF.cached() == other
    assert card.exists()
    assert download.exists()


def test_forgetting_keeps_content_that_has_another_name():
    place(b"the same")
    other = place(b"the same", HALF)
    assert FILE.forget() == 0
    assert other.read_bytes() == b"the same"


def test_forgetting_counts_a_file_that_is_not_a_link(monkeypatch):
    def refuse(*_, **__):
        raise OSError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = place(b"content")
    assert not path.is_symlink()
    assert FILE.forget() == len(b"content")
    assert not FILE.storage.exists()


@pytest.mark.parametrize("place", ["", "models--onnx-community--yolov10n", "blobs", "content"])
def test_a_cache_that_others_can_write_to_is_not_used(hub, cache, caplog, place):
    hub.add("yolov10n", b"content")
    file = MODELS["yolov10n"].file()
    first = fetch(file, "yolov10n", "AGPL-3.0")
    storage = file.storage
    folder = {"": hub_folder(), "blobs": storage / "blobs", "content": first.resolve()}
    folder.get(place, storage).chmod(0o777)
    caplog.clear()
    assert file.cached() is None
    second = fetch(file, "yolov10n", "AGPL-3.0")
    assert second.is_relative_to(cache)
    assert file.cached() == second
    assert sum("Hugging Face cache is not used" in one.message for one in caplog.records) == 1
    (cache / "hub").chmod(0o777)
    with pytest.raises(OutputError, match="no place for models: others can write"):
        file.cached()


def test_a_pipe_in_place_of_a_reference_is_not_waited_for():
    place(b"model")
    reference = FILE.storage / "refs/main"
    reference.parent.mkdir(exist_ok=True)
    reference.unlink(missing_ok=True)
    os.mkfifo(reference)
    assert FILE.cached() is None
    FILE.forget()
