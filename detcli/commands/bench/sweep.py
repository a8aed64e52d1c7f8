"""Sweeps: every combination of some values, each measured in its own process.

No combination inherits memory, threads or a warm cache from another, and one that fails does not
affect the others.
"""

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from detcli.backend.device import Device
from detcli.commands.bench.cold_start import bench_command, process_error
from detcli.commands.bench.inputs import check_repeatable
from detcli.commands.bench.machine import describe_machine, describe_software
from detcli.commands.bench.report import (
    BenchMachine,
    Interval,
    PeakMemory,
    PointFailure,
    Summary,
    SweepPoint,
    SweepReport,
)
from detcli.commands.bench.request import BenchRequest
from detcli.errors import UsageError

AXES = ("batch", "device", "workers", "imgsz", "model")
NUMERIC_AXES = ("batch", "workers", "imgsz")

AXIS = re.compile(r"(\w+)=(.*)", re.DOTALL)

HINT = f"write --sweep batch=1,2,4 device=cpu,cuda; the axes are {', '.join(AXES)}"

Axes = dict[str, tuple[str, ...]]


def split_axes(given: Sequence[str], sources: Sequence[str]) -> tuple[Axes, tuple[str, ...]]:
    """Separate axes from sources.

    The second axis of `--sweep batch=1,2 device=cpu,cuda` arrives among the sources. A file with
    such a name can be given as `./device=cpu`.

    Returns:
        Values by axis, and the actual sources.

    Raises:
        UsageError: An axis is unknown, given twice, or has a value out of range.
    """
    entries = [*given, *(name for name in sources if AXIS.fullmatch(name))]
    axes: Axes = {}
    for entry in entries:
        found = AXIS.fullmatch(entry)
        if found is None or found[1] not in AXES:
            raise UsageError(f"--sweep: '{entry}' is not an axis", HINT)
        name, values = found[1], tuple(value.strip() for value in found[2].split(","))
        if name in axes:
            raise UsageError(f"--sweep: {name} is given twice", "put all its values in one list")
        for value in values:
            if not value:
                raise UsageError(f"--sweep: {name} has an empty value", HINT)
            count = value.isascii() and value.isdecimal() and int(value) > 0
            if name in NUMERIC_AXES and not count:
                raise UsageError(
                    f"--sweep: {name} cannot be '{value}'", "give numbers of 1 or more"
                )
        axes[name] = tuple(dict.fromkeys(values))
    return axes, tuple(name for name in sources if not AXIS.fullmatch(name))


def run_sweep(request: BenchRequest, axes: Axes, tell: Callable[[str], None]) -> SweepReport:
    """Measure every combination, without cold starts.

    Args:
        request: What all combinations share.
        axes: What varies.
        tell: Receives the name of each combination before it is measured.

    Raises:
        UsageError: A combination contradicts itself.
    """
    check_repeatable(request.sources)
    combinations = [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    requests = [combined(request, values) for values in combinations]  # all checked beforehand
    points, machine = [], describe_machine(None)
    for number, (values, one) in enumerate(zip(combinations, requests, strict=True), 1):
        title = " ".join(f"{name}={value}" for name, value in values.items())
        tell(f"{number} of {len(combinations)}: {title}")
        point, its_machine = _measure(one, values)
        points.append(point)
        machine = its_machine if its_machine is not None and its_machine.gpu else machine
    return SweepReport("sweep", request.mode, axes, machine, describe_software(), tuple(points))


def combined(request: BenchRequest, values: dict[str, str]) -> BenchRequest:
    """A request with the values of one combination.

    Raises:
        UsageError: The values contradict each other, or the rest.
    """
    run = request.run
    given: dict[str, Any] = {name: int(values[name]) for name in NUMERIC_AXES if name in values}
    settings = replace(run.settings, imgsz=given.pop("imgsz", run.settings.imgsz))
    options = replace(run.device_options, workers=given.pop("workers", run.device_options.workers))
    if "device" in values:
        given["devices"] = Device.parse_list(values["device"])
    model = values.get("model", run.model)
    run = replace(run, model=model, settings=settings, device_options=options, **given)
    return replace(request, run=run, cold_starts=0)


def _measure(
    request: BenchRequest, values: dict[str, str]
) -> tuple[SweepPoint, BenchMachine | None]:
    """Measure one combination; returns what a sweep keeps of its report, and its machine."""
    done = subprocess.run(  # noqa: S603 - detcli itself
        bench_command(request), capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if done.returncode:
        error = process_error(done.returncode, done.stderr)
        message = f"{error} ({error.hint})" if error.hint else str(error)
        return SweepPoint(values, failure=PointFailure(message, error.exit_code)), None
    report = json.loads(done.stdout)
    conditions, latency = report["conditions"], report["latency"]
    batch, summary, interval = conditions["batch"], None, None
    if latency:
        summary = Summary(**latency["undisturbed"])
        rate = batch / summary.p50_s
        if pace := latency["undisturbed_median"]:
            interval = Interval(*(batch / pace[name] for name in ("estimate", "high", "low")))
    else:
        rate = report["throughput"]["pictures_per_second"]
        if between := report["throughput"]["interval"]:
            interval = Interval(**between)
    point = SweepPoint(
        values,
        device=conditions["device"],
        batch=batch,
        workers=conditions["workers"],
        pictures_per_second=rate,
        interval=interval,
        latency=summary,
        memory=PeakMemory(**report["memory"]),
        warnings=tuple(report["noise"]["warnings"]),
    )
    return point, BenchMachine(**report["machine"])
