"""Tables of made-up measurements."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from detcli.commands.bench.report import (
    BaselineComparison,
    BenchMachine,
    BenchModel,
    Change,
    ColdStart,
    Conditions,
    Latency,
    Noise,
    Overhead,
    PeakMemory,
    RegressionVerdict,
    RunReport,
    Software,
    StageFigures,
    render_run,
    seconds,
)
from detcli.commands.bench.sampling import Interval, Summary, WarmUp

MACHINE = BenchMachine("Made Up 9", "x86_64", "Linux", 4, 8_000_000_000, "NVIDIA H200", "580.65")
SOFTWARE = Software("0.1.0", "3.11", "2.4", "5.0", "1.31")
SUMMARY = Summary(0.0025, 0.003, None, 0.0026, 0.0001, 40)
NOISE = Noise(None, None, None, 0.25, (), ("other programs kept 1.0 of 4 cores busy",))

LATENCY = Latency(
    undisturbed=SUMMARY,
    undisturbed_median=Interval(0.0025, 0.0024, 0.0027),
    wall=SUMMARY,
    stages=(StageFigures("upload", SUMMARY, 0.25), StageFigures("download", None, None)),
    synchronised=True,
    warm_up=WarmUp(20, 1.5, 0.3, stable=False),
    overhead=Overhead(1.5e-6, 0.0006, Interval(1.08, 1.05, 1.11)),
)
COMPARISON = BaselineComparison(
    *("old.json", SOFTWARE, ("the times deviate by 30% of their mean",), 0.1, 0.25, 0.05),
    (
        Change("wall clock", 0.002, 0.0025, Interval(1.25, 1.2, 1.3), RegressionVerdict.REGRESSION),
        Change("upload", 0.001, 0.001, None, None),
    ),
    RegressionVerdict.REGRESSION,
)
RUN = RunReport(
    kind="run",
    machine=MACHINE,
    software=SOFTWARE,
    model=BenchModel("a\x1b[2Jb.onnx", "00"),
    conditions=Conditions("latency", "cuda:0", 8, 1, (), "00", (640, 480)),
    latency=LATENCY,
    throughput=None,
    cold_start=ColdStart(5, 0.31, 0.33, 157_000_000),
    memory=PeakMemory(200_000_000, 1_500_000_000),
    noise=NOISE,
    comparison=COMPARISON,
)


def printed(parts, width=80):
    console = Console(width=width, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.file.getvalue()


@pytest.fixture
def run():
    return printed(render_run(RUN), width=120)


@pytest.mark.parametrize(
    "line",
    [
        "on cuda:0, latency, batch 8, workers 1, 480x640",
        "Made Up 9, 4 cores, 8.0 GB, NVIDIA H200",
        "after each stage, to time it",
        "95% interval 2.40 ms to 2.70 ms; 3200.0 pictures/s",
        "never stable; the first took 300.0 ms",
        "timing the stages cost +8.0% (+5.0% to +11.0%)",
        "\n\ncompared with old.json, limit +5%\n",
        "missing       download on this device, p99 (needs 100 runs)",
        "other programs took 10% of the cores then, 25% now",
        "200.0 MB, GPU 1.5 GB",
        "310.0 ms to the first record, 330.0 ms in all, 157.0 MB",
        "+25.0% (+20.0 to +30.0)   slower",
        "baseline: the times deviate by 30% of their mean",
    ],
)
def test_a_run_says(line, run):
    assert line in run


def test_an_uncertain_cost_is_not_reported_as_one():
    overhead = replace(LATENCY.overhead, observed=Interval(0.94, 0.8, 1.1))
    text = printed(render_run(replace(RUN, latency=replace(LATENCY, overhead=overhead))), width=120)
    assert "timing the stages cost nothing measurable (-20.0% to +10.0%)" in text


def test_stages_present_and_missing(run):
    lines = {line.split()[0]: line.split()[1:] for line in run.splitlines() if line.split()}
    assert lines["upload"][:4] == ["1.00", "ms", "1.00", "ms"]  # of the comparison, the last one
    assert lines["download"] == ["-"] * 6
    assert "25.0%" in run


def test_control_codes_in_a_name_are_harmless(run):
    assert "\x1b" not in run


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.345, "12.35 s"),
        (1, "1.00 s"),
        (0.25, "250.0 ms"),
        (0.0123, "12.30 ms"),
        (5e-6, "5.00 us"),
        (4.2e-8, "42 ns"),
        (0.0, "0 ns"),
    ],
)
def test_durations(value, text):
    assert seconds(value) == text
