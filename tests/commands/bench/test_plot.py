"""Plots, read back from the figure and from the files."""

import builtins
from dataclasses import replace

import cv2
import pytest

from detcli.commands.bench import plot as module
from detcli.commands.bench.plot import check_plot, write_plot
from detcli.commands.bench.report import (
    BenchMachine,
    Interval,
    Noise,
    PointFailure,
    Software,
    Summary,
    SweepPoint,
    SweepReport,
    TopKCase,
    TopKReport,
    TopKTiming,
)
from detcli.commands.bench.request import Mode
from detcli.errors import DependencyError, UsageError

MACHINE = BenchMachine("AMD EPYC", "x86_64", "Linux", 2, 1, None, None)
SOFTWARE = Software("0.1.0", "3.11", "2.4", None, None)
QUIET = Noise(None, None, None, 0.0, None, None, None, (), ())


def point(batch, workers, rate, *, failed=False):
    values = {"batch": str(batch), "workers": str(workers)}
    if failed:
        return SweepPoint(values, failure=PointFailure("no GPU", 5))
    between = Interval(rate, 0.9 * rate, 1.2 * rate)
    return SweepPoint(values, "cpu", batch, workers, float(rate), between)


def sweep(mode=Mode.THROUGHPUT):
    points = [point(1, 1, 10), point(1, 2, 15), point(8, 1, 12), point(8, 2, 0, failed=True)]
    axes = {"batch": ("1", "8"), "workers": ("1", "2")}
    return SweepReport("sweep", mode, axes, MACHINE, SOFTWARE, tuple(points))


def top_k():
    def way(name, median):
        summary = Summary(median, median, None, median, 0.0, 5) if median else None
        return TopKTiming(name, summary, 1.0 if median else None, None if median else "not there")

    cases = tuple(
        TopKCase(task, n, 300, (way("detcli", n * 1e-8), way("CuPy", None)))
        for n in (1000, 100_000)
        for task in ("top_k", "selection")
    )
    return TopKReport("topk", MACHINE, SOFTWARE, "cpu", cases, 0.001, QUIET)


@pytest.fixture
def figure(monkeypatch):
    """The figure that is drawn on."""
    drawn = module._figure()  # noqa: SLF001
    monkeypatch.setattr(module, "_figure", lambda: drawn)
    return drawn


def drawn_lines(axes):
    return [
        (container.get_label(), container[0].get_ydata().tolist()) for container in axes.containers
    ]


def test_a_sweep_has_a_line_for_each_combination_of_the_other_axes(figure, tmp_path):
    write_plot(sweep(), tmp_path / "a.png")
    (axes,) = figure.axes
    assert drawn_lines(axes) == [("workers 1", [10, 12]), ("workers 2", [15])]
    assert axes.get_xlabel() == "batch"
    assert axes.get_ylabel() == "pictures per second"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "8"]


def test_latency_is_drawn_in_milliseconds_a_batch(figure, tmp_path):
    write_plot(sweep(Mode.LATENCY), tmp_path / "a.png")
    (axes,) = figure.axes
    name, heights = drawn_lines(axes)[0]
    assert name == "workers 1"
    assert heights == pytest.approx([100, 8000 / 12])
    assert "milliseconds" in axes.get_ylabel()


def test_an_axis_without_numbers(figure, tmp_path):
    points = tuple(SweepPoint({"device": name}, name, 1, 1, 5.0) for name in ("cpu", "cuda"))
    report = SweepReport(
        "sweep", Mode.THROUGHPUT, {"device": ("cpu", "cuda")}, MACHINE, SOFTWARE, points
    )
    write_plot(report, tmp_path / "a.png")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cpu", "cuda"]


def test_nothing_but_failures_is_an_empty_plot(tmp_path):
    report = SweepReport(
        *("sweep", Mode.THROUGHPUT, {"batch": ("8",)}, MACHINE, SOFTWARE),
        (point(8, 1, 0, failed=True),),
    )
    write_plot(report, tmp_path / "a.png")
    assert cv2.imread(str(tmp_path / "a.png")) is not None


def test_top_k_has_a_panel_a_task(figure, tmp_path):
    write_plot(top_k(), tmp_path / "a.png")
    assert [axes.get_title() for axes in figure.axes] == ["top_k, k = 300", "selection, k = 300"]
    (line,) = figure.axes[0].get_lines()  # CuPy was not timed
    assert line.get_label() == "detcli"
    assert line.get_xdata().tolist() == [1000, 100_000]
    assert line.get_ydata() == pytest.approx([10, 1000])
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_files_are_what_they_say_and_the_same_each_time(tmp_path):
    for name in ("a.png", "b.PNG", "a.svg", "b.svg"):
        write_plot(sweep(), tmp_path / name)
    assert cv2.imread(str(tmp_path / "a.png")).shape[1] > 500
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.PNG").read_bytes()


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.png.txt"])
def test_another_suffix_is_refused_before_anything_is_measured(name, tmp_path):
    with pytest.raises(UsageError, match="PNG or an SVG"):
        check_plot(tmp_path / name)


def test_without_matplotlib(monkeypatch, tmp_path):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError("no matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(DependencyError) as caught:
        check_plot(tmp_path / "a.png")
    assert caught.value.hint == "pip install 'detcli[plots]'"


def test_names_of_models_are_only_text(figure, tmp_path):
    names = ("a$_$.onnx", "\u6a21\u578b.onnx")
    points = [replace(point(1, 1, 10), values={"batch": "1", "model": name}) for name in names]
    for axes in ({"batch": ("1", "2"), "model": names}, {"model": names}):
        write_plot(replace(sweep(), axes=axes, points=tuple(points)), tmp_path / "a.png")
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == [
        r"a\$_\$.onnx", names[1]
    ]  # fmt: skip
