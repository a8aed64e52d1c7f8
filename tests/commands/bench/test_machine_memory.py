import sys

import numpy as np
import pytest

from detcli.commands.bench import machine as memory
from detcli.commands.bench.machine import peak_memory


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
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert peak_memory() is None
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    memory.STATUS.write_text("Name:\tx\nVmRSS:\t5 kB\n")
    assert peak_memory() is None
    memory.STATUS.write_text("VmPeak:\t9 kB\nVmHWM:\t   7 kB\nVmRSS:\t5 kB\n")
    assert peak_memory() == 7 * 1024
