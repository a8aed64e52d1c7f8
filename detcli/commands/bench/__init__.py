"""`detcli bench`: how long each stage takes, how many images a second, and whether it got slower.

run.py         one measurement; its latency; the images, over and over
throughput.py  images a second of the whole pipeline
cold_start.py  whole processes, from their start to their end
sampling.py    the clock, warm-up, confidence intervals
machine.py     hardware, versions, what disturbed a measurement
report.py      the results, as JSON and as tables
baseline.py    an earlier run: its file, and whether the model got slower since
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from detcli.cli.command import command, override_option
from detcli.cli.console import print_line, set_verbosity
from detcli.cli.report import REPORT_FORMAT, ReportFormat, require_output, write_report
from detcli.config.config import OUTPUT, Config, Runtime, Verbosity
from detcli.config.option import option
from detcli.config.values import BenchMode, parse_duration, parse_writable
from detcli.core.errors import DetcliWarning, UsageError
from detcli.core.text import pluralize


@command(
    override_option("source", help="Images, folders or videos; default: a built-in image."),
    Runtime,
    override_option(
        "device",
        help="Where to run: auto, cpu, cuda, cuda:N, tensorrt, tensorrt:N, openvino, openvino:GPU "
        "or openvino:NPU.",
    ),
    *("nms", "imgsz", "box_format", "preprocess", "boxes_only"),
    Verbosity,
)
def bench(  # noqa: PLR0913, PLR0917 - an option each
    config: Config,
    value_sources: Mapping[str, str],
    mode: BenchMode = option(
        BenchMode.LATENCY,
        "--mode latency|throughput",
        "One batch after the other by stage, or all stages in parallel.",
    ),
    seconds: float = option(
        10,
        "--seconds S",
        "How long to measure, after the warm-up.",
        range=(0, None),
    ),
    max_warm_up: float = option(
        20,
        "--max-warm-up TIME",
        "End the warm-up after this long, even if times are not steady yet.",
        range=(0, 20),
        parse=parse_duration,
    ),
    cold_starts: int = option(
        5,
        "--cold-starts N",
        "Time this many whole processes first.",
        range=(0, None),
    ),
    save_baseline: Path | None = option(
        None,
        "--save-baseline FILE",
        "Save the samples for a later --baseline.",
        panel=OUTPUT,
        parse=parse_writable,
    ),
    baseline: Path | None = option(
        None,
        "--baseline FILE",
        "Compare with this; exit with 6 if certainly slower.",
    ),
    max_regress: str = option(
        "5%",
        "--max-regress PERCENT",
        "How much slower than the baseline is allowed.",
        needs={"baseline": "name the file of an earlier --save-baseline"},
    ),
    report_format: ReportFormat | None = REPORT_FORMAT,
) -> None:
    """Measure latency by stage, or throughput.

    Without SOURCE it runs on a built-in image. Warnings about a noisy machine go to stderr and
    into the report.
    """
    set_verbosity(quiet=config.verbosity.quiet, verbose=config.verbosity.verbose)
    require_output([save_baseline])
    # What follows loads NumPy, OpenCV and ONNX Runtime, which --help does not need.
    from detcli.commands.bench.baseline import Baseline, compare
    from detcli.commands.bench.report import render_run
    from detcli.commands.bench.run import measure
    from detcli.run import set_up_process
    from detcli.source.guard import InputGuard
    from detcli.storage.files import open_output

    set_up_process()
    limit = parse_percentage(max_regress)
    earlier = None
    if baseline:
        earlier = Baseline.load(baseline)
    inputs = list(config.inputs.source)
    if "model" in value_sources:
        inputs.append(config.runtime.model)
    InputGuard(inputs).refuse((save_baseline,))
    if save_baseline is not None:
        open_output(save_baseline).discard()  # an error now, not after the measurement
    if not config.verbosity.quiet:  # one line: a progress bar would be measured too
        print_line(_announcement(cold_starts, seconds))
    report, measured = measure(
        config, mode, seconds, cold_starts, earlier, max_warm_up_s=max_warm_up
    )
    if earlier is not None:
        report = replace(report, comparison=compare(earlier, measured, limit))
    write_report(report, report_format, render_run, other_results=[save_baseline])
    for doubt in report.noise.warnings:
        warnings.warn(f"these figures may be off: {doubt}", DetcliWarning, stacklevel=1)
    if report.comparison is not None:
        report.comparison.require_no_regression()
    if save_baseline is not None:
        measured.save(save_baseline)


def _announcement(cold_starts: int, seconds: float) -> str:
    """What is going to be measured."""
    steps = f"a warm-up, then {seconds:g} s of measuring"
    if cold_starts:
        return f"{pluralize(cold_starts, 'cold start')}, then {steps}"
    return steps


def parse_percentage(text: str) -> float:
    """Parse "5%" as 0.05; a bare number would be ambiguous."""
    match = re.fullmatch(r"\s*(\d*\.?\d+)\s*%\s*", text)
    if match is None:
        raise UsageError(f"--max-regress '{text}' is not a percentage", "write 5%")
    return float(match[1]) / 100
