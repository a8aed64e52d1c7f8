"""`detcli doctor`: what this machine can run detcli on, and why not on the rest."""

from typing import TYPE_CHECKING

from detcli.backend.device import DEVICE_NAMES, Device
from detcli.commands.shared import options
from detcli.errors import CheckError, DeviceError, UsageError

if TYPE_CHECKING:
    from detcli.commands.doctor.report import Report


def doctor(
    *,
    device: options.NeededDeviceOption = None,
    clear_cache: options.ClearCacheOption = False,
    report_format: options.ReportFormatOption = None,
) -> None:
    """Say which devices can be used here, and what would make the others usable.

    Nothing is changed, unless --clear-cache is given. The report names no person and no value of
    the environment, so it may be published with a report of a bug.

    The exit code is 6 if something that every device needs is broken, or ONNX Runtime is installed
    twice; with --device it is 5 if that one cannot be used, else 0.
    """
    if device is not None and Device.parse(device).is_auto:
        raise UsageError("auto names no device that could be required", f"use {DEVICE_NAMES}")
    # What follows asks libraries that --help does not need.
    from detcli.commands.doctor.caches import clear_cache as clear
    from detcli.commands.doctor.examine import examine
    from detcli.commands.doctor.render import render
    from detcli.commands.shared.reports import write_report

    report = examine(device, clear() if clear_cache else None)
    write_report(report, report_format, render)
    if device is not None:
        require(device, report)
    elif report.problems:
        count = len(report.problems)
        raise CheckError(f"{count} problem{'s' * (count > 1)} found, see the report")


def require(wanted: str, report: "Report") -> None:
    """Make sure that a device can be used.

    Raises:
        DeviceError: It cannot.
    """
    device = next(device for device in report.devices if device.name == wanted)
    if not device.usable:
        first = device.problems[0]
        raise DeviceError(f"{wanted} cannot be used: {first.reason}", first.command or first.advice)
