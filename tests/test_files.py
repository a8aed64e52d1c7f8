"""Files appear whole or not at all."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_disk import small_disk

from detcli.errors import OutputError
from detcli.files import AtomicFile, StandardOutput, cache_folder, make_folder, write_file


def test_nothing_has_the_name_before_commit(tmp_path):
    path = tmp_path / "a.json"
    file = AtomicFile(path)
    file.write("half")
    assert not path.exists()
    file.write(" whole")
    file.commit()
    assert path.read_text() == "half whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_library_can_write_the_file_by_name(tmp_path):
    path = tmp_path / "a.mp4"
    file = AtomicFile(path, binary=True, suffix=".mp4")
    assert file.written.parent == tmp_path
    assert file.written.name.endswith(".part.mp4")
    file.written.write_bytes(b"whole")
    assert not path.exists()
    file.commit()
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_file_stays_until_commit(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    file = AtomicFile(path)
    file.write("new")
    assert path.read_text() == "old"
    file.commit()
    assert path.read_text() == "new"


def test_discard_leaves_the_existing_file_alone(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    file = AtomicFile(path)
    file.write("new")
    file.discard()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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
    file = AtomicFile(path, binary=binary)
    line = "é" * 299 + "\n"  # 599 bytes
    data = line.encode() if binary else line
    file.write(data)
    for _ in range(2):
        with small_disk(1000), pytest.raises(OutputError, match=r"a\.txt"):
            file.write(data)
    with small_disk(1000):
        file.write(data[:9])
    file.commit()
    assert path.read_bytes() == line.encode() + (data[:9] if binary else data[:9].encode())
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_existing_file_alone(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with small_disk(), pytest.raises(OutputError, match=r"a\.json"):
        write_file(path, bytes(5000))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    target, link = tmp_path / "there" / "a.json", tmp_path / "link.json"
    target.parent.mkdir()
    link.symlink_to(target)
    write_file(link, b"one")
    write_file(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("data", [b"\0\r\n\xff", b"", bytes(100_000)])
def test_write_file_writes_these_bytes(tmp_path, data):
    path = tmp_path / "a.bin"
    write_file(path, data)
    assert path.read_bytes() == data


def test_text_is_utf8_with_its_line_ends(tmp_path):
    file = AtomicFile(tmp_path / "a.txt")
    file.write("é\n\r\n\udcff")
    file.commit()
    assert (tmp_path / "a.txt").read_bytes() == b"\xc3\xa9\n\r\n\\udcff"


def test_a_named_pipe_is_written_directly(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = AtomicFile(path)
    file.write("at once")
    assert os.read(reader, 100) == b"at once"
    file.commit()
    os.close(reader)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


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


def test_make_folder_makes_parents_and_accepts_an_existing_folder(tmp_path):
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    (folder / "kept").write_text("")
    make_folder(folder)
    assert [path.name for path in folder.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_make_folder_over_a_file_is_an_output_error(tmp_path, name):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OutputError, match="file"):
        make_folder(tmp_path / name)
    assert (tmp_path / "file").read_text() == "kept"


def test_the_environment_moves_the_cache(cache):
    assert cache_folder() == cache


@pytest.mark.parametrize("variable", [None, ""])
def test_the_cache_is_the_users_by_default(monkeypatch, tmp_path, variable):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    if variable is not None:
        monkeypatch.setenv("DETCLI_CACHE_DIR", variable)
    assert cache_folder() == tmp_path / "detcli"


def test_standard_output_is_flushed_utf8_and_escapes():
    code = """if True:
        import os
        from detcli.files import StandardOutput
        StandardOutput().write("é猫\\udcff\\n")
        os._exit(0)  # unflushed text is lost"""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert finished.stdout == "é猫\\udcff\n".encode()


def test_a_full_disk_behind_standard_output_is_an_output_error(monkeypatch):
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:  # closing flushes
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError, match="standard output: No space left"):
            StandardOutput().write("more")


def test_standard_output_without_a_reader_is_a_broken_pipe(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as pipe:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            StandardOutput().write("more")


def test_closed_standard_output_is_an_output_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as with `>&-`
    with pytest.raises(OutputError, match="standard output"):
        StandardOutput().write("more")


def no_home(*_args, **_options):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize("answer", [no_home, lambda *_, **__: Path("~/.cache/detcli")])
def test_a_cache_needs_a_home_folder(monkeypatch, answer):
    monkeypatch.delenv("DETCLI_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_path", answer)
    with pytest.raises(OutputError, match="no home"):
        cache_folder()
