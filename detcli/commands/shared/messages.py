"""Messages on stderr: errors, warnings, and the log that -v shows. Results go to stdout."""

import logging
import sys
import warnings
from typing import Any, TextIO

from detcli.errors import DetcliError, DetcliWarning
from detcli.text import printable


def report(error: DetcliError, source: str = "") -> None:
    """Print an error and its hint, after the input that it belongs to."""
    say(f"{source}: {error}" if source else str(error))
    if error.hint:
        say(f"  hint: {error.hint}", prefix="")


def say(text: str, prefix: str = "detcli: ") -> None:
    """Print a line on stderr; control codes, which file names may hold, are made harmless."""
    if sys.stderr is not None:  # closed; `print` would fall back to stdout
        print(prefix + printable(text), file=sys.stderr)  # noqa: T201 - the one place that prints


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream, which may be None or closed, is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def set_verbosity(*, quiet: bool, verbose: int) -> None:
    """Print fatal errors only (-q), or warnings too, info (-v), tracebacks (-vv)."""
    level = logging.WARNING - 10 * verbose
    logging.basicConfig(level=max(level, logging.DEBUG), format="detcli: %(message)s")
    if quiet:
        logging.disable()
    warnings.simplefilter("ignore" if quiet else "always", DetcliWarning)
    show = warnings.showwarning

    def show_warning(*details: Any, **more: Any) -> None:  # noqa: ANN401 - as in showwarning
        message = details[0]
        if isinstance(message, DetcliWarning):
            say(f"warning: {message}")
        else:
            show(*details, **more)

    warnings.showwarning = show_warning
