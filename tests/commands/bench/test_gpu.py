"""What nvidia-smi tells, from one that a test makes up."""

import sys

import pytest

from detcli.commands.bench import gpu as module
from detcli.commands.bench.gpu import GpuState, GpuWatch
from detcli.errors import DeviceError

UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"

PROGRAM = """#!{python}
import sys, time
assert sys.argv[-2 if "-lms" not in sys.argv else -4] == "-i", sys.argv
assert "{uuid}" in sys.argv
states = ["Not Active, Not Active, Not Active", "Not Active, Active, Active"]
print("NVIDIA H200, 580.65, {first}, " + states["-lms" in sys.argv], flush=True)
if "-lms" in sys.argv:
    print("NVIDIA H200, 580.65, 3000, " + states[1], flush=True)
    print("NVIDIA H", end="", flush=True)
    time.sleep(60)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the double is a script")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put an nvidia-smi on the PATH, and a GPU into the machine."""

    def put(program, gpus=2):
        path = tmp_path / "nvidia-smi"
        path.write_text(program)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(module, "count_gpus", lambda: gpus)
        monkeypatch.setattr(module, "gpu_uuid", lambda ordinal: UUID if ordinal < gpus else fail())

    def fail():
        raise DeviceError("there is no such GPU")

    return put


def told(first="1000"):
    return PROGRAM.format(python=sys.executable, uuid=UUID, first=first)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "tensorrt:0", "auto"])
def test_a_gpu_is_watched(device, install):
    install(told())
    watch = GpuWatch(device)
    assert watch.before == GpuState("NVIDIA H200", "580.65", 1000 << 20, ())
    seen = watch.stop()
    assert watch.stop() == []
    assert seen[-1] == watch.before  # the last look; those before depend on when it was stopped
    assert all(state.slowed_by == ("its temperature", "its power limit") for state in seen[:-1])


def test_half_a_line_and_foreign_lines_are_left_out():
    assert module._read("NVIDIA H") is None  # noqa: SLF001
    assert module._read("") is None  # noqa: SLF001
    full = module._read("NVIDIA H200, 580.65, 3000, Active, Not Active, Not Active")  # noqa: SLF001
    assert full == GpuState("NVIDIA H200", "580.65", 3000 << 20, ("a hardware slowdown",))


def test_memory_that_is_not_told(install):
    install(told("[N/A]"))
    watch = GpuWatch("cuda:0")
    watch.stop()
    assert watch.before.memory_bytes is None


@pytest.mark.parametrize("device", ["cpu", "cuda:7"])
def test_no_such_gpu(device, install):
    install(told())
    watch = GpuWatch(device)
    assert watch.before is None
    assert watch.stop() == []


def test_auto_without_a_gpu(install):
    install(told(), gpus=0)
    assert GpuWatch("auto").before is None


def test_a_program_that_fails(install):
    install(f"#!{sys.executable}\nraise SystemExit(9)\n")
    assert GpuWatch("cuda").before is None


def test_no_program(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuWatch("cuda").before is None
