"""`detcli schema`: one for each command that writes JSON."""

import json
import os
from importlib import resources

import jsonschema
import pytest
from documentation.shells import ROOT

from detcli.commands.schema import PAGES

NAMES = sorted(
    folder.name
    for folder in resources.files("detcli.commands").iterdir()
    if folder.joinpath("schema.json").is_file()
)


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_valid(name, invoke):
    printed = json.loads(invoke("schema", name).stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    documents = [printed]
    if "properties" not in printed:  # the command writes one of several reports
        documents = printed["oneOf"]
    for document in documents:
        version = document["properties"]["schema_version"]["const"]
        assert printed["$id"] == f"urn:detcli:{name}:{version}"


@pytest.mark.parametrize("name", ["nonsense", "", "../commands/predict", "predict.json"])
def test_other_names_get_a_list_of_commands(name, invoke):
    completed = invoke("schema", name)
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert f"'{name}' has no schema\n" in completed.stderr
    assert f"these commands have one: {', '.join(NAMES)}\n" in completed.stderr


@pytest.mark.parametrize("name", sorted(PAGES.keys() - set(NAMES)))
def test_commands_without_one_name_the_page_that_shows_their_json(name, invoke):
    page = f"docs/{PAGES[name]}"
    assert f"hint: {page} shows its JSON by example" in invoke("schema", name).stderr
    assert f"{name} " in (ROOT / page).read_text("utf-8")
    assert f'"schema_version": {1 + (name == "verify")}' in (ROOT / page).read_text("utf-8")


def test_a_closed_stdout_is_an_error(detcli):
    completed = detcli("schema", "eval", preexec_fn=lambda: os.close(1))
    assert "standard output is closed" in completed.stderr
    assert (
        "hint: redirect it to a file or a pipe\n" in completed.stderr
    )  # few commands have --output
