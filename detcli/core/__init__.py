"""What all layers share; it imports nothing of detcli above it.

the run      options.py: a row; values.py, device.py: what rows hold; config.py: all rows;
             typed.py: values checked by the types of fields
results      record.py, detections.py, geometry.py, comparison.py
algorithms   topk.py, tiling.py
files        files.py, lines.py, objects.py, cache.py
the process  errors.py, text.py, timing.py, threads.py, interrupts.py, opencv.py, packages.py
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Fields = dict[str, Any]  # an object of JSON, or values by name
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """A dataclass that never changes, which most types are."""
    return dataclass(frozen=True, slots=True)(kind)
