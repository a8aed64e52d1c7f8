"""Messages on stderr: errors, warnings, the log that -v shows, and bars. Results go to stdout.

None of them contains control codes, which names can hold, or the password of an address.
"""

import contextlib
import functools
import io
import logging
import os
import re
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from detcli.core.errors import DetcliError, DetcliNote, DetcliWarning
from detcli.core.text import (
    escape_unprintable,
    format_kinds,
    is_terminal,
    kind_of,
    public_text,
    shell_line,
    wrap_for,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import ProgressColumn

    from detcli.model.hub import Show
    from detcli.run.counts import Counts
    from detcli.sink.journal import ShowReading


log = logging.getLogger(__name__)

MAX_PRINTED = 20
"""How many errors and warnings of inputs a run prints one by one."""

PATIENCE_S = 1.0
"""A message waits this long for the reader of stderr, once; then messages are dropped."""

MAX_MESSAGE = 8000
"""Characters; a damaged model can have names of any length."""

MESSAGE_AND_HINT = r"^detcli: (?:error: )?(.+)(?:\n  hint: (.+))?"

COLOUR_CODES = {"error:": "1;31", "warning:": "33", "hint:": "32"}
"""The parameters of the escape sequence in which a terminal shows each label: bold red, yellow and
green."""

TERMINAL_UNIT = 256  # bytes: Linux gives the room in a terminal's buffer in steps of this size


def protect_stderr() -> None:
    """Replace `sys.stderr` with a stream that drops what cannot be written.

    So the run goes on even if what reads its messages has ended, or has stopped reading.
    """
    if sys.platform != "win32":
        # If a standard descriptor is closed, the next file to be opened would get its number, and
        # native libraries would write their messages into that file. So the null device gets it.
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr = io.TextIOWrapper(
        _LossyStream(2), encoding=encoding, errors="backslashreplace", line_buffering=True
    )


class _LossyStream(io.RawIOBase):
    """Writes to a copy of a descriptor, and drops what the reader does not take in time."""

    name = "<stderr>"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._patience_s = PATIENCE_S
        # A write of this many bytes does not block if `select` reports room.
        self._unit_bytes = getattr(select, "PIPE_BUF", 512)
        if self.isatty():
            self._unit_bytes = TERMINAL_UNIT

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        rest = memoryview(data)
        size = len(rest)
        with contextlib.suppress(OSError):
            while rest and self._wait_for_room():
                written_bytes = os.write(self._descriptor, rest[: self._unit_bytes])
                rest = rest[written_bytes:]
        return size  # what is dropped counts as written, or Python would try again

    def _wait_for_room(self) -> bool:
        """Wait until `_unit_bytes` can be written without blocking; False if that takes too long.

        It waits PATIENCE_S for the reader. After a wait that was too long, it no longer waits:
        calls return False at once, until one finds that the reader has made room.
        """
        if sys.platform == "win32":
            return True
        _, writable, _ = select.select([], [self._descriptor], [], self._patience_s)
        if not writable:
            self._patience_s = 0  # `select` then only looks, and does not wait
            return False
        self._patience_s = PATIENCE_S
        return True


def _divert_libraries(*, to_log: bool) -> None:
    """Redirect what native libraries print to stderr, descriptor 2, away from the terminal.

    They print warnings about damaged images, for example, which the records report anyway. The
    messages of detcli still arrive: `protect_stderr` has made a copy of the descriptor for them.
    If it was not called, nothing is redirected.

    Args:
        to_log: Whether a thread puts each line into the log. Otherwise the lines are dropped.
    """
    is_stderr_protected = isinstance(getattr(sys.stderr, "buffer", None), _LossyStream)
    if not is_stderr_protected:
        return
    if to_log:
        read_end, write_end = os.pipe()
        if sys.platform != "win32":
            # A library that prints may hold the GIL, which the thread needs to empty the pipe: a
            # full pipe must not block it.
            os.set_blocking(write_end, False)
        threading.Thread(target=_log_lines, args=[read_end], daemon=True).start()
    else:
        write_end = os.open(os.devnull, os.O_WRONLY)
    os.dup2(write_end, 2)
    os.close(write_end)


def _log_lines(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            log.info("%s", line.strip())


def print_error(error: DetcliError, source: str = "") -> None:
    """Print an error and its hint; `source` is the input that it belongs to, if any."""
    message = str(error)
    if source:
        message = f"{source}: {error}"
    print_line(message, label="error:")
    if error.hint:
        print_line(error.hint, prefix="  ", label="hint:")


def process_error(exit_code: int, stderr: str) -> DetcliError:
    """Reconstruct the error with which another process of detcli has ended.

    Args:
        exit_code: The exit code of the process, which determines the class of the error.
        stderr: What it printed; the last message and its hint are those of the error.
    """
    messages_and_hints = re.findall(MESSAGE_AND_HINT, stderr, re.MULTILINE)
    if messages_and_hints:
        message, hint = messages_and_hints[-1]
    else:
        last_line = stderr.strip().rpartition("\n")[2]
        message = last_line or f"exited with status {exit_code}"
        hint = ""
    return _error_type(exit_code)(message, hint)


def _error_type(exit_code: int) -> type[DetcliError]:
    """Return the class of errors that ends a command with this exit code."""
    if exit_code != DetcliError.exit_code:
        for subclass in DetcliError.__subclasses__():
            if subclass.exit_code == exit_code:
                return subclass
    return DetcliError


def print_new_messages(counts: "Counts", *, quiet: bool) -> None:
    """Print the errors of inputs that were counted since the last call, and warnings if not quiet.

    They are removed from `counts.messages`. After MAX_PRINTED in a run, they are only counted.
    """
    for source, message in counts.messages:
        hint = ""
        if isinstance(message, DetcliError):
            label = "error:"
            message_type = type(message).__name__
            if message.hint:
                hint = f"; hint: {message.hint}"
        elif quiet:
            continue
        else:
            label = "warning:"
            message_type = "warning"
        counts.printed_kinds[kind_of(str(message), message_type)] += 1
        if counts.printed_kinds.total() <= MAX_PRINTED:
            print_line(f"{source or repr('')}: {message}{hint}", label=label)
    counts.messages.clear()


def print_message_counts(counts: "Counts") -> None:
    """Print how many errors and warnings there were, if not all of them were printed."""
    if counts.printed_kinds.total() > MAX_PRINTED:
        kinds = format_kinds(counts.printed_kinds)
        print_line(
            f"{MAX_PRINTED} of {counts.printed_kinds.total()} messages are shown; all: {kinds}"
        )


def print_line(text: str, prefix: str = "detcli: ", label: str = "") -> None:
    """Print a line on stderr; control codes, which file names may hold, are made harmless.

    Args:
        text: What to say.
        prefix: What the line begins with.
        label: Printed after the prefix, such as `error:`; in colour on a terminal.
    """
    line = prefix
    if label:
        line += f"{label} "
    line += make_printable(text)

    wrapped_line = wrap_for(line, sys.stderr)
    if label and _has_colour():  # only now, as a colour code has no width
        coloured_label = f"\x1b[{COLOUR_CODES[label]}m{label}\x1b[0m"
        wrapped_line = wrapped_line.replace(label, coloured_label, 1)
    _print(wrapped_line)


def print_command(words: Iterable[str]) -> None:
    """Print a command on a line of its own, which is never broken, so that it can be copied."""
    _print(f"    {make_printable(shell_line(words))}")


def _has_colour() -> bool:
    """Return whether stderr shows colours: a terminal that can, unless NO_COLOR forbids it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if sys.platform == "win32" and "WT_SESSION" not in os.environ:
        return False  # consoles of earlier versions show the codes
    return is_terminal(sys.stderr)


def _print(lines: str) -> None:
    """Print on stderr; what cannot be written is dropped, as results do not depend on messages."""
    if sys.stderr is not None:  # closed; `print` would fall back to stdout
        with contextlib.suppress(OSError, ValueError):
            # In one piece, as other threads print too.
            print(f"{lines}\n", end="", file=sys.stderr)  # noqa: T201 - the one place that prints


def make_printable(text: str) -> str:
    """A string on one line, without control codes and passwords; cut off if it is very long."""
    line = escape_unprintable(public_text(text[:MAX_MESSAGE]))
    if len(text) > MAX_MESSAGE:
        line += "..."
    return line


class _LogHandler(logging.Handler):
    """Prints as messages are printed: above a bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        _print(self.format(record))


class _LogFormatter(logging.Formatter):
    """One line for a message; a traceback is indented, so that none of it passes for a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        return make_printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802, ANN401 - overrides
        return "\n".join(
            f"  {make_printable(line)}" for line in super().formatException(ei).splitlines()
        )


def set_verbosity(*, quiet: bool, verbose: int) -> None:
    """Configure which messages are printed: of the log, of Python's warnings, and of libraries.

    Args:
        quiet: Print fatal errors only, for -q.
        verbose: How many times -v was typed. 0 prints warnings; 1 adds the log, with what native
            libraries print; 2 adds tracebacks.
    """
    _divert_libraries(to_log=bool(verbose) and not quiet)

    # Each -v lowers the level by one: from WARNING, which is 30, to INFO (20) and DEBUG (10).
    level = logging.WARNING - 10 * verbose
    handler = _LogHandler()
    handler.setFormatter(_LogFormatter("detcli: %(message)s"))
    logging.basicConfig(level=max(level, logging.DEBUG), handlers=[handler])

    if quiet:
        logging.disable()
        warnings.simplefilter("ignore", DetcliWarning)
    else:
        warnings.simplefilter("always", DetcliWarning)
    _print_warnings_as_messages()


def _print_warnings_as_messages() -> None:
    """Let Python's `warnings` print those of detcli as lines like its other messages."""
    show_other_warning = warnings.showwarning

    def show_warning(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as in showwarning
        message = args[0]
        if isinstance(message, DetcliNote):
            print_line(f"note: {message}")
        elif isinstance(message, DetcliWarning):
            print_line(str(message), label="warning:")
        else:
            show_other_warning(*args, **kwargs)

    warnings.showwarning = show_warning


MIN_WIDTH_OF_BAR = 60
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
    total: Callable[[], int | None], *, enabled: bool, status: Callable[[], str] = lambda: ""
) -> Iterator[Advance]:
    """Show a progress bar on stderr while the block runs, if that is a terminal.

    On a terminal that cannot draw, lines are printed now and then. The bar disappears at the end,
    so results may be written to stdout afterwards.

    Args:
        total: Returns the number of inputs, or None if that is not known yet.
        enabled: Whether to show it at all.
        status: Returns a string to show beside the bar.

    Yields:
        The function to call for each input that is done, with its name.
    """
    if not enabled or not is_terminal(sys.stderr):
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
    """The text beside a progress bar: numbers, status, and as much of an input's name as fits.

    The name is that of the last input. rich draws the text by `__rich_console__`.
    """

    def __init__(self, total: Callable[[], int | None], status: Callable[[], str]) -> None:
        self._total = total
        self._status = status
        self._count = 0
        self._name = ""
        self._printed_at_s = time.monotonic()
        self.update: Callable[..., None] | None = None  # moves the bar; else lines are printed

    def advance(self, name: str = "") -> None:
        """Count an input."""
        self._count += 1
        self._name = name
        if self.update is not None:
            self.update(completed=self._count, total=self._total())
        elif time.monotonic() - self._printed_at_s > LINE_PERIOD_S:
            self._printed_at_s = time.monotonic()
            print_line(f"{self._numbers()}  {self._name}")

    def _numbers(self) -> str:
        """Return the number of inputs and the status, as in "3/10  2 detections, 5.0/s"."""
        total = self._total()
        total_text = "?"
        if total is not None:
            total_text = str(total)
        return f"{self._count}/{total_text}  {self._status()}".rstrip()

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> Iterator["RenderableType"]:
        """Yield the text; if the name is too long, an ellipsis replaces its beginning."""
        from rich.text import Text

        numbers = self._numbers()
        file_name = self._name.rpartition("/")[2] or self._name
        name = Text(escape_unprintable(file_name))
        max_name_width = options.max_width - len(numbers) - len("  ")

        # The end of a name says more than its beginning, so the name is shortened from the left
        # until it fits. That takes several steps, as a character can be two columns wide.
        while name and name.cell_len > max_name_width:
            if len(name) > 2:
                # First the ellipsis replaces two characters, then itself and one more.
                name = Text("…") + name[2:]
            else:
                name = Text()
        yield Text(f"{numbers}  ", no_wrap=True, overflow="ellipsis", end="") + name


@contextlib.contextmanager
def download_progress() -> "Iterator[Show | None]":
    """Show a bar on stderr while something is downloaded in the block.

    Yields:
        The function to call with the bytes that have arrived and the size of the file, None if that
        is not known. The bar appears with its first call. None instead of a function if stderr is
        not a terminal, or with --quiet.
    """
    if not _shows_bars():
        yield None
        return
    with _LateBar(_download_columns) as bar:

        def show(completed: int, total: int | None) -> None:
            bar.update(completed=completed, total=total)

        yield show


def _download_columns() -> "list[ProgressColumn]":
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return [DownloadColumn(), TransferSpeedColumn()]


@contextlib.contextmanager
def reading_progress() -> "Iterator[ShowReading | None]":
    """Show a bar on stderr while the records of an earlier run are read in the block.

    Yields:
        The function to call with the number of records and the fraction of their file that were
        read so far, from 0 to 1. The bar appears with its first call. None instead of a function
        if stderr is not a terminal, or with --quiet.
    """
    if not _shows_bars():
        yield None
        return
    with _LateBar(_reading_columns) as bar:

        def show(record_count: int, fraction: float) -> None:
            description = f"reading {record_count:,} records"
            bar.update(completed=fraction, total=1, description=description)

        yield show


def _reading_columns() -> "list[ProgressColumn]":
    from rich.progress import TextColumn

    return [TextColumn("{task.description}")]


def _shows_bars() -> bool:
    """Return whether bars are shown: on a terminal, unless --quiet forbids them."""
    return log.isEnabledFor(logging.WARNING) and is_terminal(sys.stderr)


class _LateBar(contextlib.ExitStack):
    """A progress bar on stderr, as `_bar` draws it, but only once it is first updated.

    It is a context manager, at whose end the bar disappears.
    """

    def __init__(self, make_columns: "Callable[[], list[ProgressColumn]]") -> None:
        """Prepare the bar.

        Args:
            make_columns: Makes what is shown beside the bar; rich is loaded only then.
        """
        super().__init__()
        self._make_columns = make_columns
        self._update_bar: Callable[..., None] | None = None  # None until the bar appears

    def update(self, **changes: object) -> None:
        """Update the bar; the arguments are those of rich's `Progress.update`."""
        if self._update_bar is None:
            self._update_bar = self.enter_context(_bar(*self._make_columns()))
        self._update_bar(**changes)


@contextlib.contextmanager
def _bar(*columns: "ProgressColumn") -> Iterator[Callable[..., None]]:
    """Draw a progress bar on stderr, which disappears when the block ends.

    Args:
        columns: What to show beside the bar; a narrow terminal shows this alone.

    Yields:
        The function that updates the bar; its arguments are those of rich's `Progress.update`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    # rich would ask descriptor 2 for the width, which may be diverted from the terminal by now.
    width = None
    if "COLUMNS" not in os.environ:
        with contextlib.suppress(OSError, ValueError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns or None
    # Messages appear above the bar; the terminal wraps them, so that they can be copied whole.
    console = Console(stderr=True, soft_wrap=True, width=width)
    if console.width >= MIN_WIDTH_OF_BAR:
        columns = (BarColumn(BAR_WIDTH), TimeRemainingColumn(compact=True), *columns)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        yield functools.partial(bar.update, bar.add_task("", total=None))
