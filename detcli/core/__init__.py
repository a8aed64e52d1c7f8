"""What all layers share; it imports nothing else of detcli.

errors.py       what can go wrong, with exit codes
interrupts.py   Ctrl-C and the signals that end a run
text.py         text for people and programs, escaped
lines.py        lines of text that others wrote
json_stream.py  a large object of JSON, read piece by piece
threads.py      threads in the background
timing.py       clocks and deadlines
collection.py   the garbage collector while a command starts
packages.py     libraries that may be missing
opencv.py       settings of OpenCV that are made once
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

Fields = dict[str, Any]  # an object of JSON, or values by name
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """Make a class a dataclass whose objects never change, as most types here are.

    `dataclass` compiles `__repr__`, `__hash__` and `__eq__` again for each class, which takes long
    where a command makes dozens of classes as it starts. So they are added as plain functions that
    go over the fields, unless the class has its own.
    """
    frozen_class = dataclass(frozen=True, slots=True, repr=False, eq=False)(kind)
    defined_names = vars(kind).keys()
    if "__repr__" not in defined_names:
        _set_repr(frozen_class)
    has_own_hash = vars(kind).get("__hash__") is not None
    if not has_own_hash:
        _set_hash(frozen_class)
    if "__eq__" not in defined_names:
        _set_equality(frozen_class)
    return frozen_class


def _set_repr(frozen_class: type) -> None:
    """Give a class the representation of dataclasses, such as `Point(x=1, y=2)`."""
    names = [field.name for field in fields(frozen_class) if field.repr]

    @recursive_repr()
    def represent(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    setattr(frozen_class, "__repr__", represent)  # noqa: B010 - mypy knows no such assignment


def _set_hash(frozen_class: type) -> None:
    """Give a class a `__hash__`, which hashes the fields that objects are compared by.

    As in dataclasses, a field with `hash=True` or `hash=False` says itself whether it is included.
    """
    names = []
    for hashed_field in fields(frozen_class):
        if hashed_field.hash or (hashed_field.hash is None and hashed_field.compare):
            names.append(hashed_field.name)
    values_of = _reader_of_fields(names)

    def hash_of_fields(self: object) -> int:
        return hash(values_of(self))

    setattr(frozen_class, "__hash__", hash_of_fields)  # noqa: B010 - mypy knows no such assignment


def _set_equality(frozen_class: type) -> None:
    """Let two objects of a class be equal if all fields that are compared are."""
    values_of = _reader_of_fields([field.name for field in fields(frozen_class) if field.compare])

    def equals(self: object, compared: object) -> Any:  # noqa: ANN401 - what tuples say
        if compared.__class__ is not self.__class__:
            return NotImplemented
        return values_of(self) == values_of(compared)

    setattr(frozen_class, "__eq__", equals)  # noqa: B010


def _reader_of_fields(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return a function that reads the given fields of an object into a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)  # in C
    return lambda instance: tuple(getattr(instance, name) for name in names)
