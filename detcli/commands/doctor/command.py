"""`detcli doctor`: what this machine can run detcli on, and why not on the rest."""

from typing import Annotated

import typer

from detcli.backend.device import DEVICE_NAMES, Device
from detcli.commands.shared import options
from detcli.commands.shared.completion import complete_device
from detcli.commands.shared.defaults_file import DefaultsContext
from detcli.errors import CheckError, DeviceError, UsageError


def doctor(
    ctx: DefaultsContext,
    *,
    device: Annotated[
        str | None,
        options.option(
            "DEVICE",
            f"Exit with 5 unless this device can be used: {DEVICE_NAMES}.",
            autocompletion=complete_device,
        ),
    ] = None,
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="Remove everything detcli has cached first.")
    ] = False,
    report_format: options.ReportFormatOption = None,
) -> None:
    """Report which devices work here, and how to make the others work.

    Nothing is changed unless --clear-cache is given. The report contains no personal names, and of
    environment variables the values of DETCLI_MODEL and DETCLI_DEVICE only, so it can be attached
    to a bug report.

    The exit code is 6 if something that every device needs is broken, or if ONNX Runtime is
    installed twice. With --device it is 5 if that device cannot be used, else 0.
    """
    if device is not None and Device.parse(device).is_auto:
        raise UsageError("--device auto cannot be required", f"use {DEVICE_NAMES}")
    # Loads libraries that --help does not need.
    from detcli.commands.doctor import machine
    from detcli.commands.doctor.examine import examine
    from detcli.commands.doctor.render import render
    from detcli.commands.shared.reports import write_report

    cleared = machine.clear_cache() if clear_cache else None
    report = examine(device, cleared, *machine.describe_defaults(ctx))
    write_report(report, report_format, render)
    count = len(report.problems)
    if device is None and count:
        raise CheckError(f"{count} problem{'s' * (count > 1)} found, see the report")
    for needed in report.devices:
        if needed.name == device and not needed.usable:
            first, *_ = needed.problems
            reason = f"{device} cannot be used: {first.reason}"
            raise DeviceError(reason, first.command or first.advice)
