import platform
import sys

import numpy as np
import psutil
import pytest

from detcli.commands.bench import machine as module
from detcli.commands.bench.machine import (
    GpuState,
    describe_machine,
    describe_software,
    peak_memory,
)
from detcli.core.errors import DependencyError


def test_the_machine_is_described_without_its_name():
    told = describe_machine(None)
    assert platform.node() not in {told.processor, told.architecture, told.system}
    assert told.cores >= 1
    assert told.gpu is told.driver is None
    told = describe_machine(GpuState("NVIDIA H200", "580.65", 1, ()))
    assert (told.gpu, told.driver) == ("NVIDIA H200", "580.65")
    packages = describe_software()
    assert packages.numpy[0].isdigit()
    assert packages.onnxruntime is not None


def test_a_system_without_proc(monkeypatch, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("has none anyway")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    with pytest.raises(DependencyError, match="meminfo: No such file or directory") as caught:
        describe_machine(None)
    assert "mount -t proc" in caught.value.hint


def test_the_peak_stays_when_memory_is_freed():
    before = peak_memory()
    held = np.ones(200_000_000, np.uint8)
    during = peak_memory()
    del held
    assert before is not None
    assert during >= 200_000_000
    assert peak_memory() >= 200_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_an_unknown_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STATUS", tmp_path / "status")
    assert peak_memory() is None
    for text, peak in (("", None), ("VmPeak:\t9 kB\nVmHWM:\t   7 kB\n", 7 * 1024)):
        module.STATUS.write_text(f"Name:\tx\n{text}VmRSS:\t5 kB\n")
        assert peak_memory() == peak
