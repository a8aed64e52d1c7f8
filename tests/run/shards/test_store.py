import errno
import io
import multiprocessing
import os

import pytest

from detcli.core import files
from detcli.core.errors import OutputError, StoreError
from detcli.run.shards.store import LocalFolder, open_store

CONTEXT = multiprocessing.get_context("fork")


def names_in(folder):
    return [path.name for path in folder.iterdir()]


def test_what_is_published_can_be_read_and_stays_as_it_is(tmp_path):
    store = open_store(f"{tmp_path / 'new' / 'boxes'}/")
    assert [*store.names()] == []
    assert not store.exists("part")
    assert store.publish("part", io.BytesIO(b"one\ntwo\n"))
    assert store.exists("part")
    assert not store.publish("part", io.BytesIO(b"other"))
    assert [*store.names()] == ["part"]
    with store.open("part") as file:
        assert file.readline() == b"one\n"
        file.seek(0)
        assert file.read() == b"one\ntwo\n"
    assert names_in(tmp_path / "new" / "boxes") == ["part"]


def test_content_is_published_from_its_beginning(tmp_path):
    content = io.BytesIO(b"all of it")
    content.seek(3)
    assert LocalFolder(tmp_path).publish("part", content)
    assert (tmp_path / "part").read_bytes() == b"all of it"


def _publish_many(folder, content, barrier, wins):
    store = LocalFolder(folder)
    for number in range(30):
        barrier.wait()
        if store.publish(f"part-{number}", io.BytesIO(content)):
            with wins.get_lock():
                wins.value += 1


def test_of_two_processes_that_publish_a_name_one_wins(tmp_path):
    barrier, wins = CONTEXT.Barrier(2), CONTEXT.Value("i", 0)
    contents = (b"a" * 100_000, b"b" * 100_000)
    processes = [
        CONTEXT.Process(target=_publish_many, args=(tmp_path, content, barrier, wins))
        for content in contents
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert wins.value == 30
    assert sorted(names_in(tmp_path)) == sorted(f"part-{number}" for number in range(30))
    assert all((tmp_path / f"part-{number}").read_bytes() in contents for number in range(30))


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


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(OutputError, match=r"cannot write .*part: No space left on device"):
        LocalFolder(tmp_path).publish("part", io.BytesIO(b"x"))
    assert names_in(tmp_path) == []


def test_content_that_cannot_be_read_leaves_nothing_behind(tmp_path):
    class Broken(io.BytesIO):
        def read(self, *_):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        LocalFolder(tmp_path).publish("part", Broken(b"x"))
    assert names_in(tmp_path) == []


def test_temporary_files_of_dead_processes_are_not_seen_and_removed(tmp_path):
    (tmp_path / f".detcli-{'0' * 16}.part").write_bytes(b"half")
    store = LocalFolder(tmp_path)
    assert [*store.names()] == []
    assert store.publish("part", io.BytesIO(b"x"))
    assert names_in(tmp_path) == ["part"]


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    store = LocalFolder(tmp_path)
    for name, reason in (("absent", "No such file"), ("pipe", "not a regular file")):
        with pytest.raises(StoreError, match=reason):
            store.open(name)
    with pytest.raises(StoreError, match="Not a directory"):
        [*LocalFolder(tmp_path / "file").names()]
    with pytest.raises(StoreError, match="Not a directory"):
        LocalFolder(tmp_path / "file").exists("part")
    with pytest.raises(OutputError):
        LocalFolder(tmp_path / "file").publish("part", io.BytesIO(b"x"))
