"""The JSON Schemas of the commands; commands/test_schema.py shows that they are valid."""

import functools
import json
from importlib import resources

import jsonschema


@functools.cache
def validator(command, *, strict=False):
    """What holds values against a command's schema; if strict, a record has no other fields."""
    path = resources.files("detcli").joinpath(f"commands/{command}/schema.json")
    schema = json.loads(path.read_text("utf-8"))
    if strict:
        schema["unevaluatedProperties"] = False
    return jsonschema.Draft202012Validator(schema)
