"""What all layers share; it imports nothing else of detcli."""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Fields = dict[str, Any]  # an object of JSON, or values by name
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """A dataclass that never changes, which most types are."""
    return dataclass(frozen=True, slots=True)(kind)
