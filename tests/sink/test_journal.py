"""A journal: no record is lost, and none is written twice."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import failure, image, numbered
from sink.journals import run, sources, write
from small_disk import small_disk

from detcli.core.errors import OutputError, UsageError
from detcli.data.record import Origin
from detcli.sink.journal import Journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def windows(monkeypatch):
    """Windows' locks, and that no open file is replaced there."""

    def locking(descriptor, _, count):
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 2**31 - 2
        assert count == 1
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    def replace(old, new, **_):
        for opened in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                assert opened.readlink() != Path(new).resolve()
        Path(old).rename(new)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("windows")
def test_on_windows_two_runs_do_not_write_to_one_file_either(path):
    write(path, image("a"), failure("b"))
    path.write_text(path.read_text() + '{"schema_version"')  # and it is written anew
    first = Journal(path)
    with pytest.raises(UsageError, match="another run is writing to it"):
        Journal(path)
    first.write(image("c"))
    first.close()
    run(path, ["a", "b", "c"])
    assert sources(path) == ["a", "c", "b"]


def test_failures_are_tried_again(path):
    write(path, image("a"), failure("b"), image("c"))
    run(path, ["a", "b", "c"])
    assert sources(path) == ["a", "c", "b"]


def test_an_input_named_twice_has_two_records(path):
    write(path, image("a"))
    run(path, ["a", "a", "b"])
    assert sources(path) == ["a", "a", "b"]


def test_an_input_named_twice_has_two_records_in_a_file_that_is_written_anew(path):
    write(path, failure("b"), image("a"))
    run(path, ["a", "a", "b"])
    assert sources(path) == ["a", "a", "b"]


def test_addresses_that_differ_in_a_secret_are_all_tried_again_if_one_failed(path):
    name = "http://host/a.jpg?file=***"
    write(path, failure(name), image(name), image("b"))
    run(path, [name, name, "b"])
    assert sources(path) == ["b", name, name]


def test_standard_input_is_never_skipped(path):
    run(path, ["-", "a"])
    run(path, ["-", "a"])
    assert sources(path) == ["-", "a", "-"]


def test_frames_are_distinguished(path):
    write(path, numbered(0, "v.mp4"), numbered(1, "v.mp4"))
    journal = Journal(path)
    assert journal.skip(Origin("v.mp4", frame=0))
    assert journal.skip(Origin("v.mp4", frame=1))
    assert not journal.skip(Origin("v.mp4", frame=2))
    journal.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_torn_anywhere_can_be_completed(path, data):
    """The run is killed at any byte that it writes."""
    path.unlink(missing_ok=True)
    names = [f"{number}.jpg" for number in range(5)]
    run(path, names)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    run(path, names)
    assert Counter(sources(path)) == Counter(names)


def test_records_are_written_before_the_journal_is_closed(path):
    journal = Journal(path)
    journal.write(image("a"))
    assert sources(path) == ["a"]
    journal.close()


def test_odd_names_are_recognised(path):
    name = "caf\udce9\u2028\n.jpg"  # no UTF-8, and no line for every reader
    write(path, image(name))
    journal = Journal(path)
    assert journal.skip(Origin(name))
    journal.close()


@pytest.mark.parametrize(
    "content",
    [
        "hello\n",
        '{"a": 1}\n',
        "[1]\n",
        '{"source": 1}\n',
        "a token",
        '{"my": "notes"}',
        "[1]",
        '{"source": "a", "schema_version": 2, "width": 9, "height": 9, "detections": []}',
    ],
)
def test_another_file_is_not_touched(path, content):
    path.write_text(content)
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(path)
    assert path.read_text() == content


def test_two_runs_do_not_write_to_one_file(path):
    journal = Journal(path)
    with pytest.raises(UsageError, match="another run"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_a_file_system_without_locks_will_do(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run(path, ["a"])
    assert sources(path) == ["a"]


def test_a_repaired_file_is_locked_too(path):
    write(path, failure("a"))
    journal = Journal(path)
    with pytest.raises(UsageError, match="another run"):
        Journal(path)
    journal.close()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "run.jsonl")


def test_a_full_disk_names_the_file_and_the_next_run_continues(path):
    names = [f"{number}.jpg" for number in range(20)]
    with small_disk(), pytest.raises(OutputError, match=r"run\.jsonl"):
        run(path, names)
    run(path, names)
    assert sources(path) == names


def test_a_disk_too_full_to_write_a_journal_anew_leaves_it_as_it_is(path):
    write(path, failure("a"), *[image(name) for name in "bcdefgh"])
    before = path.read_bytes()
    with small_disk(), pytest.raises(OutputError, match=r"run\.jsonl"):
        Journal(path)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_a_run_that_finishes_before_the_lock_is_taken_loses_nothing(path, monkeypatch):
    """The other run opens the file, writes it anew and ends while this one waits for its turn."""
    write(path, image("a"), failure("b"))
    flock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        run(path, ["a", "b"])
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    run(path, ["a", "b", "c"])
    assert sources(path) == ["a", "b", "c"]


def test_a_file_that_is_removed_before_the_lock_is_taken_is_made_again(path, monkeypatch):
    flock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    run(path, ["a"])
    assert sources(path) == ["a"]


def test_a_run_between_the_rewriting_and_its_lock_is_read_again(path, monkeypatch):
    """The lock of the old file says nothing about the new one."""
    write(path, failure("a"), image("b"))
    rewrite = Journal._keep_only  # noqa: SLF001 - what comes after it is the point

    def then_another(journal, can_stay):
        rewrite(journal, can_stay)
        monkeypatch.setattr(Journal, "_keep_only", rewrite)
        run(path, ["a", "b"])

    monkeypatch.setattr(Journal, "_keep_only", then_another)
    run(path, ["a", "b"])
    assert sources(path) == ["b", "a"]


@pytest.mark.slow
def test_what_a_power_cut_leaves_is_completed(path):
    names = ["a", "b", "c", "d"]
    run(path, names)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length].ljust(len(whole), b"\0"))
        run(path, names)
        assert Counter(sources(path)) == Counter(names)
        assert path.read_bytes().startswith(whole[:length].rpartition(b"\n")[0])
    for missing in range(1, len(lines)):  # a page in the middle never reached the disk
        damaged = lines.copy()
        damaged[missing] = bytes(len(lines[missing]) - 7) + lines[missing][-7:]
        path.write_bytes(b"".join(damaged))
        run(path, names)
        assert Counter(sources(path)) == Counter(names)


@pytest.mark.parametrize("content", [b"\0\0\1\0icon", b"\0" * 9 + b"text\n", b"\x93NUMPY\0\n"])
def test_a_binary_file_is_not_touched(path, content):
    path.write_bytes(content)
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(path)
    assert path.read_bytes() == content


VERSION_1 = {"schema_version": 1, "source": "a", "detections": [], "width": 9, "height": 9}


def test_a_record_of_version_1_is_read(path):
    path.write_text(json.dumps(VERSION_1) + "\n")
    Journal(path).close()


@pytest.mark.parametrize(
    "field", [{"frame": []}, {"settings": 3}, {"saved": 7}, {"source": {}}, {"detections": 5}]
)
def test_fields_of_other_types_are_not_records(path, field):
    path.write_text(json.dumps(VERSION_1 | field) + "\n")
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(path)


@pytest.fixture
def synced(monkeypatch):
    """The kinds of all that is put on the disk, in order."""
    kinds = []
    fsync = os.fsync

    def note_and_sync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        kinds.append("folder" if is_folder else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    return kinds


def test_records_are_put_on_the_disk_about_once_a_second(path, synced, monkeypatch):
    clock = SimpleNamespace(time_s=100.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.time_s)
    journal = Journal(path)
    assert synced == ["folder"]
    for number in range(13):
        journal.write(image(str(number)))
        clock.time_s += 0.25
    assert synced.count("file") == 4
    journal.close()
    assert synced == ["folder", "file", "file", "file", "file", "file"]


def test_a_journal_that_is_written_anew_is_on_the_disk_first(path, synced):
    write(path, image("a"), failure("b"))
    synced.clear()
    Journal(path)._file.close()  # noqa: SLF001 - as a kill would
    assert synced[:2] == ["file", "folder"]


def test_a_disk_that_loses_records_is_an_output_error(path, monkeypatch):
    def broken(_):
        raise OSError(5, "Input/output error")

    journal = Journal(path)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OutputError, match="Input/output"):
        journal.write(image("a"))
    with pytest.raises(OutputError, match="Input/output"):
        journal.close()


def test_a_pipe_is_refused_and_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(UsageError, match="not a regular file"):
        Journal(path)


def test_a_link_is_followed(path, tmp_path):
    path.symlink_to(tmp_path / "there.jsonl")
    write(path, image("a"), failure("b"))
    write(path, image("b"))
    assert path.is_symlink()
    assert sources(path) == ["a", "b"]


def test_a_journal_of_version_1_is_written_anew_as_version_2(path):
    path.write_text(json.dumps(VERSION_1) + "\n")
    Journal(path).close()
    [record] = [json.loads(line) for line in path.read_text().splitlines()]
    assert record["schema_version"] == 2
    assert record["source"] == "a"
