"""Classes whose objects never change: frozen dataclasses that take little time to make.

`dataclass(frozen=True)` compiles six methods for each class. A command makes dozens of classes as
it starts, and uses half of them, so that compiling took a tenth of the start. Here, `__init__` is
compiled when it is first used, and the other methods are functions that go over the fields.
"""

import operator
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")

# `setattr` with a constant name, as mypy knows no assignment to a method of a class.
# ruff: noqa: B010


@overload
def frozen(kind: type[T], /) -> type[T]: ...


@overload
def frozen(*, eq: bool) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T] | None = None, /, *, eq: bool = True) -> Any:
    """Make a class a dataclass whose objects never change, as most types here are.

    It behaves as after `dataclass(frozen=True, slots=True)`, but is made faster. What the class
    defines itself stays, such as its own `__repr__`.

    Args:
        kind: The class. Without one, the result is a decorator.
        eq: Whether objects with equal fields are equal. Otherwise each equals only itself, as where
            fields are arrays.
    """
    if kind is None:
        return partial(_make_frozen, eq=eq)
    return _make_frozen(kind, eq=eq)


def _make_frozen(kind: type[T], *, eq: bool) -> type[T]:
    """Make a class a dataclass whose objects never change."""
    frozen_class = dataclass(init=False, repr=False, eq=False, slots=True)(kind)
    defined_names = vars(kind).keys()
    if "__init__" not in defined_names:
        setattr(frozen_class, "__init__", _LateInit(frozen_class))
    _forbid_changes(frozen_class)
    _set_state_methods(frozen_class)
    if "__repr__" not in defined_names:
        _set_repr(frozen_class)
    if eq:
        _set_comparison(frozen_class, defined_names)
    return frozen_class


def _set_comparison(frozen_class: type, defined_names: Collection[str]) -> None:
    """Let objects with equal fields be equal, unless the class says itself when they are.

    Args:
        frozen_class: The class.
        defined_names: The names of what the class defines itself.
    """
    has_own_hash = "__hash__" in defined_names and vars(frozen_class)["__hash__"] is not None
    if not has_own_hash:
        _set_hash(frozen_class)
    if "__eq__" not in defined_names:
        _set_equality(frozen_class)


class _LateInit:
    """Stands for the `__init__` of a class until it is first looked up, and compiles it then.

    It is a descriptor: Python calls its `__get__` to get the method, be it for making an object or
    for showing the signature.
    """

    def __init__(self, frozen_class: type) -> None:
        self._class = frozen_class

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Return the method of the instance, or the function if there is none."""
        initialise = _compile_init(self._class)
        setattr(self._class, "__init__", initialise)
        return initialise.__get__(instance, owner)


class _DefaultFactory:
    """The default in the signature of a field whose value is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_NOT_GIVEN = _DefaultFactory()


def _compile_init(frozen_class: type) -> Callable[..., None]:
    """Compile the `__init__` of a class, which sets its fields and then calls `__post_init__`."""
    parameters = ["self"]
    keyword_parameters = []
    statements = []
    annotations = {}
    names_in_code: dict[str, Any] = {"_set_field": object.__setattr__, "_NOT_GIVEN": _NOT_GIVEN}
    for class_field in fields(frozen_class):
        name = class_field.name
        if class_field.init:
            parameter = name + _default_in_code(class_field, names_in_code)
            if class_field.kw_only:
                keyword_parameters.append(parameter)
            else:
                parameters.append(parameter)
            annotations[name] = class_field.type
        value = _value_in_code(class_field, names_in_code)
        if value is not None:
            statements.append(f"_set_field(self, {name!r}, {value})")
    if keyword_parameters:
        parameters += ["*", *keyword_parameters]
    if hasattr(frozen_class, "__post_init__"):
        statements.append("self.__post_init__()")

    body = "\n  ".join(statements or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n  {body}", names_in_code)  # noqa: S102 - as dataclasses do
    initialise: Callable[..., None] = names_in_code["__init__"]
    initialise.__qualname__ = f"{frozen_class.__qualname__}.__init__"
    initialise.__module__ = frozen_class.__module__
    initialise.__annotations__ = {**annotations, "return": None}
    return initialise


def _default_in_code(class_field: Field[Any], names_in_code: dict[str, Any]) -> str:
    """Write the default of a parameter, such as `=_default_x`; nothing if it has none.

    Args:
        class_field: The field that the parameter sets.
        names_in_code: What the names in the code stand for; gets that of the default.
    """
    if class_field.default is not MISSING:
        name = f"_default_{class_field.name}"
        names_in_code[name] = class_field.default
        return f"={name}"
    if class_field.default_factory is not MISSING:
        return "=_NOT_GIVEN"
    return ""


def _value_in_code(class_field: Field[Any], names_in_code: dict[str, Any]) -> str | None:
    """Write the value that a field is set to; None if `__post_init__` has to set it.

    Args:
        class_field: The field.
        names_in_code: What the names in the code stand for; gets that of a function that makes the
            value.
    """
    name = class_field.name
    if class_field.default_factory is not MISSING:
        factory_name = f"_make_{name}"
        names_in_code[factory_name] = class_field.default_factory
        if not class_field.init:
            return f"{factory_name}()"
        return f"{factory_name}() if {name} is _NOT_GIVEN else {name}"
    if class_field.init:
        return name
    return None


def _forbid_changes(frozen_class: type[Any]) -> None:
    """Let setting or deleting a field of an object raise an error."""
    names = frozenset(class_field.name for class_field in fields(frozen_class))

    def refuse_to_set(self: object, name: str, value: object) -> None:
        if type(self) is frozen_class or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(frozen_class, self).__setattr__(name, value)

    def refuse_to_delete(self: object, name: str) -> None:
        if type(self) is frozen_class or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(frozen_class, self).__delattr__(name)

    setattr(frozen_class, "__setattr__", refuse_to_set)
    setattr(frozen_class, "__delattr__", refuse_to_delete)


def _set_state_methods(frozen_class: type) -> None:
    """Let `copy` and `pickle` read and set the fields, which they may not set one by one."""
    names = [class_field.name for class_field in fields(frozen_class)]

    def get_state(self: object) -> list[Any]:
        return [getattr(self, name) for name in names]

    def set_state(self: object, values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    setattr(frozen_class, "__getstate__", get_state)
    setattr(frozen_class, "__setstate__", set_state)


def _set_repr(frozen_class: type) -> None:
    """Give a class the representation of dataclasses, such as `Point(x=1, y=2)`."""
    names = [field.name for field in fields(frozen_class) if field.repr]

    @recursive_repr()
    def represent(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    setattr(frozen_class, "__repr__", represent)


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

    setattr(frozen_class, "__hash__", hash_of_fields)


def _set_equality(frozen_class: type) -> None:
    """Let two objects of a class be equal if all fields that are compared are."""
    values_of = _reader_of_fields([field.name for field in fields(frozen_class) if field.compare])

    def equals(self: object, compared: object) -> Any:  # noqa: ANN401 - what tuples say
        if compared.__class__ is not self.__class__:
            return NotImplemented
        return values_of(self) == values_of(compared)

    setattr(frozen_class, "__eq__", equals)


def _reader_of_fields(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return a function that reads the given fields of an object into a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)  # in C
    return lambda instance: tuple(getattr(instance, name) for name in names)
