"""What tune found: the rows, the choice, the chart, and the tables of the user's file."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from detcli.cli.defaults import FILE_VARIABLE, TUNED, defaults_file
from detcli.cli.report import report_field, styled_line, table
from detcli.config.values import Tolerance
from detcli.core import frozen
from detcli.core.errors import OutputError, UsageError
from detcli.core.text import escape_unprintable, short_number
from detcli.storage.files import make_folder, open_output, read_text, write_output

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = {
    "many": "many images",
    "one": "one image after the other",
    "start": "one image, with the start",
}
"""What a configuration is chosen for, and the words for it in messages."""

REACH = 1.25
"""How many times as fast another one has to be for a configuration to be looked at no further."""


def _format_estimate(estimate: float) -> str:
    """Format a figure with three digits, or as a whole number if it is above 100."""
    if estimate > 100:
        return f"{estimate:.0f}"
    return f"{estimate:.3g}"


@frozen
class Measurement:
    """A figure of a configuration, such as images a second, measured in one round or several.

    Attributes:
        turns: Estimate, low and high of each round, where low and high are the bounds of the
            confidence interval that bench gives.
        low: The median of the rounds' low bounds, or the lower quartile of their estimates if that
            is lower.
        high: The same for the upper side.
        estimate: The median of the rounds' estimates.
    """

    turns: tuple[tuple[float, float, float], ...]
    low: float
    high: float
    estimate: float = report_field("", form=_format_estimate)

    @classmethod
    def after_round(
        cls,
        earlier: "Measurement | None",
        estimate: float,
        low: float | None = None,
        high: float | None = None,
    ) -> "Measurement":
        """Make the measurement of the earlier rounds and one more.

        There is noise within a round, which the bounds of its confidence interval show, and noise
        between rounds, which the quartiles of their estimates show. The interval of the result is
        wide enough for both.

        Args:
            earlier: The earlier rounds; None for the first.
            estimate: The figure of this round.
            low: The lower bound of its confidence interval; without one, it is the estimate.
            high: The upper bound; without one, it is the estimate as well.
        """
        if low is None:
            low = estimate
        if high is None:
            high = estimate
        # The bounds enclose the estimate, even if those of the interval do not.
        rounds = [(estimate, min(low, estimate), max(high, estimate))]
        if earlier is not None:
            rounds = [*earlier.turns, *rounds]
        estimates, low_bounds, high_bounds = zip(*rounds, strict=True)

        # `quantiles` needs at least two values, and after the first round there is only one. So it
        # gets each estimate twice.
        doubled_estimates = [*estimates, *estimates]
        lower_quartile, _, upper_quartile = quantiles(doubled_estimates, n=4, method="inclusive")
        return cls(
            tuple(rounds),
            low=min(lower_quartile, median(low_bounds)),
            high=max(upper_quartile, median(high_bounds)),
            estimate=median(estimates),
        )


@frozen
class BoxAgreement:
    """The boxes of a configuration beside those of the reference, as verify counts them."""

    equal: float = report_field("equal", "%")  # share that has a counterpart within the tolerance
    lost: int = report_field("lost")
    new: int = report_field("new")
    largest_score_difference: float = report_field("score", form="{:.2g}".format)  # of all pairs
    largest_corner_difference: float = report_field("pixels", form=partial(short_number, digits=2))


@frozen
class Configuration:
    """A configuration in which a model runs: a device, a precision, and sizes.

    None for `batch` or `workers` leaves the number to the device. With `fast_cores`, it runs on the
    fastest kind of cores only. With `int8`, another model runs,
    which is the conversion of the first to 8 bits.
    """

    device: str
    half: bool = False  # in half precision
    int8: bool = False  # the model converted to 8 bits
    batch: int | None = None  # None leaves it to the device
    workers: int | None = None  # None leaves it to the device
    fast_cores: bool = False  # on the fastest kind of cores only

    def __str__(self) -> str:
        """Return its display name, as in "cuda:0 half batch 4"."""
        words = [self.device]
        if self.half:
            words.append("half")
        if self.int8:
            words.append("int8")
        if self.batch:
            words.append(f"batch {self.batch}")
        if self.workers:
            words.append(f"workers {self.workers}")
        if self.fast_cores:
            words.append("fast cores")
        return " ".join(words)

    @property
    def is_plain(self) -> bool:
        """Whether batch and workers are what suits the device."""
        return self.batch is None and self.workers is None

    @property
    def options(self) -> dict[str, str | int | bool]:
        """The options of predict that choose it, without the model: {"device": "cpu", "batch": 4}.

        Those that would have their default are left out.
        """
        options: dict[str, str | int | bool] = {}
        for name in ("device", "half", "batch", "workers", "fast_cores"):
            value = getattr(self, name)
            if value:
                options[name] = value
        return options

    @property
    def words(self) -> list[str]:
        """The same options as they are typed: ["--device", "cpu", "--half"]."""
        words = []
        for name, value in self.options.items():
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:  # a flag
                words.append(str(value))
        return words


@dataclass(slots=True)
class TuneRow:
    """What is known about a configuration, filled in as it is tried.

    Attributes:
        name: The display name of the configuration.
        way: The configuration.
        many: Images a second, from files to records, when there are many.
        one: Seconds for one image, when they come one after the other.
        start: Seconds from the start of a process to its first record.
        host_peak_bytes: The peak memory of a process.
        device_bytes: Its peak memory on a GPU.
        boxes: How its boxes differ from those of the reference; None for the reference itself.
        map50_95: COCO's mAP, if there is labelled data.
        keeps_boxes: Whether the boxes agree with the reference's, within the tolerance.
        batch: The size of batches that was used for `many`.
        workers: The number of workers that was used for it.
        error: Why the configuration, or the rest of it, was not measured.

    All other figures are None if they were not measured.
    """

    name: str = report_field("way")
    way: Configuration = report_field()
    many: Measurement | None = report_field("/s", default=None)
    one: Measurement | None = report_field("one s", default=None)
    start: Measurement | None = report_field("start s", default=None)
    host_peak_bytes: int | None = report_field("memory", "B", default=None)
    device_bytes: int | None = None
    boxes: BoxAgreement | None = report_field(default=None)
    map50_95: float | None = report_field("mAP", form="{:.3f}".format, default=None)
    keeps_boxes: bool = False
    batch: int | None = None
    workers: int | None = None
    error: str | None = None

    def measurement_of(self, kind: str) -> Measurement:
        """Return the figure of one of KINDS, which has been measured."""
        measurement: Measurement = getattr(self, kind)
        return measurement


def possibly_fastest(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """Select the configurations that may be the fastest, given the noise of the measurements.

    These are the one with the best figure, and those whose interval overlaps with its interval.
    Only configurations that keep the boxes, and for which the figure was measured, are considered.

    Args:
        rows: The configurations.
        kind: The figure to compare: "many", "one" or "start".
    """
    eligible_rows = [row for row in rows if row.keeps_boxes and getattr(row, kind) is not None]
    best = _interval(_fastest(eligible_rows, kind))
    overlapping_rows = []
    for row in eligible_rows:
        interval = _interval(row.measurement_of(kind))
        if interval.low <= best.high and interval.high >= best.low:
            overlapping_rows.append(row)
    return overlapping_rows


class _Interval(NamedTuple):
    """The least and the greatest value that a measured figure may really have."""

    low: float
    high: float


def _interval(measurement: Measurement) -> _Interval:
    """Return the interval of a measurement.

    If there was a single round without a confidence interval, its noise is unknown, and a factor of
    REACH to both sides is assumed.
    """
    if measurement.low < measurement.high:
        return _Interval(measurement.low, measurement.high)
    return _Interval(measurement.estimate / REACH, measurement.estimate * REACH)


def equally_fast(rows: Sequence[TuneRow], kind: str) -> list[TuneRow]:
    """Select the configurations whose estimate is within the interval of the fastest one.

    `possibly_fastest` selects more: those whose interval overlaps with that of the fastest. Here a
    configuration must not tie only because its own measurement was noisy.

    Args:
        rows: The configurations, the simpler before others.
        kind: The figure to compare: "many", "one" or "start".

    Returns:
        The fastest and its equals, the simplest first.
    """
    candidates = possibly_fastest(rows, kind)
    best = _fastest(candidates, kind)
    equal_rows = []
    for row in candidates:
        estimate = row.measurement_of(kind).estimate
        if best.low <= estimate <= best.high:
            equal_rows.append(row)
    return equal_rows


def _fastest(rows: Sequence[TuneRow], kind: str) -> Measurement:
    """Return the best figure: the most images a second for "many", else the fewest seconds."""
    measurements = [row.measurement_of(kind) for row in rows]
    choose = min
    if kind == "many":
        choose = max
    return choose(measurements, key=lambda measurement: measurement.estimate)


def speed_up(row: TuneRow, reference: TuneRow, kind: str) -> float:
    """Compute how many times as fast as the reference a configuration is.

    Args:
        row: The configuration.
        reference: The reference.
        kind: The figure to compare: "many", "one" or "start".
    """
    figure = row.measurement_of(kind).estimate
    reference_figure = reference.measurement_of(kind).estimate
    ratio = figure / reference_figure
    if kind == "many":
        return ratio
    return 1 / ratio  # Fewer seconds are better.


@frozen
class Choice:
    """The fastest configuration that keeps the boxes, for one of KINDS; the simplest of equals."""

    kind: str  # many images, one after the other, or the start of a process
    way: str  # the configuration, by its name in the rows
    gain: float  # how many times as fast as the reference
    tied: tuple[str, ...]  # configurations that are as fast, within the noise
    options: dict[str, str | int | bool]  # of predict
    command: str  # what to type


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
    """Lay out a report: the measured configurations, those that did not work, and the choices.

    For each purpose, the choice is the name of a configuration, with a remark on how much faster
    than the reference it is and which others are as fast, and the command that uses it.
    """
    yield styled_line((report.model, "bold"), (f" on {report.machine}", "dim"))
    measured_rows = [row for row in report.rows if row.one or row.many]
    yield table(measured_rows)
    for row in report.rows:
        if row.error is not None:
            yield styled_line((f"{row.name}: ", "yellow"), (row.error, ""))
    yield from _explain_columns(report)

    reference_name = report.rows[0].name
    for choice in report.choices:
        remark = ""
        if choice.way != reference_name:
            remark += f", {choice.gain:.2f} times as fast as {reference_name}"
        if choice.tied:
            remark += f"; as fast, within the noise: {', '.join(choice.tied)}"
        purpose = KINDS[choice.kind]
        yield styled_line((f"{purpose}: ", ""), (choice.way, "green"), (remark, "dim"))
        yield styled_line((f"  {choice.command}", "bold"))


def _explain_columns(report: TuneReport) -> Iterator["RenderableType"]:
    """Yield the lines that say what the columns of the table are."""
    yield styled_line(
        ("/s: many images; one s: one after the other; start s: with the start", "dim")
    )
    tolerance = report.tolerance
    pairs = f"pairs within {tolerance.score:g} in score and {tolerance.corner:g} pixels"
    required_share = 1 - tolerance.boxes
    yield styled_line(
        (f"equal: {pairs}, above {report.conf:g}; {required_share:.1%} required", "dim")
    )


# The user's file


def writable_defaults() -> Path:
    """Return the path of the user's file of defaults, after a check that it can be written.

    The file need not exist yet, and is not changed. Its folder is created if it is missing.

    Raises:
        UsageError: There is no such file, as the user has no home folder or has turned the file off
            by an environment variable.
        OutputError: The file cannot be written.
    """
    path = defaults_file()
    if path is None or str(path) == os.devnull:
        hint = f"name a file with {FILE_VARIABLE}, or leave out --write"
        raise UsageError("--write needs a file of defaults, and there is none", hint)
    make_folder(path.parent)
    open_output(path).discard()  # raises the OutputError
    return path


def write_defaults(path: Path, report: TuneReport) -> None:
    """Write the choices for a model on this machine into the user's file of defaults.

    They are a table of TOML, which replaces the one that an earlier call has written:

        [tuned.HASH_OF_THE_MODEL."NAME OF THE MACHINE"]  # yolov10n
        many = { device = "cpu", workers = 2 }

    The rest of the file stays as it is, with its comments and its layout.

    Raises:
        OutputError: The file cannot be written, or the table cannot be put into it. The latter is
            the case if the file has something else under that name, such as a number, or the table
            in a notation that is not replaced, such as an inline table. Then the hint says what to
            remove, and has the table to add by hand.
    """
    text = ""
    if path.exists():
        text = read_text(path)

    header = f"[{TUNED}.{report.sha256}.{_toml_value(report.machine)}]"
    table_text = _table_of_choices(header, report)
    new_text = _with_table(text, header, table_text)
    if not _has_only_added_choices(text, new_text, report):
        hint = (
            f"remove what is in their place under [{TUNED}], and add them yourself:\n{table_text}"
        )
        raise OutputError(f"cannot add tables to {path}", hint)
    write_output(path, new_text.encode())


def _table_of_choices(header: str, report: TuneReport) -> str:
    """Format the choices of a report as a TOML table, without a line break at its end.

    Args:
        header: The name of the table in brackets.
        report: The report.
    """
    table_lines = [f"{header}  # {escape_unprintable(report.model)}"]
    for choice in report.choices:
        assignments = [f"{name} = {_toml_value(value)}" for name, value in choice.options.items()]
        table_lines.append(f"{choice.kind} = {{ {', '.join(assignments)} }}")
    return "\n".join(table_lines)


def _has_only_added_choices(text: str, new_text: str, report: TuneReport) -> bool:
    """Return whether a new version of the user's file only adds a report's choices to the old one.

    The text was edited without being parsed, so the contents of both are compared.

    Args:
        text: The text of the file so far.
        new_text: The text with the table of choices.
        report: The report with the choices.
    """
    expected_content = tomllib.loads(text)
    choices = {choice.kind: choice.options for choice in report.choices}
    try:
        tables_of_model = expected_content.setdefault(TUNED, {}).setdefault(report.sha256, {})
        tables_of_model[report.machine] = choices
        new_text.encode()
        return tomllib.loads(new_text) == expected_content
    except (ValueError, AttributeError, TypeError):
        # The new version cannot be encoded or is not TOML, or the old one has a value, such as a
        # number, where a table has to be.
        return False


def _with_table(text: str, header: str, table_text: str) -> str:
    """Add a table to the end of a TOML file, in place of an earlier table with the same header.

    Args:
        text: The text of the file.
        header: The line that the table begins with, up to the closing bracket.
        table_text: The table with its header, without a line break at its end.

    Returns:
        The new text of the file.
    """
    header_line = rf"^{re.escape(header)}.*\n"
    lines_up_to_next_header = r"(?:(?!\[).*\n?)*"
    earlier_table = header_line + lines_up_to_next_header
    remaining_text = re.sub(earlier_table, "", text, flags=re.MULTILINE).rstrip()
    new_text = f"{table_text}\n"
    if remaining_text:
        new_text = f"{remaining_text}\n\n{table_text}\n"
    return new_text.lstrip("\n")


def _toml_value(value: str | float) -> str:
    """Format a value for TOML, which has strings, numbers, true and false as in JSON."""
    return json.dumps(value, ensure_ascii=False)
