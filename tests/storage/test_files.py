"""Files appear whole or not at all."""

import contextlib
import errno
import gzip
import io
import os
import stat
import sys
from pathlib import Path

import pytest
from folders import names_in
from small_disk import small_disk

from detcli.core.errors import DetcliWarning, OutputError, UsageError
from detcli.storage.files import (
    AppendedFile,
    AtomicFile,
    DirectFile,
    ResultFile,
    make_folder,
    open_lines,
    open_output,
    open_regular,
    output_states,
    read_json,
    read_text,
    sha256,
    unwritable,
    write_file,
    write_output,
    writing,
)
from detcli.storage.folder import OutputState


@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize("suffix", ["", ".mp4"])
def test_a_file_has_its_name_from_its_commit_on(tmp_path, old, suffix):
    """Written by us or, by its temporary name, by a library."""
    path = tmp_path / "a"
    if old:
        path.write_text(old)
    for commits in (False, True):
        file = AtomicFile(path, suffix=suffix)
        assert file.temporary_path.parent == tmp_path
        assert file.temporary_path.name.endswith(f".part{suffix}")
        if suffix:
            file.temporary_path.write_text("half whole")
        else:
            file.write("half")
            file.write(" whole")
        assert list(map(Path.read_text, tmp_path.glob("a"))) == [old] * bool(old)
        (file.commit if commits else file.discard)()
        after = "half whole" if commits else old
        assert list(map(Path.read_text, tmp_path.iterdir())) == [after] * bool(after)


def test_a_failed_commit_leaves_no_file(tmp_path):
    path = tmp_path / "a.json"
    file = AtomicFile(path)
    file.write("new")
    path.mkdir()
    with pytest.raises(OutputError, match=r"a\.json"):
        file.commit()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("binary", [False, True])
def test_a_partial_write_on_a_full_disk_is_undone(tmp_path, binary):
    path = tmp_path / "a.txt"
    file = AtomicFile(path)
    line = "é" * 299 + "\n"  # 599 bytes
    data = line.encode() if binary else line
    file.write(data)
    for _ in range(2):
        with small_disk(1000), pytest.raises(OutputError, match=r"a\.txt"):
            file.write(data)
    with small_disk(1000):
        file.write(data[:9])
    with pytest.warns(DetcliWarning, match="not complete"):
        file.commit()
    assert path.read_bytes() == line.encode() + (data[:9] if binary else data[:9].encode())  # type: ignore[operator, union-attr]
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_write_that_fails_leaves_an_empty_file(tmp_path):
    file = AtomicFile(tmp_path / "a.txt")
    with small_disk(100), pytest.raises(OutputError, match=r"a\.txt"):
        file.write("x" * 200)
    with pytest.warns(DetcliWarning, match="not complete"):
        file.commit()
    assert (tmp_path / "a.txt").read_bytes() == b""


def test_a_result_that_lacks_what_could_not_be_written_is_not_complete(tmp_path):
    file = open_output(tmp_path / "a.txt")
    file.write("first\n")
    with small_disk(100), pytest.raises(OutputError, match=r"a\.txt"):
        file.write("x" * 200)
    with pytest.warns(DetcliWarning, match=r"a\.txt is not complete"):
        file.commit()
    assert (tmp_path / "a.txt").read_text() == "first\n"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EISDIR, "name a file"), (errno.ENOSPC, "free space"), (errno.EIO, "check the folder")],
)
def test_the_hint_says_what_to_do_about_the_systems_reason(code, remedy):
    error = unwritable("a.json", OSError(code, os.strerror(code)), "; nothing is lost")
    assert str(error) == f"cannot write a.json: {os.strerror(code)}"
    assert remedy in error.hint
    assert error.hint.endswith("; nothing is lost")


def test_an_error_without_a_number_has_a_hint_all_the_same():
    error = unwritable("a.json", OSError("torn"))
    assert error.hint == "check the folder, its permissions and its disk"


@pytest.mark.parametrize("kind", [AtomicFile, ResultFile])
def test_a_warning_about_a_file_is_shown_at_the_line_that_commits_it(tmp_path, kind):
    file = kind(tmp_path / "a.txt")
    with small_disk(100), pytest.raises(OutputError, match=r"a\.txt"):
        file.write("x" * 200)
    with pytest.warns(DetcliWarning, match="not complete") as caught:
        file.commit()
    assert caught[0].filename == __file__


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_while_a_file_is_made_leaves_nothing(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def interrupted():
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr("detcli.storage.files.interrupts.held", interrupted)
    with pytest.raises(KeyboardInterrupt):
        AtomicFile(tmp_path / "a.jpg")
    assert list(tmp_path.iterdir()) == []
    assert open_below(tmp_path) == []


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    target, link = tmp_path / "there" / "a.json", tmp_path / "link.json"
    target.parent.mkdir()
    link.symlink_to(target)
    write_output(link, b"one")
    write_output(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


def test_content_is_written_as_it_is(tmp_path):
    for data in (b"\0\r\n\xff", b"", bytes(100_000)):
        write_file(tmp_path / "a", data)
        assert (tmp_path / "a").read_bytes() == data
    file = AtomicFile(tmp_path / "a")
    file.write("é\n\r\n\udcff")
    file.commit()
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9\n\r\n\\udcff"


def link(path):
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("planted", [link, os.mkfifo])
def test_what_was_planted_is_replaced(tmp_path, planted):
    (tmp_path / "elsewhere").write_text("kept")
    path = tmp_path / "out" / "a.jpg"
    path.parent.mkdir()
    planted(path)
    write_file(path, b"new")
    assert stat.S_ISREG(path.lstat().st_mode)
    assert path.read_bytes() == b"new"
    assert (tmp_path / "elsewhere").read_text() == "kept"
    assert list(path.parent.iterdir()) == [path]


def test_a_planted_mode_gives_no_rights(tmp_path):
    path = tmp_path / "a.jpg"
    path.touch()
    path.chmod(0o4755)
    write_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_afterwards(
    tmp_path, monkeypatch
):
    """Whether it replaces or is new; and an interrupt waits for it."""
    calls = []
    for name in ("fsync", "replace", "link"):
        original = getattr(os, name)

        def record(*arguments, name=name, original=original, **options):
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(os, name, record)

    @contextlib.contextmanager
    def held():
        calls.append("held")
        yield
        calls.append("free")

    monkeypatch.setattr("detcli.storage.files.interrupts.held", held)
    write_file(tmp_path / "a.jpg", b"new")
    assert calls == ["held", "free", "held", "fsync", "replace", "fsync", "free"]
    calls.clear()
    assert AtomicFile(tmp_path / "b.jpg").commit_new()
    assert not AtomicFile(tmp_path / "a.jpg").commit_new()
    expected_calls = ["held", "free", "held", "fsync", "link"]
    assert calls == expected_calls + ["fsync", "free"] + expected_calls + ["free"]
    assert (tmp_path / "a.jpg").read_bytes() == b"new"
    calls.clear()
    AppendedFile(tmp_path / "a.jpg").commit()
    assert calls == ["fsync"]


def test_a_disk_that_is_full_leaves_the_existing_file_alone(tmp_path, monkeypatch):
    """As it turns out at a write, or when the data is sent to the disk."""

    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.jpg"
    path.write_bytes(b"old")
    with small_disk(), pytest.raises(OutputError, match=r"a\.jpg"):
        write_file(path, bytes(5000))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_cannot_say_when_data_is_on_the_disk_will_do(
    tmp_path, monkeypatch, code
):
    def refuse(_):
        raise OSError(code, "Not supported")

    monkeypatch.setattr(os, "fsync", refuse)
    write_file(tmp_path / "a.jpg", b"new")
    assert (tmp_path / "a.jpg").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["missing/a.json", "file/a.json", "folder", "x" * 300])
def test_an_unwritable_place_is_an_output_error(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError) as caught:
        AtomicFile(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_file(tmp_path / "a.json", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("most", "says"),
    [
        ((1 << 20) - 1, "larger than 1 MiB"),
        ((2 << 20) - 2, "larger than 1 MiB"),
        ((512 << 20) - 1, "larger than 512 MiB"),
        ((1023 << 20) - 1, "larger than 1023 MiB"),
        ((1 << 30) - 1, "larger than 1 GiB"),
        ((2 << 30) - 1, "larger than 2 GiB"),
        (2 << 30, ""),
    ],
)
def test_only_regular_files_are_opened_up_to_a_size(tmp_path, most, says):
    path = tmp_path / "a.json"
    path.touch()
    os.truncate(path, 2 << 30)
    with pytest.raises(OSError, match=says) if says else open_regular(path, most):
        open_regular(path, most).close()
    os.mkfifo(tmp_path / "pipe")
    for irregular, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "not a regular file"),
    ):
        with pytest.raises(OSError, match=reason):
            open_regular(irregular, most)


def test_make_folder(tmp_path):
    """It makes parents, accepts a folder, and refuses a file."""
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    (folder / "kept").write_text("kept")
    make_folder(folder)
    for path in (folder / "kept", folder / "kept" / "below"):
        with pytest.raises(OutputError, match="kept"):
            make_folder(path)
    (file,) = folder.iterdir()
    assert file.read_text() == "kept"


def test_what_is_added_is_whole(tmp_path):
    """What does not fit on the disk is taken back, and the rest stays."""
    path = tmp_path / "a.jsonl"
    path.write_text("earlier\ntorn")
    first, second = AppendedFile(path), AppendedFile(path)
    assert first.first_line == "earlier\n"
    first.write("one é\udcff\n")
    with small_disk(100), pytest.raises(OutputError, match=r"a\.jsonl: File too large"):
        first.write("x" * 200 + "\n")
    second.write("other\n")
    first.write("one more\n")
    for file in (first, second):
        file.commit()
    expected = ["earlier", "torn", "one é\\udcff", "other", "one more"]
    assert path.read_text(encoding="utf-8").splitlines() == expected


def test_what_is_added_has_to_be_on_the_disk(tmp_path, monkeypatch):
    """An input counts as done in a resume file only if the pages before it are on the disk."""

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = AppendedFile(tmp_path / "a.jsonl")
    file.write("one\n")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match=r"cannot write .*a\.jsonl: Input/output error"):
        file.commit()
    assert file.file.closed


class UnclosableFile:
    """An open file whose last writes fail when it is closed, as on a network drive."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def close(self):
        self.file.close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_new_file_that_cannot_be_closed_is_not_complete(tmp_path):
    file = AtomicFile(tmp_path / "a")
    file.file = UnclosableFile(file.file)
    with pytest.raises(OutputError, match=r"cannot write .*a: Input/output error"):
        file.commit()


@pytest.mark.parametrize("kind", [AppendedFile, DirectFile])
def test_a_file_that_cannot_be_closed_is_not_complete(kind, tmp_path, monkeypatch):
    class Unclosed(io.FileIO):
        def close(self):
            super().close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("detcli.storage.files.FileIO", Unclosed)
    path = tmp_path / "a"
    path.touch()
    file = kind(path)
    with pytest.raises(OutputError, match=r"cannot write .*a: Input/output error"):
        file.commit()
    file.file = None  # whose destructor would close it again


def test_what_cannot_be_opened_is_named_and_what_can_is_read(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*gone/a"):
        DirectFile(tmp_path / "gone" / "a")
    (tmp_path / "names.txt").write_bytes("\ufeffpérson".encode())
    assert read_text(tmp_path / "names.txt") == "pérson"


def test_in_windows_files_are_written_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    write_file(tmp_path / "a.jpg", b"old")
    write_file(tmp_path / "a.jpg", b"new")
    assert names_in(tmp_path) == ["a.jpg"]
    assert (tmp_path / "a.jpg").read_bytes() == b"new"


def test_in_windows_no_open_file_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    output = AtomicFile(tmp_path / "a.jpg")
    unlink = os.unlink
    were_closed = []

    def note_and_unlink(path, **options):
        were_closed.append(output.file.closed)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", note_and_unlink)
    output.discard()
    assert were_closed == [True]
    assert list(tmp_path.iterdir()) == []


def test_in_windows_no_open_file_is_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    output = AtomicFile(tmp_path / "a.jpg")
    replace = os.replace
    were_closed = []

    def note_and_replace(*names, **options):
        were_closed.append(output.file.closed)
        replace(*names, **options)

    monkeypatch.setattr(os, "replace", note_and_replace)
    output.commit()
    assert were_closed == [True]


def test_of_a_first_line_65536_bytes_are_looked_at(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 70_000 + b"\n")
    output = AppendedFile(path)
    output.commit()
    assert len(output.first_line) == 65536


def open_below(folder):
    """The paths in a folder that this process has open, and that of the folder if it is."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was open to list the others
            path = descriptor.readlink()
            if path.is_relative_to(folder):
                paths.append(path)
    return paths


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", [AtomicFile.commit, AtomicFile.discard])
def test_a_file_that_has_ended_leaves_nothing_open(tmp_path, end):
    file = AtomicFile(tmp_path / "a.jpg")
    assert sorted(open_below(tmp_path)) == [tmp_path, file.temporary_path]
    end(file)
    assert open_below(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_that_cannot_begin_leaves_nothing_open(tmp_path):
    (tmp_path / "a.jpg").mkdir()
    with pytest.raises(OutputError, match=r"a\.jpg"):
        AtomicFile(tmp_path / "a.jpg")
    assert open_below(tmp_path) == []


def test_a_file_that_is_committed_is_not_discarded_any_more(tmp_path):
    file = AtomicFile(tmp_path / "a.jpg")
    file.commit()
    file.temporary_path.write_text("of somebody else")
    file.discard()
    assert file.temporary_path.read_text() == "of somebody else"


def test_the_states_of_files_are_noted_and_those_of_other_outputs_are_not(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("four")
    states = output_states([path, "s3://bucket/a.jsonl", None])
    assert states == {path: OutputState.of(path)}
    assert states[path].size == 4


def test_a_regular_file_is_opened_with_further_flags(tmp_path):
    path = tmp_path / "a.json"
    path.touch()
    link = tmp_path / "link.json"
    link.symlink_to(path)
    open_regular(path, flags=os.O_NOFOLLOW).close()
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(link, flags=os.O_NOFOLLOW)


def test_a_system_that_never_waits_for_a_file_needs_no_flag_for_it(tmp_path, monkeypatch):
    """As Windows, which has no O_NONBLOCK."""
    (tmp_path / "a.json").write_text("{}")
    monkeypatch.delattr(os, "O_NONBLOCK")
    with open_regular(tmp_path / "a.json") as file:
        assert file.read() == b"{}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "it is not JSON"),
        (b"\xff{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"\x1f\x8b", "Compressed file ended before the end-of-stream marker was reached"),
    ],
    ids=["cut off", "no text", "too deep", "gzip cut off"],
)
def test_a_file_that_is_not_json_is_the_error_of_its_reader(tmp_path, content, reason):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_json(path, lambda path, reason: UsageError(f"{path.name}: {reason}"))
    assert str(caught.value) == f"a.json: {reason}"


def test_lines_of_a_compressed_file_are_read_as_those_of_another(tmp_path):
    content = "é\n猫\n".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    for name in ("a.txt", "a.txt.gz"):
        with open_lines(tmp_path / name) as file:
            assert file.read() == content


def test_json_that_cannot_be_opened_is_the_error_of_its_reader(tmp_path):
    with pytest.raises(UsageError, match=r"a\.json: No such file or directory"):
        read_json(tmp_path / "a.json", lambda path, reason: UsageError(f"{path.name}: {reason}"))


def test_json_that_is_too_large_is_the_error_of_its_reader(tmp_path, monkeypatch):
    monkeypatch.setattr("detcli.core.lines.MAX_TEXT_BYTES", 10)
    (tmp_path / "a.json").write_text("[1, 2, 3, 4, 5]")
    with pytest.raises(UsageError, match=r"a\.json: .*larger"):
        read_json(tmp_path / "a.json", lambda path, reason: UsageError(f"{path.name}: {reason}"))


def test_the_hash_of_a_file_is_that_of_its_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_a_reader_that_has_seen_enough_is_no_failure_to_write():
    with pytest.raises(BrokenPipeError), writing("standard output"):
        raise BrokenPipeError
