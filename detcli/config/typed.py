"""Converts values to the types of a dataclass's fields.

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

ParseText = Callable[[str], Any]
"""Parses a string as the command line does, to a value, or to a list of values for `@FILE`."""

PLAIN_TYPES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    NoneType: "None",
}
"""The names of these types in error messages. Any other type can be parsed from text."""


SINGLE_VALUE_TYPES = (str, bytes, bytearray, memoryview, Mapping)
"""Types that Python can iterate over, but whose values are not lists of values."""


class ConversionError(Exception):
    """A value does not have the type, and cannot be converted to it."""


def convert_fields(config: Any) -> None:
    """Convert each field of a frozen dataclass to its type; to be called in `__post_init__`.

    A library's user may pass a list for a tuple, a NumPy number for an int, or a string as on the
    command line for a type such as `Tiling`. Fields that have their default are not checked.

    Raises:
        UsageError: A value does not have its field's type, or is out of range.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if value is not field.default:
            object.__setattr__(config, field.name, _convert_field(field, value))


def _convert_field(field: "Field[Any]", value: Any) -> Any:
    """Convert the value of a dataclass field to the field's type, and check its range."""
    option = field.metadata.get("option")
    parse = None
    if option is not None and option.declaration:  # it can be typed on the command line
        parse = _text_parser(field)
    try:
        converted = convert(value, field.type, parse)
    except ConversionError:
        message = f"{field.name} is {describe_value(value)}"
        raise UsageError(message, f"give {describe_type(field.type)}") from None
    if option is not None and type(converted) in {int, float}:
        _require_range(field.name, converted, option.range)
    return converted


def describe_value(value: object) -> str:
    """Describe a value of the wrong type for an error message, shortened if it is long."""
    if isinstance(value, str):
        return f"the string {reprlib.repr(value)}"
    return reprlib.repr(value)


def _text_parser(field: "Field[Any]") -> ParseText:
    """Return the function that parses a string for a field of the settings.

    A program may give a setting as the string that one would type, `Settings(imgsz="640x480")`. It
    is parsed as on the command line, but errors refer to the setting by the name of the field,
    max_det, and not by the flag, --max-det.
    """

    def parse(text: str) -> Any:
        option = bind(field, field.name, field.type)
        try:
            return option.parse_value(text)
        except UsageError as error:
            message = str(error).replace(option.flag, field.name)
            hint = error.hint.replace(option.flag, field.name)
            raise UsageError(message, hint) from None

    return parse


def _require_range(name: str, number: float, limits: tuple[float | None, float | None]) -> None:
    """Refuse a number outside of its option's range, and NaN and infinity if there is a range.

    Args:
        name: The field, for the error message.
        number: Its value.
        limits: The lowest and the highest value allowed; None for no limit.
    """
    minimum, maximum = limits
    if minimum is None and maximum is None:
        return
    if not -math.inf < number < math.inf:  # `isfinite` fails for an int that no float can hold
        raise UsageError(f"{name} is {number}", "give a finite number")
    is_too_small = minimum is not None and number < minimum
    is_too_large = maximum is not None and number > maximum
    if is_too_small or is_too_large:
        hint = f"use {minimum} to {maximum}"
        if maximum is None:
            hint = f"use {minimum} or more"
        elif minimum is None:
            hint = f"use {maximum} or less"
        raise UsageError(f"{name} is {number}", hint)


def convert(value: Any, value_type: Any, parse: ParseText | None = None) -> Any:
    """Convert a value to the type that a field is annotated with, such as `tuple[str, ...] | None`.

    Args:
        value: Anything that a user of the library has passed.
        value_type: A class, `Literal`, a union, or a tuple type.
        parse: Parses text for types that are written as text on the command line, such as
            `Tiling`; without it, only values of these types are accepted.

    Raises:
        ConversionError: The value cannot be converted.
    """
    if hasattr(value, "dtype") and not isinstance(value, type):  # an array or a number of NumPy
        value = value.tolist()
    origin = get_origin(value_type)
    if origin in {Union, UnionType}:
        return _convert_to_union(value, get_args(value_type), parse)
    if origin is Literal:
        return _require_literal(value, get_args(value_type))
    if origin is tuple:
        return _convert_to_tuple(value, get_args(value_type), parse)
    if value_type in PLAIN_TYPES:
        return _convert_to_plain_type(value, value_type)
    return _convert_to_parsed_type(value, value_type, parse)


def _convert_to_union(value: Any, member_types: tuple[Any, ...], parse: ParseText | None) -> Any:
    """Convert a value to the first type of a union that takes it.

    A value that already has one of the types stays as it is: 1 stays an int in `float | int`.
    """
    if any(_is_of_type(value, member_type) for member_type in member_types):
        return value
    for member_type in member_types:
        try:
            return convert(value, member_type, parse)
        except ConversionError:
            continue
    raise ConversionError


def _is_of_type(value: Any, member_type: Any) -> bool:
    """Whether a value is an instance of a class in a union; True and False do not count as int."""
    if not isinstance(member_type, type) or not isinstance(value, member_type):
        return False
    return isinstance(value, bool) == (member_type is bool)


def _require_literal(value: Any, literals: tuple[Any, ...]) -> Any:
    """Return a value if it is one of the literals of a `Literal` type, and of the same type."""
    for literal in literals:
        if type(value) is type(literal) and value == literal:
            return value
    raise ConversionError


def _convert_to_tuple(
    value: Any, entry_types: tuple[Any, ...], parse: ParseText | None
) -> tuple[Any, ...]:
    """Convert a value to a tuple.

    Args:
        value: A list, a tuple or another iterable. A mapping is taken as its pairs where the
            entries are pairs.
        entry_types: The arguments of the tuple type: `(int, ...)` for a tuple of any length whose
            entries all have the same type, `(str, float)` for a tuple with an entry of each type.
        parse: Parses text for entries that are written as text, as in `convert`.

    Raises:
        ConversionError: It is not iterable, has a different length, or an entry cannot be
            converted.
    """
    has_any_length = entry_types[-1] is ...
    if not has_any_length:
        return _convert_to_fixed_tuple(value, entry_types)
    entry_type = entry_types[0]
    if _is_parsed_type(entry_type):
        return _parse_entries(value, entry_type, parse)
    entries = value
    if isinstance(value, Mapping) and get_origin(entry_type) is tuple:
        entries = value.items()
    if not isinstance(entries, Iterable) or isinstance(entries, SINGLE_VALUE_TYPES):
        raise ConversionError
    return tuple(convert(entry, entry_type) for entry in entries)


def _convert_to_fixed_tuple(value: Any, entry_types: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert a list or tuple to a tuple that has an entry of each of these types."""
    if not isinstance(value, list | tuple) or len(value) != len(entry_types):
        raise ConversionError
    entries_and_types = zip(value, entry_types, strict=True)
    return tuple(convert(entry, entry_type) for entry, entry_type in entries_and_types)


def _parse_entries(value: Any, entry_type: Any, parse: ParseText | None) -> tuple[Any, ...]:
    """Convert a value to a tuple whose entries have a type with a `parse`, such as `Zone`.

    Args:
        value: One entry or several, each an object of the type or a string. One alone needs no list
            around it: "door=0,0,1,0,1,1" is the same as `["door=0,0,1,0,1,1"]`.
        entry_type: The type of the tuple's entries.
        parse: Parses a string to a list of entries; without it, strings are refused.

    Raises:
        ConversionError: An entry neither has the type nor is a string.
    """
    if isinstance(value, bytes | Mapping):
        raise ConversionError

    is_single_entry = isinstance(value, str | entry_type) or not isinstance(value, Iterable)
    objects_and_texts = value
    if is_single_entry:
        objects_and_texts = [value]

    entries: list[Any] = []
    for object_or_text in objects_and_texts:
        if isinstance(object_or_text, entry_type):
            entries.append(object_or_text)
        elif isinstance(object_or_text, str) and parse is not None:
            entries.extend(parse(object_or_text))
        else:
            raise ConversionError
    return tuple(entries)


def _convert_to_plain_type(value: Any, plain_type: Any) -> Any:
    """Convert a value to bool, int, float, str, Path or None.

    An int is accepted as a float, a path as a string, and a string as a path. A bool is not
    accepted as any other type, and a string not as a number.

    Raises:
        ConversionError: The value has the wrong type.
    """
    if plain_type is float and type(value) is int:
        return _int_to_float(value)
    if plain_type is str and isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if plain_type is Path and isinstance(value, os.PathLike | str):
        return Path(os.fsdecode(value))

    # To Python, True is also an int.
    is_bool_for_other = isinstance(value, bool) and plain_type is not bool
    if is_bool_for_other or not isinstance(value, plain_type):
        raise ConversionError
    return value


def _int_to_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:  # from about 1.8e308 on
        raise ConversionError from None


def _convert_to_parsed_type(value: Any, parsed_type: Any, parse: ParseText | None) -> Any:
    """Convert a value to an enumeration, or to a type that is parsed from text, such as `Tiling`.

    Args:
        value: A value of the type, its string as on the command line, or numbers that spell such a
            string, as 640 spells "640".
        parsed_type: The type.
        parse: Parses the string; without it, strings are refused. Enumerations do not need it.

    Raises:
        ConversionError: The value cannot be converted.
    """
    if isinstance(value, parsed_type):
        return value

    if issubclass(parsed_type, Enum):
        if isinstance(value, str) and value in {member.value for member in parsed_type}:
            return parsed_type(value)
        raise ConversionError

    text = _as_typed_text(value)
    if parse is None or text is None:
        raise ConversionError
    return parse(text)


def _as_typed_text(value: Any) -> str | None:
    """Format a value as one would type it on the command line: (0, 0.5) as "0,0.5".

    None if the value is neither a string, nor a number, nor a list of numbers.
    """
    if isinstance(value, str):
        return value
    numbers = [value]
    if isinstance(value, list | tuple):
        numbers = list(value)
    if numbers and all(type(number) in {int, float} for number in numbers):
        return ",".join(str(number) for number in numbers)
    return None


def _is_parsed_type(value_type: Any) -> bool:
    """Whether values of a type are parsed from text: a class that is not one of PLAIN_TYPES."""
    is_class = isinstance(value_type, type) and get_origin(value_type) is None
    return is_class and value_type not in PLAIN_TYPES


def describe_type(value_type: Any) -> str:
    """Describe a type for the hint of an error, such as "a whole number or None"."""
    origin = get_origin(value_type)
    arguments = get_args(value_type)
    if origin in {Union, UnionType}:
        return " or ".join(describe_type(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return _describe_tuple(arguments)
    if value_type in PLAIN_TYPES:
        return PLAIN_TYPES[value_type]
    if issubclass(value_type, Enum):
        members = [repr(str(member)) for member in value_type]
        return f"one of {', '.join(members)}"
    return f"a {value_type.__name__} or its text"


def _describe_tuple(entry_types: tuple[Any, ...]) -> str:
    """Describe a tuple type for the hint of an error.

    `entry_types` are the arguments of the type: `(int, ...)` for a tuple of any length.
    """
    if entry_types[-1] is not ...:
        descriptions = [describe_type(entry_type) for entry_type in entry_types]
        return f"a tuple of {', '.join(descriptions)}"
    entry_type = entry_types[0]
    if get_origin(entry_type) is tuple:
        key_type, item_type = get_args(entry_type)
        keys = describe_type(key_type)
        return f"a mapping from {keys} to {describe_type(item_type)}, or pairs of them"
    return f"a tuple, each of whose entries is {describe_type(entry_type)}"
