"""`detcli doctor`: which devices work on this machine, and why the others do not.

examine.py tries the devices, each in a process of its own; cache.py measures and clears the cache;
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
from detcli.core.text import escape_unprintable, pluralize

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

    Nothing is changed unless --clear-cache is given. The report contains no personal names, and
    the values of only two environment variables, DETCLI_MODEL and DETCLI_DEVICE, so it can be
    attached to a bug report.

    The exit code is 6 if something that every device needs is broken, or if ONNX Runtime is
    installed twice. With --device it is 5 if that device cannot be used, else 0.
    """
    required_device = None
    if device is not None:
        required_device = Device.parse(device)
        if required_device.is_auto:
            raise UsageError("--device auto cannot be required", f"use {DEVICE_NAMES}")

    # Imported here, as they load libraries that --help does not need.
    from detcli.commands.doctor.cache import clear_cached
    from detcli.commands.doctor.examine import examine

    cleared_bytes = None
    if clear_cache:
        cleared_bytes = clear_cached()

    report = examine(required_device, cleared_bytes)
    write_report(report, report_format, render)

    if device is not None:
        _require_usable(report, str(required_device), device)
    elif report.problems:
        problems = pluralize(len(report.problems), "problem")
        raise CheckError(f"{problems} found, see the report")


def _require_usable(report: "DoctorReport", name: str, typed_name: str) -> None:
    """Require that a device can be used.

    Args:
        report: The report on all devices.
        name: The name of the device in the report.
        typed_name: What the user called it, for the message.

    Raises:
        DeviceError: It cannot; the error has the first problem of the device, and what fixes it.
    """
    for device in report.devices:
        if device.name == name and not device.usable:
            problem = device.problems[0]
            raise DeviceError(
                f"{typed_name} cannot be used: {problem.reason}",
                problem.command or problem.advice,
            )


def render(report: "DoctorReport") -> Iterator["Table | Text"]:
    """Lay out a report for a terminal: problems, each device with what it lacks, then the facts.

    Devices often lack the same. A problem that the previous device also has is not repeated.
    """
    for problem in report.problems:
        yield from _lines_of_problem(problem, "problem: ", "red")
    for problem in report.cache.distrusted:
        yield from _lines_of_problem(problem, "not used: ", "yellow")
    reported_problems: Sequence[DoctorProblem] = ()
    for device in report.devices:
        title = f"{device.name:<9} "
        if device.usable:
            yield styled_line(
                (title, "bold"), ("usable", "green"), (": the test detector ran on it", "")
            )
        else:
            yield styled_line((title, "bold"), ("not usable", "red"))
            yield from _lines_of_device(device.problems, reported_problems)
            reported_problems = device.problems
    yield styled_line(("", ""))
    yield facts_table(_facts(report))


def _lines_of_device(
    problems: "Sequence[DoctorProblem]", reported_problems: "Sequence[DoctorProblem]"
) -> Iterator["Text"]:
    """Yield the lines about what a device lacks.

    Args:
        problems: What it lacks.
        reported_problems: What the unusable device before it in the report lacks. Of these, the
            lines only say "for the same reasons".
    """
    from detcli.backend.nvidia import NO_GPU  # `--help` does without

    # Where there is no GPU, nobody should download the libraries that are missing, too.
    gpu_problems = [problem for problem in problems if problem.reason == NO_GPU]
    problems_to_report = gpu_problems or problems
    new_problems = []
    for problem in problems_to_report:
        if problem not in reported_problems:
            new_problems.append(problem)

    has_repeated_problems = len(new_problems) < len(problems_to_report)
    if has_repeated_problems:
        same_reasons = f"{INDENT}for the same reasons"
        if new_problems:
            same_reasons += ", and:"
        yield styled_line((same_reasons, ""))
    for problem in new_problems:
        yield from _lines_of_problem(problem, INDENT, "")


def _lines_of_problem(problem: "DoctorProblem", title: str, style: str) -> Iterator["Text"]:
    """Yield the lines about a problem: its reason, the command that fixes it, and advice.

    The command has a line of its own, so that it can be copied.

    Args:
        problem: The problem.
        title: What comes before its reason.
        style: The style of the title.
    """
    yield styled_line((title, style), (problem.reason, ""))
    if problem.command is not None:
        yield styled_line((f"{INDENT * 2}fix: ", "dim"), (problem.command, "bold"))
    if problem.advice:
        yield styled_line((f"{INDENT * 2}{problem.advice}", "dim"))


def _facts(report: "DoctorReport") -> Iterator[tuple[str, str]]:
    """Yield labels and values for the table of versions, GPUs, the cache, and defaults."""
    # The fields that are declared with a label: the versions of detcli, Python, driver and CUDA.
    yield from report_rows(report)

    format_bytes = UNITS["B"]  # the function that writes bytes for people
    for number, gpu in enumerate(report.nvidia.gpus):
        memory = format_bytes(gpu.memory_bytes)
        yield f"GPU {number}", f"{gpu.name}, compute capability {gpu.capability}, {memory}"
    if report.nvidia.faster:
        yield "faster", report.nvidia.faster

    cache = report.cache
    cache_text = cache.folder or "no home folder for it"
    if not cache.writable:
        cache_text += ", not writable"
    yield "cache", cache_text
    for part in cache.parts:
        if part.size_bytes:
            yield f"{INDENT}{part.name}", format_bytes(part.size_bytes)
    if cache.cleared_bytes is not None:
        yield f"{INDENT}cleared", format_bytes(cache.cleared_bytes)

    for default in report.defaults:
        yield (
            escape_unprintable(f"default {default.option}"),
            escape_unprintable(f"{default.value}, {default.origin}"),
        )
