"""Lists the public names of the Python library with their signatures, which version 1.0 freezes.

    python -m tests.frozen_names

writes the list to `tests/frozen_names.txt`. What is removed or changed there breaks programs: it
needs a deprecation first, see CHANGELOG.md. What is added is fine.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import Any

import detcli
from detcli.backend.cuda.topk import top_k as gpu_top_k
from detcli.config.values import BoxFormat, Tracker
from detcli.data.barcode import Barcode
from detcli.data.capture_time import CaptureTime
from detcli.data.geometry import Image, Letterbox
from detcli.data.record import Origin, Video

LIST = Path(__file__).with_suffix(".txt")

UNFROZEN = {
    "about",
    "areas",
    "area of Region",
    "contract",
    "gpu",
    "outage_at",
    "overlay",
    "pixels of Line",
    "pixels of Region",
    "pixels of Zone",
}
"""Attributes and parameters that serve the package itself, although their names do not show it."""

PARTS = {
    BoxFormat: None,
    Tracker: None,
    Barcode: ("text", "symbology", "content", "corners", "class_name", "confirmed", "earlier"),
    CaptureTime: ("local", "offset"),
    Image: ("pixels", "size", "warnings", "capture_time"),
    Letterbox: ("picture", "canvas", "scale", "resized", "top", "left", "to_image"),
    Origin: ("source", "path", "frame", "time_s", "time", "input", "meta", "video"),
    Video: ("frames_per_second", "live"),
}
"""What public names lead to, and which attributes of it are public; None for all of them.

Programs read these objects, and do not make them: their signatures may change.
"""

SPECIAL_METHODS = "__call__ __enter__ __eq__ __getitem__ __iter__ __len__ __next__".split()
"""Methods behind the syntax of Python that are public, too."""


def list_names() -> list[str]:
    """Return a line for each public name, in an order that stays."""
    lines = [f"detcli.{name}" for name in sorted(detcli.__all__) if name.startswith("_")]
    for name in sorted(detcli.__all__):
        value = getattr(detcli, name)
        if isinstance(value, type):
            lines += _lines_of_class(f"detcli.{name}", value)
        elif callable(value):
            lines.append(f"detcli.{name}{_signature_of(value)}")
    lines.append(f"detcli.backend.cuda.top_k{_signature_of(gpu_top_k)}")
    for part, attributes in PARTS.items():
        lines.append(f"{part.__name__}: read, and not made, by programs")
        lines += _lines_of_attributes(part.__name__, part, attributes)
    return lines


def _lines_of_class(name: str, kind: type) -> Iterator[str]:
    """Yield a line for a class, with its constructor and bases, and one for each attribute."""
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    line = f"{name}{_signature_of(kind)}"
    if kind is detcli.Records:
        line = f"{name}: read, and not made, by programs"
    if bases:
        line += f" of {', '.join(bases)}"
    if issubclass(kind, detcli.DetcliError):
        line += f" with exit code {kind.exit_code}"
    yield line
    yield from _lines_of_attributes(name, kind, None)


def _lines_of_attributes(
    name: str, kind: type, attributes: tuple[str, ...] | None
) -> Iterator[str]:
    """Yield a line for each public attribute of a class.

    Args:
        name: What the lines call the class.
        kind: The class.
        attributes: The names of those that are public; None for all without an underscore.
    """
    public_names = attributes
    if public_names is None:
        public_names = tuple(sorted(_attribute_names(kind)))
    for attribute in public_names:
        if UNFROZEN.intersection([attribute, f"{attribute} of {kind.__name__}"]):
            continue
        yield f"{name}.{attribute}{_form_of_attribute(kind, attribute)}"


def _attribute_names(kind: type) -> set[str]:
    """Return the names of a class's public attributes and methods, also of those set in methods."""
    names: set[str] = set()
    for base in _own_classes(kind):
        names.update(vars(base))
        names.update(_names_set_on_self(base))
    special_names = names.intersection(SPECIAL_METHODS)
    return special_names.union(name for name in names if not name.startswith("_"))


def _names_set_on_self(kind: type) -> set[str]:
    """Return the names of the attributes that methods of a class set on `self`."""
    names = set()
    for node in ast.walk(_tree_of(kind)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
    return names


def _own_classes(kind: type) -> list[type]:
    """Return a class and those of its bases that are detcli's own and not listed themselves."""
    classes = [kind]
    for base in kind.__mro__[1:]:
        if base.__module__.startswith("detcli.") and base.__name__ not in detcli.__all__:
            classes.append(base)
    return classes


@cache
def _tree_of(kind: type) -> ast.ClassDef:
    """Return the syntax tree of a class."""
    statement = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(statement, ast.ClassDef)
    return statement


def _form_of_attribute(kind: type, name: str) -> str:
    """Return how an attribute is used: the signature of a method, or the type of a field."""
    value = inspect.getattr_static(kind, name, None)
    if isinstance(value, classmethod):
        return f"{_signature_of(getattr(kind, name))} [class method]"
    if inspect.isfunction(value):
        return _signature_of(value)
    if isinstance(kind, EnumType):
        return f" = {value.value!r}"
    return _type_in_source(kind, name)


def _type_in_source(kind: type, name: str) -> str:
    """Return the type of a field, with its default, or of a property, as the source has it.

    The types themselves are written in other ways by other versions of Python and NumPy.
    """
    for base in _own_classes(kind):
        for statement in _tree_of(base).body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return f": {ast.unparse(statement.returns)} [property]"
            if not isinstance(statement, ast.AnnAssign):
                continue
            if isinstance(statement.target, ast.Name) and statement.target.id == name:
                return f": {ast.unparse(statement.annotation)}{_default_text(kind, name)}"
    return ""


def _default_text(kind: type, name: str) -> str:
    """Return the default of a field as in a signature; empty if it has none."""
    if not is_dataclass(kind):
        return ""
    for field in fields(kind):
        if field.name == name and field.default is not MISSING:
            return f" = {field.default!r}"
    return ""


def _signature_of(value: Any) -> str:
    """Return the parameters of a callable with their defaults, without types."""
    texts = []
    is_after_star = False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name.startswith("_") or parameter.name in UNFROZEN:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_after_star:
            texts.append("*")
            is_after_star = True
        texts.append(_parameter_text(parameter))
    return f"({', '.join(texts)})"


def _parameter_text(parameter: inspect.Parameter) -> str:
    """Return a parameter as in a signature, without its type."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    default = parameter.default
    if default is parameter.empty:
        return parameter.name
    if default is None or isinstance(default, bool | int | float | str | tuple):
        return f"{parameter.name}={default!r}"
    return f"{parameter.name}=..."


if __name__ == "__main__":
    LIST.write_text("\n".join(list_names()) + "\n", encoding="utf-8")
