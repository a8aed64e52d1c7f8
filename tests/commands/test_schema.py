"""`detcli schema`: one for each command that writes JSON."""

import json
import sys
from importlib import resources

import jsonschema
import pytest

from detcli.commands.schema import schema
from detcli.errors import OutputError, UsageError

NAMES = sorted(
    folder.name
    for folder in resources.files("detcli.commands").iterdir()
    if folder.joinpath("schema.json").is_file()
)


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_valid(name, capsys):
    schema(name)
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["$id"] == f"urn:detcli:{name}:1"


@pytest.mark.parametrize("name", ["nonsense", "", "../commands/predict", "predict.json"])
def test_other_names_get_a_list_of_commands(name):
    with pytest.raises(UsageError, match="has no schema") as caught:
        schema(name)
    assert ", ".join(NAMES) in caught.value.hint


def test_a_closed_stdout_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # closed
    with pytest.raises(OutputError, match="standard output is closed") as caught:
        schema("eval")
    assert caught.value.hint == "redirect it to a file or a pipe"  # few commands have --output
