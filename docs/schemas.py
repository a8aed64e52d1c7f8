"""Makes the JSON Schemas of what commands print from the types of their reports.

`docs/generate.py` writes each beside its command, as `schema.json`, and a test compares. pydantic
reads the types; docstrings give the descriptions, and the names of fields the bounds of values.
"""

import dataclasses
import inspect
import json
import re
import typing
from typing import Any

import typing_extensions
from pydantic import TypeAdapter

from detcli.commands.bench.report import RunReport
from detcli.commands.convert.run import Conversion
from detcli.commands.doctor.examine import DoctorReport
from detcli.commands.eval.comparison_report import ComparisonReport
from detcli.commands.eval.findings import Kind
from detcli.commands.eval.report import EvalReport
from detcli.commands.inspect.examine import Inspection
from detcli.commands.tune.report import TuneReport
from detcli.commands.verify.report import CheckReport, VerifyReport
from detcli.data.record import SCHEMA_VERSION, RecordJson

REPORTS: dict[str, Any] = {
    "bench": RunReport,
    "convert": Conversion,
    "doctor": DoctorReport,
    "eval": EvalReport | ComparisonReport,
    "inspect": Inspection,
    "predict": RecordJson,
    "tune": TuneReport,
    "verify": VerifyReport | CheckReport,
}
"""What each command prints as JSON: a report, or one of several."""

VERSIONS = {"predict": SCHEMA_VERSION, "verify": VerifyReport.schema_version}
"""The versions that are not 1."""

EITHER = {"predict": [["width", "height", "detections", "model", "device"], ["error"]]}
"""Fields of which a document has one group or another."""

PATTERNS = {"sha256": "^[0-9a-f]{64}$", "inputs_sha256": "^[0-9a-f]{64}$"}
"""What texts look like, by field."""

CHOICES = {"Finding.kind": [kind.value[0] for kind in Kind]}
"""Texts of which there are few, by `Type.field`."""

BOUNDS: tuple[tuple[str, dict[str, float]], ...] = (
    (
        r"\w+\.((left_|right_)?(map|ar)_?\w+|coverage|precision|recall|f1|score|conf|disagreeing|taken\w*)",
        {"minimum": 0, "maximum": 1},
    ),
    (r"\w+\.(width|height|max_det|cores|samples)", {"minimum": 1}),
    (r"\w+\.cosine", {"minimum": -1, "maximum": 1}),
    (r"\w+\.([xy][12]|estimate|low|high|least|greatest)", {}),
    (r"\w+\.(difference|contribution)", {"minimum": -1, "maximum": 1}),
    (r".*", {"minimum": 0}),
)
"""What `Type.field` says of its numbers; the first pattern that matches counts."""


def schema(command: str) -> str:
    """The JSON Schema of what a command prints."""
    kinds = typing.get_args(REPORTS[command]) or (REPORTS[command],)
    docstrings = _docstrings(kinds)
    definitions: dict[str, Any] = {}
    documents = []
    version = VERSIONS.get(command, 1)
    for kind in kinds:
        document = TypeAdapter(_readable(kind)).json_schema(mode="serialization")
        definitions |= document.pop("$defs", {})
        _finish(kind.__name__, document, docstrings[kind.__name__])
        document["properties"].pop("schema_version", None)
        document["properties"] = {"schema_version": {"const": version}} | document["properties"]
        document["required"] = list(dict.fromkeys(["schema_version", *document["required"]]))
        documents.append(document)
    for name, definition in definitions.items():
        _finish(name, definition, docstrings[name])
    if command in EITHER:
        documents[0]["oneOf"] = [{"required": group} for group in EITHER[command]]
        del documents[0]["additionalProperties"]  # records may get fields
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:detcli:{command}:{version}",
        "title": f"What detcli {command} prints as JSON",
        **(documents[0] if len(documents) == 1 else {"oneOf": documents}),
        "$defs": definitions,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


FIELD = re.compile(r"((?:^ {4}# .*\n)*)^ {4}(\w+): [^#\n]*(?:  # (.*))?$", re.MULTILINE)
"""A field of a class: the comment lines above it, its name, and the comment behind it."""


def _docstrings(kinds: tuple[Any, ...]) -> dict[str, str]:
    """The docstrings of all types that some types are made of, by name.

    Each is completed by entries under Attributes, from the comments and labels of its fields.
    """
    docstrings: dict[str, str] = {}
    remaining_kinds = [*kinds]
    while remaining_kinds:
        kind = remaining_kinds.pop()
        remaining_kinds += typing.get_args(kind)
        is_ours = inspect.isclass(kind) and kind.__module__.startswith("detcli")
        if is_ours and kind.__name__ not in docstrings:
            docstring = inspect.getdoc(kind) or ""
            for name, text in _field_texts(kind).items():
                if "\n\nAttributes:" not in docstring:
                    docstring += "\n\nAttributes:"
                if f"\n    {name}: " not in docstring:
                    docstring += f"\n    {name}: {text}"
            docstrings[kind.__name__] = docstring
            remaining_kinds += typing.get_type_hints(kind).values()
    return docstrings


def _field_texts(kind: type) -> dict[str, str]:
    """What comments say of the fields of a class; else the label that a table of the report has."""
    texts = {}
    for comment_above, name, comment_behind in FIELD.findall(inspect.getsource(kind)):
        texts[name] = comment_behind or " ".join(comment_above.replace("#", "").split())
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            texts[field.name] = texts.get(field.name) or field.metadata.get("label", "")
    sentences = {}
    for name, text in texts.items():
        if text:
            starts_with_name = text.startswith(("x", "p50", "p90", "p99"))
            sentences[name] = f"{text if starts_with_name else text[0].upper() + text[1:]}."
    return sentences


def _readable(kind: Any) -> Any:
    """A type that pydantic reads: before Python 3.12 it refuses the standard TypedDict."""
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {name: _readable(hint) for name, hint in hints.items()}
        make: Any = typing_extensions.TypedDict  # which type checkers only know as a base class
        return make(kind.__name__, fields)
    if (origin := typing.get_origin(kind)) in {list, typing.NotRequired}:
        return origin[_readable(typing.get_args(kind)[0])]
    return kind


def _finish(kind: str, schema: dict[str, Any], docstring: str) -> None:
    """Describe an object from its docstring, and bound its values."""
    summary, _, attributes = docstring.partition("\n\nAttributes:\n")
    described = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE))
    schema["description"] = _text(summary)
    schema.pop("title", None)
    if "properties" not in schema:
        return
    schema["additionalProperties"] = False
    for name, field in schema["properties"].items():
        if field.pop("default", ...) is not ...:  # a report's field is written whatever it holds
            schema.setdefault("required", []).append(name)
        field.pop("title", None)
        for part in (field, *field.get("anyOf", []), field.get("items", {})):
            if part.get("type") in {"number", "integer"}:
                part.update(
                    next(bound for names, bound in BOUNDS if re.fullmatch(names, f"{kind}.{name}"))
                )
            elif part.get("type") == "string" and name in PATTERNS:
                part["pattern"] = PATTERNS[name]
            elif part.get("type") == "string" and f"{kind}.{name}" in CHOICES:
                part["enum"] = CHOICES[f"{kind}.{name}"]
        if name in described:
            field["description"] = _text(described[name])


def _text(docstring: str) -> str:
    return " ".join(docstring.split()).replace("None", "null")
