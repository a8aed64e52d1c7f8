"""Files and folders that two processes write at the same time."""

import os
import stat
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from folders import names_in

from detcli.core.errors import OutputError
from detcli.storage.files import locked, open_output
from detcli.storage.folder import Folder, LockState, OutputState


@pytest.mark.parametrize("old", [None, "of last week"])
def test_a_result_does_not_replace_what_another_process_has_written(tmp_path, old):
    path = tmp_path / "all.jsonl"
    if old is not None:
        path.write_text(old)
    for number in (2, 3):  # a number that is taken is left alone, too
        first, second = open_output(path), open_output(path)
        first.write(f"first {number}")
        second.write(f"second {number}")
        first.commit()
        with pytest.raises(OutputError, match="was written by somebody else") as caught:
            second.commit()
        assert str(tmp_path / f"all-{number}.jsonl") in str(caught.value)
        assert path.read_text() == f"first {number}"
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert texts == {
        "all.jsonl": "first 3",
        "all-2.jsonl": "second 2",
        "all-3.jsonl": "second 3",
    }


def test_a_result_is_compared_with_what_was_there_when_the_run_began(tmp_path):
    path = tmp_path / "all.jsonl"
    before = OutputState.of(path)
    path.write_text("of a run that ended while this one loaded its model")
    file = open_output(path, before)
    file.write("of this run")
    with pytest.raises(OutputError, match="all-2"):
        file.commit()
    assert (tmp_path / "all-2.jsonl").read_text() == "of this run"


def test_a_result_replaces_what_was_there_and_what_is_gone(tmp_path):
    path = tmp_path / "a"
    for is_removed in (False, False, True):
        file = open_output(path)
        file.write("new")
        if is_removed:
            path.unlink()
        file.commit()
        assert path.read_text() == "new"
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("old", [None, "old"])
def test_two_commits_at_the_same_moment_wait_for_each_other(tmp_path, monkeypatch, old):
    """The second one comes while the first has compared the file and not yet moved its own."""
    path = tmp_path / "a"
    if old is not None:
        path.write_text(old)
    first, second = open_output(path), open_output(path)
    first.write("first")
    second.write("second")
    failures = []

    def commit_second():
        try:
            second.commit()
        except OutputError as error:
            failures.append(str(error))

    move = Folder.move
    second_thread = threading.Thread(target=commit_second)

    def move_late(folder, old, new):
        if not second_thread.ident:
            second_thread.start()
            second_thread.join(0.3)
        move(folder, old, new)

    monkeypatch.setattr(Folder, "move", move_late)
    first.commit()
    second_thread.join()
    assert path.read_text() == "first"
    assert len(failures) == 1
    assert (tmp_path / "a-2").read_text() == "second"


def test_the_lock_of_a_folder_is_for_one_at_a_time(tmp_path, monkeypatch):
    steps = []

    def step(name):
        with locked(tmp_path):
            steps.append(f"{name} in")
            time.sleep(0.1)
            steps.append(f"{name} out")

    threads = [threading.Thread(target=step, args=[name]) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(steps) == 6
    for way_in, way_out in zip(steps[::2], steps[1::2], strict=True):
        assert way_in[0] == way_out[0]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("detcli.storage.files.LOCK_TIMEOUT_S", 0.05)
    says = "has been locked by another run"
    with locked(tmp_path), pytest.raises(OutputError, match=says), locked(tmp_path):
        pass


def test_the_lock_of_a_folder_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(OutputError, match="cannot write"), locked(tmp_path / "absent"):
        pass


def test_a_lock_is_of_a_folder_and_of_no_file(tmp_path):
    path = tmp_path / "a"
    path.touch()
    with pytest.raises(OutputError, match="Not a directory"), locked(path):
        pass


def test_the_lock_of_a_folder_is_waited_for_a_minute(tmp_path, monkeypatch):
    clock = SimpleNamespace(time_s=1000.0)

    def sleep(seconds):
        clock.time_s += seconds

    fake_time = SimpleNamespace(monotonic=lambda: clock.time_s, sleep=sleep)
    monkeypatch.setattr("detcli.storage.files.time", fake_time)
    monkeypatch.setattr("detcli.storage.files.LOCK_RETRY_S", 0.5)
    says = "has been locked by another run for 60 s"
    with locked(tmp_path), pytest.raises(OutputError, match=says), locked(tmp_path):
        pass
    assert clock.time_s == 1060.5


def test_a_lock_is_tried_again_every_2_ms(tmp_path, monkeypatch):
    states = [LockState.HELD_BY_OTHER, LockState.HELD_BY_OTHER, LockState.LOCKED]
    pauses_s = []
    fake_time = SimpleNamespace(monotonic=lambda: 1000.0, sleep=pauses_s.append)
    monkeypatch.setattr("detcli.storage.files.time", fake_time)
    monkeypatch.setattr("detcli.storage.files.lock", lambda _: states.pop(0))
    with locked(tmp_path):
        assert pauses_s == [0.002, 0.002]


def test_in_windows_everybody_may_use_the_file_that_is_locked(tmp_path, monkeypatch):
    """As far as the umask lets them."""
    windows_locks = SimpleNamespace(locking=lambda *_: None, LK_NBLCK=2)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", windows_locks)
    umask_before = os.umask(0)
    try:
        with locked(tmp_path):
            mode = stat.S_IMODE((tmp_path / ".detcli-lock").stat().st_mode)
    finally:
        os.umask(umask_before)
    assert mode == 0o666


def test_in_windows_a_file_in_the_folder_is_locked_instead_of_the_folder(tmp_path, monkeypatch):
    locks = []
    inodes = []

    def note_lock(descriptor, mode, size):
        locks.append((mode, size))
        inodes.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=note_lock, LK_NBLCK=2))
    with locked(tmp_path):
        assert locks == [(2, 1)]
    assert names_in(tmp_path) == [".detcli-lock"]
    assert inodes == [(tmp_path / ".detcli-lock").stat().st_ino]
