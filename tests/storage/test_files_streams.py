"""What is written to standard streams, pipes and devices, also by the paths that lead to them."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detcli.core.errors import OutputError
from detcli.storage.files import STREAMS, DirectFile, StandardOutput, open_output, write_output


def test_a_named_pipe_is_written_directly(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = open_output(path)
    assert os.get_blocking(file.file.fileno())  # a slow reader is waited for
    file.write("at once")
    assert os.read(reader, 100) == b"at once"
    file.commit()
    os.close(reader)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError, match="no process reads it"):
        open_output(path)  # which would wait for one


def test_in_the_file_of_standard_output_all_stays_that_is_written_to_it(tmp_path, monkeypatch):
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as stdout:
        monkeypatch.setattr("detcli.storage.files.STDOUT", stdout.fileno())
        stdout.write(b"before\n")
        file = open_output(path)
        file.write("records\n")
        file.commit()
        stdout.write(b"after\n")
    assert path.read_text() == "before\nrecords\nafter\n"


def test_a_process_substitution_is_written_directly():
    reader, writer = os.pipe()
    write_output(Path(f"/dev/fd/{writer}"), b"all")
    os.close(writer)
    assert os.read(reader, 10) == b"all"
    os.close(reader)


def test_standard_output_is_flushed_utf8_and_escapes():
    code = """if True:
        import os
        from detcli.storage.files import StandardOutput
        StandardOutput().write("é猫\\udcff\\n")
        os._exit(0)  # unflushed text is lost"""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", code]
    finished = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert finished.stdout == "é猫\\udcff\n".encode()


def test_standard_output_that_takes_nothing(monkeypatch):
    """On a full disk, closed as with `>&-`, or a pipe without a reader."""
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:  # closing flushes
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError, match="standard output: No space left"):
            StandardOutput().write("more")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output"):
        StandardOutput().write("more")
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as pipe:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            StandardOutput().write("more")


def test_lines_end_the_same_way_on_every_system(monkeypatch):
    """Windows' standard output writes two bytes for a newline."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, newline="\r\n"))
    StandardOutput().write("{}\n")
    assert written.getvalue() == b"{}\n"


def test_a_device_of_windows_is_written(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "set_blocking")  # which its Python has not
    target = open_output(
        Path(os.devnull)
    )  # as Windows says of NUL and CON, it is a character device
    target.write("{}\n")
    target.commit()
    assert isinstance(target, DirectFile)


@pytest.mark.parametrize(
    ("stream", "path", "says"),
    [
        ("__stdout__", "/dev/stdout", "standard output is closed"),
        ("__stderr__", "/dev/stderr", "standard error is closed"),
    ],
)
def test_a_closed_stream_is_not_written_by_its_name(monkeypatch, stream, path, says):
    """Another file may have its descriptor."""
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(OutputError, match=says):
        open_output(Path(path))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("name", "descriptor"), STREAMS.items())
def test_a_name_of_a_stream_leads_to_its_descriptor(name, descriptor):
    assert Path(name).samefile(f"/proc/self/fd/{descriptor}")


@contextlib.contextmanager
def led_to_pipe(descriptor):
    """Lead a standard stream into a pipe while the block runs; yields the pipe's reader."""
    reader, writer = os.pipe()
    descriptor_before = os.dup(descriptor)
    os.dup2(writer, descriptor)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(descriptor_before, descriptor)
        os.close(descriptor_before)
        os.close(reader)


@pytest.mark.parametrize(
    ("closed_stream", "path", "descriptor"),
    [("__stdout__", "/dev/stderr", 2), ("__stderr__", "/dev/stdout", 1)],
)
def test_a_closed_stream_is_no_obstacle_to_the_other(monkeypatch, closed_stream, path, descriptor):
    monkeypatch.setattr(sys, closed_stream, None)
    with led_to_pipe(descriptor) as reader:
        output = open_output(Path(path))
        output.write("a record")
        output.commit()
        assert os.read(reader, 100) == b"a record"


def test_the_reader_of_a_pipe_sees_its_end_when_the_output_is_discarded(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output = open_output(path)
    output.discard()
    assert os.read(reader, 10) == b""  # while it is open, nobody can say whether more will come
    os.close(reader)


def test_other_files_are_written_though_a_stream_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.setattr(sys, "__stderr__", None)
    write_output(tmp_path / "a", b"all")
    assert (tmp_path / "a").read_bytes() == b"all"
