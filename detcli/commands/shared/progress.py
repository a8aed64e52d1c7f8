"""Progress on stderr while a run or a download goes on."""

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from detcli.commands.shared.messages import say
from detcli.text import is_terminal, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import ProgressColumn

    from detcli.model.hub import Show

log = logging.getLogger(__name__)


WIDE = 60
"""Columns that a terminal needs for a bar beside the numbers."""

BAR_WIDTH = 20

LINE_PERIOD_S = 10.0
"""How often a terminal that cannot draw a bar gets a line."""


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
