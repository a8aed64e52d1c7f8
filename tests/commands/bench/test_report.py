"""Tables of made-up measurements."""

import re
from dataclasses import replace

import pytest
from terminals import printed

from detcli.cli.report import format_seconds
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
    StageFigures,
    Throughput,
    render_run,
)
from detcli.commands.bench.sampling import Interval, Summary, WarmUp

MACHINE = BenchMachine("Made Up 9", "x86_64", "Linux", 4, 8_000_000_000, "NVIDIA H200", "580.65")
SOFTWARE = {"detcli": "0.1.0", "openvino": None}
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
    "old.json",
    SOFTWARE,
    ("the times deviate by 30% of their mean",),
    0.1,
    0.25,
    0.05,
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
    conditions=Conditions("latency", "cuda:0", 8, 1, (), "00", (640, 480)),  # type: ignore[arg-type]
    latency=LATENCY,
    throughput=Throughput(
        12.34,
        Interval(12.34, 11.0, 13.0),
        100,
        8.1,
        WarmUp(20, 1.5, 0.3, stable=True),
        {"decode": 0.002, "network": 0.05},
        Overhead(1e-7, 1e-5, None),
    ),
    cold_start=ColdStart(5, 0.31, 0.33, 157_000_000),
    memory=PeakMemory(200_000_000, 1_500_000_000),
    noise=NOISE,
    comparison=COMPARISON,
)


def test_a_run():
    text = printed(render_run(RUN), 120)
    for sentence in (
        "on cuda:0, latency, batch 8, workers 1, 480x640",
        "Made Up 9, 4 cores, 8.0 GB, NVIDIA H200",
        "after each stage, to time it",
        "95% interval 2.40 ms to 2.70 ms; 3200.0 images/s",
        "20 runs in 1.5 s, never stable; the first took 300.0 ms",
        "timing the stages cost +8.0% (+5.0% to +11.0%)",
        "missing         download on this device, p99 (needs 100 runs)",
        "12.3 images/s, 95% interval 11.0 to 13.0",
        "100 images in 8.1 s",
        "20 images in 1.5 s, until stable; the first took",
        "decode 2.00 ms, network 50.00 ms; the threads overlap",
        "the clock took 100 ns, 0.001%",
        "200.0 MB, GPU 1.5 GB",
        "310.0 ms to the first record, 330.0 ms in all, 157.0 MB",
        "\n\ncompared with old.json, limit +5%\n",
        "wall clock  2.00 ms before, 2.50 ms now, +25.0% (+20.0% to +30.0%): regression\n",
        "upload      1.00 ms before, 1.00 ms now",
        "other programs took 10% of the cores then, 25% now",
        "baseline: the times deviate by 30% of their mean",
    ):
        assert sentence in text
    lines = {}
    for line in reversed(text.splitlines()):
        title = line.split("  ")[0]
        lines[title] = line.split()[1:]
    assert lines["upload"] == ["2.500", "3.000", "2.600", "0.100", "25.0%"]
    assert lines["stage"] == ["p50", "ms", "p90", "ms", "mean", "ms", "deviation", "ms", "share"]
    assert "download" not in lines
    assert lines["all stages"][-1] == "100.0%"
    assert lines["undisturbed"][-1] == "0.100"
    assert "\x1b" not in text  # of the model's name


def test_short_stages_are_shown_in_microseconds():
    summary = Summary(0.000025, 0.00003, None, 0.000026, 0.0000001, 40)
    stages = (StageFigures("upload", summary, 0.25),)
    latency = replace(LATENCY, undisturbed=summary, wall=summary, stages=stages)
    text = printed(render_run(replace(RUN, latency=latency)), 120)
    assert re.search(r"\nstage +p50 us +p90 us +mean us +deviation us +share *\n", text)
    assert re.search(r"\nupload +25\.0 +30\.0 +26\.0 +0\.1 +25\.0% *\n", text)


def test_an_uncertain_cost_is_not_reported_as_one():
    overhead = Overhead(1e-6, 1e-3, Interval(0.94, 0.8, 1.1))
    assert "timing the stages cost nothing measurable (-20.0% to +10.0%)" in str(overhead)


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
    assert format_seconds(value) == text
