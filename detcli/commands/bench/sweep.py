"""Sweeps: every combination of some values, each measured in a process of its own.

So that none inherits memory, threads or a warm cache from another, and one that fails takes no
other with it.
"""

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from detcli.commands.bench.cold_start import bench_command, failure
from detcli.commands.bench.inputs import check_repeatable
from detcli.commands.bench.machine import describe_machine, describe_software
from detcli.commands.bench.report import Failure, Machine, Memory, Point, SweepReport
from detcli.commands.bench.request import Request
from detcli.commands.bench.statistics import Interval, Summary
from detcli.errors import DetcliError, UsageError

AXES = ("batch", "device", "workers", "imgsz", "model")
COUNTS = ("batch", "workers", "imgsz")

AXIS = re.compile(r"(\w+)=(.*)", re.DOTALL)

HINT = f"write --sweep batch=1,2,4 device=cpu,cuda; there are {', '.join(AXES)}"

Axes = dict[str, tuple[str, ...]]


def split_axes(given: Sequence[str], sources: Sequence[str]) -> tuple[Axes, tuple[str, ...]]:
    """Tell axes from sources.

    The shell hands out the second axis of `--sweep batch=1,2 device=cpu,cuda` as if it were a
    source; a file of such a name can be given as `./device=cpu`.

    Args:
        given: What followed --sweep itself.
        sources: Everything that is no option.

    Returns:
        Values by axis, and the real sources.

    Raises:
        UsageError: An axis is unknown, named twice, or has a value that it cannot have.
    """
    entries = [*given, *(name for name in sources if AXIS.fullmatch(name))]
    axes: Axes = {}
    for entry in entries:
        found = AXIS.fullmatch(entry)
        if found is None or found[1] not in AXES:
            raise UsageError(f"--sweep: '{entry}' names no axis", HINT)
        name, values = found[1], tuple(value.strip() for value in found[2].split(","))
        if name in axes:
            raise UsageError(f"--sweep: {name} is there twice", "put all its values in one list")
        for value in values:
            _check(name, value)
        axes[name] = tuple(dict.fromkeys(values))
    return axes, tuple(name for name in sources if not AXIS.fullmatch(name))


def run_sweep(request: Request, axes: Axes, tell: Callable[[str], None]) -> SweepReport:
    """Measure every combination.

    Args:
        request: What all have in common; their cold start is not measured.
        axes: What changes.
        tell: Hears what is measured next.

    Raises:
        UsageError: A combination makes no sense.
    """
    check_repeatable(request.sources)
    combinations = [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    requests = [combined(request, values) for values in combinations]  # none fails later on
    points, machine = [], describe_machine(None)
    for number, (values, one) in enumerate(zip(combinations, requests, strict=True), 1):
        title = " ".join(f"{name}={value}" for name, value in values.items())
        tell(f"{number} of {len(combinations)}: {title}")
        point, on = _measure(one, values)
        points.append(point)
        machine = on if on is not None and on.gpu else machine
    return SweepReport("sweep", request.mode, axes, machine, describe_software(), tuple(points))


def combined(request: Request, values: dict[str, str]) -> Request:
    """A request with the values of one combination.

    Raises:
        UsageError: They contradict each other, or the rest.
    """
    counts = {name: int(value) for name, value in values.items() if name in COUNTS}
    settings = replace(request.settings, imgsz=counts.get("imgsz", request.settings.imgsz))
    return replace(
        request,
        model=values.get("model", request.model),
        device=values.get("device", request.device),
        batch=counts.get("batch", request.batch),
        workers=counts.get("workers", request.workers),
        settings=settings,
        cold_starts=0,
    )


def _measure(request: Request, values: dict[str, str]) -> tuple[Point, Machine | None]:
    """One combination, and what it ran on."""
    done = subprocess.run(  # noqa: S603 - this very Python
        bench_command(request), capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if done.returncode:
        error = failure(done.returncode, done.stderr)
        return Point(values, failure=Failure(_sentence(error), error.exit_code)), None
    report = json.loads(done.stdout)
    return read_point(values, report), Machine(**report["machine"])


def _sentence(error: DetcliError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def read_point(values: dict[str, str], report: dict[str, Any]) -> Point:
    """What a sweep keeps of a report in its JSON form."""
    conditions, latency, throughput = (
        report[part] for part in ("conditions", "latency", "throughput")
    )
    batch = conditions["batch"]
    if latency:
        pace, rate = latency["undisturbed_median"], batch / latency["undisturbed"]["p50_s"]
        interval = pace and {
            "estimate": batch / pace["estimate"],
            "low": batch / pace["high"],
            "high": batch / pace["low"],
        }
    else:
        rate, interval = throughput["pictures_per_second"], throughput["interval"]
    return Point(
        values,
        device=conditions["device"],
        batch=batch,
        workers=conditions["workers"],
        pictures_per_second=rate,
        interval=Interval(**interval) if interval else None,
        latency=Summary(**latency["undisturbed"]) if latency else None,
        memory=Memory(**report["memory"]),
        warnings=tuple(report["noise"]["warnings"]),
    )


def _check(name: str, value: str) -> None:
    """Refuse a value that an axis cannot have.

    Raises:
        UsageError: It cannot.
    """
    if not value:
        raise UsageError(f"--sweep: {name} has an empty value", HINT)
    if name in COUNTS and not (value.isascii() and value.isdecimal() and int(value) > 0):
        raise UsageError(f"--sweep: {name} cannot be '{value}'", "give numbers of 1 or more")
