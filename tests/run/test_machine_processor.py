import platform
import subprocess
import sys
from types import SimpleNamespace

from detcli.backend.nvidia import DriverFacts, GpuFacts
from detcli.run import machine
from detcli.run.machine import machine_name, processor_name


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


def test_a_machine_is_its_processor_cores_and_gpus(monkeypatch):
    gpus = (GpuFacts("NVIDIA H200", "9.0", 1), GpuFacts("NVIDIA H100", "9.0", 1))
    monkeypatch.setattr(machine, "ask_driver", lambda: DriverFacts(gpus=gpus))
    monkeypatch.setattr(machine, "processor_name", lambda: "Made Up 9")
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    assert machine_name() == "Made Up 9, 1 core, NVIDIA H200, NVIDIA H100"
    monkeypatch.setattr(machine, "processor_name", lambda: None)
    assert machine_name().startswith(f"{platform.machine()}, 1 core")
