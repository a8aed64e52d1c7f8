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

import json_lines
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
def journal_path(tmp_path):
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
def test_on_windows_two_runs_do_not_write_to_one_file_either(journal_path):
    write(journal_path, [image("a"), failure("b")])
    journal_path.write_text(
        journal_path.read_text() + '{"schema_version"'
    )  # and it is written anew
    first = Journal(journal_path)
    with pytest.raises(UsageError, match="another run is writing to it"):
        Journal(journal_path)
    first.write(image("c"))
    first.close()
    run(journal_path, ["a", "b", "c"])
    assert sources(journal_path) == ["a", "c", "b"]


def test_failures_are_tried_again(journal_path):
    write(journal_path, [image("a"), failure("b"), image("c")])
    run(journal_path, ["a", "b", "c"])
    assert sources(journal_path) == ["a", "c", "b"]


def test_an_input_named_twice_has_two_records(journal_path):
    write(journal_path, [image("a")])
    run(journal_path, ["a", "a", "b"])
    assert sources(journal_path) == ["a", "a", "b"]


def test_an_input_named_twice_has_two_records_in_a_file_that_is_written_anew(journal_path):
    write(journal_path, [failure("b"), image("a")])
    run(journal_path, ["a", "a", "b"])
    assert sources(journal_path) == ["a", "a", "b"]


def test_addresses_that_differ_in_a_secret_are_all_tried_again_if_one_failed(journal_path):
    name = "http://host/a.jpg?file=***"
    write(journal_path, [failure(name), image(name), image("b")])
    run(journal_path, [name, name, "b"])
    assert sources(journal_path) == ["b", name, name]


def test_standard_input_is_never_skipped(journal_path):
    run(journal_path, ["-", "a"])
    run(journal_path, ["-", "a"])
    assert sources(journal_path) == ["-", "a", "-"]


def test_frames_are_distinguished(journal_path):
    write(journal_path, [numbered(0, "v.mp4"), numbered(1, "v.mp4")])
    journal = Journal(journal_path)
    assert journal.skip(Origin("v.mp4", frame=0))
    assert journal.skip(Origin("v.mp4", frame=1))
    assert not journal.skip(Origin("v.mp4", frame=2))
    journal.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_torn_anywhere_can_be_completed(journal_path, data):
    """The run is killed at any byte that it writes."""
    journal_path.unlink(missing_ok=True)
    names = ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    run(journal_path, names)
    whole = journal_path.read_bytes()
    journal_path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    run(journal_path, names)
    assert Counter(sources(journal_path)) == Counter(names)


def test_records_are_written_before_the_journal_is_closed(journal_path):
    journal = Journal(journal_path)
    journal.write(image("a"))
    assert sources(journal_path) == ["a"]
    journal.close()


def test_odd_names_are_recognised(journal_path):
    name = "caf\udce9\u2028\n.jpg"  # no UTF-8, and no line for every reader
    write(journal_path, [image(name)])
    journal = Journal(journal_path)
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
def test_another_file_is_not_touched(journal_path, content):
    journal_path.write_text(content)
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(journal_path)
    assert journal_path.read_text() == content


def test_two_runs_do_not_write_to_one_file(journal_path):
    journal = Journal(journal_path)
    with pytest.raises(UsageError, match="another run"):
        Journal(journal_path)
    journal.close()
    Journal(journal_path).close()


def test_a_file_system_without_locks_will_do(journal_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run(journal_path, ["a"])
    assert sources(journal_path) == ["a"]


def test_a_repaired_file_is_locked_too(journal_path):
    write(journal_path, [failure("a")])
    journal = Journal(journal_path)
    with pytest.raises(UsageError, match="another run"):
        Journal(journal_path)
    journal.close()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "run.jsonl")


def test_a_full_disk_names_the_file_and_the_next_run_continues(journal_path):
    names = [f"{number}.jpg" for number in range(20)]
    with small_disk(), pytest.raises(OutputError, match=r"run\.jsonl"):
        run(journal_path, names)
    run(journal_path, names)
    assert sources(journal_path) == names


def test_a_disk_too_full_to_write_a_journal_anew_leaves_it_as_it_is(journal_path):
    write(journal_path, [failure("a")] + [image(name) for name in "bcdefgh"])
    before = journal_path.read_bytes()
    with small_disk(), pytest.raises(OutputError, match=r"run\.jsonl"):
        Journal(journal_path)
    assert journal_path.read_bytes() == before
    assert list(journal_path.parent.iterdir()) == [journal_path]


def test_a_run_that_finishes_before_the_lock_is_taken_loses_nothing(journal_path, monkeypatch):
    """The other run opens the file, writes it anew and ends while this one waits for its turn."""
    write(journal_path, [image("a"), failure("b")])
    flock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        run(journal_path, ["a", "b"])
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    run(journal_path, ["a", "b", "c"])
    assert sources(journal_path) == ["a", "b", "c"]


def test_a_file_that_is_removed_before_the_lock_is_taken_is_made_again(journal_path, monkeypatch):
    flock = fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        journal_path.unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    run(journal_path, ["a"])
    assert sources(journal_path) == ["a"]


def test_a_run_between_the_rewriting_and_its_lock_is_read_again(journal_path, monkeypatch):
    """The lock of the old file says nothing about the new one."""
    write(journal_path, [failure("a"), image("b")])
    rewrite = Journal._keep_only  # noqa: SLF001 - what comes after it is the point

    def then_another(journal, can_stay):
        rewrite(journal, can_stay)
        monkeypatch.setattr(Journal, "_keep_only", rewrite)
        run(journal_path, ["a", "b"])

    monkeypatch.setattr(Journal, "_keep_only", then_another)
    run(journal_path, ["a", "b"])
    assert sources(journal_path) == ["b", "a"]


@pytest.mark.slow
def test_what_a_power_cut_leaves_is_completed(journal_path):
    names = ["a", "b", "c", "d"]
    run(journal_path, names)
    whole = journal_path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole) + 1):
        journal_path.write_bytes(whole[:length].ljust(len(whole), b"\0"))
        run(journal_path, names)
        assert Counter(sources(journal_path)) == Counter(names)
        assert journal_path.read_bytes().startswith(whole[:length].rpartition(b"\n")[0])
    for missing in range(1, len(lines)):  # a page in the middle never reached the disk
        damaged = lines.copy()
        damaged[missing] = bytes(len(lines[missing]) - 7) + lines[missing][-7:]
        journal_path.write_bytes(b"".join(damaged))
        run(journal_path, names)
        assert Counter(sources(journal_path)) == Counter(names)


@pytest.mark.parametrize("content", [b"\0\0\1\0icon", b"\0" * 9 + b"text\n", b"\x93NUMPY\0\n"])
def test_a_binary_file_is_not_touched(journal_path, content):
    journal_path.write_bytes(content)
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(journal_path)
    assert journal_path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.csv", "hello\n"),
        ("run.CSV", "hello\n"),
        ("run.jsonl", "source,index\n"),
        ("run.csv", "source,index\n"),
    ],
)
def test_a_file_of_another_format_is_refused_with_what_to_write(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        Journal(tmp_path / name)
    assert "--resume NEW.jsonl" in caught.value.hint


def test_a_file_of_no_known_format_is_refused_with_what_can_be_continued(journal_path):
    journal_path.write_text("hello\n")
    with pytest.raises(UsageError) as caught:
        Journal(journal_path)
    assert caught.value.hint == "name a file that detcli wrote as JSON Lines"


def test_a_record_that_lost_its_beginning_behind_another_is_detected_again(journal_path):
    """A power cut has left zeros in place of the beginning; the line feed is behind them."""
    run(journal_path, ["a", "b", "c"])
    first, second, third = journal_path.read_bytes().splitlines(keepends=True)
    journal_path.write_bytes(first + bytes(len(second) - 7) + second[-7:] + third)
    run(journal_path, ["a", "b", "c"])
    assert sources(journal_path) == ["a", "c", "b"]


VERSION_1 = {"schema_version": 1, "source": "a", "detections": [], "width": 9, "height": 9}


def test_a_record_of_version_1_is_read(journal_path):
    journal_path.write_text(json.dumps(VERSION_1) + "\n")
    Journal(journal_path).close()


@pytest.mark.parametrize(
    "field", [{"frame": []}, {"settings": 3}, {"saved": 7}, {"source": {}}, {"detections": 5}]
)
def test_fields_of_other_types_are_not_records(journal_path, field):
    journal_path.write_text(json.dumps(VERSION_1 | field) + "\n")
    with pytest.raises(UsageError, match="line 1 is not a record of detcli: "):
        Journal(journal_path)


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


def test_records_are_put_on_the_disk_about_once_a_second(journal_path, synced, monkeypatch):
    clock = SimpleNamespace(time_s=100.0)
    monkeypatch.setattr("time.monotonic", lambda: clock.time_s)
    journal = Journal(journal_path)
    assert synced == ["folder"]
    for number in range(13):
        journal.write(image(str(number)))
        clock.time_s += 0.25
    assert synced.count("file") == 4
    journal.close()
    assert synced == ["folder", "file", "file", "file", "file", "file"]


def test_what_others_have_of_a_record_is_on_the_disk_before_it(journal_path, synced):
    journal = Journal(journal_path, before_sync=lambda: synced.append("others"))
    synced.clear()
    journal.write(image("a"))
    assert synced == ["others", "file"]
    synced.clear()
    journal.close()
    assert synced == ["others", "file"]


def test_a_journal_that_is_written_anew_is_on_the_disk_first(journal_path, synced):
    write(journal_path, [image("a"), failure("b")])
    synced.clear()
    Journal(journal_path)._file.close()  # noqa: SLF001 - as a kill would
    assert synced[:2] == ["file", "folder"]


def test_a_disk_that_loses_records_is_an_output_error(journal_path, monkeypatch):
    def broken(_):
        raise OSError(5, "Input/output error")

    journal = Journal(journal_path)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OutputError, match="Input/output"):
        journal.write(image("a"))
    with pytest.raises(OutputError, match="Input/output"):
        journal.close()


def test_a_pipe_is_refused_and_not_waited_for(journal_path):
    os.mkfifo(journal_path)
    with pytest.raises(UsageError, match="not a regular file"):
        Journal(journal_path)


def test_a_link_is_followed(journal_path, tmp_path):
    journal_path.symlink_to(tmp_path / "there.jsonl")
    write(journal_path, [image("a"), failure("b")])
    write(journal_path, [image("b")])
    assert journal_path.is_symlink()
    assert sources(journal_path) == ["a", "b"]


def test_a_journal_of_version_1_is_written_anew_as_version_2(journal_path):
    journal_path.write_text(json.dumps(VERSION_1) + "\n")
    Journal(journal_path).close()
    [record] = json_lines.lines(journal_path.read_text())
    assert record["schema_version"] == 2
    assert record["source"] == "a"


def test_a_record_is_put_on_the_disk_a_second_after_the_one_before(
    journal_path, synced, monkeypatch
):
    clock = SimpleNamespace(time_s=0.5)  # as right after the machine has started
    monkeypatch.setattr("time.monotonic", lambda: clock.time_s)
    journal = Journal(journal_path)
    synced.clear()
    for time_s, count in ((0.98, 0), (1.0, 1), (1.98, 1), (2.0, 2), (2.98, 2), (3.0, 3)):
        clock.time_s = time_s
        journal.write(image("a"))
        assert len(synced) == count
    journal.close()


def test_everybody_may_write_to_a_new_journal_as_far_as_the_umask_lets_them(journal_path):
    umask_before = os.umask(0)
    try:
        Journal(journal_path).close()
    finally:
        os.umask(umask_before)
    assert stat.S_IMODE(journal_path.stat().st_mode) == 0o666
