"""What all layers share; it imports nothing else of detcli.

errors.py       what can go wrong, with exit codes
interrupts.py   Ctrl-C and the signals that end a run
text.py         text for people and programs, escaped
lines.py        lines of text that others wrote
json_stream.py  a large object of JSON, read piece by piece
threads.py      threads in the background
timing.py       clocks and deadlines
packages.py     libraries that may be missing
opencv.py       what OpenCV is told once
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Fields = dict[str, Any]  # an object of JSON, or values by name
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """A dataclass that never changes, which most types are."""
    return dataclass(frozen=True, slots=True)(kind)
