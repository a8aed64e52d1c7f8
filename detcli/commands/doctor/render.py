"""What `detcli doctor` found out, for people."""

from collections.abc import Iterator, Sequence

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from detcli.commands.doctor.report import (
    Cache,
    DoctorDevice,
    Nvidia,
    Problem,
    Processor,
    Report,
    Terminal,
)
from detcli.commands.shared.reports import facts, line

INDENT = "  "


def render(report: Report) -> Iterator[Table | Text]:
    """Lay out a report: devices and what to do about them first, then the machine."""
    for problem in report.problems:
        yield from _problem(problem, "problem: ", "red")
    before: Sequence[Problem] = ()
    for device in report.devices:
        yield from _device(device, before)
        before = device.problems or before
    yield Text()
    yield facts(_facts(report))
    yield Text()
    yield facts((name, version or "not installed") for name, version in report.packages.items())


def _device(device: DoctorDevice, before: Sequence[Problem]) -> Iterator[Text]:
    """One device; what is wrong with the device before it is not told again."""
    title = f"{device.name:<9} "
    if device.usable:
        yield line((title, "bold"), ("usable", "green"), (": a small detector ran on it", ""))
        return
    yield line((title, "bold"), ("not usable", "red"))
    own = [problem for problem in device.problems if problem not in before]
    if len(own) < len(device.problems):
        yield line((f"{INDENT}for the same reasons{', and:' if own else ''}", ""))
    for problem in own:
        yield from _problem(problem, INDENT, "")


def _problem(problem: Problem, title: str, style: str) -> Iterator[Text]:
    """A reason, with the command on a line of its own, where it can be copied from."""
    yield line((title, style), (problem.reason, ""))
    if problem.command is not None:
        yield line((f"{INDENT * 2}fix: ", "dim"), (problem.command, "bold"))
    if problem.advice:
        yield line((f"{INDENT * 2}{problem.advice}", "dim"))


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    system = report.system
    kind = "container" if system.container else "WSL" if system.wsl else None
    yield "detcli", f"{report.detcli}, Python {report.python}"
    named = (system.distribution, f"{system.name} {system.release}", system.architecture)
    yield "system", ", ".join(filter(None, (*named, system.libc, kind)))
    yield "processor", _processor(report.processor)
    yield "features", " ".join(report.processor.features) or "unknown"
    memory = report.memory
    sizes = (memory.total, ""), (memory.available, " available"), (memory.limit, " granted")
    known = [f"{decimal(size)}{what}" for size, what in sizes if size is not None]
    yield "memory", ", ".join(known) or "unknown"
    yield from _nvidia(report.nvidia)
    yield from _cache(report.cache)
    yield "terminal", _terminal(report.terminal)
    yield "display", "a window opens" if report.display.usable else f"none: {report.display.reason}"
    yield "variables set", ", ".join(report.variables) or "none of those that matter"


def _processor(processor: Processor) -> str:
    name = processor.name or "unknown"
    cores = f"{processor.physical_cores or '?'} cores, {processor.logical_cores or '?'} threads"
    quota = "" if processor.quota_cores is None else f", time of {processor.quota_cores:g}"
    return f"{name}, {cores}, {processor.usable_cores} usable{quota}"


def _nvidia(nvidia: Nvidia) -> Iterator[tuple[str, str]]:
    if nvidia.runtime_cuda is not None:
        yield "ONNX Runtime", f"built for CUDA {nvidia.runtime_cuda}"
    driver = nvidia.driver or ("unknown version" if nvidia.driver_cuda else "none")
    cuda = f", runs CUDA up to {nvidia.driver_cuda}" if nvidia.driver_cuda else ""
    yield "NVIDIA driver", f"{driver}{cuda}"
    for number, gpu in enumerate(nvidia.gpus):
        memory = decimal(gpu.memory_bytes)
        yield f"GPU {number}", f"{gpu.name}, compute capability {gpu.capability}, {memory}"
    if not nvidia.gpus:
        seen = {True: "one that the driver does not show", False: "none", None: "none is shown"}
        yield "NVIDIA GPU", seen[nvidia.hardware]


def _cache(cache: Cache) -> Iterator[tuple[str, str]]:
    readable = "" if cache.writable else ", cannot be written to"
    yield "cache", (cache.folder or "there is no place for one") + readable
    for part in cache.parts:
        yield f"{INDENT}{part.name}", f"{decimal(part.size_bytes)}, {part.content}"
    if cache.cleared_bytes is not None:
        yield f"{INDENT}cleared", decimal(cache.cleared_bytes)


def _terminal(terminal: Terminal) -> str:
    streams = {
        "stdin": terminal.stdin,
        "stdout": terminal.stdout,
        "stderr": terminal.stderr,
    }
    there = ", ".join(name for name, is_terminal in streams.items() if is_terminal) or "none"
    size = f", {terminal.columns}x{terminal.rows}" if terminal.columns is not None else ""
    colours = f", {terminal.colours} colours" if terminal.colours else ""
    return f"{there}{size}{colours}, {terminal.encoding or 'no encoding'}"
