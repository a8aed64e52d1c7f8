"""The report of `detcli doctor` as a table."""

from collections.abc import Iterator, Sequence

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.doctor.report import (
    Cache,
    DoctorDevice,
    DoctorProblem,
    DoctorReport,
    Nvidia,
    Terminal,
)
from detcli.commands.shared.reports import facts, line
from detcli.text import printable

INDENT = "  "


def render(report: DoctorReport) -> Iterator[Table | Text]:
    """Lay out a report: first the devices and how to fix them, then the machine."""
    for problem in report.problems:
        yield from _problem(problem, "problem: ", "red")
    for problem in report.cache.distrusted:
        yield from _problem(problem, "not used: ", "yellow")
    before: Sequence[DoctorProblem] = ()
    for device in report.devices:
        yield from _device(device, before)
        before = device.problems or before
    yield Text()
    yield facts(_facts(report))
    yield Text()
    yield facts((name, version or "not installed") for name, version in report.packages.items())


def _device(device: DoctorDevice, before: Sequence[DoctorProblem]) -> Iterator[Text]:
    """One device; problems already shown for the previous device are not repeated."""
    title = f"{device.name:<9} "
    if device.usable:
        yield line((title, "bold"), ("usable", "green"), (": the test detector ran on it", ""))
        return
    yield line((title, "bold"), ("not usable", "red"))
    own = [problem for problem in device.problems if problem not in before]
    if len(own) < len(device.problems):
        yield line((f"{INDENT}for the same reasons{', and:' if own else ''}", ""))
    for problem in own:
        yield from _problem(problem, INDENT, "")


def _problem(problem: DoctorProblem, title: str, style: str) -> Iterator[Text]:
    """A reason, with the command on a line of its own, for copying."""
    yield line((title, style), (problem.reason, ""))
    if problem.command is not None:
        yield line((f"{INDENT * 2}fix: ", "dim"), (problem.command, "bold"))
    if problem.advice:
        yield line((f"{INDENT * 2}{problem.advice}", "dim"))


def _facts(report: DoctorReport) -> Iterator[tuple[str, str]]:
    system = report.system
    kind = "container" if system.container else "WSL" if system.wsl else None
    yield "detcli", f"{report.detcli}, Python {report.python}"
    named = (system.distribution, f"{system.name} {system.release}", system.architecture)
    yield "system", ", ".join(filter(None, (*named, system.libc, kind)))
    cpu = report.processor
    cores = f"{cpu.physical_cores or '?'} cores, {cpu.logical_cores or '?'} threads"
    quota = "" if cpu.quota_cores is None else f", quota {cpu.quota_cores:g}"
    yield "processor", f"{cpu.name or 'unknown'}, {cores}, {cpu.usable_cores} usable{quota}"
    yield "features", " ".join(cpu.features) or "unknown"
    memory = report.memory
    sizes = (memory.total, ""), (memory.available, " available"), (memory.limit, " limit")
    known = [f"{decimal(size)}{what}" for size, what in sizes if size is not None]
    yield "memory", ", ".join(known) or "unknown"
    yield from _nvidia(report.nvidia)
    yield from _cache(report.cache)
    for default in report.defaults:
        yield f"default {default.option}", printable(f"{default.value}, {default.origin}")
    yield "terminal", _terminal(report.terminal)
    display = report.display
    yield "display", "windows can be opened" if display.usable else f"none: {display.reason}"
    yield "variables set", ", ".join(report.variables) or "none that matter"


def _nvidia(nvidia: Nvidia) -> Iterator[tuple[str, str]]:
    if nvidia.runtime_cuda is not None:
        yield "ONNX Runtime", f"built for CUDA {nvidia.runtime_cuda}"
    driver = nvidia.driver or ("unknown version" if nvidia.driver_cuda else "none")
    cuda = f", supports CUDA up to {nvidia.driver_cuda}" if nvidia.driver_cuda else ""
    yield "NVIDIA driver", f"{driver}{cuda}"
    for number, gpu in enumerate(nvidia.gpus):
        memory = decimal(gpu.memory_bytes)
        yield f"GPU {number}", f"{gpu.name}, compute capability {gpu.capability}, {memory}"
    if not nvidia.gpus:
        seen = {True: "present, but the driver does not list it", False: "none", None: "unknown"}
        yield "NVIDIA GPU", seen[nvidia.hardware]


def _cache(cache: Cache) -> Iterator[tuple[str, str]]:
    writable = "" if cache.writable else ", not writable"
    yield "cache", (cache.folder or "no home folder for it") + writable
    for part in cache.parts:
        yield f"{INDENT}{part.name}", f"{decimal(part.size_bytes)}, {part.content}"
    if cache.cleared_bytes is not None:
        yield f"{INDENT}cleared", decimal(cache.cleared_bytes)


def _terminal(terminal: Terminal) -> str:
    names = [name for name in ("stdin", "stdout", "stderr") if getattr(terminal, name)]
    size = f", {terminal.columns}x{terminal.rows}" if terminal.columns is not None else ""
    colours = f", {terminal.colours} colours" if terminal.colours else ""
    return f"{', '.join(names) or 'none'}{size}{colours}, {terminal.encoding or 'no encoding'}"
