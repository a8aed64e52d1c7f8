"""What goes to stderr: errors, warnings, and what -v asks for. Results go to stdout instead."""

import logging
import sys
import warnings
from typing import Any

from detcli.errors import DetcliError, DetcliWarning
from detcli.text import printable


def report(error: DetcliError, source: str = "") -> None:
    """Say what happened, to which input if it was one, and what to do next."""
    say(f"{source}: {error}" if source else str(error))
    if error.hint:
        say(f"  hint: {error.hint}", prefix="")


def say(text: str, prefix: str = "detcli: ") -> None:
    """Print a line on stderr; a terminal's control codes in file names are made harmless."""
    if sys.stderr is not None:  # closed; `print` would choose stdout instead
        print(prefix + printable(text), file=sys.stderr)  # noqa: T201 - this is where it is printed


def set_verbosity(*, quiet: bool, verbose: int) -> None:
    """Choose what is said: fatal errors only, or also warnings, info (-v), tracebacks (-vv)."""
    level = logging.WARNING - 10 * verbose
    logging.basicConfig(level=max(level, logging.DEBUG), format="detcli: %(message)s")
    if quiet:
        logging.disable()
    warnings.simplefilter("ignore" if quiet else "always", DetcliWarning)
    show = warnings.showwarning

    def show_warning(*details: Any, **more: Any) -> None:  # noqa: ANN401 - those of showwarning
        message = details[0]
        if isinstance(message, DetcliWarning):
            say(f"warning: {message}")
        else:
            show(*details, **more)

    warnings.showwarning = show_warning
