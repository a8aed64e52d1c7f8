"""Classes whose objects never change: frozen dataclasses that take little time to make.

`dataclass(frozen=True)` compiles six methods for each class. A command makes dozens of classes as
it starts, and uses half of them, so that compiling took a tenth of the start. Here, `__init__` is
compiled when it is first looked up, and the other methods are functions that go over the fields.
"""

import operator
import sys
from collections.abc import Callable
from dataclasses import (
    MISSING,
    Field,
    FrozenInstanceError,
    dataclass,
    field,
    fields,
    is_dataclass,
)
from functools import partial
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def frozen(kind: type[T], /) -> type[T]: ...


@overload
def frozen(*, eq: bool) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T] | None = None, /, *, eq: bool = True) -> Any:
    """Make a class a dataclass whose objects never change, as most types here are.

    It is made as `dataclass(frozen=True, slots=True)` makes it, only faster. The methods that it
    defines itself stay, such as its own `__repr__`. What differs: `InitVar` is not supported; the
    class needs a docstring; that a field without a default follows one with a default is noticed
    only at the first object; and `pprint` does not lay out its fields.

    Args:
        kind: The class. Without one, the result is a decorator.
        eq: Whether objects with equal fields are equal. Otherwise each equals only itself, as where
            fields are arrays.
    """
    if kind is None:
        return partial(_frozen_dataclass, eq=eq)
    return _frozen_dataclass(kind, eq=eq)


def _frozen_dataclass(kind: type[T], *, eq: bool) -> type[T]:
    """Convert a class for `frozen`, whose arguments these are."""
    own_attributes = dict(vars(kind))
    # `frozen=True` makes `dataclass` compile two methods. So it is passed only where the base of a
    # class requires it, and noted in `__dataclass_params__` afterwards.
    has_dataclass_base = any(is_dataclass(base) for base in kind.__bases__)
    convert = dataclass(init=False, repr=False, eq=False, frozen=has_dataclass_base, slots=True)
    frozen_class: type[T] = convert(kind)
    vars(frozen_class)["__dataclass_params__"].frozen = True

    methods: dict[str, Any] = {
        "__init__": _LazyInit(frozen_class),
        "__repr__": _repr_method(frozen_class),
        **_methods_against_changes(frozen_class),
    }
    if eq:
        methods["__eq__"] = _equality_method(frozen_class)
        methods["__hash__"] = _hash_method(frozen_class)
    for name, method in methods.items():
        if own_attributes.get(name) is None:  # a class with its own `__eq__` has None as `__hash__`
            method.__name__ = name
            method.__qualname__ = f"{frozen_class.__qualname__}.{name}"
            setattr(frozen_class, name, method)
    for name, function in (("__getstate__", _read_state), ("__setstate__", _set_state)):
        if name not in own_attributes:
            setattr(frozen_class, name, function)
    return frozen_class


class _LazyInit:
    """Stands for the `__init__` of a class until that is first looked up, and compiles it then.

    It is a descriptor: Python calls its `__get__` to get the method, be it to make an object or to
    show the signature.
    """

    def __init__(self, frozen_class: type) -> None:
        self._class = frozen_class

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401
        """Return the method of the instance, or the function if there is none."""
        initialise = _compile_init(self._class)
        setattr(self._class, "__init__", initialise)  # noqa: B010 - mypy knows no such assignment
        return initialise.__get__(instance, owner)


class _NotGiven:
    """The default of a parameter whose field has a `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"  # as in the signatures of dataclasses


def _compile_init(frozen_class: type) -> Callable[..., None]:
    """Compile the `__init__` of a class, which sets its fields and then calls `__post_init__`."""
    code = _InitCode()
    for class_field in fields(frozen_class):
        code.add_field(class_field)
    if hasattr(frozen_class, "__post_init__"):
        code.statements.append("self.__post_init__()")
    initialise = code.compile(vars(sys.modules[frozen_class.__module__]))
    initialise.__qualname__ = f"{frozen_class.__qualname__}.__init__"
    return initialise


class _InitCode:
    """The Python code of an `__init__`, as it is put together field by field."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self._parameters: list[str] = []
        self._keyword_parameters: list[str] = []
        self._annotations: dict[str, Any] = {"return": None}
        # What names in the code stand for, besides those of the fields.
        self._names: dict[str, Any] = {"__set": object.__setattr__, "__not_given": _NotGiven()}

    def add_field(self, class_field: Field[Any]) -> None:
        """Add the parameter of a field, and the statement that sets it."""
        name = class_field.name
        value = name  # in the code
        default = ""
        if class_field.default is not MISSING:
            default = f"__default_{name}"
            self._names[default] = class_field.default
            if not class_field.init:
                value = default
        elif class_field.default_factory is not MISSING:
            default = "__not_given"
            make = f"__make_{name}"
            self._names[make] = class_field.default_factory
            value = f"{make}()"
            if class_field.init:
                value = f"{make}() if {name} is __not_given else {name}"

        if class_field.init:
            self._add_parameter(class_field, default)
        if class_field.init or default:  # otherwise `__post_init__` has to set it
            self.statements.append(f"__set(self, {name!r}, {value})")

    def _add_parameter(self, class_field: Field[Any], default: str) -> None:
        """Add the parameter of a field.

        Args:
            class_field: The field.
            default: The name of its default in the code; empty if it has none.
        """
        parameter = class_field.name
        if default:
            parameter += f"={default}"
        if class_field.kw_only:
            self._keyword_parameters.append(parameter)
        else:
            self._parameters.append(parameter)
        self._annotations[class_field.name] = class_field.type

    def compile(self, module_globals: dict[str, Any]) -> Callable[..., None]:
        """Compile the function inside another one, whose parameters are the names in its code.

        Args:
            module_globals: The global names of the module of the class, in which the annotations
                are looked up.
        """
        parameters = ["self", *self._parameters]
        if self._keyword_parameters:
            parameters += ["*", *self._keyword_parameters]
        lines = [
            f"def make_init({', '.join(self._names)}):",
            f"  def __init__({', '.join(parameters)}):",
        ]
        for statement in self.statements or ["pass"]:
            lines.append(f"    {statement}")
        lines.append("  return __init__")
        # Not `exec` of text, which may run while an interrupt ends the process, and resets what
        # tells Python to end by the signal.
        code = compile("\n".join(lines), "<string>", "exec")
        functions: dict[str, Any] = {}
        exec(code, module_globals, functions)  # noqa: S102 - as dataclasses do
        initialise: Callable[..., None] = functions["make_init"](**self._names)
        initialise.__annotations__ = self._annotations
        return initialise


def _methods_against_changes(frozen_class: type[Any]) -> dict[str, Callable[..., None]]:
    """Make the methods that raise an error where a field of an object is set or deleted."""
    names = frozenset(class_field.name for class_field in fields(frozen_class))

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is frozen_class or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(frozen_class, self).__setattr__(name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is frozen_class or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(frozen_class, self).__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


def _read_state(self: Any) -> list[Any]:  # noqa: ANN401 - of any dataclass
    """Return the values of all fields, for `copy` and `pickle`: a `__getstate__`."""
    return [getattr(self, class_field.name) for class_field in fields(self)]


def _set_state(self: Any, values: list[Any]) -> None:  # noqa: ANN401
    """Set all fields of a copy, which `copy` and `pickle` may not do: a `__setstate__`."""
    for class_field, value in zip(fields(self), values, strict=True):
        object.__setattr__(self, class_field.name, value)


def _repr_method(frozen_class: type) -> Callable[[object], str]:
    """Make the method that represents an object as dataclasses do, such as `Point(x=1, y=2)`."""
    names = [class_field.name for class_field in fields(frozen_class) if class_field.repr]

    @recursive_repr()
    def represent(self: object) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return represent


def _hash_method(frozen_class: type) -> Callable[[object], int]:
    """Make the method that hashes the fields that objects are compared by.

    As in dataclasses, a field with `hash=True` or `hash=False` says itself whether it is included.
    """
    names = []
    for class_field in fields(frozen_class):
        if class_field.hash or (class_field.hash is None and class_field.compare):
            names.append(class_field.name)
    values_of = _reader_of_fields(names)

    def hash_of_fields(self: object) -> int:
        return hash(values_of(self))

    return hash_of_fields


def _equality_method(frozen_class: type) -> Callable[[object, object], Any]:
    """Make the method by which two objects are equal if all fields that are compared are."""
    names = [class_field.name for class_field in fields(frozen_class) if class_field.compare]
    values_of = _reader_of_fields(names)

    def equals(self: object, compared: object) -> Any:  # noqa: ANN401 - what tuples say
        if compared.__class__ is not self.__class__:
            return NotImplemented
        return values_of(self) == values_of(compared)

    return equals


def _reader_of_fields(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return a function that reads the given fields of an object into a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)  # in C
    return lambda instance: tuple(getattr(instance, name) for name in names)
