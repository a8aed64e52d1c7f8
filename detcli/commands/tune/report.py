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
"""What a way is chosen for, and what people call it."""

REACH = 1.25
"""How many times as fast another way has to be, so that one is not looked at any further."""


@frozen
class Figure:
    """What was measured in one turn or several, with its noise; `estimate` is their median."""

    turns: tuple[tuple[float, float, float], ...]  # estimate, low and high of each
    # The median of their intervals, as bench has them, or the middle half of the turns if that is
    # wider.
    low: float
    high: float
    estimate: float = report_field("", form=lambda one: f"{one:.0f}" if one > 100 else f"{one:.3g}")

    @classmethod
    def add(
        cls, before: "Figure | None", estimate: float, low: float = inf, high: float = -inf
    ) -> "Figure":
        """A figure with one more turn; without an interval, that is the estimate alone."""
        turn = estimate, min(low, estimate), max(high, estimate)
        turns = (*(before.turns if before else ()), turn)
        middles, lows, highs = (sorted(one) for one in zip(*turns, strict=True))
        quarters = quantiles(middles * 2, n=4, method="inclusive")
        low, high = min(quarters[0], median(lows)), max(quarters[2], median(highs))
        return cls(turns, low, high, median(middles))


@frozen
class BoxAgreement:
    """The boxes of a way beside those of the reference, as verify counts them."""

    equal: float = report_field("equal", "%")  # share that has a counterpart within the tolerance
    lost: int = report_field("lost")
    new: int = report_field("new")
    largest_score_difference: float = report_field("score", form="{:.2g}".format)  # of all pairs
    largest_corner_difference: float = report_field("pixels", form="{:.2g}".format)


@frozen
class Way:
    """A way to run a model; what is None suits the device."""

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
    """What is known of a way, filled in as it is tried; None is what was not measured."""

    name: str = report_field("way")
    way: Way = report_field()
    many: Figure | None = report_field(
        "/s", default=None
    )  # pictures a second, from files to records
    one: Figure | None = report_field("one s", default=None)  # seconds for one picture
    start: Figure | None = report_field(
        "start s", default=None
    )  # for a process, up to its first record
    host_peak_bytes: int | None = report_field("memory", "B", default=None)
    device_bytes: int | None = None
    boxes: BoxAgreement | None = report_field(default=None)  # None for the reference
    map50_95: float | None = report_field("mAP", form="{:.3f}".format, default=None)
    keeps_boxes: bool = False  # they agree within the tolerance
    batch: int | None = None  # that was used for many pictures
    workers: int | None = None
    error: str | None = None  # why it, or the rest of it, was not measured


def contenders(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """The rows that keep the boxes and may be the fastest, as far as the noise tells."""
    found = [(row, getattr(row, kind)) for row in rows if row.keeps_boxes and getattr(row, kind)]
    best = _fastest([figure for _, figure in found], kind)
    least, most = _span(best)
    spans = [(row, *_span(figure)) for row, figure in found]
    return [row for row, low, high in spans if low <= most and high >= least]


def _span(figure: Figure) -> tuple[float, float]:
    """Between what it may be; of a single turn without an interval, nobody knows the noise."""
    if figure.low < figure.high:
        return figure.low, figure.high
    return figure.estimate / REACH, figure.estimate * REACH


def equals(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """Those of them whose figure is within the noise of the fastest; the simplest comes first.

    A noisy figure does not make its own way a tie: it is compared with the fastest one's noise.
    """
    found = contenders(rows, kind)
    best = _fastest([getattr(row, kind) for row in found], kind)
    return [row for row in found if best.low <= getattr(row, kind).estimate <= best.high]


def _fastest(figures: Sequence[Figure], kind: str) -> Figure:
    choose = max if kind == "many" else min
    return choose(figures, key=lambda one: one.estimate)


@frozen
class Choice:
    """The fastest way that keeps the boxes, for one of KINDS; of equals the simplest."""

    kind: str
    way: str
    gain: float  # how many times as fast as the reference
    tied: tuple[str, ...]  # ways that are as fast, within the noise
    options: dict[str, str | int | bool]  # of predict
    command: str


@frozen
class TuneReport:
    """All ways that were tried; the first is the reference, and simpler ones come first."""

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
    """Lay out a report: the ways, those that did not work, and the choices."""
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
