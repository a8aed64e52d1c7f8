import errno
import io
import multiprocessing
import os

import folders
import pytest

from detcli.core.errors import OutputError, StoreError
from detcli.run.shards.store import LocalFolder, open_store
from detcli.storage import files

CONTEXT = multiprocessing.get_context("fork")


def names_in(folder):
    return folders.names_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("location", ["disk", "bucket"])
def test_what_is_published_can_be_read_and_stays_as_it_is(location, tmp_path, request):
    if location == "bucket":
        s3 = request.getfixturevalue("s3")
        s3.put("a b/boxes-of-others/part-00000.jsonl")
        s3.put("a b/boxes/deeper/part")
    store = open_store(
        "s3://photos/a b/boxes/" if location == "bucket" else f"{tmp_path}/new/boxes/"
    )
    assert list(store.names()) == []
    assert not store.exists("part")
    content = io.BytesIO(b"one\ntwo\n")
    content.seek(3)  # it is written from its beginning
    assert store.publish("part", content)
    assert store.exists("part")
    assert not store.publish("part", io.BytesIO(b"other"))
    assert list(store.names()) == ["part"]
    with store.open("part") as file:
        assert file.readline() == b"one\n"
        file.seek(0)
        assert file.read() == b"one\ntwo\n"
    for last in (3, 100):
        with store.open("part", last) as file:
            assert file.read() == b"one\ntwo\n"[-last:]
    if location == "bucket":
        assert s3.get("a b/boxes/part") == b"one\ntwo\n"
        assert str(store) == "s3://photos/a b/boxes/"
    else:
        assert names_in(tmp_path / "new" / "boxes") == ["part"]
        assert str(store) == f"{tmp_path}/new/boxes"


def _publish_many(folder, content, barrier, wins):
    store = LocalFolder(folder)
    for number in range(30):
        barrier.wait()
        if store.publish(f"part-{number}", io.BytesIO(content)):
            with wins.get_lock():
                wins.value += 1


def test_of_two_processes_that_publish_a_name_one_wins(tmp_path):
    barrier = CONTEXT.Barrier(2)
    wins = CONTEXT.Value("i", 0)
    contents = (b"a" * 100_000, b"b" * 100_000)
    processes = []
    for content in contents:
        process = CONTEXT.Process(target=_publish_many, args=(tmp_path, content, barrier, wins))
        processes.append(process)
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert wins.value == 30
    assert len(names_in(tmp_path)) == 30
    for number in range(30):
        assert (tmp_path / f"part-{number}").read_bytes() in contents


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK])
def test_a_file_system_without_links_takes_files_too(tmp_path, monkeypatch, code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    store = LocalFolder(tmp_path)
    assert store.publish("part", io.BytesIO(b"first"))
    assert not store.publish("part", io.BytesIO(b"second"))
    assert (tmp_path / "part").read_bytes() == b"first"
    assert names_in(tmp_path) == ["part"]


def test_what_cannot_be_written_or_read_leaves_nothing_behind(tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, *_):
            raise RuntimeError

    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = LocalFolder(tmp_path)
    with pytest.raises(RuntimeError):
        store.publish("part", Broken(b"x"))
    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(OutputError, match=r"cannot write .*part: No space left on device"):
        store.publish("part", io.BytesIO(b"x"))
    assert names_in(tmp_path) == []


def test_temporary_files_of_dead_processes_are_not_seen_and_removed(tmp_path):
    (tmp_path / f".detcli-{'0' * 16}.part").write_bytes(b"half")
    store = LocalFolder(tmp_path)
    assert list(store.names()) == []
    assert store.publish("part", io.BytesIO(b"x"))
    assert names_in(tmp_path) == ["part"]


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    store = LocalFolder(tmp_path)
    for name, reason in (("absent", "No such file"), ("pipe", "not a regular file")):
        with pytest.raises(StoreError, match=reason):
            store.open(name)
    inside = LocalFolder(tmp_path / "file")
    for use in (lambda: list(inside.names()), lambda: inside.exists("part")):
        with pytest.raises(StoreError, match="Not a directory"):
            use()
    with pytest.raises(OutputError):
        inside.publish("part", io.BytesIO(b"x"))
