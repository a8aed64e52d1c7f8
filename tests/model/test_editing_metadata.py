"""Metadata entries are set, kept and removed."""

import colour_model
import pytest
from convolution_model import same_bytes

from detcli.model.contract import parse_names
from detcli.model.editing import names_entry, set_metadata


def entries(model):
    return [(entry.key, entry.value) for entry in model.metadata_props]


@pytest.fixture
def model():
    return colour_model.build(metadata={"task": "detect", "names": "['a', 'b', 'c']"})


def test_other_entries_keep_their_order(model):
    changed = set_metadata(model, {"task": "see", "author": "me"})
    assert entries(changed) == [("task", "see"), ("names", "['a', 'b', 'c']"), ("author", "me")]
    assert entries(model)[0] == ("task", "detect")


def test_an_empty_value_removes_an_entry(model):
    assert entries(set_metadata(model, {"task": "", "never": ""})) == [("names", "['a', 'b', 'c']")]


def test_setting_an_entry_twice_changes_nothing(model):
    changed = set_metadata(model, {"task": "", "author": "me"})
    assert same_bytes(set_metadata(changed, {"task": "", "author": "me"}), changed)


def test_class_names_round_trip():
    names = ("stop sign", "it's", 'a "b"', "größe")
    assert parse_names(names_entry(names)["names"]) == list(names)
