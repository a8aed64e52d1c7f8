"""Pseudo-terminals, read from outside."""

import os


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
