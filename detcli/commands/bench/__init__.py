"""`detcli bench`: how long each stage takes, how many pictures a second, and whether it got slower.

request.py    what is asked for
run.py        one measurement: latency, throughput, cold starts; the pictures, over and over
sampling.py   the clock, warm-up, confidence intervals
machine.py    hardware, versions, what disturbed a measurement
report.py     the results, as JSON and as tables; an earlier run beside them
"""

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcli.cli.messages import say, set_verbosity
from detcli.cli.options import adapted, command
from detcli.cli.report import REPORT_FORMAT, ReportFormat, write_report
from detcli.commands.bench.request import BenchRequest
from detcli.core.config import Messages, Running
from detcli.core.errors import CheckError, DetcliWarning, UsageError

if TYPE_CHECKING:
    from detcli.commands.bench.report import BaselineComparison


@command(
    adapted("source", help="Pictures, folders or videos; default: a built-in picture."),
    Running,
    adapted("device", help="Where to run: auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N."),
    *("nms", "imgsz", "box_format", "preprocess", "boxes_only"),
    Messages,
)
def bench(
    request: BenchRequest,
    origins: Mapping[str, str],
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Measure latency by stage, or throughput.

    Without SOURCE it runs on a built-in picture. Warnings about a noisy machine go to stderr and
    into the report.
    """
    config, save_baseline = request.config, request.save_baseline
    quiet, sources = config.messages.quiet, config.inputs.source
    set_verbosity(quiet=quiet, verbose=config.messages.verbose)
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.bench.report import Baseline, render_run
    from detcli.commands.bench.run import measure
    from detcli.core.files import open_output
    from detcli.run import set_up_process
    from detcli.source.sources import InputGuard

    set_up_process()
    share = parse_percentage(request.max_regress)
    earlier = Baseline.load(request.baseline) if request.baseline else None
    named = [config.running.model] if "model" in origins else []
    InputGuard([*sources, *named]).refuse((save_baseline,))
    if save_baseline is not None:
        open_output(save_baseline).discard()  # an error now, not after the measurement
    if not quiet:  # one line: a progress bar would be measured too
        starts = request.cold_starts
        before = f"{starts} cold start{'s' * (starts > 1)}, then " if starts else ""
        say(f"{before}a warm-up, then {request.seconds:g} s of measuring")
    report, own = measure(request, earlier, share)
    write_report(report, report_format, render_run)
    for doubt in report.noise.warnings:
        warnings.warn(f"these figures may be off: {doubt}", DetcliWarning, stacklevel=1)
    if report.comparison is not None:
        _require_no_regression(report.comparison)
    if save_baseline is not None:
        own.save(save_baseline)


def _require_no_regression(found: "BaselineComparison") -> None:
    from detcli.commands.bench.report import RegressionVerdict

    slower = f"slower than {found.file} by more than {found.max_regress:.0%}"
    if found.verdict is RegressionVerdict.UNDECIDED:
        how = "measure longer, with --seconds, on an idle machine"
        warnings.warn(f"cannot tell whether this is {slower}: {how}", DetcliWarning, 1)
    if found.verdict is RegressionVerdict.REGRESSION:
        names = [one.name for one in found.changes if one.verdict is found.verdict]
        raise CheckError(
            f"{slower}: {', '.join(names)}",
            "see the comparison in the report; measure again if the machine was busy",
        )


def parse_percentage(text: str) -> float:
    """Parse "5%" as 0.05; a bare number would be ambiguous."""
    number, sign, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not sign or rest or not 0 <= value < math.inf:
        raise UsageError(f"--max-regress '{text}' is not a percentage", "write 5%")
    return value / 100
