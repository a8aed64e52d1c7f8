"""`detcli doctor`: which devices work on this machine, and why the others do not.

examine.py tries the devices, each in a process of its own, and looks at the cache;
installation.py knows what can be wrong with the driver, packages and libraries, and what fixes it;
scrub.py takes personal names out of what they say.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from detcli.cli.command import command
from detcli.cli.report import (
    REPORT_FORMAT,
    UNITS,
    ReportFormat,
    facts_table,
    report_rows,
    styled_line,
    write_report,
)
from detcli.config.device import DEVICE_NAMES, Device
from detcli.config.option import option
from detcli.core.errors import CheckError, DeviceError, UsageError
from detcli.core.text import escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detcli.commands.doctor.examine import DoctorReport
    from detcli.commands.doctor.installation import DoctorProblem

INDENT = "  "


@command()
def doctor(
    *,
    device: str | None = option(
        None,
        "--device DEVICE",
        f"Exit with 5 unless this device can be used: {DEVICE_NAMES}.",
    ),
    clear_cache: bool = option(
        False, "--clear-cache", "Remove everything detcli has cached first."
    ),
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Report which devices work here, and how to make the others work.

    Nothing is changed unless --clear-cache is given. The report contains no personal names, and of
    environment variables the values of DETCLI_MODEL and DETCLI_DEVICE only, so it can be attached
    to a bug report.

    The exit code is 6 if something that every device needs is broken, or if ONNX Runtime is
    installed twice. With --device it is 5 if that device cannot be used, else 0.
    """
    wanted = None if device is None else Device.parse(device)
    if wanted is not None and wanted.is_auto:
        raise UsageError("--device auto cannot be required", f"use {DEVICE_NAMES}")
    # Loads libraries that --help does not need.
    from detcli.commands.doctor.examine import clear_cached, examine

    report = examine(wanted, clear_cached() if clear_cache else None)
    write_report(report, report_format, render)
    count = len(report.problems)
    if device is None and count:
        raise CheckError(f"{count} problem{'s' * (count > 1)} found, see the report")
    for needed in report.devices:
        if needed.name == str(wanted) and not needed.usable:
            first, *_ = needed.problems
            reason = f"{device} cannot be used: {first.reason}"
            raise DeviceError(reason, first.command or first.advice)


def render(report: "DoctorReport") -> Iterator["Table | Text"]:
    """Lay out a report: first the devices and how to fix them, then the facts."""
    for problem in report.problems:
        yield from _problem(problem, "problem: ", "red")
    for problem in report.cache.distrusted:
        yield from _problem(problem, "not used: ", "yellow")
    before: Sequence[DoctorProblem] = ()  # shown for the previous device, and not repeated
    for device in report.devices:
        title = f"{device.name:<9} "
        if device.usable:
            yield styled_line(
                (title, "bold"), ("usable", "green"), (": the test detector ran on it", "")
            )
            continue
        yield styled_line((title, "bold"), ("not usable", "red"))
        own = [problem for problem in device.problems if problem not in before]
        if len(own) < len(device.problems):
            yield styled_line((f"{INDENT}for the same reasons{', and:' if own else ''}", ""))
        for problem in own:
            yield from _problem(problem, INDENT, "")
        before = device.problems
    yield styled_line(("", ""))
    yield facts_table(_facts(report))


def _problem(problem: "DoctorProblem", title: str, style: str) -> Iterator["Text"]:
    """A reason, with the command on a line of its own, for copying."""
    yield styled_line((title, style), (problem.reason, ""))
    if problem.command is not None:
        yield styled_line((f"{INDENT * 2}fix: ", "dim"), (problem.command, "bold"))
    if problem.advice:
        yield styled_line((f"{INDENT * 2}{problem.advice}", "dim"))


def _facts(report: "DoctorReport") -> Iterator[tuple[str, str]]:
    yield from report_rows(report)
    size = UNITS["B"]
    for number, gpu in enumerate(report.nvidia.gpus):
        text = f"{gpu.name}, compute capability {gpu.capability}, {size(gpu.memory_bytes)}"
        yield f"GPU {number}", text
    cache = report.cache
    writable = "" if cache.writable else ", not writable"
    yield "cache", (cache.folder or "no home folder for it") + writable
    for part in cache.parts:
        yield f"{INDENT}{part.name}", size(part.size_bytes)
    if cache.cleared_bytes is not None:
        yield f"{INDENT}cleared", size(cache.cleared_bytes)
    for one in report.defaults:
        yield (
            escape_unprintable(f"default {one.option}"),
            escape_unprintable(f"{one.value}, {one.origin}"),
        )
