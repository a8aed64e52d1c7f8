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


def test_nothing_names_the_machine():
    told = describe_machine(None)
    assert platform.node() not in {told.processor, told.architecture, told.system}
    assert told.cores >= 1
    assert told.gpu is told.driver is None


def test_the_gpu_takes_part():
    told = describe_machine(GpuState("NVIDIA H200", "580.65", 1, ()))
    assert (told.gpu, told.driver) == ("NVIDIA H200", "580.65")


def test_a_system_without_proc(monkeypatch, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("has none anyway")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    with pytest.raises(DependencyError, match="meminfo: No such file or directory") as caught:
        describe_machine(None)
    assert "mount -t proc" in caught.value.hint


def test_versions():
    told = describe_software()
    assert told.numpy[0].isdigit()
    assert told.onnxruntime is not None


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
    monkeypatch.setattr(module, "STATUS", tmp_path / "none")
    assert peak_memory() is None
    monkeypatch.setattr(module, "STATUS", tmp_path / "status")
    module.STATUS.write_text("Name:\tx\nVmRSS:\t5 kB\n")
    assert peak_memory() is None
    module.STATUS.write_text("VmPeak:\t9 kB\nVmHWM:\t   7 kB\nVmRSS:\t5 kB\n")
    assert peak_memory() == 7 * 1024
