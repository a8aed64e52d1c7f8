"""System, processor, memory and terminal, from made-up files."""

import os
import platform
import sys
from types import SimpleNamespace

import psutil
import pytest

from detcli.commands.doctor import machine
from detcli.commands.doctor.machine import (
    describe_memory,
    describe_processor,
    describe_system,
    describe_terminal,
)


@pytest.fixture
def put(tmp_path):
    """Put a file under a root."""

    def make(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return make


def test_this_machine():
    processor, memory, system = describe_processor(), describe_memory(), describe_system()
    assert 1 <= processor.usable_cores <= (os.cpu_count() or 1)
    assert 0 < memory.available < memory.total == psutil.virtual_memory().total
    assert (system.name, system.architecture) == (platform.system(), platform.machine())


def test_instruction_sets_of_x86(put):
    root = put(
        "proc/cpuinfo",
        "model name\t: Made Up 9\nflags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni amx_int8 aes\n",
    )
    found = describe_processor(root)
    assert found.name == "Made Up 9"
    assert found.features == ("sse4_2", "avx2", "avx512f", "avx512_vnni", "amx_int8")


def test_instruction_sets_of_arm(put):
    found = describe_processor(put("proc/cpuinfo", "Features\t: fp asimd asimddp aes sve i8mm\n"))
    assert found.features == ("asimd", "asimddp", "sve", "i8mm")


def test_instruction_sets_from_numpy_without_cpuinfo(tmp_path, monkeypatch):
    config = {"SIMD Extensions": {"baseline": ["NEON"], "found": ["ASIMDDP"]}}
    monkeypatch.setattr("numpy.show_config", lambda **_: config)
    assert describe_processor(tmp_path).features == ("NEON", "ASIMDDP")
    monkeypatch.setattr("numpy.show_config", lambda **_: {})
    assert describe_processor(tmp_path).features == ()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_containers_cpu_quota(put, tmp_path, files, cores):
    for name, text in files.items():
        put(f"sys/fs/cgroup/{name}", f"{text}\n")
    assert describe_processor(tmp_path).quota_cores == cores


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "2147483648", 2147483648),
        ("memory.max", "max", None),
        ("memory/memory.limit_in_bytes", "1073741824", 1073741824),
        ("memory/memory.limit_in_bytes", "9223372036854771712", None),
    ],
)
def test_the_containers_memory_limit(put, name, text, limit):
    assert describe_memory(put(f"sys/fs/cgroup/{name}", text)).limit == limit


def test_windows(monkeypatch):
    def unknown():
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", unknown)
    monkeypatch.setattr(machine.sys, "platform", "win32")
    found = describe_system()
    assert (found.distribution, found.container, found.wsl) == (None, None, False)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert describe_processor().usable_cores == 1


def test_a_system_without_proc_and_sys(tmp_path, monkeypatch):
    """Psutil reads them wherever the root is."""

    def count(logical=True):  # noqa: FBT002 - as psutil has it
        if not logical:
            raise FileNotFoundError(2, "No such file or directory", "/proc/cpuinfo")
        return 2

    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", count)
    if not sys.platform.startswith("linux"):
        pytest.skip("has none anyway")
    memory, processor = describe_memory(tmp_path), describe_processor(tmp_path)
    assert (memory.total, memory.available, memory.limit) == (None, None, None)
    assert (processor.physical_cores, processor.logical_cores) == (None, 2)
    assert processor.usable_cores >= 1


def test_a_pipe(capsys):
    found = describe_terminal()
    assert (found.stdout, found.columns, found.rows, found.colours) == (False, None, None, None)
    assert capsys.readouterr().out == ""


def test_no_streams(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    found = describe_terminal()
    assert (found.stdin, found.stdout, found.stderr, found.encoding) == (False, False, False, None)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal(monkeypatch):
    import fcntl
    import pty
    import struct
    import termios

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLORTERM", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 99, 0, 0))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        found = describe_terminal()
        monkeypatch.undo()
    os.close(ours)
    assert (found.stdout, found.columns, found.rows) == (True, 99, 24)
    assert (found.colours, found.encoding) == ("256", "utf-8")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("https://user:secret@host/x.onnx", "https://host/x.onnx"),
        ("user:secret@host/x.onnx", "***@host/x.onnx"),
    ],
)
def test_defaults_are_shown_without_passwords(monkeypatch, given, shown):
    monkeypatch.setenv("DETCLI_MODEL", given)
    param = SimpleNamespace(envvar="DETCLI_MODEL", name="model")
    found, _ = machine.describe_defaults(SimpleNamespace(defaults={}, known={"model": param}))
    assert [default.value for default in found] == [shown]
