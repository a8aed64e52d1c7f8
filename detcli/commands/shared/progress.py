"""What a run says about itself: progress while it runs, one line in the end."""

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from detcli.commands.shared.messages import report, say
from detcli.model.hub_cache import Show
from detcli.model.zoo import LocatedModel, find
from detcli.timing import Stage, StageTimes

if TYPE_CHECKING:
    from detcli.record import Record


class Tally:
    """Counts what was done; says what failed, and in the end how much there was.

    Attributes:
        failed: Inputs without detections.
        found: How often each class was found.
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
            self._pictures += record.origin.clip is None
            self._frames += record.origin.clip is not None
            self.found.update(name for *_, name in record.detections or ())

    @property
    def done(self) -> int:
        """Inputs so far."""
        return self._pictures + self._frames + self.failed

    def status(self) -> str:
        """How far it is, for a progress bar."""
        rate = self.done / (time.perf_counter() - self._start)
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{rate:.1f}/s{failed}"

    def summarise(self, stages: StageTimes, dropped: int) -> None:
        """Say how much was done, and where the time went."""
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
    """Each stage's part of the work; threads work at the same time, so it is not the clock's."""
    total = sum(stages.values()) or 1.0
    return ", ".join(f"{one} {stages[one] / total:.0%}" for one in Stage if one in stages)


@contextlib.contextmanager
def progress(
    tally: Tally, total: Callable[[], int | None], *, wanted: bool
) -> Iterator[Callable[[], None]]:
    """Show progress on stderr while the block runs, if that is a terminal of its own.

    Results on a terminal are progress enough, and the two would mix.

    Args:
        tally: What was done so far.
        total: Says how many inputs there are, as far as is known.
        wanted: Not where the user asked for silence.

    Yields:
        A function to call when something was done.
    """
    shares_terminal = sys.stdout is not None and sys.stdout.isatty()
    if not wanted or sys.stderr is None or not sys.stderr.isatty() or shares_terminal:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    status = TextColumn("{task.fields[status]}")
    columns = (BarColumn(), MofNCompleteColumn(), status, TimeLeftColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total(), status="")
        yield lambda: bar.update(task, completed=tally.done, total=total(), status=tally.status())


@contextlib.contextmanager
def count_on_stderr(
    total: Callable[[], int | None], *, wanted: bool
) -> Iterator[Callable[[], None]]:
    """Show on stderr how much of a longer work is done, if that is a terminal.

    For commands that write nothing to standard output meanwhile: what is shown is gone before.

    Args:
        total: Says how much there is, as far as is known.
        wanted: Not where the user asked for silence.

    Yields:
        A function to call when something was done.
    """
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeLeftColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total())
        yield lambda: bar.update(task, advance=1, total=total())


log = logging.getLogger(__name__)


def find_model(model: str, *, half: bool = False) -> LocatedModel:
    """A model's file; `detcli.model.zoo.find` for the command line.

    Args:
        model: Path or name, as the user gave it.
        half: The float16 file of a model that goes by name and has one.

    Raises:
        ModelError: There is neither a file nor a model of that name, or it cannot be fetched.
        OutputError: The cache cannot be written to.
    """
    with fetching() as show:
        return find(model, half=half, show=show)


@contextlib.contextmanager
def fetching() -> Iterator[Show | None]:
    """A bar on stderr while the block fetches, if that is a terminal and nobody asked for silence.

    Yields:
        What moves the bar; it appears when that is first called. None for no bar.
    """
    silent = not log.isEnabledFor(logging.WARNING)  # what --quiet sets
    if silent or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as stack:
        show = None

        def advance(done: int, total: int | None) -> None:
            nonlocal show
            if show is None:
                show = _bar(stack)
            show(done, total)

        yield advance


def _bar(stack: contextlib.ExitStack) -> Show:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeLeftColumn())
    console = Console(stderr=True)
    bar = stack.enter_context(Progress(*columns, console=console, transient=True))
    task = bar.add_task("", total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
