"""Text from a damaged file."""

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


def decoded(value: Value) -> Value:
    """The same with all text as text: protobuf hands out bytes where a file has no valid UTF-8.

    Args:
        value: A dataclass, and what those hold: mappings, tuples, text, numbers.
    """
    changed: Any = value
    if isinstance(value, bytes):
        changed = value.decode("utf-8", "backslashreplace")
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: decoded(getattr(value, field.name)) for field in fields(value)}
        changed = type(value)(**parts)
    elif isinstance(value, dict):
        changed = {decoded(key): decoded(entry) for key, entry in value.items()}
    elif isinstance(value, tuple):
        changed = tuple(decoded(entry) for entry in value)
    result: Value = changed
    return result
