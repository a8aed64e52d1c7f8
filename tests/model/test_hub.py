"""Fetching from a hub: content, resumption, failures, credentials."""

import hashlib
import threading

import huggingface_hub
import pytest
from hub_server import COMMIT, NEWER
from huggingface_hub import constants

from detcli.errors import ModelError, OutputError
from detcli.model import hub as hub_module
from detcli.model.hub import fetch
from detcli.model.hub_cache import HubFile, hub_folder

CONTENT = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PINNED = HubFile("onnx-community/yolov10n", "onnx/model.onnx", COMMIT)
BRANCH = HubFile("onnx-community/yolov10n", "onnx/model.onnx", "main")


@pytest.fixture(autouse=True)
def _impatient(hub, monkeypatch):
    """Short timeouts, and content for the model that all tests fetch."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    hub.add("yolov10n", CONTENT)


def get(file=PINNED, show=None):
    return fetch(file, "yolov10n", "AGPL-3.0", show)


def leftovers():
    """Cached files other than content, its names, references and locks."""
    return [
        path.name
        for path in hub_folder().rglob("*")
        if path.is_file() and path.name not in {DIGEST, "model.onnx", "main", f"{DIGEST}.lock"}
    ]


@pytest.mark.parametrize("file", [PINNED, BRANCH])
def test_a_file_is_fetched_into_the_specified_layout(hub, file):
    path = get(file)
    assert path.read_bytes() == CONTENT
    storage = hub_folder() / "models--onnx-community--yolov10n"
    assert path == storage / "snapshots" / COMMIT / "onnx/model.onnx"
    assert path.resolve() == (storage / "blobs" / DIGEST).resolve()
    assert file.cached() == path
    assert leftovers() == []
    address = "/onnx-community/yolov10n/resolve/{}/onnx/model.onnx"
    assert hub.asked("HEAD") == [address.format(file.revision)]
    assert hub.asked() == [address.format(COMMIT), f"/{DIGEST}"]


def test_a_download_is_announced_with_size_revision_and_licence(hub, caplog):
    get()
    (record,) = caplog.records
    assert record.levelname == "WARNING"  # shown by default, in Python too
    for part in ("yolov10n", "onnx-community/yolov10n", COMMIT[:10], "0.5 MB", "AGPL-3.0", hub.url):
        assert part in record.message


def test_huggingface_hub_and_detcli_find_each_others_files(hub, tmp_path, monkeypatch):
    ours = get(BRANCH)
    arguments = {"repo_id": BRANCH.repository, "filename": BRANCH.path}
    options = arguments | {"cache_dir": hub_folder(), "endpoint": hub.url}
    for revision in ("main", COMMIT):
        theirs = huggingface_hub.hf_hub_download(**options, revision=revision)
        assert theirs == str(ours)
    assert len(hub.ranges()) == 1  # downloaded once
    report = huggingface_hub.scan_cache_dir(hub_folder())
    assert (report.warnings, report.size_on_disk) == ([], len(CONTENT))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "another"))
    theirs = huggingface_hub.hf_hub_download(**options | {"cache_dir": hub_folder()})
    assert str(BRANCH.cached()) == str(PINNED.cached()) == theirs


def test_cached_content_is_not_fetched_again(hub):
    get(PINNED)
    hub.main = NEWER  # a commit that did not change this file
    hub.requests.clear()
    path = get(BRANCH)
    assert NEWER in path.parts
    assert path.resolve().name == DIGEST
    assert hub.asked() == []


def test_the_new_file_of_a_moved_branch_is_fetched(hub):
    old = get(BRANCH)
    hub.main = NEWER
    hub.add("yolov10n", b"new")
    assert get(BRANCH).read_bytes() == b"new"
    assert BRANCH.cached().read_bytes() == b"new"
    assert old.read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_and_nothing_is_kept(hub):
    hub.faults.contents[BRANCH.repository, BRANCH.path] = CONTENT[::-1]
    with pytest.raises(ModelError, match=f"its record says {DIGEST}") as error:
        get()
    assert error.value.exit_code == 4
    assert PINNED.cached() is None
    assert leftovers() == []


def test_content_longer_than_recorded_is_refused(hub):
    hub.faults.contents[BRANCH.repository, BRANCH.path] = CONTENT * 2
    with pytest.raises(ModelError, match="more than the recorded 512000 bytes"):
        get()
    assert PINNED.cached() is None


def test_an_interrupted_download_is_resumed_at_once(hub):
    hub.faults.break_after = [200_000, 100_000]
    assert get().read_bytes() == CONTENT
    assert hub.ranges() == [None, "bytes=200000-", "bytes=300000-"]
    assert leftovers() == []


def test_a_partial_download_is_resumed_by_the_next_run(hub):
    hub.faults.break_after = [200_000] + [0] * (hub_module.ATTEMPTS - 1)
    with pytest.raises(ModelError, match="cannot fetch yolov10n"):
        get()
    assert PINNED.cached() is None  # a partial file is not a model
    assert leftovers() == [f"{DIGEST}.detcli.incomplete"]
    hub.requests.clear()
    assert get().read_bytes() == CONTENT
    assert hub.ranges() == ["bytes=200000-"]
    assert leftovers() == []


def test_a_complete_but_unchecked_download_is_not_fetched_again(hub):
    PINNED.partial(DIGEST).parent.mkdir(parents=True)
    PINNED.partial(DIGEST).write_bytes(CONTENT)
    assert get().read_bytes() == CONTENT
    assert hub.asked() == []


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * len(CONTENT), CONTENT + b"x"])
def test_a_damaged_partial_download_is_fetched_anew(hub, left):
    PINNED.partial(DIGEST).parent.mkdir(parents=True)
    PINNED.partial(DIGEST).write_bytes(left)
    assert get().read_bytes() == CONTENT
    assert hub.ranges()[-1] is None


def test_a_server_without_ranges_sends_the_whole_file_again(hub):
    hub.faults.break_after = [200_000]
    hub.faults.ignore_ranges = True
    assert get().read_bytes() == CONTENT


@pytest.mark.parametrize("break_after", [[], [200_000]])
def test_a_hub_that_does_not_report_the_size(hub, caplog, break_after):
    hub.faults.headers["X-Linked-Size"] = None
    hub.faults.break_after = break_after
    told = []
    assert get(show=lambda *counts: told.append(counts)).read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), None)
    assert "of unknown size" in caplog.text


def test_a_complete_but_unchecked_download_of_unknown_size(hub):
    hub.faults.headers["X-Linked-Size"] = None
    PINNED.partial(DIGEST).parent.mkdir(parents=True)
    PINNED.partial(DIGEST).write_bytes(CONTENT)
    assert get().read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"hang": "record"}, "it does not answer"),
        ({"hang": "content"}, "it does not answer"),
        ({"status": 503}, "it answers 503 Service Unavailable"),
        ({"status": 403}, "it answers 403 Forbidden"),
        ({"headers": {"X-Repo-Commit": None}}, "is not a Hugging Face hub"),
        ({"headers": {"X-Repo-Commit": "../../../somewhere"}}, "is not a Hugging Face hub"),
        ({"headers": {"X-Repo-Commit": NEWER}}, f"it has commit {NEWER} instead of"),
        ({"headers": {"X-Linked-Etag": '"../../x"'}}, "it has no SHA-256"),
        ({"headers": {"X-Linked-Etag": None}}, "it has no SHA-256"),
    ],
)
def test_a_failing_hub_is_a_model_error_with_three_remedies(hub, faults, words):
    for name, value in faults.items():
        setattr(hub.faults, name, value)
    with pytest.raises(ModelError, match=words) as error:
        get()
    assert all(way in error.value.hint for way in ("path", "'codes'", "HF_ENDPOINT"))
    assert PINNED.cached() is None


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (HubFile(PINNED.repository, "onnx/model_fp16.onnx", COMMIT), "has no such file"),
        (HubFile("onnx-community/yolov10q", "onnx/model.onnx", "main"), "answers 401"),
        (HubFile(PINNED.repository, "onnx/model.onnx", NEWER), "answers 404"),
    ],
)
def test_a_missing_file_is_a_model_error(file, words):
    with pytest.raises(ModelError, match=words):
        get(file)


@pytest.mark.parametrize("endpoint", ["hub", "ftp://127.0.0.1", "http://", "http://a:port", "//x"])
def test_an_endpoint_that_is_not_a_url(monkeypatch, endpoint):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(ModelError, match="HF_ENDPOINT is not the URL"):
        get()


def test_no_network_is_a_model_error(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9: .*refused") as error:
        get()
    assert "'codes'" in error.value.hint


def test_offline_mode_sends_no_request(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        get()
    assert hub.requests == []


@pytest.mark.parametrize("fault", [{}, {"status": 500}, {"hang": "content"}])
def test_a_password_in_the_endpoint_is_never_shown(hub, monkeypatch, caplog, fault):
    caplog.set_level("DEBUG", "detcli")
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//user:secret@"))
    hub.faults.contents[BRANCH.repository, BRANCH.path] = b"wrong"
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    with pytest.raises(ModelError) as error:
        get()
    assert "secret" not in f"{error.value} {error.value.hint} {caplog.text}"
    assert hub.url in str(error.value)


def test_a_token_is_sent_only_to_the_hub(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get()
    sent = {path: headers.get("authorization") for _, path, headers in hub.requests}
    assert sent.pop(f"/{DIGEST}") is None
    assert set(sent.values()) == {"Bearer hf_secret"}


def test_progress_is_reported(hub):
    hub.faults.break_after = [200_000]
    told = []
    get(show=lambda done, total: told.append((done, total)))
    done = [count for count, _ in told]
    assert done == sorted(done)
    assert done[0] <= 200_000  # before the connection broke off
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_concurrent_calls_download_once(hub):
    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert PINNED.cached().read_bytes() == CONTENT
    assert len(hub.ranges()) == 1


def test_waiting_for_a_lock_is_announced_and_times_out(monkeypatch, caplog):
    monkeypatch.setattr(hub_module, "LOCK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(hub_module, "LOCK_NOTICE_S", 0.1)
    lock = hub_folder() / ".locks/models--onnx-community--yolov10n" / f"{DIGEST}.lock"
    lock.parent.mkdir(parents=True)
    from huggingface_hub.utils import WeakFileLock

    with (
        WeakFileLock(lock),
        pytest.raises(ModelError, match="another process holds the download lock"),
    ):
        get()
    assert "another process is fetching yolov10n; waiting for it" in caplog.text


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot write to its cache") as error:
        get()
    assert "HF_HOME" in error.value.hint


def test_a_system_without_links_keeps_the_file_under_its_name(hub, monkeypatch):
    def refuse(*_, **__):
        raise OSError("the user lacks a privilege")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    path = get(BRANCH)
    assert not path.is_symlink()
    assert path.read_bytes() == CONTENT
    hub.requests.clear()
    assert get(BRANCH) == path
    assert hub.asked() == []
