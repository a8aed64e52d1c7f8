"""The table of a made-up report."""

from dataclasses import replace

import pytest
from rich.console import Console

from detcli.backend.nvidia import GpuFacts
from detcli.commands.doctor.render import render
from detcli.commands.doctor.report import (
    Cache,
    CachePart,
    Display,
    DoctorDefault,
    DoctorDevice,
    DoctorMemory,
    DoctorProblem,
    DoctorReport,
    Nvidia,
    Processor,
    System,
    Terminal,
)
from detcli.commands.shared.reports import ReportFormat, write_report

LONG = "pip install " + " ".join(f"'a-package-of-a-long-name-{number}>=1'" for number in range(9))
NO_GPU = DoctorProblem("this machine has no NVIDIA GPU", None, "use --device cpu")
MISSING = DoctorProblem("missing: libcudnn.so.9 (cuDNN)", LONG)
OWN = DoctorProblem("missing: libnvinfer.so.10", "pip install 'detcli[cuda]'", "half a gigabyte")

REPORT = DoctorReport(
    detcli="0.1.0",
    python="3.11.7 (CPython)",
    system=System("Linux", "6.1", "Debian 12", "x86_64", "glibc 2.36", container=True, wsl=False),
    processor=Processor("Made Up 9", ("avx2", "fma"), 2, 4, 3, 1.5),
    memory=DoctorMemory(16_000_000_000, 8_000_000_000, 4_000_000_000),
    nvidia=Nvidia(hardware=False, driver=None, driver_cuda=None, runtime_cuda="13.0", gpus=()),
    devices=(
        DoctorDevice("cpu", "CPUExecutionProvider", usable=True, problems=()),
        DoctorDevice("cuda", "CUDAExecutionProvider", False, (NO_GPU, MISSING)),  # noqa: FBT003
        DoctorDevice("tensorrt", "Tensorrt...", False, (NO_GPU, MISSING, OWN)),  # noqa: FBT003
    ),
    problems=(),
    packages={"numpy": "2.4.0", "rich": None},
    cache=Cache("~/.cache/detcli", True, (CachePart("prepared", "models", 2, 2048),), None),  # noqa: FBT003
    defaults=(DoctorDefault("model", "yolov10n", "built in"), DoctorDefault("conf", "0.4", "a\nb")),
    terminal=Terminal(True, True, False, 80, 24, "256", "utf-8"),  # noqa: FBT003
    display=Display(usable=False, reason="there is no display"),
    variables=("LD_LIBRARY_PATH",),
)


@pytest.fixture
def show(capsys):
    """Print a report as a table and return its text."""

    def print_report(report=REPORT):
        write_report(report, ReportFormat.TABLE, render)
        return capsys.readouterr().out

    return print_report


def test_devices_come_first_with_reasons_and_fixes(show):
    lines = [line.rstrip() for line in show().splitlines()]
    assert lines[:10] == [
        "cpu       usable: the test detector ran on it",
        "cuda      not usable",
        "  this machine has no NVIDIA GPU",
        "    use --device cpu",
        "  missing: libcudnn.so.9 (cuDNN)",
        f"    fix: {LONG}",  # on one line at any width, to be copied
        "tensorrt  not usable",
        "  for the same reasons, and:",
        "  missing: libnvinfer.so.10",
        "    fix: pip install 'detcli[cuda]'",
    ]


def test_the_same_reasons_are_shown_once(show):
    devices = (*REPORT.devices[:2], replace(REPORT.devices[2], problems=(NO_GPU, MISSING)))
    text = show(replace(REPORT, devices=devices))
    assert "  for the same reasons\n" in text
    assert text.count("libcudnn.so.9") == 1


def test_problems_of_every_device_come_first(show):
    problem = DoctorProblem("numpy does not load", "pip install numpy")
    assert show(replace(REPORT, problems=(problem,))).startswith(
        "problem: numpy does not load\n    fix: pip install numpy\n"
    )


@pytest.mark.parametrize(
    "fact",
    [
        "Debian 12, Linux 6.1, x86_64, glibc 2.36, container",
        "Made Up 9, 2 cores, 4 threads, 3 usable, quota 1.5",
        "avx2 fma",
        "16.0 GB, 8.0 GB available, 4.0 GB limit",
        "built for CUDA 13.0",
        "~/.cache/detcli",
        "2.0 kB, models",
        "stdin, stdout, 80x24, 256 colours, utf-8",
        "none: there is no display",
        "LD_LIBRARY_PATH",
        "not installed",
    ],
)
def test_facts(show, fact):
    assert fact in show()


def test_a_machine_with_a_gpu(show):
    gpu = GpuFacts("NVIDIA H200", "9.0", 150_000_000_000)
    nvidia = Nvidia(True, "580.65", "13.0", None, (gpu, gpu))  # noqa: FBT003
    text = show(replace(REPORT, nvidia=nvidia))
    assert "580.65, supports CUDA up to 13.0" in text
    assert "GPU 1" in text
    assert "NVIDIA H200, compute capability 9.0, 150.0 GB" in text
    assert "built for" not in text


def test_unknown_memory(show):
    assert "memory         unknown" in show(replace(REPORT, memory=DoctorMemory(None, None, None)))


def test_a_cleared_and_read_only_cache(show):
    text = show(replace(REPORT, cache=Cache(None, False, (), 4096)))  # noqa: FBT003
    assert "no home folder for it, not writable" in text
    assert "4.1 kB" in text


def test_control_codes_are_escaped(show):
    device = replace(REPORT.devices[1], problems=(DoctorProblem("\x1b[2Jgone", None),))
    assert "\x1b" not in show(replace(REPORT, devices=(device,)))


def test_square_brackets_are_not_markup():
    console = Console(width=200)
    with console.capture() as text:
        for part in render(REPORT):
            console.print(part)
    assert "detcli[cuda]" in text.get()


def test_a_cache_that_is_not_used(show):
    problem = DoctorProblem("the cache, since others can write to ~/x", "chmod -R go-w ~/x", "then")
    text = show(replace(REPORT, cache=replace(REPORT.cache, distrusted=(problem,))))
    assert text.startswith(
        "not used: the cache, since others can write to ~/x\n    fix: chmod -R go-w ~/x\n    then\n"
    )
