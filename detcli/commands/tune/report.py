"""What tune found: the rows, the choice, the chart, and the tables of the user's file."""

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING

from detcli.cli.defaults import FILE_VARIABLE, TUNED, defaults_file
from detcli.cli.report import report_field, styled_line, table
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.errors import OutputError, UsageError
from detcli.core.text import escape_unprintable
from detcli.storage.files import make_folder, open_output, read_text, write_output

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = {
    "many": "many pictures",
    "one": "one picture after the other",
    "start": "one picture, with the start",
}
"""What a configuration is chosen for, and what people call it."""

REACH = 1.25
"""How many times as fast another one has to be for a configuration to be looked at no further."""


@frozen
class Measurement:
    """What was measured in one round or several, with its noise; `estimate` is their median."""

    turns: tuple[tuple[float, float, float], ...]  # estimate, low and high of each
    # The median of their intervals, as bench has them, or the middle half of the rounds if that is
    # wider.
    low: float
    high: float
    estimate: float = report_field("", form=lambda one: f"{one:.0f}" if one > 100 else f"{one:.3g}")

    @classmethod
    def add(
        cls, before: "Measurement | None", estimate: float, low: float = inf, high: float = -inf
    ) -> "Measurement":
        """The measurement with one more round; without an interval, that is the estimate alone."""
        new_round = estimate, min(low, estimate), max(high, estimate)
        turns = (*(before.turns if before else ()), new_round)
        estimates = [round_estimate for round_estimate, _, _ in turns]
        quarters = quantiles(sorted(estimates) * 2, n=4, method="inclusive")
        median_low = median(round_low for _, round_low, _ in turns)
        median_high = median(round_high for _, _, round_high in turns)
        return cls(
            turns,
            low=min(quarters[0], median_low),
            high=max(quarters[2], median_high),
            estimate=median(estimates),
        )


@frozen
class BoxAgreement:
    """The boxes of a configuration beside those of the reference, as verify counts them."""

    equal: float = report_field("equal", "%")  # share that has a counterpart within the tolerance
    lost: int = report_field("lost")
    new: int = report_field("new")
    largest_score_difference: float = report_field("score", form="{:.2g}".format)  # of all pairs
    largest_corner_difference: float = report_field("pixels", form="{:.2g}".format)


@frozen
class Configuration:
    """A configuration in which a model runs; what is None suits the device."""

    device: str
    half: bool = False
    int8: bool = False
    batch: int | None = None
    workers: int | None = None

    def __str__(self) -> str:
        precision = "half" * self.half + "int8" * self.int8
        sizes = [f"{name} {size}" for name, size in self.options.items() if type(size) is int]
        return " ".join(filter(None, [self.device, precision, *sizes]))

    @property
    def is_plain(self) -> bool:
        """Whether batch and workers are what suits the device."""
        return self.batch is None and self.workers is None

    @property
    def options(self) -> dict[str, str | int | bool]:
        """Its options in the user's file; of 8 bits, the model is another one."""
        every = {name: getattr(self, name) for name in ("device", "half", "batch", "workers")}
        return {name: value for name, value in every.items() if value}

    @property
    def words(self) -> list[str]:
        """The same as one types them."""
        pairs = ([f"--{name}", str(value)] for name, value in self.options.items())
        return [word for pair in pairs for word in pair if word != "True"]


@dataclass(slots=True)
class TuneRow:
    """What is known of a configuration, filled in as it is tried; None is what was not measured."""

    name: str = report_field("way")
    way: Configuration = report_field()
    many: Measurement | None = report_field(
        "/s", default=None
    )  # pictures a second, from files to records
    one: Measurement | None = report_field("one s", default=None)  # seconds for one picture
    # seconds for a process, up to its first record
    start: Measurement | None = report_field("start s", default=None)
    host_peak_bytes: int | None = report_field("memory", "B", default=None)
    device_bytes: int | None = None
    boxes: BoxAgreement | None = report_field(default=None)  # None for the reference
    map50_95: float | None = report_field("mAP", form="{:.3f}".format, default=None)
    keeps_boxes: bool = False  # they agree within the tolerance
    batch: int | None = None  # that was used for many pictures
    workers: int | None = None
    error: str | None = None  # why it, or the rest of it, was not measured


def candidates(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """The rows that keep the boxes and may be the fastest, as far as the noise tells."""
    measured = [row for row in rows if row.keeps_boxes and getattr(row, kind)]
    best = _fastest([getattr(row, kind) for row in measured], kind)
    best_low, best_high = _span(best)
    overlapping = []
    for row in measured:
        low, high = _span(getattr(row, kind))
        if low <= best_high and high >= best_low:
            overlapping.append(row)
    return overlapping


def _span(measurement: Measurement) -> tuple[float, float]:
    """Between what it may be; of a single round without an interval, nobody knows the noise."""
    if measurement.low < measurement.high:
        return measurement.low, measurement.high
    return measurement.estimate / REACH, measurement.estimate * REACH


def equals(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """Those of them whose figure is within the noise of the fastest; the simplest comes first.

    A noisy measurement does not make a tie by itself: it is compared with the noise of the fastest.
    """
    fastest_rows = candidates(rows, kind)
    best = _fastest([getattr(row, kind) for row in fastest_rows], kind)
    return [row for row in fastest_rows if best.low <= getattr(row, kind).estimate <= best.high]


def _fastest(measurements: Sequence[Measurement], kind: str) -> Measurement:
    choose = max if kind == "many" else min
    return choose(measurements, key=lambda measurement: measurement.estimate)


@frozen
class Choice:
    """The fastest configuration that keeps the boxes, for one of KINDS; of equals the simplest."""

    kind: str
    way: str
    gain: float  # how many times as fast as the reference
    tied: tuple[str, ...]  # configurations that are as fast, within the noise
    options: dict[str, str | int | bool]  # of predict
    command: str


@frozen
class TuneReport:
    """All configurations that were tried: first the reference, then the simpler before others."""

    model: str  # as it was named
    sha256: str  # of all that decides its answers
    machine: str
    conf: float
    tolerance: Tolerance
    rows: tuple[TuneRow, ...]
    choices: tuple[Choice, ...]
    seconds: float
    doubts: tuple[str, ...]


def render(report: TuneReport) -> Iterator["RenderableType"]:
    """Lay out a report: the configurations, those that did not work, and the choices."""
    yield styled_line((report.model, "bold"), (f" on {report.machine}", "dim"))
    yield table([row for row in report.rows if row.one or row.many])
    for row in report.rows:
        if row.error is not None:
            yield styled_line((f"{row.name}: ", "yellow"), (row.error, ""))
    allowed = report.tolerance
    equal = f"pairs within {allowed.score:g} in score and {allowed.corner:g} pixels"
    yield styled_line(
        ("/s: many pictures; one s: one after the other; start s: with the start", "dim")
    )
    yield styled_line(
        (f"equal: {equal}, above {report.conf:g}; {1 - allowed.boxes:.1%} wanted", "dim")
    )
    for choice in report.choices:
        first = report.rows[0].name
        gain = f", {choice.gain:.2f} times as fast as {first}" * (choice.way != first)
        also = f"; as fast, within the noise: {', '.join(choice.tied)}" if choice.tied else ""
        yield styled_line(
            (f"{KINDS[choice.kind]}: ", ""), (choice.way, "green"), (gain + also, "dim")
        )
        yield styled_line((f"  {choice.command}", "bold"))


# The user's file


def writable_defaults() -> Path:
    """The user's file of defaults, existing or not; raises an error if it cannot be written."""
    path = defaults_file()
    if path is None or str(path) == os.devnull:
        hint = f"name a file with {FILE_VARIABLE}, or leave out --write"
        raise UsageError("--write needs a file of defaults, and there is none", hint)
    make_folder(path.parent)
    open_output(path).discard()
    return path


def write_defaults(path: Path, report: TuneReport) -> None:
    """Add the choices for a model on this machine, in place of earlier ones."""
    text = read_text(path) if path.exists() else ""
    choices = {choice.kind: choice.options for choice in report.choices}
    header = f"[{TUNED}.{report.sha256}.{_toml(report.machine)}]"
    parts = [f"{header}  # {escape_unprintable(report.model)}"]
    for kind, options in choices.items():
        values = ", ".join(f"{name} = {_toml(value)}" for name, value in options.items())
        parts.append(f"{kind} = {{ {values} }}")
    # A table ends where the next begins.
    kept = re.sub(rf"^{re.escape(header)}.*\n(?:(?!\[).*\n?)*", "", text, flags=re.MULTILINE)
    new = "\n".join([*filter(None, [kept.rstrip()]), "", *parts, ""]).lstrip("\n")
    wanted = tomllib.loads(text)
    wanted.setdefault(TUNED, {}).setdefault(report.sha256, {})[report.machine] = choices
    with contextlib.suppress(ValueError):
        if tomllib.loads(new) == wanted:
            write_output(path, new.encode())
            return
    own = "\n".join(parts)
    raise OutputError(f"cannot add tables to {path}", f"add them yourself:\n{own}")


def _toml(value: str | float) -> str:
    return json.dumps(value, ensure_ascii=False)
