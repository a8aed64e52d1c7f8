"""Fetching from a hub into the cache that other programs share: content, failures, credentials."""

import hashlib
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import COMMIT, NEWER
from huggingface_hub import constants, file_download

from detcli.core.errors import ModelError, OutputError
from detcli.model.hub import HubFile, hub_folder, is_intact

CONTENT = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PINNED = HubFile("onnx-community/yolov10n", "onnx/model.onnx", COMMIT)
BRANCH = HubFile("onnx-community/yolov10n", "onnx/model.onnx", "main")
HALF = HubFile("onnx-community/yolov10n", "onnx/model_fp16.onnx", "main")
ADDRESS = "/onnx-community/yolov10n/resolve/{}/onnx/model.onnx"


@pytest.fixture(autouse=True)
def _short_timeouts(hub, monkeypatch):
    """Short timeouts, and content for the model that all tests fetch."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    monkeypatch.setattr(file_download, "time", types.SimpleNamespace(sleep=lambda _: None))
    hub.add("yolov10n", CONTENT)


def get(file=PINNED, show=None):
    return file.fetch("yolov10n", "AGPL-3.0", show)


def leftovers():
    """Cached files other than content, its names, references and locks."""
    usual = {DIGEST, "model.onnx", "main", f"{DIGEST}.lock", "CACHEDIR.TAG"}
    names = []
    for path in hub_folder().rglob("*"):
        if path.is_file() and path.name not in usual:
            names.append(path.name)
    return names


def without_links(monkeypatch):
    def refuse(*_, **__):
        raise OSError("the user lacks a privilege")

    monkeypatch.setattr("os.symlink", refuse)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS_WARNING", True)
    monkeypatch.setattr(file_download, "_are_symlinks_supported_in_dir", {})


@pytest.mark.parametrize("file", [PINNED, BRANCH])
def test_a_file_is_fetched_into_the_specified_layout(hub, file):
    assert PINNED.cached() is BRANCH.cached() is None
    path = get(file)
    assert path.read_bytes() == CONTENT
    storage = hub_folder() / "models--onnx-community--yolov10n"
    assert path == storage / "snapshots" / COMMIT / "onnx/model.onnx"
    assert path.resolve() == (storage / "blobs" / DIGEST).resolve()
    assert PINNED.cached() == file.cached() == path
    assert (BRANCH.cached() is None) == (file is PINNED)  # which does not set the branch
    assert file.commit_of(path) == COMMIT
    assert HubFile(PINNED.repository, PINNED.path, NEWER).cached() is None
    assert leftovers() == []
    assert set(hub.asked("HEAD")) == {ADDRESS.format(file.revision)}
    assert hub.asked() == [f"/{DIGEST}"]


def test_a_download_is_announced_with_size_revision_and_licence(hub, caplog):
    get()
    (record,) = caplog.records
    assert record.levelname == "WARNING"  # shown by default, in Python too
    for part in ("yolov10n", "onnx-community/yolov10n", COMMIT[:10], "0.5 MB", "AGPL-3.0", hub.url):
        assert part in record.message


def test_huggingface_hub_and_detcli_find_each_others_files(hub, tmp_path, monkeypatch):
    ours = get(BRANCH)
    arguments = {"repo_id": BRANCH.repository, "filename": BRANCH.path, "endpoint": hub.url}
    theirs = huggingface_hub.hf_hub_download(**arguments, cache_dir=hub_folder())
    assert theirs == str(ours)
    assert len(hub.ranges()) == 1  # downloaded once
    report = huggingface_hub.scan_cache_dir(hub_folder())
    assert report.warnings == []
    assert report.size_on_disk == len(CONTENT)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "another"))
    theirs = huggingface_hub.hf_hub_download(**arguments, cache_dir=hub_folder())
    assert str(BRANCH.cached()) == str(PINNED.cached()) == theirs


def test_a_moved_branch_is_fetched_where_the_file_has_changed(hub, caplog):
    old = get(PINNED)
    hub.main = NEWER  # a commit that did not change this file
    hub.requests.clear()
    caplog.clear()
    path = get(BRANCH)
    assert NEWER in path.parts
    assert path.resolve().name == DIGEST
    assert hub.asked() == caplog.records == []
    hub.main = "1" * 40
    hub.add("yolov10n", b"new")
    assert get(BRANCH).read_bytes() == BRANCH.cached().read_bytes() == b"new"
    assert old.read_bytes() == CONTENT


@pytest.mark.parametrize("links", [True, False])
def test_a_wrong_hash_is_refused_and_nothing_is_kept(hub, monkeypatch, links):
    if not links:
        without_links(monkeypatch)
    hub.faults.contents[BRANCH.repository, BRANCH.path] = CONTENT[::-1]
    with pytest.raises(ModelError, match=f"its record says {DIGEST}") as error:
        get()
    assert error.value.exit_code == 4
    assert PINNED.cached() is None
    assert not list(hub_folder().glob("*/blobs/*"))
    hub.faults.contents.clear()
    assert get().read_bytes() == CONTENT


def test_an_interrupted_download_is_resumed_with_its_progress(hub, caplog):
    hub.faults.break_after = [200_000, 100_000]
    progress = []
    assert get(show=lambda *counts: progress.append(counts)).read_bytes() == CONTENT
    assert hub.ranges() == [None, "bytes=200000-", "bytes=300000-"]
    size = len(CONTENT)
    assert progress == [
        (100_000, size),
        (200_000, size),
        (300_000, size),
        (400_000, size),
        (500_000, size),
        (512_000, size),
    ]
    assert leftovers() == []
    assert [record.name for record in caplog.records] == ["detcli.model.hub"]


def test_a_server_without_ranges_sends_the_whole_file_again(hub):
    hub.faults.break_after = [200_000]
    hub.faults.ignore_ranges = True
    assert get().read_bytes() == CONTENT


def test_a_hub_that_does_not_report_the_size(hub, caplog):
    hub.faults.headers["X-Linked-Size"] = None
    progress = []
    assert get(show=lambda *counts: progress.append(counts)).read_bytes() == CONTENT
    assert progress[-1] == (len(CONTENT), None)
    assert "of unknown size" in caplog.text


MISSING = HubFile("onnx-community/yolov10q", "onnx/model.onnx", "main")
LONGER = {(BRANCH.repository, BRANCH.path): CONTENT * 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "file", "words"),
    [
        ({"hang": "record"}, PINNED, "it does not answer"),
        ({"hang": "content"}, PINNED, "it does not answer"),
        ({"status": 503}, PINNED, "it answers 503 Service Unavailable"),
        ({"headers": {"X-Repo-Commit": None}}, PINNED, "is not a Hugging Face hub"),
        ({"headers": {"X-Repo-Commit": "../../../there"}}, PINNED, "is not a Hugging Face hub"),
        ({"headers": {"X-Repo-Commit": NEWER}}, PINNED, f"it has commit {NEWER} instead of"),
        ({"headers": {"X-Linked-Etag": '"../../x"'}}, PINNED, "it has no SHA-256"),
        ({"headers": {"X-Linked-Size": "9999999"}}, PINNED, "the content is incomplete"),
        ({"contents": LONGER}, PINNED, "more than the recorded 512000 bytes"),
        ({"break_after": [200_000] + [0] * 20}, PINNED, "cannot fetch yolov10n"),
        ({}, HALF, "has no such file"),
        ({}, MISSING, "answers 401"),
        ({}, HubFile(PINNED.repository, PINNED.path, NEWER), "answers 404"),
    ],
)
def test_a_failing_hub_is_a_model_error_with_three_remedies(hub, faults, file, words):
    for name, value in faults.items():
        setattr(hub.faults, name, value)
    with pytest.raises(ModelError, match=words) as error:
        get(file)
    for remedy in ("path", "'codes'", "HF_ENDPOINT"):
        assert remedy in error.value.hint
    assert file.cached() is None  # a partial file is not a model
    assert leftovers() == []


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("hub", "HF_ENDPOINT is not the URL"),
        ("ftp://a", "HF_ENDPOINT is not the URL"),
        ("http://", "HF_ENDPOINT is not the URL"),
        ("//x", "HF_ENDPOINT is not the URL"),
        ("http://a:port", "HF_ENDPOINT is not the URL"),
        ("http://127.0.0.1:9", r"127\.0\.0\.1:9: .*refused"),
    ],
)
def test_an_endpoint_that_cannot_be_reached(monkeypatch, endpoint, words):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ModelError, match=words):
        get()


def test_offline_mode_sends_no_request(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        get()
    assert hub.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [{}, {"status": 500}, {"hang": "content"}])
def test_a_password_in_the_endpoint_is_never_shown(hub, monkeypatch, caplog, capfd, fault):
    caplog.set_level("DEBUG", "detcli")
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//user:secret@"))
    hub.faults.contents[BRANCH.repository, BRANCH.path] = b"wrong"
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    with pytest.raises(ModelError) as error:
        get()
    assert "secret" not in f"{error.value} {error.value.hint} {caplog.text}"
    assert hub.url in str(error.value)
    assert capfd.readouterr().err == ""  # huggingface_hub writes there itself


def test_a_token_is_sent_only_to_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get()
    sent = {path: headers.get("authorization") for _, path, headers in hub.requests}
    assert sent.pop(f"/{DIGEST}") is None
    assert set(sent.values()) == {"Bearer hf_secret"}


def test_concurrent_calls_download_once(hub):
    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert PINNED.cached().read_bytes() == CONTENT
    assert len(hub.ranges()) == 1


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot write to its cache") as error:
        get()
    assert "HF_HOME" in error.value.hint


def test_a_system_without_links_keeps_the_file_under_its_name(hub, monkeypatch):
    without_links(monkeypatch)
    path = get(BRANCH)
    assert not path.is_symlink()
    assert path.read_bytes() == CONTENT
    assert is_intact(path)  # nothing is recorded
    hub.requests.clear()
    assert get(BRANCH) == path
    assert hub.asked() == []
    assert BRANCH.forget() == len(CONTENT)
    assert not BRANCH.storage.exists()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "~/hf"},
        {"HF_HOME": "$PLACE/hf", "PLACE": "/there"},
        {"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"},
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


@pytest.mark.parametrize("content", [b"", b"../../..", b"\xff\xfe", b"0" * 39, None])
def test_a_reference_that_is_not_a_commit_is_ignored(content):
    get(BRANCH)
    reference = BRANCH.storage / "refs/main"
    if content is not None:
        reference.write_bytes(content)
    else:  # a pipe is not waited for
        reference.unlink()
        os.mkfifo(reference)
    assert BRANCH.cached() is None
    BRANCH.forget()


def test_damage_is_detected_by_the_hash_and_a_dangling_link_is_not_a_file(monkeypatch):
    path = get()
    assert is_intact(path)
    path.resolve().write_bytes(b"damaged")
    assert not is_intact(path)
    path.resolve().unlink()
    assert PINNED.cached() is None
    monkeypatch.setenv("HF_HOME", "/" + "x" * 5000)  # refused by the system, as without permission
    assert BRANCH.cached() is PINNED.cached() is None


def test_forgetting_removes_all_revisions_and_keeps_what_others_have_there(hub):
    hub.add("yolov10n", CONTENT, half=b"half")
    path = get(BRANCH)
    half = get(HALF)
    hub.main = NEWER
    hub.add("yolov10n", b"newer")
    get(BRANCH)
    card = path.parents[1] / "README.md"
    card.write_text("a file of another program")
    download = BRANCH.storage / "blobs/0123.incomplete"
    download.write_text("of another program, at this moment")
    assert BRANCH.forget() == len(CONTENT + b"newer")
    assert not path.is_symlink()
    assert half.read_bytes() == b"half"
    assert card.exists()
    assert download.exists()
    card.unlink()
    download.unlink()
    assert HALF.forget() == len(b"half")
    assert not HALF.storage.exists()
    assert HALF.forget() == 0


def test_forgetting_keeps_content_that_has_another_name(hub):
    hub.add("yolov10n", CONTENT, half=CONTENT)
    get(BRANCH)
    half_file = get(HALF)
    assert BRANCH.forget() == 0
    assert half_file.read_bytes() == CONTENT


@pytest.mark.parametrize("writable", ["", "models--onnx-community--yolov10n", "blobs", "content"])
def test_a_cache_that_others_can_write_to_is_not_used(cache, caplog, writable):
    first = get()
    storage = PINNED.storage
    folder = {"": hub_folder(), "blobs": storage / "blobs", "content": first.resolve()}
    folder.get(writable, storage).chmod(0o777)
    caplog.clear()
    assert PINNED.cached() is None
    second = get()
    assert second.is_relative_to(cache)
    assert PINNED.cached() == second
    assert caplog.text.count("Hugging Face cache is not used") == 1
    (cache / "hub").chmod(0o777)
    with pytest.raises(OutputError, match="no place for models: others can write"):
        PINNED.cached()


def refuse_socks():
    raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALL_PROXY", "socks9://somebody:secret@127.0.0.1:9", "scheme for proxy"),
        ("SSL_CERT_FILE", "/no/such/file.pem", "No such file"),
        ("SOCKS", "", "'socksio' package is not installed"),
        ("HF_TOKEN", "hf_s\u00e9cret", "HF_TOKEN is not a valid token"),
    ],
)
def test_a_broken_setting_is_reported_with_its_variable(monkeypatch, name, value, words):
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    huggingface_hub.close_session()
    monkeypatch.setenv(name, value)
    if name == "SOCKS":
        monkeypatch.setattr(huggingface_hub, "get_session", refuse_socks)
    with pytest.raises(ModelError, match=words) as error:
        get()
    assert name in f"{error.value} {error.value.hint}"
    assert "cret" not in str(error.value)
    assert "'codes'" in error.value.hint


def test_a_setting_that_is_not_a_number(detcli, monkeypatch):
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    process = detcli("models", "pull", "yolov10n")
    assert process.returncode == 4
    assert "'soon'" in process.stderr
    assert "HF_*" in process.stderr
