import platform
import subprocess
import sys
from types import SimpleNamespace

from detcli.run.machine import processor_name


def test_linux(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("vendor_id\t: x\nmodel name\t: Made Up 9 \nflags : a\n")
    assert processor_name(tmp_path) == "Made Up 9"


def test_macos(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="Apple M9\n"))
    assert processor_name(tmp_path) == "Apple M9"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=""))
    assert processor_name(tmp_path) is None


def test_other_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    assert processor_name(tmp_path) == "Intel64 Family 6"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor_name(tmp_path) is None
