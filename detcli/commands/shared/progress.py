"""Progress on stderr while a run or a download goes on, and a summary at the end."""

import contextlib
import functools
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from detcli.commands.shared.messages import is_terminal, report, say
from detcli.model.hub_cache import Show
from detcli.timing import Stage, StageTimes

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from detcli.record import Record

log = logging.getLogger(__name__)


class Tally:
    """Counts inputs and detections, reports failures, and sums up at the end.

    Attributes:
        failed: Number of inputs that failed.
        found: Number of detections of each class.
    """

    def __init__(self, *, quiet: bool, errors_shown: bool) -> None:
        self.failed = 0
        self.found: Counter[str] = Counter()
        self._quiet = quiet
        self._errors_shown = errors_shown
        self._start = time.perf_counter()
        self._pictures = self._frames = 0

    def add(self, record: "Record") -> None:
        """Count a record."""
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
            self.found.update(name for *_, name in record.detections or ())

    @property
    def done(self) -> int:
        """Number of inputs so far."""
        return self._pictures + self._frames + self.failed

    def status(self) -> str:
        """Rate and failures, for a progress bar."""
        rate = self.done / (time.perf_counter() - self._start)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.1f}/s{failed}"

    def summarise(self, stages: StageTimes, dropped: int) -> None:
        """Print how much was done, and where the time went."""
        if self._quiet:
            return
        seconds = time.perf_counter() - self._start
        counts = [_count(self._frames, "frame")] if self._frames else []
        if self._pictures or not counts:
            counts.insert(0, _count(self._pictures, "picture"))
        counts.append(_count(self.found.total(), "detection"))
        if self.failed:
            counts.append(f"{self.failed} failed")
        if dropped:
            counts.append(f"{dropped} frames dropped")
        line = f"{', '.join(counts)}, {seconds:.2f} s"
        if self.done > 1:
            line += f", {self.done / seconds:.1f}/s; {_shares(stages)}"
        say(line)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shares(stages: StageTimes) -> str:
    """Each stage's share of the work, which threads do in parallel, not of the elapsed time."""
    total = sum(stages.values()) or 1.0
    return ", ".join(f"{one} {stages[one] / total:.0%}" for one in Stage if one in stages)


@contextlib.contextmanager
def progress(
    total: Callable[[], int | None], *, wanted: bool, status: Callable[[], str] = lambda: ""
) -> Iterator[Callable[[], None]]:
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
        yield lambda: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn

    with _bar(MofNCompleteColumn(), TextColumn("{task.fields[status]}"), total=total()) as update:
        yield lambda: update(advance=1, total=total(), status=status())


@contextlib.contextmanager
def fetching() -> Iterator[Show | None]:
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

            return stack.enter_context(_bar(DownloadColumn(), TransferSpeedColumn(), total=None))

        yield lambda done, total: open_bar()(completed=done, total=total)


@contextlib.contextmanager
def _bar(*columns: "ProgressColumn", total: int | None) -> Iterator[Callable[..., None]]:
    """A bar on stderr that goes when the block ends; yields what updates it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), *columns, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield functools.partial(bar.update, bar.add_task("", total=total, status=""))
