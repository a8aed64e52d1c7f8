"""Folders that stay open, and their locks and temporary files."""

import contextlib
import errno
import fcntl
import os
import signal
import sys
from types import SimpleNamespace

import pytest
from folders import names_in

from detcli.core.errors import OutputError
from detcli.storage.files import (
    AtomicFile,
    write_file,
)
from detcli.storage.folder import Folder, LockState, lock


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "person").symlink_to("elsewhere")
    with pytest.raises(OutputError, match="person"):
        write_file(tmp_path / "person" / "a.jpg", b"new")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    file = AtomicFile(folder / "a.jpg")
    folder.rename(tmp_path / "moved")
    folder.symlink_to(elsewhere)
    file.write(b"new")
    file.commit()
    assert (tmp_path / "moved" / "a.jpg").read_bytes() == b"new"
    assert list(elsewhere.iterdir()) == []


@pytest.fixture
def fresh(monkeypatch):
    """A process that has opened no folder yet."""
    monkeypatch.setattr(Folder, "_opened_before", set())


@pytest.mark.usefixtures("fresh")
def test_files_of_dead_processes_are_removed(tmp_path):
    live = AtomicFile(tmp_path / "b.jpg", suffix=".mp4")
    dead = [
        tmp_path / ".detcli-0123456789abcdef.part",
        tmp_path / ".detcli-0123456789abcdef.part.mp4",
    ]
    other_names = [
        ".detcli-abc.part",
        ".0123456789abcdef.part",
        ".detcli-0123456789abcdeg.part",
        "a.part",
    ]
    for path in dead:
        path.touch()
    for name in other_names:
        (tmp_path / name).touch()
    Folder._opened_before.clear()  # noqa: SLF001 - another process
    write_file(tmp_path / "a.jpg", b"")
    names = set(names_in(tmp_path))
    assert names == {"a.jpg", live.temporary_path.name} | set(other_names)
    live.discard()
    dead[0].touch()  # looked for once in a process: a folder may hold millions of files
    write_file(tmp_path / "a.jpg", b"")
    assert dead[0].exists()


@pytest.mark.usefixtures("fresh")
def test_leftovers_that_are_no_files_are_left_alone(tmp_path):
    link = tmp_path / ".detcli-0000000000000000.part"
    pipe = tmp_path / ".detcli-0000000000000001.part"
    folder = tmp_path / ".detcli-0000000000000002.part"
    link.symlink_to(tmp_path / "kept")
    os.mkfifo(pipe)
    folder.mkdir()
    (tmp_path / "kept").touch()
    write_file(tmp_path / "a.jpg", b"")
    assert set(names_in(tmp_path)) == {"a.jpg", "kept", link.name, pipe.name, folder.name}


@pytest.mark.usefixtures("fresh")
@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_a_leftover_is_not_waited_for(tmp_path):
    """Whoever has a lease, as file servers take them, is given 45 seconds to let go."""
    leftover = tmp_path / f".detcli-{0:016x}.part"
    handler = signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for it back
    with leftover.open("w") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        write_file(tmp_path / "a.jpg", b"")
        assert leftover.exists()
    signal.signal(signal.SIGIO, handler)


def test_a_temporary_file_that_another_process_takes_for_a_leftover_is_made_again(
    tmp_path, monkeypatch
):
    """Another process opens the folder between the making of the file and its lock."""
    flock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        Folder._opened_before.clear()  # noqa: SLF001 - another process
        write_file(tmp_path / "b.jpg", b"")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_file(tmp_path / "a.jpg", b"new")
    assert (tmp_path / "a.jpg").read_bytes() == b"new"


def test_a_new_file_on_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    code = errno.EPERM
    for data, is_new in ((b"new", True), (b"newer", False)):
        file = AtomicFile(tmp_path / "a.jpg")
        file.write(data)
        assert file.commit_new() == is_new
    assert (tmp_path / "a.jpg").read_bytes() == b"new"
    code = errno.EIO
    with pytest.raises(OutputError, match=r"a\.jpg: Input/output"):
        AtomicFile(tmp_path / "a.jpg").commit_new()
    assert names_in(tmp_path) == ["a.jpg"]


def test_the_names_in_a_folder_are_put_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("detcli.storage.folder.sync", synced.append)
    with contextlib.closing(Folder(tmp_path)) as folder:
        folder.sync()
        (descriptor,) = synced
        assert os.fstat(descriptor).st_ino == tmp_path.stat().st_ino


def test_in_windows_a_byte_is_locked_that_no_file_has(tmp_path, monkeypatch):
    """Its locks keep others from reading what they cover; and text is added where a file begins."""
    positions = []

    def note_position(descriptor, _mode, _length):
        positions.append(os.lseek(descriptor, 0, os.SEEK_CUR))

    windows_locks = SimpleNamespace(LK_NBLCK=2, locking=note_position)
    monkeypatch.setitem(sys.modules, "msvcrt", windows_locks)
    monkeypatch.setattr(sys, "platform", "win32")
    with (tmp_path / "a.jsonl").open("wb", buffering=0) as file:
        assert lock(file) is LockState.LOCKED
        assert file.tell() == 0
    assert positions == [2**31 - 2]


def test_a_folder_that_cannot_be_listed_is_not_followed_if_it_is_a_link(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").symlink_to("elsewhere")
    open_file = os.open
    refused = []

    def refuse_once(path, *arguments, **options):
        if not refused:
            refused.append(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse_once)
    with pytest.raises(OSError, match="folder"):
        Folder(tmp_path / "folder")
