"""What terminals show: pseudo-terminals, read from outside, and what rich prints."""

import io
import os

from rich.console import Console


def printed(parts, width=100):
    """What rich prints on so many columns, without blanks at the ends of lines."""
    console = Console(file=io.StringIO(), width=width)
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def read_all(descriptor):
    """Everything written to a pseudo-terminal whose other side is closed, or closes later.

    One read is not enough: on Linux what is written arrives a little later, on a busy machine.
    """
    text = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # Linux's way to say that the other side is closed
            piece = b""
        if not piece:
            return text
        text += piece
