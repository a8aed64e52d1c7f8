"""Values for the fields of a dataclass, as the types of the fields say.

    Settings(classes=iter(["car"]))     has the tuple ("car",)
    Settings(tile=640)                  has what `--tile 640` stands for
    Settings(conf="0.4")                is a UsageError: a string is not a number

Arrays and numbers of NumPy are taken as Python's, iterables as tuples, mappings as pairs. Values of
types that are read from text on the command line, such as `Tiling`, may be given as that text.
"""

import math
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from detcli.config.option import bind
from detcli.core.errors import UsageError

Read = Callable[[str], Any]
"""Makes a value, or a tuple of them, of a text of the command line."""

PLAIN = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    NoneType: "None",
}
"""What values of these types are called; those of other types can be read from text."""


NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)
"""Types that are iterable and stand for one value."""


class UnfitError(Exception):
    """A value is not of the type, and nothing of that type can be made of it."""


def settle_fields(config: Any) -> None:
    """Check the fields of a frozen dataclass that is being made, and convert what is convertible.

    Raises:
        UsageError: A value is not of its field's type, or out of its range.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not field.default:
            object.__setattr__(config, field.name, _settled(field, value))


def _settled(field: "Field[Any]", value: Any) -> Any:
    """The value of a field as its type has it, within its range."""
    option = field.metadata.get("option")
    read = None
    if option is not None and option.declaration:
        read = _reader(field)
    try:
        settled = convert(value, field.type, read)
    except UnfitError:
        message = f"{field.name} is {shortened(value)}"
        raise UsageError(message, f"give {describe(field.type)}") from None
    if option is not None and type(settled) in {int, float}:
        _require_range(field.name, settled, option.range)
    return settled


def shortened(value: object) -> str:
    """What an error shows of a value of the wrong type."""
    if isinstance(value, str):
        return f"the string {reprlib.repr(value)}"
    return reprlib.repr(value)


def _reader(field: "Field[Any]") -> Read:
    """What reads a text as the command line does; its errors name the field."""

    def read(text: str) -> Any:
        option = bind(field, field.name, field.type)
        try:
            return option.parse_value(text)
        except UsageError as error:
            message = str(error).replace(option.flag, field.name)
            raise UsageError(message, error.hint.replace(option.flag, field.name)) from None

    return read


def _require_range(name: str, number: float, limits: tuple[float | None, float | None]) -> None:
    """Refuse a number that is out of range, or none, where there are limits."""
    low, high = limits
    if low is None and high is None:
        return
    if not -math.inf < number < math.inf:  # `isfinite` takes no large int
        raise UsageError(f"{name} is {number}", "give a finite number")
    is_too_low = low is not None and number < low
    is_too_high = high is not None and number > high
    if is_too_low or is_too_high:
        hint = f"use {low} to {high}"
        if high is None:
            hint = f"use {low} or more"
        elif low is None:
            hint = f"use {high} or less"
        raise UsageError(f"{name} is {number}", hint)


def convert(value: Any, kind: Any, read: Read | None = None) -> Any:
    """A value as a type has it; `read` makes values of types that are not plain of text.

    Raises:
        UnfitError: The type has no such value.
    """
    if hasattr(value, "dtype") and not isinstance(value, type):  # of NumPy
        value = value.tolist()
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return _as_any_of(value, get_args(kind), read)
    if origin is Literal:
        return _as_literal(value, get_args(kind))
    if origin is tuple:
        return _as_tuple(value, get_args(kind), read)
    if kind in PLAIN:
        return _as_plain(value, kind)
    return _as_other(value, kind, read)


def _as_any_of(value: Any, kinds: tuple[Any, ...], read: Read | None) -> Any:
    """A value of one of several types: of its own if that is among them, else of the first."""
    for kind in kinds:
        is_bool = isinstance(value, bool)  # which is an int to Python
        if isinstance(kind, type) and isinstance(value, kind) and is_bool == (kind is bool):
            return value
    for kind in kinds:
        try:
            return convert(value, kind, read)
        except UnfitError:
            continue
    raise UnfitError


def _as_literal(value: Any, literals: tuple[Any, ...]) -> Any:
    for literal in literals:
        if type(value) is type(literal) and value == literal:
            return value
    raise UnfitError


def _as_tuple(value: Any, kinds: tuple[Any, ...], read: Read | None) -> tuple[Any, ...]:
    """A tuple of any length, `(X, ...)`, or of one value of each type."""
    if kinds[-1] is not ...:
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise UnfitError
        return tuple(convert(entry, kind) for entry, kind in zip(value, kinds, strict=True))
    kind = kinds[0]
    if _is_read(kind):
        return _as_read_tuple(value, kind, read)
    if isinstance(value, Mapping) and get_origin(kind) is tuple:
        value = value.items()
    if not isinstance(value, Iterable) or isinstance(value, NO_LISTS):
        raise UnfitError
    return tuple(convert(entry, kind) for entry in value)


def _as_read_tuple(value: Any, kind: Any, read: Read | None) -> tuple[Any, ...]:
    """A tuple of what texts stand for; one alone may be given without a tuple around it."""
    if isinstance(value, str | kind) or not isinstance(value, Iterable):
        value = [value]
    if isinstance(value, bytes | Mapping):
        raise UnfitError
    entries: list[Any] = []
    for entry in value:
        if isinstance(entry, kind):
            entries.append(entry)
        elif isinstance(entry, str) and read is not None:
            entries.extend(read(entry))
        else:
            raise UnfitError
    return tuple(entries)


def _as_plain(value: Any, kind: Any) -> Any:
    if kind is float and type(value) is int:
        return _as_float(value)
    if isinstance(value, os.PathLike) and kind is str:
        return os.fsdecode(value)
    if isinstance(value, os.PathLike | str) and kind is Path:
        return Path(os.fsdecode(value))
    if isinstance(value, bool) and kind is not bool:
        raise UnfitError
    if isinstance(value, kind):
        return value
    raise UnfitError


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise UnfitError from None


def _as_other(value: Any, kind: Any, read: Read | None) -> Any:
    """A value of a type that is read from text, from that text, or from numbers for it."""
    if isinstance(value, kind):
        return value
    if issubclass(kind, Enum):
        if isinstance(value, str) and value in {member.value for member in kind}:
            return kind(value)
        raise UnfitError
    text = _as_text(value)
    if read is None or text is None:
        raise UnfitError
    return read(text)


def _as_text(value: Any) -> str | None:
    """What one would type on the command line for a text, a number or several numbers."""
    if isinstance(value, str):
        return value
    numbers = [value]
    if isinstance(value, list | tuple):
        numbers = list(value)
    if numbers and all(type(number) in {int, float} for number in numbers):
        return ",".join(str(number) for number in numbers)
    return None


def _is_read(kind: Any) -> bool:
    """Whether values of a type can be read from text."""
    return isinstance(kind, type) and get_origin(kind) is None and kind not in PLAIN


def describe(kind: Any) -> str:
    """What values of a type are called."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return " or ".join(describe(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return _describe_tuple(arguments)
    if kind in PLAIN:
        return PLAIN[kind]
    if issubclass(kind, Enum):
        members = [repr(str(member)) for member in kind]
        return f"one of {', '.join(members)}"
    return f"a {kind.__name__} or its text"


def _describe_tuple(kinds: tuple[Any, ...]) -> str:
    """What a tuple of any length is called, or one of values of these types."""
    if kinds[-1] is not ...:
        return f"a tuple of {', '.join(describe(kind) for kind in kinds)}"
    entry = kinds[0]
    if get_origin(entry) is tuple:
        keys, values = get_args(entry)
        return f"a mapping from {describe(keys)} to {describe(values)}, or pairs of them"
    return f"a tuple, each of whose entries is {describe(entry)}"
