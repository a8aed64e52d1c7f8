"""What all layers share; it imports nothing else of detcli.

errors.py          what can go wrong, with exit codes
interrupts.py      Ctrl-C and the signals that end a run
text.py            text for people and programs, escaped
lines.py           lines of text that others wrote
json_stream.py     a large object of JSON, read piece by piece
threads.py         threads in the background
timing.py          clocks and deadlines
collection.py      the garbage collector while a command starts
frozen_classes.py  classes whose objects never change, made quickly
packages.py        libraries that may be missing
opencv.py          settings of OpenCV that are made once
"""

from typing import Any

from detcli.core.frozen_classes import frozen

__all__ = ["Fields", "frozen"]

Fields = dict[str, Any]  # an object of JSON, or values by name
