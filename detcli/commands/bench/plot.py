"""Plots of sweeps and top-k comparisons by matplotlib, as PNG or SVG."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcli.commands.bench.report import SweepPoint, SweepReport, TopKReport
from detcli.commands.bench.request import Mode
from detcli.commands.bench.sweep import NUMERIC_AXES
from detcli.errors import UsageError, loading
from detcli.files import write_output
from detcli.text import plot_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinguishable with colour blindness too, in print and on screen (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a plot can be drawn.

    Raises:
        UsageError: The suffix is neither .png nor .svg.
        DependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in {".png", ".svg"}:
        raise UsageError(f"--plot {path}: a plot is a PNG or an SVG", "use the suffix .png or .svg")
    _figure()


def write_plot(report: SweepReport | TopKReport, path: Path) -> None:
    """Draw a report.

    Raises:
        OutputError: The file cannot be written.
    """
    figure = _figure()
    from matplotlib import rc_context

    if isinstance(report, SweepReport):
        _draw_sweep(report, figure)
    else:
        _draw_top_k(report, figure)
    memory = io.BytesIO()
    suffix = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if suffix == "svg" else {}  # the same figures give the same file
    with rc_context({"svg.hashsalt": "detcli"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # drawn as a box
        figure.savefig(memory, format=suffix, dpi=150, metadata=metadata)
    write_output(path, memory.getvalue())


def _figure() -> "Figure":
    with loading("matplotlib", "pip install 'detcli[plots]'"):
        from matplotlib.figure import Figure  # pyplot would keep state and open windows
    return Figure((7.0, 4.2), layout="constrained")


def _draw_sweep(report: SweepReport, figure: "Figure") -> None:
    """Draw the first numeric axis as x, and one line per combination of the others."""
    axes = figure.add_subplot()
    numeric = [name for name in NUMERIC_AXES if len(report.axes.get(name, ())) > 1]
    across = [*numeric, *report.axes][0]
    labels = report.axes[across]
    latency = report.mode is Mode.LATENCY
    lines: dict[str, list[SweepPoint]] = {}
    for point in report.points:
        if point.failure is None:
            others = [f"{axis} {value}" for axis, value in point.values.items() if axis != across]
            lines.setdefault(", ".join(others), []).append(point)
    for (title, points), style in zip(lines.items(), _styles(), strict=False):
        heights = [_height(point, latency=latency) for point in points]
        places = [labels.index(point.values[across]) for point in points]
        middles = [middle for middle, _, _ in heights]
        errors = [[middle - low for middle, low, _ in heights]]
        errors.append([high - middle for middle, _, high in heights])
        axes.errorbar(places, middles, errors, label=plot_text(title), capsize=3, **style)
    axes.set_xticks(range(len(labels)), [*map(plot_text, labels)])
    axes.set_xlabel(across)
    axes.set_ylabel("milliseconds per batch (median)" if latency else "pictures per second")
    axes.set_ylim(bottom=0)
    if any(lines):
        figure.legend(loc="outside lower center", ncols=min(len(lines), 3))
    _finish(axes, f"detcli, {report.mode}", report.machine.gpu or report.machine.processor)


def _height(point: SweepPoint, *, latency: bool) -> tuple[float, float, float]:
    """Height of a point, and the bounds of its error bar."""
    rate = point.pictures_per_second or 0.0
    low, high = (point.interval.low, point.interval.high) if point.interval else (rate, rate)
    low, high = min(low, rate), max(high, rate)
    if not latency:
        return rate, low, high
    pictures = 1000 * (point.batch or 1)
    return pictures / rate, pictures / high, pictures / low


def _draw_top_k(report: TopKReport, figure: "Figure") -> None:
    """Draw one panel per task with logarithmic axes, and one line per implementation."""
    tasks = list(dict.fromkeys(case.task for case in report.cases))
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        cases = [case for case in report.cases if case.task == task]
        names = [timing.name for timing in cases[0].ways]
        for name, style in zip(names, _styles(), strict=False):
            points = [
                (case.n, timing.summary.p50_s * 1e6)
                for case in cases
                for timing in case.ways
                if timing.name == name and timing.summary is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), label=name, **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("N")
        _finish(axes, f"{task}, k = {cases[0].k}", None)
    panels[0].set_ylabel("microseconds (median)")
    lines, titles = panels[0].get_legend_handles_labels()
    figure.legend(lines, titles, loc="outside lower center", ncols=len(titles))
    figure.suptitle(f"{report.device}, {report.machine.gpu or report.machine.processor}")


def _styles() -> Iterator[dict[str, Any]]:
    """A colour and a marker for each line; when they run out, again with dashes."""
    for line in ("-", "--", ":"):
        for colour, marker in zip(COLOURS, "osD^vPX", strict=True):
            yield {"color": colour, "marker": marker, "linestyle": line}


def _finish(axes: "Axes", title: str, machine: str | None) -> None:
    axes.set_title(f"{title}, {machine}" if machine else title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
