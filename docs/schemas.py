"""Makes the JSON Schemas of what commands print from the types of their reports.

`docs/generate.py` writes each beside its command as `schema.json`, and a test compares. pydantic reads
the types, the docstrings give the descriptions. Nothing of detcli imports this.
"""

import inspect
import json
import re
import typing
from typing import Any

import typing_extensions
from pydantic import TypeAdapter

REPORTS: dict[str, Any] = {}
"""What each command prints as JSON: a report, or one of several."""


def schema(command: str) -> str:
    """The JSON Schema of what a command prints."""
    types = [_readable(kind) for kind in _alternatives(REPORTS[command])]
    definitions: dict[str, Any] = {}
    documents = []
    for kind in types:
        made = TypeAdapter(kind).json_schema(mode="serialization")
        definitions |= made.pop("$defs", {})
        documents.append(made)
    docstrings = _docstrings(REPORTS[command])
    for name, definition in definitions.items():
        _finish(definition, docstrings[name])
    for kind, document in zip(types, documents, strict=True):
        _finish(document, docstrings[kind.__name__])
        document["properties"] = {"schema_version": {"const": 1}} | document["properties"]
        document["required"] = list(dict.fromkeys(["schema_version", *document["required"]]))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:detcli:{command}:1",
        "title": f"What detcli {command} prints as JSON",
    }
    body = documents[0] if len(documents) == 1 else {"oneOf": documents}
    whole = {**head, **body, "$defs": definitions}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) or (kind,)


def _readable(kind: Any) -> Any:
    """A type as pydantic reads it: before Python 3.12 it takes the TypedDicts of one module only."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {name: _readable(hint) for name, hint in hints.items()}
        return typing_extensions.TypedDict(kind.__name__, fields)
    if typing.get_origin(kind) is list:
        return list[_readable(typing.get_args(kind)[0])]
    return kind


def _docstrings(kind: Any) -> dict[str, str]:
    """The docstrings of all types that a type is made of, by name."""
    found: dict[str, str] = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        waiting += [part for part in typing.get_args(one) if not isinstance(part, str)]
        if inspect.isclass(one) and one.__module__.startswith("detcli") and one.__name__ not in found:
            found[one.__name__] = inspect.getdoc(one) or ""
            waiting += typing.get_type_hints(one, include_extras=True).values()
    return found


def _finish(schema: dict[str, Any], docstring: str) -> None:
    """Describe an object from its docstring; it has all its properties and no others."""
    text, _, attributes = docstring.partition("\n\nAttributes:\n")
    schema["description"] = " ".join(text.split())
    schema.pop("title", None)
    described = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE))
    for name, prop in schema.get("properties", {}).items():
        prop.pop("title", None)
        if prop.pop("default", ...) is not ...:  # a report's field is written whatever it holds
            schema.setdefault("required", []).append(name)
        if name in described:
            text = " ".join(described[name].split()).replace("None", "null")
            schema["properties"][name] = {"description": text} | prop
    if "properties" in schema:
        schema["additionalProperties"] = False
