"""Progress on stderr while a run or a download goes on, and a summary at the end."""

import contextlib
import functools
import logging
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from detcli.commands.shared.messages import is_terminal, report, say
from detcli.text import printable
from detcli.timing import Stage, StageTimes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import ProgressColumn

    from detcli.model.hub import Show
    from detcli.record import Record
    from detcli.shards.work import Counts

log = logging.getLogger(__name__)


SHOWN_CLASSES = 5
"""How many classes the summary counts one by one."""

WIDE = 60
"""Columns that a terminal needs for a bar beside the numbers."""

BAR_WIDTH = 20

LINE_PERIOD_S = 10.0
"""How often a terminal that cannot draw a bar gets a line."""


@dataclass(slots=True)
class _StreamTally:
    """What came of a live source.

    Attributes:
        first_s: Time of its first frame that was used; None without any.
        last_s: Time of its last one.
    """

    frames: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def add(self, time_s: float) -> None:
        """Count a frame."""
        self.frames += 1
        self.last_s = time_s
        if self.first_s is None:
            self.first_s = time_s

    def line(self, dropped: int) -> str:
        """Frames, rate, and how many frames were dropped."""
        parts = [count(self.frames, "frame")]
        if self.first_s is not None and self.last_s > self.first_s:
            parts.append(f"{(self.frames - 1) / (self.last_s - self.first_s):.1f}/s")
        if dropped:
            parts.append(f"{dropped} dropped")
        return ", ".join(parts)


class Tally:
    """Counts inputs and detections, reports failures, and sums up at the end.

    Attributes:
        failed: Number of inputs that failed.
        skipped: Number of inputs that an earlier run has done.
        found: Number of detections of each class.
        places: Number of detections in each zone, by its name and the class.
        numbered: Number of inputs that are frames of a video or a stream.
    """

    def __init__(self, *, quiet: bool, errors_shown: bool) -> None:
        self.failed = self.skipped = self.numbered = 0
        self.found: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self._quiet = quiet
        self._errors_shown = errors_shown
        self._start = time.perf_counter()
        self._pictures = self._frames = 0
        self._streams: defaultdict[str, _StreamTally] = defaultdict(_StreamTally)

    def add(self, record: "Record") -> None:
        """Count a record."""
        origin = record.origin
        self.numbered += origin.frame is not None
        if origin.time is not None and origin.time_s is not None:  # a frame of a live source
            self._streams[origin.source].add(origin.time_s)
        if record.error is not None:
            self.failed += 1
            if not self._quiet and not self._errors_shown:
                report(record.error, record.origin.source)
        else:
            if not self._quiet and not self._errors_shown:
                for warning in record.warnings:
                    say(f"{record.origin.source}: {warning}")
            self._pictures += record.origin.clip is None
            self._frames += record.origin.clip is not None
            if record.detections is not None:
                self.found.update(record.detections.class_name)
                self.places.update(record.detections.places())

    def include(self, counts: "Counts") -> None:
        """Add what became of the inputs of a shard."""
        self.failed += len(counts.failed)
        if not self._quiet:
            for source, error in counts.failed:
                report(error, source)
            for source, warning in counts.warned:
                say(f"{source}: {warning}")
        self._pictures += counts.pictures
        self._frames += counts.frames
        self.found += counts.found
        self.places += counts.places

    @property
    def done(self) -> int:
        """Number of inputs so far."""
        return self._pictures + self._frames + self.failed

    def status(self) -> str:
        """Detections, failures and rate, for a progress bar."""
        counts = [count(self.found.total(), "detection")]
        if self.failed:
            counts.append(f"{self.failed} failed")
        rate = self.done / (time.perf_counter() - self._start)
        return ", ".join([*counts, f"{rate:.1f}/s"])

    def summarise(self, stages: StageTimes | None = None, dropped: int = 0) -> None:
        """Print how much was done, where the time went, and what was found."""
        if self._quiet:
            return
        seconds = time.perf_counter() - self._start
        counts = [count(self._frames, "frame")] if self._frames else []
        if self._pictures or not counts:
            counts.insert(0, count(self._pictures, "picture"))
        counts.append(count(self.found.total(), "detection"))
        if self.failed:
            counts.append(f"{self.failed} failed")
        if self.skipped:
            counts.append(f"{self.skipped} skipped")
        if dropped:
            counts.append(f"{count(dropped, 'frame')} dropped")
        line = f"{', '.join(counts)}, {seconds:.2f} s"
        if self.done > 1:
            line += f", {self.done / seconds:.1f}/s"
            line += f"; {_shares(stages)}" if stages is not None else ""
        say(line)
        if self.done > 1 and self.found:
            say(f"found {_most(self.found)}")
        for place in dict.fromkeys(place for place, _ in sorted(self.places)):
            inside = Counter(
                {name: n for (where, name), n in self.places.items() if where == place}
            )
            line, _, side = place.partition(" ")
            say(f"{f'crossed {line} to the {side}' if side else f'in {place}'}: {_most(inside)}")

    def list_streams(self, dropped: Counter[str]) -> None:
        """Print frames and rate of each live source, if there are several.

        Args:
            dropped: Frames that newer ones replaced, of each that was watched.
        """
        if not self._quiet and len(dropped) > 1:
            for source, number in dropped.items():
                say(f"{source}: {self._streams[source].line(number)}")


def count(number: int, what: str) -> str:
    """A number of things: `1 frame`, `2 frames`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _most(found: Counter[str]) -> str:
    """The most frequent classes, and how many others there are."""
    shown = [f"{count} {name}" for name, count in found.most_common(SHOWN_CLASSES)]
    more = len(found) - len(shown)
    rest = f" and {more} more class{'' if more == 1 else 'es'}" if more else ""
    return f"{', '.join(shown)}{rest}"


def _shares(stages: StageTimes) -> str:
    """Each stage's share of the work, which threads do in parallel, not of the elapsed time."""
    total = sum(stages.values()) or 1.0
    return ", ".join(f"{one} {stages[one] / total:.0%}" for one in Stage if one in stages)


class Advance(Protocol):
    """Moves a bar on by one input."""

    def __call__(self, name: str = "") -> None:
        """Count an input with this name."""


@contextlib.contextmanager
def progress(
    total: Callable[[], int | None], *, wanted: bool, status: Callable[[], str] = lambda: ""
) -> Iterator[Advance]:
    """Show progress on stderr while the block runs, if that is a terminal.

    The bar disappears at the end, so results may be written to stdout afterwards.

    Args:
        total: Returns the number of inputs; None while it is unknown.
        wanted: False with --quiet, or if results appear on the terminal meanwhile.
        status: Returns a text to show beside the bar.

    Yields:
        A function to call after each input.
    """
    if not wanted or not is_terminal(sys.stderr):
        yield lambda _="": None
        return
    line = _BarText(total, status)
    if os.environ.get("TERM", "").lower() in {"dumb", "unknown"}:
        yield line.advance
        return
    from rich.progress import RenderableColumn

    with _bar(RenderableColumn(line)) as update:
        line.update = update
        yield line.advance


class _BarText:
    """What stands beside a bar: numbers, status, and as much as fits of the last input's name."""

    def __init__(self, total: Callable[[], int | None], status: Callable[[], str]) -> None:
        self._total, self._status = total, status
        self._done, self._name = 0, ""
        self._said_s = time.monotonic()
        self.update: Callable[..., None] | None = None  # moves the bar; without one, lines are said

    def advance(self, name: str = "") -> None:
        """Count an input."""
        self._done, self._name = self._done + 1, name
        if self.update is not None:
            self.update(completed=self._done, total=self._total())
        elif time.monotonic() - self._said_s > LINE_PERIOD_S:
            self._said_s = time.monotonic()
            say(f"{self._numbers()}  {self._name}")

    def _numbers(self) -> str:
        total = self._total()
        return f"{self._done}/{'?' if total is None else total}  {self._status()}".rstrip()

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> Iterator["RenderableType"]:
        from rich.text import Text

        numbers = self._numbers()
        name = Text(printable(self._name.rpartition("/")[2] or self._name))
        room = options.max_width - len(numbers) - 2
        while name and name.cell_len > room:  # the end of a name tells more than its beginning
            name = Text("…") + name[2:] if len(name) > 2 else Text()
        yield Text(f"{numbers}  ", no_wrap=True, overflow="ellipsis", end="") + name


@contextlib.contextmanager
def fetching() -> "Iterator[Show | None]":
    """Show downloads on stderr while the block runs, if that is a terminal and without --quiet.

    Yields:
        A function that moves the bar, which appears with the first call; None for no bar.
    """
    quiet = not log.isEnabledFor(logging.WARNING)
    if quiet or not is_terminal(sys.stderr):
        yield None
        return
    with contextlib.ExitStack() as stack:

        @functools.cache
        def open_bar() -> Callable[..., None]:
            from rich.progress import DownloadColumn, TransferSpeedColumn

            return stack.enter_context(_bar(DownloadColumn(), TransferSpeedColumn()))

        yield lambda done, total: open_bar()(completed=done, total=total)


@contextlib.contextmanager
def _bar(*columns: "ProgressColumn") -> Iterator[Callable[..., None]]:
    """A bar on stderr that goes when the block ends; yields what updates it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    # Messages appear above the bar, and are wrapped by the terminal, so that they can be copied.
    console = Console(stderr=True, soft_wrap=True, width=_terminal_width())
    if console.width >= WIDE:
        columns = (BarColumn(BAR_WIDTH), TimeRemainingColumn(compact=True), *columns)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        yield functools.partial(bar.update, bar.add_task("", total=None))


def _terminal_width() -> int | None:
    """Columns of stderr's terminal; rich would ask descriptor 2, which libraries may have."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return None
    return None if "COLUMNS" in os.environ else columns or None
